"""TFRecord files with access to any record: `TFRecordFile`.

Three classes find records in files:

    IndexedShard    a shard of a data set, by its index
    ScannedFile     another uncompressed file, by one pass over the frame headers
    InflatedFile    another compressed file, which is decompressed once into a temporary file

Only the mapped files and decompressed members that were used last are kept. So the number of open
files and the memory do not grow with the number of files.
"""

from __future__ import annotations

import bisect
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from multiprocessing import context

import numpy as np

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.errors import DataError
from recordmill.base.lru import LruLimit, LruSlot
from recordmill.base.threads import ForkSafeLock
from recordmill.records.tfrecord.frames import (
    FRAME_OVERHEAD_BYTES,
    ContentDigest,
    Damage,
    FileFrames,
    FileOrigin,
    scan_frames,
)
from recordmill.records.tfrecord.stream import FrameScanner, read_stream, scan_piece
from recordmill.shards.catalog import ShardFile, check_size
from recordmill.shards.cutting import RecordOffsets, cut_records
from recordmill.shards.index import (
    INDEX_DTYPE,
    Index,
    MappedIndex,
    PartialIndex,
    map_table,
    view_table,
)
from recordmill.shards.manifest import explain_missing
from recordmill.shards.pieces import (
    PIECE_BYTES,
    FrameRead,
    Piece,
    Unreadable,
    check_range,
    inflate_members,
    iter_piece_reads,
    load_members,
    return_frames,
    start_read,
    stream,
)
from recordmill.shards.record_table import RecordTable, scan_headers
from recordmill.storage.archives import archive_path
from recordmill.storage.compression import open_stream
from recordmill.storage.files import MAPPED_FILES, is_remote, map_file, read_range, read_spans
from recordmill.storage.mapped_files import MappedFiles
from recordmill.storage.spool import Lane, Spool, SpoolingStream

# 1 MiB. A smaller index in a store is read completely.
_FAR_INDEX_BYTES = 1 << 20
# Number of decompressed members that are kept. A member usually has 1 MiB.
_INFLATED_MEMBERS = LruLimit(16)
# Lock for the pass over a file, by its ordinal modulo 64. So at most 64 files are read at the same
# time.
_pass_locks = [ForkSafeLock() for _ in range(64)]


