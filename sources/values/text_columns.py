"""One column of texts in, a column of numbers, truth values or times out, with a fault for each text that is none: what
`field_kernels` compute, as Arrow arrays of a feature's type.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.byte_masks import Bytes
from recordmill.base.room import room
from recordmill.schemas.arrow import value_type
from recordmill.schemas.feature import Feature
from recordmill.sources.values import field_kernels as kernels
from recordmill.sources.values.floats import narrowed
from recordmill.sources.values.null_tokens import NullTokens
from recordmill.sources.values.text_values import OVERFLOW_FLOAT32

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
NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}


@dataclass(frozen=True)
class Fields:
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


def convert(fields: Fields, feature: Feature) -> tuple[pa.Array, int]:
    """(the column, how many faults there are) of a feature of numbers, truth values or times."""
    if feature.timestamp:
        return _moments(fields, feature)
    if feature.dtype in _FLOAT_LIMITS:
        out, nulls, faults = reals(fields, feature.dtype)
        return column_of(fields, feature, nulls, out), faults
    return _booleans(fields, feature) if feature.dtype == "bool" else _wholes(fields, feature)


def array_of(kind: pa.DataType, fields: Fields, nulls: int, *buffers: npt.NDArray[np.generic]) -> pa.Array:
    """The fields as an array of that type, without a copy; buffers: its own, behind the mask of what is valid."""
    validity = pa.py_buffer(np.packbits(fields.valid, bitorder="little")) if nulls else None
    return pa.Array.from_buffers(kind, fields.rows, [validity, *(pa.py_buffer(buffer) for buffer in buffers)], nulls)


def column_of(
    fields: Fields, feature: Feature, nulls: int, values: npt.NDArray[np.int64] | npt.NDArray[np.float64]
) -> pa.Array:
    """The column of a feature of numbers or times whose values are known, as int64 or float64 [rows]."""
    if feature.dtype in _FLOAT_LIMITS:
        return array_of(value_type(feature), fields, nulls, narrowed(values, feature.dtype))
    held = values if feature.timestamp else values.astype(feature.dtype, copy=False)
    return array_of(value_type(feature), fields, nulls, held)


def _wholes(fields: Fields, feature: Feature) -> tuple[pa.Array, int]:
    out = room(fields.rows, np.int64)
    low, high = _INT_LIMITS[feature.dtype]
    nulls, faults = kernels.whole(
        fields.data, fields.starts, fields.infos, fields.tokens, low, high, out, fields.valid, fields.fault
    )
    return column_of(fields, feature, nulls, out), faults


def reals(fields: Fields, dtype: str) -> tuple[npt.NDArray[np.float64], int, int]:
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


def _moments(fields: Fields, feature: Feature) -> tuple[pa.Array, int]:
    assert feature.timestamp is not None
    unit, zone = feature.timestamp
    out = room(fields.rows, np.int64)
    nulls, faults = kernels.moment(
        fields.data,
        fields.starts,
        fields.infos,
        fields.tokens,
        NANOS[unit],
        zone is not None,
        out,
        fields.valid,
        fields.fault,
    )
    return column_of(fields, feature, nulls, out), faults


def _booleans(fields: Fields, feature: Feature) -> tuple[pa.Array, int]:
    out = room(fields.rows, np.uint8)
    nulls, faults = kernels.boolean(
        fields.data, fields.starts, fields.infos, fields.tokens, out, fields.valid, fields.fault
    )
    return array_of(value_type(feature), fields, nulls, np.packbits(out, bitorder="little")), faults
