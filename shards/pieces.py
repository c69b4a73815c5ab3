"""A TFRecord file cut into `Piece`s of about 8 MiB that start and end between records,
and a piece read as checked frames.

Cuts come from the index of our own shards, from hopping over frame headers elsewhere (payloads are not touched), and
for compressed files without members there is one piece, read as a stream. They depend on the file alone, so results
never depend on threads.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from recordmill.base.errors import DataError
from recordmill.base.threads import thread_map
from recordmill.records.tfrecord.frames import MAX_RECORD_BYTES, Frames, Int64s, scan
from recordmill.records.tfrecord.hop import hop as hop_headers
from recordmill.records.tfrecord.lenient import FRAME, past_damage
from recordmill.records.tfrecord.shard_file import read_frames
from recordmill.shards.catalog import ShardFile, check_size
from recordmill.shards.entries.shard_info import ShardInfo
from recordmill.shards.index import FRAME_BYTES, INDEX_DTYPE, MEMBERS_DTYPE, FarIndex, Index, check_frames, map_table
from recordmill.storage.files import Bytes, begin_range, is_remote, map_file, read_range, stat

# 8 MiB uncompressed: large enough that a call's fixed costs vanish, small enough that many fit in memory
PIECE_BYTES = 8 << 20
_AT_ONCE = 16  # files in a store, whose indices or headers are read
_LOOKED = 8192  # records for each piece: with more, an index in a store is not read whole
_GZIP = 31  # zlib's window bits for one gzip member


@dataclass(frozen=True, slots=True)
class Piece:
    """Records [first_record, first_record + records) of the file, at uncompressed bytes [start, stop).

    file: ordinal in the catalog. stop None: to the file's end, read as a stream, and records is then None as well.
    fault: why these bytes hold no readable frame (only where a caller asked for what is around them); fault_kind: as of
    a `Gap`.
    """

    file: int
    first_record: int
    records: int | None
    start: int
    stop: int | None
    fault: str = ""
    fault_kind: str = FRAME


@dataclass(frozen=True)
class FrameBlock:
    """Frames that stand together: the number and the uncompressed offset of the first one in its file."""

    frames: Frames
    first_record: int
    first_offset: int


def load_index(file: ShardFile, *, lenient: bool = False) -> Index | None:
    """The index of one of our shards, memory-mapped and checked against the manifest; None for any other file.

    lenient: the shard itself need not be as long as the manifest says.

    Raises:
        DataError: the index or the shard is not what the manifest says.
    """
    if file.info is None or file.index is None:
        return None
    check_size(file.path, file.info, lenient=lenient)
    index = map_table(file.index, INDEX_DTYPE)
    end = int(index["offset"][-1]) + int(index["length"][-1]) + FRAME_BYTES if len(index) else 0
    if len(index) != file.info.records or end != file.info.framed_bytes:
        reason = (
            f"lists {len(index)} records in {end} bytes where the manifest says {file.info.records} in "
            f"{file.info.framed_bytes}"
        )
        raise DataError(reason, source=file.index)
    check_frames(index, file.index)
    return index


def check_range(file: ShardFile, start: int, stop: int, record: int) -> None:
    """Raises DataError if uncompressed bytes [start, stop) are no part of the file, so that a damaged index asks for
    nothing that is not there. record: whose place it says.
    """
    end = file.info.framed_bytes if file.info is not None else file.stat.size_bytes
    if not 0 <= start <= stop <= end:
        reason = f"says bytes {start} to {stop} of a shard that has {end}; verify the data set"
        raise DataError(reason, source=file.index or file.path, place=f"record {record}")


def load_members(file: ShardFile) -> Index:
    """The member table of one of our gzip shards."""
    assert file.members is not None
    return map_table(file.members, MEMBERS_DTYPE)


def cut(file: ShardFile, ordinal: int, piece_bytes: int | None = None, *, lenient: bool = False) -> Iterator[Piece]:
    """The pieces of one file in order; an empty file has none.

    piece_bytes: None for PIECE_BYTES. lenient: bytes that are no frame become a piece with a fault, up to the next
    frame, instead of an error.

    Raises:
        DataError: the index contradicts the manifest, or a frame header is damaged (only where there is no index).
    """
    piece_bytes = piece_bytes or PIECE_BYTES
    if (far := _far_index(file, piece_bytes)) is not None:
        check_size(file.path, far[0], lenient=lenient)
        yield from _cut_far(far[1], ordinal, piece_bytes)
        return
    index = load_index(file, lenient=lenient)
    if index is not None:
        starts = np.asarray(load_members(file)["uncompressed"]) if file.members else None
        yield from _cut_index(index, starts, ordinal, piece_bytes, file.index or file.path)
    elif file.compression == "none":
        yield from hop_piece(file, ordinal, piece_bytes, lenient=lenient)
    elif file.stat.size_bytes:
        yield Piece(ordinal, 0, None, 0, None)


def cut_files(
    files: Iterable[tuple[int, ShardFile]], piece_bytes: int | None = None, *, lenient: bool = False
) -> Iterator[Piece]:
    """The pieces of these files (ordinal, file) in order, as `cut` gives them; of those in a store several are looked
    at at once.
    """
    found = list(files)

    def pieces(one: tuple[int, ShardFile]) -> Iterable[Piece]:
        cuts = cut(one[1], one[0], piece_bytes, lenient=lenient)
        return list(cuts) if is_remote(one[1].path) else cuts

    for these in thread_map(pieces, found, _AT_ONCE if any(is_remote(file.path) for _, file in found) else 1):
        yield from these


def _far_index(file: ShardFile, piece_bytes: int) -> tuple[ShardInfo, FarIndex] | None:
    """The index of a shard in a store, if the few entries at which its pieces begin are found with less than all."""
    if file.info is None or file.index is None or file.members is not None or not is_remote(file.index):
        return None
    looked = file.info.framed_bytes // piece_bytes * _LOOKED
    if not file.info.records > looked:
        return None
    return file.info, FarIndex(file.index, file.info.records, file.info.framed_bytes)


def _cut_far(index: FarIndex, ordinal: int, piece_bytes: int) -> Iterator[Piece]:
    """The same pieces that `_cut_index` gives."""
    index.expect(range(piece_bytes, index.end, piece_bytes))
    start = first = 0
    while start < index.end:
        behind, stop = index.records, index.end
        if start + piece_bytes < index.end:
            behind, stop, end = index.last(start + piece_bytes)
            if stop <= start:  # a single record that is larger
                behind, stop = behind + 1, end
        yield Piece(ordinal, first, behind - first, start, stop)
        start, first = stop, behind


def _cut_index(index: Index, allowed: Int64s | None, ordinal: int, piece_bytes: int, source: str) -> Iterator[Piece]:
    """allowed: where a piece may start, if not at every record. source: the index's path, for messages."""
    offsets = np.ascontiguousarray(index["offset"])  # searching the structured array's field would copy it each time
    if len(offsets) == 0:
        return
    end = int(offsets[-1] + index["length"][-1]) + FRAME_BYTES
    places = offsets if allowed is None else allowed
    start, first = 0, 0
    while start < end:
        # The last place within piece_bytes, or the first one behind start if a single record (or member) is larger.
        at = max(
            int(np.searchsorted(places, start + piece_bytes, "right")) - 1, int(np.searchsorted(places, start, "right"))
        )
        stop = int(places[at]) if at < len(places) and start + piece_bytes < end else end
        if stop <= start:
            raise DataError("is not in order; verify the data set", source=source, place=f"record {first}")
        behind = int(np.searchsorted(offsets, stop))
        yield Piece(ordinal, first, behind - first, start, stop)
        start, first = stop, behind


