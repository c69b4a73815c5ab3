"""Caches records that a plan has parsed while it scanned its files, until the build reads them: in files of the run,
which the system mostly has in its cache, and, if they are too few for a file, in memory, as long as there is room.
(Large pieces that stayed in memory among all that goes and comes in a plan took three times their size of it.)

A plan looks at every record before the schema is known, since any record may change it. It parses them meanwhile by
the schema that was right so far. If that is the schema in the end, the parsed records are those that reading would
give, and nothing is parsed twice. Others, and those that found no room, are read again from their input.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.storage.arrow_files import BatchWriter, consume_batches
from recordmill.storage.folders import join, remove_file

CacheKey = tuple[int, int]  # (ordinal of the file, byte at which the records begin)

_REJECT_MEMORY_BYTES = 512  # of memory: the texts of one reject, and what holds them
_COLUMN_MEMORY_BYTES = 512  # of memory: an array of any length, beside its values
_BATCH_MEMORY_BYTES = 2048
_MIN_FILE_BYTES = 64 << 10  # 64 KiB: less is parsed again as quickly as it is written and read


@dataclass(frozen=True)
class CachedReject:
    """A record that can't be used.

    Attributes:
        ordinal: The record's number, counted from its piece's first.
        line: The line as the kind counts it, where that is another number.
        reason: The reason by which rejects are counted.
        message: The message for people.
    """

    ordinal: int
    line: int
    reason: str
    message: str


@dataclass(frozen=True)
class CachedBatch:
    """Consecutive records, as they were parsed by some schema.

    Attributes:
        batch: The records; None: they are the next ones of a file.
        missing_ordinals: int64, the numbers, counted from the first of the piece, that its records don't have.
        rejects: The records between them that can't be used.
        num_positions: How many records there are, rejects included, or as lines are counted.
    """

    batch: pa.RecordBatch
    missing_ordinals: npt.NDArray[np.int64]
    rejects: tuple[CachedReject, ...]
    num_positions: int

    @classmethod
    def from_ordinals(
        cls,
        batch: pa.RecordBatch,
        ordinals: npt.NDArray[np.int64],
        rejects: tuple[CachedReject, ...],
        num_positions: int,
    ) -> CachedBatch:
        """Returns the piece of records of these numbers, ascending."""
        is_complete = len(ordinals) == num_positions
        missing_ordinals = (
            np.empty(0, np.int64)
            if is_complete
            else np.setdiff1d(np.arange(num_positions), ordinals, assume_unique=True)
        )
        return cls(batch, missing_ordinals, rejects, num_positions)

    @property
    def size_bytes(self) -> int:
        """Bytes that it takes of the memory, roughly."""
        size = (
            int(self.missing_ordinals.nbytes)
            + _REJECT_MEMORY_BYTES * len(self.rejects)
            + _BATCH_MEMORY_BYTES
        )
        return (
            size
            if self.batch is None
            else size + _COLUMN_MEMORY_BYTES * self.batch.num_columns + self.batch.nbytes
        )

    def positions(self, first_position: int) -> npt.NDArray[np.int64]:
        """Returns int64 [rows], if the piece's first record has that position."""
        return np.delete(
            np.arange(first_position, first_position + self.num_positions), self.missing_ordinals
        )


@dataclass(frozen=True)
class CachedRecords:
    """Pieces of consecutive records, parsed by that schema. path: the file of those without a batch, or ""."""

    schema: Hashable
    batches: Sequence[CachedBatch]
    path: str = ""

    def __iter__(self) -> Iterator[CachedBatch]:
        """Yields the pieces; the file is removed as soon as it is open."""
        arrow_batches = consume_batches(self.path) if self.path else iter(())
        for cached_batch in self.batches:
            yield (
                replace(cached_batch, batch=next(arrow_batches))
                if cached_batch.batch is None
                else cached_batch
            )

    def drop(self) -> None:
        """Removes the file, if there is one."""
        if self.path:
            remove_file(self.path, missing_ok=True)


