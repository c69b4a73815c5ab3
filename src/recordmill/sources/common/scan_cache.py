"""Cache of records that a plan has parsed, until the build reads them.

A plan must look at every record before the schema is known, because any record may change it. While
it does this, it already parses the records, with a schema that fits the records so far. If this
schema is also the final one, the parsed records are valid and the build need not parse them again.
If not, or if the records did not fit into the cache, the build reads them from their input.

Parsed records are kept in files of the run, which the system mostly has in its page cache. Records
that are too few for a file stay in memory as long as there is room. Larger batches do not stay in
memory: among the short-lived objects of a plan, they took three times their size.
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

from recordmill.base.errors import Fault
from recordmill.storage.arrow_files import BatchWriter, consume_batches
from recordmill.storage.folders import join, remove_file

# (index of the file, offset of the first record in it)
CacheKey = tuple[int, int]

# Estimates of the memory that Python and Arrow need in addition to the values.
_REJECT_MEMORY_BYTES = 512  # the texts of one reject, and their objects
_COLUMN_MEMORY_BYTES = 512  # an Arrow array of any length
_BATCH_MEMORY_BYTES = 2048
# 64 KiB: parsing less than this again is as quick as writing it to a file and reading it.
_MIN_FILE_BYTES = 64 << 10


@dataclass(frozen=True)
class CachedReject:
    """The fault of a record, and its place relative to its batch.

    The place in the file is unknown until the build has counted the records before the batch.

    Attributes:
        ordinal: Number of the record, counted from the first one of its batch.
        line: Line number of the record, if the kind counts lines separately from records. Otherwise
            the same as `ordinal`.
        fault: The fault.
    """

    ordinal: int
    line: int
    fault: Fault


@dataclass(frozen=True)
class CachedBatch:
    """Consecutive records of a file that were parsed with one schema.

    The batch covers consecutive positions of the file. A position has a record, a reject or, for a
    blank line, neither.

    Attributes:
        batch: The records. None if they are stored in the file of `CachedRecords`.
        missing_ordinals: int64, the positions without a record, counted from the first one of the
            batch.
        rejects: The rejects at some of these positions.
        num_positions: Number of positions that the batch covers.
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
        """Creates a batch from its records and their numbers.

        Args:
            batch: The records.
            ordinals: The position of each record, counted from the first position of the batch,
                ascending.
            rejects: The rejects among the other positions.
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
        """Approximate memory of the batch. Records that are stored in a file do not count."""
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
        """Returns the position of each record in its file, as int64.

        Args:
            first_position: Position of the first record or reject of the batch.
        """
        return np.delete(
            np.arange(first_position, first_position + self.num_positions), self.missing_ordinals
        )


@dataclass(frozen=True)
class CachedRecords:
    """Batches of consecutive records that were parsed with one schema.

    Attributes:
        schema: The schema, or another object that describes how the records were parsed.
        batches: The batches, in order.
        path: The file with the records of all batches that have None as their `batch`. "" if there
            are none.
    """

    schema: Hashable
    batches: Sequence[CachedBatch]
    path: str = ""

    def __iter__(self) -> Iterator[CachedBatch]:
        """Yields the batches with their records.

        The file is removed as soon as it is open, so the records can be read only once.
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
        folder: Folder for files with the records of larger batches. If "", all batches stay in
            memory.

    Attributes:
        folder: The argument `folder`.
        free_bytes: Memory that is not reserved.
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
        """Removes records that can't be used with the final schema.

        After this call, the cache stores no further records.

        Args:
            is_valid: Function of `CachedRecords.schema`. Returns whether such records can be used.
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
    """Collects batches of consecutive records for a `ScanCache`.

    The writer puts all or none of them into the cache. If one batch does not fit, all of them are
    discarded, because the build reads a range completely from the cache or completely from its
    file.

    Args:
        cache: Receives the records.

    Attributes:
        is_active: Whether the batches are still collected. If not, callers need not parse further
            records.
    """

    def __init__(self, cache: ScanCache) -> None:
        self._cache, self._batches = cache, list[CachedBatch]()
        self._schema: Hashable = None
        self._reserved_bytes = 0
        self._writer: BatchWriter | None = None
        self.is_active = cache.free_bytes > 0

    def add(self, batch: CachedBatch, schema: Hashable = None) -> None:
        """Adds the next batch.

        All batches are discarded if it was parsed with another schema than the earlier ones, if the
        memory is exhausted, or if the disk is full.
        """
        try:
            if (self._batches and schema != self._schema) or not (
                self._store(batch) or self._reserve(batch)
            ):
                self.discard()
        except OSError:  # the build works without a cache, and reports the disk if it needs it
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
        """Puts the collected batches into the cache.

        Args:
            key: (index of the file, offset of the first record of the first batch).
        """
        try:
            if self._writer is not None:
                self._writer.close()
        except OSError:  # some file systems report a full disk only when the file is closed
            self.discard()
        if self._batches:
            path = "" if self._writer is None else self._writer.path
            self._cache.put(key, CachedRecords(self._schema, self._batches, path))

    def _reserve(self, batch: CachedBatch) -> bool:
        """Adds a batch if there is room for it, and returns whether there is."""
        if not self._cache.reserve(batch.size_bytes):
            return False
        self._reserved_bytes += batch.size_bytes
        self._batches.append(batch)
        return True

    def _store(self, cached_batch: CachedBatch) -> bool:
        """Adds a batch with its records in the file, and returns whether it did.

        The batch is not added if there is no folder or no room for the rest of it. A small batch is
        only added to an existing file, and does not start one.

        Raises:
            OSError: The file can't be written, for example because the disk is full.
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
