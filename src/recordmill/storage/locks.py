"""Locks between the processes of one machine: a file or a folder that is open, and locked (`flock`), which the kernel
lets go when its process ends; and what such a file says.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

_OPEN_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class LockFile:
    """An open file, no link; `close` lets go of its lock."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path, *, create: bool = False) -> LockFile:
        """Opens it, or makes it; nothing waits for a pipe. OSError if it is a link."""
        return cls(
            os.open(path, _OPEN_FLAGS | os.O_NONBLOCK | (os.O_CREAT if create else 0), 0o666)
        )

    def acquire(self, *, wait: bool = False) -> None:
        """Holds it alone; BlockingIOError if another holds it, and is not to be waited for."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))

    def read(self, max_bytes: int) -> bytes:
        """Returns what it says."""
        return os.pread(self._descriptor, max_bytes, 0)

    def write(self, text: bytes) -> None:
        """Replaces what it says, in one step; what was longer is blanked."""
        os.pwrite(self._descriptor, text.ljust(os.fstat(self._descriptor).st_size), 0)

    def refresh(self) -> None:
        """Makes now the time of its last change."""
        os.utime(self._descriptor)

    @property
    def modified_sec(self) -> float:
        """The time of its last change, in seconds."""
        return os.fstat(self._descriptor).st_mtime

    def is_at(self, path: Path) -> bool:
        """Returns True if the path leads to it now."""
        return _is_open_at(self._descriptor, path)

    def close(self) -> None:
        """Lets go of it."""
        os.close(self._descriptor)


@contextlib.contextmanager
def lock_folder(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Keeps others out of the folder of that name, which another may get meanwhile.

    Raises:
        BlockingIOError: Others are at work in it, and nobody is to wait for them.
    """
    while True:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_open_at(descriptor, path):
                yield
                return
        finally:
            os.close(descriptor)


def _is_open_at(descriptor: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    return False
