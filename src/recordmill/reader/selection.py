"""Selection of records by conditions and numbers, and of features by name: `RecordFilter`.

A data set that is read in order filters each batch as it is decoded. Access by number first needs
the numbers of all matching records. One pass over the features of the conditions finds them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.base.errors import DataError, UsageError, WrongTypeError
from recordmill.base.option_names import available_names
from recordmill.base.threads import thread_map
from recordmill.reader.open_files import OpenFiles
from recordmill.reader.sampling.sampler import RecordSubset
from recordmill.reader.take import resolve_record_numbers
from recordmill.records.columns.predicate import Predicate
from recordmill.records.tfrecord.frames import FileFrames
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.shards.loading.decode import decode_frames
from recordmill.shards.pieces import FrameRead


@dataclass(frozen=True)
class Condition:
    """A predicate, with the feature names of the view that it was added to.

    Attributes:
        where: The predicate. It uses the names of the view.
        names: Name in the view to stored name, for the features that the view has renamed.
    """

    where: Predicate
    names: Mapping[str, str]


def rename_features(schema: Schema, names: Mapping[str, str]) -> Schema:
    """Returns the schema with new names for some features."""
    if not names:
        return schema
    label = None if schema.label is None else names.get(schema.label, schema.label)
    return Schema(
        tuple(replace(f, name=names.get(f.name, f.name)) for f in schema), label, schema.message
    )


def _schema_as_shown(stored_schema: Schema, names: Mapping[str, str]) -> Schema:
    """Returns all features under their names in a view.

    A feature is left out if another feature has its name in the view.
    """
    # these names now belong to other features
    hidden = {*names} - {*names.values()}
    return rename_features(
        stored_schema.select(name for name in stored_schema.names if name not in hidden),
        {old: new for new, old in names.items()},
    )


def rename_columns(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """Returns the batch with the names of the schema, in the same order."""
    if batch.schema.names == list(schema.names):
        return batch
    return pa.RecordBatch.from_arrays(batch.columns, schema=to_arrow(schema))


def check_unique(names: Sequence[str]) -> None:
    """Raises UsageError if a feature is named twice."""
    if len({*names}) < len(names):
        duplicate = next(name for i, name in enumerate(names) if name in names[:i])
        raise UsageError(f"feature {duplicate!r} is named twice: give each feature once")


def check_features(names: Sequence[str] | Mapping[str, str], schema: Schema) -> None:
    """Raises UsageError if a name is not a feature that is read."""
    if isinstance(names, str):
        listed = [name.strip() for name in names.split(",")]
        raise UsageError(f"features must be a list, not one string: use {listed}")
    if not isinstance(names, Iterable):
        raise UsageError(f"features must be a list, as in {list(schema.names[:2])}, not {names!r}")
    for name in names:
        if not isinstance(name, str):
            raise UsageError(
                f"{name!r} is not the name of a feature: for record numbers use "
                "ds.filter([...]) or ds.take([...])"
            )
        if name not in schema:
            raise UsageError(
                f"no feature {name!r} is selected; {available_names(name, schema.names)}"
            )


def make_not_dropped_error(name: str) -> UsageError:
    """Returns the UsageError for `nulls="drop"` on a mixture or a zip.

    Args:
        name: A feature that may be missing.
    """
    return UsageError(
        'nulls="drop" does not work for data sets that are mixed or zipped: filter '
        f"each of them, such as ds.filter('\"{name}\" is not null')"
    )


def filter_numbers(records: Sequence[int] | npt.NDArray[Any], total: int) -> Int64s:
    """Returns the numbers of the records that a mask or a list selects.

    Args:
        records: One bool per record, or record numbers. Negative numbers count from the end.
        total: Number of records.

    Raises:
        UsageError: The mask has another length, or a record is named twice.
        WrongTypeError: `records` is neither a mask nor a list of integers.
        IndexError: A number is out of range.

    >>> filter_numbers([True, False, True], 3).tolist()
    [0, 2]
    """
    array = np.asarray(records)
    if array.ndim == 0:  # a single object, such as a function
        advice = "; np.array([f(row) for row in ds]) makes a mask" if callable(records) else ""
        raise WrongTypeError(
            "filter takes a condition (SQL text, or a pyarrow expression), a mask or record numbers, "
            f"not {records!r:.99}{advice}"
        )
    if array.dtype == np.bool_:
        if array.shape != (total,):
            raise UsageError(
                f"filter: a mask has one bool for each of {total:,} records, not the "
                f"shape {array.shape}"
            )
        return np.flatnonzero(array)
    numbers = resolve_record_numbers(array, total)
    if len(np.unique(numbers)) < len(numbers):
        raise UsageError(
            "filter: a record is named twice; ds.take returns records in any order, also repeatedly"
        )
    return numbers


@dataclass(frozen=True)
class _StoredCondition:
    """A predicate, with the stored and the shown names of its features.

    Attributes:
        where: The predicate. It uses the names in `condition_schema`.
        stored_schema: The features of the predicate, under their stored names.
        condition_schema: The same features in the same order, under their names in the view.
    """

    where: Predicate
    stored_schema: Schema
    condition_schema: Schema

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        columns = batch.select(self.stored_schema.names)
        return self.where.evaluate(rename_columns(columns, self.condition_schema))


class RecordFilter:
    """Selection of records by conditions and by number.

    The first access to `matching` finds the numbers of the matching records and keeps them. All
    views with this filter share them. A pickled copy contains them if they are known.

    Args:
        files: The files with the records.
        conditions: A record must satisfy all of them.
        subset: The records that were selected by number. None means all.
    """

    def __init__(
        self,
        files: OpenFiles,
        conditions: tuple[Condition, ...] = (),
        subset: RecordSubset | None = None,
    ) -> None:
        self.files, self.conditions, self.subset = files, conditions, subset
        self._matching = None if conditions else subset

    @property
    def is_active(self) -> bool:
        """True if the filter may leave out records."""
        return bool(self.conditions) or self.subset is not None

    @property
    def known_matching(self) -> RecordSubset | None:
        """Numbers of the matching records, if they are known. Reads nothing."""
        return self._matching

    @property
    def matching(self) -> RecordSubset | None:
        """Numbers of the matching records among all records. None means all.

        The first access reads the features of the conditions in all records.
        """
        if self._matching is None and self.conditions:
            self._matching = self._find_matching()
        return self._matching

    def with_files(self, files: OpenFiles) -> RecordFilter:
        """Returns this filter for another `OpenFiles` of the same files."""
        return RecordFilter(files, self.conditions, self.subset)

    def and_where(self, where: Predicate, names: Mapping[str, str]) -> RecordFilter:
        """Returns this filter with another condition.

        Args:
            where: The condition.
            names: Shown name to stored name of the renamed features.
        """
        return RecordFilter(self.files, (*self.conditions, Condition(where, names)), self.subset)

    def and_numbers(self, numbers: Int64s) -> RecordFilter:
        """Returns a filter that selects some of the matching records by number.

        Args:
            numbers: Each is in [0, number of matching records).
        """
        # The numbers count matching records only, so the conditions are not needed any more.
        subset = (
            RecordSubset.from_numbers(numbers, self.files.num_records)
            if self.matching is None
            else self.matching.select(numbers)
        )
        return RecordFilter(self.files, subset=subset)

    def identity(self) -> str:
        """Returns a text for fingerprints. Filters that select other records have another text."""
        identity = "\x00and\x00".join(
            str(condition.where.condition)
            + (repr(sorted(condition.names.items())) if condition.names else "")
            for condition in self.conditions
        )
        return identity if self.subset is None else f"{identity}\x00kept {self.subset.digest()}"

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Stored names of the features that the conditions use."""
        names = (name for c in self._stored_conditions for name in c.stored_schema.names)
        return tuple(dict.fromkeys(names))

    @cached_property
    def _stored_conditions(self) -> tuple[_StoredCondition, ...]:
        """The conditions, with their features.

        Raises:
            UsageError: A condition does not fit the features.
        """
        conditions = []
        for condition in self.conditions:
            shown_schema = _schema_as_shown(self.files.schema, condition.names)
            # A batch without columns has no number of rows, so at least one is read.
            names = _condition_columns(condition.where, shown_schema, self.files)
            condition_schema = shown_schema.select(names or shown_schema.names[:1])
            stored_schema = rename_features(condition_schema, condition.names)
            conditions.append(_StoredCondition(condition.where, stored_schema, condition_schema))
        return tuple(conditions)

    def subset_mask(self, frames: FileFrames) -> npt.NDArray[np.bool_]:
        """Returns a mask of the frames that were selected by number, bool [rows].

        Args:
            frames: Frames of one file.
        """
        # Without a subset no numbers are computed, because that may read all files.
        if self.subset is None:
            return np.ones(len(frames), np.bool_)
        return self._selected_by_number(self.files.number_records(frames))

    def condition_mask(self, batch: pa.RecordBatch, frames: FileFrames) -> npt.NDArray[np.bool_]:
        """Returns a mask of the records that satisfy the conditions, bool [rows].

        Args:
            batch: The features of the conditions, and possibly others, as they are stored.
            frames: The frames of the records, of one file.
        """
        mask = np.ones(batch.num_rows, np.bool_)
        try:
            for condition in self._stored_conditions:
                mask &= condition.mask(batch)
        except DataError as error:
            raise DataError(error.reason, source=frames.origin.path(0)) from None
        return mask

    def _find_matching(self) -> RecordSubset:
        """Finds the matching records in one pass over the features of the conditions.

        If the files are lenient, damaged records match, so that the code that reads them later
        reports them.
        """
        files = self.files
        # At least one feature, because a batch without columns has no number of rows.
        schema = files.schema.select(self.feature_names or files.schema.names[:1])

        def find(read: FrameRead) -> Int64s:
            frames = read()
            if not files.is_lenient:
                frames.raise_damage()
            numbers = files.number_records(frames)
            batch = decode_frames(frames.select(slice(None)), schema)
            mask = self.condition_mask(batch, frames) & self._selected_by_number(numbers)
            damaged = files.number_records(frames, [damage.record for damage in frames.damage])
            return np.sort(np.append(numbers[mask], damaged[self._selected_by_number(damaged)]))

        reads = files.iter_joined_reads(subset=self.subset)
        numbers = [np.empty(0, np.int64), *thread_map(find, reads, files.threads)]
        return RecordSubset(np.concatenate(numbers), files.num_records)

    def _selected_by_number(self, numbers: Int64s) -> npt.NDArray[np.bool_]:
        if self.subset is None or not len(numbers):
            return np.ones(len(numbers), np.bool_)
        first = int(numbers[0])
        return self.subset.mask(first, int(numbers[-1]) + 1)[numbers - first]


def _condition_columns(
    predicate: Predicate, shown_schema: Schema, files: OpenFiles
) -> tuple[str, ...]:
    """Returns the names of the features that a condition uses.

    Raises:
        UsageError: The condition does not fit the stored features. If the view decodes a feature,
            the message explains that conditions use the stored value.
    """
    try:
        return predicate.referenced_columns(shown_schema)
    except UsageError as error:
        decoded_names = [
            step.feature
            for step in files.make_decoding(files.schema).steps
            if re.search(rf"\b{re.escape(step.feature)}\b", str(predicate))
        ]
        if not decoded_names:
            raise
        raise UsageError(
            "{error}. Conditions use {decoded_name} as stored, not decoded. To select by decoded "
            "values, use ds.filter(record_numbers).",
            error=error,
            decoded_name=repr(decoded_names[0]),
        ) from None
