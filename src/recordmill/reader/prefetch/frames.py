"""Records of these numbers, in any order, to one contiguous buffer of checked frames in that order.

The numbers are sorted for the reading, so that each file is gone through forwards, and each frame is copied to the
place that it has in the order wanted: the decoder then makes columns whose rows need no second permutation. Files that
can only be read from the front are held as far as the next batches need them (`Streams`).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from recordmill.base import native
from recordmill.base.arrays import Bytes, Int64s
from recordmill.base.buffers import room
from recordmill.base.errors import DataError
from recordmill.reader.prefetch.protocols import timed
from recordmill.records.tfrecord.frames import FRAME_BYTES, Frames, scan
from recordmill.shards.access import FileAccess, by_file
from recordmill.shards.pieces import PIECE_BYTES, FrameBlock

StreamedBlocks = Mapping[
    int, Sequence[FrameBlock]
]  # ordinal of a file that is only streamed: blocks of it that were read


def ordered_frames(files: Sequence[FileAccess], ends: Int64s, numbers: Int64s, held: StreamedBlocks) -> Frames:
    """The frames of these records, one after the other in the order of the numbers.

    Args:
        ends: int64 [files], the number of records up to and with each file.
        numbers: int64 [rows] in [0, ends[-1]), in any order, also several times.
        held: what was read of files that are not seekable; it has all of these records.

    Raises:
        DataError: a record is damaged; the error may lack its place (see `prefetcher`).
    """
    order = np.argsort(numbers, kind="stable")
    ascending = np.ascontiguousarray(numbers[order], np.int64)
    parts = []
    sizes = np.empty(len(numbers), np.int64)
    with timed("read"):
        for at, first, own in by_file(ends, ascending):
            part = _part_of(files[at], order[own], ascending[own] - first, held.get(at, ()))
            sizes[part.rows] = part.lengths + FRAME_BYTES
            parts.append(part)
        targets = np.cumsum(sizes) - sizes
        out = room(int(sizes.sum()), np.uint8)
        for part in parts:
            _place(part, targets[part.rows], sizes[part.rows], out)
    with timed("check"):
        frames, _ = scan(out, source="", final=True)
    if not np.array_equal(frames.starts, targets):
        raise DataError("the index does not fit the shard")
    return frames


@dataclass(frozen=True)
class _Part:
    """Ascending records of one file: rows, which of the numbers they are; lengths, of their payloads; offsets, of a
    seekable file; blocks, of another one: (block, [n] which of its frames, which of the records these are).
    """

    file: FileAccess
    rows: Int64s
    lengths: Int64s
    offsets: Int64s | None
    blocks: Sequence[tuple[FrameBlock, Int64s, slice]] = ()


def _part_of(file: FileAccess, rows: Int64s, records: Int64s, blocks: Sequence[FrameBlock]) -> _Part:
    if file.seekable:
        offsets, lengths = file.locate(records)
        return _Part(file, rows, lengths, offsets)
    found, lengths = [], np.empty(len(records), np.int64)
    for block in blocks:
        within = _within(block, records)
        if within.start < within.stop and block.fault:
            raise DataError(block.fault, source=file.file.path, place=f"record {block.first_record}")
        if within.start < within.stop:
            found.append((block, records[within] - block.first_record, within))
            lengths[within] = block.frames.lengths[found[-1][1]]
    return _Part(file, rows, lengths, None, found)


def _within(block: FrameBlock, records: Int64s) -> slice:
    """Returns which of the ascending records are in the block."""
    return slice(*np.searchsorted(records, [block.first_record, block.first_record + block.records]).tolist())


def _place(part: _Part, targets: Int64s, sizes: Int64s, out: Bytes) -> None:
    """Copies the frames of ascending records to their places in out."""
    file = part.file
    if part.offsets is None:
        for block, within, rows in part.blocks:
            _scatter_checked(file, block.frames.data, block.frames.starts[within], sizes[rows], targets[rows], out)
        return
    for rows in file.portions(part.offsets, part.lengths, 1 << 62):
        data, starts = file.reach(part.offsets[rows], part.lengths[rows])
        _scatter_checked(file, data, starts, sizes[rows], targets[rows], out)


def _scatter_checked(file: FileAccess, data: Bytes, starts: Int64s, sizes: Int64s, targets: Int64s, out: Bytes) -> None:
    data = np.ascontiguousarray(data)
    starts, sizes, targets = (np.ascontiguousarray(array, np.int64) for array in (starts, sizes, targets))
    if native.copy_spans([data], None, starts, sizes, targets, out) < len(starts):
        raise DataError("ends before its last record", source=file.file.path)
    file.file.check_as_read()


def blocks_with(files: Sequence[FileAccess], ends: Int64s, numbers: Int64s) -> StreamedBlocks:
    """Returns the blocks of streamed files that hold records of these numbers."""
    held: dict[int, Sequence[FrameBlock]] = {}
    ascending = np.sort(numbers)
    for at, first, own in by_file(ends, ascending):
        if not files[at].seekable:
            records = ascending[own] - first
            found = files[at].blocks(int(records[0]), int(records[-1]) + 1)
            held[at] = [block for block in found if (part := _within(block, records)).start < part.stop]
    return held


class Streams:
    """The blocks of streamed files that hold the records asked for; asked in the order of a schedule, each file is read
    once an epoch. Not to be shared between threads.
    """

    def __init__(self, files: Sequence[FileAccess], ends: Int64s) -> None:
        self._files, self._ends = files, ends
        self._open: dict[tuple[int, int], _Stream] = {}  # by file and pass
        self._asked: set[tuple[int, int]] = set()  # those of the last call

    def hold(self, numbers: Int64s, passes: Int64s) -> StreamedBlocks:
        """Blocks with all records of these numbers that lie in streamed files.

        Args:
            passes: which pass over all records each number is of: the end of one and the begin of the next are read
                by two streams, and not held with all between.
        """
        held: dict[int, dict[int, FrameBlock]] = {}
        asked = set()
        for one in np.unique(passes).tolist():
            ascending = np.sort(numbers[passes == one])
            for at, first, own in by_file(self._ends, ascending):
                file = self._files[at]
                if file.seekable:
                    continue
                key = (at, 0 if file.framed_bytes <= PIECE_BYTES else one)  # a small one is a block, read once for all
                asked.add(key)
                if (stream := self._open.get(key)) is None:
                    stream = self._open[key] = _Stream(file)
                for block in stream.blocks(int(ascending[own.start]) - first, int(ascending[own.stop - 1]) - first):
                    held.setdefault(at, {})[block.first_record] = block
        # A file that neither these numbers nor those before them were in is done with, for this epoch.
        for key in self._open.keys() - asked - self._asked:
            del self._open[key]
        self._asked = asked
        return {at: list(blocks.values()) for at, blocks in held.items()}

    @property
    def open_files(self) -> list[int]:
        """The ordinals of the files of which something is held."""
        return sorted({at for at, _ in self._open})


class _Stream:
    def __init__(self, file: FileAccess) -> None:
        self._file, self._low = file, 0
        self._begin()

    def _begin(self) -> None:
        self._reading: Generator[FrameBlock, None, None] = self._file.blocks(0, self._file.records)
        self._held: list[FrameBlock] = []
        self._behind = 0

    def blocks(self, first: int, last: int) -> list[FrameBlock]:
        """Returns the blocks that hold records first to last.

        What lies before both this `first` and the one before is forgotten, since batches of one window ask for records
        to and fro; what is asked for again is read anew from the front.
        """
        if first < (self._held[0].first_record if self._held else self._behind):
            self._begin()
        while self._behind <= last:
            block = next(self._reading)
            self._behind = block.first_record + block.records
            self._held.append(block)
        if self._behind >= self._file.records:
            self._reading.close()  # and with it the file, of which there may be very many
        forgotten, self._low = min(self._low, first), first
        self._held = [block for block in self._held if block.first_record + block.records > forgotten]
        return list(self._held)
