"""`Selection`: which records of a `Dataset` a view keeps.
Loads in, the batches of the records that are kept out, and which they are.

Whoever reads on needs the numbers not: each batch is filtered as it comes. Who addresses records by number needs them:
one pass over what the predicates look at finds them, a bit for each record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import DataError, UsageError
from recordmill.base.threads import thread_map
from recordmill.reader.sampling.kept import Keeping, Kept
from recordmill.reader.views import View, batch_named, named
from recordmill.records.columns.decoding import Decoding
from recordmill.records.columns.where import Where, kept_names
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.shards.loads.batches import Load, decode_load


@dataclass(frozen=True)
class _Needed:
    """A predicate, the features that it looks at, and the names that they have for it."""

    where: Where
    stored: Schema
    named: Schema

    def keep(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        return self.where.keep(batch_named(batch.select(self.stored.names), self.named))


@dataclass(frozen=True)
class Selection:
    """conditions: the predicates. needed: the features they look at. decoded: the selected features, and behind them
    what else is needed. decoding: what becomes of the selected ones. selected: as they are shown. kept: the records
    that may be kept; None: any.
    """

    conditions: tuple[_Needed, ...]
    needed: Schema
    decoded: Schema
    decoding: Decoding
    selected: Schema
    kept: Kept | None

    @classmethod
    def of(cls, view: View, full: Schema, decoding: Decoding) -> Selection:
        """Of records of schema `full`, of which what `decoding` takes is read, both with the names in the records.

        Raises:
            UsageError: a predicate has no meaning there. MissingExtraError: it is SQL, and DuckDB is not installed.
        """
        conditions = []
        for condition in view.conditions:
            seen = named(full, {name: shown for shown, name in condition.names.items()})
            # Without a column a batch would not know how many rows it has.
            there = seen.select(_looked_at(condition.where, seen, decoding) or seen.names[:1])
            conditions.append(_Needed(condition.where, named(there, condition.names), there))
        needed = tuple(dict.fromkeys(name for one in conditions for name in one.stored.names))
        return cls(
            tuple(conditions),
            full.select(needed or full.names[:1]),
            full.select(kept_names(decoding.stored.names, needed)),
            decoding,
            view.shown(decoding.schema),
            view.kept,
        )

    def decode(self, load: Load, first: int) -> list[pa.RecordBatch]:
        """The records of a load that are kept, as columns of `selected`; first: the number of its first one."""
        found = []
        record = load.piece.first_record if load.block is None else load.block.first_record
        for batch in decode_load(load, self.decoded):
            keep = self._allowed(first, batch.num_rows) & self._keep(batch, load)
            kept = batch.filter(pa.array(keep))
            stored = self.decoding.stored
            chosen = pa.RecordBatch.from_arrays(kept.columns[: len(stored)], schema=to_arrow(stored))
            numbers = record + np.flatnonzero(keep)
            place = partial(_place, numbers)
            found.append(batch_named(self.decoding.converted(chosen, load.file.path, place), self.selected))
            first += batch.num_rows
            record += batch.num_rows
        return found

    def find(self, loads: Iterable[Load], threads: int, total: int) -> Kept:
        """Those that are kept of all records, which the loads are, in order."""
        if not self.conditions and self.kept is not None:
            return self.kept
        keeping, first = Keeping(total), 0
        for parts in thread_map(
            lambda load: [self._keep(batch, load) for batch in decode_load(load, self.needed)], loads, threads
        ):
            for keep in parts:
                keeping.put(keep & self._allowed(first, len(keep)))
                first += len(keep)
        return keeping.done()

    def _allowed(self, first: int, count: int) -> npt.NDArray[np.bool_]:
        return np.ones(count, np.bool_) if self.kept is None else self.kept.mask(first, first + count)

    def _keep(self, batch: pa.RecordBatch, load: Load) -> npt.NDArray[np.bool_]:
        keep = np.ones(batch.num_rows, np.bool_)
        try:
            for condition in self.conditions:
                keep &= condition.keep(batch)
        except DataError as error:
            raise DataError(error.reason, source=load.file.path) from None
        return keep


def _looked_at(where: Where, seen: Schema, decoding: Decoding) -> tuple[str, ...]:
    """The features that a condition looks at; it sees all of them as the records have them."""
    try:
        return where.columns(seen)
    except UsageError as error:
        decoded = [step.feature for step in decoding.steps if re.search(rf"\b{re.escape(step.feature)}\b", str(where))]
        if not decoded:
            raise
        raise UsageError(
            f"{error} (a condition sees {decoded[0]!r} as the records have it, before it is decoded; by what is in "
            "arrays, records are chosen by their numbers: ds.filter(numbers))"
        ) from None


def _place(numbers: npt.NDArray[np.int64], row: int) -> str:
    return f"record {numbers[row]}"


def until(
    records: int, loads: Iterable[Load], decode: Callable[[Load], list[pa.RecordBatch]], threads: int
) -> list[pa.RecordBatch]:
    """The first records of what these loads give;
    no more loads are begun than that takes, and as many as there are threads.
    """
    found = []
    for batches in thread_map(decode, loads, threads):
        for batch in batches:
            found.append(batch.slice(0, records))
            records -= found[-1].num_rows
        if records <= 0:
            break
    return found