class ScanCache:
    """Pieces of records by where they begin, within a number of bytes of memory. A copy in another process is empty.

    Args:
        max_bytes: The memory that the pieces may take, of all threads together.
        folder: The folder for files, which hold the batches of most pieces; "": all stay in memory.
    """

    def __init__(self, max_bytes: int = 0, folder: str = "") -> None:
        self.folder, self.free_bytes = folder, max_bytes
        self._lock = threading.Lock()
        self._records: dict[CacheKey, CachedRecords] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (ScanCache, ())

    def reserve(self, size_bytes: int) -> bool:
        """Takes so many bytes of the memory, if they are free; a negative number gives them back."""
        with self._lock:
            if size_bytes > self.free_bytes:
                return False
            self.free_bytes -= size_bytes
            return True

    def put(self, key: CacheKey, records: CachedRecords) -> None:
        """Stores the pieces of the records that begin at that place."""
        self._records[key] = records

    def drop_invalid(self, is_valid: Callable[[Any], bool]) -> None:
        """Forgets records that were parsed by a schema that is not right; none are stored from here on."""
        for key, records in list(self._records.items()):
            if not is_valid(records.schema):
                self._records.pop(key).drop()
        self.free_bytes = 0

    def contains(self, key: CacheKey) -> bool:
        """Returns whether the records that begin there are stored."""
        return key in self._records

    def take(self, key: CacheKey) -> Iterable[CachedBatch] | None:
        """Removes and returns the pieces of the records that begin there; None if they are to be read."""
        return self._records.pop(key, None)


class ScanCacheWriter:
    """Collects the pieces of consecutive records for a `ScanCache`; all are given up when one finds no room."""

    def __init__(self, cache: ScanCache) -> None:
        self._cache, self._batches = cache, list[CachedBatch]()
        self._schema: Hashable = None
        self._reserved_bytes = 0
        self._writer: BatchWriter | None = None
        self.is_active = cache.free_bytes > 0

    def add(self, batch: CachedBatch, schema: Hashable = None) -> None:
        """Adds the next piece; one that was parsed by another schema than those before ends it."""
        try:
            if (self._batches and schema != self._schema) or not (
                self._store(batch) or self._reserve(batch)
            ):
                self.discard()
        except OSError:  # a full disk is reported where the disk is needed
            self.discard()
        self._schema = schema

    def discard(self) -> None:
        """Drops all pieces."""
        self._cache.reserve(-self._reserved_bytes)
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
            remove_file(self._writer.path, missing_ok=True)
        self._batches, self._reserved_bytes, self._writer, self.is_active = [], 0, None, False

    def store(self, key: CacheKey) -> None:
        """Puts the pieces, which begin at that place, into the cache."""
        try:
            if self._writer is not None:
                self._writer.close()
        except OSError:  # whether there was room is known when the file is closed
            self.discard()
        if self._batches:
            path = "" if self._writer is None else self._writer.path
            self._cache.put(key, CachedRecords(self._schema, self._batches, path))

    def _reserve(self, batch: CachedBatch) -> bool:
        """Takes memory for a piece, if there is room."""
        if not self._cache.reserve(batch.size_bytes):
            return False
        self._reserved_bytes += batch.size_bytes
        self._batches.append(batch)
        return True

    def _store(self, cached_batch: CachedBatch) -> bool:
        """Writes a piece to the file of those before, or to a new one if it is worth one; OSError: the disk does not
        take it.
        """
        if not self._cache.folder:
            return False
        is_worth_a_file = self._writer is not None or cached_batch.batch.nbytes >= _MIN_FILE_BYTES
        if not is_worth_a_file or not self._reserve(replace(cached_batch, batch=None)):
            return False
        if self._writer is None:
            self._writer = BatchWriter(
                join(self._cache.folder, f"kept-{uuid.uuid4().hex}"), cached_batch.batch.schema
            )
        self._writer.write(cached_batch.batch)
        return True
