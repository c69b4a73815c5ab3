"""A run: framed records sorted by (split, key, source, position), in one file that later stages read in slices.

The file holds all frames in order, then one entry per record, then its index: for each key bucket [first, last) that it
has records of, and their end, how many records and bytes of frames lie before it, int64 [last - first + 1, 2]; then a
mark of every MARKED-th record. `RunIndex` writes it, `Run` reads it. What runs have in buckets adds up to the
`Histogram` of the whole data set, from which the shards are cut.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import room
from recordmill.base.siphash import U64
from recordmill.records.tfrecord.frames import pack_spans
from recordmill.shards.index import add_sums, record_sum
from recordmill.storage.files import Bytes, create_file, read_ranges, write_all

# size: of the whole frame, below 2 GiB + 16 as protobuf allows; file and position break ties between equal keys
ENTRY_DTYPE = np.dtype([("key", "<u8"), ("position", "<i8"), ("file", "<u4"), ("size", "<u4")])
RunEntries = npt.NDArray[np.void]
# place: (key, file, position) as bytes that sort as these do; bytes: of the frames before the record
MARK_DTYPE = np.dtype([("place", "S20"), ("bytes", "<i8")])
Marks = npt.NDArray[np.void]
MARKED = 64  # records: of a mark's 28 bytes each one bears half a byte, and a search ends within 64 of its goal

PERMUTED_BYTES = 4 << 20  # 4 MiB: frames are permuted and written in pieces that stay in the cache
_PLACE = np.dtype([("key", ">u8"), ("file", ">u4"), ("position", ">i8")])
_ROW = 16  # bytes: of the index, for a bucket


@dataclass(frozen=True)
class Histogram:
    """Records and framed bytes, int64 [splits, buckets]; a monoid. Bucket b holds keys [b, b + 1) * width."""

    records: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]

    @classmethod
    def zero(cls, splits: int, buckets: int) -> Histogram:
        return cls(np.zeros((splits, buckets), np.int64), np.zeros((splits, buckets), np.int64))

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram(self.records + other.records, self.bytes + other.bytes)


@dataclass(frozen=True)
class RunFile:
    """A finished run: where it lies, and its part of the accounts. first, last: the buckets that its index is of, those
    of all splits counted on: split * buckets + bucket. sum: of its records; 0 where it is only read.
    """

    path: str
    records: int
    frames_bytes: int
    first: int
    last: int
    sum: int = 0

    @property
    def index_at(self) -> int:
        """The byte at which the index begins."""
        return self.frames_bytes + self.records * ENTRY_DTYPE.itemsize

    def before(self, buckets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """[n, 2] how many records, and bytes of frames, lie before each of these buckets.

        Raises:
            OSError: the file is not there. DataError: it is too short.
        """
        rows = np.clip(buckets, self.first, self.last) - self.first
        if len(rows) <= 2:
            found = np.empty((len(rows), _ROW), np.uint8)
            starts = (self.index_at + rows * _ROW).tolist()
            read_ranges(self.path, list(zip(starts, found, strict=True)))
            return found.view("<i8")
        least, most = int(rows.min()), int(rows.max())
        data = np.empty((most - least + 1) * _ROW, np.uint8)
        read_ranges(self.path, [(self.index_at + least * _ROW, data)])
        return data.view("<i8").reshape(-1, 2)[rows - least]

    def marks(self, first: int, last: int) -> tuple[int, Marks]:
        """(number of the first one's record, the marks of every MARKED-th record) among the records [first, last).

        Raises:
            OSError: the file is not there. DataError: it is too short.
        """
        begin, end = -(-first // MARKED), max(-(-last // MARKED), -(-first // MARKED))
        data = np.empty((end - begin) * MARK_DTYPE.itemsize, np.uint8)
        at = self.index_at + (self.last - self.first + 1) * _ROW + begin * MARK_DTYPE.itemsize
        read_ranges(self.path, [(at, data)])
        return begin * MARKED, data.view(MARK_DTYPE)


@dataclass(frozen=True)
class KeyBuckets:
    """How keys are put into buckets: `count` of them, each `width` keys wide."""

    splits: int
    count: int
    width: int

    @classmethod
    def plan(cls, splits: int, span: int, shards: int) -> KeyBuckets:
        """Returns about 16 buckets a shard, of which those at its cuts are read twice; footers stay below 1 MiB."""
        count = min(max(1 << (16 * shards - 1).bit_length(), 1 << 10), 1 << 16)
        return cls(splits, count, max(-(-span // count), 1))

    def edges(self) -> U64:
        """The first key of buckets 1, 2, ..., count - 1."""
        # rounding up the width may leave the last buckets beyond all keys
        within = min(self.count - 1, (2**64 - 1) // self.width)
        edges = np.full(self.count - 1, 2**64 - 1, np.uint64)
        edges[:within] = np.arange(1, within + 1, dtype=np.uint64) * np.uint64(min(self.width, 2**64 - 1))
        return edges


class RunIndex:
    """The index of a run in making, whose records come in their order. histogram: what it has in buckets."""

    def __init__(self, buckets: KeyBuckets) -> None:
        self.histogram = Histogram.zero(buckets.splits, buckets.count)
        self._edges = buckets.edges()
        self._records, self._bytes = 0, 0
        self._marks: list[Marks] = []

    def add(self, split: int, entries: RunEntries) -> None:
        """The entries of the next records, all of one split."""
        ends = np.concatenate([[0], np.cumsum(entries["size"], dtype=np.int64)])
        keys = np.ascontiguousarray(entries["key"])
        cuts = np.concatenate([[0], np.searchsorted(keys, self._edges), [len(keys)]])
        self.histogram.records[split] += np.diff(cuts)
        self.histogram.bytes[split] += np.diff(ends[cuts])
        marked = slice(-self._records % MARKED, None, MARKED)
        marks = np.empty(len(keys[marked]), MARK_DTYPE)
        marks["place"], marks["bytes"] = _places(entries[marked]), ends[:-1][marked] + self._bytes
        self._marks.append(marks)
        self._records, self._bytes = self._records + len(keys), self._bytes + int(ends[-1])

    def write(self, file: BinaryIO) -> tuple[int, int]:
        """Write it behind the entries; gives the buckets [first, last) that it is of."""
        records, sizes = self.histogram.records.reshape(-1), self.histogram.bytes.reshape(-1)
        there = np.flatnonzero(records)
        first, last = (int(there[0]), int(there[-1]) + 1) if len(there) else (0, 0)
        rows = np.zeros((last - first + 1, 2), "<i8")
        np.cumsum(records[first:last], out=rows[1:, 0])
        np.cumsum(sizes[first:last], out=rows[1:, 1])
        write_all(file, rows.view(np.uint8).reshape(-1))
        write_all(file, np.concatenate([np.empty(0, MARK_DTYPE), *self._marks]).view(np.uint8))
        return first, last


def _places(entries: RunEntries) -> npt.NDArray[np.bytes_]:
    places = np.empty(len(entries), _PLACE)
    for name in _PLACE.names or ():
        places[name] = entries[name]
    return places.view("S20")


class RunWriter:
    """Collects framed records up to a number of bytes, and writes them as sorted runs; one thread uses one writer.
    histogram: of all that it has written.

    Memory: run_bytes, in the blocks that were added, 24 bytes a record for entries and as much again while they are
    sorted, and one piece.
    """

    def __init__(self, folder: str, buckets: KeyBuckets, run_bytes: int) -> None:
        self._folder, self._buckets, self._run_bytes = folder, buckets, run_bytes
        self.histogram = Histogram.zero(buckets.splits, buckets.count)
        self._used = 0
        self._blocks: list[Bytes] = []
        self._entries: list[RunEntries] = []
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
    ) -> Iterator[RunFile]:
        """Takes consecutive frames of these sizes, which nobody changes any more; yields runs written to make room."""
        needed = self._used + len(data) + 2 * ENTRY_DTYPE.itemsize * (sum(map(len, self._entries)) + len(sizes))
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
    def empty(self) -> bool:
        return not self._entries

    def finish(self) -> RunFile:
        """Write what was collected as a run and start anew."""
        entries, splits = np.concatenate(self._entries), np.concatenate(self._splits)
        run = self._write(entries, splits)
        self._used, self._blocks, self._entries, self._splits, self._sum = 0, [], [], [], 0
        return run

    def _write(self, entries: RunEntries, splits: npt.NDArray[np.uint16]) -> RunFile:
        order = sort_order(entries)
        if self._buckets.splits > 1:
            order = order[np.argsort(splits[order], kind="stable")]
        sizes = entries["size"].astype(np.int64)
        which, starts = self._places(sizes)
        ordered = np.take(entries, order)  # entries[order] would copy field by field
        index = RunIndex(self._buckets)
        edges = np.searchsorted(splits[order], np.arange(self._buckets.splits + 1)).tolist()
        for split, (begin, end) in enumerate(itertools.pairwise(edges)):
            index.add(split, ordered[begin:end])
        self.histogram += index.histogram
        path = os.path.join(self._folder, f"run-{uuid.uuid4().hex}")
        with create_file(path) as file:
            for piece, _ in permuted_entries(self._blocks, starts, sizes, order, which=which):
                write_all(file, piece)
            write_all(file, ordered.view(np.uint8))
            first, last = index.write(file)
        return RunFile(path, len(entries), self._used, first, last, self._sum)

    def _places(self, sizes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """([records] the block of each frame, [records] where in it the frame begins)."""
        counts = list(map(len, self._entries))
        before = np.cumsum([0, *map(len, self._blocks[:-1])])
        which = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        return which, np.cumsum(sizes) - sizes - np.repeat(before, counts)


def sort_order(entries: RunEntries) -> npt.NDArray[np.int64]:
    """The permutation that sorts entries by (key, file, position)."""
    keys = np.ascontiguousarray(entries["key"])
    order = np.argsort(keys)
    ordered = keys[order]
    # ties: rare but with --key, so the slow sort is no loss
    if len(ordered) > 1 and bool(np.any(ordered[1:] == ordered[:-1])):
        order = np.lexsort((entries["position"], entries["file"], keys))
    return order


def permuted_entries(
    blocks: Sequence[Bytes],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    piece_bytes: int = PERMUTED_BYTES,
    which: npt.NDArray[np.int32] | None = None,
) -> Iterator[tuple[Bytes, int]]:
    """Items in another order, one after the other, in pieces of at most piece_bytes, or one item, each with how many
    they are; a piece is valid until the next. starts, sizes, which: as of `pack_spans`. order: int64 [n], the numbers
    of the items.
    """
    ends = np.concatenate([[0], np.cumsum(sizes[order])])
    first = 0
    buffer = np.empty(0, np.uint8)
    while first < len(order):
        last = max(int(np.searchsorted(ends, ends[first] + piece_bytes, side="right")) - 1, first + 1)
        needed = int(ends[last] - ends[first])
        if needed > len(buffer):
            buffer = room(max(needed, min(piece_bytes, int(ends[-1]))), np.uint8)
        chosen = order[first:last]
        pack_spans(blocks, starts[chosen], sizes[chosen], buffer, None if which is None else which[chosen])
        yield buffer[:needed], last - first
        first = last