class TFRecordFile(ABC):
    """A TFRecord file that allows access to any record. Threads can share it.

    The file is opened when it is first needed.

    Args:
        file: The file.
        ordinal: Ordinal of the file in the catalog.
    """

    inflates_members = False

    def __init__(self, file: ShardFile, ordinal: int) -> None:
        self.file, self.ordinal = file, ordinal
        self._mapped: LruSlot[Bytes] = LruSlot(MAPPED_FILES)

    def __reduce__(self) -> tuple[object, ...]:
        return open_tfrecord, (self.file, self.ordinal)

    def __repr__(self) -> str:
        size = f"{self.file.stat.size_bytes:,} bytes"
        about = size if self.file.info is None else f"{self.file.info.records:,} records"
        return f"<{self.file.name}: {about}, {self.file.split}>"

    @property
    @abstractmethod
    def records(self) -> int:
        """Number of records, including damaged ones. The first access may read the file."""

    @property
    @abstractmethod
    def framed_bytes(self) -> int:
        """Uncompressed size of the file. The first access may read the file."""

    @property
    @abstractmethod
    def content(self) -> str:
        """Digest of the contents. The first access may read the file."""

    @property
    def damage(self) -> tuple[Damage, ...]:
        """Damaged records that the first pass has found. Empty for a shard of a data set."""
        return ()

    @property
    def table_bytes(self) -> int:
        """Memory that the offsets of the records take, in bytes."""
        return 0

    @property
    @abstractmethod
    def offsets(self) -> RecordOffsets:
        """Offsets of the records."""

    @abstractmethod
    def locate(self, records: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the offsets and payload lengths of records. A damaged record has length -1.

        Args:
            records: Record numbers, in ascending order.

        Raises:
            DataError: The index contradicts itself or the manifest.
        """

    def gather(
        self,
        offsets: Int64s,
        lengths: Int64s,
        out: Bytes,
        targets: Int64s,
        unreadable: list[Unreadable],
        use_mapping: bool,
    ) -> None:
        """Copies frames to their places in a buffer.

        Args:
            offsets: Offsets of undamaged records, from `locate`.
            lengths: Their payload lengths.
            out: The buffer.
            targets: The offset in `out` of each frame.
            unreadable: Receives the ranges of `out` that could not be read.
            use_mapping: See `RecordFiles.frames`.

        Raises:
            DataError: The file has changed.
        """
        sizes = lengths + FRAME_OVERHEAD_BYTES
        path = self.file.path
        if not is_remote(path) and (use_mapping or archive_path(path)):
            self._copy(self._contents, offsets, sizes, out, targets)
        else:
            check_range(self.file, int(offsets.min()), int((offsets + sizes).max()), 0)
            with explain_missing(path):
                edges = np.array([0, len(offsets)])
                read_spans([path], edges, offsets, sizes, out, targets)
        self.file.check_unchanged()

    def _copy(
        self, data: Bytes, offsets: Int64s, sizes: Int64s, out: Bytes, targets: Int64s
    ) -> None:
        # if not all spans were copied, one of them extends past the end of the data
        if native.copy_spans([data], None, offsets, sizes, targets, out) < len(offsets):
            raise DataError("ends before its last record", source=self.file.path)

    @property
    def _contents(self) -> Bytes:
        """Contents of an uncompressed file on a disk, memory-mapped."""
        return self._mapped.get(self._map)

    def _map(self) -> Bytes:
        with explain_missing(self.file.path):
            return map_file(self.file.path)

    def _read(self, offset: int, size: int) -> Bytes:
        """Returns `size` bytes of the uncompressed file, from `offset` on."""
        if not is_remote(self.file.path):
            return self._contents[offset : offset + size]
        with explain_missing(self.file.path):
            return read_range(self.file.path, offset, offset + size)

    def frame(self, record: int) -> FileFrames:
        """Reads one record and checks its CRCs.

        Raises:
            DataError: The record is damaged, or the index does not fit the shard.
        """
        offset, length = self._locate_one(record)
        if length < 0:
            raise next(damage for damage in self.damage if damage.record == record).error(
                self.file.path
            )
        size = length + FRAME_OVERHEAD_BYTES
        check_range(self.file, offset, offset + size, record, end=self.framed_bytes)
        frames, _ = scan_frames(
            self._read(offset, size),
            source=self.file.path,
            first_record=record,
            first_offset=offset,
            is_final=True,
        )
        self.file.check_unchanged()
        origin = FileOrigin(self.file.path, self.ordinal, offset)
        if len(frames) != 1 or int(frames.lengths[0]) != length:
            raise make_mismatch_error(self.file.path, origin.place(record, 0))
        return FileFrames(
            data=frames.data,
            starts=frames.starts,
            lengths=frames.lengths,
            crcs=frames.crcs,
            numbers=np.array([record]),
            origin=origin,
        )

    def _locate_one(self, record: int) -> tuple[int, int]:
        offsets, lengths = self.locate(np.array([record]))
        return int(offsets[0]), int(lengths[0])

    def pieces(
        self,
        start: int,
        stop: int,
        *,
        piece_bytes: int = PIECE_BYTES,
        piece_records: int | None = None,
    ) -> Iterator[Piece]:
        """Divides records [start, stop) into pieces.

        Args:
            start: Number of the first record.
            stop: Number of the record after the last one.
            piece_bytes: Maximum size of a piece. A larger record is a piece of its own.
            piece_records: Maximum number of records of a piece, or None.
        """
        damage_in_range = [damage for damage in self.damage if start <= damage.record < stop]
        for damage in damage_in_range:
            yield from self._sound_pieces(start, damage.record, piece_bytes, piece_records)
            end = damage.offset + damage.size_bytes
            yield Piece(self.ordinal, damage.offset, end, damage.record, damage=damage)
            start = damage.record + 1
        yield from self._sound_pieces(start, stop, piece_bytes, piece_records)

    def _sound_pieces(
        self, start: int, stop: int, piece_bytes: int, piece_records: int | None
    ) -> Iterator[Piece]:
        if start >= stop:
            return
        offsets = self.offsets
        yield from cut_records(
            offsets,
            self.ordinal,
            (start, offsets.offset_of(start)),
            (stop, offsets.offset_of(stop)),
            piece_bytes=piece_bytes,
            piece_records=piece_records,
            begins=self._piece_begins if piece_records is None else None,
            source=self.file.index_path or self.file.path,
        )

    @property
    def _piece_begins(self) -> Int64s | None:
        """Offsets where a piece may begin. None means at every record."""
        return None

    def start_read(self, piece: Piece) -> FrameRead:
        """Returns a deferred read of a piece, see `pieces.start_read`."""
        return start_read(self.file, piece)

    def iter_reads(
        self,
        start: int,
        stop: int,
        *,
        piece_records: int | None = None,
        is_needed: Callable[[int, int], bool] = lambda first, end: True,
    ) -> Iterator[FrameRead]:
        """Yields deferred reads of records [start, stop), in order.

        Args:
            start: Number of the first record.
            stop: Number of the record after the last one.
            piece_records: Maximum number of records of a read, or None.
            is_needed: Returns whether records [first, end) are needed. Other reads are left out.
        """
        for piece in self.pieces(start, stop, piece_records=piece_records):
            first = piece.first_record or 0
            if is_needed(first, first + (piece.records or 1)):
                yield self.start_read(piece)

    def iter_first_reads(self, records: int) -> Iterator[FrameRead]:
        """Yields deferred reads of the first records. Reads and counts no records after them."""
        shards = {self.ordinal: self.file}
        return iter_piece_reads(shards, [Piece(self.ordinal, 0, None)], limit=records)


def make_mismatch_error(path: str, place: str) -> DataError:
    """Returns the error for a frame that has another length than in the index."""
    return DataError("the index does not fit the shard", source=path, place=place)


class IndexedShard(TFRecordFile):
    """A shard of a data set.

    Its index is mapped into memory, or read in parts if it is in a store.
    """

    def __init__(self, file: ShardFile, ordinal: int) -> None:
        assert file.info is not None
        assert file.index_path is not None
        super().__init__(file, ordinal)
        self._info, self._index_path = file.info, file.index_path
        self.inflates_members = not file.codec.is_plain
        self._has_checked_size = False
        self._index: LruSlot[Index] = LruSlot(MAPPED_FILES)
        self._members: LruSlot[Index] = LruSlot(MAPPED_FILES)
        # (index, contents), if `map_into` has mapped them
        self._joined: tuple[Index, Bytes] | None = None
        # (first uncompressed byte, contents) of the member that was read last
        self._member: LruSlot[tuple[int, Bytes]] = LruSlot(_INFLATED_MEMBERS)

    @property
    def records(self) -> int:
        return self._info.records

    @property
    def framed_bytes(self) -> int:
        return self._info.framed_bytes

    @property
    def content(self) -> str:
        return self._info.digest

    @property
    def _contents(self) -> Bytes:
        return super()._contents if self._joined is None else self._joined[1]

    @property
    def index(self) -> Index:
        """Index of the shard, with offset, length and key of each record."""
        return self._index.get(self._map_index) if self._joined is None else self._joined[0]

    def map_into(self, mapped: MappedFiles, ordinal: int, index_ordinal: int) -> Index:
        """Maps this shard and its index next to other files.

        Both files stay mapped as long as this object exists. The shard must be uncompressed.

        Args:
            mapped: The array that has room for both files.
            ordinal: Number of the shard among the files of `mapped`.
            index_ordinal: Number of the index among these files.

        Returns:
            The index.

        Raises:
            DataError: A file is missing, or it differs from the manifest.
        """
        self._check_size()
        with explain_missing(self.file.path):
            contents = mapped.map(ordinal, self.file.path)
        with explain_missing(self._index_path):
            entries = mapped.map(index_ordinal, self._index_path)
        index = self._check_index(view_table(entries, self._index_path, INDEX_DTYPE))
        self._joined = index, contents
        return index

    def _map_index(self) -> Index:
        self._check_size()
        return self._check_index(map_table(self._index_path, INDEX_DTYPE))

    def _check_index(self, index: Index) -> Index:
        if len(index) != self.records:
            reason = f"lists {len(index)} records where the manifest says {self.records}"
            raise DataError(reason, source=self._index_path)
        return index

    def _check_size(self) -> None:
        if not self._has_checked_size:
            check_size(self.file.path, self._info)
            self._has_checked_size = True

    @property
    def offsets(self) -> MappedIndex | PartialIndex:
        """Offsets of the records.

        An index on a disk is mapped. A large index in a store is read in parts, unless there is
        still room for it among the mapped files.
        """
        if (
            not is_remote(self._index_path)
            or self._index.value is not None
            or self.records * INDEX_DTYPE.itemsize <= _FAR_INDEX_BYTES
            or MAPPED_FILES.has_room()
        ):
            return MappedIndex(self.index, self._index_path, self.framed_bytes)
        self._check_size()
        return PartialIndex(self._index_path, self.records, self.framed_bytes)

    def locate(self, records: Int64s) -> tuple[Int64s, Int64s]:
        return self.offsets.locate(np.ascontiguousarray(records, np.int64))

    def _locate_one(self, record: int) -> tuple[int, int]:
        offsets = self.offsets
        if isinstance(offsets, MappedIndex):
            return offsets.locate_one(record)
        return super()._locate_one(record)

    def gather(
        self,
        offsets: Int64s,
        lengths: Int64s,
        out: Bytes,
        targets: Int64s,
        unreadable: list[Unreadable],
        use_mapping: bool,
    ) -> None:
        if not self.inflates_members:
            super().gather(offsets, lengths, out, targets, unreadable, use_mapping)
            return
        sizes = lengths + FRAME_OVERHEAD_BYTES
        member_ids = np.searchsorted(self._member_begins, offsets, "right")
        edges = [0, *(np.flatnonzero(np.diff(member_ids)) + 1).tolist(), len(offsets)]
        for rows in map(slice, edges, edges[1:]):
            try:
                start, data = self._inflate(int(offsets[rows][0]))
            except DataError as error:
                damage = Damage.of_member(self.file.compression, error)
                for target, size in zip(targets[rows].tolist(), sizes[rows].tolist(), strict=True):
                    out[target : target + size] = 0
                    unreadable.append((target, target + size, damage))
            else:
                self._copy(data, offsets[rows] - start, sizes[rows], out, targets[rows])

    def _read(self, offset: int, size: int) -> Bytes:
        if not self.inflates_members:
            return super()._read(offset, size)
        start, data = self._inflate(offset)
        return data[offset - start : offset - start + size]

    @property
    def _piece_begins(self) -> Int64s | None:
        return self._member_begins if self.inflates_members else None

    @property
    def _member_begins(self) -> Int64s:
        members = self._members.get(lambda: load_members(self.file))
        return np.asarray(members["uncompressed"])

    def _inflate(self, offset: int) -> tuple[int, Bytes]:
        """Returns the decompressed member that contains a byte.

        Returns:
            The uncompressed offset of the member, and its contents.

        Raises:
            DataError: The member is damaged, or the table of members does not fit the shard.
        """
        begins = self._member_begins
        row = bisect.bisect_right(begins, offset) - 1
        start = int(begins[row])

        def inflate() -> tuple[int, Bytes]:
            stop = int(begins[row + 1]) if row + 1 < len(begins) else self.framed_bytes
            check_range(self.file, start, stop, 0)
            with explain_missing(self.file.path):
                return start, inflate_members(self.file, start, stop)

        return self._member.get(inflate, lambda member: member[0] == start)

    def pieces(
        self,
        start: int,
        stop: int,
        *,
        piece_bytes: int = PIECE_BYTES,
        piece_records: int | None = None,
    ) -> Iterator[Piece]:
        is_whole = (start, stop) == (0, self.records) and start < stop
        if (
            is_whole
            and self.framed_bytes <= piece_bytes
            and (piece_records is None or stop <= piece_records)
        ):
            # The manifest has all numbers of this piece, so the index is not read.
            yield Piece(self.ordinal, 0, self.framed_bytes, 0, stop)
            return
        yield from super().pieces(start, stop, piece_bytes=piece_bytes, piece_records=piece_records)

    def iter_first_reads(self, records: int) -> Iterator[FrameRead]:
        return self.iter_reads(0, min(records, self.records))


class ScannedFile(TFRecordFile):
    """An uncompressed file without an index."""

    def __init__(self, file: ShardFile, ordinal: int) -> None:
        super().__init__(file, ordinal)
        self._table: RecordTable | None = None

    @property
    def table(self) -> RecordTable:
        """Places of the records. The first access reads the file."""
        if self._table is None:
            # The table is looked up again under the lock, because another thread may have read the
            # file.
            with _pass_locks[self.ordinal % len(_pass_locks)]:
                if self._table is None:
                    self._table = self._make_table()
        return self._table

    def _make_table(self) -> RecordTable:
        content = ContentDigest()
        parts = scan_headers(self.file.path, lenient=True, digest=content)
        return RecordTable.from_parts(parts, content, self.file.stat.size_bytes)

    @property
    def records(self) -> int:
        return self.table.records

    @property
    def framed_bytes(self) -> int:
        return self.file.stat.size_bytes

    @property
    def content(self) -> str:
        return f"{self.table.content:016x}"

    @property
    def damage(self) -> tuple[Damage, ...]:
        return self.table.damage

    @property
    def table_bytes(self) -> int:
        return 0 if self._table is None else self._table.starts.nbytes

    @property
    def offsets(self) -> RecordTable:
        return self.table

    def locate(self, records: Int64s) -> tuple[Int64s, Int64s]:
        return self.table.locate(np.ascontiguousarray(records, np.int64))

    def _map(self) -> Bytes:
        mapped = super()._map()
        if self._table is not None and len(mapped) < self._table.end:
            raise DataError("became shorter while it was read", source=self.file.path)
        return mapped


class InflatedFile(ScannedFile):
    """A compressed file without an index.

    To count its records, or to read all of them in order, the file is streamed. For any other order
    it is decompressed once into the spool.

    Args:
        spool: Temporary files for decompressed contents.
    """

    def __init__(self, file: ShardFile, ordinal: int, spool: Spool) -> None:
        super().__init__(file, ordinal)
        self._spool = spool
        # (lane that contains the decompressed file, offset at which it begins)
        self._place: tuple[Lane, int] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        is_shared = self._place is not None and context.get_spawning_popen() is not None
        state = {"_table": self._table, "_place": self._place} if is_shared else None
        return InflatedFile, (self.file, self.ordinal, self._spool), state

    @property
    def content(self) -> str:
        # Earlier releases read these files in another order. The suffix changes the fingerprint, so
        # that their saved positions are refused.
        return f"{super().content}-inflated"

    @property
    def framed_bytes(self) -> int:
        return self.table.end

    @property
    def is_spooled(self) -> bool:
        """True if the file is decompressed already."""
        return self._place is not None

    def _make_table(self) -> RecordTable:
        content = ContentDigest()
        return RecordTable.from_frames(stream(self.file, self.ordinal), content)

    def spool(self) -> None:
        """Decompresses the file into the spool, unless this was done before.

        Raises:
            DataError: The file has changed since it was counted.
            RecordmillError: The temporary folder is full.
        """
        if self._place is not None:
            return
        with _pass_locks[self.ordinal % len(_pass_locks)], self._spool.lane() as lane:
            if self._place is None:
                with self._spool.append_file(lane, self.file.name) as begin:
                    table = self._inflate_into(lane)
                if self._table is not None and (table.content, table.end, table.records) != (
                    self._table.content,
                    self._table.end,
                    self._table.records,
                ):
                    raise DataError("changed while it was read; start again", source=self.file.path)
                self._table, self._place = table, (lane, begin)

    def _inflate_into(self, lane: Lane) -> RecordTable:
        content = ContentDigest()
        if not self.file.stat.size_bytes:
            return RecordTable.from_frames((), content)
        scanner = FrameScanner(self.file.path, ordinal=self.ordinal, is_compressed=True)
        with (
            explain_missing(self.file.path),
            open_stream(
                self.file.path, compression=self.file.compression, source=self.file.path
            ) as compressed,
        ):
            table = RecordTable.from_frames(
                read_stream(SpoolingStream(compressed, lane), scanner), content
            )
        self.file.check_unchanged()
        return table

    @property
    def _contents(self) -> Bytes:
        self.spool()
        assert self._place is not None
        lane, begin = self._place
        return lane.read(begin, begin + self.table.end)

    def gather(
        self,
        offsets: Int64s,
        lengths: Int64s,
        out: Bytes,
        targets: Int64s,
        unreadable: list[Unreadable],
        use_mapping: bool,
    ) -> None:
        self._copy(self._contents, offsets, lengths + FRAME_OVERHEAD_BYTES, out, targets)
        self.file.check_unchanged()

    def _read(self, offset: int, size: int) -> Bytes:
        return self._contents[offset : offset + size]

    def start_read(self, piece: Piece) -> FrameRead:
        """Returns a deferred read of a piece of the decompressed file."""
        assert piece.stop is not None
        assert piece.first_record is not None
        origin = FileOrigin(self.file.path, self.ordinal, piece.start)
        if piece.damage is not None:
            return functools.partial(return_frames, FileFrames.empty(origin, (piece.damage,)))
        return functools.partial(self._read_piece, piece.start, piece.stop, piece.first_record)

    def _read_piece(self, start: int, stop: int, first_record: int) -> FileFrames:
        frames = scan_piece(
            self._contents[start:stop],
            FileOrigin(self.file.path, self.ordinal, start),
            first_record=first_record,
        )
        self.file.check_unchanged()
        return frames

    def iter_reads(
        self,
        start: int,
        stop: int,
        *,
        piece_records: int | None = None,
        is_needed: Callable[[int, int], bool] = lambda first, end: True,
    ) -> Iterator[FrameRead]:
        if self.is_spooled or (start, stop) != (0, self.records):
            yield from super().iter_reads(
                start, stop, piece_records=piece_records, is_needed=is_needed
            )
            return
        for frames in stream(self.file, self.ordinal):
            for part in (frames,) if piece_records is None else frames.split(piece_records):
                yield functools.partial(return_frames, part)


def open_tfrecord(file: ShardFile, ordinal: int, spool: Spool | None = None) -> TFRecordFile:
    """Returns a TFRecord file for access to any record. The file is not opened yet.

    Args:
        ordinal: Ordinal of the file in the catalog.
        spool: Temporary files for decompressed contents. If None, they are created for this file
            alone.
    """
    if file.info is not None and file.index_path is not None:
        return IndexedShard(file, ordinal)
    if file.codec.is_plain:
        return ScannedFile(file, ordinal)
    return InflatedFile(file, ordinal, Spool() if spool is None else spool)


def group_by_file(ends: Int64s, numbers: Int64s) -> Iterator[tuple[int, int, slice]]:
    """Groups record numbers of a data set by file.

    Args:
        ends: Number of records up to and including each file.
        numbers: Record numbers in the data set, in ascending order.

    Yields:
        For each file with records in `numbers`: its ordinal, the number of its first record, and
        the slice of `numbers`.
    """
    low = 0
    while low < len(numbers):
        # Files are looked up one by one, because most calls have many records of few files.
        ordinal = int(ends.searchsorted(numbers[low], "right"))
        high = int(numbers.searchsorted(ends[ordinal]))
        yield ordinal, int(ends[ordinal - 1]) if ordinal else 0, slice(low, high)
        low = high
