"""Selection, names and conversions of the records of a data set: `View` and `Selection`.

A data set that is read in order filters each batch as it is decoded. Access by number first needs
the numbers of all matching records. One pass over the features of the conditions finds them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.base.errors import DataError, UsageError, WrongTypeError
from recordmill.base.option_names import available_names
from recordmill.base.threads import thread_map
from recordmill.reader.options.images import Images, ImageTarget
from recordmill.reader.sampling.sampler import RecordSubset
from recordmill.reader.take import resolve_record_numbers
from recordmill.records.columns.conversions import Decoding
from recordmill.records.columns.convert import ConversionStep, NameClasses
from recordmill.records.columns.predicate import Predicate, names_to_read
from recordmill.records.tfrecord.frames import FileFrames
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.shards.loading.decode import decode_frames
from recordmill.shards.pieces import FrameCall


@dataclass(frozen=True)
class Condition:
    """A predicate on the features of a view.

    Attributes:
        where: The predicate.
        names: Shown name to stored name of the features that were renamed when the condition was
            added.
    """

    where: Predicate
    names: Mapping[str, str]


@dataclass(frozen=True)
class View:
    """Description of how a data set shows the records of its files.

    Attributes:
        names: Shown name to stored name of the renamed features.
        conditions: A record must satisfy all of them.
        subset: The records that were selected by number. None means all.
        steps: Conversions of features, by stored name.
        images: Targets of encoded images, by stored name or for all images. None keeps them
            encoded.
        class_names: Classes are returned as names instead of numbers.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    subset: RecordSubset | None = None
    steps: tuple[ConversionStep, ...] = ()
    images: ImageTarget | None = None
    class_names: bool = False

    @property
    def is_filtered(self) -> bool:
        """True if the view may leave out records."""
        return bool(self.conditions) or self.subset is not None

    def to_shown(self, stored_schema: Schema) -> Schema:
        """Returns the schema with the shown names."""
        return rename_features(stored_schema, {old: new for new, old in self.names.items()})

    def to_stored(self, shown_schema: Schema) -> Schema:
        """Returns the schema with the stored names."""
        return rename_features(shown_schema, self.names)

    def make_decoding(self, stored: Schema, images: Mapping[str, Images]) -> Decoding:
        """Returns the conversion of stored features to the shown values.

        Args:
            stored: The features, under their stored names.
            images: Targets of encoded images, by stored name.
        """
        steps = [step for step in self.steps if step.feature in stored]
        if images:
            from recordmill.reader.images.columns import (
                ImageConversion,
                find_photo,
                has_boxes,
            )

            boxes = has_boxes(stored.names)
            has_photo = find_photo(images) is not None
            steps += [
                ImageConversion(
                    name, target, boxes, has_photo and target.mask and target.orientation
                )
                for name, target in images.items()
                if name in stored
            ]
        if self.class_names:
            steps += [
                NameClasses(feature.name) for feature in stored if feature.classes is not None
            ]
        return Decoding(stored, tuple(steps))

    def with_renamed(self, names: Mapping[str, str], schema: Schema) -> View:
        """Returns this view with new names for some features.

        Args:
            names: Current name to new name.
            schema: The features of this view, under their current names.

        Raises:
            UsageError: A feature is unknown, a new name is not text, or two features would have the
                same name.
        """
        if not isinstance(names, Mapping) or not all(
            isinstance(name, str) for name in names.values()
        ):
            raise UsageError(f"rename takes {{name: new name}}, not {names!r:.99}")
        check_features(names, schema)
        new_names = [names.get(name, name) for name in schema.names]
        if duplicates := [name for name in new_names if new_names.count(name) > 1]:
            raise UsageError(f"rename: two features would be called {duplicates[0]!r}")
        stored_names = [self.names.get(name, name) for name in schema.names]
        pairs = zip(new_names, stored_names, strict=True)
        view = replace(self, names={new: stored for new, stored in pairs if new != stored})
        try:
            view.to_shown(self.to_stored(schema))  # a `Schema` refuses invalid names
        except ValueError as error:
            raise UsageError("rename: {error}", error=error) from None
        return view

    def identity(self) -> str:
        """Returns a text that differs between views with other records or values.

        New names and a selection of features do not change it.
        """
        identity = "\x00and\x00".join(
            str(condition.where.condition)
            + (repr(sorted(condition.names.items())) if condition.names else "")
            for condition in self.conditions
        )
        identity = identity if self.subset is None else f"{identity}\x00kept {self.subset.digest()}"
        identity += "\x00by class name" * self.class_names
        return f"{identity}\x00as {self.steps!r}" if self.steps else identity


