"""Sorted runs: files of records sorted by split, key, file and position.

Such a file consists of:

* all frames,
* one entry (ENTRY_DTYPE) per record,
* the bucket index: the number of records and the bytes of frames before each bucket, from the first
  bucket with a record to the end of the last one, int64 [end_bucket - begin_bucket + 1, 2],
* the sparse index: one row (SPARSE_INDEX_DTYPE) for every 64th record.

`SortedRunIndex` writes both indexes, and `SortedRun` reads them. The histograms of all sorted runs
add up to the histogram of the data set, which determines the shard boundaries.
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

from recordmill.base.buffers import allocate, to_offsets
from recordmill.base.siphash import U64
from recordmill.records.tfrecord.frames import pack_spans
from recordmill.shards.index import add_checksums, record_checksum
from recordmill.storage.files import Bytes, create_file, read_ranges, write_all

# An entry, which describes one record.
# file, position: file id, and row number in the file. They order records with equal keys.
# size: bytes of the frame. Protobuf limits a record to 2 GiB, so 32 bits are enough.
ENTRY_DTYPE = np.dtype([("key", "<u8"), ("position", "<i8"), ("file", "<u4"), ("size", "<u4")])
RunEntries = npt.NDArray[np.void]
# A row of the sparse index, which describes one record of the sorted run.
# sort_key: (key, file, position) as big-endian bytes, which sort in the same order.
# bytes: total size of all frames before the record.
SPARSE_INDEX_DTYPE = np.dtype([("sort_key", "S20"), ("bytes", "<i8")])
SparseIndex = npt.NDArray[np.void]
# Every 64th record has a row in the sparse index. This costs half a byte per record, and a search
# is off by less than 64 records.
INDEX_STRIDE = 64

# 4 MiB: a buffer of this size stays in the CPU cache until it is written.
GATHER_BUFFER_BYTES = 4 << 20
_SORT_KEY_DTYPE = np.dtype([("key", ">u8"), ("file", ">u4"), ("position", ">i8")])
# Bytes of a bucket in the bucket index: two int64.
_INDEX_ROW_BYTES = 16


@dataclass(frozen=True)
class Histogram:
    """Number of records, and bytes of their frames, in each bucket of keys.

    Histograms can be added.

    Attributes:
        records: int64 [splits, buckets].
        bytes: int64 [splits, buckets].
    """

    records: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]

    @classmethod
    def zeros(cls, splits: int, buckets: int) -> Histogram:
        return cls(np.zeros((splits, buckets), np.int64), np.zeros((splits, buckets), np.int64))

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram(self.records + other.records, self.bytes + other.bytes)


@dataclass(frozen=True)
class SortedRun:
    """A sorted run on disk or in a store.

    Attributes:
        path: The file.
        records: Number of records.
        frames_bytes: Total size of the frames.
        begin_bucket: First bucket with a record. The number of a bucket is split_id * num_buckets +
            its number within the split.
        end_bucket: One more than the last bucket with a record.
        checksum: Checksum of the records, see `record_checksum`. 0 if it is not needed.
    """

    path: str
    records: int
    frames_bytes: int
    begin_bucket: int
    end_bucket: int
    checksum: int = 0

    @property
    def index_offset(self) -> int:
        """Offset of the bucket index in the file."""
        return self.frames_bytes + self.records * ENTRY_DTYPE.itemsize

    def count_before(self, buckets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Reads how many records of the sorted run come before each bucket.

        Args:
            buckets: [n] bucket numbers. They may be outside of the sorted run.

        Returns:
            [n, 2] int64: number of records, and bytes of their frames.

        Raises:
            OSError: The file is missing.
            DataError: The file is too short.
        """
        # Buckets outside of the sorted run have none or all of its records before them.
        rows = np.clip(buckets, self.begin_bucket, self.end_bucket) - self.begin_bucket
        # One shard has two edges, and a short read for each is enough. For more edges, a single
        # read covers the range from the first to the last.
        if len(rows) <= 2:
            pairs = np.empty((len(rows), _INDEX_ROW_BYTES), np.uint8)
            offsets = (self.index_offset + rows * _INDEX_ROW_BYTES).tolist()
            read_ranges(self.path, list(zip(offsets, pairs, strict=True)))
            return pairs.view("<i8")
        first_row, last_row = int(rows.min()), int(rows.max())
        data = np.empty((last_row - first_row + 1) * _INDEX_ROW_BYTES, np.uint8)
        read_ranges(self.path, [(self.index_offset + first_row * _INDEX_ROW_BYTES, data)])
        return data.view("<i8").reshape(-1, 2)[rows - first_row]

    def read_sparse_index(self, begin: int, end: int) -> tuple[int, SparseIndex]:
        """Reads the rows of the sparse index for records [begin, end).

        Returns:
            (first, rows). The first row belongs to record `first`, the next one to record `first` +
            INDEX_STRIDE.

        Raises:
            OSError: The file is missing.
            DataError: The file is too short.
        """
        begin_row = -(-begin // INDEX_STRIDE)
        end_row = max(-(-end // INDEX_STRIDE), -(-begin // INDEX_STRIDE))
        data = np.empty((end_row - begin_row) * SPARSE_INDEX_DTYPE.itemsize, np.uint8)
        offset = (
            self.index_offset
            + (self.end_bucket - self.begin_bucket + 1) * _INDEX_ROW_BYTES
            + begin_row * SPARSE_INDEX_DTYPE.itemsize
        )
        read_ranges(self.path, [(offset, data)])
        return begin_row * INDEX_STRIDE, data.view(SPARSE_INDEX_DTYPE)


@dataclass(frozen=True)
class KeyBuckets:
    """Division of the range of keys into buckets of equal width.

    Bucket b of a split contains the keys in [b, b + 1) * width.

    Attributes:
        num_splits: Number of splits. Each one has `num_buckets` buckets.
        num_buckets: Number of buckets of a split.
        width: Number of keys in a bucket.
    """

    num_splits: int
    num_buckets: int
    width: int

    @classmethod
    def for_shards(cls, num_splits: int, key_limit: int, num_shards: int) -> KeyBuckets:
        """Returns buckets for keys in [0, key_limit), about 16 to 32 for each shard.

        If a bucket contains a shard boundary, it is read for both shards. So buckets are small.
        Their number is a power of 2 between 1,024 and 65,536, which limits the index of a sorted
        run to 1 MiB for each split.

        >>> KeyBuckets.for_shards(num_splits=1, key_limit=2**64, num_shards=100)
        KeyBuckets(num_splits=1, num_buckets=2048, width=9007199254740992)
        """
        count = min(max(1 << (16 * num_shards - 1).bit_length(), 1 << 10), 1 << 16)
        return cls(num_splits, count, max(-(-key_limit // count), 1))

    def inner_edges(self) -> U64:
        """Returns the first key of each bucket but the first, [num_buckets - 1] uint64."""
        # Rounding up the width may leave the last buckets beyond all keys.
        num_valid = min(self.num_buckets - 1, (2**64 - 1) // self.width)
        edges = np.full(self.num_buckets - 1, 2**64 - 1, np.uint64)
        edges[:num_valid] = np.arange(1, num_valid + 1, dtype=np.uint64) * np.uint64(
            min(self.width, 2**64 - 1)
        )
        return edges


class SortedRunIndex:
    """Builds the histogram and the sparse index of a sorted run.

    Attributes:
        histogram: Counts the records that were added.
    """

    def __init__(self, buckets: KeyBuckets) -> None:
        self.histogram = Histogram.zeros(buckets.num_splits, buckets.num_buckets)
        self._edges = buckets.inner_edges()
        self._records, self._bytes = 0, 0
        self._sparse_index: list[SparseIndex] = []

    def add(self, split_id: int, entries: RunEntries) -> None:
        """Adds the next entries of the sorted run, all of one split."""
        ends = to_offsets(entries["size"])
        keys = np.ascontiguousarray(entries["key"])
        bucket_edges = np.concatenate([[0], np.searchsorted(keys, self._edges), [len(keys)]])
        self.histogram.records[split_id] += np.diff(bucket_edges)
        self.histogram.bytes[split_id] += np.diff(ends[bucket_edges])
        # Every 64th record of the entire sorted run gets a row, not of each split or call.
        stride = slice(-self._records % INDEX_STRIDE, None, INDEX_STRIDE)
        rows = np.empty(len(keys[stride]), SPARSE_INDEX_DTYPE)
        rows["sort_key"] = _make_sort_keys(entries[stride])
        rows["bytes"] = ends[:-1][stride] + self._bytes
        self._sparse_index.append(rows)
        self._records, self._bytes = self._records + len(keys), self._bytes + int(ends[-1])

    def write(self, file: BinaryIO) -> tuple[int, int]:
        """Appends both indexes to the file, after the entries.

        Returns:
            (begin_bucket, end_bucket) for `SortedRun`.
        """
        records, sizes = self.histogram.records.reshape(-1), self.histogram.bytes.reshape(-1)
        non_empty = np.flatnonzero(records)
        begin_bucket, end_bucket = (
            (int(non_empty[0]), int(non_empty[-1]) + 1) if len(non_empty) else (0, 0)
        )
        rows = np.zeros((end_bucket - begin_bucket + 1, 2), "<i8")
        np.cumsum(records[begin_bucket:end_bucket], out=rows[1:, 0])
        np.cumsum(sizes[begin_bucket:end_bucket], out=rows[1:, 1])
        write_all(file, rows.view(np.uint8).reshape(-1))
        write_all(
            file,
            np.concatenate([np.empty(0, SPARSE_INDEX_DTYPE), *self._sparse_index]).view(np.uint8),
        )
        return begin_bucket, end_bucket


def _make_sort_keys(entries: RunEntries) -> npt.NDArray[np.bytes_]:
    """Returns (key, file, position) of each entry as 20 big-endian bytes."""
    sort_keys = np.empty(len(entries), _SORT_KEY_DTYPE)
    for name in _SORT_KEY_DTYPE.names or ():
        sort_keys[name] = entries[name]
    return sort_keys.view("S20")


class SortedRunWriter:
    """Collects frames in memory and writes them as sorted runs. Not thread-safe.

    The writer needs `max_bytes` for frames and entries, and in addition a buffer of
    GATHER_BUFFER_BYTES. An entry counts as 48 bytes: its own 24 bytes, and as much again for the
    sort.

    Attributes:
        histogram: Counts the records of all sorted runs that were written.

    Args:
        folder: The folder for the sorted runs.
        buckets: The buckets of the index.
        max_bytes: The memory for a sorted run. A larger block of records becomes a separate sorted
            run.
    """

    def __init__(self, folder: str, buckets: KeyBuckets, max_bytes: int) -> None:
        self._folder, self._buckets, self._max_bytes = folder, buckets, max_bytes
        self.histogram = Histogram.zeros(buckets.num_splits, buckets.num_buckets)
        self._frames_bytes = 0
        self._blocks: list[Bytes] = []
        self._entries: list[RunEntries] = []
        self._split_ids: list[npt.NDArray[np.uint16]] = []
        self._checksum = 0

    def add(
        self,
        data: Bytes,
        sizes: npt.NDArray[np.int64],
        crcs: npt.NDArray[np.uint32],
        keys: U64,
        split_ids: npt.NDArray[np.uint16],
        file_ids: npt.NDArray[np.uint32],
        positions: npt.NDArray[np.int64],
    ) -> Iterator[SortedRun]:
        """Adds records. If the memory is full, first yields a sorted run of the earlier records.

        A generator: nothing is added unless the caller consumes it. `data` is kept until the sorted
        run is written, so it must not change.

        Args:
            data: The frames, back to back.
            sizes: [records] bytes of each frame.
            crcs: [records] CRC of each payload, for the checksum.
            keys: [records].
            split_ids: [records] ordinals of splits.
            file_ids: [records], the order of equal keys.
            positions: [records], the order of equal keys of one file.
        """
        num_bytes = (
            self._frames_bytes
            + len(data)
            # Entries count twice, because the sort needs as much again.
            + 2 * ENTRY_DTYPE.itemsize * (sum(map(len, self._entries)) + len(sizes))
        )
        if self._blocks and num_bytes > self._max_bytes:
            yield self.finish()
        entries = np.empty(len(sizes), ENTRY_DTYPE)
        entries["key"] = keys
        entries["position"] = positions
        entries["file"] = file_ids
        entries["size"] = sizes
        self._blocks.append(data)
        self._frames_bytes += len(data)
        self._entries.append(entries)
        self._split_ids.append(split_ids)
        self._checksum = add_checksums(self._checksum, record_checksum(keys, crcs))

    @property
    def is_empty(self) -> bool:
        return not self._entries

    def finish(self) -> SortedRun:
        """Writes all records that are in memory as a sorted run. There must be at least one."""
        entries, split_ids = np.concatenate(self._entries), np.concatenate(self._split_ids)
        sorted_run = self._write(entries, split_ids)
        self._frames_bytes = 0
        self._blocks = []
        self._entries = []
        self._split_ids = []
        self._checksum = 0
        return sorted_run

    def _write(self, entries: RunEntries, split_ids: npt.NDArray[np.uint16]) -> SortedRun:
        order = argsort_entries(entries)
        # A stable sort by split keeps the order of the keys within each split.
        if self._buckets.num_splits > 1:
            order = order[np.argsort(split_ids[order], kind="stable")]
        sizes = entries["size"].astype(np.int64)
        block_ids, starts = self._locate_frames(sizes)
        # entries[order] would copy field by field.
        sorted_entries = np.take(entries, order)
        index = SortedRunIndex(self._buckets)
        split_edges = np.searchsorted(
            split_ids[order], np.arange(self._buckets.num_splits + 1)
        ).tolist()
        for split_id, (begin, end) in enumerate(itertools.pairwise(split_edges)):
            index.add(split_id, sorted_entries[begin:end])
        self.histogram += index.histogram
        # A unique name, because a task may have several attempts in one folder.
        path = os.path.join(self._folder, f"run-{uuid.uuid4().hex}")
        with create_file(path) as file:
            for buffer, _ in gather_frames(self._blocks, starts, sizes, order, block_ids=block_ids):
                write_all(file, buffer)
            write_all(file, sorted_entries.view(np.uint8))
            begin_bucket, end_bucket = index.write(file)
        return SortedRun(
            path,
            records=len(entries),
            frames_bytes=self._frames_bytes,
            begin_bucket=begin_bucket,
            end_bucket=end_bucket,
            checksum=self._checksum,
        )

    def _locate_frames(
        self, sizes: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Returns the block of each frame, and its offset in that block."""
        counts = list(map(len, self._entries))
        block_starts = np.cumsum([0, *map(len, self._blocks[:-1])])
        block_ids = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        return block_ids, np.cumsum(sizes) - sizes - np.repeat(block_starts, counts)


def argsort_entries(entries: RunEntries) -> npt.NDArray[np.int64]:
    """Returns the indices that sort entries by key, file and position."""
    keys = np.ascontiguousarray(entries["key"])
    order = np.argsort(keys)
    sorted_keys = keys[order]
    # Only equal keys need the slow sort. They are rare except with --key.
    if len(sorted_keys) > 1 and bool(np.any(sorted_keys[1:] == sorted_keys[:-1])):
        order = np.lexsort((entries["position"], entries["file"], keys))
    return order


def gather_frames(
    blocks: Sequence[Bytes],
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    order: npt.NDArray[np.int64],
    buffer_bytes: int = GATHER_BUFFER_BYTES,
    block_ids: npt.NDArray[np.int32] | None = None,
) -> Iterator[tuple[Bytes, int]]:
    """Copies frames into a buffer in the given order.

    Args:
        blocks: The buffers that contain the frames.
        starts: [frames] offset of each frame in its block.
        sizes: [frames] bytes of each frame.
        order: [frames] the permutation.
        buffer_bytes: Size of the buffer. A larger frame gets a buffer of its own.
        block_ids: [frames] index of each frame's block. None means that all are in the first block.

    Yields:
        (buffer, number of frames). The next item overwrites the buffer.
    """
    ends = to_offsets(sizes[order])
    begin = 0
    buffer = np.empty(0, np.uint8)
    while begin < len(order):
        # At least one frame, even if it is larger than the buffer.
        end = max(
            int(np.searchsorted(ends, ends[begin] + buffer_bytes, side="right")) - 1, begin + 1
        )
        num_bytes = int(ends[end] - ends[begin])
        if num_bytes > len(buffer):
            # Never larger than all frames together need.
            buffer = allocate(max(num_bytes, min(buffer_bytes, int(ends[-1]))), np.uint8)
        frame_ids = order[begin:end]
        pack_spans(
            blocks,
            starts[frame_ids],
            sizes[frame_ids],
            buffer,
            None if block_ids is None else block_ids[frame_ids],
        )
        yield buffer[:num_bytes], end - begin
        begin = end
