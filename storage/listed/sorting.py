"""An external sort: rows in any order in, ascending ones out; of as many as there are, so many lie in memory as fit."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from recordmill.storage.listed.rows import Row, StoredRows

HELD_ROWS = 1 << 16  # 65,536: some 30 MB of files' rows
FAN_IN = 64  # runs that are merged at once, a block of each in memory
_BLOCK_ROWS = 1 << 8  # of a run


class Sorter:
    """Takes rows; `sorted` gives them, equal ones as often as they came. folder: where runs lie meanwhile; None: among
    the system's temporary files.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder, self._held, self._levels = folder, list[Row](), list[list[StoredRows]]()

    @property
    def is_spilled(self) -> bool:
        """Whether some rows lie on a disk."""
        return bool(self._levels)

    def add(self, row: Row) -> None:
        self._held.append(row)
        if len(self._held) >= HELD_ROWS:
            self._spill()

    def sorted(self) -> Iterator[Row]:
        """All rows, ascending; once."""
        self._held.sort()
        held, self._held = self._held, []
        return heapq.merge(held, *(run for level in self._levels for run in level)) if self._levels else iter(held)

    def _spill(self) -> None:
        self._held.sort()
        self._put(StoredRows.write(self._held, self._folder, _BLOCK_ROWS), 0)
        self._held = []

    def _put(self, run: StoredRows, level: int) -> None:
        """Keep a run among those of its level, which become one of the next where they are too many."""
        if level == len(self._levels):
            self._levels.append([])
        self._levels[level].append(run)
        if len(self._levels[level]) >= FAN_IN:
            runs, self._levels[level] = self._levels[level], []
            self._put(StoredRows.write(heapq.merge(*runs), self._folder, _BLOCK_ROWS), level + 1)
