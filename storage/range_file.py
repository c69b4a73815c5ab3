"""A file as Arrow's C++ readers take it, which seek and read in it: from a disk as it is, from a store by ranges."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.storage.files import is_remote, map_file, storage_of
from recordmill.storage.stores.protocol import Reader


class _RangeFile(io.RawIOBase):
    def __init__(self, reader: Reader) -> None:
        self._reader, self._at, self._size = reader, 0, reader.stat().size_bytes

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, into: Any) -> int:
        got = len(self._reader.fill(np.frombuffer(into, np.uint8), self._at))
        self._at += got
        return got

    def close(self) -> None:
        if not self.closed:
            self._reader.close()
        super().close()


def range_file(path: str) -> pa.NativeFile:
    """The file, to be read from its start."""
    return _of_store(path) if is_remote(path) else pa.OSFile(path, "rb")


def mapped_file(path: str) -> pa.NativeFile:
    """The file, to be read here and there: what is on a disk is mapped."""
    return _of_store(path) if is_remote(path) else pa.BufferReader(pa.py_buffer(map_file(path)))


def _of_store(path: str) -> pa.NativeFile:
    return pa.PythonFile(_RangeFile(storage_of(path).open(path)), mode="r")
