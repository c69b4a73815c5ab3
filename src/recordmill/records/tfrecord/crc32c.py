"""CRC32C (Castagnoli) of bytes, as a number, and the masked form of it that TFRecord files hold.

Long runs of bytes go by carry-less multiplication, 256 bytes a step, where the code is compiled for a processor with
VPCLMULQDQ; else by the CRC32 instruction of SSE 4.2, else by tables. All give the same number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from recordmill.base.kernels import cgutils, compiles_for, inlined, intrinsic, kernel, types
from recordmill.base.pointers import address, load8, load16, load32, load64

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


_LONG = 1024  # bytes per stream where there are many: joining costs 16 look-ups, 2 % of it
_SHORT = 64  # bytes per stream in small records, so that a record of 200 bytes already has three streams
_MASK_DELTA = 0xA282EAD8  # TensorFlow lib/hash/crc32c.h


HARDWARE = compiles_for("sse4.2")
FOLDS = compiles_for("sse4.2", "avx512f", "vpclmulqdq")
_FOLDED = 768 if FOLDS else 1 << 62  # bytes from which folding pays


def _byte_tables() -> npt.NDArray[np.uint32]:
    """[8, 256]: table k holds the CRC of a byte followed by k zero bytes."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1).astype(np.uint32)
    tables = [table]
    for _ in range(7):
        tables.append(table[tables[-1] & 0xFF] ^ (tables[-1] >> np.uint32(8)))
    return np.stack(tables)


_TABLES = _byte_tables()


def _zeros_tables(count: int) -> npt.NDArray[np.int64]:
    """[4, 256]: byte k of a CRC register to what it becomes when count zero bytes follow;
    the four results are XORed.
    """
    columns = np.uint32(1) << np.arange(32, dtype=np.uint32)
    for _ in range(count):
        columns = _TABLES[0][columns & 0xFF] ^ (columns >> np.uint32(8))
    values = np.arange(256, dtype=np.uint32)
    result = np.zeros((4, 256), np.uint32)
    for byte in range(4):
        for bit in range(8):
            result[byte] ^= np.where(values >> np.uint32(bit) & 1, columns[8 * byte + bit], 0).astype(np.uint32)
    return result.astype(np.int64)


_AFTER_LONG, _AFTER_SHORT = _zeros_tables(_LONG), _zeros_tables(_SHORT)


def _instruction(bits: int) -> Any:
    """(register, word) -> register: SSE4.2's crc32 of the word's lowest bits."""
    kind, word = ir.IntType(64 if bits == 64 else 32), ir.IntType(64)
    name = f"llvm.x86.sse42.crc32.{kind.width}.{bits}"

    @intrinsic
    def step(typing: Any, register: Any, data: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(kind, [kind, ir.IntType(bits)]), name
            )
            if bits == 64:
                return builder.call(function, arguments)
            narrow = builder.trunc(arguments[0], kind), builder.trunc(arguments[1], ir.IntType(bits))
            return builder.zext(builder.call(function, narrow), word)

        return types.int64(types.int64, types.int64), generate

    return step


_step_sse42, _step_sse42_4, _step_sse42_2, _step_sse42_1 = (
    _instruction(64),
    _instruction(32),
    _instruction(16),
    _instruction(8),
)


@inlined
def _step_byte(register: int, byte: int) -> int:
    return int(np.int64(_TABLES[0, (register ^ byte) & 0xFF])) ^ (register >> 8)


@inlined
def step_table(register: int, word: int) -> int:
    """The CRC register after eight more bytes, given as a little-endian word."""
    word ^= register
    low = (
        _TABLES[7, word & 0xFF]
        ^ _TABLES[6, (word >> 8) & 0xFF]
        ^ _TABLES[5, (word >> 16) & 0xFF]
        ^ _TABLES[4, (word >> 24) & 0xFF]
    )
    high = (
        _TABLES[3, (word >> 32) & 0xFF]
        ^ _TABLES[2, (word >> 40) & 0xFF]
        ^ _TABLES[1, (word >> 48) & 0xFF]
        ^ _TABLES[0, (word >> 56) & 0xFF]
    )
    return int(np.int64(low ^ high))


