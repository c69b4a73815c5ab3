"""K-way merge of slices of sorted runs in bounded memory.

Each slice has a window of loaded entries. A round takes all loaded entries up to the smallest last entry of any window
that has more to load. All later entries come after these, so a round can be sorted by itself.

If there are too many slices for one merge, the smallest are first merged into files.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recordmill.base.buffers import Int64s, allocate
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

# bytes: an entry in its window and in a round, its place in the order, and the scratch space of the sort
_ENTRY_BYTES = 136
_MIN_WINDOW = 32  # entries, 768 bytes: shorter reads cost more than merging some slices beforehand
_MIN_BUFFER_BYTES = 8 << 20  # 8 MiB of frames are read at once, or more
_READ_BYTES = 128 << 10  # 128 KiB: average length of a read if many slices are merged

_OPAQUE = np.dtype((np.void, ENTRY_DTYPE.itemsize))
SortKey = tuple[int, int, int]  # (key, file, position) of a record
SliceEntries = tuple[RunSlice, int, RunEntries]  # (slice, first byte in it, entries)


def max_window_entries(memory_bytes: int) -> int:
    """Returns the number of entries that all windows of a merge may hold together."""
    return max(memory_bytes * 3 // 8 // _ENTRY_BYTES, 4)


def max_fan_in(memory_bytes: int) -> int:
    """Returns the number of slices that can be merged at once."""
    return max(max_window_entries(memory_bytes) // _MIN_WINDOW, 2)


@dataclass(frozen=True)
class MergeBatch:
    """Entries that follow all earlier rounds of a merge, not yet sorted.

    A reader can skip a round by its size, without the cost of sorting it.

    Attributes:
        taken: The entries of each slice.
        memory_bytes: The memory of the merge. Frames take a quarter of it, and up to a quarter while they are permuted.
    """

    taken: Sequence[SliceEntries]
    memory_bytes: int

    @property
    def records(self) -> int:
        return sum(len(entries) for *_, entries in self.taken)

    @property
    def frames_bytes(self) -> int:
        return sum(int(entries["size"].sum(dtype=np.int64)) for *_, entries in self.taken)

    def sorted(self) -> SortedBatch:
        return SortedBatch(self)


class SortedBatch:
    """The records of a round in key order. Frames are read on request.

    Attributes:
        sizes: [records] int64, bytes of each frame, in key order.
    """

    def __init__(self, merged: MergeBatch) -> None:
        self._taken, self._memory_bytes = merged.taken, merged.memory_bytes
        self._entries = _join_entries([entries for *_, entries in merged.taken])
        self._firsts = np.cumsum([0, *(len(entries) for *_, entries in merged.taken)])
        self._ends = np.cumsum(self._entries["size"], dtype=np.int64)
        # No larger than long reads need: memory that is new to the process costs more than a read.
        self._piece_bytes = min(
            merged.memory_bytes // 4, max(_MIN_BUFFER_BYTES, _READ_BYTES * len(merged.taken))
        )
        # the entries of a single slice are sorted already
        self._order = (
            argsort_entries(self._entries)
            if len(merged.taken) > 1
            else np.arange(len(self._entries))
        )
        self.sizes: Int64s = self._entries["size"].astype(np.int64)[self._order]

    def entries(self, first: int, last: int) -> RunEntries:
        """Returns the entries of records [first, last)."""
        return np.take(self._entries, self._order[first:last])

    def frames(self, first: int, last: int) -> Iterator[tuple[Bytes, U64]]:
        """Yields (frames, keys) of records [first, last) in several parts.

        The frames are back to back in a buffer, which the next part overwrites.
        """
        ends = np.cumsum(self.sizes[first:last])
        at, given = 0, 0
        while at < len(ends):
            upto = int(np.searchsorted(ends, given + self._piece_bytes, side="right"))
            upto = max(upto, at + 1)
            yield from self._read(self._order[first + at : first + upto])
            at, given = upto, int(ends[upto - 1])

    def _read(self, chosen: Int64s) -> Iterator[tuple[Bytes, U64]]:
        """Reads the frames of the chosen entries and yields (frames, keys).

        Args:
            chosen: Indices into the unsorted entries of the round, consecutive in key order.
        """
        stored, order = _in_stored_order(chosen, len(self._entries))
        sizes = self._entries["size"][stored].astype(np.int64)
        edges = np.searchsorted(stored, self._firsts)
        data = allocate(int(sizes.sum()), np.uint8)
        starts = np.cumsum(sizes) - sizes
        # The entries are consecutive in key order, and each slice is sorted. So each slice contributes one range of
        # bytes, and needs one read.
        for number in np.flatnonzero(np.diff(edges)).tolist():
            piece, first_byte, entries = self._taken[number]
            first, last = int(edges[number]), int(edges[number + 1])
            begin = int(self._ends[stored[first]]) - int(sizes[first])
            before = int(self._ends[self._firsts[number]]) - int(entries["size"][0])
            into = data[int(starts[first]) : int(starts[last - 1]) + int(sizes[last - 1])]
            piece.read_frames(first_byte + begin - before, into)
        keys, given = self._entries["key"][chosen], 0
        for frames, count in gather_frames(
            [data], starts, sizes, order, min(GATHER_BUFFER_BYTES, self._memory_bytes // 8)
        ):
            yield frames, np.ascontiguousarray(keys[given : given + count])
            given += count


def _in_stored_order(chosen: Int64s, count: int) -> tuple[Int64s, Int64s]:
    """Returns (`chosen` in ascending order, the permutation from there to `chosen`).

    Args:
        chosen: Distinct indices below `count`.
        count: The number of entries of the round.
    """
    if len(chosen) == count:
        return np.arange(count), chosen
    places = np.argsort(chosen)
    order = np.empty(len(chosen), np.int64)
    order[places] = np.arange(len(chosen))
    return chosen[places], order


class _SliceReader:
    """A slice in a merge, with its window of loaded entries.

    Attributes:
        left: Number of records that no round has taken.
        gave: Number of records that the last round has taken.
        entries: The window.
    """

    def __init__(self, piece: RunSlice) -> None:
        self._slice = piece
        self._next_byte = 0
        self.left = piece.records
        self.gave = 0
        self.entries: RunEntries = np.empty(0, ENTRY_DTYPE)

    @property
    def all_loaded(self) -> bool:
        return len(self.entries) >= self.left

    def load(self, window: int) -> None:
        """Loads entries until the window has about `window` of them.

        If it has more, the surplus is dropped and read again later.
        """
        loaded = len(self.entries)
        if loaded > window:
            self.entries = self.entries[
                :window
            ].copy()  # a view would keep the dropped ones in memory
        # a nearly full window is left alone, to avoid short reads
        elif not self.all_loaded and loaded <= window - window // 4:
            first = self._slice.records - self.left
            more = self._slice.entries(first + loaded, first + min(window, self.left))
            self.entries = _join_entries([self.entries, more]) if loaded else more

    def last(self) -> SortKey:
        entry = self.entries[-1]
        return int(entry["key"]), int(entry["file"]), int(entry["position"])

    def count_upto(self, bound: SortKey) -> int:
        """Returns the number of loaded entries that are at most `bound`."""
        if self.last() <= bound:
            return len(self.entries)
        key, file, position = bound
        keys = np.ascontiguousarray(self.entries["key"])
        first, last = (
            int(np.searchsorted(keys, np.uint64(key), side)) for side in ("left", "right")
        )
        ties = self.entries[first:last]
        before = (ties["file"] < file) | ((ties["file"] == file) & (ties["position"] <= position))
        return first + int(np.count_nonzero(before))

    def take(self, count: int) -> SliceEntries:
        """Removes the first `count` entries from the window and returns them."""
        taken, self.entries = self.entries[:count], self.entries[count:]
        start = self._next_byte
        self._next_byte += int(taken["size"].sum(dtype=np.int64))
        self.left, self.gave = self.left - count, count
        return self._slice, start, taken


def merge(slices: Sequence[RunSlice], memory_bytes: int) -> Iterator[MergeBatch]:
    """Merges slices by (key, file, position), and yields the rounds in this order.

    The memory stays below `memory_bytes`, or twice the largest record. More than `max_fan_in` slices are possible, but make
    the windows small and the reads slow.

    Args:
        slices: The slices. Each has at least one record.
        memory_bytes: The memory for entries and frames.
    """
    cursors = [_SliceReader(piece) for piece in slices]
    while cursors:
        for cursor, window in zip(
            cursors, _window_sizes(cursors, max_window_entries(memory_bytes)), strict=True
        ):
            cursor.load(window)
        # Entries not loaded yet come after the last one of their window. So a round ends at the smallest of these.
        bounds = [cursor.last() for cursor in cursors if not cursor.all_loaded]
        counts = [
            cursor.count_upto(min(bounds)) if bounds else len(cursor.entries) for cursor in cursors
        ]
        taken = [cursor.take(count) for cursor, count in zip(cursors, counts, strict=True)]
        yield MergeBatch(
            [part for part, count in zip(taken, counts, strict=True) if count], memory_bytes
        )
        cursors = [cursor for cursor in cursors if cursor.left]


def _window_sizes(cursors: Sequence[_SliceReader], entries: int) -> list[int]:
    """Returns the window of each cursor, in entries.

    If all entries fit, they are loaded. Otherwise half of the space is divided evenly. A quarter is divided by the
    records left, since hashed keys arrive in this proportion. A quarter is divided by the records of the last round:
    without a shuffle, slices follow one another and are read one at a time.
    """
    left = np.array([cursor.left for cursor in cursors], np.float64)
    if left.sum() <= entries:
        return [cursor.left for cursor in cursors]
    gave = np.array([cursor.gave for cursor in cursors], np.float64)
    shares = left / left.sum() + (gave / gave.sum() if gave.any() else left / left.sum())
    return [max(int(window), 1) for window in entries * (0.5 / len(cursors) + 0.25 * shares)]


def _join_entries(parts: Sequence[RunEntries]) -> RunEntries:
    # as opaque bytes, since NumPy would compare the field types again for each of many small parts
    return np.concatenate([part.view(_OPAQUE) for part in parts]).view(ENTRY_DTYPE)


@contextmanager
def limit_fan_in(
    count: int,
    slices: Sequence[RunSlice],
    folder: Path,
    memory_bytes: int,
    step: Callable[[], None],
) -> Iterator[Sequence[RunSlice]]:
    """Merges the smallest slices into files until at most `count` are left.

    A context manager. It yields the remaining slices and removes the files at the end.

    Args:
        count: The number of slices that may be left, at least 2.
        folder: The folder for the merged files.
        memory_bytes: The memory of each merge.
        step: Called once per round. It may raise an exception to stop the merge.
    """
    made: list[Path] = []
    left = sorted(slices, key=lambda piece: piece.frames_bytes)
    try:
        while len(left) > count:
            first = min(
                count, len(left) - count + 1
            )  # no more than needed: each merge reads and writes its slices
            made.append(folder / f"level-{uuid.uuid4().hex}")
            left = [*left[first:], merge_to_file(left[:first], made[-1], memory_bytes, step)]
            left.sort(key=lambda piece: piece.frames_bytes)
        yield left
    finally:
        for path in made:
            remove_file(path, missing_ok=True)


def merge_to_file(
    slices: Sequence[RunSlice], path: Path, memory_bytes: int, step: Callable[[], None]
) -> RunSlice:
    """Merges slices into a new file and returns it as one slice.

    Args:
        path: The file: frames, then entries. It has no index.
        memory_bytes: The memory of the merge.
        step: Called once per round. It may raise an exception to stop the merge.
    """
    records, frames_bytes = (
        sum(piece.records for piece in slices),
        sum(piece.frames_bytes for piece in slices),
    )
    frames_at, entries_at = 0, frames_bytes
    with create_file(path) as file:
        for merged in merge(slices, memory_bytes):
            step()
            ordered = merged.sorted()
            file.seek(
                frames_at
            )  # frames and entries in turns: their places follow from the known sizes
            for frames, _ in ordered.frames(0, merged.records):
                frames_at += write_all(file, frames)
            file.seek(entries_at)
            entries_at += write_all(file, ordered.entries(0, merged.records).tobytes())
    assert (frames_at, entries_at) == (frames_bytes, frames_bytes + records * ENTRY_DTYPE.itemsize)
    return RunSlice(str(path), records, frames_bytes, 0, frames_bytes)
