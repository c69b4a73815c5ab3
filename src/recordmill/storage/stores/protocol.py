"""Base class of storages, and protocols of file readers and store responses."""

from __future__ import annotations

import contextlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from recordmill.base.buffers import Bytes, Int64s, allocate
from recordmill.base.errors import DataError


@dataclass(frozen=True, slots=True)
class Stat:
    """State of a file, which identifies its content.

    Two equal states mean that the file was not written in between.

    Attributes:
        mtime_ns: Modification time. 0 if there is an etag, because stores round times differently
            in different responses.
        etag: The store's identifier of the content. "" on a disk.
        ctime_ns: Time of the last change of a file on a disk, or 0 if unknown. Unlike the
            modification time, it can't be set back. Copies of a file differ in it, so comparisons
            ignore it. See `is_changed`.
    """

    size_bytes: int
    mtime_ns: int
    etag: str = ""
    ctime_ns: int = field(default=0, compare=False)

    def is_changed(self, current: Stat) -> bool:
        """Returns whether the file has been written since this state.

        Also detects changes after which the modification time was set back.
        """
        return self != current or 0 < self.ctime_ns != current.ctime_ns > 0


class Reader(Protocol):
    """An open file. Several threads may read from it."""

    def fill(self, buffer: Bytes, start: int) -> Bytes:
        """Reads from offset `start` into `buffer`.

        Returns:
            The filled part of the buffer. It is shorter than the buffer at the end of the file.
        """

    def stat(self) -> Stat:
        """Returns the current state of the file.

        In a store, this is the state of the content that is read.
        """

    def close(self) -> None:
        """Closes the file."""


class SizedFile(io.RawIOBase):
    """Base class of Python files with a known size. Reads begin at `position`."""

    def __init__(self, size: int) -> None:
        self.position, self._size = 0, size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.position = (
            offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self._size}[whence]
        )
        return self.position

    def tell(self) -> int:
        return self.position


class ReaderFile(SizedFile):
    """Python file over a reader. Owns the reader."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader.stat().size_bytes)
        self._reader = reader

    def readinto(self, buffer: Any) -> int:
        num_read = len(self._reader.fill(np.frombuffer(buffer, np.uint8), self.position))
        self.position += num_read
        return num_read

    def close(self) -> None:
        if not self.closed:
            self._reader.close()
        super().close()


class FileStorage(ABC):
    """Access to files by path.

    Each failure is an OSError with the path and a reason in `strerror`.
    """

    @abstractmethod
    def stat(self, path: str) -> Stat:
        """Returns the current state of a file."""

    @abstractmethod
    def last_known_stat(self, path: str) -> Stat:
        """Returns the state of a file when it was last read.

        On a disk, and before the first read, this is the current state.
        """

    @abstractmethod
    def open(self, path: str) -> Reader:
        """Opens a file for reading."""

    @abstractmethod
    def map(self, path: str) -> Bytes:
        """Maps a complete file as a read-only array. It uses no memory of the process."""

    def exists(self, path: str) -> bool:
        """Returns whether a file or a folder exists."""
        return self.is_file(path) or self.is_folder(path)

    @abstractmethod
    def is_file(self, path: str) -> bool:
        """Returns whether a path is a file."""

    @abstractmethod
    def is_folder(self, path: str) -> bool:
        """Returns whether a path is a folder.

        In a store, a folder exists if it contains objects.
        """

    @abstractmethod
    def list_names(self, folder: str) -> list[str]:
        """Returns the sorted names in a folder."""

    def read_file(self, path: str, max_bytes: int | None = None) -> Bytes:
        """Returns the complete current content of a file.

        In a store, a small object takes one request.

        Raises:
            DataError: The content is larger than `max_bytes`, or grows while it is read.
        """
        with contextlib.closing(self.open(path)) as reader:
            size = reader.stat().size_bytes
            check_read_limit(path, size, max_bytes)
            data = reader.fill(allocate(size, np.uint8), 0)
            if max_bytes is not None and reader.stat().size_bytes > size:
                raise DataError("grows while it is read", source=path)
            return data

    def read_range(
        self, path: str, start: int, stop: int | None, target: Bytes | None = None
    ) -> Bytes:
        """Returns bytes [start, stop) of a file. The result is shorter at the end of the file.

        Args:
            path: The file to read.
            start: Offset of the first byte.
            stop: Offset after the last byte. None means the end of the file.
            target: The array to fill, instead of a new one. Then `stop` is ignored.
        """
        with contextlib.closing(self.open(path)) as reader:
            if target is None:
                size = reader.stat().size_bytes
                stop = size if stop is None else min(stop, size)
                target = allocate(max(stop - start, 0), np.uint8)
            return reader.fill(target, start)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, Bytes]]) -> None:
        """Reads several ranges of a file, each into its own array.

        Args:
            path: The file to read.
            ranges: (offset in the file, array to fill) of each range.

        Raises:
            DataError: The file ends inside a range.
        """
        with contextlib.closing(self.open(path)) as reader:
            for start, buffer in ranges:
                if (num_read := len(reader.fill(buffer, start))) != len(buffer):
                    raise DataError(
                        f"ends at byte {start + num_read}, where {start + len(buffer)} are needed",
                        source=path,
                    )

    def read_spans(
        self,
        paths: Sequence[str],
        edges: Int64s,
        starts: Int64s,
        sizes: Int64s,
        out: Bytes,
        targets: Int64s,
    ) -> None:
        """Reads many small ranges of files to their places in an array.

        Args:
            paths: The files to read.
            edges: int64 [files + 1]. File f has the spans [edges[f], edges[f + 1]).
            starts: int64 [spans]. Offsets in the file, in ascending order. They may repeat.
            sizes: int64 [spans]. The size of each span in bytes.
            out: The array.
            targets: int64 [spans]. The offset in `out` of each span.

        Raises:
            DataError: A file ends inside a span.
        """
        for path, rows in zip(paths, map(slice, edges.tolist(), edges[1:].tolist()), strict=True):
            spans = zip(
                starts[rows].tolist(), sizes[rows].tolist(), targets[rows].tolist(), strict=True
            )
            self.read_ranges(
                path, [(start, out[target : target + size]) for start, size, target in spans]
            )

    def start_reading(self, path: str, start: int, stop: int) -> Callable[[], Bytes] | None:
        """Requests bytes [start, stop) of a file from a store.

        Returns:
            A function that waits for the bytes and returns them. None if files of this storage are
            not read in advance.
        """
        return None

    @property
    def max_prefetched(self) -> int:
        """Maximum number of files that `prefetch_start` reads in advance. 0 means none."""
        return 0

    def prefetch_start(self, path: str, file_stat: Stat) -> None:
        """Starts to read the first block of a file. Call it only if `max_prefetched` is above 0."""
        raise NotImplementedError


def check_read_limit(path: str, size: int, max_bytes: int | None) -> None:
    """Raises DataError if a file of `size` bytes has more than `max_bytes`. None means no limit."""
    if max_bytes is not None and size > max_bytes:
        raise DataError(f"has {size:,} bytes, above the {max_bytes:,} allowed", source=path)


# The keys are path, size, e_tag and last_modified (a datetime), as in obstore's ObjectMeta.
ObjectInfo = Mapping[str, Any]
