"""The second pass of the decoder, column by column: located lists to contiguous values, counted before anything is allocated.

Every kernel takes at, size: int64 [rows], addresses and bytes as `records.locate` found them. A row that can't be read gets its reason in
bad: uint8 [rows], and counts as empty.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recordmill.records.memory import address, copy, copy_bytes, copy_chunk, load8, load64, store64
from recordmill.records.wire import HIGH_BITS, LONG_VARINT, PAST_END, Bytes, Ints, compact, is_ascii, is_utf8, short_extent, short_varint, trailing_zeros
from recordmill.schemas.kernels import inlined, kernel

Flags = npt.NDArray[np.uint8]

SLACK = 16  # bytes of room that copy_spans wants behind its values

_ONES = 0x0101010101010101
_EVEN7, _ODD7 = 0x007F007F007F007F, 0x3F803F803F803F80  # where the 7 bits of a byte stand in a pair, as read and moved together
_STOPS_OF_TWO = -0x7FFF7FFF7FFF8000  # the stop bits of four varints of two bytes
_SIX_BYTES, _STOPS_OF_THREE = 0x0000808080808080, 0x0000800000800000  # all stop bits in six bytes, and those of two varints of three


@kernel
def count_varints(at: Ints, size: Ints, bad: Flags, offsets: Ints) -> int:
    """offsets: int64 [rows + 1], filled with the running number of varints; gives their total. A varint ends at each byte below 128."""
    total = 0
    offsets[0] = 0
    for row in range(len(at)):
        position, end = at[row], at[row] + size[row]
        before = total
        while position + 8 <= end:
            ends = (~load64(position) & HIGH_BITS) >> 7
            total += (((ends & _ONES) * _ONES) >> 56) & 15
            position += 8
        while position < end:
            total += 1 - (load8(position) >> 7)
            position += 1
        if size[row] > 0 and load8(end - 1) >= 0x80:
            bad[row] = PAST_END
            total = before
        offsets[row + 1] = total
    return total


@inlined
def _one_byte_each(word: int, to: int) -> int:
    """Eight values of one byte; gives the bytes read."""
    for i in range(8):
        store64(to + 8 * i, (word >> (8 * i)) & 0x7F)
    return 8


@inlined
def _two_bytes_each(word: int, to: int) -> int:
    """Four values of two bytes; gives the bytes read."""
    word = (word & _EVEN7) | ((word >> 1) & _ODD7)
    for i in range(4):
        store64(to + 8 * i, (word >> (16 * i)) & 0x3FFF)
    return 8


@inlined
def _three_bytes_each(word: int, to: int) -> int:
    """Two values of three bytes; gives the bytes read."""
    store64(to, (word & 0x7F) | (word >> 1 & 0x3F80) | (word >> 2 & 0x1FC000))
    store64(to + 8, (word >> 24 & 0x7F) | (word >> 25 & 0x3F80) | (word >> 26 & 0x1FC000))
    return 6


@inlined
def _some_varints(at: int, left: int, to: int) -> tuple[int, int]:
    """Read up to eight varints out of the eight bytes at the address: (how many, their bytes), 0 if not even two end in them.

    Lists tend to numbers of one size: a branch on the pattern of the eight bytes is foretold, and the next ones are on their way before these are
    known. What has no pattern goes two by two without a branch.
    """
    word = load64(at)
    stop = ~word & HIGH_BITS
    if stop == HIGH_BITS and left >= 8:
        return 8, _one_byte_each(word, to)
    if stop == _STOPS_OF_TWO and left >= 4:
        return 4, _two_bytes_each(word, to)
    if stop & _SIX_BYTES == _STOPS_OF_THREE and left >= 2:
        return 2, _three_bytes_each(word, to)
    first = trailing_zeros(stop)
    others = stop & (stop - 1)
    if others == 0 or left < 2:
        return 0, 0
    second = trailing_zeros(others)
    store64(to, compact(word & ((1 << first) - 1)))
    store64(to + 8, compact((word & ((1 << second) - 1)) >> (first + 1)))
    return 2, (second >> 3) + 1


@kernel
def read_varints(at: Ints, size: Ints, limit: int, bad: Flags, offsets: Ints, values: Ints) -> None:
    """values[offsets[row] : offsets[row + 1]] = the varints of the row; limit as in short_varint."""
    into = address(values)
    for row in range(len(at)):
        position, end = at[row], at[row] + size[row]
        i, stop = offsets[row], offsets[row + 1]
        while i < stop:
            count = 0
            if position + 8 <= limit:
                count, taken = _some_varints(position, stop - i, into + 8 * i)
                i, position = i + count, position + taken
            if count == 0:
                values[i], position = short_varint(position, end, limit)
                i += 1
                if position < 0:
                    bad[row] = LONG_VARINT
                    values[i:stop] = 0
                    break


@kernel
def copy_spans(at: Ints, size: Ints, limit: int, offsets: Ints, values: Bytes) -> None:
    """values[offsets[row] ...] = the row's bytes; offsets are in bytes and ascend; values has SLACK bytes behind the last one.

    Short spans are moved as 16 bytes whatever their length, which the next one overwrites, unless that would read behind limit.
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
def place_spans(at: Ints, size: Ints, stride: int, values: Bytes) -> None:
    """values[row * stride ...] = the row's bytes, zeros where the row has none."""
    into = address(values)
    for row in range(len(at)):
        if size[row] > 0:
            copy_bytes(into + row * stride, at[row], size[row])
        else:
            values[row * stride : (row + 1) * stride] = 0


@kernel
def count_framed(at: Ints, size: Ints, offsets: Ints) -> int:
    """offsets: int64 [rows + 1], filled with the running number of LEN fields (a bytes_list's values, a FeatureList's steps); gives their total."""
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
def find_framed(at: Ints, size: Ints, value_at: Ints, value_size: Ints) -> None:
    """Address and bytes of each value that count_framed counted, in order."""
    i = 0
    for row in range(len(at)):
        position, end = at[row], at[row] + size[row]
        while 0 <= position < end and i < len(value_at):
            start, position = short_extent(position + 1, end)
            value_at[i], value_size[i] = start, position - start
            i += 1


@kernel
def check_utf8(values: Bytes, offsets: Ints, flags: Flags) -> int:
    """Flag each value that is not UTF-8; gives their number. One look at all bytes decides when everything is ASCII."""
    count = 0
    base = address(values)
    if is_ascii(base + offsets[0], base + offsets[-1]):
        return 0
    for i in range(len(offsets) - 1):
        if not is_utf8(base + offsets[i], base + offsets[i + 1]):
            flags[i] = 1
            count += 1
    return count
