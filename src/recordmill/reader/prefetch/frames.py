"""Records of these numbers, in any order, to one contiguous buffer of checked frames in that order.

The numbers are sorted for the reading, so that each file is gone through forwards, and each frame is copied to the
place that it has in the order wanted: the decoder then makes columns whose rows need no second permutation. Files that
can only be read from the front are held as far as the next batches need them (`Streams`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from recordmill.base.arrays import Bytes, Int64s
from recordmill.base.buffers import room
from recordmill.base.errors import DataError
from recordmill.base.kernels import kernel
from recordmill.base.pointers import address, address_of, copy, load64, prefetch
from recordmill.reader.prefetch.timing import timed
from recordmill.records.tfrecord.frames import FRAME_BYTES, Frames, scan
from recordmill.shards.access import FileAccess
from recordmill.shards.pieces import FrameBlock

StreamedBlocks = Mapping[
    int, Sequence[FrameBlock]
]  # ordinal of a file that is only streamed: blocks of it that were read
_AHEAD = 6  # frames whose bytes are asked for before they are copied: about what a core has under way


def ordered_frames(files: Sequence[FileAccess], ends: Int64s, numbers: Int64s, held: StreamedBlocks) -> Frames:
    """The frames of these records, one after the other in the order of the numbers.

    Args:
        ends: int64 [files], the number of records up to and with each file.
        numbers: int64 [rows] in [0, ends[-1]), in any order, also several times.
        held: what was read of files that are not seekable; it has all of these records.

    Raises:
        DataError: a record is damaged; the error may lack its place (see `prefetcher`).
    """
    ascending = np.argsort(numbers, kind="stable")
    behind = np.searchsorted(numbers[ascending], ends).tolist()
    parts = []
    begin = 0
    for at, end in enumerate(behind):
        if begin < end:
            rows = ascending[begin:end]
            parts.append((at, rows, numbers[rows] - (int(ends[at - 1]) if at else 0)))
        begin = end
    sizes = np.empty(len(numbers), np.int64)
    with timed("read"):
        for at, rows, records in parts:
            sizes[rows] = _lengths(files[at], records, held.get(at, ())) + FRAME_BYTES
        targets = np.cumsum(sizes) - sizes
        out = room(int(sizes.sum()), np.uint8)
        for at, rows, records in parts:
            _place(files[at], records, held.get(at, ()), targets[rows], sizes[rows], out)
    with timed("check"):
        frames, _ = scan(out, source="", final=True)
    if not np.array_equal(frames.starts, targets):
        raise DataError("the index does not fit the shard")
    return frames


def _lengths(file: FileAccess, records: Int64s, blocks: Sequence[FrameBlock]) -> Int64s:
    if file.seekable:
        return file.lengths(records)
    lengths = np.empty(len(records), np.int64)
    for block, within, rows in _of_blocks(records, blocks):
        lengths[rows] = block.frames.lengths[within]
    return lengths


def _place(
    file: FileAccess, records: Int64s, blocks: Sequence[FrameBlock], targets: Int64s, sizes: Int64s, out: Bytes
) -> None:
    """Copy the frames of ascending records to their places in out."""
    if not file.seekable:
        for block, within, rows in _of_blocks(records, blocks):
            _scatter_checked(file, block.frames.data, block.frames.starts[within], sizes[rows], targets[rows], out)
        return
    begin = 0
    for portion in file.portions(records, 1 << 62):
        data, starts, _ = file.reach(portion)
        part = slice(begin, begin + len(portion))
        _scatter_checked(file, data, starts, sizes[part], targets[part], out)
        begin += len(portion)


def _of_blocks(records: Int64s, blocks: Sequence[FrameBlock]) -> list[tuple[FrameBlock, Int64s, slice]]:
    """(block, [n] which of its frames, which of the ascending records these are)."""
    found = []
    for block in blocks:
        first = block.first_record
        low, high = np.searchsorted(records, [first, first + len(block.frames)]).tolist()
        if low < high:
            found.append((block, records[low:high] - first, slice(low, high)))
    return found


def _scatter_checked(file: FileAccess, data: Bytes, starts: Int64s, sizes: Int64s, targets: Int64s, out: Bytes) -> None:
    data = np.ascontiguousarray(data)
    starts, sizes, targets = (np.ascontiguousarray(array, np.int64) for array in (starts, sizes, targets))
    if not _scatter(
        address_of(data), len(data), address_of(starts), address_of(sizes), address_of(targets), len(starts), out
    ):
        raise DataError("ends before its last record", source=file.file.path)


@kernel
def _scatter(source: int, source_bytes: int, starts: int, sizes: int, targets: int, count: int, out: Bytes) -> bool:
    target, room_bytes = address(out), len(out)
    for i in range(count):
        start, size, place = load64(starts + 8 * i), load64(sizes + 8 * i), load64(targets + 8 * i)
        if size < 0 or start < 0 or start > source_bytes - size or place < 0 or place > room_bytes - size:
            return False
        if i + _AHEAD < count:
            ahead = load64(starts + 8 * (i + _AHEAD))
            if 0 <= ahead < source_bytes:
                for line in range(0, min(load64(sizes + 8 * (i + _AHEAD)), 512), 64):
                    prefetch(source + ahead + line)
        copy(target + place, source + start, size)
    return True


class Streams:
    """The blocks of streamed files that hold the records asked for; asked in the order of a schedule, each file is read
    once an epoch. Not to be shared between threads.
    """

    def __init__(self, files: Sequence[FileAccess], ends: Int64s) -> None:
        self._files, self._ends = files, ends
        self._open: dict[int, _Stream] = {}
        self._asked: set[int] = set()  # the files of the last call

    def hold(self, numbers: Int64s) -> StreamedBlocks:
        """Blocks with all records of these numbers that lie in streamed files."""
        low = np.sort(numbers)
        behind = np.searchsorted(low, self._ends).tolist()
        held: dict[int, Sequence[FrameBlock]] = {}
        begin = 0
        for at, end in enumerate(behind):
            if begin < end and not self._files[at].seekable:
                first = int(self._ends[at - 1]) if at else 0
                stream = self._open.setdefault(at, _Stream(self._files[at]))
                held[at] = stream.blocks(int(low[begin]) - first, int(low[end - 1]) - first)
            begin = end
        # A file that neither these numbers nor those before them were in is done with, for this epoch.
        for at in self._open.keys() - held.keys() - self._asked:
            del self._open[at]
        self._asked = set(held)
        return held

    @property
    def open_files(self) -> list[int]:
        """The ordinals of the files of which something is held."""
        return sorted(self._open)


class _Stream:
    def __init__(self, file: FileAccess) -> None:
        self._file, self._low = file, 0
        self._begin()

    def _begin(self) -> None:
        self._reading: Iterator[FrameBlock] = self._file.blocks(0, self._file.records)
        self._held: list[FrameBlock] = []
        self._behind = 0

    def blocks(self, first: int, last: int) -> list[FrameBlock]:
        """Those that hold records first to last. What lies before both this `first` and the one before is forgotten,
        since batches of one window ask for records to and fro; what is asked for again is read anew from the front.
        """
        if first < (self._held[0].first_record if self._held else self._behind):
            self._begin()
        while self._behind <= last:
            block = next(self._reading)
            self._behind = block.first_record + len(block.frames)
            self._held.append(block)
        forgotten, self._low = min(self._low, first), first
        self._held = [block for block in self._held if block.first_record + len(block.frames) > forgotten]
        return list(self._held)
