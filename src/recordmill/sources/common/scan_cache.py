"""Cache of records that a plan has parsed, until the build reads them.

A plan looks at every record before the schema is known, because any record may change it. The plan
parses the records during this, with the schema that fits the records so far. If this is also the
final schema, the parsed records are valid, and nothing is parsed twice. Other records, and records
that did not fit into the cache, are read again from their input.

The records are kept in files of the run, which the system mostly has in its page cache. Records
that are too few for a file stay in memory as long as there is room. (Large batches that stayed in
memory among the short-lived objects of a plan took three times their size.)
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

# (ordinal of the file, offset of the first record)
CacheKey = tuple[int, int]

# Estimates of the memory that Python and Arrow need in addition to the values.
_REJECT_MEMORY_BYTES = 512  # the texts of one reject, and their objects
_COLUMN_MEMORY_BYTES = 512  # an Arrow array of any length
_BATCH_MEMORY_BYTES = 2048
# 64 KiB: parsing less again is as quick as writing and reading it.
_MIN_FILE_BYTES = 64 << 10


@dataclass(frozen=True)
class CachedReject:
    """A record that can't be used.

    Attributes:
        ordinal: Number of the record, counted from the first one of its batch.
        line: Line number in the counting of the kind, if it differs from `ordinal`.
        reason: Short name of the reason. Rejects are counted by it.
        message: Message to the user.
    """

    ordinal: int
    line: int
    reason: str
    message: str


@dataclass(frozen=True)
class CachedBatch:
    """Consecutive records that were parsed with one schema.

    Attributes:
        batch: The records. None if they are the next ones in a file.
        missing_ordinals: int64, the numbers without a record. They count from the first record of
            the batch.
        rejects: The records between them that can't be used.
        num_positions: Number of positions that the batch covers: records and rejects, or lines.
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
        """Creates the batch of records with the given numbers.

        Args:
            batch: The records.
            ordinals: The number of each record within the batch, ascending.
            rejects: The rejects between them.
            num_positions: Number of positions that the batch covers.
        """
        # The usual case, without the cost of a set operation.
        is_complete = len(ordinals) == num_positions
        missing_ordinals = (
            np.empty(0, np.int64)
            if is_complete
            else np.setdiff1d(np.arange(num_positions), ordinals, assume_unique=True)
        )
        return cls(batch, missing_ordinals, rejects, num_positions)

    @property
    def size_bytes(self) -> int:
        """Approximate memory of the batch in bytes."""
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
        """Returns the int64 positions of the records, if the batch begins at `first_position`."""
        return np.delete(
            np.arange(first_position, first_position + self.num_positions), self.missing_ordinals
        )


@dataclass(frozen=True)
class CachedRecords:
    """Batches of consecutive records that were parsed with one schema.

    Attributes:
        schema: The schema.
        batches: The batches, in order.
        path: The file with the records of batches without their own. "" if there is no such batch.
    """

    schema: Hashable
    batches: Sequence[CachedBatch]
    path: str = ""

    def __iter__(self) -> Iterator[CachedBatch]:
        """Yields the batches with their records.

        The file is removed as soon as it is open.
        """
        arrow_batches = consume_batches(self.path) if self.path else iter(())
        for cached_batch in self.batches:
            yield (
                replace(cached_batch, batch=next(arrow_batches))
                if cached_batch.batch is None
                else cached_batch
            )

    def drop(self) -> None:
        """Removes the file, if it exists."""
        if self.path:
            remove_file(self.path, missing_ok=True)


