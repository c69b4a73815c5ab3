"""Records of several TFRecord files, read by their numbers: `RecordFiles`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import overload

import numpy as np

from recordmill.base.buffers import Int64s, allocate
from recordmill.base.machine import count_cores
from recordmill.base.stages import time_stage
from recordmill.base.threads import thread_map
from recordmill.records.tfrecord.frames import (
    FRAME_OVERHEAD_BYTES,
    Damage,
    FileFrames,
    FileOrigin,
    describe_place,
)
from recordmill.records.tfrecord.stream import scan_piece
from recordmill.shards.catalog import ShardFile
from recordmill.shards.joined_shards import join_shards
from recordmill.shards.pieces import Unreadable
from recordmill.shards.tfrecord_file import (
    InflatedFile,
    TFRecordFile,
    group_by_file,
    make_mismatch_error,
    open_tfrecord,
)
from recordmill.storage.spool import Spool, check_space


class RecordFiles(Sequence[TFRecordFile]):
    """Files with record numbers that count the records of all files. Threads can share it.

    It is the `Origin` of frames that come from several files.
    """

    def __init__(self, files: Sequence[TFRecordFile], parts: Sequence[RecordFiles] = ()) -> None:
        self._files, self._parts = list(files), tuple(parts)
        self._ends: Int64s | None = None
        # None if the files are read one by one
        self._joined = join_shards(self._files)

    @classmethod
    def open(cls, files: Sequence[ShardFile]) -> RecordFiles:
        """Returns files that share temporary files. None of them is opened yet."""
        spool = Spool()
        return cls([open_tfrecord(file, ordinal, spool) for ordinal, file in enumerate(files)])

    @classmethod
    def join(cls, parts: Sequence[RecordFiles]) -> RecordFiles:
        """Returns the files of several sets, one set after the other."""
        return cls([file for part in parts for file in part], parts)

    def __reduce__(self) -> tuple[object, ...]:
        # The copy of a joined object is joined from the copies of its parts. So it shares their
        # `TFRecordFile` objects, as this one does.
        if self._parts:
            return RecordFiles.join, (self._parts,)
        return RecordFiles, (self._files,), {"_ends": self._ends}

    def __repr__(self) -> str:
        return repr(self._files)

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, index: int) -> TFRecordFile: ...

    @overload
    def __getitem__(self, index: slice) -> list[TFRecordFile]: ...

    def __getitem__(self, index: int | slice) -> TFRecordFile | list[TFRecordFile]:
        return self._files[index]

    @property
    def ends(self) -> Int64s:
        """Number of records up to and including each file, int64 [files].

        The first access counts the records of files without a manifest.
        """
        return self.count_records(count_cores()) if self._ends is None else self._ends

    @property
    def is_counted(self) -> bool:
        """True if `ends` is known without reading a file."""
        return self._ends is not None

    def count_records(self, threads: int) -> Int64s:
        """Returns `ends`. Counts the records on threads, if they are not counted yet."""
        if self._ends is None:
            # the manifest has the counts of shards, and only other files have to be read
            is_known = all(file.file.info is not None for file in self._files)
            counts = thread_map(lambda file: file.records, self._files, 1 if is_known else threads)
            self._ends = np.cumsum(list(counts), dtype=np.int64)
        return self._ends

    def find(self, number: int) -> tuple[TFRecordFile, int]:
        """Returns the file of a record, and the number of the record in it."""
        ordinal, record = self._find_ordinal(number)
        return self._files[ordinal], record

    def _find_ordinal(self, number: int) -> tuple[int, int]:
        ends = self.ends
        # "right" also skips empty files.
        ordinal = int(ends.searchsorted(number, "right"))
        return ordinal, number - (int(ends[ordinal - 1]) if ordinal else 0)

    def frame(self, number: int) -> FileFrames:
        """Reads one record and checks its CRCs.

        Raises:
            DataError: The record is damaged, or the index does not fit the shard.
        """
        ordinal, record = self._find_ordinal(number)
        if self._joined is not None:
            self._joined.map_shard(ordinal)
        return self._files[ordinal].frame(record)

    def path(self, number: int) -> str:
        """Returns the path of the file that contains a record."""
        return self.find(number)[0].file.path

    def place(self, number: int, start: int = 0) -> str:
        """Returns the place of a record in its file, for messages. Looks up the offset."""
        file, record = self.find(number)
        return describe_place(record, int(file.locate(np.array([record]))[0][0]))

    def location(self, number: int) -> tuple[str, str]:
        """Returns (path, place) of a record, for messages.

        Nothing is read, so the place has no offset.
        """
        file, record = self.find(number)
        return file.file.path, describe_place(record, -1)

    def frames(self, numbers: Int64s, *, use_mapping: bool = True) -> FileFrames:
        """Reads records by number, and checks their CRCs.

        Args:
            numbers: Numbers among the records of all files. They may repeat.
            use_mapping: If True, uncompressed files on a disk are mapped. That is faster if their
                pages are mapped already. But Linux maps 64 KiB around each record, which count as
                memory of this process. If False, the records are read instead.

        Returns:
            The good frames in the order of `numbers`, and the damage.

        Raises:
            DataError: A file has changed, or an index does not fit its shard.
        """
        # Files are read in ascending order. `order` then restores the requested order.
        ascending, order = _sort_with_order(numbers)
        parts: list[tuple[TFRecordFile, int, Int64s, Int64s, Int64s]] = []
        sizes = np.zeros(len(numbers), np.int64)
        damage: dict[int, Damage] = {}
        unreadable: list[Unreadable] = []
        joined = self._joined
        with time_stage("read"):
            if joined is not None:
                offsets, lengths = joined.locate(ascending)
                sizes[order] = lengths + FRAME_OVERHEAD_BYTES
            groups = group_by_file(self.ends, ascending) if joined is None else ()
            for ordinal, first, own in groups:
                file, rows = self._files[ordinal], order[own]
                offsets, lengths = file.locate(ascending[own] - first)
                if len(lost := np.flatnonzero(lengths < 0)):
                    records = set((ascending[own][lost] - first).tolist())
                    damage |= {
                        first + lost_record.record: lost_record.shift(first)
                        for lost_record in file.damage
                        if lost_record.record in records
                    }
                    rows, offsets, lengths = (
                        np.delete(array, lost) for array in (rows, offsets, lengths)
                    )
                sizes[rows] = lengths + FRAME_OVERHEAD_BYTES
                parts.append((file, first, rows, offsets, lengths))
            # Each frame is copied only once: from its file to its place in the requested order.
            targets = np.cumsum(sizes) - sizes
            out = allocate(int(sizes.sum()), np.uint8)
            if joined is not None:
                joined.gather(offsets, lengths, out, targets[order], use_mapping)
            for file, _, rows, offsets, lengths in parts:
                if len(rows):
                    file.gather(offsets, lengths, out, targets[rows], unreadable, use_mapping)
        rows = np.flatnonzero(sizes)
        with time_stage("check"):
            scanned = scan_piece(
                out,
                FileOrigin(""),
                first_record=0,
                known_starts=lambda: targets[rows],
                unreadable=unreadable,
            )
        good = rows[scanned.numbers]
        wrong = np.flatnonzero(scanned.starts != targets[good])
        if len(wrong) or scanned.records != len(rows):
            # The scan has found frames of other lengths than those in the index.
            number = int(numbers[good[wrong[0]] if len(wrong) else rows[-1]])
            raise make_mismatch_error(self.path(number), self.place(number))
        for scanned_damage in scanned.damage:
            number = int(numbers[rows[scanned_damage.record]])
            file, record = self.find(number)
            offset = int(file.locate(np.array([record]))[0][0])
            found = replace(scanned_damage, record=record, offset=offset)
            damage[number] = found.shift(number - record)
        return FileFrames(
            data=out,
            starts=scanned.starts,
            lengths=scanned.lengths,
            crcs=scanned.crcs,
            numbers=numbers[good],
            origin=self,
            damage=tuple(damage[number] for number in sorted(damage)),
        )

    def split(self, numbers: Int64s, part_bytes: int) -> Iterator[Int64s]:
        """Divides ascending record numbers into parts of about `part_bytes`.

        A part has records of one file, or of many uncompressed shards. A larger record is a part of
        its own.
        """
        if self._joined is not None:
            ends = np.cumsum(self._joined.locate(numbers)[1] + FRAME_OVERHEAD_BYTES)
            yield from np.split(numbers, np.flatnonzero(np.diff(ends // part_bytes)) + 1)
            return
        for ordinal, first, own in group_by_file(self.ends, numbers):
            ends = np.cumsum(
                self._files[ordinal].locate(numbers[own] - first)[1] + FRAME_OVERHEAD_BYTES
            )
            edges = np.flatnonzero(np.diff(ends // part_bytes)) + 1
            yield from np.split(numbers[own], edges)

    def spool_all(self, threads: int) -> None:
        """Decompresses all compressed files without an index into temporary files.

        After that, their records can be read in any order. A file is decompressed only once.

        Raises:
            DataError: A file has changed since it was counted.
            RecordmillError: There is too little space for temporary files.
        """
        waiting = [
            file for file in self._files if isinstance(file, InflatedFile) and not file.is_spooled
        ]
        if not waiting:
            return
        check_space(sum(file.file.stat.size_bytes for file in waiting), len(waiting))
        for _ in thread_map(lambda file: file.spool(), waiting, threads):
            pass


def _sort_with_order(numbers: Int64s) -> tuple[Int64s, Int64s]:
    """Sorts numbers that are not negative.

    Returns:
        (the numbers in ascending order, the index of each one in `numbers`).
    """
    # One array of (number, index) is sorted, because `np.argsort` takes twice as long. Both fit
    # into 63 bits: a record takes at least 16 bytes of a file, and 16 bytes of memory here.
    bits = len(numbers).bit_length()
    pairs = numbers.astype(np.int64) << bits | np.arange(len(numbers))
    pairs.sort()
    return pairs >> bits, pairs & (1 << bits) - 1
