"""Sketch of each element of vectors, such as each joint of a robot.

An element is one position in the arrays of a feature with a fixed shape. All its figures depend
only on the values and not on their order, and the sum of two sketches is exact to the bit. For
this, sums are exact integers, and the quantiles come from a sample that hashes determine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.siphash import U64, mix64
from recordmill.statistics.value_sketch import hash_texts

Floats = npt.NDArray[np.float64]
# Largest number of elements that are counted one by one.
MAX_ELEMENTS = 4096
# Numbers of arrays in the sample. With 16,384 of them, the standard error of the rank of the 1 %
# quantile is 0.08 % of the values.
_MAX_SAMPLED, _MIN_SAMPLED = 1 << 14, 256
# Memory for the sums of all sketches of a data set, and number of values in all samples.
_MAX_SUM_BYTES, _MAX_SAMPLE_VALUES = 16 << 20, 1 << 20
# Rows that can be added before the carries of limbs must be resolved. Each row adds less than 2^33
# to a limb of 64 bits.
_MAX_ROWS_WITHOUT_CARRY = 1 << 29
_LIMB_BITS = 32
_LIMB = (1 << _LIMB_BITS) - 1
# The half of a hash that comes from the values of an array.
_LOW_HASH = np.uint64((1 << 32) - 1)
# Shares of the quantiles, in percent.
QUANTILE_PERCENTS = (1, 50, 99)

_KINDS = {
    "|u1": native.ElementKind.UINT8,
    "<i8": native.ElementKind.INT64,
    "<f4": native.ElementKind.FLOAT32,
    "<f8": native.ElementKind.FLOAT64,
}
_NUM_LIMBS = {
    native.ElementKind.UINT8: (native.INT_LIMBS, native.INT_SQUARE_LIMBS),
    native.ElementKind.INT64: (native.INT_LIMBS, native.INT_SQUARE_LIMBS),
    native.ElementKind.FLOAT32: (native.FLOAT32_LIMBS, native.FLOAT32_SQUARE_LIMBS),
    native.ElementKind.FLOAT64: (native.FLOAT64_LIMBS, native.FLOAT64_SQUARE_LIMBS),
}
# The exponents of the units in which sums are counted.
_UNIT_EXPONENTS = {native.ElementKind.FLOAT32: 149, native.ElementKind.FLOAT64: 1074}


class ElementSketch:
    """Sums, ranges and a sample of each element of equal arrays.

    The first arrays determine the number of elements. If later arrays have another number, or if
    there are too many elements, the sketch is `dropped` and has no figures.

    Args:
        columns: The number of such sketches in the data set. They share a bounded memory.

    Attributes:
        size: The number of elements. None before the first array.
        dropped: True if the arrays have different sizes, one element, or too many elements.
        rows: The number of arrays.
        finite: [elements] The number of values that are neither infinite nor NaN.
        minima: [elements] The smallest finite value, or inf.
        maxima: [elements] The largest finite value, or -inf.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self.size: int | None = None
        self.dropped = False
        self.rows = self._rows_without_carry = 0
        self._kind = native.ElementKind.UINT8
        self.finite = np.empty(0, np.int64)
        self.minima = self.maxima = np.empty(0)
        self._limbs = self._square_limbs = np.empty((0, 0), np.int64)
        self._max_sampled = 0
        self._max_hash = np.uint64((1 << 64) - 1)
        # the sample: hashes, and [sampled, elements] the arrays
        self._hashes = np.empty(0, np.uint64)
        self._sample: npt.NDArray[Any] = np.empty((0, 0))
        # arrays that may become part of the sample, with their hashes
        self._candidates: list[tuple[U64, npt.NDArray[Any]]] = []
        self._num_candidates = 0

    def add(self, arrays: npt.NDArray[Any], keys: U64) -> None:
        """Counts the elements of some arrays.

        Args:
            arrays: [rows, elements] Numbers. All calls must pass the same dtype.
            keys: [rows] A key of each array. It determines whether the array is in the sample.
        """
        if self.dropped or not len(arrays):
            return
        if self.size is None:
            self._start(arrays.shape[1], _as_counted(arrays[:0]))
        if self.dropped or arrays.shape[1] != self.size:
            self.drop()
            return
        arrays = np.ascontiguousarray(_as_counted(arrays))
        self._rows_without_carry += len(arrays)
        if self._rows_without_carry > _MAX_ROWS_WITHOUT_CARRY:
            self._carry()
            self._rows_without_carry = len(arrays)
        native.add_elements(arrays.reshape(-1).view(np.uint8), self._kind, self._sums())
        self.rows += len(arrays)
        self._add_to_sample(arrays, keys)

    def drop(self) -> None:
        """Ends the counting, and frees the memory."""
        columns = self._columns
        self.__init__(columns)  # type: ignore[misc]
        self.dropped = True

    def _start(self, size: int, empty: npt.NDArray[Any]) -> None:
        self._kind = _KINDS[empty.dtype.str]
        num_limbs, num_square_limbs = _NUM_LIMBS[self._kind]
        sum_bytes = 8 * (num_limbs + num_square_limbs)
        if not 1 < size <= min(MAX_ELEMENTS, _MAX_SUM_BYTES // sum_bytes // self._columns):
            self.drop()
            return
        self.size = size
        self.finite = np.zeros(size, np.int64)
        self.minima, self.maxima = np.full(size, math.inf), np.full(size, -math.inf)
        self._limbs = np.zeros((num_limbs, size), np.int64)
        self._square_limbs = np.zeros((num_square_limbs, size), np.int64)
        room = _MAX_SAMPLE_VALUES // self._columns // size
        self._max_sampled = min(max(room, _MIN_SAMPLED), _MAX_SAMPLED)
        self._sample = empty

    def _sums(self) -> native.ElementSums:
        return native.ElementSums(
            limbs=self._limbs,
            square_limbs=self._square_limbs,
            finite=self.finite,
            minima=self.minima,
            maxima=self.maxima,
        )

    def _carry(self) -> None:
        """Moves all bits above the lowest 32 of each limb to the next limb."""
        for limbs in (self._limbs, self._square_limbs):
            for i in range(len(limbs) - 1):
                limbs[i + 1] += limbs[i] >> _LIMB_BITS
                limbs[i] &= _LIMB

    def _add_to_sample(self, arrays: npt.NDArray[Any], keys: U64) -> None:
        # The high half of a hash comes from the key, so most arrays need no hash of their own.
        high_hashes = mix64(keys) & ~_LOW_HASH
        chosen = np.flatnonzero(high_hashes <= self._max_hash)
        if not len(chosen):
            return
        # The low half comes from the values. So arrays with equal hashes are equal, and it does
        # not matter which of them stays in the sample.
        arrays = arrays[chosen]
        data = arrays.reshape(-1).view(np.uint8)
        row_bytes = arrays.shape[1] * arrays.itemsize
        starts = np.arange(len(arrays), dtype=np.int64) * row_bytes
        low_hashes = hash_texts(data, starts, starts + row_bytes) & _LOW_HASH
        self._keep_lowest(high_hashes[chosen] | low_hashes, arrays)

    def _keep_lowest(self, hashes: U64, arrays: npt.NDArray[Any]) -> None:
        self._candidates.append((hashes, arrays))
        self._num_candidates += len(hashes)
        # Shrinking copies the sample, so it is done for many arrays at once.
        if len(self._hashes) + self._num_candidates > 2 * self._max_sampled:
            self._shrink_sample()

    def _shrink_sample(self) -> None:
        """Adds the candidates to the sample, and keeps the arrays with the lowest hashes."""
        if self._candidates:
            hashes, arrays = zip(*self._candidates, strict=True)
            self._hashes = np.concatenate([self._hashes, *hashes])
            self._sample = np.concatenate([self._sample, *arrays])
            self._candidates, self._num_candidates = [], 0
        if len(self._hashes) > self._max_sampled:
            kept_rows = np.argpartition(self._hashes, self._max_sampled - 1)[: self._max_sampled]
            self._hashes, self._sample = self._hashes[kept_rows], self._sample[kept_rows]
            self._max_hash = self._hashes.max()

    def merge(self, source: ElementSketch) -> None:
        """Adds the counts of another sketch of the same feature."""
        if self.dropped or (source.size is None and not source.dropped):
            return
        if self.size is None and not source.dropped:
            assert source.size is not None
            self._start(source.size, source._sample[:0])
        if source.dropped or (self.size, self._kind) != (source.size, source._kind):
            self.drop()
            return
        self._carry()
        source._carry()
        source._shrink_sample()
        self.rows, self._rows_without_carry = self.rows + source.rows, 1
        self.finite += source.finite
        self.minima = np.minimum(self.minima, source.minima)
        self.maxima = np.maximum(self.maxima, source.maxima)
        self._limbs += source._limbs
        self._square_limbs += source._square_limbs
        self._keep_lowest(source._hashes, source._sample)
        self._shrink_sample()

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the state as arrays by name, for a file. `from_arrays` reads them."""
        self._shrink_sample()
        self._carry()
        # Equal hashes have equal arrays, so this order depends on nothing but the sample.
        order = np.argsort(self._hashes, kind="stable")
        size = -1 if self.size is None else self.size
        return {
            "state": np.array(
                [self._columns, size, self.dropped, self.rows, self._max_sampled, self._kind],
                np.int64,
            ),
            "finite": self.finite,
            # Adding 0.0 makes -0.0 positive.
            "minima": self.minima + 0.0,
            "maxima": self.maxima + 0.0,
            "limbs": self._limbs.reshape(-1),
            "square_limbs": self._square_limbs.reshape(-1),
            "hashes": self._hashes[order],
            "sample": self._sample[order].reshape(-1),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> ElementSketch:
        """Creates a sketch from the arrays of `to_arrays`."""
        columns, size, dropped, rows, max_sampled, kind = arrays["state"].tolist()
        sketch = cls(columns)
        sketch.dropped = bool(dropped)
        if size < 0:
            return sketch
        sketch.size, sketch.rows, sketch._rows_without_carry = size, rows, 1
        sketch._kind, sketch._max_sampled = native.ElementKind(kind), max_sampled
        # The native function writes to these arrays, and those of a file are constant.
        sketch.finite, sketch.minima, sketch.maxima = (
            arrays[name].copy() for name in ("finite", "minima", "maxima")
        )
        sketch._limbs = arrays["limbs"].reshape(-1, size).copy()
        sketch._square_limbs = arrays["square_limbs"].reshape(-1, size).copy()
        sketch._hashes, sketch._sample = arrays["hashes"], arrays["sample"].reshape(-1, size)
        if len(sketch._hashes) < rows:
            sketch._max_hash = sketch._hashes.max()
        return sketch

    def __getstate__(self) -> dict[str, Any]:
        self._shrink_sample()
        return self.__dict__

    @property
    def sampled(self) -> int:
        """Number of arrays that determine the quantiles.

        It equals `rows` if the quantiles are exact.
        """
        self._shrink_sample()
        return len(self._hashes)

    def moments(self) -> tuple[Floats, Floats]:
        """Returns the mean and the population variance of the finite values of each element.

        Both are correctly rounded. They are NaN for an element without finite values, and inf if
        float64 can't hold them.
        """
        unit = _UNIT_EXPONENTS.get(self._kind, 0)
        means, variances = [], []
        for count, total, squares in zip(
            self.finite.tolist(), _totals(self._limbs), _totals(self._square_limbs), strict=True
        ):
            means.append(_divide(total, count << unit))
            variances.append(_divide(squares * count - total * total, (count * count) << 2 * unit))
        return np.array(means), np.array(variances)

    def quantiles(self, percents: Sequence[int] = QUANTILE_PERCENTS) -> list[Floats]:
        """Returns the quantiles of each element, as an array [elements] for each percentage.

        A quantile is the value of rank `ceil(percent / 100 * n)` of the `n` finite values in the
        sample. It is NaN if there are none.
        """
        self._shrink_sample()
        # Infinite values and NaN are sorted to the end.
        values = self._sample.astype(np.float64)
        is_finite = np.isfinite(values)
        counts = is_finite.sum(0)
        values = np.sort(np.where(is_finite, values, np.inf), axis=0)
        columns = np.arange(len(counts))
        if not len(values):
            return [np.full(len(counts), math.nan) for _ in percents]
        ranks = [np.maximum(-(-percent * counts // 100), 1) - 1 for percent in percents]
        return [np.where(counts > 0, values[rank, columns], math.nan) for rank in ranks]


def _as_counted(arrays: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Converts numbers to one of the four dtypes that the native function counts.

    Only uint64 loses precision, because it becomes float64.
    """
    dtype = arrays.dtype
    if dtype.kind == "b":
        return arrays.view(np.uint8)
    if dtype.str in _KINDS:
        return arrays
    if dtype.kind in "iu":
        return arrays.astype(np.float64 if dtype.itemsize == 8 else np.int64)
    return arrays.astype(np.float32)


def _totals(limbs: npt.NDArray[np.int64]) -> list[int]:
    """Returns the number that the limbs of each element represent."""
    totals = np.zeros(limbs.shape[1], object)
    for limb in limbs[::-1]:
        totals = (totals << _LIMB_BITS) + limb.astype(object)
    return [int(total) for total in totals]


def _divide(numerator: int, denominator: int) -> float:
    # The division of integers is correctly rounded.
    if not denominator:
        return math.nan
    try:
        return numerator / denominator
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf
