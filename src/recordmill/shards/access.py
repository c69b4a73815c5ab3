"""Random access to the records of one TFRecord file.

Shards of a data set have an index. For other uncompressed files, the headers of all frames are read
once, and the offset of each record is kept in memory. Other compressed files can only be streamed,
so a single record costs reading all records before it.

Only the most recently used mapped files and decompressed members are kept. So the number of open
files and the memory do not grow with the number of files.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from recordmill.base.buffers import Int64s
from recordmill.base.errors import DataError
from recordmill.base.lru import LruLimit, LruSlot
from recordmill.base.threads import ForkSafeLock
from recordmill.records.tfrecord.frames import (
    ContentDigest,
    FileFrames,
    FileOrigin,
    checked,
)
from recordmill.records.tfrecord.stream import scan_piece
from recordmill.shards.catalog import ShardFile, check_size
from recordmill.shards.cutting import RecordOffsets, cut_records
from recordmill.shards.index import (
    INDEX_DTYPE,
    INDEX_FRAME_BYTES,
    Index,
    MappedIndex,
    PartialIndex,
    locate_entries,
    map_table,
    read_and_join_ranges,
)
from recordmill.shards.manifest import explain_missing
from recordmill.shards.pieces import (
    PIECE_BYTES,
    FrameCall,
    Piece,
    begin,
    check_range,
    load_members,
    returned,
    stream,
)
from recordmill.shards.pieces import inflate as inflate_members
from recordmill.shards.record_table import RecordTable, hop
from recordmill.storage.files import MAPPED_FILES, Bytes, is_remote, map_file, read_range

# 1 MiB. A smaller index in a store is read completely.
_FAR_INDEX_BYTES = 1 << 20
# Usually members of 1 MiB.
_INFLATED = LruLimit(16)
# Locks for reading the headers of a file, chosen by its ordinal. So at most 64 files are scanned at
# once.
_finding = [ForkSafeLock() for _ in range(64)]


class FileAccess:
    """Records of one file. Thread-safe. The file is opened when it is first needed.

    Args:
        ordinal: Position of the file in the catalog.
        lenient: Damaged bytes count as a record that can't be read, instead of raising an error.
            Only for files without an index.
    """

    def __init__(self, file: ShardFile, ordinal: int, *, lenient: bool = False) -> None:
        self.file, self._ordinal, self.lenient = file, ordinal, lenient
        self._offsets: RecordTable | None = None
        self._counted: _Count | None = None
        self._has_stated_size = False
        self._mapped: LruSlot[Bytes] = LruSlot(MAPPED_FILES)
        self._index: LruSlot[Index] = LruSlot(MAPPED_FILES)
        self._members: LruSlot[Index] = LruSlot(MAPPED_FILES)
        # The member that was read last: its first uncompressed byte, and its contents.
        self._member: LruSlot[tuple[int, Bytes]] = LruSlot(_INFLATED)

    def __reduce__(self) -> tuple[object, ...]:
        return _access, (self.file, self._ordinal, self.lenient)

    def made_lenient(self) -> FileAccess:
        """Returns this file with `lenient` set. Shards with an index are returned unchanged."""
        if self.file.info is not None:
            return self
        other = _access(self.file, self._ordinal, True)
        # Safe to share: the offsets exist only if all headers are valid.
        other._offsets = self._offsets
        return other

    def __repr__(self) -> str:
        about = self.file.stat.size_bytes if self.file.info is None else self.file.info.records
        return f"<{self.file.name}: {about:,} {'bytes' if self.file.info is None else 'records'}, {self.file.split}>"

    @property
    def seekable(self) -> bool:
        """True if each record can be read without reading the records before it."""
        return self.file.index_path is not None or self.file.codec.is_plain

    @property
    def records(self) -> int:
        """Number of records of the file.

        From the manifest, else from the frame headers, else from reading the complete stream once.
        """
        if self.file.info is not None:
            return self.file.info.records
        return self._scanned_offsets.records if self.seekable else self._count.records

    @property
    def framed_bytes(self) -> int:
        """Uncompressed size of the file. It is determined like `records`."""
        if self.file.info is not None:
            return self.file.info.framed_bytes
        return self.file.stat.size_bytes if self.file.codec.is_plain else self._count.framed_bytes

    @property
    def content(self) -> str:
        """Digest of the contents.

        From the manifest, else a hash over the lengths and CRCs of all records.
        """
        if self.file.info is not None:
            return self.file.info.digest
        return f"{(self._scanned_offsets if self.seekable else self._count).content:016x}"

    @property
    def offset_bytes(self) -> int:
        """Memory for the record offsets of a file without an index."""
        return 0 if self._offsets is None else self._offsets.starts.nbytes

    @property
    def _count(self) -> _Count:
        if self._counted is None:
            records = payload_bytes = 0
            content = ContentDigest()
            for frames in self._streamed(check=False):
                records, payload_bytes = (
                    records + frames.records,
                    payload_bytes + int(frames.lengths.sum()),
                )
                content.add(frames)
            self._counted = _Count(
                records, payload_bytes + INDEX_FRAME_BYTES * records, content.value
            )
        return self._counted

    @property
    def _scanned_offsets(self) -> RecordTable:
        if self._offsets is None:
            # Checked again under the lock: another thread may have read the headers by now.
            with _finding[self._ordinal % len(_finding)]:
                if self._offsets is None:
                    self._offsets = _find_offsets(self.file, self.lenient)
        return self._offsets

    def locate(self, records: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the offsets and payload lengths of records of a seekable file.

        Args:
            records: Record numbers, in ascending order.

        Raises:
            DataError: The index contradicts itself or the manifest, a header is damaged, or the
                file was replaced.
        """
        records = np.ascontiguousarray(records, np.int64)
        if self.file.info is None or self.file.index_path is None:
            found = self._scanned_offsets
            offsets, lengths = found.locate(records)
            if len(bad := np.flatnonzero(lengths < 0)):
                damaged = int(records[bad[0]])
                raise next(one for one in found.damage if one.record == damaged).error(
                    self.file.path
                )
            return offsets, lengths
        if (far := self._far_index) is not None:
            return far.locate(records)
        return locate_entries(
            self.index, records, self.file.info.framed_bytes, self.file.index_path
        )

    @property
    def index(self) -> Index:
        """Index of a shard, with offset, length and key of each record."""
        return self._index.get(self._map_index)

    def _map_index(self) -> Index:
        assert self.file.info is not None
        assert self.file.index_path is not None
        self._check_size()
        index = map_table(self.file.index_path, INDEX_DTYPE)
        if len(index) != self.file.info.records:
            reason = f"lists {len(index)} records where the manifest says {self.file.info.records}"
            raise DataError(reason, source=self.file.index_path)
        return index

    def _check_size(self) -> None:
        if not self._has_stated_size and self.file.info is not None:
            check_size(self.file.path, self.file.info)
            self._has_stated_size = True

    @property
    def _far_index(self) -> PartialIndex | None:
        """Returns a partial index if the complete one is too large to read.

        This is the case if the index is in a store and only few records are needed.
        """
        info, path = self.file.info, self.file.index_path
        if info is None or path is None or not is_remote(path) or self._index.value is not None:
            return None
        # The complete index is also read if it can stay mapped with the others.
        if info.records * INDEX_DTYPE.itemsize <= _FAR_INDEX_BYTES or MAPPED_FILES.has_room():
            return None
        self._check_size()
        return PartialIndex(path, info.records, info.framed_bytes)

    def pieces(
        self,
        start: int,
        stop: int,
        piece_bytes: int = PIECE_BYTES,
        piece_records: int | None = None,
    ) -> Iterator[Piece]:
        """Divides records [start, stop) of a seekable file into pieces.

        Args:
            start: Number of the first record.
            stop: Number of the record after the last one.
            piece_bytes: Maximum size of a piece. A larger record is a piece of its own.
            piece_records: Maximum number of records of a piece, or None.
        """
        if start < stop:
            offsets = self._record_offsets
            yield from cut_records(
                offsets,
                self._ordinal,
                (start, offsets.offset_of(start)),
                (stop, offsets.offset_of(stop)),
                piece_bytes=piece_bytes,
                piece_records=piece_records,
                source=self.file.index_path or self.file.path,
            )

    @property
    def _record_offsets(self) -> RecordOffsets:
        if self.file.info is None or self.file.index_path is None:
            return self._scanned_offsets
        return self._far_index or MappedIndex(
            self.index, self.file.index_path, self.file.info.framed_bytes
        )

    def calls(
        self,
        start: int,
        stop: int,
        *,
        piece_records: int | None = None,
        is_needed: Callable[[int, int], bool] | None = None,
    ) -> Iterator[FrameCall]:
        """Yields the readings of records [start, stop), in order.

        Args:
            piece_records: Maximum number of records of a piece, or None.
            is_needed: Returns whether a piece with records [begin, end) is read. None reads all.
        """
        # Other files, and damaged ones, are read from the start.
        if not self.seekable or self.lenient:
            for frames in self.blocks(start, stop):
                yield functools.partial(returned, frames)
            return
        for piece in self.pieces(start, stop, piece_records=piece_records):
            first = piece.first_record or 0
            if is_needed is None or is_needed(first, first + (piece.records or 0)):
                yield begin(self.file, piece)

    def _begin_of(self, record: int) -> int:
        return int(self.locate(np.array([record]))[0][0])

    def _end_of(self, record: int) -> int:
        offsets, lengths = self.locate(np.array([record]))
        return int(offsets[0] + lengths[0]) + INDEX_FRAME_BYTES

    def blocks(self, start: int, stop: int) -> Generator[FileFrames, None, None]:
        """Streams the frames of records [start, stop). For files that are not seekable."""
        for frames in self._streamed():
            low, high = np.searchsorted(frames.numbers, [start, stop]).tolist()
            damage = tuple(one for one in frames.damage if start <= one.record < stop)
            part = frames.select(slice(low, high), damage)
            if part.records:
                yield part
            if frames.end_record >= stop:
                return

    def _streamed(self, check: bool = True) -> Iterator[FileFrames]:
        """Streams all frames. Damage is raised unless `lenient` is set."""
        parts = stream(self.file, self._ordinal, check=check)
        yield from parts if self.lenient else checked(parts)

    def offset(self, record: int) -> int:
        """Returns the uncompressed offset of a record. 0 if the file is not seekable."""
        return self._begin_of(record) if self.seekable else 0

    def frame(self, record: int) -> FileFrames:
        """Reads one record and checks its CRCs.

        Raises:
            DataError: The record is damaged, or the index does not fit the shard.
        """
        if not self.seekable:
            frames = next(iter(self.blocks(record, record + 1)))
            frames.raise_damage()
            return frames
        (offset,), (length,) = (one.tolist() for one in self.locate(np.array([record])))
        size = length + INDEX_FRAME_BYTES
        check_range(self.file, offset, offset + size, record)
        origin = FileOrigin(self.file.path, self._ordinal, offset)
        frames = scan_piece(self._bytes(offset, size), origin, first_record=record)
        self.file.check_unchanged()
        frames.raise_damage()
        if len(frames) != 1 or int(frames.lengths[0]) != size - INDEX_FRAME_BYTES:
            raise DataError(
                "the index does not fit the shard",
                source=self.file.path,
                place=f"record {record}, byte {offset}",
            )
        return frames

    def portions(self, offsets: Int64s, lengths: Int64s, portion_bytes: int) -> Iterator[slice]:
        """Divides records into groups that one call of `reach` can read.

        Args:
            offsets: Offsets of ascending records, from `locate`.
            lengths: Payload lengths of the records.
            portion_bytes: Approximate size of a group in an uncompressed file. In a compressed file
                each member is a group.
        """
        if (
            self.file.codec.is_plain
            and int(lengths.sum()) + len(lengths) * INDEX_FRAME_BYTES <= portion_bytes
        ):
            yield slice(0, len(offsets))
            return
        if self.file.codec.is_plain:
            group = np.cumsum(lengths + INDEX_FRAME_BYTES) // portion_bytes
        else:
            group = np.searchsorted(self.members["uncompressed"], offsets, "right")
        edges = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(offsets)]
        yield from map(slice, edges, edges[1:])

    def reach(self, offsets: Int64s, lengths: Int64s) -> tuple[Bytes, Int64s]:
        """Reads the records of one group of `portions`.

        Returns:
            A buffer, and the position in it where each frame begins.
        """
        if self.file.codec.is_plain and is_remote(self.file.path):
            stops = offsets + lengths + INDEX_FRAME_BYTES
            check_range(self.file, int(offsets.min()), int(stops.max()), 0)
            return read_and_join_ranges(self.file.path, offsets, stops)
        if self.file.codec.is_plain:
            return self.mapped, offsets
        start, data = self._inflated(int(offsets[0]))
        return data, offsets - start

    @property
    def mapped(self) -> Bytes:
        """Contents of an uncompressed file, memory-mapped."""
        return self._mapped.get(self._map)

    def _map(self) -> Bytes:
        with explain_missing(self.file.path):
            mapped = map_file(self.file.path)
        if self._offsets is not None and len(mapped) < self._offsets.end:
            raise DataError("became shorter while it was read", source=self.file.path)
        return mapped

    @property
    def members(self) -> Index:
        """Member table of a compressed shard."""
        return self._members.get(lambda: load_members(self.file))

    def _bytes(self, offset: int, size: int) -> Bytes:
        if self.file.codec.is_plain and is_remote(self.file.path):
            with explain_missing(self.file.path):
                return read_range(self.file.path, offset, offset + size)
        if self.file.codec.is_plain:
            return self.mapped[offset : offset + size]
        start, data = self._inflated(offset)
        return data[offset - start : offset - start + size]

    def _inflated(self, offset: int) -> tuple[int, Bytes]:
        """Returns the decompressed member that contains a byte.

        Returns:
            The uncompressed offset of the member, and its contents.
        """
        members = self.members["uncompressed"]
        at = bisect.bisect_right(members, offset) - 1
        start = int(members[at])

        def inflate() -> tuple[int, Bytes]:
            stop = int(members[at + 1]) if at + 1 < len(members) else self.file.info.framed_bytes  # type: ignore[union-attr]
            check_range(self.file, start, stop, 0)
            with explain_missing(self.file.path):
                return start, inflate_members(self.file, start, stop)

        return self._member.get(inflate, lambda held: held[0] == start)


