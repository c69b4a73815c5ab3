"""What every storage can do: `Storage` for the names, `Reader` for the bytes of one file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Stat:
    """What a file is known by: equal before and after means that nobody wrote to it in between.

    etag: what a store calls this content, in which case mtime_ns is 0: stores round the time in one answer and not in
    another. Empty on a disk.
    """

    size_bytes: int
    mtime_ns: int
    etag: str = ""


class Reader(Protocol):
    """One file that is open; many threads may read from it."""

    def fill(self, into: Bytes, start: int) -> Bytes:
        """Write the file's bytes from `start` on into the array; gives the part of it that the file could fill."""

    def stat(self) -> Stat:
        """The file's state now; in a store, that of the content which is read."""

    def close(self) -> None:
        """Nothing more will be read."""


class Storage(Protocol):
    """Files by their paths; whatever fails is an OSError that names the path and says why in its `strerror`."""

    def stat(self, path: str) -> Stat:
        """The file's state, asked for now."""

    def last_seen(self, path: str) -> Stat:
        """Its state when it was read last: on a disk, and where it was not read yet, that of now."""

    def open(self, path: str) -> Reader:
        """The file, to be read."""

    def map(self, path: str) -> Bytes:
        """The whole file as a read-only array that takes no memory of the process's own; an empty one for an empty
        file.
        """

    def exists(self, path: str) -> bool:
        """Whether something is there: a file or a folder."""

    def is_file(self, path: str) -> bool:
        """Whether it is a file."""

    def is_folder(self, path: str) -> bool:
        """Whether files lie below that name."""

    def names(self, folder: str) -> list[str]:
        """The names of what is in the folder, sorted."""
