"""The Protocol Buffers encoding, one small kernel per term of its specification
(protobuf.dev/programming-guides/encoding);
and the second pass of the decoder for bytes lists: located lists to contiguous values, counted before anything is
allocated.
"""

from __future__ import annotations

import numpy as np

from recordmill.base.arrays import Bytes, Int64s
from recordmill.base.byte_masks import first_bit
from recordmill.base.kernels import inlined, kernel
from recordmill.base.pointers import address, copy, copy_bytes, copy_chunk, load8, load64

VARINT, I64, LEN, I32 = 0, 1, 2, 5  # the wire types that have not gone out of use
MAX_LENGTH = (1 << 31) - 1  # of a length-delimited field, in bytes

PAST_END, LONG_VARINT = 1, 2  # why a packed list is refused; records.example.locate says them in words

# Masks for eight bytes at once, as int64.
HIGH_BITS = -0x7F7F7F7F7F7F7F80  # 0x80 in every byte: the continuation bits, or what is not ASCII
_LOW7 = 0x7F7F7F7F7F7F7F7F
_EVEN7, _ODD7 = 0x007F007F007F007F, 0x7F007F007F007F00
_EVEN14, _ODD14 = 0x00003FFF00003FFF, 0x3FFF00003FFF0000
_EVEN28, _ODD28 = 0x000000000FFFFFFF, 0x0FFFFFFF00000000


@kernel
def refuse_field(fault: Int64s, reason: int, at: int) -> int:
    """Note why and where; gives -1, the position that means a refusal."""
    fault[0] = reason
    fault[1] = at
    return -1


@kernel
def varint(data: Bytes, at: int, end: int, fault: Int64s) -> tuple[np.uint64, int]:
    """(value, position behind it).

    "Each byte in the varint has a continuation bit that indicates if the byte that follows it is part of the varint.
    [...] the lower 7 bits are a payload", least significant group first. At most ten bytes; bits beyond the 64th are
    dropped, and a longer form than needed means the same value.
    """
    value = np.uint64(0)
    for i in range(10):
        if at + i >= end:
            return value, refuse_field(fault, PAST_END, at)
        byte = np.uint64(data[at + i])
        value |= (byte & np.uint64(0x7F)) << np.uint64(7 * i)
        if byte < np.uint64(0x80):
            return value, at + i + 1
    return value, refuse_field(fault, LONG_VARINT, at)


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
def is_ascii(at: int, end: int) -> bool:
    """Whether no byte at the addresses [at, end) has its high bit set."""
    while at + 8 <= end:
        if load64(at) & HIGH_BITS != 0:
            return False
        at += 8
    while at < end:
        if load8(at) >= 0x80:
            return False
        at += 1
    return True


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


SLACK = 16  # bytes of room that copy_spans wants behind its values


@kernel
def copy_spans(at: Int64s, size: Int64s, limit: int, offsets: Int64s, values: Bytes) -> None:
    """values[offsets[row] ...] = the row's bytes; offsets are in bytes and ascend;
    values has SLACK bytes behind the last one.

    Short spans are moved as 16 bytes whatever their length, which the next one overwrites, unless that would read
    behind limit.
    """
    into = address(values)
    for row in range(len(at)):
        source, count = at[row], size[row]
        if count <= 16 and not limit - 16 < source < limit:
            if count > 0:
                copy_chunk(into + offsets[row], source)
        else:
            copy(into + offsets[row], source, count)


@kernel
def scatter_spans(at: Int64s, size: Int64s, stride: int, values: Bytes) -> None:
    """values[row * stride ...] = the row's bytes, zeros where the row has none."""
    into = address(values)
    for row in range(len(at)):
        if size[row] > 0:
            copy_bytes(into + row * stride, at[row], size[row])
        else:
            values[row * stride : (row + 1) * stride] = 0


@kernel
def count_framed(at: Int64s, size: Int64s, offsets: Int64s) -> int:
    """offsets: int64 [rows + 1], filled with the running number of LEN fields (a bytes_list's values, a FeatureList's
    steps); gives their total.
    """
    total = 0
    offsets[0] = 0
    for row in range(len(at)):
        position, end = at[row], at[row] + size[row]
        while 0 <= position < end:
            _, position = short_extent(position + 1, end)
            total += 1
        offsets[row + 1] = total
    return total


@kernel
def find_framed(at: Int64s, size: Int64s, value_at: Int64s, value_size: Int64s) -> None:
    """Address and bytes of each value that count_framed counted, in order."""
    i = 0
    for row in range(len(at)):
        position, end = at[row], at[row] + size[row]
        while 0 <= position < end and i < len(value_at):
            start, position = short_extent(position + 1, end)
            value_at[i], value_size[i] = start, position - start
            i += 1


@kernel
def copy_framed(at: Int64s, size: Int64s, limit: int, ends: Int64s, values: Bytes) -> int:
    """The bytes of the values that count_framed counted, one behind the other in values, as copy_spans moves them;
    ends: int64 [values + 1], where each begins, and the last ends, which is given.

    values has SLACK bytes behind the sum of size, less two bytes for each value.
    """
    into = address(values)
    i = to = ends[0] = 0
    for row in range(len(at)):
        position, end = at[row], at[row] + size[row]
        while 0 <= position < end and i < len(ends) - 1:
            source, position = short_extent(position + 1, end)
            count = position - source
            if count <= 16 and not limit - 16 < source < limit:
                if count > 0:
                    copy_chunk(into + to, source)
            else:
                copy(into + to, source, count)
            to += count
            i += 1
            ends[i] = to
    return to


@kernel
def check_utf8(values: Bytes, offsets: Int64s, flags: Bytes) -> int:
    """Flag each value that is not UTF-8; gives their number. One look at all bytes decides when everything is ASCII."""
    count = 0
    base = address(values)
    if is_ascii(base + offsets[0], base + offsets[-1]):
        return 0
    for i in range(len(offsets) - 1):
        if not is_utf8_text(base + offsets[i], base + offsets[i + 1]):
            flags[i] = 1
            count += 1
    return count
