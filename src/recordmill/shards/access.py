"""Where the records of one file are: counts, ranges and single records of a `ShardFile`, by index where there is one.

Our shards have an index; any other uncompressed file gets one in memory (16 bytes a record) by hopping over its headers
once; other compressed files are streamed, and then a single record costs reading up to it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np

from recordmill.base.arrays import Int64s
from recordmill.base.errors import DataError
from recordmill.records.tfrecord.frames import Frames, hop, scan
from recordmill.shards.catalog import ShardFile
from recordmill.shards.index import INDEX_DTYPE, INDEX_FRAME_BYTES, Index
from recordmill.shards.pieces import (
    PIECE_BYTES,
    FrameBlock,
    Piece,
    check_range,
    load_index,
    load_members,
    read_piece_bytes,
    stream,
)
from recordmill.storage.files import Bytes, is_remote, map_file, read_range, read_scattered, stat, unmap_pages


class FileAccess:
    """One file, opened when first needed; safe to share between threads."""

    def __init__(self, file: ShardFile, ordinal: int) -> None:
        self.file, self._ordinal, self._lock = file, ordinal, threading.Lock()
        self._index: Index | None = None
        self._mapped: Bytes | None = None
        self._columns: tuple[Int64s, Int64s] | None = None
        self._members: Index | None = None
        self._counted: tuple[int, int] | None = None  # records and framed bytes of a stream
        self._member: tuple[int, Bytes] | None = None  # the member read last, by its first uncompressed byte

    def __getstate__(self) -> tuple[ShardFile, int]:
        return self.file, self._ordinal

    def __setstate__(self, state: tuple[ShardFile, int]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    @property
    def seekable(self) -> bool:
        """Whether any record can be reached without reading the ones before it."""
        return self.file.index is not None or self.file.codec.is_plain

    @property
    def records(self) -> int:
        """How many records the file holds: by manifest, by headers, or by reading the stream once."""
        if self.file.info is not None:
            return self.file.info.records
        if self.seekable:
            return len(self.index)
        return self._count[0]

    @property
    def framed_bytes(self) -> int:
        """The uncompressed bytes of the file, found as `records` is."""
        if self.file.info is not None:
            return self.file.info.framed_bytes
        return self.file.stat.size_bytes if self.file.codec.is_plain else self._count[1]

    @property
    def _count(self) -> tuple[int, int]:
        if self._counted is None:
            records = payload_bytes = 0
            for block in stream(self.file, check=False) if self.file.stat.size_bytes else ():
                records, payload_bytes = records + len(block.frames), payload_bytes + int(block.frames.lengths.sum())
            self._counted = records, payload_bytes + INDEX_FRAME_BYTES * records
        return self._counted

    @property
    def index(self) -> Index:
        """(offset, length, key) of every record of a seekable file."""
        if self._index is None:
            with self._lock:
                if self._index is None:
                    loaded = load_index(self.file)
                    self._index = _hopped(self.file) if loaded is None else loaded
        return self._index

    def pieces(
        self, start: int, stop: int, piece_bytes: int = PIECE_BYTES, piece_records: int | None = None
    ) -> Iterator[Piece]:
        """Records [start, stop) of a seekable file in pieces of at most that many bytes (or one record) and records."""
        offsets, lengths = self._offsets_lengths()
        while start < stop:
            first = int(offsets[start])
            behind = stop
            if int(offsets[stop - 1] + lengths[stop - 1]) + INDEX_FRAME_BYTES - first > piece_bytes:
                behind = min(stop, max(start + 1, int(np.searchsorted(offsets, first + piece_bytes, "right")) - 1))
            if piece_records is not None:
                behind = min(behind, start + piece_records)
            end = int(offsets[behind - 1] + lengths[behind - 1]) + INDEX_FRAME_BYTES
            yield Piece(self._ordinal, start, behind - start, first, end)
            start = behind

    def _offsets_lengths(self) -> tuple[Int64s, Int64s]:
        # Searching a field of a structured array would copy the field each time.
        if self._columns is None:
            self._columns = np.ascontiguousarray(self.index["offset"]), np.ascontiguousarray(self.index["length"])
        return self._columns

    def blocks(self, start: int, stop: int) -> Iterator[FrameBlock]:
        """The frames of records [start, stop) of a file that is only to be streamed."""
        for block in stream(self.file):
            count = len(block.frames)
            low, high = max(start - block.first_record, 0), min(stop - block.first_record, count)
            if low < high:
                frames = block.frames
                part = Frames(frames.data, frames.starts[low:high], frames.lengths[low:high], frames.crcs[low:high])
                yield FrameBlock(part, block.first_record + low, block.first_offset)
            if block.first_record + count >= stop:
                return

    def offset(self, record: int) -> int:
        """The uncompressed offset of one record, 0 where only a stream could tell."""
        return int(self.index[record]["offset"]) if self.seekable else 0

    def frame(self, record: int) -> Frames:
        """One record, its CRCs checked."""
        if not self.seekable:
            return next(iter(self.blocks(record, record + 1))).frames
        offset, length, _ = self.index[record].item()
        size = length + INDEX_FRAME_BYTES
        check_range(self.file, offset, offset + size, record)
        frames, _ = scan(
            self._bytes(offset, size), source=self.file.path, first_record=record, first_offset=offset, final=True
        )
        if len(frames) != 1 or int(frames.lengths[0]) != size - INDEX_FRAME_BYTES:
            raise DataError(
                "the index does not fit the shard", source=self.file.path, place=f"record {record}, byte {offset}"
            )
        return frames

    def lengths(self, records: Int64s) -> Int64s:
        """[n] the bytes of these records' payloads, of a seekable file."""
        return self._offsets_lengths()[1][records]

    def portions(self, records: Int64s, portion_bytes: int) -> Iterator[Int64s]:
        """Ascending records of a seekable file, divided as `reach` takes them:
        about so many bytes, or what lies in one member.
        """
        offsets, lengths = self._offsets_lengths()
        if self.file.codec.is_plain:
            group = np.cumsum(lengths[records] + INDEX_FRAME_BYTES) // portion_bytes
        else:
            group = np.searchsorted(self.members["uncompressed"], offsets[records], "right")
        yield from np.split(records, np.flatnonzero(np.diff(group)) + 1)

    def reach(self, records: Int64s) -> tuple[Bytes, Int64s, Int64s]:
        """A portion of records: (bytes, in which their frames begin at these places, the payloads' lengths)."""
        offsets, lengths = self._offsets_lengths()
        if self.file.codec.is_plain and is_remote(self.file.path):
            starts = offsets[records]
            stops = starts + lengths[records] + INDEX_FRAME_BYTES
            check_range(self.file, int(starts.min()), int(stops.max()), int(records[0]))
            data, places = read_scattered(self.file.path, starts.tolist(), stops.tolist())
            return data, np.array(places, np.int64), lengths[records]
        if self.file.codec.is_plain:
            return self.mapped, offsets[records], lengths[records]
        start, data = self._inflated(int(offsets[records[0]]))
        return data, offsets[records] - start, lengths[records]

    @property
    def mapped(self) -> Bytes:
        """An uncompressed file's bytes, mapped."""
        if self._mapped is None:
            self._mapped = map_file(self.file.path)
        return self._mapped

    def unmap_pages(self) -> None:
        """Let go of the memory in which pages of the mapped file stand; they are mapped again when they are read."""
        if self._mapped is not None:
            unmap_pages(self._mapped)

    @property
    def members(self) -> Index:
        """(compressed, uncompressed): where each member of one of our compressed shards begins."""
        if self._members is None:
            self._members = load_members(self.file)
        return self._members

    def _bytes(self, offset: int, size: int) -> Bytes:
        if self.file.codec.is_plain and is_remote(self.file.path):
            return read_range(self.file.path, offset, offset + size)
        if self.file.codec.is_plain:
            return self.mapped[offset : offset + size]
        start, data = self._inflated(offset)
        return data[offset - start : offset - start + size]

    def _inflated(self, offset: int) -> tuple[int, Bytes]:
        """(first uncompressed byte, bytes) of the member in which a byte lies."""
        members, member = self.members, self._member
        at = int(np.searchsorted(members["uncompressed"], offset, "right")) - 1
        start = int(members["uncompressed"][at])
        if member is None or member[0] != start:
            stop = int(members["uncompressed"][at + 1]) if at + 1 < len(members) else self.file.info.framed_bytes  # type: ignore[union-attr]
            member = self._member = (start, read_piece_bytes(self.file, Piece(self._ordinal, 0, None, start, stop)))
        return member


def _hopped(file: ShardFile) -> Index:
    offsets = np.concatenate([np.empty(0, np.int64), *hop(file.path)])
    index = np.zeros(len(offsets), INDEX_DTYPE)
    index["offset"] = offsets
    index["length"] = np.diff(offsets, append=stat(file.path).size_bytes) - INDEX_FRAME_BYTES
    return index
