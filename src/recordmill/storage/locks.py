"""Locks between processes of one machine, on files and folders.

The locks use `flock`, so the kernel releases a lock when its process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

_OPEN_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class LockFile:
    """An open file that can be locked and can contain a short text."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path, *, create: bool = False) -> LockFile:
        """Opens a file, and creates it if `create` is true.

        Does not wait for a pipe. Raises OSError if the path is a link.
        """
        return cls(
            os.open(path, _OPEN_FLAGS | os.O_NONBLOCK | (os.O_CREAT if create else 0), 0o666)
        )

    def acquire(self, *, wait: bool = False) -> None:
        """Acquires the exclusive lock. `close` releases it.

        Raises:
            BlockingIOError: Another process has the lock, and `wait` is false.
        """
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))

    def read(self, max_bytes: int) -> bytes:
        """Returns at most `max_bytes` of the content."""
        return os.pread(self._descriptor, max_bytes, 0)

    def write(self, text: bytes) -> None:
        """Replaces the content in a single write.

        If the old content was longer, the new content is padded with blanks to the same size.
        """
        os.pwrite(self._descriptor, text.ljust(os.fstat(self._descriptor).st_size), 0)

    def refresh(self) -> None:
        """Sets the modification time to now."""
        os.utime(self._descriptor)

    @property
    def modified_sec(self) -> float:
        """Modification time in seconds since the epoch."""
        return os.fstat(self._descriptor).st_mtime

    def is_at(self, path: Path) -> bool:
        """Returns whether `path` still refers to this file."""
        return _is_open_at(self._descriptor, path)

    def close(self) -> None:
        """Closes the file, which releases the lock."""
        os.close(self._descriptor)


@contextlib.contextmanager
def lock_folder(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Locks the folder at `path` in the `with` block.

    If the folder is replaced while this waits, the new folder is locked.

    Raises:
        BlockingIOError: Another process has the lock, and `wait` is false.
    """
    while True:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            # While this waited, the folder may have been removed and created again. Then the lock
            # is on the old one.
            if _is_open_at(descriptor, path):
                yield
                return
        finally:
            os.close(descriptor)


def _is_open_at(descriptor: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    return False
