"""What every storage can do: `FileStorage` for the names, `Reader` for the bytes of one file, as a file of Python's by
`ReaderFile`; and what is asked of a store, of any kind: `Connection`.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from recordmill.base.buffers import Bytes


@dataclass(frozen=True, slots=True)
class Stat:
    """The identity of a file's content: equal before and after means that nobody wrote to it in between.

    etag: what a store calls this content, in which case mtime_ns is 0: stores round the time in one answer and not in
    another. Empty on a disk. ctime_ns: when a disk changed anything of it, which nobody can set back as mtime_ns can
    be; 0 where that is not known. It is no part of what files are compared by, since it differs between copies: see
    `is_changed`.
    """

    size_bytes: int
    mtime_ns: int
    etag: str = ""
    ctime_ns: int = field(default=0, compare=False)

    def is_changed(self, current: Stat) -> bool:
        """Returns whether the file was written to since, also by what has set its time back."""
        return self != current or 0 < self.ctime_ns != current.ctime_ns > 0


class Reader(Protocol):
    """One file that is open; many threads may read from it."""

    def fill(self, buffer: Bytes, start: int) -> Bytes:
        """Write the file's bytes from `start` on into the array; gives the part of it that the file could fill."""

    def stat(self) -> Stat:
        """The file's state now; in a store, that of the content which is read."""

    def close(self) -> None:
        """Nothing more will be read."""


class SizedFile(io.RawIOBase):
    """A file of so many bytes, which is read from where it was sought to, `at`."""

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
    """A file that a reader reads, which it closes."""

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


class FileStorage(Protocol):
    """Files by their paths; whatever fails is an OSError that names the path and says why in its `strerror`."""

    def stat(self, path: str) -> Stat:
        """The file's state, asked for now."""

    def last_known_stat(self, path: str) -> Stat:
        """Its state when it was read last: on a disk, and where it was not read yet, that of now."""

    def open(self, path: str) -> Reader:
        """The file, to be read."""

    def map(self, path: str) -> Bytes:
        """Maps the whole file: a read-only array that takes no memory of the process's own, empty of an empty file."""

    def exists(self, path: str) -> bool:
        """Returns whether something is there: a file or a folder."""

    def is_file(self, path: str) -> bool:
        """Returns whether it is a file."""

    def is_folder(self, path: str) -> bool:
        """Returns whether files lie below that name."""

    def list_names(self, folder: str) -> list[str]:
        """The names of what is in the folder, sorted."""


ObjectInfo = Mapping[
    str, Any
]  # of an object: path, size, e_tag, last_modified (datetime), as obstore's ObjectMeta has them


class Response(Protocol):
    """An object, or a range of it, that comes."""

    @property
    def meta(self) -> ObjectInfo:
        """What the content that comes is known by."""

    def bytes(self) -> Any:
        """All of it."""

    def stream(self, min_chunk_size: int) -> Iterable[Any]:
        """Yields the content in chunks, as they come."""


class Connection(Protocol):
    """Requests to a store, each by itself; what they raise, `client.told` says in a sentence."""

    max_copy_bytes: int | None  # the largest object that `name` takes; None: any

    def head(self, key: str) -> ObjectInfo:
        """Returns what the object is now."""

    def probe(self, key: str) -> None:
        """Read a byte: the answer says more of a refusal than that to `head`."""

    def get(self, key: str, byte_range: tuple[int, int] | None = None) -> Response:
        """The object, or its bytes [start, stop)."""

    def list_pages(self, key: str, start_after: str = "") -> Iterator[Sequence[ObjectInfo]]:
        """Yields all objects below that name, and others that begin so, some at a time; after: only what follows it."""

    def list_keys(self, key: str) -> list[str]:
        """Keys of what is in the folder: objects and folders, which may end in a slash."""

    def put(self, key: str, data: bytes) -> None:
        """Make or replace a small object."""

    def create(self, key: str, data: bytes) -> bool:
        """Make a small object unless it is there; whether it was made."""

    def upload(
        self, key: str, data: str | Iterator[bytes], part_bytes: int, concurrency: int
    ) -> None:
        """Make or replace an object of a file of this machine, or of what comes, by parts of which several may be under
        way. An error of what comes is raised, and there is no object then.
        """

    def delete(self, keys: Sequence[str], root: str) -> None:
        """Remove objects, and the folders below the root that are empty then, where there are folders; some kinds of
        stores raise FileNotFoundError for one that is gone.
        """

    def move_or_copy(self, key: str, target: str) -> None:
        """Make or replace an object of what another holds, which may be gone then; may be asked again, by several."""
