"""Storage for local disks, with reads by `pread` into NumPy arrays.

`pread` has no file position, so threads can share a file.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import tempfile
from collections.abc import Sequence
from typing import BinaryIO, cast

import numpy as np

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s
from recordmill.storage.stores.protocol import FileStorage, Stat

# Linux reads at most 2 GiB - 4 KiB per call. Calls of 1 GiB are few, and release the GIL.
MAX_READ_BYTES = 1 << 30
# 1 MiB: few calls, and little memory.
_ZEROS_BYTES = 1 << 20
# Errors of `open_regular` for folders, pipes and devices.
NOT_REGULAR_ERRNOS = (errno.EISDIR, errno.EINVAL)


def stat_from_os(result: os.stat_result) -> Stat:
    """Returns the state of a local file from the result of `os.stat`."""
    return Stat(result.st_size, result.st_mtime_ns, ctime_ns=result.st_ctime_ns)


def open_regular(path: str | os.PathLike[str]) -> int:
    """Returns a file descriptor for reading a regular file.

    Does not wait for a pipe, and never reads a device.

    Raises:
        OSError: The file can't be opened, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        raise OSError(errno.EINVAL, "is not a regular file (a pipe or a device)", os.fspath(path))
    return descriptor


class LocalReader:
    """Reader of a local file. Owns its descriptor.

    Args:
        path: The path of the file.
        descriptor: An open descriptor of the file. If None, `path` is opened. Otherwise `path` is
            only used in messages.
    """

    def __init__(self, path: str, descriptor: int | None = None) -> None:
        self._path, self._descriptor = (
            path,
            open_regular(path) if descriptor is None else descriptor,
        )

    def fill(self, buffer: Bytes, start: int) -> Bytes:
        num_read = 0
        while num_read < len(buffer):
            try:
                count = os.preadv(
                    self._descriptor,
                    [buffer[num_read : num_read + MAX_READ_BYTES]],
                    start + num_read,
                )
            except OSError as error:  # it does not name the file
                raise OSError(error.errno, error.strerror, self._path) from None
            if count == 0:
                return buffer[:num_read]
            num_read += count
        return buffer

    def stat(self) -> Stat:
        return stat_from_os(os.fstat(self._descriptor))

    def close(self) -> None:
        os.close(self._descriptor)


def reserve_space(file: BinaryIO, size_bytes: int) -> None:
    """Extends an empty file to a size, and reserves the disk space.

    Linux reserves the blocks. Systems without `posix_fallocate`, such as macOS, write zeros.

    Raises:
        OSError: The disk is full. The error does not name the file.
    """
    if hasattr(os, "posix_fallocate"):
        if size_bytes:
            os.posix_fallocate(file.fileno(), 0, size_bytes)
        return
    for start in range(0, size_bytes, _ZEROS_BYTES):
        file.write(bytes(min(_ZEROS_BYTES, size_bytes - start)))
    file.flush()


def create_unnamed_file() -> BinaryIO:
    """Creates an unbuffered temporary file without a name, which disappears when it is closed."""
    return cast(BinaryIO, tempfile.TemporaryFile(prefix="recordmill-", buffering=0))


def map_open_file(file: BinaryIO) -> Bytes:
    """Maps an open file as a read-only array, which outlives the file.

    An empty file becomes an empty array.
    """
    if os.fstat(file.fileno()).st_size == 0:  # can't be mapped
        return np.empty(0, np.uint8)
    return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


class LocalStorage(FileStorage):
    """Storage for local disks. See `FileStorage`."""

    def stat(self, path: str) -> Stat:
        return stat_from_os(os.stat(path))

    def last_known_stat(self, path: str) -> Stat:
        return self.stat(path)

    def open(self, path: str) -> LocalReader:
        return LocalReader(path)

    def map(self, path: str) -> Bytes:
        with os.fdopen(open_regular(path), "rb") as file:
            return map_open_file(file)

    def read_spans(
        self,
        paths: Sequence[str],
        edges: Int64s,
        starts: Int64s,
        sizes: Int64s,
        out: Bytes,
        targets: Int64s,
    ) -> None:
        encoded_paths = b"".join(os.fsencode(path) + b"\0" for path in paths)
        num_read = native.read_spans(
            np.frombuffer(encoded_paths, np.uint8), edges, starts, sizes, targets, out
        )
        if num_read < len(starts):
            # The slow way raises the error with its reason.
            file = int(np.searchsorted(edges, num_read, "right")) - 1
            super().read_spans(paths[file:], edges[file:], starts, sizes, out, targets)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def list_names(self, folder: str) -> list[str]:
        return sorted(os.listdir(folder))