def _access(file: ShardFile, ordinal: int, lenient: bool) -> FileAccess:
    return FileAccess(file, ordinal, lenient=lenient)


def group_by_file(ends: Int64s, numbers: Int64s) -> Iterator[tuple[int, int, slice]]:
    """Groups record numbers of a data set by file.

    Args:
        ends: Number of records up to and including each file.
        numbers: Record numbers in the data set, in ascending order.

    Yields:
        For each file with records in `numbers`: its ordinal, the number of its first record, and
        the slice of `numbers`.
    """
    files = np.searchsorted(ends, numbers, "right")
    edges = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(numbers)]
    for low, high in itertools.pairwise(edges) if len(numbers) else ():
        at = int(files[low])
        yield at, int(ends[at - 1]) if at else 0, slice(low, high)


def file_accesses(files: Sequence[ShardFile]) -> list[FileAccess]:
    """Returns a `FileAccess` for each file."""
    return [FileAccess(file, ordinal) for ordinal, file in enumerate(files)]


def lenient_files(files: Sequence[FileAccess]) -> list[FileAccess]:
    """Returns the files with `lenient` set for all that have no index."""
    return [file.made_lenient() for file in files]


@dataclass(frozen=True)
class _Count:
    """Result of streaming a file once.

    Attributes:
        content: Value of a `ContentDigest`.
    """

    records: int
    framed_bytes: int
    content: int


def _find_offsets(file: ShardFile, lenient: bool) -> RecordTable:
    """Reads the headers of all frames once."""
    content = ContentDigest()
    parts = hop(file.path, lenient=lenient, digest=content)
    return RecordTable.from_parts(parts, content, file.stat.size_bytes)
