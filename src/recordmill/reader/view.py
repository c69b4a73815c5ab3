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
    def filters(self) -> bool:
        """True if some records are left out."""
        return bool(self.conditions) or self.subset is not None

    def shown(self, stored: Schema) -> Schema:
        """The features under the names that are shown."""
        return rename_features(stored, {name: shown for shown, name in self.names.items()})

    def stored(self, shown: Schema) -> Schema:
        """The features under the names that they have in the records."""
        return rename_features(shown, self.names)

    def decoding(self, stored: Schema, images: Mapping[str, Images]) -> Decoding:
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

    def renamed(self, names: Mapping[str, str], schema: Schema) -> View:
        """Returns the view with features of this schema under other names: the one that is shown now to the new one.
        UsageError where one is not read, two would have one name, or one a name that is no text.
        """
        if not isinstance(names, Mapping) or not all(
            isinstance(name, str) for name in names.values()
        ):
            raise UsageError(f"rename takes {{name: new name}}, not {names!r:.99}")
        check_features(names, schema)
        new = [names.get(name, name) for name in schema.names]
        if twice := [name for name in new if new.count(name) > 1]:
            raise UsageError(f"rename: two features would be called {twice[0]!r}")
        stored = [self.names.get(name, name) for name in schema.names]
        view = replace(
            self,
            names={shown: name for shown, name in zip(new, stored, strict=True) if shown != name},
        )
        try:
            view.shown(self.stored(schema))
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


def _schema_as_shown(full: Schema, names: Mapping[str, str]) -> Schema:
    """Returns all features under the names that are shown, but for those whose own name another one has now."""
    hidden = {*names} - {*names.values()}
    return rename_features(
        full.select(name for name in full.names if name not in hidden),
        {name: shown for shown, name in names.items()},
    )


