"""K-way merge of slices of sorted runs in bounded memory.

A sorted run has, for each record, a frame and a small entry with its key, file, position and size.
The merge works on entries, and reads frames only when the caller requests them.

Each slice has a window: the entries that are loaded and not yet merged. A batch takes all loaded
entries up to a bound. The bound is the smallest last entry of the windows. Windows count only if
their slice has more entries on disk. All later entries come after the bound, so a batch can be
sorted by itself.

If there are too many slices for one merge, the smallest are first merged into files.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recordmill.base.buffers import Int64s, allocate, to_offsets
from recordmill.base.siphash import U64
from recordmill.building.run_slices import RunSlice
from recordmill.building.sorted_run import (
    ENTRY_DTYPE,
    GATHER_BUFFER_BYTES,
    RunEntries,
    argsort_entries,
    gather_frames,
)
from recordmill.storage.files import Bytes, create_file, write_all
from recordmill.storage.folders import remove_file

# Memory of an entry in bytes: its copies in the window and in the batch, its index in the order,
# and the scratch space of the sort.
_ENTRY_BYTES = 136
# Minimum number of entries of a window, 768 bytes. Shorter reads cost more than merging some slices
# beforehand.
_MIN_WINDOW = 32
# 8 MiB of frames are read at once, or more, if the memory allows it.
_MIN_BUFFER_BYTES = 8 << 20
# 128 KiB: intended average length of a read if many slices are merged.
_READ_BYTES = 128 << 10

# An entry as 24 bytes without fields.
_OPAQUE = np.dtype((np.void, ENTRY_DTYPE.itemsize))
SortKey = tuple[int, int, int]  # (key, file, position) of a record
# (slice, offset of the first entry's frame in the slice, entries)
SliceEntries = tuple[RunSlice, int, RunEntries]


def max_window_entries(memory_bytes: int) -> int:
    """Returns the number of entries that all windows of a merge may hold together.

    Args:
        memory_bytes: The memory of the merge. Frames take up to half of it, and entries 3/8.
    """
    return max(memory_bytes * 3 // 8 // _ENTRY_BYTES, 4)


def max_fan_in(memory_bytes: int) -> int:
    """Returns the number of slices that can be merged at once within `memory_bytes`."""
    return max(max_window_entries(memory_bytes) // _MIN_WINDOW, 2)


@dataclass(frozen=True)
class MergeBatch:
    """Unsorted entries of a merge, which come after the entries of all earlier batches.

    The caller may skip a batch because of its size, which saves the sort.

    Attributes:
        entries_by_slice: The entries from each slice.
        memory_bytes: The memory of the merge. Reading the frames takes a quarter of it, and
            reordering them up to another quarter.
    """

    entries_by_slice: Sequence[SliceEntries]
    memory_bytes: int

    @property
    def records(self) -> int:
        return sum(len(entries) for *_, entries in self.entries_by_slice)

    @property
    def frames_bytes(self) -> int:
        return sum(
            int(entries["size"].sum(dtype=np.int64)) for *_, entries in self.entries_by_slice
        )

    def sort(self) -> SortedBatch:
        return SortedBatch(self)


class SortedBatch:
    """The records of a merge batch in key order. Frames are read when `frames` is called.

    Attributes:
        sizes: [records] int64, bytes of each frame, in key order.
    """

    def __init__(self, batch: MergeBatch) -> None:
        self._entries_by_slice, self._memory_bytes = batch.entries_by_slice, batch.memory_bytes
        self._entries = _join_entries([entries for *_, entries in batch.entries_by_slice])
        self._firsts = to_offsets([len(entries) for *_, entries in batch.entries_by_slice])
        self._ends = np.cumsum(self._entries["size"], dtype=np.int64)
        # Large enough for long reads, but not larger, because using new memory costs more than a
        # read.
        self._buffer_bytes = min(
            batch.memory_bytes // 4,
            max(_MIN_BUFFER_BYTES, _READ_BYTES * len(batch.entries_by_slice)),
        )
        # The entries of a single slice are sorted already.
        self._order = (
            argsort_entries(self._entries)
            if len(batch.entries_by_slice) > 1
            else np.arange(len(self._entries))
        )
        self.sizes: Int64s = self._entries["size"].astype(np.int64)[self._order]

    def entries(self, begin: int, end: int) -> RunEntries:
        """Returns the entries of records [begin, end), counted in key order."""
        return np.take(self._entries, self._order[begin:end])

    def frames(self, begin: int, end: int) -> Iterator[tuple[Bytes, U64]]:
        """Reads the frames of records [begin, end), counted in key order.

        Yields:
            (frames, keys) of some records at a time. The frames are back to back in a buffer, which
            the next item overwrites.
        """
        ends = np.cumsum(self.sizes[begin:end])
        row, num_bytes = 0, 0
        while row < len(ends):
            end_row = int(np.searchsorted(ends, num_bytes + self._buffer_bytes, side="right"))
            # At least one record, even if it is larger than the buffer.
            end_row = max(end_row, row + 1)
            yield from self._read(self._order[begin + row : begin + end_row])
            row, num_bytes = end_row, int(ends[end_row - 1])

    def _read(self, indices: Int64s) -> Iterator[tuple[Bytes, U64]]:
        """Reads the frames of some entries and yields (frames, keys) in key order.

        Args:
            indices: Indices into `_entries`. The records must be consecutive in key order.
        """
        stored, order = _in_stored_order(indices, len(self._entries))
        sizes = self._entries["size"][stored].astype(np.int64)
        edges = np.searchsorted(stored, self._firsts)
        data = allocate(int(sizes.sum()), np.uint8)
        frame_starts = np.cumsum(sizes) - sizes
        # The entries are consecutive in key order, and each slice is sorted. So each slice
        # contributes one range of bytes, and needs one read.
        for slice_id in np.flatnonzero(np.diff(edges)).tolist():
            run_slice, first_byte, entries = self._entries_by_slice[slice_id]
            begin, end = int(edges[slice_id]), int(edges[slice_id + 1])
            begin_byte = int(self._ends[stored[begin]]) - int(sizes[begin])
            slice_start = int(self._ends[self._firsts[slice_id]]) - int(entries["size"][0])
            buffer = data[
                int(frame_starts[begin]) : int(frame_starts[end - 1]) + int(sizes[end - 1])
            ]
            run_slice.read_frames(first_byte + begin_byte - slice_start, buffer)
        keys, num_yielded = self._entries["key"][indices], 0
        for frames, count in gather_frames(
            [data], frame_starts, sizes, order, min(GATHER_BUFFER_BYTES, self._memory_bytes // 8)
        ):
            yield frames, np.ascontiguousarray(keys[num_yielded : num_yielded + count])
            num_yielded += count


def _in_stored_order(indices: Int64s, num_entries: int) -> tuple[Int64s, Int64s]:
    """Sorts indices, and returns the permutation that undoes the sort.

    Args:
        indices: Distinct indices below `num_entries`.
        num_entries: The number of entries of the batch.

    Returns:
        (ascending, order), where ascending[order] equals `indices`.
    """
    if len(indices) == num_entries:
        return np.arange(num_entries), indices
    order_of_indices = np.argsort(indices)
    order = np.empty(len(indices), np.int64)
    order[order_of_indices] = np.arange(len(indices))
    return indices[order_of_indices], order


class _SliceReader:
    """Reads the entries of one slice step by step, for a merge.

    The entries that are loaded and not yet taken are the window. A merge repeats two calls: `load`
    reads entries into the window, and `take` removes the first ones.

    Attributes:
        entries: The window, in key order.
        remaining: Number of records that are not yet taken, loaded or not.
        last_taken: Number of records that the last `take` has removed.
    """

    def __init__(self, run_slice: RunSlice) -> None:
        self._slice = run_slice
        self._next_byte = 0
        self.remaining = run_slice.records
        self.last_taken = 0
        self.entries: RunEntries = np.empty(0, ENTRY_DTYPE)

    @property
    def is_all_loaded(self) -> bool:
        return len(self.entries) >= self.remaining

    def load(self, window: int) -> None:
        """Reads entries until the window has `window` entries, or all remaining ones.

        A window that is at least three quarters full is left as it is. If it has more than `window`
        entries, the surplus is dropped, and read again by a later call.
        """
        num_loaded = len(self.entries)
        if num_loaded > window:
            # A view would keep the dropped entries in memory.
            self.entries = self.entries[:window].copy()
        # A nearly full window is left alone, to avoid short reads.
        elif not self.is_all_loaded and num_loaded <= window - window // 4:
            next_record = self._slice.records - self.remaining
            entries = self._slice.entries(
                next_record + num_loaded, next_record + min(window, self.remaining)
            )
            self.entries = _join_entries([self.entries, entries]) if num_loaded else entries

    def last(self) -> SortKey:
        """Returns the sort key of the last entry in the window."""
        entry = self.entries[-1]
        return int(entry["key"]), int(entry["file"]), int(entry["position"])

    def count_up_to(self, bound: SortKey) -> int:
        """Returns the number of entries in the window that are at most `bound`."""
        if self.last() <= bound:
            return len(self.entries)
        key, file, position = bound
        keys = np.ascontiguousarray(self.entries["key"])
        begin, end = (
            int(np.searchsorted(keys, np.uint64(key), side)) for side in ("left", "right")
        )
        # Only entries with the key of the bound need a comparison of file and position.
        ties = self.entries[begin:end]
        is_up_to_bound = (ties["file"] < file) | (
            (ties["file"] == file) & (ties["position"] <= position)
        )
        return begin + int(np.count_nonzero(is_up_to_bound))

    def take(self, count: int) -> SliceEntries:
        """Removes the first `count` entries from the window.

        Returns:
            (slice, offset, entries). The offset is the start of the first entry's frame, in bytes
            from the start of the slice.
        """
        entries, self.entries = self.entries[:count], self.entries[count:]
        start = self._next_byte
        self._next_byte += int(entries["size"].sum(dtype=np.int64))
        self.remaining, self.last_taken = self.remaining - count, count
        return self._slice, start, entries


def merge(slices: Sequence[RunSlice], memory_bytes: int) -> Iterator[MergeBatch]:
    """Merges slices by (key, file, position), and yields the batches in this order.

    The merge needs at most `memory_bytes`, or twice the largest record if that is more. More slices
    than `max_fan_in` are allowed, but their windows are small and the reads slow.

    Args:
        slices: The slices. Each has at least one record.
        memory_bytes: The memory for entries and frames.
    """
    readers = [_SliceReader(run_slice) for run_slice in slices]
    while readers:
        for reader, window in zip(
            readers, _window_sizes(readers, max_window_entries(memory_bytes)), strict=True
        ):
            reader.load(window)
        # Entries that are not loaded yet come after the last one of their window. So the batch ends
        # at the smallest of these last entries.
        bounds = [reader.last() for reader in readers if not reader.is_all_loaded]
        counts = [
            reader.count_up_to(min(bounds)) if bounds else len(reader.entries) for reader in readers
        ]
        entries_by_slice = [
            reader.take(count) for reader, count in zip(readers, counts, strict=True)
        ]
        yield MergeBatch(
            [
                slice_entries
                for slice_entries, count in zip(entries_by_slice, counts, strict=True)
                if count
            ],
            memory_bytes,
        )
        readers = [reader for reader in readers if reader.remaining]


def _window_sizes(readers: Sequence[_SliceReader], max_entries: int) -> list[int]:
    """Divides `max_entries` among the readers, and returns the window size of each, in entries.

    If all remaining entries fit, each window holds all that its slice has. Otherwise:

    * Half of the entries is divided evenly.
    * A quarter is divided in proportion to the remaining records, since hashed keys arrive in this
      proportion.
    * A quarter is divided in proportion to the records of the last batch. Without a shuffle, slices
      follow one another, and one at a time needs entries.
    """
    remaining = np.array([reader.remaining for reader in readers], np.float64)
    if remaining.sum() <= max_entries:
        return [reader.remaining for reader in readers]
    last_taken = np.array([reader.last_taken for reader in readers], np.float64)
    shares = remaining / remaining.sum() + (
        last_taken / last_taken.sum() if last_taken.any() else remaining / remaining.sum()
    )
    return [max(int(window), 1) for window in max_entries * (0.5 / len(readers) + 0.25 * shares)]


def _join_entries(arrays: Sequence[RunEntries]) -> RunEntries:
    # Joins the entries as opaque bytes. Otherwise NumPy would compare the field types again for
    # each of many small arrays.
    return np.concatenate([array.view(_OPAQUE) for array in arrays]).view(ENTRY_DTYPE)


@contextmanager
def limit_fan_in(
    max_slices: int,
    slices: Sequence[RunSlice],
    folder: Path,
    memory_bytes: int,
    on_batch: Callable[[], None],
) -> Iterator[Sequence[RunSlice]]:
    """Merges the smallest slices into files until at most `max_slices` slices are left.

    The files are removed at the end of the `with` block.

    Args:
        max_slices: The number of slices that may be left, at least 2.
        slices: The slices to merge.
        folder: The folder for the merged files.
        memory_bytes: The memory of each merge.
        on_batch: Called once per batch. It may raise an exception to stop the merge.

    Yields:
        The slices that are left. Some may be merged ones.
    """
    paths: list[Path] = []
    remaining = sorted(slices, key=lambda run_slice: run_slice.frames_bytes)
    try:
        while len(remaining) > max_slices:
            # No more than needed, because each merge reads and writes its slices.
            num_merged = min(max_slices, len(remaining) - max_slices + 1)
            paths.append(folder / f"level-{uuid.uuid4().hex}")
            remaining = [
                *remaining[num_merged:],
                merge_to_file(
                    remaining[:num_merged], paths[-1], memory_bytes=memory_bytes, on_batch=on_batch
                ),
            ]
            remaining.sort(key=lambda run_slice: run_slice.frames_bytes)
        yield remaining
    finally:
        for path in paths:
            remove_file(path, missing_ok=True)


def merge_to_file(
    slices: Sequence[RunSlice], path: Path, memory_bytes: int, on_batch: Callable[[], None]
) -> RunSlice:
    """Merges slices into a new file and returns the file as one slice.

    Args:
        slices: The slices to merge.
        path: The file to write: all frames, then all entries. It gets no index.
        memory_bytes: The memory of the merge.
        on_batch: Called once per batch. It may raise an exception to stop the merge.
    """
    records = sum(run_slice.records for run_slice in slices)
    frames_bytes = sum(run_slice.frames_bytes for run_slice in slices)
    frames_offset, entries_offset = 0, frames_bytes
    with create_file(path) as file:
        for batch in merge(slices, memory_bytes):
            on_batch()
            sorted_batch = batch.sort()
            # Frames and entries are written in turns. Their offsets follow from the known sizes.
            file.seek(frames_offset)
            for frames, _ in sorted_batch.frames(0, batch.records):
                frames_offset += write_all(file, frames)
            file.seek(entries_offset)
            entries_offset += write_all(file, sorted_batch.entries(0, batch.records).tobytes())
    assert (frames_offset, entries_offset) == (
        frames_bytes,
        frames_bytes + records * ENTRY_DTYPE.itemsize,
    )
    return RunSlice(
        str(path),
        records=records,
        frames_bytes=frames_bytes,
        frames_offset=0,
        entries_offset=frames_bytes,
    )