class ScanCache:
    """Parsed records by their place in the input, within a memory limit.

    Several threads may use the cache at once. A pickled copy is empty.

    Args:
        max_bytes: Memory limit of the batches of all threads.
        folder: Folder for files with the records of most batches. "" keeps all of them in memory.
    """

    def __init__(self, max_bytes: int = 0, folder: str = "") -> None:
        self.folder, self.free_bytes = folder, max_bytes
        self._lock = threading.Lock()
        self._records: dict[CacheKey, CachedRecords] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # The files and locks belong to this process.
        return (ScanCache, ())

    def reserve(self, size_bytes: int) -> bool:
        """Reserves memory and returns whether it was free.

        A negative size releases memory.
        """
        with self._lock:
            if size_bytes > self.free_bytes:
                return False
            self.free_bytes -= size_bytes
            return True

    def put(self, key: CacheKey, records: CachedRecords) -> None:
        """Stores records under their key."""
        self._records[key] = records

    def drop_invalid(self, is_valid: Callable[[Any], bool]) -> None:
        """Removes the records with an invalid schema and ends the filling of the cache.

        Args:
            is_valid: Returns whether records that were parsed with a schema can be used.
        """
        for key, records in list(self._records.items()):
            if not is_valid(records.schema):
                self._records.pop(key).drop()
        # No memory is free any more, so no further records are stored.
        self.free_bytes = 0

    def contains(self, key: CacheKey) -> bool:
        """Returns whether the cache contains the records that begin at `key`."""
        return key in self._records

    def take(self, key: CacheKey) -> Iterable[CachedBatch] | None:
        """Removes and returns the records that begin at `key`, or None."""
        return self._records.pop(key, None)


class ScanCacheWriter:
    """Collects the batches of consecutive records for a `ScanCache`.

    If one batch does not fit, all of them are discarded.

    Attributes:
        is_active: False after the batches have been discarded. Callers need not parse more records
            then.
    """

    def __init__(self, cache: ScanCache) -> None:
        self._cache, self._batches = cache, list[CachedBatch]()
        self._schema: Hashable = None
        self._reserved_bytes = 0
        self._writer: BatchWriter | None = None
        self.is_active = cache.free_bytes > 0

    def add(self, batch: CachedBatch, schema: Hashable = None) -> None:
        """Adds the next batch.

        A batch with another schema than the earlier ones discards all of them.
        """
        try:
            if (self._batches and schema != self._schema) or not (
                self._store(batch) or self._reserve(batch)
            ):
                self.discard()
        except OSError:  # the cache can do without the disk; others report the error
            self.discard()
        self._schema = schema

    def discard(self) -> None:
        """Drops all batches and releases their memory."""
        self._cache.reserve(-self._reserved_bytes)
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()
            remove_file(self._writer.path, missing_ok=True)
        self._batches, self._reserved_bytes, self._writer, self.is_active = [], 0, None, False

    def store(self, key: CacheKey) -> None:
        """Puts the batches, which begin at `key`, into the cache."""
        try:
            if self._writer is not None:
                self._writer.close()
        except OSError:  # some file systems report a full disk only when the file is closed
            self.discard()
        if self._batches:
            path = "" if self._writer is None else self._writer.path
            self._cache.put(key, CachedRecords(self._schema, self._batches, path))

    def _reserve(self, batch: CachedBatch) -> bool:
        """Keeps a batch if its memory is free, and returns whether it is."""
        if not self._cache.reserve(batch.size_bytes):
            return False
        self._reserved_bytes += batch.size_bytes
        self._batches.append(batch)
        return True

    def _store(self, cached_batch: CachedBatch) -> bool:
        """Writes a batch to the file, and returns whether it did.

        A small batch starts no file. Later small batches are added to an existing one.

        Raises:
            OSError: The disk is full, for example.
        """
        if not self._cache.folder:
            return False
        is_worth_a_file = self._writer is not None or cached_batch.batch.nbytes >= _MIN_FILE_BYTES
        # The file holds the records, so only the remainder of the batch counts as memory.
        if not is_worth_a_file or not self._reserve(replace(cached_batch, batch=None)):
            return False
        if self._writer is None:
            self._writer = BatchWriter(
                join(self._cache.folder, f"kept-{uuid.uuid4().hex}"), cached_batch.batch.schema
            )
        self._writer.write(cached_batch.batch)
        return True
