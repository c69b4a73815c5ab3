"""Raw memory for kernels: loads, stores and copies at an address, of any alignment, compiled into the kernel that calls
them.

Numba's arrays know one item type and aligned items; a wire format has neither. Addresses and lengths are int64.
**Nothing here checks a bound**: a kernel proves its bounds before it comes here. All numbers are little-endian, as on
every machine that Numba compiles for in practice (x86-64, AArch64), and as Example and TFRecord have them.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from recordmill.base.kernels import cgutils, inlined, intrinsic, types

if sys.byteorder != "little":
    raise ImportError("recordmill's kernels need a little-endian machine")

CHUNK_BYTES = 16  # what copy_chunk moves

_WORD = ir.IntType(64)


def address_of(array: npt.NDArray[Any]) -> int:
    """The address of the array's first item; the caller keeps the array alive while it is used."""
    return int(array.__array_interface__["data"][0])


def _load(bits: int) -> Any:
    @intrinsic
    def load(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            return value if bits == 64 else builder.zext(value, _WORD)

        return types.int64(types.int64), generate

    return load


def _store(bits: int) -> Any:
    @intrinsic
    def store(typing: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.IntType(bits)
            pointer = builder.inttoptr(arguments[0], kind.as_pointer())
            word = arguments[1] if bits == 64 else builder.trunc(arguments[1], kind)
            builder.store(word, pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return store


load8 = _load(8)  # (address) -> 0 ... 255
load32 = _load(32)  # (address) -> 0 ... 2^32 - 1
load64 = _load(64)  # (address) -> int64
store8 = _store(8)  # (address, int64): its lowest byte
store32 = _store(32)
store64 = _store(64)


@intrinsic
def address(typing, array):  # type: ignore[no-untyped-def]
    """(array) -> int64: inside a kernel, the address of an argument's first item."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        struct = cgutils.create_struct_proxy(signature.args[0])(context, builder, arguments[0])
        return builder.ptrtoint(struct.data, _WORD)

    return types.int64(array), generate


@intrinsic
def copy_chunk(typing, target, source):  # type: ignore[no-untyped-def]
    """(target, source): copy CHUNK_BYTES bytes, through one register."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.IntType(128).as_pointer()
        word = builder.load(builder.inttoptr(arguments[1], kind), align=1)
        builder.store(word, builder.inttoptr(arguments[0], kind), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def copy_bytes(typing, target, source, length):  # type: ignore[no-untyped-def]
    """(target, source, length): memcpy."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        to, source_pointer = (builder.inttoptr(a, pointer) for a in arguments[:2])
        cgutils.raw_memcpy(builder, to, source_pointer, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def prefetch(typing, where):  # type: ignore[no-untyped-def]
    """(address): ask for the cache line that will be read soon; any address is allowed."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, keep, data = ir.Constant(word, 0), ir.Constant(word, 3), ir.Constant(word, 1)
        builder.call(function, [builder.inttoptr(arguments[0], pointer), read, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def bit_length(typing, value):  # type: ignore[no-untyped-def]
    """(int64) -> the number of bits of the value as an unsigned number: 0 for 0, 64 for -1."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zeros = builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0))
        return builder.sub(ir.Constant(_WORD, 64), zeros)

    return types.int64(types.int64), generate


@inlined
def copy(target: int, source: int, length: int) -> None:
    """Copies exactly length bytes; short ones without a call, by two moves that overlap."""
    if length > 256:
        copy_bytes(target, source, length)
    elif length >= 16:
        done = 0
        while done + 16 < length:
            copy_chunk(target + done, source + done)
            done += 16
        copy_chunk(target + length - 16, source + length - 16)
    elif length >= 8:
        last = load64(source + length - 8)
        store64(target, load64(source))
        store64(target + length - 8, last)
    elif length >= 4:
        last = load32(source + length - 4)
        store32(target, load32(source))
        store32(target + length - 4, last)
    else:
        for i in range(length):
            store8(target + i, load8(source + i))


@inlined
def varint_bytes(value: int) -> int:
    """The length of a base-128 varint, 1 to 10: seven bits a byte (protobuf encoding, "Base 128 Varints")."""
    return int(bit_length(value | 1) * 9 + 64) >> 6


@inlined
def spread_varint(value: int, length: int) -> int:
    """The varint of a number below 2^56 as a word: its seven-bit groups in a byte each, all but the last with the high
    bit.
    """
    low = (value & 0x000000000FFFFFFF) | ((value & 0x00FFFFFFF0000000) << 4)
    low = (low & 0x00003FFF00003FFF) | ((low & 0x0FFFC0000FFFC000) << 2)
    low = (low & 0x007F007F007F007F) | ((low & 0x3F803F803F803F80) << 1)
    return low | (0x0080808080808080 & ((1 << ((length - 1) << 3)) - 1))


@inlined
def put_varint_at(at: int, value: int) -> int:
    """Writes a varint at an address and returns the address after it. Writes up to 7 bytes beyond its end."""
    if 0 <= value < 128:
        store8(at, value)
        return at + 1
    length = varint_bytes(value)
    if length <= 8:
        store64(at, spread_varint(value, length))
        return at + length
    # eight bytes, each with another one behind it
    store64(at, spread_varint(value & 0x00FFFFFFFFFFFFFF, 8) | np.int64(-0x8000000000000000))
    high = (value >> 56) & 0xFF
    store8(at + 8, high if length == 9 else (high | 0x80))
    if length == 10:
        store8(at + 9, 1)
    return at + length
