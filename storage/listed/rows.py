"""Rows on a disk: a long list of tuples, in blocks that are read as they are asked for, so that memory does not grow
with the list but by 8 bytes a block.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
import threading
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO

Row = tuple[Any, ...]
BLOCK_ROWS = 1 << 10  # some 100 KiB of files' rows
_KEPT = 8  # blocks in memory: threads read neighbours


class StoredRows:
    """Rows in a file of this process's own, which goes when nobody holds them any more; another process that unpickles
    them reads them while they are there.
    """

    def __init__(self, path: str, starts: Sequence[int], length: int, rows: int = BLOCK_ROWS) -> None:
        self._path, self._starts, self._length, self._rows = path, starts, length, rows
        self._open()

    def _open(self) -> None:
        self._lock, self._kept = threading.Lock(), OrderedDict[int, list[Row]]()

    @classmethod
    def write(cls, rows: Iterable[Row], folder: str | None = None, block_rows: int = BLOCK_ROWS) -> StoredRows:
        """Put the rows into a new file in that folder, or among the system's temporary ones."""
        descriptor, path = tempfile.mkstemp(prefix="rows-", dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                starts, length = _write(file, iter(rows), block_rows)
        except BaseException:
            _remove(path)
            raise
        found = cls(path, starts, length, block_rows)
        weakref.finalize(found, _remove, path)
        return found

    def __len__(self) -> int:
        return self._length

    def row(self, at: int) -> Row:
        """The row of that number."""
        block = at // self._rows
        with self._lock:
            if (rows := self._kept.get(block)) is None:
                rows = self._kept[block] = self._read(block)
                if len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            else:
                self._kept.move_to_end(block)
        return rows[at - block * self._rows]

    def __iter__(self) -> Iterator[Row]:
        for block in range(len(self._starts) - 1):
            yield from self._read(block)

    def _read(self, block: int) -> list[Row]:
        start, stop = self._starts[block], self._starts[block + 1]
        with open(self._path, "rb", buffering=0) as file:
            rows: list[Row] = pickle.loads(os.pread(file.fileno(), stop - start, start))
        return rows

    def __getstate__(self) -> Any:
        return self._path, self._starts, self._length, self._rows

    def __setstate__(self, state: Any) -> None:
        self._path, self._starts, self._length, self._rows = state
        self._open()


def _write(file: BinaryIO, rows: Iterator[Row], block_rows: int) -> tuple[array[int], int]:
    """(where each block begins, and the last one ends; how many rows they are)"""
    starts, length = array("q", [0]), 0
    while some := list(islice(rows, block_rows)):
        starts.append(starts[-1] + file.write(pickle.dumps(some, pickle.HIGHEST_PROTOCOL)))
        length += len(some)
    return starts, length


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):  # the folder that it lay in may have gone first
        os.unlink(path)
