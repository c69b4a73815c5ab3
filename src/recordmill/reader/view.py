"""`View`: what a `Dataset` shows of its files: features under other names, decoded, some of the records; nothing is
copied. `Selection`: which records a view keeps.

Whoever reads on needs no numbers: each batch is filtered as it comes. Who addresses records by number needs them: one
pass over what the predicates look at finds them, a bit for each record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import available_names
from recordmill.base.threads import thread_map
from recordmill.reader.options.images import Images, ImageTarget
from recordmill.reader.sampling.sampler import RecordSubset
from recordmill.reader.take import resolve_record_numbers
from recordmill.records.columns.conversions import Decoding
from recordmill.records.columns.convert import ConversionStep, NameClasses
from recordmill.records.columns.predicate import Predicate, names_to_read
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.shards.loading.batches import Load, decode_load


@dataclass(frozen=True)
class Condition:
    """A predicate on features that have these names (shown to stored) where it was given."""

    where: Predicate
    names: Mapping[str, str]


@dataclass(frozen=True)
class View:
    """View of a data set.

    Attributes:
        names: the name that is shown to the one in the records, of features that were renamed.
        conditions: all of them hold for the records that there are.
        subset: the records are some of these; None: any.
        steps: conversions of features, by their names in the records.
        images: what encoded images become, likewise.
        class_names: classes are their names, and not their numbers.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    subset: RecordSubset | None = None
    steps: tuple[ConversionStep, ...] = ()
    images: ImageTarget | None = None
    class_names: bool = False

    @property
    def is_filtered(self) -> bool:
        """True if some records are left out."""
        return bool(self.conditions) or self.subset is not None

    def to_shown(self, stored_schema: Schema) -> Schema:
        """The features under the names that are shown."""
        return rename_features(stored_schema, {old: new for new, old in self.names.items()})

    def to_stored(self, shown_schema: Schema) -> Schema:
        """The features under the names that they have in the records."""
        return rename_features(shown_schema, self.names)

    def make_decoding(self, stored: Schema, images: Mapping[str, Images]) -> Decoding:
        """Returns how these features of the records become what is shown. `images` has their names in the records."""
        steps = [step for step in self.steps if step.feature in stored]
        if images:
            from recordmill.reader.images.columns import ResizedImages, has_boxes

            boxes = has_boxes(stored.names)
            steps += [ResizedImages(name, images[name], boxes) for name in images if name in stored]
        if self.class_names:
            steps += [
                NameClasses(feature.name) for feature in stored if feature.classes is not None
            ]
        return Decoding(stored, tuple(steps))

    def with_renamed(self, names: Mapping[str, str], schema: Schema) -> View:
        """Returns the view with features of this schema under other names: the one that is shown now to the new one.
        UsageError where one is not read, two would have one name, or one a name that is no text.
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
            view.to_shown(self.to_stored(schema))
        except ValueError as error:
            raise UsageError(f"rename: {error}") from None
        return view

    def identity(self) -> str:
        """Returns what tells its records from those of other views of the same files."""
        identity = "\x00and\x00".join(
            str(condition.where.predicate)
            + (repr(sorted(condition.names.items())) if condition.names else "")
            for condition in self.conditions
        )
        identity = identity if self.subset is None else f"{identity}\x00kept {self.subset.digest()}"
        identity += "\x00by class name" * self.class_names
        return f"{identity}\x00as {self.steps!r}" if self.steps else identity


def rename_features(schema: Schema, names: Mapping[str, str]) -> Schema:
    """Returns the schema with some of its features under another name."""
    if not names:
        return schema
    label = None if schema.label is None else names.get(schema.label, schema.label)
    return Schema(
        tuple(replace(f, name=names.get(f.name, f.name)) for f in schema), label, schema.message
    )


def _schema_as_shown(stored_schema: Schema, names: Mapping[str, str]) -> Schema:
    """Returns all features under the names that are shown, but for those whose own name another one has now."""
    hidden = {*names} - {*names.values()}
    return rename_features(
        stored_schema.select(name for name in stored_schema.names if name not in hidden),
        {old: new for new, old in names.items()},
    )


def rename_columns(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """The columns under the schema's names."""
    if batch.schema.names == list(schema.names):
        return batch
    return pa.RecordBatch.from_arrays(batch.columns, schema=to_arrow(schema))


