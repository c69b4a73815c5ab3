"""Blocks of one shard, each sorted, merged into one sorted stream, in bounded memory however long the blocks are.

Each round loads the next records of every block, as many as fit; all that lie at or before the smallest last key loaded can't be
preceded by anything that comes later, so they are sorted together and given out. This is a k-way merge whose step is an array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recordmill.shards.run_file import ENTRY_DTYPE, Block, Entries, sort_order
from recordmill.storage.files import Bytes

_ENTRY_STEP = 1 << 15  # 32,768 entries (768 KiB) are looked at once; how many records a round takes is decided by their bytes


@dataclass(frozen=True)
class Merged:
    """The next records in order: record i is data[starts[i]:starts[i] + entries["size"][i]]."""

    entries: Entries
    data: Bytes
    starts: npt.NDArray[np.int64]


class _Cursor:
    """How far a block has been given out, and what of it is loaded but not yet given out."""

    def __init__(self, block: Block) -> None:
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
        """Have the entries of the next records at hand: as many as fit the budget, at least one."""
        if len(self.entries) == 0:
            last = min(self._next_entry + _ENTRY_STEP, self._block.records)
            entries = self._block.entries(self._next_entry, last)
            fitting = int(np.searchsorted(np.cumsum(entries["size"], dtype=np.int64), budget_bytes, side="right"))
            self.entries = entries[: max(fitting, 1)]

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

    def take(self, count: int) -> tuple[Entries, Bytes]:
        taken, self.entries = self.entries[:count], self.entries[count:]
        size = int(taken["size"].sum(dtype=np.int64))
        data = self._block.frames(self._next_byte, self._next_byte + size)
        self._next_entry += count
        self._next_byte += size
        return taken, data


def merge(blocks: Sequence[Block], memory_bytes: int) -> Iterator[Merged]:
    """All records of the blocks by (key, file, position); what one round holds stays under memory_bytes unless one record is larger."""
    cursors = [_Cursor(block) for block in blocks]
    while cursors:
        for cursor in cursors:
            cursor.load(memory_bytes // len(cursors))
        bounds = [cursor.last() for cursor in cursors if not cursor.all_loaded]
        counts = [cursor.count_upto(min(bounds)) if bounds else len(cursor.entries) for cursor in cursors]
        yield _round([cursor.take(count) for cursor, count in zip(cursors, counts, strict=True) if count])
        cursors = [cursor for cursor in cursors if not cursor.done]


def _round(taken: list[tuple[Entries, Bytes]]) -> Merged:
    entries = np.concatenate([part for part, _ in taken])
    data = taken[0][1] if len(taken) == 1 else np.concatenate([part for _, part in taken])
    ends = np.cumsum(entries["size"], dtype=np.int64)
    starts = ends - entries["size"]
    if len(taken) == 1:
        return Merged(entries, data, starts)
    order = sort_order(entries)
    return Merged(entries[order], data, starts[order])
