"""Values of small chunks that wait until there are enough of them for a pass: one over 4,096 values takes hardly longer
than one over 60. What is counted of them does not depend on how they came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base.arrays import Bytes, Int64s
from recordmill.base.siphash import U64
from recordmill.statistics.value_sketch import TEXT_BYTES, gather_texts

CountTexts = Callable[..., None]  # hashes, keys, sizes, data, starts, ends


class PendingNumbers:
    """Up to `most` numbers of one dtype, in memory of their own, which `count` takes together."""

    def __init__(self, most: int, count: Callable[..., object]) -> None:
        self._most, self._count, self._size = most, count, 0
        self._room: npt.NDArray[Any] | None = None

    def add(self, values: npt.NDArray[Any]) -> None:
        """Counts these, [values], now or later."""
        if self._size + len(values) > self._most:
            self.flush()
        if len(values) >= self._most:
            self._count(values)
            return
        if self._room is None or self._room.dtype != values.dtype:
            self.flush()
            self._room = np.empty(self._most, values.dtype)
        self._room[self._size : self._size + len(values)] = values
        self._size += len(values)

    def flush(self) -> None:
        """Count those that wait."""
        if self._size and self._room is not None:
            some, self._size = self._room[: self._size], 0
            self._count(some)


class PendingTexts:
    """Up to `most` texts: their hashes, the keys of their records, their sizes, and as many first bytes as are kept."""

    def __init__(self, most: int, count: CountTexts) -> None:
        self._most, self._count, self._size = most, count, 0
        self._numbers: tuple[U64, U64, Int64s, Int64s] | None = None  # [most] hashes, keys, sizes; where texts begin
        self._data = np.empty(0, np.uint8)

    def add(self, hashes: U64, keys: U64, data: Bytes, starts: Int64s, ends: Int64s) -> None:
        """Counts the texts data[starts[i]:ends[i]], now or later. hashes, keys: [texts]."""
        count = len(hashes)
        if self._size + count > self._most:
            self.flush()
        if count >= self._most:
            self._count(hashes, keys, ends - starts, data, starts, ends)
            return
        if self._numbers is None:
            most = self._most
            self._numbers = (
                np.empty(most, np.uint64), np.empty(most, np.uint64), np.empty(most, np.int64),
                np.zeros(most + 1, np.int64),
            )  # fmt: skip
            self._data = np.empty(most * (TEXT_BYTES + 1), np.uint8)  # touched as far as it is used
        first, last = self._size, self._size + count
        for room, values in zip(self._numbers, (hashes, keys, ends - starts), strict=False):
            room[first:last] = values
        offsets, gathered = gather_texts(data, starts, ends)
        begin = int(self._numbers[3][first])
        self._numbers[3][first : last + 1] = offsets + begin
        self._data[begin : begin + len(gathered)] = gathered
        self._size = last

    def flush(self) -> None:
        """Count those that wait."""
        if self._size and self._numbers is not None:
            size, self._size = self._size, 0
            hashes, keys, sizes, places = self._numbers
            self._count(hashes[:size], keys[:size], sizes[:size], self._data, places[:size], places[1 : size + 1])
