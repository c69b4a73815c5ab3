"""Bits of a 64-bit mask, for Numba kernels."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from recordmill.base.kernels import intrinsic, types


@intrinsic
def first_bit(_context: Any, mask: Any) -> Any:
    """int64: the index of the lowest set bit; 64 if there is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate
