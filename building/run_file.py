"""A run: framed records sorted by (split, key, source, position), in one file that later stages read in slices, or in
memory where the shards are written by the same process and there is room (`Held`).

The file holds all frames in order, then one entry per record. What is in which key bucket is its footer, a `Histogram`,
which travels with the reference: footers add up to the histogram of the whole data set, from which the shards are cut.
"""

from __future__ import annotations

import itertools
import os
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recordmill.base.memory import address_of
from recordmill.base.room import room
from recordmill.base.siphash import U64
from recordmill.records.tfrecord.frames import gather_at
from recordmill.shards.sums import add_sums, record_sum
from recordmill.storage.files import Bytes, create_file, write_all

# size: of the whole frame, below 2 GiB + 16 as protobuf allows; file and position break ties between equal keys
ENTRY_DTYPE = np.dtype([("key", "<u8"), ("position", "<i8"), ("file", "<u4"), ("size", "<u4")])
Entries = npt.NDArray[np.void]

_HELD_ENTRY = ENTRY_DTYPE.itemsize + 8  # bytes: an entry of a run in memory, and where its frame begins
PERMUTED_BYTES = 4 << 20  # 4 MiB: frames are permuted and written in pieces that stay in the cache


@dataclass(frozen=True)
class Histogram:
    """Records and framed bytes per (split, key bucket), as int64 [splits, buckets]; a monoid under `+`. Bucket b holds
    keys [b, b + 1) * width.
    """

    records: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]

    @classmethod
    def zero(cls, splits: int, buckets: int) -> Histogram:
        return cls(np.zeros((splits, buckets), np.int64), np.zeros((splits, buckets), np.int64))

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram(self.records + other.records, self.bytes + other.bytes)


class Held:
    """How many bytes of runs may stay in memory, for all threads that make some; what was taken is never given back."""

    def __init__(self, most_bytes: int) -> None:
        self._left, self._lock = most_bytes, threading.Lock()

    def take(self, size_bytes: int) -> bool:
        """Take so many bytes, if they are left."""
        with self._lock:
            if size_bytes > self._left:
                return False
            self._left -= size_bytes
            return True


@dataclass(frozen=True)
class HeldRun:
    """A run in memory: its entries in order, and the address at which the frame of each begins, int64 [records], in one
    of the blocks.
    """

    blocks: tuple[Bytes, ...]
    addresses: npt.NDArray[np.int64]
    entries: Entries


@dataclass(frozen=True)
class Run:
    """A finished run: where it lies (a path, or held), its footer, and its part of the accounts."""

    path: str
    histogram: Histogram
    records: int
    frames_bytes: int
    sum: int
    held: HeldRun | None = None


