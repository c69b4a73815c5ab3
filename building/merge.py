"""Blocks of one shard, each sorted, merged into one sorted stream, in bounded memory however long the blocks are.

Each round loads the next records of every block, as many as fit; all that lie at or before the smallest last key loaded
can't be preceded by anything that comes later, so they are sorted together and given out. This is a k-way merge whose
step is an array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recordmill.building.run_file import ENTRY_DTYPE, Entries, sort_order
from recordmill.building.slices import RunSlice
from recordmill.storage.files import Bytes

# 32,768 entries (768 KiB) are looked at once; how many records a round takes is decided by their bytes
_ENTRY_STEP = 1 << 15

_OPAQUE = np.dtype((np.void, ENTRY_DTYPE.itemsize))


@dataclass(frozen=True)
class Merged:
    """The next records in order: record i is data[starts[i]:starts[i] + entries["size"][i]] of what `read` gives.

    pieces: (block, first byte, bytes) of the frames, one after the other in data.
    """

    entries: Entries
    starts: npt.NDArray[np.int64]
    pieces: Sequence[tuple[RunSlice, int, int]]

    def read(self) -> Bytes:
        """The frames, read now: a shard that begins late in its bucket has no use for those of the rounds before."""
        data = np.empty(sum(size for _, _, size in self.pieces), np.uint8)
        at = 0
        for block, start, size in self.pieces:
            block.read_frames(start, data[at : at + size])
            at += size
        return data


class _Cursor:
    """How far a block has been given out, and what of it is loaded but not yet given out."""

    def __init__(self, block: RunSlice) -> None:
        self._block = block
        self._next_entry = 0
        self._next_byte = 0
        self.entries: Entries = np.empty(0, ENTRY_DTYPE)

    @property
    def all_loaded(self) -> bool:
        return self._next_entry + len(self.entries) >= self._block.records

    @property
    def done(self) -> bool:
        return self._next_entry >= self._block.records

    def load(self, budget_bytes: int) -> None:
        """Have the entries of the next records at hand: as many as fit the budget, at least one; what is half used up
        is filled up again.
        """
        room = budget_bytes - int(self.entries["size"].sum(dtype=np.int64))
        if self.all_loaded or (len(self.entries) and room < budget_bytes // 2):
            return
        # by the block's mean size: what is read in vain is little
        likely = room * self._block.records // self._block.frames_bytes
        first = self._next_entry + len(self.entries)
        more = self._block.entries(first, min(first + min(likely + 16, _ENTRY_STEP), self._block.records))
        fitting = int(np.searchsorted(np.cumsum(more["size"], dtype=np.int64), room, side="right"))
        self.entries = _together([self.entries, more[: max(fitting, 1 - len(self.entries))]])

    def last(self) -> tuple[int, int, int]:
        entry = self.entries[-1]
        return int(entry["key"]), int(entry["file"]), int(entry["position"])

    def count_upto(self, bound: tuple[int, int, int]) -> int:
        """How many loaded records lie at or before the bound."""
        key, file, position = bound
        keys = np.ascontiguousarray(self.entries["key"])
        first = int(np.searchsorted(keys, np.uint64(key), side="left"))
        last = int(np.searchsorted(keys, np.uint64(key), side="right"))
        ties = self.entries[first:last]
        before = (ties["file"] < file) | ((ties["file"] == file) & (ties["position"] <= position))
        return first + int(np.count_nonzero(before))

    def take(self, count: int) -> tuple[Entries, tuple[RunSlice, int, int]]:
        """The next count entries, and where their frames are: (block, first byte, bytes)."""
        taken, self.entries = self.entries[:count], self.entries[count:]
        piece = self._block, self._next_byte, int(taken["size"].sum(dtype=np.int64))
        self._next_entry += count
        self._next_byte += piece[2]
        return taken, piece


def merge(blocks: Sequence[RunSlice], memory_bytes: int) -> Iterator[Merged]:
    """All records of the blocks by (key, file, position);
    what one round holds stays under memory_bytes unless one record is larger.
    """
    cursors = [_Cursor(block) for block in blocks]
    while cursors:
        for cursor in cursors:
            cursor.load(memory_bytes // len(cursors))
        bounds = [cursor.last() for cursor in cursors if not cursor.all_loaded]
        counts = [cursor.count_upto(min(bounds)) if bounds else len(cursor.entries) for cursor in cursors]
        yield _round(cursors, counts)
        cursors = [cursor for cursor in cursors if not cursor.done]


def _together(parts: Sequence[Entries]) -> Entries:
    """The parts as one array; NumPy would compare the fields' types anew for each of many small parts."""
    return np.concatenate([part.view(_OPAQUE) for part in parts]).view(ENTRY_DTYPE)


def _round(cursors: Sequence[_Cursor], counts: Sequence[int]) -> Merged:
    """The next counts[i] records of each cursor, in order."""
    taken = [cursor.take(count) for cursor, count in zip(cursors, counts, strict=True) if count]
    entries = _together([part for part, _ in taken])
    starts = np.cumsum(entries["size"], dtype=np.int64) - entries["size"]
    pieces = [piece for _, piece in taken]
    if len(taken) == 1:
        return Merged(entries, starts, pieces)
    order = sort_order(entries)
    return Merged(np.take(entries, order), starts[order], pieces)