def check_unique(names: Sequence[str]) -> None:
    """Raises UsageError where a feature is named twice."""
    if len({*names}) < len(names):
        duplicate = next(name for i, name in enumerate(names) if name in names[:i])
        raise UsageError(f"feature {duplicate!r} is named twice: give each feature once")


def check_features(names: Sequence[str] | Mapping[str, str], schema: Schema) -> None:
    """Raises UsageError where a feature is not read, or a number is taken for one."""
    if isinstance(names, str):
        raise UsageError(f"give a list of features: {[name.strip() for name in names.split(',')]}")
    for name in names:
        if not isinstance(name, str):
            raise UsageError(
                f"{name!r} is no feature's name: ds.filter([...]) and ds.take([...]) take record numbers"
            )
        if name not in schema:
            raise UsageError(f"no feature {name!r} is read; {available_names(name, schema.names)}")


def filter_numbers(records: Sequence[int] | npt.NDArray[Any], total: int) -> Int64s:
    """Returns the records that a filter names, by a bool for each or by number, as numbers in [0, total); UsageError
    where there are not as many bools as records, or a number comes twice.
    """
    array = np.asarray(records)
    if array.dtype == np.bool_:
        if array.shape != (total,):
            raise UsageError(
                f"filter: a mask says of each of {total:,} records whether it is kept, not {array.shape}"
            )
        return np.flatnonzero(array)
    if callable(records):
        raise UsageError(
            "filter takes no function: give a condition (SQL text, or a pyarrow expression), a mask or record numbers; "
            "np.array([f(row) for row in ds]) makes a mask"
        )
    numbers = resolve_record_numbers(array, total)
    if len(np.unique(numbers)) < len(numbers):
        raise UsageError(
            "filter: a record is named twice; ds.take gives records in any order, as often as one likes"
        )
    return numbers


@dataclass(frozen=True)
class _StoredCondition:
    """A predicate, the features that it looks at, and the names that they have for it."""

    where: Predicate
    stored_schema: Schema
    condition_schema: Schema

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        columns = batch.select(self.stored_schema.names)
        return self.where.keep(rename_columns(columns, self.condition_schema))


