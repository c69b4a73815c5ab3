"""The CRC32C of long runs of bytes by carry-less multiplication, 256 bytes a step, where the code is compiled for a
processor with VPCLMULQDQ.

The method of Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel 2009), at
512 bits: four registers hold 256 bytes; multiplied by x^2048 mod P they stand for the same bytes 256 places further on,
where the next ones are added to them. What is left at the end is 64 bytes with the CRC of all, which the CRC
instruction finishes. It reads memory in one stream, as fast as it comes.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from recordmill.base.kernels import cgutils, intrinsic, types

STEP_BYTES = 256
_POLYNOMIAL = 0x82F63B78  # reflected
_WORD, _VECTOR = ir.IntType(64), ir.VectorType(ir.IntType(64), 8)


def power(exponent: int) -> int:
    """x^exponent mod P, reflected: the bit of x^0 is the highest of 32."""
    register = 0x80000000
    for _ in range(exponent):
        register = (register >> 1) ^ (_POLYNOMIAL if register & 1 else 0)
    return register


def _factors(count: int) -> ir.Constant:
    """What moves each 128 bits by count bytes: for their lower half and for their upper half."""
    return ir.Constant(_VECTOR, [power(8 * count + 31), power(8 * count - 33)] * 4)


_BY_STEP, _BY_VECTOR = _factors(STEP_BYTES), _factors(64)


class _Emitter:
    """The three operations that folding needs, as LLVM IR."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        kind = ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, ir.IntType(8)])
        self.multiply = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.pclmulqdq.512")

    def load(self, at: Any) -> Any:
        """64 bytes at an address of any alignment."""
        return self.builder.load(self.builder.inttoptr(at, _VECTOR.as_pointer()), align=1)

    def moved(self, state: Any, factors: ir.Constant) -> Any:
        """The state as many places further on as the factors say."""
        low, high = (
            self.builder.call(self.multiply, [state, factors, ir.Constant(ir.IntType(8), half)])
            for half in (0x00, 0x11)
        )
        return self.builder.xor(low, high)

    def word(self, state: Any, number: int) -> Any:
        return self.builder.extract_element(state, ir.Constant(ir.IntType(32), number))


def folder(step: str) -> Any:
    """(register, address, steps) -> the register after so many times STEP_BYTES bytes, at least one step; step: LLVM's
    name of the CRC instruction.
    """

    @intrinsic
    def fold(typing: Any, register: Any, at: Any, steps: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            register, at, steps = arguments
            emit = _Emitter(builder)
            states = [cgutils.alloca_once(builder, _VECTOR) for _ in range(4)]
            for number, state in enumerate(states):
                first = emit.load(builder.add(at, ir.Constant(_WORD, 64 * number)))
                if number == 0:
                    first = builder.xor(
                        first,
                        builder.insert_element(ir.Constant(_VECTOR, [0] * 8), register, ir.Constant(ir.IntType(32), 0)),
                    )
                builder.store(first, state)
            with cgutils.for_range(builder, builder.sub(steps, ir.Constant(_WORD, 1))) as loop:
                base = builder.add(
                    at, builder.mul(builder.add(loop.index, ir.Constant(_WORD, 1)), ir.Constant(_WORD, STEP_BYTES))
                )
                for number, state in enumerate(states):
                    fresh = emit.load(builder.add(base, ir.Constant(_WORD, 64 * number)))
                    builder.store(builder.xor(emit.moved(builder.load(state), _BY_STEP), fresh), state)
            whole = builder.load(states[0])
            for state in states[1:]:
                whole = builder.xor(emit.moved(whole, _BY_VECTOR), builder.load(state))
            crc = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_WORD, [_WORD, _WORD]), step)
            result = ir.Constant(_WORD, 0)
            for number in range(8):
                result = builder.call(crc, [result, emit.word(whole, number)])
            return result

        return types.int64(types.int64, types.int64, types.int64), generate

    return fold
