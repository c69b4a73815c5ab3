"""Access to the records of one file: counts, ranges and single records of a `ShardFile`, by index where there is one.

Our shards have an index. Of any other uncompressed file the headers are read once, and where each record begins is
kept (`_Offsets`); other compressed files are streamed, and then a single record costs reading up to it. What is mapped
or inflated is held while it is among the last that were used: so very many files need no more descriptors or memory
than some.
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
from recordmill.records.tfrecord.frames import ContentDigest, Frames, frame_end, hop, scan
from recordmill.records.tfrecord.stream import (
    Gap,
    read_good_frames,
    resume_after_damage,
    with_skipped,
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

_FAR_INDEX_BYTES = 1 << 20  # 1 MiB: an index in a store that is no larger is read whole
_MOST_GAPS = 4096  # damaged places of a file behind which reading goes on
_INFLATED = LruLimit(16)  # members of 1 MiB, mostly
_finding = [
    ForkSafeLock() for _ in range(64)
]  # of files, by their ordinals: of more not even threads look for records


class FileAccess:
    """One file, opened when first needed; safe to share between threads.

    lenient: what is damaged is no error, but a record that can't be read; of files that have no index, all of which is
    found out by what is in them.
    """

    def __init__(self, file: ShardFile, ordinal: int, *, lenient: bool = False) -> None:
        self.file, self._ordinal, self.lenient = file, ordinal, lenient
        self._offsets: _Offsets | None = None
        self._counted: _Count | None = None
        self._has_stated_size = False
        self._mapped: LruSlot[Bytes] = LruSlot(MAPPED_FILES)
        self._index: LruSlot[Index] = LruSlot(MAPPED_FILES)
        self._members: LruSlot[Index] = LruSlot(MAPPED_FILES)
        # (first uncompressed byte, bytes) of the member read last
        self._member: LruSlot[tuple[int, Bytes]] = LruSlot(_INFLATED)

    def __reduce__(self) -> tuple[object, ...]:
        return _access, (self.file, self._ordinal, self.lenient)

    def made_lenient(self) -> FileAccess:
        """The same file with what is damaged as records that can't be read; our own shards need nothing for that."""
        if self.file.info is not None:
            return self
        other = _access(self.file, self._ordinal, True)
        other._offsets = self._offsets  # they are there only if the headers are right
        return other

    def __repr__(self) -> str:
        about = self.file.stat.size_bytes if self.file.info is None else self.file.info.records
        return f"<{self.file.name}: {about:,} {'bytes' if self.file.info is None else 'records'}, {self.file.split}>"

    @property
    def seekable(self) -> bool:
        """True if any record can be reached without reading the ones before it."""
        return self.file.index_path is not None or self.file.codec.is_plain

    @property
    def records(self) -> int:
        """How many records the file holds: by manifest, by headers, or by reading the stream once."""
        if self.file.info is not None:
            return self.file.info.records
        return self._scanned_offsets.records if self.seekable else self._count.records

    @property
    def framed_bytes(self) -> int:
        """The uncompressed bytes of the file, found as `records` is."""
        if self.file.info is not None:
            return self.file.info.framed_bytes
        return self.file.stat.size_bytes if self.file.codec.is_plain else self._count.framed_bytes

    @property
    def content(self) -> str:
        """Digest of the content: of the manifest, or of the lengths and CRCs of all records."""
        if self.file.info is not None:
            return self.file.info.digest
        return f"{(self._scanned_offsets if self.seekable else self._count).content:016x}"

    @property
    def offset_bytes(self) -> int:
        """Bytes of the file's offsets that are in memory while it is read."""
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
            with _finding[self._ordinal % len(_finding)]:
                if self._offsets is None:
                    self._offsets = _find_offsets(self.file, self.lenient)
        return self._offsets

    def locate(self, records: Int64s) -> tuple[Int64s, Int64s]:
        """(offsets, payloads' lengths) of ascending records of a seekable file.

        Raises:
            DataError: the index contradicts itself or the manifest, a header is damaged, or the file changed.
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
        """(offset, length, key) of every record of one of our shards, as the file has it."""
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
        """Returns where the index is, if it is in a store and too large to be read whole for a few records."""
        info, path = self.file.info, self.file.index_path
        if info is None or path is None or not is_remote(path) or self._index.value is not None:
            return None
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
        """Records [start, stop) of a seekable file in pieces of at most that many bytes (or one record) and records."""
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
        """The last of records [low, high) that begins at this byte or before it."""
        if self.file.info is None:
            return int(np.searchsorted(self._scanned_offsets.starts, byte, "right")) - 1
        if (far := self._far_index) is not None:
            return far.find_record(byte)[0]
        return bisect.bisect_right(self.index["offset"], byte, low, high) - 1

    def blocks(self, start: int, stop: int) -> Generator[FrameBlock, None, None]:
        """The frames of records [start, stop) of a file that is only to be streamed."""
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
        """All of it, and what is damaged as blocks of one record each, if it may be."""
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
        """The uncompressed offset of one record, 0 where only a stream could tell."""
        return self._begin_of(record) if self.seekable else 0

    def frame(self, record: int) -> Frames:
        """One record, its CRCs checked."""
        if not self.seekable:
            block = next(iter(self.blocks(record, record + 1)))
            if block.fault:
                raise DataError(block.fault, source=self.file.path, place=f"record {record}")
            return block.frames
        (offset,), (length,) = (one.tolist() for one in self.locate(np.array([record])))
        size = length + INDEX_FRAME_BYTES
        check_range(self.file, offset, offset + size, record)
        frames, _ = scan(
            self._bytes(offset, size),
            source=self.file.path,
            first_record=record,
            first_offset=offset,
            final=True,
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
        """Ascending records of a seekable file, as `locate` gave them, divided as `reach` takes them:
        about so many bytes, or what lies in one member.
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
        """A portion of records: (bytes, [records] where in them their frames begin)."""
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
        """An uncompressed file's bytes, mapped."""
        return self._mapped.get(self._map)

    def _map(self) -> Bytes:
        with explain_missing(self.file.path):
            mapped = map_file(self.file.path)
        if self._offsets is not None and len(mapped) < self._offsets.size:
            raise DataError("became shorter while it was read", source=self.file.path)
        return mapped

    @property
    def members(self) -> Index:
        """(compressed, uncompressed): where each member of one of our compressed shards begins."""
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
        """(first uncompressed byte, bytes) of the member in which a byte lies."""
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
    """(ordinal of a file, number of its first record, which of the ascending numbers are its records') of those files
    that have some, in order. ends: the number of records up to and with each file.
    """
    files = np.searchsorted(ends, numbers, "right")
    edges = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(numbers)]
    for low, high in itertools.pairwise(edges) if len(numbers) else ():
        at = int(files[low])
        yield at, int(ends[at - 1]) if at else 0, slice(low, high)


