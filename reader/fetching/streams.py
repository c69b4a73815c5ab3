"""`Streams`: files that can only be read from the front, held as far as the next batches need them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from recordmill.reader.fetching.scatter import Held
from recordmill.records.tfrecord.frames import Int64s
from recordmill.shards.access import FileAccess
from recordmill.shards.pieces import FrameBlock


class Streams:
    """The blocks of streamed files that hold the records asked for; asked in the order of a schedule, each file is read
    once an epoch. Not to be shared between threads.
    """

    def __init__(self, files: Sequence[FileAccess], ends: Int64s) -> None:
        self._files, self._ends = files, ends
        self._open: dict[int, _Stream] = {}
        self._asked: set[int] = set()  # the files of the last call

    def hold(self, numbers: Int64s) -> Held:
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
