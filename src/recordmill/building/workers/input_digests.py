"""Digests of input files: each worker writes those that it found into OUT, and nobody holds all of them. A step that
sees all files reads the digests of some after those of others.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.building.workers.shared_files import Shared, SharedFolder
from recordmill.storage.digest import BLAKE3

_BYTES = 32
_KEPT = 4  # parts in each process


class Digests(Mapping[int, str]):
    """Ordinal of a file to its digest, 40 bytes each."""

    def __init__(self, given: Mapping[int, str]) -> None:
        self._files = np.array(sorted(given), np.int64)
        self._values = np.zeros((len(given), _BYTES), np.uint8)
        for at, file in enumerate(self._files.tolist()):
            digits = given[file].removeprefix(f"{BLAKE3}:")
            self._values[at] = np.frombuffer(bytes.fromhex(digits), np.uint8)

    def to_arrays(self) -> Mapping[str, npt.NDArray[Any]]:
        """The files, ascending, and the digest of each."""
        return {"files": self._files, "values": self._values}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], job_folder: SharedFolder) -> Digests:
        """What `to_arrays` gave."""
        found = cls({})
        found._files, found._values = arrays["files"], arrays["values"]
        return found

    def __getitem__(self, file: int) -> str:
        at = int(np.searchsorted(self._files, file))
        if at == len(self._files) or self._files[at] != file:
            raise KeyError(file)
        return f"{BLAKE3}:{self._values[at].tobytes().hex()}"

    def __iter__(self) -> Iterator[int]:
        return iter(self._files.tolist())

    def __len__(self) -> int:
        return len(self._files)


@dataclass(frozen=True)
class DigestPart:
    """Digests that one worker found, as they travel: of some of the files [first, last)."""

    first: int
    last: int
    found: Shared[Digests]


def put_digests(job_folder: SharedFolder, found: Mapping[int, str]) -> DigestPart | None:
    """Put them where every worker can read them; None for none."""
    return DigestPart(min(found), max(found) + 1, job_folder.share("digests", Digests(found))) if found else None


@functools.lru_cache(maxsize=_KEPT)
def _read(shared: Shared[Digests]) -> Digests:
    return shared.read()


class DigestList(Mapping[int, str]):
    """The digests of many parts, of which no file is in two; a part is read when one of its files is asked for. Who
    asks for them in order reads each once.
    """

    def __init__(self, parts: Iterable[DigestPart]) -> None:
        self._parts = sorted(parts, key=lambda part: part.first)
        self._firsts = [part.first for part in self._parts]

    def to_arrays(self) -> Mapping[str, npt.NDArray[Any]]:
        """The files of each part, and the name and digest of what has theirs."""
        ends = np.array([(part.first, part.last) for part in self._parts], np.int64).reshape(-1, 2)
        names = np.array([(part.found.name, part.found.sha256) for part in self._parts], np.str_).reshape(-1, 2)
        return {"ends": ends, "names": names}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], job_folder: SharedFolder) -> DigestList:
        """What `to_arrays` gave, in that job_folder."""
        each = zip(arrays["ends"].tolist(), arrays["names"].tolist(), strict=True)
        return cls(
            DigestPart(first, last, Shared(job_folder, name, sha256, Digests)) for (first, last), (name, sha256) in each
        )

    def __getitem__(self, file: int) -> str:
        at = bisect.bisect_right(self._firsts, file) - 1
        if at < 0 or file >= self._parts[at].last:
            raise KeyError(file)
        return _read(self._parts[at].found)[file]

    def __iter__(self) -> Iterator[int]:
        for part in self._parts:
            yield from _read(part.found)

    def __len__(self) -> int:
        return sum(len(_read(part.found)) for part in self._parts)

    def without(self, files: int, others: Container[int]) -> Iterator[int]:
        """Those of the files [0, files) that have none, neither here nor among the others, ascending."""
        before = 0
        for part in self._parts:
            found = _read(part.found)
            yield from (at for at in range(before, part.last) if at not in found and at not in others)
            before = part.last
        yield from (at for at in range(before, files) if at not in others)


@dataclass(frozen=True)
class Either(Mapping[int, str]):
    """What one of two mappings has, that share no file."""

    one: Mapping[int, str]
    other: Mapping[int, str]

    def __getitem__(self, file: int) -> str:
        return self.one[file] if file in self.one else self.other[file]

    def __iter__(self) -> Iterator[int]:
        yield from self.one
        yield from self.other

    def __len__(self) -> int:
        return len(self.one) + len(self.other)
