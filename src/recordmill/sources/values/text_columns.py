"""One column of texts in, a column of numbers, truth values or times out, with a fault for each text that is none: what
`field_kernels` compute, as Arrow's arrays; and numbers to float dtypes of fewer bits, with the count of those that are
rounded and a mask of those that would not survive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.arrays import Bools, Bytes
from recordmill.base.buffers import room
from recordmill.schemas.arrow import value_type
from recordmill.schemas.feature import Feature
from recordmill.sources.values import field_kernels as kernels
from recordmill.sources.values.field_kernels import NullTokens
from recordmill.sources.values.text_values import OVERFLOW_FLOAT32

MANTISSA_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}


def narrow_floats(numbers: npt.NDArray[Any], dtype: str) -> tuple[npt.NDArray[Any], int]:
    """(the numbers as that float dtype, how many of them were rounded); bfloat16 is held as float32."""
    narrow = narrowed(numbers, dtype)
    if narrow is numbers or numbers.dtype.kind != "f":
        return narrow, 0
    return narrow, int(np.count_nonzero((narrow != numbers) & ~np.isnan(numbers)))


def narrowed(numbers: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """The numbers as that float dtype."""
    with np.errstate(over="ignore"):
        narrow = numbers.astype("float32" if dtype == "bfloat16" else dtype, copy=False)
    return _round_bfloat16(narrow) if dtype == "bfloat16" else narrow


def _round_bfloat16(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Round to nearest, ties to even, in the upper 16 bits; NaN stays NaN."""
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    with np.errstate(over="ignore"):
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    result: npt.NDArray[np.float32] = np.where(np.isfinite(numbers), rounded, bits & np.uint32(0xFFFF0000)).view(
        np.float32
    )
    result[np.isnan(numbers)] = np.nan
    return result


def inexact(numbers: npt.NDArray[Any], dtype: str) -> Bools:
    """Where an integer has no equal in that float dtype:
    more significant bits than the mantissa, or beyond the range.
    """
    if numbers.dtype.kind == "u":
        magnitude = numbers.astype(np.uint64)
    else:
        wide = numbers.astype(np.int64)
        magnitude = np.where(wide < 0, -wide, wide).view(np.uint64)  # -2**63 wraps to itself, whose bits are 2**63
    bits = MANTISSA_BITS[dtype]
    bad: Bools = magnitude > np.uint64(1 << bits)
    if bad.any():
        large = magnitude[bad]
        bad[bad] = large // (large & (~large + np.uint64(1))) >= np.uint64(1 << bits)
    if dtype == "float16":
        bad |= magnitude > np.uint64(65504)
    return bad


_INT_LIMITS = {
    **{f"int{bits}": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32)},
    "uint64": (0, (1 << 63) - 1),  # Example's int64_list holds no more
}
# dtype: significant bits, and where rounding to it gives infinity (half a step above the largest value)
_FLOAT_LIMITS = {
    "float16": (11, 65520.0),
    "bfloat16": (8, 2.0**128 - 2.0**119),
    "float32": (24, OVERFLOW_FLOAT32),
    "float64": (53, np.inf),
}
NANOS_PER = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}


@dataclass(frozen=True)
class TextFields:
    """One column: where its texts lie (see field_kernels), and room for their validity (1) and faults (0)."""

    data: Bytes
    starts: npt.NDArray[np.int32]
    infos: npt.NDArray[np.int32]
    tokens: NullTokens
    valid: Bytes
    fault: Bytes

    @property
    def rows(self) -> int:
        return len(self.starts)


def convert_texts(fields: TextFields, feature: Feature) -> tuple[pa.Array, int]:
    """(the column, how many faults there are) of a feature of numbers, truth values or times."""
    if feature.timestamp:
        return _moments(fields, feature)
    if feature.dtype in _FLOAT_LIMITS:
        out, nulls, faults = reals(fields, feature.dtype)
        return column_of_texts(fields, feature, nulls, out), faults
    return _booleans(fields, feature) if feature.dtype == "bool" else _wholes(fields, feature)


def array_of(kind: pa.DataType, fields: TextFields, nulls: int, *buffers: npt.NDArray[np.generic]) -> pa.Array:
    """The fields as an array of that type, without a copy; buffers: its own, behind the mask of what is valid."""
    validity = pa.py_buffer(np.packbits(fields.valid, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(kind, fields.rows, [validity, *(pa.py_buffer(buffer) for buffer in buffers)], nulls)


def column_of_texts(
    fields: TextFields, feature: Feature, nulls: int, values: npt.NDArray[np.int64] | npt.NDArray[np.float64]
) -> pa.Array:
    """The column of a feature of numbers or times whose values are known, as int64 or float64 [rows]."""
    if feature.dtype in _FLOAT_LIMITS:
        return array_of(value_type(feature), fields, nulls, narrowed(values, feature.dtype))
    held = values if feature.timestamp else values.astype(feature.dtype, copy=False)
    return array_of(value_type(feature), fields, nulls, held)


def _wholes(fields: TextFields, feature: Feature) -> tuple[pa.Array, int]:
    out = room(fields.rows, np.int64)
    low, high = _INT_LIMITS[feature.dtype]
    nulls, faults = kernels.whole_number(
        fields.data, fields.starts, fields.infos, fields.tokens, low, high, out, fields.valid, fields.fault
    )
    return column_of_texts(fields, feature, nulls, out), faults


def reals(fields: TextFields, dtype: str) -> tuple[npt.NDArray[np.float64], int, int]:
    """(float64 values, nulls, faults); a fault is also a value that the float dtype can't hold."""
    out = room(fields.rows, np.float64)
    bits, beyond = _FLOAT_LIMITS[dtype]
    nulls, faults = kernels.real(
        fields.data, fields.starts, fields.infos, fields.tokens, bits, beyond, out, fields.valid, fields.fault
    )
    if faults:
        for row in np.flatnonzero(fields.fault == kernels.UNDECIDED).tolist():
            text = kernels.field(fields.data, fields.starts, fields.infos, row)
            out[row], fields.fault[row] = kernels.real_by_python(text, bits, beyond)
        faults = int(np.count_nonzero(fields.fault))
    return out, nulls, faults


def _moments(fields: TextFields, feature: Feature) -> tuple[pa.Array, int]:
    assert feature.timestamp is not None
    unit, zone = feature.timestamp
    out = room(fields.rows, np.int64)
    nulls, faults = kernels.moment(
        fields.data,
        fields.starts,
        fields.infos,
        fields.tokens,
        NANOS_PER[unit],
        zone is not None,
        out,
        fields.valid,
        fields.fault,
    )
    return column_of_texts(fields, feature, nulls, out), faults


def _booleans(fields: TextFields, feature: Feature) -> tuple[pa.Array, int]:
    out = room(fields.rows, np.uint8)
    nulls, faults = kernels.boolean(
        fields.data, fields.starts, fields.infos, fields.tokens, out, fields.valid, fields.fault
    )
    return array_of(value_type(feature), fields, nulls, np.packbits(out, bitorder="little")), faults
