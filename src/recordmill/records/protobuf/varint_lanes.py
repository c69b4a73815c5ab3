"""Four varints at once in the lanes of a vector register: the tables and vector operations that reading
lists of whole numbers is made of.

The method of Plaisance, Kurz and Lemire, "Vectorized VByte Decoding" (2015): the continuation bits of the next twelve
bytes are the number of a row of a table, which says how many varints of up to four bytes end in them, and a byte
shuffle brings each of these to a lane of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from recordmill.base.kernels import cgutils, intrinsic, types

VARINT_WINDOW_BYTES = 64  # of which the continuation bits are taken at once
VARINT_LANES, LANE_BYTES = 4, 4
LOOKED_AT_BYTES = 12  # bytes that a row of the table is about
ROW_BITS = (1 << LOOKED_AT_BYTES) - 1
LOAD_BYTES = 16  # what put_lanes reads

_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))
_BYTES, _WORDS, _LONGS = ir.VectorType(_I8, 16), ir.VectorType(_I32, 4), ir.VectorType(_I64, 4)
_NOTHING = 0x80  # a byte of the shuffle that becomes zero


def _lengths(row: int) -> list[int]:
    """The lengths of the varints, LANES at most, that end in the bytes with these continuation bits, up to the first
    that is too long for a lane.
    """
    found: list[int] = []
    begin = 0
    for at in range(LOOKED_AT_BYTES):
        if row >> at & 1:
            continue
        if at + 1 - begin > LANE_BYTES or len(found) == VARINT_LANES:
            break
        found.append(at + 1 - begin)
        begin = at + 1
    return found


def _tables() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    shuffles: dict[tuple[int, ...], int] = {}
    rows = np.zeros(1 << LOOKED_AT_BYTES, np.int64)
    for row in range(len(rows)):
        lengths = _lengths(row)
        number = shuffles.setdefault(tuple(lengths), len(shuffles))
        rows[row] = len(lengths) | sum(lengths) << 8 | number * LOAD_BYTES << 16
    table = np.full((len(shuffles), VARINT_LANES, LANE_BYTES), _NOTHING, np.uint8)
    for pattern, number in shuffles.items():
        begin = 0
        for lane, length in enumerate(pattern):
            table[number, lane, :length] = range(begin, begin + length)
            begin += length
    return rows, table.reshape(-1)


# ROWS: int64 [4096], by continuation bits: how many varints (bits 0 to 7), their bytes (8 to 15), and where in SHUFFLES
# the shuffle begins (16 and up). SHUFFLES: uint8, 16 bytes for each.
TABLE_ROWS, SHUFFLES = _tables()


def _splat(kind: ir.VectorType, value: int) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count)


@intrinsic
def continuation_bits(typing, at):  # type: ignore[no-untyped-def]
    """(address) -> int64: bit i is the highest bit of byte i of the WINDOW_BYTES bytes there."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.VectorType(_I8, VARINT_WINDOW_BYTES)
        window = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
        return builder.bitcast(builder.icmp_signed("<", window, _splat(kind, 0)), _I64)

    return types.int64(types.int64), generate


@intrinsic
def count_ones(typing, word):  # type: ignore[no-untyped-def]
    """(int64) -> how many of its bits are 1."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), generate


@intrinsic
def put_single_bytes(typing, to, at):  # type: ignore[no-untyped-def]
    """(target, source): LOAD_BYTES bytes as so many int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, source = arguments
        word = builder.load(builder.inttoptr(source, _BYTES.as_pointer()), align=1)
        wide = ir.VectorType(_I64, LOAD_BYTES)
        builder.store(builder.zext(word, wide), builder.inttoptr(target, wide.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def put_lanes(typing, to, at, shuffle):  # type: ignore[no-untyped-def]
    """(target, source, address of a shuffle): the varints that the shuffle brings to the lanes,
    as LANES int64; needs SSSE3.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, source, shuffle = arguments
        word, control = (builder.load(builder.inttoptr(a, _BYTES.as_pointer()), align=1) for a in (source, shuffle))
        shuffler = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_BYTES, [_BYTES, _BYTES]), "llvm.x86.ssse3.pshuf.b.128"
        )
        lanes = builder.bitcast(builder.call(shuffler, [word, control]), _WORDS)

        def joined(lanes: Any, low: int, high: int, by: int) -> Any:
            moved = builder.lshr(builder.and_(lanes, _splat(_WORDS, high)), _splat(_WORDS, by))
            return builder.or_(builder.and_(lanes, _splat(_WORDS, low)), moved)

        lanes = joined(lanes, 0x007F007F, 0x7F007F00, 1)  # groups of 7 bits to pairs of 14
        lanes = joined(lanes, 0x00003FFF, 0x3FFF0000, 2)  # and these to 28
        builder.store(builder.zext(lanes, _LONGS), builder.inttoptr(target, _LONGS.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate
