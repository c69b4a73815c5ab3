"""Where the records of an uncompressed TFRecord file begin, found by hopping from header to header:
no payload is looked at.

Every header's CRC is checked, and every length against the file's size. Small records are read through in windows,
large ones one header at a time, so a file of 10 GB of images costs a read per image. Memory is one window and the
offsets of its records.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recordmill.base.errors import DataError
from recordmill.base.kernels import kernel
from recordmill.base.memory import address_of, load64
from recordmill.records.tfrecord.frames import (
    FRAME_BYTES,
    GOOD,
    HEADER_BYTES,
    MAX_RECORD_BYTES,
    MORE,
    Int64s,
    explain_frame,
    header_fault,
)
from recordmill.storage.files import read_range, stat

_WINDOW_BYTES = 1 << 20  # 1 MiB: a read's fixed cost vanishes, and the window stays in the second-level cache
_LARGE_BYTES = 64 << 10  # 64 KiB: from this mean size on, reading only headers is quicker than reading through


@kernel
def _hop(base: int, size: int, left: int, max_record_bytes: int, starts: Int64s) -> tuple[int, int, int]:
    """(headers found, position of the next, code) in a window of size bytes,
    with `left` bytes from its start to the file's end.
    """
    count, at = 0, 0
    while at < left:
        if at + 12 > size and left - at >= 12:
            return count, at, MORE
        code = header_fault(base + at, left - at, max_record_bytes, True)
        if code != GOOD:
            return count, at, code
        starts[count] = at
        count += 1
        at += load64(base + at) + 16
    return count, at, GOOD


def hop(
    path: str,
    *,
    start: int = 0,
    stop: int | None = None,
    first_record: int = 0,
    source: str | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
) -> Iterator[Int64s]:
    """The byte offsets of the frames that begin in [start, stop), ascending, in arrays of up to some ten thousand.

    Args:
        start: where a frame begins. stop: the file's end if None. first_record: the number of the frame at start, for
            messages.

    Raises:
        DataError: a header is damaged, too long or truncated; it names source, record number and byte offset. Offsets
            before it have been given.
        OSError: as the operating system says it.
    """
    source, size = path if source is None else source, stat(path).size_bytes
    stop = size if stop is None else min(stop, size)
    at, record, window = start, first_record, _WINDOW_BYTES
    starts = np.empty(_WINDOW_BYTES // FRAME_BYTES + 1, np.int64)
    while at < stop:
        data = read_range(path, at, min(at + window, max(stop, at + HEADER_BYTES)))
        count, behind, code = _hop(address_of(data), len(data), size - at, max_record_bytes, starts)
        found = starts[:count] + at
        if count and found[-1] >= stop:
            yield found[: np.searchsorted(found, stop)]
            return
        if count:
            yield found
        if code not in (GOOD, MORE):
            place = f"record {record + count}, byte {at + behind}"
            raise DataError(
                explain_frame(code, data[behind : behind + 8], size - at - behind, max_record_bytes),
                source=source,
                place=place,
            )
        window = HEADER_BYTES if count and behind > count * _LARGE_BYTES else _WINDOW_BYTES
        at, record = at + behind, record + count
