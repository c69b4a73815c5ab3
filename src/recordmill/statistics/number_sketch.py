"""Counts the numbers of a feature (`NumberSketch`). A sketch is a function of the multiset of the values alone, and two
of them add up to that of all values, bit by bit: sums are exact integers, and values are counted in bins.

A bin is a value while there are at most `most_bins` of them, so that quantiles and histograms are exact. Beyond that,
values of a range (of the same sign and exponent, and about as large) that agree in all but their lowest bits are one
bin. Each range drops as few bits as leave it a number of bins that is the same for all ranges, so that a few values of
other sizes leave those that are close together apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.siphash import U64

_UNIT = 1074  # sums of floats are whole multiples of 2^-1074, their squares' of 2^-2148
_AT_ONCE = 1 << 16  # values
_DIGIT_BITS = 22
_DIGIT = (1 << _DIGIT_BITS) - 1
_SIGN = np.uint64(1 << 63)
_RANGE_SHIFT = np.uint64(65 - native.BIN_RANGES.bit_length())


class NumberSketch:
    """Counts of numbers.

    Attributes:
        is_int: The values are integers, whose sums are integers too.
        most_bins: How many bins are kept.
        total: The sum of the finite values, in units of 2^-1074 for floats.
        squares: The sum of their squares, in units of 2^-2148 for floats.
        cap: How many bins a range may have.
        levels: [BIN_RANGES] how many low bits of the keys of each range are dropped; None: each bin is one value.
        keys: [bins] ascending, the bits of float64 values in the order of these.
        counts: [bins].
    """

    def __init__(self, is_int: bool, most_bins: int = 8192) -> None:
        self.is_int, self.most_bins = is_int, most_bins
        self.zeros = self.nans = self.plus_infinities = self.minus_infinities = 0
        self.least: int | float | None = None  # of the finite values
        self.most: int | float | None = None
        self.total = self.squares = 0
        self.cap = most_bins
        self.levels: Bytes | None = None
        self.keys = np.empty(0, np.uint64)
        self.counts = np.empty(0, np.int64)

    @property
    def finite(self) -> int:
        """Number of values that are neither infinite nor NaN."""
        return int(self.counts.sum())

    @property
    def count(self) -> int:
        """Number of values that there are."""
        return self.finite + self.nans + self.plus_infinities + self.minus_infinities

    def add(self, values: npt.NDArray[Any]) -> None:
        """Counts these numbers, [values] of any dtype that features have."""
        for first in range(0, len(values), _AT_ONCE):
            some = values[first : first + _AT_ONCE]
            if self.is_int:
                self._add_ints(some)
            else:
                self._add_floats(np.ascontiguousarray(some, np.float64))

    def _add_floats(self, values: npt.NDArray[np.float64]) -> None:
        facts = native.FloatFacts(least=math.inf, most=-math.inf)
        keys = np.empty(len(values), np.uint64)
        sums, squares = np.empty(native.SUM_DIGITS, np.uint32), np.empty(native.SQUARE_DIGITS, np.uint32)
        finite = native.count_floats(values, facts, sums, squares, keys)
        self.total += int.from_bytes(sums.tobytes(), "little", signed=True)
        self.squares += int.from_bytes(squares.tobytes(), "little")
        self.zeros, self.nans = self.zeros + facts.zeros, self.nans + facts.nans
        self.plus_infinities += facts.plus_infinities
        self.minus_infinities += facts.minus_infinities
        if finite:
            self._widen(facts.least, facts.most)
            self._add_keys(keys[:finite])

    def _add_ints(self, values: npt.NDArray[Any]) -> None:
        least, most = int(values.min()), int(values.max())
        self._widen(least, most)
        self.zeros += len(values) - int(np.count_nonzero(values))
        if values.dtype.itemsize == 1:  # pixels, mostly
            counts = np.bincount(values.astype(np.int64) + 128)
            numbers = np.flatnonzero(counts) - 128
            counts = counts[numbers + 128]
            self.total += int(numbers @ counts)
            self.squares += int(numbers**2 @ counts)
            self._merge_bins(_keys(numbers.astype(np.float64)), counts.astype(np.int64, copy=False))
            return
        is_signed = values.dtype.kind != "u"
        wide = values.astype(np.int64 if is_signed else np.uint64, copy=False)
        self._add_products(wide, max(-least, most))
        self._add_keys(_keys(wide.astype(np.float64)))

    def _add_products(self, values: npt.NDArray[Any], largest: int) -> None:
        """Adds up integers, none larger, and their squares, in digits: no sum of _AT_ONCE products overflows."""
        shifts = range(0, largest.bit_length() + 1, _DIGIT_BITS)
        digits = [(values >> shift & _DIGIT).astype(np.int64, copy=False) for shift in shifts[:-1]]
        digits.append((values >> shifts[-1]).astype(np.int64, copy=False))
        for at, digit in enumerate(digits):
            self.total += int(digit.sum()) << shifts[at]
            self.squares += int(digit @ digit) << 2 * shifts[at]
            for other in range(at):
                self.squares += int(digit @ digits[other]) << (shifts[at] + shifts[other] + 1)

    def _widen(self, least: float, most: float) -> None:
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)

    def _add_keys(self, keys: U64) -> None:
        keys.sort()
        self._merge_bins(keys, None)

    def _merge_bins(self, keys: U64, counts: Int64s | None) -> None:
        """Adds bins, of which the keys are ascending; counts: None of 1 each."""
        room = len(self.keys) + len(keys)
        merged, total = np.empty(room, np.uint64), np.empty(room, np.int64)
        limits = native.BinLimits(most=self.most_bins, cap=self.cap)
        levels = np.zeros(native.BIN_RANGES, np.uint8) if self.levels is None else self.levels
        size = native.merge_bins(self.keys, self.counts, keys, counts, limits, levels, merged, total)
        self.cap, self.levels = limits.cap, levels if levels.any() else None
        self.keys, self.counts = merged[:size].copy(), total[:size].copy()

    def merge(self, other: NumberSketch) -> None:
        """Adds what another one has counted."""
        assert (self.is_int, self.most_bins) == (other.is_int, other.most_bins)
        self.zeros, self.nans = self.zeros + other.zeros, self.nans + other.nans
        self.plus_infinities += other.plus_infinities
        self.minus_infinities += other.minus_infinities
        self.total, self.squares = self.total + other.total, self.squares + other.squares
        if other.least is not None and other.most is not None:
            self._widen(other.least, other.most)
        self.cap = min(self.cap, other.cap)
        if other.levels is not None:
            self.levels = other.levels.copy() if self.levels is None else np.maximum(self.levels, other.levels)
        self._merge_bins(other.keys, other.counts)

    @property
    def sum(self) -> Fraction:
        """Sum of the finite values, exactly."""
        return Fraction(self.total, 1 if self.is_int else 1 << _UNIT)

    @property
    def mean(self) -> float:
        """Mean of the finite values, correctly rounded; NaN of none."""
        return _rounded(self.sum / self.finite) if self.finite else math.nan

    @property
    def variance(self) -> float:
        """Variance of the finite values, as a population; correctly rounded; NaN of none."""
        return _rounded(self._variance()) if self.finite else math.nan

    @property
    def standard_deviation(self) -> float:
        """The root of the variance, also of one that no float64 holds."""
        if not self.finite:
            return math.nan
        variance = self._variance()
        half = (variance.numerator.bit_length() - variance.denominator.bit_length()) // 2
        return math.ldexp(math.sqrt(variance / Fraction(4) ** half), half)

    def _variance(self) -> Fraction:
        squares = Fraction(self.squares, 1 if self.is_int else 1 << (2 * _UNIT))
        return squares / self.finite - (self.sum / self.finite) ** 2

    def edges(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """[bins] where each bin begins and ends, none of them outside of the finite values."""
        if self.least is None or self.most is None:
            return np.empty(0), np.empty(0)
        ends = (_numbers(self.keys), _numbers(self.keys | ((np.uint64(1) << self._dropped()) - np.uint64(1))))
        low, high = (np.clip(np.nan_to_num(end), float(self.least), float(self.most)) for end in ends)
        if self.is_int:
            low, high = np.ceil(low), np.floor(high)
        return low, high

    def _dropped(self) -> U64:
        """[bins] how many low bits are dropped."""
        levels = np.zeros(1, np.uint8) if self.levels is None else self.levels[self.keys >> _RANGE_SHIFT]
        return np.broadcast_to(levels, len(self.keys)).astype(np.uint64)

    def quantile(self, share: float) -> float:
        """Returns the value at ceil(share * count) of the finite values in order, or one of its bin; NaN of none."""
        return self.quantiles([share])[0]

    def quantiles(self, shares: Sequence[float | Fraction]) -> list[float]:
        """Returns several of them."""
        if self.least is None or self.most is None:
            return [math.nan] * len(shares)
        finite, (low, high) = self.finite, self.edges()
        middle = low + (high - low) / 2 if not self.is_int else np.floor(low + (high - low) / 2)
        middle[(low <= 0) & (high >= 0)] = 0.0  # which is more likely than the least numbers that there are
        ranks = [min(max(math.ceil(share * finite), 1), finite) for share in shares]
        found = middle[np.searchsorted(np.cumsum(self.counts), ranks)].tolist()
        ends = float(self.least), float(self.most)
        return [
            ends[0] if share <= 0 else ends[1] if share >= 1 else one for share, one in zip(shares, found, strict=True)
        ]

    @property
    def quantile_error(self) -> float:
        """The largest share of the values by which the rank of a quantile may differ: 0 while each bin is one value."""
        coarse = self.counts[self._dropped() > 0]
        return float(coarse.max()) / self.finite if len(coarse) else 0.0


def _keys(values: npt.NDArray[np.float64]) -> U64:
    bits = values.view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _numbers(keys: U64) -> npt.NDArray[np.float64]:
    """Returns the values of these keys."""
    return np.where(keys & _SIGN, keys ^ _SIGN, ~keys).view(np.float64)


def _rounded(value: Fraction) -> float:
    try:
        return float(value)  # of integers, which Python rounds correctly
    except OverflowError:
        return math.inf if value > 0 else -math.inf