def hop_piece(
    file: ShardFile, ordinal: int, piece_bytes: int = PIECE_BYTES, *, lenient: bool = False
) -> Iterator[Piece]:
    """The pieces of an uncompressed file by its frame headers alone; each header's CRC is checked.

    Raises:
        DataError: a header is damaged or the file truncated, unless lenient; pieces before it have been given.
    """
    at, first = 0, 0
    while True:
        cutter = _Cutter(ordinal, at, first, piece_bytes)
        try:
            for starts in hop_headers(file.path, start=at, first_record=first):
                yield from cutter.add(starts)
        except DataError as error:
            at = _end_of(file.path, cutter)
            yield from cutter.finish(at)
            if not lenient:
                raise
            kind, behind = past_damage(map_file(file.path), at)
            yield Piece(ordinal, cutter.first, None, at, behind, error.reason, kind)
            at, first = behind, cutter.first + 1
        else:
            yield from cutter.finish(stat(file.path).size_bytes)
            return


class _Cutter:
    """Record starts as they come, to pieces of at most piece_bytes or one record; first: the number of the first record
    not in a piece yet.
    """

    def __init__(self, ordinal: int, start: int, first: int, piece_bytes: int) -> None:
        self.ordinal, self.start, self.first, self.piece_bytes = ordinal, start, first, piece_bytes
        self.starts = np.empty(0, np.int64)  # of the records from `start` on

    def add(self, starts: Int64s) -> Iterator[Piece]:
        self.starts = np.concatenate([self.starts, starts])
        yield from self._cut(int(self.starts[-1]))

    def finish(self, end: int) -> Iterator[Piece]:
        """The rest, whose last record ends at `end`."""
        yield from self._cut(end)
        if len(self.starts):
            yield self._piece(len(self.starts), end)

    def _cut(self, end: int) -> Iterator[Piece]:
        while end - self.start > self.piece_bytes and len(self.starts) > 1:
            records = max(int(np.searchsorted(self.starts, self.start + self.piece_bytes, "right")) - 1, 1)
            yield self._piece(records, int(self.starts[records]))

    def _piece(self, records: int, stop: int) -> Piece:
        piece = Piece(self.ordinal, self.first, records, self.start, stop)
        self.start, self.first, self.starts = stop, self.first + records, self.starts[records:]
        return piece