def rename_features(schema: Schema, names: Mapping[str, str]) -> Schema:
    """Returns the schema with new names for some features."""
    if not names:
        return schema
    label = None if schema.label is None else names.get(schema.label, schema.label)
    return Schema(
        tuple(replace(f, name=names.get(f.name, f.name)) for f in schema), label, schema.message
    )


def _schema_as_shown(stored_schema: Schema, names: Mapping[str, str]) -> Schema:
    """Returns all features under their shown names.

    A feature is left out if another feature has taken its name.
    """
    # Another feature has been renamed to these names.
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
        raise UsageError(f"give a list of features: {[name.strip() for name in names.split(',')]}")
    if not isinstance(names, Iterable):
        raise UsageError(f"give a list of features, as in {list(schema.names[:2])}, not {names!r}")
    for name in names:
        if not isinstance(name, str):
            raise UsageError(
                f"{name!r} is no feature's name: ds.filter([...]) and ds.take([...]) take record numbers"
            )
        if name not in schema:
            raise UsageError(f"no feature {name!r} is read; {available_names(name, schema.names)}")


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
                f"filter: a mask says of each of {total:,} records whether it is kept, not {array.shape}"
            )
        return np.flatnonzero(array)
    numbers = resolve_record_numbers(array, total)
    if len(np.unique(numbers)) < len(numbers):
        raise UsageError(
            "filter: a record is named twice; ds.take gives records in any order, as often as one likes"
        )
    return numbers


@dataclass(frozen=True)
class _StoredCondition:
    """A predicate, with the stored and the current names of its features."""

    where: Predicate
    stored_schema: Schema
    condition_schema: Schema

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        columns = batch.select(self.stored_schema.names)
        return self.where.evaluate(rename_columns(columns, self.condition_schema))


