"""Rows with a 64-bit hash in, the same rows by ranges of their hashes out, the lowest first: in memory, and in files
sorted by hash of what is more. Each range fits into memory, since hashes are spread evenly.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.storage.files import create_file, read_range, write_all
from recordmill.storage.folders import join, make_folder, remove_tree

Rows = npt.NDArray[np.void]  # of a dtype with a field `hash`, uint64

# Parts of the hashes whose begin is known in each file. With n rows, m bytes of memory and r bytes a row, a part has
# n * r / _PARTS bytes and there are n * r / m files with 4 * _PARTS bytes of begins: 12 MB each for 10^9 rows of 24
# bytes and 16 MB.
_PARTS = 2048
_SHIFT = np.uint64(64 - 11)


class HashRows:
    """Takes rows from several threads; `ranges` gives them. folder: a new one, for files that hold what is more than
    most_bytes; `close` removes it. compact: makes fewer rows of some, such as by adding up those of equal hashes.
    """

    def __init__(
        self,
        folder: str,
        dtype: np.dtype[np.void],
        most_bytes: int,
        compact: Callable[[Rows], Rows] = lambda rows: rows,
    ) -> None:
        self._folder, self._dtype, self._most, self._compact = folder, dtype, most_bytes, compact
        self._held: list[Rows] = []
        self._bytes = 0
        self._files: list[tuple[str, npt.NDArray[np.uint32]]] = []  # path, [_PARTS + 1] rows before each part
        self._lock = threading.Lock()

    @property
    def files(self) -> int:
        """How many files hold rows that found no room."""
        return len(self._files)

    def add(self, rows: Rows) -> None:
        """Some more rows."""
        with self._lock:
            self._held.append(rows)
            self._bytes += rows.nbytes
            if self._bytes > self._most:
                self._spill()

    def ranges(self) -> Iterator[Rows]:
        """All rows once, those of each range of hashes together, in no order within it; the lowest range first."""
        if not self._files:
            held, self._held = self._held, []
            yield self._together(held)
            return
        self._spill()
        sizes = sum((np.diff(begins.astype(np.int64)) for _, begins in self._files), np.zeros(_PARTS, np.int64))
        ends = np.cumsum(sizes) * self._dtype.itemsize
        first = 0
        while first < _PARTS:
            before = int(ends[first - 1]) if first else 0
            last = max(int(np.searchsorted(ends, before + self._most, side="right")), first + 1)
            yield self._together([self._read(path, begins, first, last) for path, begins in self._files])
            first = last

    def close(self) -> None:
        """Remove the files."""
        if self._files:
            remove_tree(self._folder, ignore_errors=True)

    def _together(self, parts: list[Rows]) -> Rows:
        return self._compact(np.concatenate([np.empty(0, self._dtype), *parts]))

    def _read(self, path: str, begins: npt.NDArray[np.uint32], first: int, last: int) -> Rows:
        size = self._dtype.itemsize
        start, stop = int(begins[first]) * size, int(begins[last]) * size
        rows: Rows = read_range(path, start, stop).view(self._dtype) if stop > start else np.empty(0, self._dtype)
        return rows

    def _spill(self) -> None:
        """Write what is held to a file, by hash."""
        rows: Any = self._together(self._held)
        self._held, self._bytes = [], 0
        if not len(rows):
            return
        rows = rows[np.argsort(rows["hash"])]
        if not self._files:
            make_folder(self._folder)
        path = join(self._folder, uuid.uuid4().hex)
        with create_file(path) as file:
            write_all(file, rows.view(np.uint8))
        begins = np.searchsorted(rows["hash"] >> _SHIFT, np.arange(_PARTS + 1, dtype=np.uint64))
        self._files.append((path, begins.astype(np.uint32)))
