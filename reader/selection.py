"""`Selection`: which records of a `Dataset` a predicate keeps.
Loads in, the batches of the records that are kept out, and their numbers.

Whoever reads on needs the numbers not: each batch is filtered as it comes. Who addresses records by number needs them:
one pass over what the predicate looks at finds them, 8 bytes for each record that is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.base.threads import thread_map
from recordmill.records.columns.where import Where, kept_names
from recordmill.records.tfrecord.frames import Int64s
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.shards.loads.batches import Load, decode_load


@dataclass(frozen=True)
class Selection:
    """where: the predicate. needed: the features it looks at.
    decoded: the selected features, and behind them what else is needed.
    """

    where: Where
    needed: Schema
    decoded: Schema
    selected: Schema

    @classmethod
    def of(cls, where: Where, full: Schema, selected: Schema) -> Selection:
        """The records of schema `full` for which the predicate holds, of which `selected` is read.

        Raises:
            UsageError: the predicate has no meaning there. MissingExtraError: it is SQL, and DuckDB is not installed.
        """
        needed = where.columns(full)
        # Without a column a batch would not know how many rows it has.
        return cls(
            where, full.select(needed or full.names[:1]), full.select(kept_names(selected.names, needed)), selected
        )

    def decode(self, load: Load) -> list[pa.RecordBatch]:
        """The records of a load that are kept, as columns of `selected`."""
        return [self._kept(batch, load) for batch in decode_load(load, self.decoded)]

    def _kept(self, batch: pa.RecordBatch, load: Load) -> pa.RecordBatch:
        kept = batch.filter(pa.array(self._keep(batch, load)))
        return pa.RecordBatch.from_arrays(kept.columns[: len(self.selected)], schema=to_arrow(self.selected))

    def numbers(self, loads: Iterable[Load], threads: int) -> Int64s:
        """[records] the numbers of those that are kept, ascending; loads: all records, in order."""
        found = [np.empty(0, np.int64)]
        first = 0
        for parts in thread_map(
            lambda load: [self._keep(batch, load) for batch in decode_load(load, self.needed)], loads, threads
        ):
            for kept in parts:
                found.append(np.flatnonzero(kept) + first)
                first += len(kept)
        return np.concatenate(found)

    def _keep(self, batch: pa.RecordBatch, load: Load) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        try:
            return self.where.keep(batch)
        except DataError as error:
            raise DataError(error.reason, source=load.file.path) from None


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
