"""Records in the order of the data set to shards in turn: each is begun where the one before it ends."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from recordmill.base.siphash import U64
from recordmill.building.cuts import MOST_SHARDS, check_shard_bytes, record_edges
from recordmill.building.plan import BuildPlan
from recordmill.building.shard_writer import ShardInMaking, UnsyncedShard, checked
from recordmill.records.tfrecord.frames import FRAME_BYTES, Frames
from recordmill.shards.entries.names import ShardName
from recordmill.storage.disk.past_cache import PastCache


class ShardsInTurn:
    """Cuts what comes, by rank for records [splits] that there will be, or by framed bytes; use it in a `with` block,
    which leaves no file open. past_cache: writes the shards; None: the system's cache has them.

    Raises:
        UsageError: more shards are asked for than a split has records.
    """

    def __init__(self, plan: BuildPlan, records: Sequence[int], past_cache: PastCache | None) -> None:
        self._plan, self._past_cache, number = plan, past_cache, plan.shards.num_shards
        self._edges = [
            np.array(record_edges(count, number, name), np.int64) if number is not None and count else None
            for count, name in zip(records, plan.splits, strict=True)
        ]
        self._weights = [0] * len(records)  # of each split so far: records, or framed bytes
        self._open: ShardInMaking | None = None
        self._at = (-1, -1)  # split and number of the open shard

    def __enter__(self) -> ShardsInTurn:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open is not None:
            self._open.abort()

    def write(self, pieces: Iterable[tuple[int, Frames, U64]]) -> Iterator[UnsyncedShard]:
        """(split, frames, their keys) in order to shards, each given when it is full; one without records is left out.

        Raises:
            DataError: a record was damaged on its way here.
        """
        for split, frames, keys in pieces:
            numbers = self._numbers(split, frames)
            edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
            for first, last in itertools.pairwise(edges):
                number = int(numbers[first])
                if number >= MOST_SHARDS:  # `check` says so when all is known
                    continue
                if self._at != (split, number):
                    yield from self._finish()
                    name = ShardName(self._plan.splits[split], number, MOST_SHARDS, "none")
                    self._open = self._begin(name, split, number)
                    self._at = (split, number)
                assert self._open is not None
                begin, end = int(frames.starts[first]), int(frames.starts[last - 1] + frames.lengths[last - 1])
                self._open.add(checked(frames.data[begin : end + FRAME_BYTES], self._open), keys[first:last])
        yield from self._finish()

    def check(self) -> None:
        """Raises UsageError if there would be more shards than a split may have."""
        if self._plan.shards.num_shards is None:
            for size, name in zip(self._weights, self._plan.splits, strict=True):
                check_shard_bytes(size, self._plan.shards, name)

    def _numbers(self, split: int, frames: Frames) -> npt.NDArray[np.int64]:
        """[records] in which shard of the split each one is."""
        edges = self._edges[split]
        weights = np.ones(len(frames), np.int64) if edges is not None else frames.lengths + FRAME_BYTES
        begins = self._weights[split] + np.cumsum(weights) - weights
        self._weights[split] += int(weights.sum())
        if edges is None:
            return np.asarray(begins // self._plan.shards.shard_bytes)
        return np.searchsorted(edges, begins, side="right") - 1

    def _begin(self, name: ShardName, split: int, number: int) -> ShardInMaking:
        return ShardInMaking(Path(self._plan.folder, "data"), name, split, number, self._past_cache)

    def _finish(self) -> Iterator[UnsyncedShard]:
        if self._open is not None:
            shard, self._open = self._open, None
            yield shard.finish()
