"""Digests of input files: each worker writes those that it found into OUT, and nobody holds all of them. A step that
sees all files reads the digests of some after those of others.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from recordmill.building.spread.place import Place, Shared
from recordmill.storage.digest import BLAKE3
from recordmill.storage.listed.table import Table

_BYTES = 32
_KEPT = 4  # parts, or blocks of a plan's own, in each process


class Digests(Mapping[int, str]):
    """Ordinal of a file to its digest, 40 bytes each."""

    def __init__(self, given: Mapping[int, str]) -> None:
        self._files = np.array(sorted(given), np.int64)
        self._values = np.zeros((len(given), _BYTES), np.uint8)
        for at, file in enumerate(self._files.tolist()):
            digits = given[file].removeprefix(f"{BLAKE3}:")
            self._values[at] = np.frombuffer(bytes.fromhex(digits), np.uint8)

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


def put_digests(place: Place, found: Mapping[int, str]) -> DigestPart | None:
    """Put them where every worker can read them; None for none."""
    return DigestPart(min(found), max(found) + 1, place.share("digests", Digests(found))) if found else None


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


class Told(Table[str | None]):
    """The digests that a plan has, one a file: None where it has none."""

    def __init__(self, digests: Mapping[int, str], files: int) -> None:
        self._digests, self._files = digests, files

    def __len__(self) -> int:
        return self._files

    def _item(self, at: int) -> str | None:
        return self._digests.get(at)


@dataclass(frozen=True, eq=False)
class FarDigests(Mapping[int, str]):
    """Digests of a plan that lie in OUT as a list, one a file, of which `count` are known."""

    told: Table[str | None]
    count: int

    def __getitem__(self, at: int) -> str:
        digest = self.told[at] if 0 <= at < len(self.told) else None
        if digest is None:
            raise KeyError(at)
        return digest

    def __iter__(self) -> Iterator[int]:
        return (at for at, digest in enumerate(self.told) if digest is not None)

    def __len__(self) -> int:
        return self.count
