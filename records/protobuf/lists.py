"""The second pass of the decoder, column by column:
located lists to contiguous values, counted before anything is allocated.

Every kernel takes at, size: int64 [rows], addresses and bytes as `records.example.locate` found them. A row that can't
be read gets its reason in bad: uint8 [rows], and counts as empty.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recordmill.base.kernels import kernel
from recordmill.base.memory import address, copy, copy_bytes, copy_chunk
from recordmill.records.protobuf.wire import Bytes, Ints, is_ascii, is_utf8, short_extent

Flags = npt.NDArray[np.uint8]

SLACK = 16  # bytes of room that copy_spans wants behind its values


@kernel
def copy_spans(at: Ints, size: Ints, limit: int, offsets: Ints, values: Bytes) -> None:
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
