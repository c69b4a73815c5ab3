"""64 bytes of a buffer in, one bit per byte out: where a byte occurs, at memory speed, for Numba kernels.

It is plain vector IR (compare, bitcast), which LLVM lowers to whatever the processor has (AVX-512, AVX2, SSE2, NEON),
so nothing here depends on the machine.
"""

# mypy: disable-error-code="arg-type,assignment,return-value,no-any-return"
# In compiled code NumPy's scalars and Python's are the same.

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from recordmill.base.arrays import Bytes
from recordmill.base.kernels import intrinsic, kernel, types

LANES = 64  # bytes per mask: the bits of one uint64

_BYTES = ir.VectorType(ir.IntType(8), LANES)
_SPREAD = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)


@intrinsic
def equal_mask(_context: Any, data: Any, at: Any, byte: Any) -> Any:
    """uint64: bit i says whether data[at + i] == byte.
    data: C-contiguous uint8 with at least at + 64 bytes, which is not checked.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        vector = builder.load(builder.bitcast(builder.gep(array.data, [arguments[1]]), _BYTES.as_pointer()), align=1)
        lane = builder.insert_element(ir.Constant(_BYTES, ir.Undefined), arguments[2], ir.Constant(ir.IntType(32), 0))
        wanted = builder.shuffle_vector(lane, ir.Constant(_BYTES, ir.Undefined), _SPREAD)
        return builder.bitcast(builder.icmp_unsigned("==", vector, wanted), ir.IntType(LANES))

    return types.uint64(data, types.int64, types.uint8), generate


@intrinsic
def first_bit(_context: Any, mask: Any) -> Any:
    """int64: the index of the lowest set bit; 64 if there is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@intrinsic
def leading_zeros(_context: Any, mask: Any) -> Any:
    """int64: how many bits above the highest set one are clear; 64 if there is none."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@kernel
def byte_mask(data: Bytes, at: int, stop: int, byte: int) -> np.uint64:
    """uint64: bit i says whether data[at + i] == byte, for at + i < stop;
    no bit for a byte of 256, which stands for "none".
    """
    if byte > 255:
        return np.uint64(0)
    if at + LANES <= stop:
        return equal_mask(data, at, np.uint8(byte))
    mask = np.uint64(0)
    for index in range(stop - at):
        if data[at + index] == byte:
            mask |= np.uint64(1) << np.uint64(index)
    return mask
