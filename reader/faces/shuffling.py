"""A `Dataset` as NumPy batches in another order in each epoch, exactly once each record, the same for the same seed.

Pieces of shards are taken in random order; the records of as many pieces as fit a window are shuffled together and cut
into batches, and what is left goes into the next window. Files that can only be streamed come in random order, but
whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
import pyarrow as pa

from recordmill.base.errors import UsageError
from recordmill.base.threads import thread_map
from recordmill.reader.faces.readable import Readable
from recordmill.reader.faces.rebatch import joined_batches, rebatched
from recordmill.records.columns.parts import to_numpy
from recordmill.records.columns.ragged import Array, Ragged, Strings
from recordmill.schemas.feature import Schema
from recordmill.shards.loads.batches import Load
from recordmill.shards.pieces import PIECE_BYTES

_PIECES = 16  # a window holds at least this many pieces, so that records of that many places meet in it


@dataclass(frozen=True)
class Order:
    """seed: any integer. window_bytes: framed bytes among which records are shuffled."""

    seed: int
    window_bytes: int

    @property
    def piece_bytes(self) -> int:
        """Small enough that many pieces make a window."""
        return max(min(self.window_bytes // _PIECES, PIECE_BYTES), 1)

    def generator(self, epoch: int) -> np.random.Generator:
        """Of its own for each epoch; PCG64 gives the same numbers on every platform."""
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed % 2**64, epoch])))


def numpy_batches(
    dataset: Readable, batch_size: int, order: Order | None, epochs: int | None, drop_remainder: bool
) -> Iterator[dict[str, Array | Ragged | Strings]]:
    """See `Dataset.batches`."""
    if batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, not {batch_size}")
    if epochs is not None and epochs < 0:
        raise UsageError(f"epochs must be 0 or more, or None for no end, not {epochs}")
    return _generate(dataset, batch_size, order, epochs, drop_remainder)


def _generate(
    dataset: Readable, batch_size: int, order: Order | None, epochs: int | None, drop_remainder: bool
) -> Iterator[dict[str, Array | Ragged | Strings]]:
    if len(dataset) == 0:
        return  # and not for ever nothing
    for epoch in count() if epochs is None else range(epochs):
        batches = dataset.record_batches() if order is None else shuffled(dataset, order, epoch)
        for batch in rebatched(batches, batch_size):
            if batch.num_rows == batch_size or not drop_remainder:
                yield columns_of(batch, dataset.schema)


def columns_of(batch: pa.RecordBatch, schema: Schema) -> dict[str, Array | Ragged | Strings]:
    """The batch's columns by name, as `records.columns.parts` gives them."""
    return {feature.name: to_numpy(column, feature) for feature, column in zip(schema, batch.columns, strict=True)}


def shuffled(dataset: Readable, order: Order, epoch: int) -> Iterator[pa.RecordBatch]:
    """One epoch's records, in windows."""
    generator = order.generator(epoch)
    # framed bytes of the loads that are being decoded: what columns are read does not change the windows
    sizes: deque[int] = deque()

    def noted() -> Iterator[Load]:
        for load in _permuted(dataset, order, generator):
            sizes.append(load.framed_bytes)
            yield load

    # The windows' permutations come from a stream of their own: how far the loads are read ahead must not matter.
    mixing = generator.spawn(1)[0]
    window: list[pa.RecordBatch] = []
    held_bytes = 0
    for batches in thread_map(dataset.decode, noted(), dataset.threads):
        window.extend(batches)
        held_bytes += sizes.popleft()
        if held_bytes >= order.window_bytes:
            yield _mixed(window, mixing)
            window, held_bytes = [], 0
    if window:
        yield _mixed(window, mixing)


def _permuted(dataset: Readable, order: Order, generator: np.random.Generator) -> Iterator[Load]:
    """The pieces of all files in random order; a file that can only be streamed is one entry."""
    entries: list[Load | tuple[int, int]] = []
    for start, stop, seekable in dataset.spans():
        if seekable:
            entries.extend(dataset.loads(start, stop, piece_bytes=order.piece_bytes))
        else:
            entries.append((start, stop))
    for at in generator.permutation(len(entries)).tolist():
        entry = entries[at]
        yield from [entry] if isinstance(entry, Load) else dataset.loads(*entry)


def _mixed(window: list[pa.RecordBatch], generator: np.random.Generator) -> pa.RecordBatch:
    batch = joined_batches(window)
    return batch.take(pa.array(generator.permutation(batch.num_rows)))
