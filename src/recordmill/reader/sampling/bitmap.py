"""`RecordBitmap`: which of all records are read, a bit for each: their own numbers to numbers among all, and back.

A count stands before each 512 bits, so that a number is found by a search and eight words: 1.13 bits a record are held,
however many are kept.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from recordmill.base.arrays import Int64s
from recordmill.base.kernels import inlined, kernel

Words = npt.NDArray[np.uint64]

_WORDS = 8  # in a block with a count before it: 512 bits, one cache line
_1, _2, _4, _56 = (np.uint64(bits) for bits in (1, 2, 4, 56))
_M1, _M2, _M4, _H01 = (
    np.uint64(mask) for mask in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F, 0x0101010101010101)
)


class RecordBitmap:
    """Some of `total` records, by number. Not to be changed once it is made."""

    def __init__(self, words: Words, total: int) -> None:
        self.total, self._words = total, words
        self._before = _counts(words)

    @classmethod
    def of_numbers(cls, numbers: Int64s, total: int) -> RecordBitmap:
        """The records of these numbers, in any order, each in [0, total)."""
        words = empty_words(total)
        _set(np.ascontiguousarray(numbers, np.int64), words)
        return cls(words, total)

    def __len__(self) -> int:
        return int(self._before[-1])

    def at(self, numbers: Int64s) -> Int64s:
        """The numbers among all that these of the kept ones have, each in [0, len(self))."""
        numbers = np.ascontiguousarray(numbers, np.int64)
        out = np.empty_like(numbers)
        _select(numbers, self._words, self._before, out)
        return out

    def below(self, numbers: Int64s) -> Int64s:
        """How many are kept of the records before each of these among all, each in [0, total]."""
        numbers = np.ascontiguousarray(numbers, np.int64)
        out = np.empty_like(numbers)
        _rank(numbers, self._words, self._before, out)
        return out

    def mask(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """[stop - start] whether each record from start on is kept."""
        first = start // 64
        bits = np.unpackbits(self._words[first : -(-stop // 64)].view(np.uint8), bitorder="little")
        return bits[start - 64 * first : stop - 64 * first].astype(np.bool_)

    def within(self, numbers: Int64s) -> RecordBitmap:
        """Those of the kept ones that have these numbers among them."""
        return RecordBitmap.of_numbers(self.at(numbers), self.total)

    def digest(self) -> str:
        """What tells it from others."""
        return hashlib.blake2b(self._words.tobytes(), digest_size=16).hexdigest()


class BitmapBuilder:
    """A `RecordBitmap` that is filled piece by piece, in order."""

    def __init__(self, total: int) -> None:
        self._total, self._words, self._at = total, empty_words(total), 0

    def put(self, kept: npt.NDArray[np.bool_]) -> None:
        """[n] whether each of the next records is kept."""
        _set(np.flatnonzero(kept) + self._at, self._words)
        self._at += len(kept)

    def done(self) -> RecordBitmap:
        """All of them."""
        return RecordBitmap(self._words, self._total)


def empty_words(total: int) -> Words:
    """Bits of which none is set, in whole blocks."""
    return np.zeros(-(-max(total, 1) // (64 * _WORDS)) * _WORDS, np.uint64)


def _counts(words: Words) -> Int64s:
    """[blocks + 1] the bits that are set before each block."""
    counts = np.empty(len(words) // _WORDS, np.int64)
    _count(words, counts)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


@inlined
def _ones(word: np.uint64) -> np.int64:
    word = word - ((word >> _1) & _M1)
    word = (word & _M2) + ((word >> _2) & _M2)
    word = (word + (word >> _4)) & _M4
    return np.int64((word * _H01) >> _56)


@kernel
def _count(words: Words, counts: Int64s) -> None:
    for block in range(len(counts)):
        found = np.int64(0)
        for word in range(_WORDS):
            found += _ones(words[block * _WORDS + word])
        counts[block] = found


@kernel
def _set(numbers: Int64s, words: Words) -> None:
    for i in range(len(numbers)):
        number = numbers[i]
        words[number >> 6] |= _1 << np.uint64(number & 63)


@kernel
def _rank(numbers: Int64s, words: Words, before: Int64s, out: Int64s) -> None:
    for i in range(len(numbers)):
        number = numbers[i]
        at = number >> 6
        block = at // _WORDS
        found = before[block]
        for word in range(block * _WORDS, at):
            found += _ones(words[word])
        if number & 63:
            found += _ones(words[at] & ((_1 << np.uint64(number & 63)) - _1))
        out[i] = found


@kernel
def _select(numbers: Int64s, words: Words, before: Int64s, out: Int64s) -> None:
    for i in range(len(numbers)):
        low, high = 0, len(before) - 1
        while low < high - 1:  # the last block that begins at or before it
            middle = (low + high) >> 1
            if before[middle] <= numbers[i]:
                low = middle
            else:
                high = middle
        left = numbers[i] - before[low]
        word = low * _WORDS
        ones = _ones(words[word])
        while ones <= left:
            left -= ones
            word += 1
            ones = _ones(words[word])
        bits = words[word]
        for _ in range(left):
            bits &= bits - _1
        out[i] = word * 64 + _ones((bits & (~bits + _1)) - _1)
