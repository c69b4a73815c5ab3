"""64 bytes of a buffer in, one bit per byte out: where a byte occurs, at memory speed, for Numba kernels.

It is plain vector IR (compare, bitcast), which LLVM lowers to whatever the processor has (AVX-512, AVX2, SSE2, NEON),
so nothing here depends on the machine.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from recordmill.base.kernels import intrinsic, types

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
