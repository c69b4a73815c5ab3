"""`RecordBitmap`: which of all records are read, a bit for each: their own numbers to numbers among all, and back.

A count stands before each 512 bits, so that a number is found by a search and eight words: 1.13 bits a record are held,
however many are kept.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.arrays import Int64s

Words = npt.NDArray[np.uint64]

_WORDS = 8  # in a block with a count before it: 512 bits, one cache line


class RecordBitmap:
    """Some of `total` records, by number. Not to be changed once it is made."""

    def __init__(self, words: Words, total: int) -> None:
        self.total, self._words = total, words
        self._before = _counts(words)

    @classmethod
    def of_numbers(cls, numbers: Int64s, total: int) -> RecordBitmap:
        """The records of these numbers, in any order, each in [0, total)."""
        words = empty_words(total)
        native.set_bits(np.ascontiguousarray(numbers, np.int64), words)
        return cls(words, total)

    def __len__(self) -> int:
        return int(self._before[-1])

    def at(self, numbers: Int64s) -> Int64s:
        """The numbers among all that these of the kept ones have, each in [0, len(self))."""
        numbers = np.ascontiguousarray(numbers, np.int64)
        out = np.empty_like(numbers)
        native.select_bits(numbers, self._words, self._before, out)
        return out

    def below(self, numbers: Int64s) -> Int64s:
        """Returns how many records are kept before each of these numbers among all, each in [0, total]."""
        numbers = np.ascontiguousarray(numbers, np.int64)
        out = np.empty_like(numbers)
        native.rank_bits(numbers, self._words, self._before, out)
        return out

    def mask(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """[stop - start] whether each record from start on is kept."""
        first = start // 64
        bits = np.unpackbits(self._words[first : -(-stop // 64)].view(np.uint8), bitorder="little")
        return bits[start - 64 * first : stop - 64 * first].astype(np.bool_)

    def within(self, numbers: Int64s) -> RecordBitmap:
        """Returns the kept records that have these numbers among the kept ones."""
        return RecordBitmap.of_numbers(self.at(numbers), self.total)

    def digest(self) -> str:
        """Returns the digest of the bits."""
        return hashlib.blake2b(self._words.tobytes(), digest_size=16).hexdigest()


class BitmapBuilder:
    """A `RecordBitmap` that is filled piece by piece, in order."""

    def __init__(self, total: int) -> None:
        self._total, self._words, self._at = total, empty_words(total), 0

    def put(self, kept: npt.NDArray[np.bool_]) -> None:
        """[n] whether each of the next records is kept."""
        native.set_bits(np.flatnonzero(kept) + self._at, self._words)
        self._at += len(kept)

    def done(self) -> RecordBitmap:
        """All of them."""
        return RecordBitmap(self._words, self._total)


def empty_words(total: int) -> Words:
    """Bits of which none is set, in whole blocks."""
    return np.zeros(-(-max(total, 1) // (64 * _WORDS)) * _WORDS, np.uint64)


def _counts(words: Words) -> Int64s:
    """[blocks + 1] the bits that are set before each block, and all of them."""
    before = np.empty(len(words) // _WORDS + 1, np.int64)
    native.count_bits(words, before)
    return before