@kernel
def extend_table(crc: int, at: int, length: int) -> int:
    """The CRC of what crc covers followed by length bytes at an address, by tables."""
    register = crc ^ 0xFFFFFFFF
    end = at + length
    while at + 8 <= end:
        register = step_table(register, load64(at))
        at += 8
    while at < end:
        register = _step_byte(register, load8(at))
        at += 1
    return register ^ 0xFFFFFFFF


@inlined
def _no_fold(register: int, at: int, steps: int) -> int:
    """Where folding is never begun."""
    return register


if HARDWARE:
    _fold = folder("llvm.x86.sse42.crc32.64.64") if FOLDS else _no_fold

    @inlined
    def _join_long(register: int, later: int) -> int:
        moved = (
            _AFTER_LONG[0, register & 0xFF]
            ^ _AFTER_LONG[1, (register >> 8) & 0xFF]
            ^ _AFTER_LONG[2, (register >> 16) & 0xFF]
        )
        return int(moved ^ _AFTER_LONG[3, (register >> 24) & 0xFF] ^ later)

    @inlined
    def _join_short(register: int, later: int) -> int:
        moved = (
            _AFTER_SHORT[0, register & 0xFF]
            ^ _AFTER_SHORT[1, (register >> 8) & 0xFF]
            ^ _AFTER_SHORT[2, (register >> 16) & 0xFF]
        )
        return int(moved ^ _AFTER_SHORT[3, (register >> 24) & 0xFF] ^ later)

    @kernel
    def extend_sse42(crc: int, at: int, length: int) -> int:
        """The CRC of what crc covers followed by length bytes at an address, by the SSE4.2 instruction."""
        register = crc ^ 0xFFFFFFFF
        end = at + length
        if length >= _FOLDED:
            steps = length // STEP_BYTES
            register = _fold(register, at, steps)
            at += steps * STEP_BYTES
        while at + 3 * _LONG <= end:
            second, third = 0, 0
            for i in range(at, at + _LONG, 8):
                register = _step_sse42(register, load64(i))
                second = _step_sse42(second, load64(i + _LONG))
                third = _step_sse42(third, load64(i + 2 * _LONG))
            register = _join_long(_join_long(register, second), third)
            at += 3 * _LONG
        while at + 3 * _SHORT <= end:
            second, third = 0, 0
            for i in range(at, at + _SHORT, 8):
                register = _step_sse42(register, load64(i))
                second = _step_sse42(second, load64(i + _SHORT))
                third = _step_sse42(third, load64(i + 2 * _SHORT))
            register = _join_short(_join_short(register, second), third)
            at += 3 * _SHORT
        while at + 8 <= end:
            register = _step_sse42(register, load64(at))
            at += 8
        if (end - at) & 4:
            register = _step_sse42_4(register, load32(at))
            at += 4
        if (end - at) & 2:
            register = _step_sse42_2(register, load16(at))
            at += 2
        if (end - at) & 1:
            register = _step_sse42_1(register, load8(at))
        return register ^ 0xFFFFFFFF

    step, extend = _step_sse42, extend_sse42
else:
    step, extend = step_table, extend_table


@inlined
def masked(crc: int) -> int:
    """The CRC as TFRecord holds it: rotated right by 15 bits, plus a constant."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


@inlined
def unmasked(mask: int) -> int:
    """The CRC that masked() took."""
    rotated = (mask - _MASK_DELTA) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


@inlined
def of_word(word: int) -> int:
    """The CRC of eight bytes, given as a little-endian word: a TFRecord's length field."""
    return int(step(0xFFFFFFFF, word) ^ 0xFFFFFFFF)


@kernel
def crc32c(data: npt.NDArray[np.uint8]) -> int:
    """The CRC of a C-contiguous uint8 array.

    >>> hex(crc32c(np.frombuffer(b"123456789", np.uint8)))
    '0xe3069283'
    """
    return extend(0, address(data), len(data))