def rename_columns(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """The columns under the schema's names."""
    if batch.schema.names == list(schema.names):
        return batch
    return pa.RecordBatch.from_arrays(batch.columns, schema=to_arrow(schema))


def check_unique(names: Sequence[str]) -> None:
    """Raises UsageError where a feature is named twice."""
    if len({*names}) < len(names):
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        raise UsageError(f"feature {twice!r} is named twice: give each feature once")


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


def filter_numbers(what: Sequence[int] | npt.NDArray[Any], total: int) -> Int64s:
    """Returns the records that a filter names, by a bool for each or by number, as numbers in [0, total); UsageError
    where there are not as many bools as records, or a number comes twice.
    """
    given = np.asarray(what)
    if given.dtype == np.bool_:
        if given.shape != (total,):
            raise UsageError(
                f"filter: a mask says of each of {total:,} records whether it is kept, not {given.shape}"
            )
        return np.flatnonzero(given)
    if callable(what):
        raise UsageError(
            "filter takes no function: give a condition (SQL text, or a pyarrow expression), a mask or record numbers; "
            "np.array([f(row) for row in ds]) makes a mask"
        )
    numbers = resolve_record_numbers(given, total)
    if len(np.unique(numbers)) < len(numbers):
        raise UsageError(
            "filter: a record is named twice; ds.take gives records in any order, as often as one likes"
        )
    return numbers


@dataclass(frozen=True)
class _BoundCondition:
    """A predicate, the features that it looks at, and the names that they have for it."""

    where: Predicate
    stored: Schema
    rename_features: Schema

    def keep(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        return self.where.keep(
            rename_columns(batch.select(self.stored.names), self.rename_features)
        )


@dataclass(frozen=True)
class Selection:
    """Evaluation of a view's conditions.

    Attributes:
        conditions: the predicates.
        needed: the features they look at.
        decoded: the selected features, and after them what else is needed.
        decoding: what becomes of the selected ones.
        selected: as they are shown.
        kept: the records that may be kept; None: any.
    """

    conditions: tuple[_BoundCondition, ...]
    needed: Schema
    decoded: Schema
    decoding: Decoding
    selected: Schema
    subset: RecordSubset | None

    @classmethod
    def from_view(cls, view: View, full: Schema, decoding: Decoding) -> Selection:
        """Creates the selection for records of schema `full`, of which what `decoding` takes is read, both with the
        names in the records. UsageError: a predicate has no meaning there.
        """
        conditions = []
        for condition in view.conditions:
            seen = _schema_as_shown(full, condition.names)
            # Without a column a batch would not know how many rows it has.
            there = seen.select(
                _condition_columns(condition.where, seen, decoding) or seen.names[:1]
            )
            conditions.append(
                _BoundCondition(condition.where, rename_features(there, condition.names), there)
            )
        needed = tuple(dict.fromkeys(name for one in conditions for name in one.stored.names))
        return cls(
            tuple(conditions),
            full.select(needed or full.names[:1]),
            full.select(names_to_read(decoding.stored.names, needed)),
            decoding,
            view.shown(decoding.schema),
            view.subset,
        )

    def decode(self, load: Load, first: int) -> list[pa.RecordBatch]:
        """Returns the records of a load that are kept, as columns of `selected`; first: the number of its first one."""
        found = []
        record = load.piece.first_record if load.block is None else load.block.first_record
        for batch in decode_load(load, self.decoded):
            keep = self._subset_mask(first, batch.num_rows) & self._condition_mask(batch, load)
            subset = batch.filter(pa.array(keep))
            stored = self.decoding.stored
            chosen = pa.RecordBatch.from_arrays(
                subset.columns[: len(stored)], schema=to_arrow(stored)
            )
            numbers = record + np.flatnonzero(keep)
            place = partial(_record_place, numbers)
            found.append(
                rename_columns(
                    self.decoding.converted(chosen, load.file.path, place), self.selected
                )
            )
            first += batch.num_rows
            record += batch.num_rows
        return found

    def find(self, loads: Iterable[Load], threads: int, total: int) -> RecordSubset:
        """Returns which of all records are kept; the loads are all records, in order."""
        if not self.conditions and self.subset is not None:
            return self.subset
        kept, first = [np.empty(0, np.int64)], 0
        for parts in thread_map(self._masks, loads, threads):
            for keep in parts:
                kept.append(first + np.flatnonzero(keep & self._subset_mask(first, len(keep))))
                first += len(keep)
        return RecordSubset(np.concatenate(kept), total)

    def _masks(self, load: Load) -> list[npt.NDArray[np.bool_]]:
        """Returns which records of a load are kept, by batch; damaged ones are, so that reading them reports them."""
        if load.block is not None and load.block.fault:
            return [np.ones(1, np.bool_)]
        return [self._condition_mask(batch, load) for batch in decode_load(load, self.needed)]

    def _subset_mask(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        return (
            np.ones(count, np.bool_)
            if self.subset is None
            else self.subset.mask(first, first + count)
        )

    def _condition_mask(self, batch: pa.RecordBatch, load: Load) -> npt.NDArray[np.bool_]:
        keep = np.ones(batch.num_rows, np.bool_)
        try:
            for condition in self.conditions:
                keep &= condition.keep(batch)
        except DataError as error:
            raise DataError(error.reason, source=load.file.path) from None
        return keep


def _condition_columns(where: Predicate, seen: Schema, decoding: Decoding) -> tuple[str, ...]:
    """The features that a condition looks at; it sees all of them as the records have them."""
    try:
        return where.columns(seen)
    except UsageError as error:
        decoded = [
            step.feature
            for step in decoding.steps
            if re.search(rf"\b{re.escape(step.feature)}\b", str(where))
        ]
        if not decoded:
            raise
        raise UsageError(
            f"{error} (a condition sees {decoded[0]!r} as the records have it, before it is decoded; by what is in "
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
    found = []
    for batches in thread_map(decode, loads, threads):
        for batch in batches:
            found.append(batch.slice(0, records))
            records -= found[-1].num_rows
        if records <= 0:
            break
    return found