@dataclass(frozen=True)
class Selection:
    """Evaluation of the conditions of a view.

    Attributes:
        conditions: The conditions.
        condition_schema: The features of the conditions.
        decoded_schema: The features that are read, followed by other features of the conditions.
        decoding: The conversion of the features that are read.
        shown_schema: The features that are read, converted, under their shown names.
        subset: The records that were selected by number. None means all.
    """

    conditions: tuple[_StoredCondition, ...]
    condition_schema: Schema
    decoded_schema: Schema
    decoding: Decoding
    shown_schema: Schema
    subset: RecordSubset | None

    @classmethod
    def from_view(cls, view: View, full_schema: Schema, decoding: Decoding) -> Selection:
        """Creates the selection of a view.

        Args:
            full_schema: All features of the records, under their stored names.
            decoding: The conversion of the features that are read, under their stored names.

        Raises:
            UsageError: A predicate does not fit the features.
        """
        conditions = []
        for condition in view.conditions:
            shown_schema = _schema_as_shown(full_schema, condition.names)
            # A batch without columns has no number of rows, so at least one is read.
            names = _condition_columns(condition.where, shown_schema, decoding)
            condition_schema = shown_schema.select(names or shown_schema.names[:1])
            stored_schema = rename_features(condition_schema, condition.names)
            conditions.append(_StoredCondition(condition.where, stored_schema, condition_schema))
        names = tuple(dict.fromkeys(name for c in conditions for name in c.stored_schema.names))
        return cls(
            conditions=tuple(conditions),
            condition_schema=full_schema.select(names or full_schema.names[:1]),
            decoded_schema=full_schema.select(names_to_read(decoding.stored_schema.names, names)),
            decoding=decoding,
            shown_schema=view.to_shown(decoding.schema),
            subset=view.subset,
        )

    def decode(self, frames: FileFrames, numbers: Int64s) -> pa.RecordBatch:
        """Decodes the matching records into a batch with the shown features.

        Args:
            frames: Frames of one file.
            numbers: Their numbers among all stored records. Ignored without a subset.

        Raises:
            DataError: A record is damaged, does not fit the schema or can't be converted.
        """
        subset_mask = self._subset_mask(numbers)
        if not subset_mask.any():
            frames, subset_mask = frames.select(slice(0), frames.damage), subset_mask[:0]
        batch = decode_frames(frames, self.decoded_schema)
        mask = subset_mask & self._condition_mask(batch, frames)
        subset = batch.filter(pa.array(mask))
        stored = self.decoding.stored_schema
        # `decoded_schema` begins with these features
        selected = pa.RecordBatch.from_arrays(
            subset.columns[: len(stored)], schema=to_arrow(stored)
        )
        matching = frames.select(np.flatnonzero(mask))
        return rename_columns(self.decoding.convert(selected, matching.location), self.shown_schema)

    def find_matching(
        self, calls: Iterable[FrameCall], threads: int, ends: Int64s, *, lenient: bool
    ) -> RecordSubset:
        """Returns the numbers of the matching records.

        Args:
            calls: The readings of all records, in order.
            threads: Number of threads that read and decode.
            ends: Number of records up to the end of each file, int64 [files].
            lenient: Damaged records match, so that reading them reports the damage. False raises
                it.
        """
        total = int(ends[-1]) if len(ends) else 0
        if not self.conditions and self.subset is not None:
            return self.subset

        def find(call: FrameCall) -> Int64s:
            frames = call()
            if not lenient:
                frames.raise_damage()
            first = int(ends[frames.file - 1]) if frames.file else 0
            batch = decode_frames(frames.select(slice(None)), self.condition_schema)
            mask = self._condition_mask(batch, frames) & self._subset_mask(first + frames.numbers)
            damaged = np.array([damage.record for damage in frames.damage], np.int64)
            numbers = np.append(frames.numbers[mask], damaged[self._subset_mask(first + damaged)])
            return first + np.sort(numbers)

        numbers = [np.empty(0, np.int64), *thread_map(find, calls, threads)]
        return RecordSubset(np.concatenate(numbers), total)

    def _subset_mask(self, numbers: Int64s) -> npt.NDArray[np.bool_]:
        if self.subset is None or not len(numbers):
            return np.ones(len(numbers), np.bool_)
        first = int(numbers[0])
        return self.subset.mask(first, int(numbers[-1]) + 1)[numbers - first]

    def _condition_mask(self, batch: pa.RecordBatch, frames: FileFrames) -> npt.NDArray[np.bool_]:
        mask = np.ones(batch.num_rows, np.bool_)
        try:
            for condition in self.conditions:
                mask &= condition.mask(batch)
        except DataError as error:
            raise DataError(error.reason, source=frames.origin.path(0)) from None
        return mask


def _condition_columns(
    predicate: Predicate, shown_schema: Schema, decoding: Decoding
) -> tuple[str, ...]:
    """Returns the names of the features that a condition uses.

    The condition sees all features as they are stored.
    """
    try:
        return predicate.referenced_columns(shown_schema)
    except UsageError as error:
        decoded_names = [
            step.feature
            for step in decoding.steps
            if re.search(rf"\b{re.escape(step.feature)}\b", str(predicate))
        ]
        if not decoded_names:
            raise
        raise UsageError(
            "{error} (a condition sees {decoded_names} as the records have it, before it "
            "is decoded; by what is in arrays, records are chosen by their numbers: "
            "ds.filter(numbers))",
            error=error,
            decoded_names=repr(decoded_names[0]),
        ) from None
