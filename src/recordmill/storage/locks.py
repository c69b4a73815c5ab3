"""Locks between the processes of one machine: a file or a folder that is open, and locked (`flock`), which the kernel
lets go when its process ends; and what such a file says.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from recordmill.storage.removal import Folder

_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class LockFile:
    """An open file in a `Folder`, no link; `close` lets go of its lock."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def create(cls, folder: Folder, name: str) -> LockFile:
        """A new one; FileExistsError if the name is taken."""
        return cls(os.open(name, _OPEN | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder.descriptor))

    @classmethod
    def open(cls, folder: Folder, name: str) -> LockFile:
        """One that is there; nothing waits for a pipe. OSError if it is a link."""
        return cls(os.open(name, _OPEN | os.O_NONBLOCK, dir_fd=folder.descriptor))

    def share(self) -> None:
        """Hold it together with others, as soon as nobody holds it alone."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def take(self) -> None:
        """Hold it alone; BlockingIOError if others hold it."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def read(self, most_bytes: int) -> bytes:
        """What it says."""
        return os.pread(self._descriptor, most_bytes, 0)

    def write(self, text: bytes) -> None:
        """Say this instead, in one step; what was longer is blanked."""
        os.pwrite(self._descriptor, text.ljust(os.fstat(self._descriptor).st_size), 0)

    def renew(self) -> None:
        """Make now the time of its last change."""
        os.utime(self._descriptor)

    @property
    def changed(self) -> float:
        """The time of its last change, in seconds."""
        return os.fstat(self._descriptor).st_mtime

    @property
    def inode(self) -> tuple[int, int]:
        """(device, inode), as `Folder.inode` has it."""
        about = os.fstat(self._descriptor)
        return about.st_dev, about.st_ino

    @property
    def is_own_file(self) -> bool:
        """Whether it is a regular file that has no other name."""
        about = os.fstat(self._descriptor)
        return stat.S_ISREG(about.st_mode) and about.st_nlink == 1

    def close(self) -> None:
        os.close(self._descriptor)


def lock_folder(folder: Folder, *, wait: bool = True) -> None:
    """Hold the folder alone until it is closed; BlockingIOError if others hold it and wait is False."""
    fcntl.flock(folder.descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


@contextlib.contextmanager
def locked(folder: Folder) -> Iterator[None]:
    """Nobody else is at work in the folder meanwhile."""
    lock_folder(folder)
    try:
        yield
    finally:
        fcntl.flock(folder.descriptor, fcntl.LOCK_UN)


@contextlib.contextmanager
def locked_by_name(path: Path) -> Iterator[None]:
    """Nobody else is at work in the folder of that name, which another may get meanwhile."""
    while True:
        with Folder.open(path) as folder:
            lock_folder(folder)
            if folder.is_at(path):
                yield
                return
