"""`View`: what a `Dataset` shows of its files: features under other names, some of the records; nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import UsageError
from recordmill.base.people.nearest import there_are
from recordmill.reader.images.options import Images, Wanted
from recordmill.reader.sampling.kept import Kept
from recordmill.reader.taking import wanted_numbers
from recordmill.records.columns.convert import Step
from recordmill.records.columns.decoding import Decoding
from recordmill.records.columns.spelled import Specs, check_once, listed, raw_step, reshape_step
from recordmill.records.columns.where import Where
from recordmill.records.tfrecord.frames import Int64s
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema


@dataclass(frozen=True)
class Condition:
    """A predicate on features that have these names (shown to stored) where it was given."""

    where: Where
    names: Mapping[str, str]


@dataclass(frozen=True)
class View:
    """names: the name that is shown to the one in the records, of what was renamed. conditions: all of them hold for
    the records that there are. kept: they are some of these; None: any. steps: what becomes of features, by their
    names in the records. images: what encoded images become, likewise.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    kept: Kept | None = None
    steps: tuple[Step, ...] = ()
    images: Wanted | None = None

    @property
    def filters(self) -> bool:
        """Whether some records are left out."""
        return bool(self.conditions) or self.kept is not None

    def shown(self, stored: Schema) -> Schema:
        """The features under the names that are shown."""
        return named(stored, {name: shown for shown, name in self.names.items()})

    def stored(self, shown: Schema) -> Schema:
        """The features under the names that they have in the records."""
        return named(shown, self.names)

    def decoding(self, stored: Schema, images: Mapping[str, Images]) -> Decoding:
        """How these features of the records become what is shown. images: by their names in the records."""
        steps = [step for step in self.steps if step.feature in stored]
        if images:
            from recordmill.reader.images.step import ResizedImages

            steps += [ResizedImages(name, images[name]) for name in images if name in stored]
        return Decoding(stored, tuple(steps))

    def renamed(self, names: Mapping[str, str], schema: Schema) -> View:
        """With features of this schema under other names: the one that is shown now to the new one.

        Raises:
            UsageError: no such feature is read, or two would have one name.
        """
        check_read(names, schema)
        new = [names.get(name, name) for name in schema.names]
        if twice := [name for name in new if new.count(name) > 1]:
            raise UsageError(f"rename: two features would be called {twice[0]!r}")
        stored = [self.names.get(name, name) for name in schema.names]
        view = replace(self, names={shown: name for shown, name in zip(new, stored, strict=True) if shown != name})
        try:
            view.shown(self.stored(schema))
        except ValueError as error:
            raise UsageError(f"rename: {error}") from None
        return view

    def told(self) -> str:
        """What tells the records of it from those of others of the same files."""
        told = "\x00and\x00".join(
            str(condition.where.predicate) + (repr(sorted(condition.names.items())) if condition.names else "")
            for condition in self.conditions
        )
        told = told if self.kept is None else f"{told}\x00kept {self.kept.digest()}"
        return f"{told}\x00as {self.steps!r}" if self.steps else told


def steps_of(
    decode_raw: Specs | Mapping[str, str] = None, reshape: Specs | Mapping[str, str | Sequence[int]] = None
) -> tuple[Step, ...]:
    """What `decode_raw=` and `reshape=` say, as `read` spells them or by feature.

    Raises:
        UsageError: one is not written as it must be, or a feature is decoded or reshaped twice.
    """
    raw = [raw_step(text) for text in listed(decode_raw, "decode_raw")]
    shaped = [reshape_step(text) for text in listed(reshape, "reshape")]
    check_once([step.feature for step in raw], "decoded")
    check_once([step.feature for step in shaped], "reshaped")
    return (*raw, *shaped)


def named(schema: Schema, names: Mapping[str, str]) -> Schema:
    """The same features, some of them under another name."""
    if not names:
        return schema
    label = None if schema.label is None else names.get(schema.label, schema.label)
    return Schema(tuple(replace(f, name=names.get(f.name, f.name)) for f in schema), label, schema.message)


def batch_named(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """The columns under the schema's names."""
    if batch.schema.names == list(schema.names):
        return batch
    return pa.RecordBatch.from_arrays(batch.columns, schema=to_arrow(schema))


def check_read(names: Sequence[str] | Mapping[str, str], schema: Schema) -> None:
    """Raises:
    UsageError: a feature is not read, or a number is taken for one.
    """
    if isinstance(names, str):
        raise UsageError(f"give a list of features: {[name.strip() for name in names.split(',')]}")
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"{name!r} is no feature's name: ds.filter([...]) and ds.take([...]) take record numbers")
        if name not in schema:
            raise UsageError(f"no feature {name!r} is read; {there_are(name, schema.names)}")


def numbers_of(what: Sequence[int] | npt.NDArray[Any], total: int) -> Int64s:
    """The records that a filter names, by a bool for each or by number, as numbers in [0, total).

    Raises:
        UsageError: there are not as many bools as records, or a number comes twice.
        TypeError: these are neither. IndexError: there are not so many records.
    """
    given = np.asarray(what)
    if given.dtype == np.bool_:
        if given.shape != (total,):
            raise UsageError(f"filter: a mask says of each of {total:,} records whether it is kept, not {given.shape}")
        return np.flatnonzero(given)
    if callable(what):
        raise UsageError(
            "filter takes no function: give a condition (SQL text, or a pyarrow expression), a mask or record numbers; "
            "np.array([f(row) for row in ds]) makes a mask"
        )
    numbers = wanted_numbers(given, total)
    if len(np.unique(numbers)) < len(numbers):
        raise UsageError("filter: a record is named twice; ds.take gives records in any order, as often as one likes")
    return numbers
