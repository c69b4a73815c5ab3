"""Packed varints to int64 values, list by list: the second pass of the decoder where a feature is a list of whole
numbers.
"""

from __future__ import annotations

import numpy as np

from recordmill.base.arrays import Bytes, Int64s
from recordmill.base.byte_masks import first_bit
from recordmill.base.kernels import compiles_for, inlined, kernel
from recordmill.base.pointers import (
    address,
    bit_length,
    load8,
    load64,
    store64,
)
from recordmill.records.protobuf.varint_lanes import (
    LOAD_BYTES,
    ROW_BITS,
    SHUFFLES,
    TABLE_ROWS,
    VARINT_WINDOW_BYTES,
    continuation_bits,
    count_ones,
    put_lanes,
    put_single_bytes,
)
from recordmill.records.protobuf.wire import HIGH_BITS, LONG_VARINT, PAST_END, compact, short_varint

OVERRUN = 16  # values behind the last one that read_varints may overwrite
_READABLE = VARINT_WINDOW_BYTES + LOAD_BYTES
_LONG_RUN = 16  # values that are read by words when one was too long for a lane

# where the 7 bits of a byte stand in a pair, as read and moved together
_EVEN7, _ODD7 = (0x007F007F007F007F, 0x3F803F803F803F80)
_STOPS_OF_TWO = -0x7FFF7FFF7FFF8000  # the stop bits of four varints of two bytes
# all stop bits in six bytes, and those of two varints of three
_SIX_BYTES, _STOPS_OF_THREE = (0x0000808080808080, 0x0000800000800000)


@kernel
def count_varints(at: Int64s, size: Int64s, limit: int, bad: Bytes, offsets: Int64s) -> int:
    """offsets: int64 [rows + 1], filled with the running number of varints; gives their total.
    A varint ends at each byte below 128.
    """
    total = 0
    offsets[0] = 0
    for row in range(len(at)):
        position, end = at[row], at[row] + size[row]
        before = total
        while position < end and position + VARINT_WINDOW_BYTES <= limit:
            others = max(position + VARINT_WINDOW_BYTES - end, 0)  # bytes of the window that are no longer the row's
            total += count_ones(~continuation_bits(position) << others)
            position += VARINT_WINDOW_BYTES
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
    """Read up to eight varints out of the eight bytes at the address:
    (how many, their bytes), 0 if not even two end in them.

    Lists tend to numbers of one size: a branch on the pattern of the eight bytes is foretold, and the next ones are on
    their way before these are known. What has no pattern goes two by two without a branch.
    """
    word = load64(at)
    stop = ~word & HIGH_BITS
    if stop == HIGH_BITS and left >= 8:
        return 8, _one_byte_each(word, to)
    if stop == _STOPS_OF_TWO and left >= 4:
        return 4, _two_bytes_each(word, to)
    if stop & _SIX_BYTES == _STOPS_OF_THREE and left >= 2:
        return 2, _three_bytes_each(word, to)
    first = first_bit(np.uint64(stop))
    others = stop & (stop - 1)
    if others == 0 or left < 2:
        return 0, 0
    second = first_bit(np.uint64(others))
    store64(to, compact(word & ((1 << first) - 1)))
    store64(to + 8, compact((word & ((1 << second) - 1)) >> (first + 1)))
    return 2, (second >> 3) + 1


@inlined
def _read_words(position: int, end: int, limit: int, into: int, count: int) -> tuple[int, int]:
    """Read count varints to an address, a word at a time:
    (how many were read before one that is too long, the position behind them).
    """
    i = 0
    while i < count:
        few = 0
        if position + 8 <= limit:
            few, taken = _some_varints(position, count - i, into + 8 * i)
            i, position = i + few, position + taken
        if few == 0:
            value, position = short_varint(position, end, limit)
            if position < 0:
                break
            store64(into + 8 * i, value)
            i += 1
    return i, position


@inlined
def _read_lanes(position: int, limit: int, into: int, count: int, rows: int, shuffles: int) -> tuple[int, int]:
    """The same up to one that does not fit a lane, or up to _READABLE bytes before limit; may write OVERRUN values
    behind the last one.

    Where a window's last varint ends, and how many there are, is told by its bits alone: so the processor begins the
    next window while this one is read.
    """
    i = 0
    while i < count and position + _READABLE <= limit:
        bits = continuation_bits(position)
        used, end = 0, bit_length(~bits)
        at, last = i, min(i + count_ones(~bits), count)
        if bits == 0:
            for first in range(0, VARINT_WINDOW_BYTES, LOAD_BYTES):
                if at + first < last:
                    put_single_bytes(into + 8 * (at + first), position + first)
            at = last
        while at < last:
            about = load64(rows + 8 * ((bits >> used) & ROW_BITS))
            put_lanes(into + 8 * at, position + used, shuffles + (about >> 16))
            at, used = at + (about & 0xFF), used + ((about >> 8) & 0xFF)
            if about & 0xFF == 0:
                return at, position + used
        if end == 0:
            return i, position
        i, position = last, position + end
    return i, position


@inlined
def _read_both(position: int, end: int, limit: int, into: int, count: int, rows: int, shuffles: int) -> int:
    """Read count varints; gives how many were read before one that is too long. Where some are too long for a lane, the
    next ones may be, too.
    """
    i = 0
    while i < count:
        few, position = _read_lanes(position, limit, into + 8 * i, count - i, rows, shuffles)
        i += few
        wanted = min(count - i, _LONG_RUN)
        few, position = _read_words(position, end, limit, into + 8 * i, wanted)
        i += few
        if few < wanted:
            break
    return i


if compiles_for("ssse3"):

    @inlined
    def _read_row(position: int, end: int, limit: int, into: int, count: int) -> int:
        return _read_both(position, end, limit, into, count, address(TABLE_ROWS), address(SHUFFLES))
else:

    @inlined
    def _read_row(position: int, end: int, limit: int, into: int, count: int) -> int:
        return _read_words(position, end, limit, into, count)[0]


@kernel
def read_varints(at: Int64s, size: Int64s, limit: int, bad: Bytes, offsets: Int64s, values: Int64s) -> None:
    """values[offsets[row] : offsets[row + 1]] = the varints of the row;
    values has OVERRUN more items than there are varints.
    """
    into = address(values)
    for row in range(len(at)):
        count = offsets[row + 1] - offsets[row]
        done = _read_row(at[row], at[row] + size[row], limit, into + 8 * offsets[row], count)
        if done < count:
            bad[row] = LONG_VARINT
            values[offsets[row] + done : offsets[row + 1]] = 0
