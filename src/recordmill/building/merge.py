"""Slices of runs, each sorted, merged into one order, in bounded memory however many and however long they are: more
than one merge can take are merged beforehand, the smallest into one that lies in a file, until they are few enough.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recordmill.base.buffers import Int64s, room
from recordmill.base.siphash import U64
from recordmill.building.run_file import ENTRY_DTYPE, PERMUTED_BYTES, RunEntries, permuted_entries, sort_order
from recordmill.building.slices import RunSlice
from recordmill.storage.files import Bytes, create_file, write_all
from recordmill.storage.folders import remove_file

# bytes: an entry in a window and in a round, its place in the order, and what sorting needs meanwhile
_ENTRY_COST = 136
_LEAST_WINDOW = 32  # entries, 768 bytes: shorter reads cost more than merging some slices beforehand
_LEAST_PIECE_BYTES = 8 << 20  # 8 MiB of frames at once
_READ_BYTES = 128 << 10  # 128 KiB of a slice at once, on average, where many are merged

_OPAQUE = np.dtype((np.void, ENTRY_DTYPE.itemsize))
MergePlace = tuple[int, int, int]  # (key, file, position) of a record
SliceEntries = tuple[RunSlice, int, RunEntries]  # (slice, first byte in it, entries)


def window_entries(memory_bytes: int) -> int:
    """How many entries all windows of a merge hold together: those take three eighths of the memory."""
    return max(memory_bytes * 3 // 8 // _ENTRY_COST, 4)


def fan_in(memory_bytes: int) -> int:
    """How many slices a merge takes at once with windows that are worth a read."""
    return max(window_entries(memory_bytes) // _LEAST_WINDOW, 2)


@dataclass(frozen=True)
class Round:
    """The next records of some slices: those of taken[i] lie in its slice one after the other, from a byte on.

    memory_bytes: of the merge; frames take a quarter of it at once, and an eighth while they are put in order, and as
    much again while the last of those are still looked at.
    """

    taken: Sequence[SliceEntries]
    memory_bytes: int

    @property
    def records(self) -> int:
        return sum(len(entries) for *_, entries in self.taken)

    @property
    def frames_bytes(self) -> int:
        return sum(int(entries["size"].sum(dtype=np.int64)) for *_, entries in self.taken)

    def sorted(self) -> Sorted:
        return Sorted(self)


class Sorted:
    """A round in order. sizes: int64 [records] of the frames."""

    def __init__(self, merged: Round) -> None:
        self._taken, self._memory_bytes = merged.taken, merged.memory_bytes
        self._entries = _together([entries for *_, entries in merged.taken])
        self._firsts = np.cumsum([0, *(len(entries) for *_, entries in merged.taken)])
        self._ends = np.cumsum(self._entries["size"], dtype=np.int64)
        # no more than makes reads long: memory that is new to the process costs more than a read
        self._piece_bytes = min(merged.memory_bytes // 4, max(_LEAST_PIECE_BYTES, _READ_BYTES * len(merged.taken)))
        self._order = sort_order(self._entries) if len(merged.taken) > 1 else np.arange(len(self._entries))
        self.sizes: Int64s = self._entries["size"].astype(np.int64)[self._order]

    def entries(self, first: int, last: int) -> RunEntries:
        """The entries of records [first, last) of the order."""
        return np.take(self._entries, self._order[first:last])

    def frames(self, first: int, last: int) -> Iterator[tuple[Bytes, U64]]:
        """Yields contiguous frames of records [first, last) of the order, valid until the next ones, and their keys."""
        ends = np.cumsum(self.sizes[first:last])
        at, given = 0, 0
        while at < len(ends):
            upto = int(np.searchsorted(ends, given + self._piece_bytes, side="right"))
            upto = max(upto, at + 1)
            yield from self._read(self._order[first + at : first + upto])
            at, given = upto, int(ends[upto - 1])

    def _read(self, chosen: Int64s) -> Iterator[tuple[Bytes, U64]]:
        """The frames of these entries, which are consecutive in the order, and so in each slice."""
        stored, order = _in_stored_order(chosen, len(self._entries))
        sizes = self._entries["size"][stored].astype(np.int64)
        edges = np.searchsorted(stored, self._firsts)
        data = room(int(sizes.sum()), np.uint8)
        starts = np.cumsum(sizes) - sizes
        for number in np.flatnonzero(np.diff(edges)).tolist():
            piece, first_byte, entries = self._taken[number]
            first, last = int(edges[number]), int(edges[number + 1])
            begin = int(self._ends[stored[first]]) - int(sizes[first])
            before = int(self._ends[self._firsts[number]]) - int(entries["size"][0])
            into = data[int(starts[first]) : int(starts[last - 1]) + int(sizes[last - 1])]
            piece.read_frames(first_byte + begin - before, into)
        keys, given = self._entries["key"][chosen], 0
        for frames, count in permuted_entries(
            [data], starts, sizes, order, min(PERMUTED_BYTES, self._memory_bytes // 8)
        ):
            yield frames, np.ascontiguousarray(keys[given : given + count])
            given += count


def _in_stored_order(chosen: Int64s, count: int) -> tuple[Int64s, Int64s]:
    """(some entries of that many in the order in which they are stored, where in it each of those given is)."""
    if len(chosen) == count:
        return np.arange(count), chosen
    places = np.argsort(chosen)
    order = np.empty(len(chosen), np.int64)
    order[places] = np.arange(len(chosen))
    return chosen[places], order


class _Cursor:
    """How far a slice has been given out, and what of it is loaded but not yet given out."""

    def __init__(self, piece: RunSlice) -> None:
        self._slice = piece
        self._next_byte = 0
        self.left = piece.records
        self.gave = 0  # records, to the last round
        self.entries: RunEntries = np.empty(0, ENTRY_DTYPE)

    @property
    def all_loaded(self) -> bool:
        return len(self.entries) >= self.left

    def load(self, window: int) -> None:
        """Have the next `window` entries at hand, or most of them; more are dropped, to be read again."""
        loaded = len(self.entries)
        if loaded > window:
            self.entries = self.entries[:window].copy()
        elif not self.all_loaded and loaded <= window - window // 4:
            first = self._slice.records - self.left
            more = self._slice.entries(first + loaded, first + min(window, self.left))
            self.entries = _together([self.entries, more]) if loaded else more

    def last(self) -> MergePlace:
        entry = self.entries[-1]
        return int(entry["key"]), int(entry["file"]), int(entry["position"])

    def count_upto(self, bound: MergePlace) -> int:
        """How many loaded records lie at or before the bound."""
        if self.last() <= bound:
            return len(self.entries)
        key, file, position = bound
        keys = np.ascontiguousarray(self.entries["key"])
        first, last = (int(np.searchsorted(keys, np.uint64(key), side)) for side in ("left", "right"))
        ties = self.entries[first:last]
        before = (ties["file"] < file) | ((ties["file"] == file) & (ties["position"] <= position))
        return first + int(np.count_nonzero(before))

    def take(self, count: int) -> SliceEntries:
        """The next count entries, and where in the slice they and their frames begin."""
        taken, self.entries = self.entries[:count], self.entries[count:]
        start = self._next_byte
        self._next_byte += int(taken["size"].sum(dtype=np.int64))
        self.left, self.gave = self.left - count, count
        return self._slice, start, taken


def merge(slices: Sequence[RunSlice], memory_bytes: int) -> Iterator[Round]:
    """All records of the slices by (key, file, position); what is held stays under memory_bytes, or twice the largest
    record, beside what allocators keep; of more slices than `fan_in` the windows get so small that reads get slow.
    """
    cursors = [_Cursor(piece) for piece in slices]
    while cursors:
        for cursor, window in zip(cursors, _windows(cursors, window_entries(memory_bytes)), strict=True):
            cursor.load(window)
        bounds = [cursor.last() for cursor in cursors if not cursor.all_loaded]
        counts = [cursor.count_upto(min(bounds)) if bounds else len(cursor.entries) for cursor in cursors]
        taken = [cursor.take(count) for cursor, count in zip(cursors, counts, strict=True)]
        yield Round([part for part, count in zip(taken, counts, strict=True) if count], memory_bytes)
        cursors = [cursor for cursor in cursors if cursor.left]


def _windows(cursors: Sequence[_Cursor], entries: int) -> list[int]:
    """How many entries each slice may hold: all of them, if that is possible. Else half is shared equally, a quarter by
    what is left (keys that are hashes come in that proportion), and a quarter by what the last round took (slices that
    follow each other, as without a shuffle, are read one at a time).
    """
    left = np.array([cursor.left for cursor in cursors], np.float64)
    if left.sum() <= entries:
        return [cursor.left for cursor in cursors]
    gave = np.array([cursor.gave for cursor in cursors], np.float64)
    shares = left / left.sum() + (gave / gave.sum() if gave.any() else left / left.sum())
    return [max(int(window), 1) for window in entries * (0.5 / len(cursors) + 0.25 * shares)]


def _together(parts: Sequence[RunEntries]) -> RunEntries:
    """The parts as one array; NumPy would compare the fields' types anew for each of many small parts."""
    return np.concatenate([part.view(_OPAQUE) for part in parts]).view(ENTRY_DTYPE)


