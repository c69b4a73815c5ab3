"""Checks of UTF-8 text and of feature names."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.buffers import Bytes


def find_invalid_utf8(data: Bytes) -> int:
    """Returns the offset of the first byte that is not valid UTF-8, or -1.

    The check follows RFC 3629, so surrogates and overlong forms are invalid.
    """
    offset = np.empty(1, np.int64)
    native.find_bad_lines(data, np.zeros(1, np.int64), np.array([len(data)]), offset)
    return int(offset[0])


def is_utf8(data: Bytes) -> bool:
    """Returns whether the data is valid UTF-8."""
    return find_invalid_utf8(data) < 0


def split_lines(data: Bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns (starts, stops): the offsets of each line, without its LF or CRLF."""
    # A CR belongs to the line break only directly before an LF.
    ends = np.flatnonzero(data == ord("\n"))
    starts, stops = np.append(0, ends + 1), ends - ((ends > 0) & (data[ends - 1] == ord("\r")))
    # The last line may have no line break. A break at the end of the data begins no further line.
    return (starts, np.append(stops, len(data))) if starts[-1] < len(data) else (starts[:-1], stops)


def find_invalid_lines(data: Bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Finds the lines that are not valid UTF-8.

    Returns:
        (starts, offsets): the start of each such line in `data`, and the offset of its first
        invalid byte within the line.
    """
    starts, stops = split_lines(data)
    offsets = np.empty(len(starts), np.int64)
    native.find_bad_lines(data, starts, stops, offsets)
    return starts[offsets >= 0], offsets[offsets >= 0]


BAD_NAME_MESSAGE = "this is not a name (UTF-8 text without NUL)"


def is_feature_name(name: str | bytes) -> bool:
    r"""Returns whether a feature can have this name: UTF-8 text without NUL.

    >>> is_feature_name("image/encoded"), is_feature_name("a\0b"), is_feature_name(b"\xff")
    (True, False, False)
    """
    try:
        return "\0" not in (name.encode() if isinstance(name, str) else name).decode()
    except UnicodeError:
        return False
