"""Numbers to float dtypes of fewer bits, counting what is rounded and marking what would not survive."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]

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


def inexact(numbers: npt.NDArray[Any], dtype: str) -> Mask:
    """Where an integer has no equal in that float dtype:
    more significant bits than the mantissa, or beyond the range.
    """
    if numbers.dtype.kind == "u":
        magnitude = numbers.astype(np.uint64)
    else:
        wide = numbers.astype(np.int64)
        magnitude = np.where(wide < 0, -wide, wide).view(np.uint64)  # -2**63 wraps to itself, whose bits are 2**63
    bits = MANTISSA_BITS[dtype]
    bad: Mask = magnitude > np.uint64(1 << bits)
    if bad.any():
        large = magnitude[bad]
        bad[bad] = large // (large & (~large + np.uint64(1))) >= np.uint64(1 << bits)
    if dtype == "float16":
        bad |= magnitude > np.uint64(65504)
    return bad