def _end_of(path: str, cutter: _Cutter) -> int:
    """Where the last record that was found ends."""
    if not len(cutter.starts):
        return cutter.start
    last = int(cutter.starts[-1])
    return last + int(read_range(path, last, last + 8).view(np.int64)[0]) + FRAME_BYTES


def read_piece(
    file: ShardFile,
    piece: Piece,
    *,
    check: bool = True,
    max_record_bytes: int = MAX_RECORD_BYTES,
    coming: Callable[[], Bytes] | None = None,
) -> Iterator[FrameBlock]:
    """The frames of a piece, CRCs checked unless check is False; one block, or several of a stream. coming: gives the
    piece's bytes, if they were asked for (`begin_piece`).

    Raises:
        DataError: damaged or truncated, with the file, the record number and the offset; or another number of records
            than was planned.
    """
    if piece.stop is None:
        yield from stream(file, check=check, max_record_bytes=max_record_bytes)
        return
    data = read_piece_bytes(file, piece) if coming is None else coming()
    frames, _ = scan(
        data,
        source=file.path,
        first_record=piece.first_record,
        first_offset=piece.start,
        max_record_bytes=max_record_bytes,
        final=True,
        check=check,
    )
    if piece.records is not None and len(frames) != piece.records:
        raise DataError(
            f"{len(frames)} records where {piece.records} were expected",
            source=file.path,
            place=f"bytes {piece.start} to {piece.stop}",
        )
    yield FrameBlock(frames, piece.first_record, piece.start)


def stream(
    file: ShardFile, *, check: bool = True, max_record_bytes: int = MAX_RECORD_BYTES, batch_bytes: int = PIECE_BYTES
) -> Iterator[FrameBlock]:
    """The whole file's frames, from its first byte to its last."""
    parts = read_frames(
        file.path, source=file.path, batch_bytes=batch_bytes, max_record_bytes=max_record_bytes, check=check,
        compression=file.compression
    )  # fmt: skip
    for part in parts:
        yield FrameBlock(part, part.first_record, part.first_offset)