@dataclass(frozen=True)
class Selection:
    """Evaluation of a view's conditions.

    Attributes:
        conditions: the predicates.
        condition_schema: the features they look at.
        decoded_schema: the selected features, and after them what else is needed.
        decoding: what becomes of the selected ones.
        shown_schema: as they are shown.
        subset: the records that may be kept; None: any.
    """

    conditions: tuple[_StoredCondition, ...]
    condition_schema: Schema
    decoded_schema: Schema
    decoding: Decoding
    shown_schema: Schema
    subset: RecordSubset | None

    @classmethod
    def from_view(cls, view: View, full_schema: Schema, decoding: Decoding) -> Selection:
        """Creates the selection for records of schema `full`, of which what `decoding` takes is read, both with the
        names in the records. UsageError: a predicate has no meaning there.
        """
        conditions = []
        for condition in view.conditions:
            shown_schema = _schema_as_shown(full_schema, condition.names)
            # Without a column a batch would not know how many rows it has.
            names = _condition_columns(condition.where, shown_schema, decoding)
            condition_schema = shown_schema.select(names or shown_schema.names[:1])
            stored_schema = rename_features(condition_schema, condition.names)
            conditions.append(_StoredCondition(condition.where, stored_schema, condition_schema))
        names = tuple(dict.fromkeys(name for c in conditions for name in c.stored_schema.names))
        return cls(
            conditions=tuple(conditions),
            condition_schema=full_schema.select(names or full_schema.names[:1]),
            decoded_schema=full_schema.select(names_to_read(decoding.stored.names, names)),
            decoding=decoding,
            shown_schema=view.to_shown(decoding.schema),
            subset=view.subset,
        )

    def decode(self, load: Load, first: int) -> list[pa.RecordBatch]:
        """Returns the records of a load that are kept, as columns of `selected`; first: the number of its first one."""
        batches = []
        record = load.piece.first_record if load.block is None else load.block.first_record
        for batch in decode_load(load, self.decoded_schema):
            mask = self._subset_mask(first, batch.num_rows) & self._condition_mask(batch, load)
            subset = batch.filter(pa.array(mask))
            stored = self.decoding.stored
            selected = pa.RecordBatch.from_arrays(
                subset.columns[: len(stored)], schema=to_arrow(stored)
            )
            record_place = partial(_record_place, record + np.flatnonzero(mask))
            converted = self.decoding.converted(selected, load.file.path, record_place)
            batches.append(rename_columns(converted, self.shown_schema))
            first += batch.num_rows
            record += batch.num_rows
        return batches

    def find_matching(self, loads: Iterable[Load], threads: int, total: int) -> RecordSubset:
        """Returns which of all records are kept; the loads are all records, in order."""
        if not self.conditions and self.subset is not None:
            return self.subset
        numbers, first = [np.empty(0, np.int64)], 0
        for masks in thread_map(self._masks, loads, threads):
            for mask in masks:
                numbers.append(first + np.flatnonzero(mask & self._subset_mask(first, len(mask))))
                first += len(mask)
        return RecordSubset(np.concatenate(numbers), total)

    def _masks(self, load: Load) -> list[npt.NDArray[np.bool_]]:
        """Returns which records of a load are kept, by batch; damaged ones are, so that reading them reports them."""
        if load.block is not None and load.block.fault:
            return [np.ones(1, np.bool_)]
        return [
            self._condition_mask(batch, load) for batch in decode_load(load, self.condition_schema)
        ]

    def _subset_mask(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        return (
            np.ones(count, np.bool_)
            if self.subset is None
            else self.subset.mask(first, first + count)
        )

    def _condition_mask(self, batch: pa.RecordBatch, load: Load) -> npt.NDArray[np.bool_]:
        mask = np.ones(batch.num_rows, np.bool_)
        try:
            for condition in self.conditions:
                mask &= condition.mask(batch)
        except DataError as error:
            raise DataError(error.reason, source=load.file.path) from None
        return mask


def _condition_columns(
    predicate: Predicate, shown_schema: Schema, decoding: Decoding
) -> tuple[str, ...]:
    """The features that a condition looks at; it sees all of them as the records have them."""
    try:
        return predicate.columns(shown_schema)
    except UsageError as error:
        decoded_names = [
            step.feature
            for step in decoding.steps
            if re.search(rf"\b{re.escape(step.feature)}\b", str(predicate))
        ]
        if not decoded_names:
            raise
        raise UsageError(
            f"{error} (a condition sees {decoded_names[0]!r} as the records have it, before it is decoded; by what is in "
            "arrays, records are chosen by their numbers: ds.filter(numbers))"
        ) from None


def _record_place(numbers: npt.NDArray[np.int64], row: int) -> str:
    return f"record {numbers[row]}"


def decode_first_rows(
    records: int,
    loads: Iterable[Load],
    decode: Callable[[Load], list[pa.RecordBatch]],
    threads: int,
) -> list[pa.RecordBatch]:
    """Returns the first records of these loads; no more are begun than that takes, and one a thread."""
    head = []
    for batches in thread_map(decode, loads, threads):
        for batch in batches:
            head.append(batch.slice(0, records))
            records -= head[-1].num_rows
        if records <= 0:
            break
    return head
