"""Rows in any order in, ascending ones out, each once: in memory, or by an SQLite database where they don't fit."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import weakref
from collections.abc import Iterator
from typing import Any

Row = tuple[Any, ...]
HELD_ROWS = 1 << 16  # 65,536: some 30 MB of files' rows
_CACHE_KIB = 16 << 10  # 16 MiB of the database's pages; the system keeps the others as it has room
_AT_ONCE = 1 << 10  # rows
_AS_NAMES = ("utf-8", "surrogateescape")  # as Python decodes names of files


class Sorter:
    """Takes rows of numbers and texts, which sort as their UTF-8 bytes do; `sorted` gives them. folder: where the
    database lies meanwhile; None: among the system's temporary files.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder, self._held = folder, list[Row]()
        self._stored: sqlite3.Connection | None = None
        self._texts: tuple[bool, ...] = ()

    @property
    def is_spilled(self) -> bool:
        """Whether some rows lie on a disk."""
        return self._stored is not None

    def add(self, row: Row) -> None:
        self._held.append(row)
        if len(self._held) >= HELD_ROWS:
            self._spill()

    def sorted(self) -> Iterator[Row]:
        """All rows, ascending; of equal ones one; once."""
        if self._stored is None:
            held, self._held = sorted(set(self._held)), []
            return iter(held)
        self._spill()
        return self._read(self._stored)

    def _spill(self) -> None:
        if not self._held:
            return
        if self._stored is None:
            self._stored = self._open(len(self._held[0]))
            self._texts = tuple(isinstance(value, str) for value in self._held[0])
        marks = ", ".join("?" * len(self._texts))
        self._held.sort()  # neighbours then go to one page
        self._stored.executemany(f"INSERT OR IGNORE INTO rows VALUES ({marks})", map(self._encoded, self._held))
        self._held = []

    def _open(self, columns: int) -> sqlite3.Connection:
        """A database with one table, whose tree has the rows in order; the file goes with this object."""
        descriptor, path = tempfile.mkstemp(prefix="sort-", dir=self._folder)
        os.close(descriptor)
        stored = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        weakref.finalize(self, _close, stored, path)
        # nobody reads the file after this process, so nothing of it need be durable, or undone
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
            stored.execute(f"PRAGMA {pragma}")
        stored.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        names = ", ".join(f"c{number}" for number in range(columns))
        stored.execute(f"CREATE TABLE rows ({names}, PRIMARY KEY ({names})) WITHOUT ROWID")
        stored.execute("BEGIN")
        return stored

    def _read(self, stored: sqlite3.Connection) -> Iterator[Row]:
        names = ", ".join(f"c{number}" for number in range(len(self._texts)))
        found = stored.execute(f"SELECT * FROM rows ORDER BY {names}")
        while some := found.fetchmany(_AT_ONCE):
            yield from map(self._decoded, some)

    def _encoded(self, row: Row) -> Row:
        """With texts as the bytes that the system has for them, which need not be UTF-8."""
        return tuple(
            [value.encode(*_AS_NAMES) if text else value for value, text in zip(row, self._texts, strict=True)]
        )

    def _decoded(self, row: Row) -> Row:
        return tuple(
            [value.decode(*_AS_NAMES) if text else value for value, text in zip(row, self._texts, strict=True)]
        )


def _close(stored: sqlite3.Connection, path: str) -> None:
    stored.close()
    with contextlib.suppress(OSError):  # the folder that it lay in may have gone first
        os.unlink(path)
