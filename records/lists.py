"""The second pass of the decoder, column by column: located lists to contiguous values, counted before anything is allocated.

Every kernel takes at, size: int64 [rows], positions and bytes as `records.locate` found them, and bad: uint8 [rows], where it puts the reason
for a row that it can't read; such a row counts as empty.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recordmill.records.wire import LONG_VARINT, PAST_END, Bytes, Ints, copy, is_ascii, is_utf8, load64, memcpy, short_extent, short_varint, varint
from recordmill.schemas.kernels import kernel

Flags = npt.NDArray[np.uint8]

_HIGH = np.uint64(0x8080808080808080)
_ONES = np.uint64(0x0101010101010101)


@kernel
def count_varints(data: Bytes, at: Ints, size: Ints, bad: Flags, offsets: Ints) -> int:
    """offsets: int64 [rows + 1], filled with the running number of varints; gives their total. A varint ends at each byte below 128."""
    total = 0
    offsets[0] = 0
    for row in range(len(at)):
        position, end = at[row], at[row] + size[row]
        before = total
        while position + 8 <= end:
            ends = (~load64(data, position) & _HIGH) >> np.uint64(7)
            total += np.int64((ends * _ONES) >> np.uint64(56))
            position += 8
        while position < end:
            total += 1 if data[position] < 0x80 else 0
            position += 1
        if size[row] > 0 and data[end - 1] >= 0x80:
            bad[row] = PAST_END
            total = before
        offsets[row + 1] = total
    return total


@kernel
def read_varints(data: Bytes, at: Ints, size: Ints, bad: Flags, offsets: Ints, values: Ints) -> None:
    """values[offsets[row] : offsets[row + 1]] = the varints of the row."""
    fault = np.zeros(3, np.int64)
    for row in range(len(at)):
        position, end = at[row], at[row] + size[row]
        for i in range(offsets[row], offsets[row + 1]):
            byte = data[position]
            if byte < 0x80:
                values[i] = byte
                position += 1
                continue
            value, following = short_varint(data, position, end)
            if following < 0:
                value, following = varint(data, position, end, fault)
                if following < 0:
                    bad[row] = LONG_VARINT
                    values[i : offsets[row + 1]] = 0
                    break
            values[i] = np.int64(value)
            position = following


@kernel
def copy_spans(data: Bytes, at: Ints, size: Ints, offsets: Ints, values: Bytes) -> None:
    """values[offsets[row] ...] = the row's size[row] bytes; offsets are in bytes and ascend. values may have 16 bytes of slack at its end."""
    for row in range(len(at)):
        copy(values, offsets[row], data, at[row], size[row])


@kernel
def place_spans(data: Bytes, at: Ints, size: Ints, stride: int, values: Bytes) -> None:
    """values[row * stride ...] = the row's bytes, zeros where the row has none."""
    for row in range(len(at)):
        if size[row] > 0:
            memcpy(values, row * stride, data, at[row], size[row])
        else:
            values[row * stride : (row + 1) * stride] = 0


@kernel
def count_framed(data: Bytes, at: Ints, size: Ints, offsets: Ints) -> int:
    """offsets: int64 [rows + 1], filled with the running number of LEN fields (a bytes_list's values, a FeatureList's steps); gives their total."""
    total = 0
    offsets[0] = 0
    for row in range(len(at)):
        position, end = at[row], at[row] + size[row]
        while position < end:
            _, position = short_extent(data, position + 1, end)
            total += 1
        offsets[row + 1] = total
    return total


@kernel
def find_framed(data: Bytes, at: Ints, size: Ints, value_at: Ints, value_size: Ints) -> None:
    """Position and bytes of each value that count_framed counted, in order."""
    i = 0
    for row in range(len(at)):
        position, end = at[row], at[row] + size[row]
        while position < end:
            start, position = short_extent(data, position + 1, end)
            value_at[i], value_size[i] = start, position - start
            i += 1


@kernel
def check_utf8(values: Bytes, offsets: Ints, bad: Flags) -> int:
    """Mark each value that is not UTF-8; gives their number. One look at all bytes decides when everything is ASCII."""
    count = 0
    if is_ascii(values, offsets[0], offsets[-1]):
        return 0
    for i in range(len(offsets) - 1):
        if not is_utf8(values, offsets[i], offsets[i + 1]):
            bad[i] = 1
            count += 1
    return count
