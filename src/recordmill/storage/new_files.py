"""A folder that fills with many small new files, whose names come from data: `NewFiles` makes each in it and nowhere
else, and never twice.

Whether a name is free is asked of the file system alone, by exclusive creation, so memory does not grow with the files.
Nothing is synced file by file, which would cost milliseconds for each: `sync` makes all of them durable at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from recordmill.storage.files import Bytes, write_all

CREATED, TAKEN, UNFIT = "created", "taken", "unfit"

_UNFIT = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.ENOTDIR, errno.ELOOP)  # how file systems refuse a name


class NewFiles:
    """Files below `path`, a folder that this makes;
    names are relative, with `/`, and neither absolute nor with `..` (a ValueError).
    """

    def __init__(self, path: str | Path) -> None:
        os.mkdir(path)
        self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def create(self, name: str, data: bytes | memoryview | Bytes) -> str:
        """Write a new file; `taken` if the name has one or is a folder, `unfit` if the file system can't have it, say
        since `a` of `a/b` is a file.

        Raises:
            OSError: anything else, such as no space.
        """
        parts = name.split("/")
        if not all(parts) or ".." in parts or "\0" in name:
            raise ValueError(f"{name!r} is no name of a file below a folder")
        try:
            descriptor = self._open(name, parts)
        except FileExistsError:
            return TAKEN
        except OSError as error:
            if error.errno in _UNFIT:
                return UNFIT
            raise
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            write_all(file, data)
        return CREATED

    def sync(self) -> None:
        """Make all files and their names durable."""
        _sync_file_system(self._folder)

    def close(self) -> None:
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1

    def _open(self, name: str, parts: Sequence[str]) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(name, flags, 0o666, dir_fd=self._folder)
        except FileNotFoundError:  # a folder is not there yet
            for end in range(1, len(parts)):
                with contextlib.suppress(FileExistsError):
                    os.mkdir("/".join(parts[:end]), dir_fd=self._folder)
            return os.open(name, flags, 0o666, dir_fd=self._folder)


def _sync_file_system(descriptor: int) -> None:
    """Write what the descriptor's file system holds back in memory: syncfs(2) on Linux, which is one journal commit;
    all file systems elsewhere.
    """
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        os.sync()
    elif syncfs(descriptor):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
