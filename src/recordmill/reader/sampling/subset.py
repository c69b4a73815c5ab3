"""`RecordSubset`: the records that are read of all, as their ascending numbers: own numbers to numbers among all, and
back. A number takes 4 bytes, of data sets of more than 2^32 records 8.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from recordmill.base.arrays import Int64s


class RecordSubset:
    """Some of `total` records, by number. Not to be changed once it is made.

    Args:
        numbers: ascending, each in [0, total).
        total: all records.
    """

    def __init__(self, numbers: npt.NDArray[np.integer], total: int) -> None:
        self.total = total
        self._numbers = numbers.astype(np.uint32 if total <= 1 << 32 else np.int64)

    @classmethod
    def of_numbers(cls, numbers: Int64s, total: int) -> RecordSubset:
        """Returns the records of these numbers, in any order, each in [0, total)."""
        return cls(np.unique(numbers), total)

    def __len__(self) -> int:
        return len(self._numbers)

    def at(self, numbers: Int64s) -> Int64s:
        """Returns the numbers among all that these of the kept ones have, each in [0, len(self))."""
        return self._numbers[numbers].astype(np.int64)

    def below(self, numbers: Int64s) -> Int64s:
        """Returns how many are kept of the records before each of these among all, each in [0, total]."""
        return np.searchsorted(self._numbers, np.minimum(numbers, self.total).astype(np.int64))

    def mask(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Returns for each record of [start, stop) whether it is kept."""
        first, last = self.below(np.array([start, stop])).tolist()
        kept = np.zeros(stop - start, np.bool_)
        kept[self._numbers[first:last].astype(np.int64) - start] = True
        return kept

    def within(self, numbers: Int64s) -> RecordSubset:
        """Returns those of the kept ones that have these numbers among them."""
        return RecordSubset.of_numbers(self.at(numbers), self.total)

    def digest(self) -> str:
        """Returns a digest that tells it from others."""
        return hashlib.blake2b(self._numbers.tobytes(), digest_size=16).hexdigest()
