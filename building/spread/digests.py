"""Digests of input files as 33 bytes each, not as text: what the steps hold that see those of all files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recordmill.building.spread.place import Shared
from recordmill.storage.digest import ALGORITHMS

_BYTES = 32


class Digests(Mapping[int, str]):
    """Ordinal of a file to its digest, of files [0, files)."""

    def __init__(self, files: int, given: Mapping[int, str] | None = None) -> None:
        self._values = np.zeros((files, _BYTES), np.uint8)
        self._algorithms = np.zeros(files, np.uint8)  # 0: there is none
        self.add(given or {})

    def add(self, found: Mapping[int, str]) -> None:
        """Take these, in place of what is there."""
        for at, text in found.items():
            algorithm, _, digits = text.partition(":")
            self._values[at] = np.frombuffer(bytes.fromhex(digits), np.uint8)
            self._algorithms[at] = 1 + ALGORITHMS.index(algorithm)

    def without(self, others: Collection[int]) -> npt.NDArray[np.int64]:
        """The files that have none, neither here nor among the others."""
        missing = np.flatnonzero(self._algorithms == 0)
        return np.array([at for at in missing.tolist() if at not in others], np.int64) if others else missing

    def __getitem__(self, at: int) -> str:
        if at not in self:
            raise KeyError(at)
        return f"{ALGORITHMS[self._algorithms[at] - 1]}:{self._values[at].tobytes().hex()}"

    def __contains__(self, at: object) -> bool:
        return isinstance(at, int) and 0 <= at < len(self._algorithms) and bool(self._algorithms[at])

    def __iter__(self) -> Iterator[int]:
        return iter(np.flatnonzero(self._algorithms).tolist())

    def __len__(self) -> int:
        return int(np.count_nonzero(self._algorithms))


@dataclass(frozen=True, eq=False)
class FarDigests(Mapping[int, str]):
    """Digests that lie in OUT, and are loaded by whoever asks for one."""

    shared: Shared[Digests]

    def __getitem__(self, at: int) -> str:
        return self.shared.load()[at]

    def __contains__(self, at: object) -> bool:
        return at in self.shared.load()

    def __iter__(self) -> Iterator[int]:
        return iter(self.shared.load())

    def __len__(self) -> int:
        return len(self.shared.load())
