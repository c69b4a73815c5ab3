"""Temporary files without names, for decompressed content that is read in any order.

A `Spool` has a few lanes. A lane is one temporary file that grows. A thread borrows a lane, appends
a complete file and returns the lane. So the number of descriptors does not depend on the number of
decompressed files.

A forked child reads the lanes of its parent and appends to lanes of its own. A child that is being
spawned receives the descriptors.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from multiprocessing import context, reduction
from typing import Any

import numpy as np

from recordmill.base.buffers import Bytes
from recordmill.base.errors import DataError, RecordmillError
from recordmill.base.lru import LruSlot
from recordmill.base.sizes import format_size
from recordmill.base.threads import ForkSafeLock
from recordmill.storage.compression import ByteStream
from recordmill.storage.direct_io import DISK_FULL_ERRNOS
from recordmill.storage.disk_files import write_all
from recordmill.storage.files import MAPPED_FILES, create_unnamed_file, map_open_file


class Lane:
    """One temporary file. One thread at a time may append, and any thread may read."""

    def __init__(self) -> None:
        self._file = create_unnamed_file()
        self.size_bytes = 0
        self._mapped: LruSlot[Bytes] = LruSlot(MAPPED_FILES)
        weakref.finalize(self, self._file.close)

    def __getstate__(self) -> Any:
        # Descriptors can only be passed on while a child is being spawned.
        if context.get_spawning_popen() is None:
            raise TypeError("a temporary file can't be pickled")
        return reduction.DupFd(self._file.fileno()), self.size_bytes

    def __setstate__(self, state: Any) -> None:
        descriptor, self.size_bytes = state
        self._file = os.fdopen(descriptor.detach(), "r+b", buffering=0)
        self._mapped = LruSlot(MAPPED_FILES)
        weakref.finalize(self, self._file.close)

    def align(self) -> int:
        """Pads the file with zeros to a full page, and returns its size.

        The next content begins at this offset.
        """
        self.truncate(-(-self.size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        return self.size_bytes

    def append(self, data: Bytes) -> None:
        """Writes bytes at the end.

        Raises:
            OSError: The disk is full, or there is another error of the disk.
        """
        self.size_bytes += write_all(self._file, data)

    def truncate(self, size_bytes: int) -> None:
        """Sets the size. Bytes that are added are zeros."""
        os.ftruncate(self._file.fileno(), size_bytes)
        self._file.seek(size_bytes)
        self.size_bytes = size_bytes

    def read(self, begin: int, end: int) -> Bytes:
        """Returns bytes [begin, end) as a read-only view of the mapped file."""
        if begin == end:
            return np.empty(0, np.uint8)
        # The file may have grown since it was mapped.
        mapped = self._mapped.get(
            lambda: map_open_file(self._file), lambda mapped: len(mapped) >= end
        )
        return mapped[begin:end]


class Spool:
    """Lanes that threads borrow."""

    def __init__(self) -> None:
        self._free: list[Lane] = []
        self._process = os.getpid()
        self._spooled_bytes = self._spooled_files = 0

    def __reduce__(self) -> tuple[object, ...]:
        # Another process has lanes of its own.
        return Spool, ()

    @contextlib.contextmanager
    def lane(self) -> Iterator[Lane]:
        """Lends a lane, which is a new one if all others are in use."""
        with _lock:
            if self._process != os.getpid():
                # The parent still appends to its lanes.
                self._process, self._free = os.getpid(), []
            lane = self._free.pop() if self._free else None
        lane = Lane() if lane is None else lane
        try:
            yield lane
        finally:
            with _lock:
                self._free.append(lane)

    @contextlib.contextmanager
    def append_file(self, lane: Lane, name: str) -> Iterator[int]:
        """Appends one file to a lane inside the `with` block. An error removes it again.

        Args:
            name: The name of the file for messages.

        Yields:
            The begin of the file in the lane.

        Raises:
            RecordmillError: There is no space left.
        """
        begin = lane.align()
        try:
            yield begin
        except BaseException as error:
            file_bytes = lane.size_bytes - begin
            lane.truncate(begin)
            if isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS:
                raise _no_space_error(
                    f"{name} takes more than {format_size(file_bytes)} inflated, after "
                    f"{format_size(self._spooled_bytes)} of {self._spooled_files:,} other files"
                ) from None
            raise
        with _lock:
            self._spooled_bytes += lane.size_bytes - begin
            self._spooled_files += 1


# Lives as long as the process, as a `ForkSafeLock` must.
_lock = ForkSafeLock()


def check_space(compressed_bytes: int, num_files: int) -> None:
    """Raises RecordmillError if the temporary folder is too small even for compressed files."""
    status = os.statvfs(tempfile.gettempdir())
    if status.f_bavail * status.f_frsize < compressed_bytes:
        raise _no_space_error(
            f"{num_files:,} files have {format_size(compressed_bytes)} even before they are inflated"
        )


def _no_space_error(reason: str) -> RecordmillError:
    """Returns the error for a temporary folder without enough space."""
    return RecordmillError(
        f"No space left in TMPDIR ({tempfile.gettempdir()}): {reason}. Set TMPDIR to a folder with "
        "more room, or build shards once: `recordmill build tfrecord`."
    )


class SpoolingStream(ByteStream):
    """A stream that writes all bytes that are read from it to a lane.

    Args:
        stream: The stream to read.
        lane: Receives the bytes.
    """

    def __init__(self, stream: ByteStream, lane: Lane) -> None:
        self._stream, self._lane = stream, lane

    @property
    def error(self) -> DataError | None:  # type: ignore[override]
        return self._stream.error

    def fill(self, buffer: Bytes) -> int:
        count = self._stream.fill(buffer)
        self._lane.append(buffer[:count])
        return count
