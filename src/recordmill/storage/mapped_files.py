"""Mapping of many files of a disk next to each other into one array."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import numpy as np

from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.errors import DataError
from recordmill.storage.archives import archive_path
from recordmill.storage.stores.address import is_remote
from recordmill.storage.stores.local import open_regular

# Linux allows a process 65,530 mappings by default. Libraries and single files need some, too.
MAX_MAPPED_TOGETHER = 49_152
_MAP_FIXED = 0x10  # The module `mmap` lacks it. Linux and macOS have the same value.
_MAP_FAILED = ctypes.c_void_p(-1).value
_map_at = ctypes.CDLL(None, use_errno=True).mmap
_map_at.restype = ctypes.c_void_p
_map_at.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_all_mapped_files: weakref.WeakSet[MappedFiles] = weakref.WeakSet()


class MappedFiles:
    """Files of a disk that are mapped next to each other into one array.

    The array has room for all files from the start. Until `map` maps a file there, its bytes are
    zeros. No file stays open. The files stay mapped as long as the array or a view of it exists.

    Attributes:
        data: uint8 [bytes]. The bytes of all files, read-only.
        begins: int64 [files]. Offset of each file in `data`, a multiple of 8.

    Args:
        room_bytes: int64 [files]. The largest size of each file.

    Raises:
        OSError: The process has too little address space.
    """

    def __init__(self, room_bytes: Int64s) -> None:
        pages = -(-room_bytes // mmap.PAGESIZE)
        ends = np.cumsum(pages) * mmap.PAGESIZE
        self.begins: Int64s = ends - pages * mmap.PAGESIZE
        self._ends: Int64s = ends
        # These pages are never written, so they take no memory.
        self._memory = mmap.mmap(
            -1, int(ends[-1]), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ
        )
        self.data: Bytes = np.frombuffer(self._memory, np.uint8)
        _all_mapped_files.add(self)

    @classmethod
    def reserve(cls, room_bytes: Int64s) -> MappedFiles | None:
        """Returns room for files.

        Returns:
            None if the process would have too many mappings, or has too little address space.
        """
        mapped = sum(len(other) for other in list(_all_mapped_files))
        if mapped + len(room_bytes) > MAX_MAPPED_TOGETHER:
            return None
        try:
            return cls(room_bytes)
        except OSError:
            return None

    @staticmethod
    def is_mappable(path: str) -> bool:
        """Returns whether `map` can map a file: not in a store or an archive."""
        return not is_remote(path) and not archive_path(path)

    def __len__(self) -> int:
        return len(self.begins)

    def map(self, ordinal: int, path: str) -> Bytes:
        """Maps a file to its place in `data`.

        Returns:
            The current content of the file, as a view of `data`.

        Raises:
            OSError: The file can't be opened or mapped.
            DataError: The file is larger than its room.
        """
        begin, end = int(self.begins[ordinal]), int(self._ends[ordinal])
        descriptor = open_regular(path)
        try:
            size = os.fstat(descriptor).st_size
            if size > end - begin:
                raise DataError(f"has {size} bytes, which is more than expected", source=path)
            if size:
                address = _map_at(
                    self.data.ctypes.data + begin,
                    size,
                    mmap.PROT_READ,
                    mmap.MAP_SHARED | _MAP_FIXED,
                    descriptor,
                    0,
                )
                if address == _MAP_FAILED:
                    code = ctypes.get_errno()
                    raise OSError(code, os.strerror(code), path)
        finally:
            os.close(descriptor)
        return self.data[begin : begin + size]

    def release_pages(self) -> None:
        """Reduces the memory of this process by the pages of the files."""
        self._memory.madvise(mmap.MADV_DONTNEED)


def release_all_pages() -> None:
    """Calls `release_pages` of all objects of the process."""
    for files in list(_all_mapped_files):
        files.release_pages()
