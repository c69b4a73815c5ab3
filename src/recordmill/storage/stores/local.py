"""The local disk as a `Storage`: files by descriptor, `pread` straight into NumPy arrays (no seek, safe from many
threads), mapped files.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

from recordmill.base.arrays import Bytes
from recordmill.storage.stores.protocol import Stat

READ_BYTES = 1 << 30  # Linux moves at most 2 GiB - 4 KiB a call; 1 GiB keeps calls few and the GIL released


class LocalReader:
    """A descriptor."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def fill(self, into: Bytes, start: int) -> Bytes:
        done = 0
        while done < len(into):
            count = os.preadv(self._descriptor, [into[done : done + READ_BYTES]], start + done)
            if count == 0:
                return into[:done]
            done += count
        return into

    def stat(self) -> Stat:
        about = os.fstat(self._descriptor)
        return Stat(about.st_size, about.st_mtime_ns)

    def close(self) -> None:
        os.close(self._descriptor)


class LocalStorage:
    """See `Storage`."""

    def stat(self, path: str) -> Stat:
        about = os.stat(path)
        return Stat(about.st_size, about.st_mtime_ns)

    last_seen = stat

    def open(self, path: str) -> LocalReader:
        return LocalReader(path)

    def map(self, path: str) -> Bytes:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                return np.empty(0, np.uint8)
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def names(self, folder: str) -> list[str]:
        return sorted(os.listdir(folder))