def file_accesses(files: Sequence[ShardFile]) -> list[FileAccess]:
    """All files of a data set, which share what may be kept of them."""
    return [FileAccess(file, ordinal) for ordinal, file in enumerate(files)]


def lenient_files(files: Sequence[FileAccess]) -> list[FileAccess]:
    """The same, of which those that have no index are lenient."""
    return [file.made_lenient() for file in files]


def fault_of(gap: Gap) -> str:
    """Returns what is wrong there, and how many bytes are lost."""
    return with_skipped(gap.reason, gap.kind, gap.size_bytes)


_NO_FRAMES = Frames(np.empty(0, np.uint8), *(np.empty(0, np.int64),) * 2, np.empty(0, np.uint32))


@dataclass(frozen=True)
class _Count:
    """The count of a stream. content: as of a `ContentDigest`."""

    records: int
    framed_bytes: int
    content: int


@dataclass(frozen=True)
class _Offsets:
    """The places of the records of an uncompressed file without an index.

    Attributes:
        starts: int64 [records + 1], where each record begins, and the end of the last one.
        size: of the file.
        content: as of a `ContentDigest`.
        gaps: what is damaged, in order, each of which counts as a record.
    """

    starts: Int64s
    size: int
    content: int
    gaps: tuple[Gap, ...] = ()

    @property
    def records(self) -> int:
        return len(self.starts) - 1

    def locate(self, records: Int64s) -> tuple[Int64s, Int64s]:
        """Returns (offsets, payloads' lengths) of records; a length of a gap is -1."""
        offsets = self.starts[records]
        lengths = self.starts[records + 1] - offsets - INDEX_FRAME_BYTES
        if self.gaps:
            lengths[np.isin(records, [gap.first_record for gap in self.gaps])] = -1
        return offsets, lengths

    def error(self, record: int, source: str) -> DataError:
        """Returns the error of a record that is a gap."""
        gap = next(gap for gap in self.gaps if gap.first_record == record)
        return DataError(
            fault_of(gap), source=source, place=f"record {record}, byte {gap.first_offset}"
        )


def _find_offsets(file: ShardFile, lenient: bool) -> _Offsets:
    """Goes over all headers once."""
    with explain_missing(file.path):
        at, size = 0, stat(file.path).size_bytes
    found, records, last = list[Int64s](), 0, -1
    content, gaps = ContentDigest(), list[Gap]()

    def offsets(end: int) -> _Offsets:
        starts = np.concatenate([*found, np.array([end])]).astype(np.int64, copy=False)
        return _Offsets(starts, size, content.value, tuple(gaps))

    while True:
        try:
            for starts in hop(file.path, start=at, first_record=records, content=content):
                found.append(starts.copy())
                records, at = records + len(starts), int(starts[-1])
                last = at
            return offsets(size)
        except DataError as error:
            if not lenient:
                raise
            if last == at:  # which is the last one before the damage
                at = frame_end(file.path, at)
            kind, after = resume_after_damage(map_file(file.path), at)
            after = size if len(gaps) == _MOST_GAPS else after
            gaps.append(Gap(records, at, after - at, kind, error.reason))
            found.append(np.array([at]))
            records, last = records + 1, at
            if after == size:
                return offsets(at)
            at = after
