"""`NumberSketch`: what the numbers of a feature are like. It is a function of the multiset of the values alone, and two
of them add up to that of all values, bit by bit: sums are exact integers, and values are counted in bins.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base.arrays import Int64s
from recordmill.statistics import number_kernels as k

_UNIT = 1074  # sums of floats are whole multiples of 2^-1074, their squares' of 2^-2148
_NO_INT = np.iinfo(np.int64)
_SIGN = 1 << (k.KEY_BITS - 1)


class _Scratch(threading.local):
    """What a pass counts in, of each thread: all zero between passes; some 12 MiB, touched where values lie."""

    def __init__(self) -> None:
        self.bins = np.zeros(1 << k.KEY_BITS, np.uint32)
        self.used = np.zeros(k.USED_WORDS, np.uint64)
        self.limbs = np.zeros((k.LIMBS, k.EXPONENTS), np.int64)


_scratch = _Scratch()


class NumberSketch:
    """Counts of numbers. is_int: they are integers, whose sums are exact integers too; most_bins: how many bins are
    kept: while more are used, the lowest bit of all keys is dropped (`level` counts these).

    total, squares: the sums of the finite values and of their squares, in units of 2^-1074 and 2^-2148 for floats.
    """

    def __init__(self, is_int: bool, most_bins: int = 8192) -> None:
        self.is_int, self.most_bins = is_int, most_bins
        self.zeros = self.nans = self.plus_infinities = self.minus_infinities = 0
        self.least: int | float | None = None  # of the finite values
        self.most: int | float | None = None
        self.total = self.squares = self.level = 0
        self.keys = np.empty(0, np.uint32)
        self.counts = np.empty(0, np.int64)

    @property
    def finite(self) -> int:
        """How many values are neither infinite nor NaN."""
        return int(self.counts.sum())

    @property
    def count(self) -> int:
        return self.finite + self.nans + self.plus_infinities + self.minus_infinities

    def add(self, values: npt.NDArray[Any]) -> None:
        """Counts these numbers, [values] of any dtype that features have."""
        if values.dtype == np.uint8 or (values.dtype == np.uint64 and len(values) and values.max() >> np.uint64(63)):
            found, counts = np.unique(values, return_counts=True) if values.dtype == np.uint64 else _bytes(values)
            self._add_counted(found, counts)
            return
        if values.dtype.kind in "iu":
            values = values.astype(np.int64, copy=False)
        elif values.dtype == np.float16:
            values = values.astype(np.float32)
        is_single = values.dtype == np.float32
        count = self._add_ints if self.is_int else self._add_singles if is_single else self._add_floats
        most = k.MOST_SINGLES if is_single else k.MOST_AT_ONCE
        for first in range(0, len(values), most):
            count(np.ascontiguousarray(values[first : first + most]))

    def _count_floats(self, count: Callable[[Int64s, npt.NDArray[np.float64]], None]) -> None:
        """Take over what a pass says of the values: facts, and [2] the least and the most."""
        facts, extremes = np.zeros(k.FLOAT_FACTS, np.int64), np.array([np.inf, -np.inf])
        count(facts, extremes)
        nans, plus, minus, zeros = facts.tolist()
        self.nans, self.plus_infinities = self.nans + nans, self.plus_infinities + plus
        self.minus_infinities, self.zeros = self.minus_infinities + minus, self.zeros + zeros
        if extremes[0] <= extremes[1]:
            self._widen(*extremes.tolist())

    def _add_singles(self, values: npt.NDArray[Any]) -> None:
        limbs = _scratch.limbs
        self._count_floats(
            lambda facts, ends: k.count_singles(values, _scratch.bins, _scratch.used, limbs, facts, ends)
        )
        for exponent in np.flatnonzero(limbs[1]).tolist():
            total, squares = limbs[:2, exponent].tolist()
            shift = exponent - 1 + 29
            self.total += total << shift
            self.squares += (squares & 0xFFFFFFFFFFFFFFFF) << (2 * shift)
            limbs[:2, exponent] = 0
        self._fold()

    def _add_floats(self, values: npt.NDArray[Any]) -> None:
        limbs = _scratch.limbs
        self._count_floats(lambda facts, ends: k.count_floats(values, _scratch.bins, _scratch.used, limbs, facts, ends))
        is_used = limbs[4] != 0  # squares of normal numbers have an upper half
        is_used[1] = True  # those of subnormal ones may not
        for exponent in np.flatnonzero(is_used).tolist():
            low, high, square_0, square_1, square_2 = limbs[:, exponent].tolist()
            shift = exponent - 1  # of 2^-1074
            self.total += (low + (high << 27)) << shift
            self.squares += (square_0 + (square_1 << 32) + (square_2 << 64)) << (2 * shift)
            limbs[:, exponent] = 0
        self._fold()

    def _add_ints(self, values: Int64s) -> None:
        facts = np.zeros(k.INT_FACTS, np.int64)
        facts[-2:] = _NO_INT.max, _NO_INT.min
        k.count_ints(values, _scratch.bins, _scratch.used, facts)
        low, high, *squares, zeros, least, most = facts.tolist()
        self.total += low + (high << 32)
        self.squares += sum(part << (32 * at) for at, part in enumerate(squares))
        self.zeros += zeros
        if len(values):
            self._widen(least, most)
        self._fold()

    def _add_counted(self, values: npt.NDArray[Any], counts: Int64s) -> None:
        """Count integers, each so often; they are ascending."""
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            self.total += value * count
            self.squares += value * value * count
            if value == 0:
                self.zeros += count
        if len(values):
            self._widen(int(values[0]), int(values[-1]))
        self._merge_bins(_keys(values.astype(np.float64)), counts.astype(np.int64), 0)

    def _widen(self, least: float, most: float) -> None:
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)

    def _fold(self) -> None:
        """Add what a pass has counted to the bins."""
        keys, counts = np.empty(self.most_bins, np.uint32), np.empty(self.most_bins, np.int64)
        found = int(k.merge_bins(_scratch.bins, _scratch.used, self.keys, self.counts, self.level, keys, counts))
        size, self.level = found & 0xFFFFFFFF, found >> 32
        self.keys, self.counts = keys[:size].copy(), counts[:size].copy()

    def _merge_bins(self, keys: npt.NDArray[Any], counts: Int64s, level: int) -> None:
        level, before = max(level, self.level), level
        while True:
            every = np.concatenate([keys >> (level - before), self.keys >> (level - self.level)])
            merged, where = np.unique(every, return_inverse=True)
            if len(merged) <= self.most_bins:
                break
            level += 1
        total = np.zeros(len(merged), np.int64)
        np.add.at(total, where, np.concatenate([counts, self.counts]))
        self.keys, self.counts, self.level = merged.astype(np.uint32), total, level

    def merge(self, other: NumberSketch) -> None:
        """Add what another one has counted."""
        assert (self.is_int, self.most_bins) == (other.is_int, other.most_bins)
        self.zeros, self.nans = self.zeros + other.zeros, self.nans + other.nans
        self.plus_infinities += other.plus_infinities
        self.minus_infinities += other.minus_infinities
        self.total, self.squares = self.total + other.total, self.squares + other.squares
        if other.least is not None and other.most is not None:
            self._widen(other.least, other.most)
        if len(other.keys):
            self._merge_bins(other.keys, other.counts, other.level)

    @property
    def sum(self) -> Fraction:
        """Of the finite values, exactly."""
        return Fraction(self.total, 1 if self.is_int else 1 << _UNIT)

    @property
    def mean(self) -> float:
        """Of the finite values, correctly rounded; NaN of none."""
        return _rounded(self.sum / self.finite) if self.finite else math.nan

    @property
    def variance(self) -> float:
        """Of the finite values, as a population; correctly rounded; NaN of none."""
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
        low, high = _bounds(self.keys, self.level)
        return np.clip(low, float(self.least), float(self.most)), np.clip(high, float(self.least), float(self.most))

    def quantile(self, share: float) -> float:
        """A value that stands in the same bin as the one at ceil(share * count) in the order of the finite values; NaN
        of none. It is the one itself for integers below 512, while no bit is dropped.
        """
        return self.quantiles([share])[0]

    def quantiles(self, shares: Sequence[float | Fraction]) -> list[float]:
        """Several of them."""
        if self.least is None or self.most is None:
            return [math.nan] * len(shares)
        finite = self.finite
        ranks = [min(max(math.ceil(share * finite), 1), finite) for share in shares]
        at = np.searchsorted(np.cumsum(self.counts), ranks)
        found = [self._within(*bounds) for bounds in np.stack(_bounds(self.keys[at], self.level), 1).tolist()]
        ends = float(self.least), float(self.most)
        return [
            ends[0] if share <= 0 else ends[1] if share >= 1 else one for share, one in zip(shares, found, strict=True)
        ]

    def _within(self, low: float, high: float) -> float:
        """The middle of what there may be of a bin."""
        assert self.least is not None
        assert self.most is not None
        if self.is_int:  # the middle one of the integers in the bin
            return float((max(math.ceil(low), int(self.least)) + min(math.floor(high), int(self.most))) // 2)
        low, high = max(low, self.least), min(high, self.most)
        return low + (high - low) / 2

    @property
    def quantile_error(self) -> float:
        """The most by which a quantile differs, as a share of its value."""
        return 2.0 ** (self.level - 9)

    def to_fields(self) -> dict[str, Any]:
        """All that it has counted."""
        return {
            "zeros": self.zeros,
            "nans": self.nans,
            "plus_infinities": self.plus_infinities,
            "minus_infinities": self.minus_infinities,
            "least": None if self.least is None else str(self.least) if self.is_int else float(self.least).hex(),
            "most": None if self.most is None else str(self.most) if self.is_int else float(self.most).hex(),
            "total": hex(self.total),
            "squares": hex(self.squares),
            "level": self.level,
            "keys": self.keys,
            "counts": self.counts,
        }

    def set_fields(self, fields: Mapping[str, Any]) -> None:
        """Count what `to_fields` gave."""
        self.zeros, self.nans = fields["zeros"], fields["nans"]
        self.plus_infinities, self.minus_infinities = fields["plus_infinities"], fields["minus_infinities"]
        read = int if self.is_int else float.fromhex
        self.least = None if fields["least"] is None else read(fields["least"])
        self.most = None if fields["most"] is None else read(fields["most"])
        self.total, self.squares = int(fields["total"], 16), int(fields["squares"], 16)
        self.level, self.keys, self.counts = fields["level"], fields["keys"], fields["counts"]


def _bytes(values: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], Int64s]:
    counts = np.bincount(values, minlength=256)
    found = np.flatnonzero(counts)
    return found, counts[found]


def _keys(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """[values] the key of each one's bin."""
    bits = (values + 0.0).view(np.int64)
    top = (bits >> (64 - k.KEY_BITS)) & ((1 << k.KEY_BITS) - 1)
    return np.where(bits < 0, top ^ ((1 << k.KEY_BITS) - 1), top | _SIGN)


def _bounds(keys: npt.NDArray[Any], level: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The least and the greatest float64 of each bin."""
    first = keys.astype(np.int64) << level
    last = first + (1 << level) - 1
    rest = (1 << (64 - k.KEY_BITS)) - 1

    def number(key: npt.NDArray[np.int64], is_greatest: bool) -> npt.NDArray[np.float64]:
        is_positive = key >= _SIGN
        top = np.where(is_positive, key ^ _SIGN, key ^ ((1 << k.KEY_BITS) - 1))
        low = np.where(is_positive, rest if is_greatest else 0, 0 if is_greatest else rest)
        bits = (top.astype(np.uint64) << np.uint64(64 - k.KEY_BITS)) | low.astype(np.uint64)
        return np.asarray(bits.view(np.float64))

    return np.nan_to_num(number(first, False)), np.nan_to_num(number(last, True))


def _rounded(value: Fraction) -> float:
    try:
        return float(value)  # of integers, which Python rounds correctly
    except OverflowError:
        return math.inf if value > 0 else -math.inf