@dataclass(frozen=True)
class Buckets:
    """How keys are put into buckets: `count` of them, each `width` keys wide."""

    splits: int
    count: int
    width: int

    @classmethod
    def plan(cls, splits: int, span: int, shards: int) -> Buckets:
        """About 16 buckets a shard: what straddles a cut, and is read twice, is then a sixteenth of a shard; footers
        stay below 1 MiB.
        """
        count = min(max(1 << (16 * shards - 1).bit_length(), 1 << 10), 1 << 16)
        return cls(splits, count, max(-(-span // count), 1))

    def edges(self) -> U64:
        """The first key of buckets 1, 2, ..., count - 1."""
        # rounding up the width may leave the last buckets beyond all keys
        within = min(self.count - 1, (2**64 - 1) // self.width)
        edges = np.full(self.count - 1, 2**64 - 1, np.uint64)
        edges[:within] = np.arange(1, within + 1, dtype=np.uint64) * np.uint64(min(self.width, 2**64 - 1))
        return edges


class RunWriter:
    """Collects framed records up to a number of bytes, and writes them as sorted runs; one thread uses one writer.

    Memory: run_bytes, in the blocks that were added, 24 bytes a record for entries and as much again while they are
    sorted, and one piece; beside them what `held` has room for: runs stay in memory until one finds none.
    """

    def __init__(self, folder: str, buckets: Buckets, run_bytes: int, held: Held | None = None) -> None:
        self._folder, self._buckets, self._edges = folder, buckets, buckets.edges()
        self._run_bytes, self._held = run_bytes, held
        self._used = 0
        self._blocks: list[Bytes] = []
        self._entries: list[Entries] = []
        self._splits: list[npt.NDArray[np.uint16]] = []
        self._sum = 0

    def add(
        self,
        data: Bytes,
        sizes: npt.NDArray[np.int64],
        crcs: npt.NDArray[np.uint32],
        keys: U64,
        splits: npt.NDArray[np.uint16],
        file: npt.NDArray[np.uint32],
        position: npt.NDArray[np.int64],
    ) -> Iterator[Run]:
        """Take consecutive frames of these sizes, which nobody changes from here on; gives the runs that had to be
        written to make room (none, mostly).
        """
        needed = self._used + len(data) + 2 * ENTRY_DTYPE.itemsize * (self._count + len(sizes))
        if self._blocks and needed > self._run_bytes:
            yield self.finish()
        entries = np.empty(len(sizes), ENTRY_DTYPE)
        entries["key"], entries["position"], entries["file"], entries["size"] = keys, position, file, sizes
        self._blocks.append(data)
        self._used += len(data)
        self._entries.append(entries)
        self._splits.append(splits)
        self._sum = add_sums(self._sum, record_sum(keys, crcs))

    @property
    def _count(self) -> int:
        return sum(map(len, self._entries))

    @property
    def empty(self) -> bool:
        return not self._entries

    def finish(self) -> Run:
        """Write what was collected as a run and start anew."""
        entries, splits = np.concatenate(self._entries), np.concatenate(self._splits)
        run = self._write(entries, splits)
        self._used, self._blocks, self._entries, self._splits, self._sum = 0, [], [], [], 0
        return run

    def _write(self, entries: Entries, splits: npt.NDArray[np.uint16]) -> Run:
        order = sort_order(entries)
        if self._buckets.splits > 1:
            order = order[np.argsort(splits[order], kind="stable")]
        sizes = entries["size"].astype(np.int64)
        addresses = self._addresses(sizes)
        ordered = np.take(entries, order)  # entries[order] would copy field by field
        histogram = self._histogram(ordered, splits[order])
        if self._held is not None and self._held.take(self._used + _HELD_ENTRY * len(entries)):
            held = HeldRun(tuple(self._blocks), addresses[order], ordered)
            return Run("", histogram, len(entries), self._used, self._sum, held)
        self._held = None  # the memory of the blocks is used again from here on, and counted no second time
        path = os.path.join(self._folder, f"run-{uuid.uuid4().hex}")
        with create_file(path) as file:
            for piece, _ in permuted(addresses, sizes, order):
                write_all(file, piece)
            write_all(file, ordered.view(np.uint8))
        return Run(path, histogram, len(entries), self._used, self._sum)

    def _addresses(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """int64 [records], where in memory each frame begins."""
        counts = list(map(len, self._entries))
        begins = np.array([address_of(block) for block in self._blocks], np.int64)
        begins -= np.cumsum([0, *map(len, self._blocks[:-1])])  # less what stands in the blocks before
        return np.repeat(begins, counts) + np.cumsum(sizes) - sizes

    def _histogram(self, entries: Entries, splits: npt.NDArray[np.uint16]) -> Histogram:
        histogram = Histogram.zero(self._buckets.splits, self._buckets.count)
        split_edges = np.searchsorted(splits, np.arange(self._buckets.splits + 1))
        sizes = np.concatenate([[0], np.cumsum(entries["size"], dtype=np.int64)])
        keys = np.ascontiguousarray(entries["key"])
        for split, (first, last) in enumerate(itertools.pairwise(split_edges.tolist())):
            cuts = np.concatenate([[first], first + np.searchsorted(keys[first:last], self._edges), [last]])
            histogram.records[split] = np.diff(cuts)
            histogram.bytes[split] = np.diff(sizes[cuts])
        return histogram


def sort_order(entries: Entries) -> npt.NDArray[np.int64]:
    """The permutation that sorts entries by (key, file, position)."""
    keys = np.ascontiguousarray(entries["key"])
    order = np.argsort(keys)
    ordered = keys[order]
    # ties: rare but with --key, so the slow sort is no loss
    if len(ordered) > 1 and bool(np.any(ordered[1:] == ordered[:-1])):
        order = np.lexsort((entries["position"], entries["file"], keys))
    return order


def permuted(
    addresses: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    piece_bytes: int = PERMUTED_BYTES,
) -> Iterator[tuple[Bytes, int]]:
    """The items of sizes[j] bytes at addresses[j] for j in order, one after the other, in pieces of at most
    piece_bytes, or one item, with how many they are; a piece is valid until the next. The caller keeps alive what the
    addresses lead to.
    """
    ends = np.concatenate([[0], np.cumsum(sizes[order])])
    first = 0
    buffer = np.empty(0, np.uint8)
    while first < len(order):
        last = max(int(np.searchsorted(ends, ends[first] + piece_bytes, side="right")) - 1, first + 1)
        needed = int(ends[last] - ends[first])
        if needed > len(buffer):
            buffer = room(max(needed, min(piece_bytes, int(ends[-1]))), np.uint8)
        gather_at(addresses, sizes, order[first:last], buffer)
        yield buffer[:needed], last - first
        first = last
