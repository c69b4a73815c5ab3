"""Whether bytes are UTF-8, and where they are not:
for whole blocks at memory speed, for single lines only if a block is not.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.arrays import Bytes
from recordmill.base.kernels import allocating, kernel


def is_utf8(data: Bytes) -> bool:
    """Arrow's check of the data as one text."""
    offsets = np.array([0, len(data)], np.int64)
    text = pa.Array.from_buffers(
        pa.large_string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


@kernel
def first_bad_byte(data: npt.NDArray[np.uint8], at: int, stop: int) -> int:
    """The place of the first byte of [at, stop) that begins no UTF-8 character (RFC 3629: no surrogates, nothing
    overlong); -1 if all do.
    """
    while at < stop:
        byte = data[at]
        if byte < 0x80:
            at += 1
            continue
        extra = 1 if 0xC2 <= byte <= 0xDF else 2 if 0xE0 <= byte <= 0xEF else 3 if 0xF0 <= byte <= 0xF4 else 0
        if extra == 0 or at + extra >= stop:
            return at
        second = data[at + 1]
        low = 0xA0 if byte == 0xE0 else 0x90 if byte == 0xF0 else 0x80
        high = 0x9F if byte == 0xED else 0x8F if byte == 0xF4 else 0xBF
        if second < low or second > high:
            return at
        for more in range(2, extra + 1):
            if data[at + more] < 0x80 or data[at + more] > 0xBF:
                return at
        at += extra + 1
    return -1


@allocating
def bad_lines(data: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(starts of the lines that are not UTF-8, the place of the first bad byte in each)."""
    starts, places, found, start = np.empty(64, np.int64), np.empty(64, np.int64), 0, 0
    while start < len(data):
        stop = start
        while stop < len(data) and data[stop] != 10:
            stop += 1
        bad = first_bad_byte(data, start, stop)
        if bad >= 0:
            if found == len(starts):
                starts, places = np.concatenate((starts, starts)), np.concatenate((places, places))
            starts[found], places[found] = start, bad
            found += 1
        start = stop + 1
    return starts[:found], places[:found]


NO_NAME = "this is no name (UTF-8 text without NUL)"


def is_feature_name(name: str | bytes) -> bool:
    """Whether a feature can be called so: by any UTF-8 text without NUL.

    >>> is_feature_name("image/encoded"), is_feature_name("a\\0b"), is_feature_name(b"\\xff")
    (True, False, False)
    """
    try:
        return "\0" not in (name.encode() if isinstance(name, str) else name).decode()
    except UnicodeError:
        return False
