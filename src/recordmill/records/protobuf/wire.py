"""The Protocol Buffers encoding, one small kernel per term of its specification
(protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import numpy as np

from recordmill.base.byte_masks import first_bit
from recordmill.base.kernels import inlined, kernel
from recordmill.base.pointers import load8, load64

VARINT, I64, LEN, I32 = 0, 1, 2, 5  # the wire types that have not gone out of use
MAX_LENGTH = (1 << 31) - 1  # of a length-delimited field, in bytes

PAST_END, LONG_VARINT = 1, 2  # why a packed list is refused; records.example.locate says them in words

# Masks for eight bytes at once, as int64.
HIGH_BITS = -0x7F7F7F7F7F7F7F80  # 0x80 in every byte: the continuation bits, or what is not ASCII
_LOW7 = 0x7F7F7F7F7F7F7F7F
_EVEN7, _ODD7 = 0x007F007F007F007F, 0x7F007F007F007F00
_EVEN14, _ODD14 = 0x00003FFF00003FFF, 0x3FFF00003FFF0000
_EVEN28, _ODD28 = 0x000000000FFFFFFF, 0x0FFFFFFF00000000


@inlined
def compact(word: int) -> int:
    """The value of a varint of up to eight bytes that lies alone in word: eight groups of 7 bits moved together."""
    word &= _LOW7
    word = (word & _EVEN7) | ((word & _ODD7) >> 1)
    word = (word & _EVEN14) | ((word & _ODD14) >> 2)
    return (word & _EVEN28) | ((word & _ODD28) >> 4)


@kernel
def any_varint(at: int, end: int) -> tuple[int, int]:
    """varint() at an address, its value as int64;
    the position is -1 if it is longer than 10 bytes or than what is left.
    """
    value = 0
    for i in range(min(10, end - at)):
        byte = load8(at + i)
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    return value, -1


@kernel
def long_varint(at: int, end: int, limit: int) -> tuple[int, int]:
    """short_varint() where it is not one of up to eight bytes."""
    if at + 16 <= limit and load64(at) & HIGH_BITS == HIGH_BITS:
        ninth, tenth = load8(at + 8), load8(at + 9)
        size = 9 if ninth < 0x80 else 10
        if at + size <= end and (size == 9 or tenth < 0x80):
            return compact(load64(at)) | (ninth & 0x7F) << 56 | ((tenth & 1) << 63 if size == 10 else 0), at + size
    return any_varint(at, end)


@inlined
def short_varint(at: int, end: int, limit: int) -> tuple[int, int]:
    """any_varint() without a branch on the number of bytes, up to eight of them;
    limit is the address where readable memory ends.
    """
    if at + 8 <= limit:
        word = load64(at)
        stop = ~word & HIGH_BITS
        bits = first_bit(np.uint64(stop))  # of the varint, but for its last bit, which is 0
        behind = at + (bits >> 3) + 1
        if stop != 0 and behind <= end:
            return compact(word & ((1 << bits) - 1)), behind
    return long_varint(at, end, limit)


@kernel
def long_extent(at: int, end: int) -> tuple[int, int]:
    """short_extent() for a length of two to five bytes."""
    size, shift = 0, 0
    while at < end and shift <= 28:
        byte = load8(at)
        at += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (at, at + size) if size <= end - at and size <= MAX_LENGTH else (-1, -1)
    return -1, -1


@inlined
def short_extent(at: int, end: int) -> tuple[int, int]:
    """extent() at an address, of at most five bytes, for the paths that send what is unusual elsewhere;
    (-1, -1) is unusual.
    """
    if at < end:
        size = load8(at)
        if size >= 0x80:
            return long_extent(at, end)
        if size < end - at:
            return at + 1, at + 1 + size
    return -1, -1


@kernel
def is_utf8_text(at: int, end: int) -> bool:
    """Whether the addresses [at, end) hold UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above
    U+10FFFF.
    """
    while at < end:
        if at + 8 <= end and load64(at) & HIGH_BITS == 0:
            at += 8
            continue
        lead = load8(at)
        at += 1
        if lead < 0x80:
            continue
        more = 1 if 0xC2 <= lead <= 0xDF else 2 if 0xE0 <= lead <= 0xEF else 3 if 0xF0 <= lead <= 0xF4 else 0
        if more == 0 or at + more > end:
            return False
        lowest = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
        highest = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
        if not lowest <= load8(at) <= highest:
            return False
        for i in range(1, more):
            if load8(at + i) & 0xC0 != 0x80:
                return False
        at += more
    return True
