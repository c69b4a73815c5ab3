"""Sketch of the numbers of a feature, in bounded memory.

A sketch depends only on the values and not on their order, and the sum of two sketches is exact to
the bit. For this, all sums are exact integers, and values are counted in bins.

While there are at most `max_bins` different values, each bin is one value, and quantiles are exact.
With more values, a bin contains several similar values. The float64 numbers are divided into fixed
ranges. A range has numbers of one sign, one exponent, and the same first two bits of the mantissa.
In a range, values that differ only in their lowest bits share a bin. Each range drops as few of
these bits as possible, so that no range has more than `max_range_bins` bins. So some values of
another magnitude do not make the bins of the other values wider.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.siphash import U64

# Every float64 is a multiple of 2^-1074, and its square a multiple of 2^-2148.
_UNIT_EXPONENT = 1074
_BLOCK_VALUES = native.MAX_SUMMED_VALUES
_EXPONENT_SUM_DTYPE = np.dtype(native.ExponentSum)
_DIGIT_BITS = 22
_DIGIT = (1 << _DIGIT_BITS) - 1
_SIGN_BIT = np.uint64(1 << 63)
# The highest 14 bits of a key determine its range: the sign, 11 bits of the exponent, and the first
# two bits of the mantissa.
_RANGE_COUNT = native.KEY_RANGES
_RANGE_SHIFT = np.uint64(50)
# The attributes of a sketch that are counts.
_COUNTERS = (
    "max_bins",
    "zeros",
    "nans",
    "plus_infinities",
    "minus_infinities",
    "max_range_bins",
)
# Bytes of an integer in a file. The largest one is the sum of 2^63 squares of the largest float64.
_INT_BYTES = (2 * (1024 + _UNIT_EXPONENT) + 64) // 8 + 1


class NumberSketch:
    """Exact sums and binned counts of numbers.

    Args:
        is_int: True if the values are integers.
        max_bins: The largest number of bins.

    Attributes:
        is_int: True if the values are integers.
        max_bins: The largest number of bins.
        zeros: The number of zeros.
        nans: The number of NaN values.
        plus_infinities: The number of inf values.
        minus_infinities: The number of -inf values.
        minimum: The smallest finite value. None if there is none.
        maximum: The largest finite value. None if there is none.
        total: The exact sum of the finite values. For floats, in units of 2^-1074.
        squares: The exact sum of their squares. For floats, in units of 2^-2148.
        max_range_bins: The largest number of bins in a range. It only decreases.
        dropped_bits: [ranges] The number of low bits that are dropped in each range. None means
            that each bin is one value.
        keys: [bins] The lowest key of each bin, ascending. `_keys_of_values` explains keys.
        counts: [bins] The number of values in each bin.
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
        """Number of all values, with infinite values and NaN."""
        return self.finite + self.nans + self.plus_infinities + self.minus_infinities

    def add(self, values: npt.NDArray[Any]) -> None:
        """Counts an array of numbers.

        Args:
            values: Integers or booleans of any size if `is_int`, and floats otherwise.
        """
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
        sums = np.empty(min(len(values), native.FLOAT64_EXPONENTS), _EXPONENT_SUM_DTYPE)
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
        # Values of one byte, which are usually pixels, are counted without sorting.
        if values.dtype.itemsize == 1:
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
        """Adds integers to `total` and their squares to `squares`, without overflow.

        The integers are divided into digits of 22 bits. A sum of _BLOCK_VALUES products of two
        digits fits into an int64.

        Args:
            values: The integers, as int64 or uint64.
            largest: The largest absolute value.
        """
        shifts = range(0, largest.bit_length() + 1, _DIGIT_BITS)
        digits = [(values >> shift & _DIGIT).astype(np.int64, copy=False) for shift in shifts[:-1]]
        # The highest digit is not masked, because it has the sign.
        digits.append((values >> shifts[-1]).astype(np.int64, copy=False))
        for row, digit in enumerate(digits):
            self.total += int(digit.sum()) << shifts[row]
            self.squares += int(digit @ digit) << 2 * shifts[row]
            # (a + b)^2 = a^2 + 2ab + b^2, so each product of two different digits counts twice.
            for column in range(row):
                self.squares += int(digit @ digits[column]) << (shifts[row] + shifts[column] + 1)

    def _widen(self, minimum: float, maximum: float) -> None:
        self.minimum = minimum if self.minimum is None else min(self.minimum, minimum)
        self.maximum = maximum if self.maximum is None else max(self.maximum, maximum)

    def _add_keys(self, keys: U64) -> None:
        # Most values fall into existing bins, and only the others must be sorted.
        new_keys = np.empty(len(keys), np.uint64)
        num_new = native.count_keys(
            keys,
            np.empty(0, np.uint8) if self.dropped_bits is None else self.dropped_bits,
            self.keys,
            self.counts,
            np.empty(2 << len(self.keys).bit_length(), np.int32),
            new_keys,
        )
        if num_new:
            self._merge_bins(np.sort(new_keys[:num_new]), None)

    def _merge_bins(self, keys: U64, counts: Int64s | None) -> None:
        """Adds bins to the sketch, and makes bins wider if there are too many.

        A bin becomes wider if more bits of its keys are dropped.

        Args:
            keys: Keys, ascending. They may be equal.
            counts: The number of values of each key. None means one each.
        """
        keys, counts = _sum_equal_keys(self._floor_keys(keys), counts)
        keys, counts = np.concatenate([self.keys, keys]), np.concatenate([self.counts, counts])
        # Both halves are ascending, so a stable sort is fast.
        order = np.argsort(keys, kind="stable")
        self.keys, self.counts = _sum_equal_keys(keys[order], counts[order])
        ranges = self.keys >> _RANGE_SHIFT
        starts = _group_starts(ranges)
        ranges, sizes = ranges[starts], np.diff(starts, append=len(self.keys))
        drops_bits = False if self.dropped_bits is None else self.dropped_bits[ranges] > 0
        # This sum is at least the number of bins. It only grows when values are added, even if bins
        # are joined. So `max_range_bins` does not depend on the order of the values.
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
            # Neighbouring keys become equal if all bits up to the highest one that differs are
            # dropped. `frexp` returns the number of these bits.
            differing_bits = np.frexp((range_keys[1:] ^ range_keys[:-1]).astype(np.float64))[1]
            # remaining[n] is the number of bins if n low bits are dropped.
            remaining = sizes[range_index] - np.cumsum(np.bincount(differing_bits))
            dropped_bits[ranges[range_index]] = np.argmax(remaining <= self.max_range_bins)
        self.dropped_bits = dropped_bits
        self.keys, self.counts = _sum_equal_keys(self._floor_keys(self.keys), self.counts)

    def _floor_keys(self, keys: U64) -> U64:
        """Returns the lowest key of the bin that contains each key.

        All keys of a bin are equal, apart from the bits that their range drops. In the lowest key
        these bits are 0.
        """
        dropped = self._dropped_bits_of(keys)
        return keys if dropped is None else keys >> dropped << dropped

    def _dropped_bits_of(self, keys: U64) -> U64 | None:
        """Returns the number of low bits that are dropped of each key.

        None means that no range drops bits.
        """
        return (
            None
            if self.dropped_bits is None
            else self.dropped_bits[keys >> _RANGE_SHIFT].astype(np.uint64)
        )

    def merge(self, source: NumberSketch) -> None:
        """Adds the counts of another sketch with the same `is_int`.

        `source` may have more bins than this sketch can have.
        """
        assert self.is_int == source.is_int
        assert self.max_bins <= source.max_bins
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

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the state as arrays by name, for a file. `from_arrays` reads them."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "counters": np.array([getattr(self, name) for name in _COUNTERS], np.int64),
            "sums": _ints_to_array(self.total, self.squares),
            "keys": self.keys,
            "counts": self.counts,
        }
        if self.minimum is not None and self.maximum is not None:
            arrays["range"] = (
                _ints_to_array(int(self.minimum), int(self.maximum))
                if self.is_int
                else np.array([self.minimum, self.maximum], np.float64)
            )
        if self.dropped_bits is not None:
            arrays["dropped_bits"] = self.dropped_bits
        return arrays

    @classmethod
    def from_arrays(cls, is_int: bool, arrays: Mapping[str, npt.NDArray[Any]]) -> NumberSketch:
        """Creates a sketch from the arrays of `to_arrays`."""
        sketch = cls(is_int)
        for name, value in zip(_COUNTERS, arrays["counters"].tolist(), strict=True):
            setattr(sketch, name, value)
        sketch.total, sketch.squares = _array_to_ints(arrays["sums"])
        sketch.keys, sketch.counts = arrays["keys"], arrays["counts"]
        if (ends := arrays.get("range")) is not None:
            sketch.minimum, sketch.maximum = _array_to_ints(ends) if is_int else ends.tolist()
        sketch.dropped_bits = arrays.get("dropped_bits")
        return sketch

    def add_repeated(self, number: int, count: int) -> None:
        """Counts an integer `count` times."""
        if count:
            single = NumberSketch(True, self.max_bins)
            single.add(np.array([number]))
            single.zeros, single.counts = single.zeros * count, single.counts * count
            single.total, single.squares = single.total * count, single.squares * count
            self.merge(single)

    @property
    def exact_sum(self) -> Fraction:
        """The exact sum of the finite values, as a fraction."""
        return Fraction(self.total, 1 if self.is_int else 1 << _UNIT_EXPONENT)

    @property
    def mean(self) -> float:
        """Mean of the finite values, correctly rounded. NaN if there are none."""
        return _to_float(self.exact_sum / self.finite) if self.finite else math.nan

    @property
    def variance(self) -> float:
        """Population variance of the finite values, correctly rounded. NaN if there are none."""
        return _to_float(self._variance()) if self.finite else math.nan

    @property
    def standard_deviation(self) -> float:
        """Population standard deviation of the finite values. NaN if there are none.

        The result is accurate even if the variance is too large or too small for float64.
        """
        if not self.finite:
            return math.nan
        # The variance is divided by a power of 4 to fit into float64. The root is then multiplied
        # by the same power of 2.
        variance = self._variance()
        half = (variance.numerator.bit_length() - variance.denominator.bit_length()) // 2
        return math.ldexp(math.sqrt(variance / Fraction(4) ** half), half)

    def _variance(self) -> Fraction:
        squares = Fraction(self.squares, 1 if self.is_int else 1 << (2 * _UNIT_EXPONENT))
        return squares / self.finite - (self.exact_sum / self.finite) ** 2

    def edges(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Returns the lowest and the highest value of each bin, as two arrays.

        A bin may contain all values between them. They are limited to `minimum` and `maximum`, and
        rounded inwards for integers.
        """
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
        """Returns the quantile at a share from 0 to 1, see `quantiles`."""
        return self.quantiles([share])[0]

    def quantiles(self, shares: Sequence[float | Fraction]) -> list[float]:
        """Returns the quantiles at some shares from 0 to 1.

        The quantile at 0.5 is the median. Shares of 0 and 1 are the exact minimum and maximum. A
        quantile is the value of rank `ceil(share * finite)`. If this value is in a bin with several
        values, the result is the middle of the bin. Without finite values, all results are NaN.
        """
        if self.minimum is None or self.maximum is None:
            return [math.nan] * len(shares)
        finite, (low, high) = self.finite, self.edges()
        middle = low + (high - low) / 2 if not self.is_int else np.floor(low + (high - low) / 2)
        # A bin that contains zero also contains tiny numbers, but zero is more likely.
        middle[(low <= 0) & (high >= 0)] = 0.0
        ranks = [min(max(math.ceil(share * finite), 1), finite) for share in shares]
        values = middle[np.searchsorted(np.cumsum(self.counts), ranks)].tolist()
        limits = float(self.minimum), float(self.maximum)
        return [
            limits[0] if share <= 0 else limits[1] if share >= 1 else value
            for share, value in zip(shares, values, strict=True)
        ]

    @property
    def quantile_error(self) -> float:
        """Largest error of the rank of a quantile, as a share.

        For example, 0.01 means that the rank of a median is between 0.49 and 0.51. The error is 0
        while each bin is one value.
        """
        dropped = self._dropped_bits_of(self.keys)
        return (
            0.0 if dropped is None else float(self.counts[dropped > 0].max(initial=0)) / self.finite
        )


def _group_starts(keys: U64) -> Int64s:
    """Returns the index of the first key of each group of equal keys.

    >>> _group_starts(np.array([3, 3, 5, 9, 9], np.uint64))
    array([0, 2, 3])
    """
    is_first = np.ones(len(keys), bool)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    return np.flatnonzero(is_first)


def _sum_equal_keys(keys: U64, counts: Int64s | None) -> tuple[U64, Int64s]:
    """Joins equal keys and adds up their counts.

    Args:
        keys: Keys, ascending.
        counts: The count of each key. None means one each.

    Returns:
        (different keys, the count of each).
    """
    starts = _group_starts(keys)
    totals = (
        np.diff(starts, append=len(keys)) if counts is None else np.add.reduceat(counts, starts)
    )
    return keys[starts], totals


def _keys_of_values(values: npt.NDArray[np.float64]) -> U64:
    """Returns a 64-bit key for each number. Keys have the order of the numbers.

    A key has the bits of the float64 number. To have the right order, all bits of negative numbers
    are inverted, and the sign bit of other numbers is set.
    """
    keys = (values.view(np.int64) >> 63).view(np.uint64)
    keys |= _SIGN_BIT
    keys ^= values.view(np.uint64)
    return keys


def _values_of_keys(keys: U64) -> npt.NDArray[np.float64]:
    """Returns the numbers with these keys. This is the inverse of `_keys_of_values`."""
    return np.where(keys & _SIGN_BIT, keys ^ _SIGN_BIT, ~keys).view(np.float64)


def _to_float(value: Fraction) -> float:
    """Returns the nearest float64, or an infinity if the fraction is too large."""
    try:
        return float(value)  # Python rounds a quotient of integers correctly
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _ints_to_array(*numbers: int) -> npt.NDArray[np.uint8]:
    data = b"".join(number.to_bytes(_INT_BYTES, "little", signed=True) for number in numbers)
    return np.frombuffer(data, np.uint8)


def _array_to_ints(array: npt.NDArray[np.uint8]) -> list[int]:
    data = array.tobytes()
    return [
        int.from_bytes(data[begin : begin + _INT_BYTES], "little", signed=True)
        for begin in range(0, len(data), _INT_BYTES)
    ]
