"""Counts the numbers of a feature (`NumberSketch`). A sketch is a function of the multiset of the values alone, and two
of them add up to that of all values, bit by bit: sums are exact integers, and values are counted in bins.

A bin is a value while there are at most `max_bins` of them, so that quantiles and histograms are exact. Beyond that,
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

_UNIT_EXPONENT = 1074  # sums of floats are whole multiples of 2^-1074, their squares' of 2^-2148
_BLOCK_VALUES = native.MOST_COUNTED
_EXPONENT_SUM_DTYPE = np.dtype(native.ExponentSum)
_DIGIT_BITS = 22
_DIGIT = (1 << _DIGIT_BITS) - 1
_SIGN_BIT = np.uint64(1 << 63)
_RANGE_COUNT = 1 << 14  # of keys: sign, exponent and two bits of the mantissa
_RANGE_SHIFT = np.uint64(50)


class NumberSketch:
    """Counts of numbers.

    Attributes:
        is_int: The values are integers, whose sums are integers too.
        max_bins: How many bins are kept.
        total: The sum of the finite values, in units of 2^-1074 for floats.
        squares: The sum of their squares, in units of 2^-2148 for floats.
        max_range_bins: How many bins a range may have.
        dropped_bits: [ranges] how many low bits of the keys of each range are dropped; None: each bin is one value.
        keys: [bins] ascending, the bits of float64 values in the order of these.
        counts: [bins].
    """

    def __init__(self, is_int: bool, max_bins: int = 8192) -> None:
        self.is_int, self.max_bins = is_int, max_bins
        self.zeros = self.nans = self.plus_infinities = self.minus_infinities = 0
        self.minimum: int | float | None = None  # of the finite values
        self.maximum: int | float | None = None
        self.total = self.squares = 0
        self.max_range_bins = max_bins
        self.dropped_bits: Bytes | None = None
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
        for begin in range(0, len(values), _BLOCK_VALUES):
            block = values[begin : begin + _BLOCK_VALUES]
            if self.is_int:
                self._add_ints(block)
            else:
                self._add_floats(np.ascontiguousarray(block, np.float64))

    def _add_floats(self, values: npt.NDArray[np.float64]) -> None:
        is_finite = np.isfinite(values)
        if not is_finite.all():
            self.nans += int(np.count_nonzero(np.isnan(values)))
            self.plus_infinities += int(np.count_nonzero(values == math.inf))
            self.minus_infinities += int(np.count_nonzero(values == -math.inf))
            values = values[is_finite]
        if not len(values):
            return
        sums = np.empty(min(len(values), native.EXPONENTS), _EXPONENT_SUM_DTYPE)
        for exponent, high, low, squares_high, squares_low in sums[
            : native.sum_floats(values, sums)
        ].tolist():
            self.total += (high << 64 | low) << exponent
            self.squares += (squares_high << 64 | squares_low) << 2 * exponent
        values = values + 0.0  # -0.0 becomes 0.0
        self.zeros += int(np.count_nonzero(values == 0.0))
        self._widen(float(values.min()), float(values.max()))
        self._add_keys(_keys_of_values(values))

    def _add_ints(self, values: npt.NDArray[Any]) -> None:
        minimum, maximum = int(values.min()), int(values.max())
        self._widen(minimum, maximum)
        self.zeros += len(values) - int(np.count_nonzero(values))
        if values.dtype.itemsize == 1:  # pixels, mostly
            counts = np.bincount(values.astype(np.int64) + 128)
            numbers = np.flatnonzero(counts) - 128
            counts = counts[numbers + 128]
            self.total += int(numbers @ counts)
            self.squares += int(numbers**2 @ counts)
            self._merge_bins(
                _keys_of_values(numbers.astype(np.float64)), counts.astype(np.int64, copy=False)
            )
            return
        is_signed = values.dtype.kind != "u"
        wide = values.astype(np.int64 if is_signed else np.uint64, copy=False)
        self._add_products(wide, max(-minimum, maximum))
        self._add_keys(_keys_of_values(wide.astype(np.float64)))

    def _add_products(self, values: npt.NDArray[Any], largest: int) -> None:
        """Adds up integers, none larger, and their squares, in digits: no sum of _AT_ONCE products overflows."""
        shifts = range(0, largest.bit_length() + 1, _DIGIT_BITS)
        digits = [(values >> shift & _DIGIT).astype(np.int64, copy=False) for shift in shifts[:-1]]
        digits.append((values >> shifts[-1]).astype(np.int64, copy=False))
        for row, digit in enumerate(digits):
            self.total += int(digit.sum()) << shifts[row]
            self.squares += int(digit @ digit) << 2 * shifts[row]
            for column in range(row):
                self.squares += int(digit @ digits[column]) << (shifts[row] + shifts[column] + 1)

    def _widen(self, minimum: float, maximum: float) -> None:
        self.minimum = minimum if self.minimum is None else min(self.minimum, minimum)
        self.maximum = maximum if self.maximum is None else max(self.maximum, maximum)

    def _add_keys(self, keys: U64) -> None:
        keys.sort()
        self._merge_bins(keys, None)

    def _merge_bins(self, keys: U64, counts: Int64s | None) -> None:
        """Adds bins, of which the keys are ascending; counts: None of 1 each."""
        keys, counts = _sum_equal_keys(self._floor_keys(keys), counts)
        keys, counts = np.concatenate([self.keys, keys]), np.concatenate([self.counts, counts])
        order = np.argsort(keys, kind="stable")  # of two ascending parts
        self.keys, self.counts = _sum_equal_keys(keys[order], counts[order])
        ranges = self.keys >> _RANGE_SHIFT
        starts = _group_starts(ranges)
        ranges, sizes = ranges[starts], np.diff(starts, append=len(self.keys))
        drops_bits = False if self.dropped_bits is None else self.dropped_bits[ranges] > 0
        # This bound of bins only grows with the values: the max_range_bins is the same in whatever order they come.
        while (
            np.where(drops_bits, self.max_range_bins, np.minimum(sizes, self.max_range_bins)).sum()
            > self.max_bins
            and self.max_range_bins > 1
        ):
            self.max_range_bins //= 2
        full_ranges = np.flatnonzero(sizes > self.max_range_bins)
        if not len(full_ranges):
            return
        dropped_bits = (
            np.zeros(_RANGE_COUNT, np.uint8) if self.dropped_bits is None else self.dropped_bits
        )
        for range_index in full_ranges.tolist():
            range_keys = self.keys[starts[range_index] : starts[range_index] + sizes[range_index]]
            differing_bits = np.frexp((range_keys[1:] ^ range_keys[:-1]).astype(np.float64))[
                1
            ]  # how many low bits of neighbours differ
            remaining = sizes[range_index] - np.cumsum(np.bincount(differing_bits))
            dropped_bits[ranges[range_index]] = np.argmax(remaining <= self.max_range_bins)
        self.dropped_bits = dropped_bits
        self.keys, self.counts = _sum_equal_keys(self._floor_keys(self.keys), self.counts)

    def _floor_keys(self, keys: U64) -> U64:
        """Returns the keys of the bins where these are."""
        dropped = self._dropped_bits_of(keys)
        return keys if dropped is None else keys >> dropped << dropped

    def _dropped_bits_of(self, keys: U64) -> U64 | None:
        """Returns [keys] how many low bits are dropped; None: each bin is one value."""
        return (
            None
            if self.dropped_bits is None
            else self.dropped_bits[keys >> _RANGE_SHIFT].astype(np.uint64)
        )

    def merge(self, source: NumberSketch) -> None:
        """Adds what another one has counted."""
        assert (self.is_int, self.max_bins) == (source.is_int, source.max_bins)
        self.zeros, self.nans = self.zeros + source.zeros, self.nans + source.nans
        self.plus_infinities += source.plus_infinities
        self.minus_infinities += source.minus_infinities
        self.total, self.squares = self.total + source.total, self.squares + source.squares
        if source.minimum is not None and source.maximum is not None:
            self._widen(source.minimum, source.maximum)
        self.max_range_bins = min(self.max_range_bins, source.max_range_bins)
        if source.dropped_bits is not None:
            self.dropped_bits = (
                source.dropped_bits.copy()
                if self.dropped_bits is None
                else np.maximum(self.dropped_bits, source.dropped_bits)
            )
        if self.dropped_bits is not None:
            self.keys, self.counts = _sum_equal_keys(self._floor_keys(self.keys), self.counts)
        self._merge_bins(source.keys, source.counts)

    @property
    def exact_sum(self) -> Fraction:
        """Sum of the finite values, exactly."""
        return Fraction(self.total, 1 if self.is_int else 1 << _UNIT_EXPONENT)

    @property
    def mean(self) -> float:
        """Mean of the finite values, correctly rounded; NaN of none."""
        return _to_float(self.exact_sum / self.finite) if self.finite else math.nan

    @property
    def variance(self) -> float:
        """Variance of the finite values, as a population; correctly rounded; NaN of none."""
        return _to_float(self._variance()) if self.finite else math.nan

    @property
    def standard_deviation(self) -> float:
        """The root of the variance, also of one that no float64 holds."""
        if not self.finite:
            return math.nan
        variance = self._variance()
        half = (variance.numerator.bit_length() - variance.denominator.bit_length()) // 2
        return math.ldexp(math.sqrt(variance / Fraction(4) ** half), half)

    def _variance(self) -> Fraction:
        squares = Fraction(self.squares, 1 if self.is_int else 1 << (2 * _UNIT_EXPONENT))
        return squares / self.finite - (self.exact_sum / self.finite) ** 2

    def edges(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """[bins] where each bin begins and ends, none of them outside of the finite values."""
        if self.minimum is None or self.maximum is None:
            return np.empty(0), np.empty(0)
        dropped = self._dropped_bits_of(self.keys)
        last_keys = (
            self.keys if dropped is None else self.keys | ((np.uint64(1) << dropped) - np.uint64(1))
        )
        edge_values = (np.nan_to_num(_values_of_keys(keys)) for keys in (self.keys, last_keys))
        low, high = (np.clip(end, float(self.minimum), float(self.maximum)) for end in edge_values)
        if self.is_int:
            low, high = np.ceil(low), np.floor(high)
        return low, high

    def quantile(self, share: float) -> float:
        """Returns the value at ceil(share * count) of the finite values in order, or one of its bin; NaN of none."""
        return self.quantiles([share])[0]

    def quantiles(self, shares: Sequence[float | Fraction]) -> list[float]:
        """Returns several of them."""
        if self.minimum is None or self.maximum is None:
            return [math.nan] * len(shares)
        finite, (low, high) = self.finite, self.edges()
        middle = low + (high - low) / 2 if not self.is_int else np.floor(low + (high - low) / 2)
        middle[(low <= 0) & (high >= 0)] = (
            0.0  # which is more likely than the least numbers that there are
        )
        ranks = [min(max(math.ceil(share * finite), 1), finite) for share in shares]
        values = middle[np.searchsorted(np.cumsum(self.counts), ranks)].tolist()
        limits = float(self.minimum), float(self.maximum)
        return [
            limits[0] if share <= 0 else limits[1] if share >= 1 else value
            for share, value in zip(shares, values, strict=True)
        ]

    @property
    def quantile_error(self) -> float:
        """The largest share of the values by which the rank of a quantile may differ: 0 while each bin is one value."""
        dropped = self._dropped_bits_of(self.keys)
        return (
            0.0 if dropped is None else float(self.counts[dropped > 0].max(initial=0)) / self.finite
        )


def _group_starts(keys: U64) -> Int64s:
    """Returns where a key of these, ascending, is another than the one before."""
    is_first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    return np.flatnonzero(is_first)


def _sum_equal_keys(keys: U64, counts: Int64s | None) -> tuple[U64, Int64s]:
    """Returns each of these keys, ascending, once, with its counts (None: 1 each) added up."""
    starts = _group_starts(keys)
    totals = (
        np.diff(starts, append=len(keys)) if counts is None else np.add.reduceat(counts, starts)
    )
    return keys[starts], totals


def _keys_of_values(values: npt.NDArray[np.float64]) -> U64:
    """Returns the bits of the values, inverted of negative ones and with the sign of others: in their order."""
    keys = (values.view(np.int64) >> 63).view(np.uint64)
    keys |= _SIGN_BIT
    keys ^= values.view(np.uint64)
    return keys


def _values_of_keys(keys: U64) -> npt.NDArray[np.float64]:
    """Returns the values of these keys."""
    return np.where(keys & _SIGN_BIT, keys ^ _SIGN_BIT, ~keys).view(np.float64)


def _to_float(value: Fraction) -> float:
    try:
        return float(value)  # of integers, which Python rounds correctly
    except OverflowError:
        return math.inf if value > 0 else -math.inf