@contextmanager
def at_most(
    count: int, slices: Sequence[RunSlice], folder: Path, memory_bytes: int, step: Callable[[], None]
) -> Iterator[Sequence[RunSlice]]:
    """The slices' records in at most `count` slices; what is written into folder for that is removed at the end.

    step: called once a round, and may raise.
    """
    made: list[Path] = []
    left = sorted(slices, key=lambda piece: piece.frames_bytes)
    try:
        while len(left) > count:
            first = min(count, len(left) - count + 1)
            made.append(folder / f"level-{uuid.uuid4().hex}")
            left = [*left[first:], merged_into(left[:first], made[-1], memory_bytes, step)]
            left.sort(key=lambda piece: piece.frames_bytes)
        yield left
    finally:
        for path in made:
            remove_file(path, missing_ok=True)


def merged_into(slices: Sequence[RunSlice], path: Path, memory_bytes: int, step: Callable[[], None]) -> RunSlice:
    """One slice, in a file of its own, of all records of these."""
    records, frames_bytes = sum(piece.records for piece in slices), sum(piece.frames_bytes for piece in slices)
    frames_at, entries_at = 0, frames_bytes
    with create_file(path) as file:
        for merged in merge(slices, memory_bytes):
            step()
            ordered = merged.sorted()
            file.seek(frames_at)
            for frames, _ in ordered.frames(0, merged.records):
                frames_at += write_all(file, frames)
            file.seek(entries_at)
            entries_at += write_all(file, ordered.entries(0, merged.records).tobytes())
    assert (frames_at, entries_at) == (frames_bytes, frames_bytes + records * ENTRY_DTYPE.itemsize)
    return RunSlice(str(path), records, frames_bytes, 0, frames_bytes)
