"""Random access to the records of one TFRecord file.

Shards of a data set have an index. For other uncompressed files, the headers of all frames are read
once, and the offset of each record is kept in memory. Other compressed files can only be streamed,
so a single record costs reading all records before it.

Only the most recently used mapped files and decompressed members are kept. So the number of open
files and the memory do not grow with the number of files.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from recordmill.base.buffers import Int64s
from recordmill.base.errors import DataError
from recordmill.base.lru import LruLimit, LruSlot
from recordmill.base.threads import ForkSafeLock
from recordmill.records.tfrecord.frames import (
    ContentDigest,
    Frames,
    iter_frame_offsets,
    read_frame_end,
    scan_frames,
)
from recordmill.records.tfrecord.stream import (
    Gap,
    add_skipped_bytes,
    find_resume_offset,
    read_good_frames,
)
from recordmill.shards.catalog import ShardFile, check_size
from recordmill.shards.index import (
    INDEX_DTYPE,
    INDEX_FRAME_BYTES,
    Index,
    PartialIndex,
    locate_entries,
    map_table,
    read_and_join_ranges,
)
from recordmill.shards.manifest import explain_missing
from recordmill.shards.pieces import (
    PIECE_BYTES,
    FrameBlock,
    Piece,
    check_range,
    load_members,
    read_piece_bytes,
    stream,
)
from recordmill.storage.files import MAPPED_FILES, Bytes, is_remote, map_file, read_range, stat

# 1 MiB. A smaller index in a store is read completely.
_FAR_INDEX_BYTES = 1 << 20
# Maximum number of damaged ranges of a file. The rest of the file is then one range.
_MOST_GAPS = 4096
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
        self._offsets: _Offsets | None = None
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
            for block in self._streamed(check=False):
                records, payload_bytes = (
                    records + block.records,
                    payload_bytes + int(block.frames.lengths.sum()),
                )
                content.add(block.frames)
            self._counted = _Count(
                records, payload_bytes + INDEX_FRAME_BYTES * records, content.value
            )
        return self._counted

    @property
    def _scanned_offsets(self) -> _Offsets:
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
                raise found.error(int(records[bad[0]]), self.file.path)
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
        if start >= stop:
            return
        at, end = self._begin_of(start), self._end_of(stop - 1)
        while start < stop:
            behind = stop
            if end - at > piece_bytes:
                behind = min(stop, max(start + 1, self._last_before(at + piece_bytes, start, stop)))
            if piece_records is not None:
                behind = min(behind, start + piece_records)
            piece_end = self._end_of(behind - 1)
            yield Piece(self._ordinal, start, behind - start, at, piece_end)
            start, at = behind, piece_end

    def _begin_of(self, record: int) -> int:
        return int(self.locate(np.array([record]))[0][0])

    def _end_of(self, record: int) -> int:
        offsets, lengths = self.locate(np.array([record]))
        return int(offsets[0] + lengths[0]) + INDEX_FRAME_BYTES

    def _last_before(self, byte: int, low: int, high: int) -> int:
        """Returns the last of records [low, high) that begins at `byte` or before it."""
        if self.file.info is None:
            return int(np.searchsorted(self._scanned_offsets.starts, byte, "right")) - 1
        if (far := self._far_index) is not None:
            return far.find_record(byte)[0]
        return bisect.bisect_right(self.index["offset"], byte, low, high) - 1

    def blocks(self, start: int, stop: int) -> Generator[FrameBlock, None, None]:
        """Streams the frames of records [start, stop). For files that are not seekable."""
        for block in self._streamed():
            count = block.records
            low, high = max(start - block.first_record, 0), min(stop - block.first_record, count)
            if low < high:
                frames = block.frames
                part = Frames(
                    frames.data,
                    frames.starts[low:high],
                    frames.lengths[low:high],
                    frames.crcs[low:high],
                )
                yield replace(block, frames=part, first_record=block.first_record + low)
            if block.first_record + count >= stop:
                return

    def _streamed(self, check: bool = True) -> Iterator[FrameBlock]:
        """Streams all frames. If `lenient`, each damaged range is a block of one record."""
        if not self.file.stat.size_bytes:
            return
        if not self.lenient:
            yield from stream(self.file, check=check)
            return
        for part in read_good_frames(
            self.file.path, compression=self.file.compression, batch_bytes=PIECE_BYTES
        ):
            self.file.check_unchanged()
            if isinstance(part, Gap):
                yield FrameBlock(_NO_FRAMES, part.first_record, part.first_offset, fault_of(part))
            else:
                yield FrameBlock(part, part.first_record, part.first_offset)

    def offset(self, record: int) -> int:
        """Returns the uncompressed offset of a record. 0 if the file is not seekable."""
        return self._begin_of(record) if self.seekable else 0

    def frame(self, record: int) -> Frames:
        """Reads one record and checks its CRCs.

        Raises:
            DataError: The record is damaged, or the index does not fit the shard.
        """
        if not self.seekable:
            block = next(iter(self.blocks(record, record + 1)))
            if block.fault:
                raise DataError(block.fault, source=self.file.path, place=f"record {record}")
            return block.frames
        (offset,), (length,) = (one.tolist() for one in self.locate(np.array([record])))
        size = length + INDEX_FRAME_BYTES
        check_range(self.file, offset, offset + size, record)
        frames, _ = scan_frames(
            self._bytes(offset, size),
            source=self.file.path,
            first_record=record,
            first_offset=offset,
            is_final=True,
        )
        self.file.check_unchanged()
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
        if self._offsets is not None and len(mapped) < self._offsets.size:
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
            return start, read_piece_bytes(self.file, Piece(self._ordinal, 0, None, start, stop))

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


def fault_of(gap: Gap) -> str:
    """Returns the message for a damaged range, with the number of lost bytes."""
    return add_skipped_bytes(gap.reason, gap.kind, gap.size_bytes)


_NO_FRAMES = Frames(np.empty(0, np.uint8), *(np.empty(0, np.int64),) * 2, np.empty(0, np.uint32))


@dataclass(frozen=True)
class _Count:
    """Result of streaming a file once.

    Attributes:
        content: Value of a `ContentDigest`.
    """

    records: int
    framed_bytes: int
    content: int


@dataclass(frozen=True)
class _Offsets:
    """Offsets of the records of an uncompressed file without an index.

    Attributes:
        starts: int64 [records + 1]: first byte of each record, and the end of the last one.
        size: Size of the file.
        content: Value of a `ContentDigest`.
        gaps: Damaged ranges, in order. Each counts as one record.
    """

    starts: Int64s
    size: int
    content: int
    gaps: tuple[Gap, ...] = ()

    @property
    def records(self) -> int:
        return len(self.starts) - 1

    def locate(self, records: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the offsets and payload lengths of records.

        The length of a damaged range is -1.
        """
        offsets = self.starts[records]
        lengths = self.starts[records + 1] - offsets - INDEX_FRAME_BYTES
        if self.gaps:
            lengths[np.isin(records, [gap.first_record for gap in self.gaps])] = -1
        return offsets, lengths

    def error(self, record: int, source: str) -> DataError:
        """Returns the error for a record that is a damaged range."""
        gap = next(gap for gap in self.gaps if gap.first_record == record)
        return DataError(
            fault_of(gap), source=source, place=f"record {record}, byte {gap.first_offset}"
        )


def _find_offsets(file: ShardFile, lenient: bool) -> _Offsets:
    """Reads the headers of all frames once."""
    with explain_missing(file.path):
        at, size = 0, stat(file.path).size_bytes
    found, records, last = list[Int64s](), 0, -1
    content, gaps = ContentDigest(), list[Gap]()

    def offsets(end: int) -> _Offsets:
        starts = np.concatenate([*found, np.array([end])]).astype(np.int64, copy=False)
        return _Offsets(starts, size, content.value, tuple(gaps))

    while True:
        try:
            for starts in iter_frame_offsets(
                file.path, start=at, first_record=records, digest=content
            ):
                found.append(starts.copy())
                records, at = records + len(starts), int(starts[-1])
                last = at
            return offsets(size)
        except DataError as error:
            if not lenient:
                raise
            # `at` is the begin of the last intact frame. The damage begins after it.
            if last == at:
                at = read_frame_end(file.path, at)
            kind, after = find_resume_offset(map_file(file.path), at)
            after = size if len(gaps) == _MOST_GAPS else after
            gaps.append(Gap(records, at, after - at, kind, error.reason))
            found.append(np.array([at]))
            records, last = records + 1, at
            if after == size:
                return offsets(at)
            at = after