def read_piece_bytes(file: ShardFile, piece: Piece, damaged: list[tuple[int, int]] | None = None) -> Bytes:
    """The uncompressed bytes of a piece that has a stop.

    damaged: if given, takes the byte ranges (within the result) of gzip members that can't be read, which are zeros
    then, and a file that ends too early gives what is there.

    Raises:
        DataError: a member is damaged or the file ends too early, unless damaged is given.
    """
    assert piece.stop is not None
    if file.info is not None or file.compression == "none":
        check_range(file, piece.start, piece.stop, piece.first_record)
    plain = file.compression == "none"
    data = read_range(file.path, piece.start, piece.stop) if plain else _inflate(file, piece.start, piece.stop, damaged)
    return data if damaged is not None else _whole(data, file, piece, piece.stop)


def begin_piece(file: ShardFile, piece: Piece) -> Callable[[], Bytes] | None:
    """Have the bytes of a piece asked for, if they are in a store; gives what waits for them, None for any other piece.

    What it gives raises as `read_piece_bytes` does.
    """
    if piece.stop is None or file.compression != "none" or not is_remote(file.path):
        return None
    start, stop = piece.start, piece.stop
    check_range(file, start, stop, piece.first_record)
    read = begin_range(file.path, start, stop)
    return lambda: _whole(read(), file, piece, stop)


def _whole(data: Bytes, file: ShardFile, piece: Piece, stop: int) -> Bytes:
    if len(data) != stop - piece.start:
        reason = f"truncated: it ends {stop - piece.start - len(data)} bytes before the last record that was there"
        raise DataError(reason, source=file.path, place=f"byte {piece.start + len(data)}")
    return data


def raw_range(file: ShardFile, piece: Piece) -> tuple[int, int]:
    """Which bytes of the file as it lies on disk hold the piece: [first, behind)."""
    if piece.stop is None:
        return 0, file.stat.size_bytes
    if file.compression == "none":
        return piece.start, piece.stop
    bounds = _members_of(file, load_members(file), piece.start, piece.stop)[0]
    return bounds[0], bounds[-1]


def _members_of(file: ShardFile, members: Index, start: int, stop: int) -> tuple[list[int], list[int]]:
    """Where the members that hold uncompressed bytes [start, stop) begin and the last one ends: in the file, and
    uncompressed.
    """
    assert file.info is not None
    first = int(np.searchsorted(members["uncompressed"], start, "right")) - 1
    last = int(np.searchsorted(members["uncompressed"], stop, "left"))
    bounds = _bounds(members["compressed"], first, last, file.info.bytes)
    begins = _bounds(members["uncompressed"], first, last, file.info.framed_bytes)
    for found, end in (bounds, file.info.bytes), (begins, file.info.framed_bytes):
        if first < 0 or found != sorted(found) or found[0] < 0 or found[-1] > end:
            raise DataError("does not fit the shard; verify the data set", source=file.members or file.path)
    return bounds, begins


def _inflate(file: ShardFile, start: int, stop: int, damaged: list[tuple[int, int]] | None) -> Bytes:
    """The members that hold uncompressed bytes [start, stop), cut to these."""
    bounds, begins = _members_of(file, load_members(file), start, stop)
    data = memoryview(read_range(file.path, bounds[0], bounds[-1]))
    result = np.zeros(begins[-1] - begins[0], np.uint8)
    for (at, end), (begin, behind) in zip(itertools.pairwise(bounds), itertools.pairwise(begins), strict=True):
        try:
            result[begin - begins[0] : behind - begins[0]] = _member(
                data[at - bounds[0] : end - bounds[0]], file, at, behind - begin
            )
        except DataError:
            if damaged is None:
                raise
            damaged.append((begin - start, behind - start))
    return result[start - begins[0] : stop - begins[0]]


def _bounds(column: Int64s, first: int, last: int, end: int) -> list[int]:
    """Where members [first, last) begin, and where the last of them ends."""
    return [*column[first:last].tolist(), int(column[last]) if last < len(column) else end]


def _member(data: memoryview, file: ShardFile, at: int, size: int) -> Bytes:
    inflater = zlib.decompressobj(_GZIP)
    place = f"byte {at} of the file"
    try:
        result = inflater.decompress(data)
    except zlib.error as error:
        raise DataError(f"gzip member is damaged: {error}", source=file.path, place=place) from None
    if not inflater.eof or inflater.unused_data or len(result) != size:
        raise DataError("gzip member does not end where the member table says", source=file.path, place=place)
    return np.frombuffer(result, np.uint8)
