"""Cuts TFRecord files into `Piece`s of about 8 MiB that start and end between records; a piece read as checked
frames.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from recordmill.base.buffers import Int64s
from recordmill.base.errors import DataError
from recordmill.records.tfrecord.frames import FRAME_BYTES, MAX_RECORD_BYTES, Frames, scan
from recordmill.records.tfrecord.members import MEMBER_BYTES
from recordmill.records.tfrecord.stream import FRAME, read_frames
from recordmill.shards.catalog import ShardFile, check_size
from recordmill.shards.index import (
    INDEX_DTYPE,
    INDEX_FRAME_BYTES,
    MEMBERS_DTYPE,
    Index,
    check_contiguous,
    map_table,
)
from recordmill.shards.manifest import explain_missing
from recordmill.storage.files import Bytes, is_remote, read_range, start_range_read

# 8 MiB uncompressed: large enough that a call's fixed costs vanish, small enough that many fit in memory
PIECE_BYTES = 8 << 20
_MOST_MEMBER_BYTES = max(
    MAX_RECORD_BYTES + FRAME_BYTES, MEMBER_BYTES
)  # one frame, however large, or several


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


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a shard that has an index: the records that begin at uncompressed bytes [start, stop). The index says
    where these are, so naming a span opens no file.

    file: ordinal in the catalog. records: how many, None where only the index says.
    """

    file: int
    start: int
    stop: int
    records: int | None = None


@dataclass(frozen=True)
class FrameBlock:
    """Frames that stand together: the number and the uncompressed offset of the first one in its file. fault: there is
    none, since one record is damaged: why (only where a caller asked for what is around it).
    """

    frames: Frames
    first_record: int
    first_offset: int
    fault: str = ""

    @property
    def records(self) -> int:
        """How many records they are, good or not."""
        return 1 if self.fault else len(self.frames)


def load_index(file: ShardFile, *, lenient: bool = False) -> Index | None:
    """The index of one of our shards, memory-mapped and checked against the manifest; None for any other file.

    lenient: the shard itself need not be as long as the manifest says.

    Raises:
        DataError: the index or the shard is not what the manifest says.
    """
    if file.info is None or file.index_path is None:
        return None
    check_size(file.path, file.info, lenient=lenient)
    index = map_table(file.index_path, INDEX_DTYPE)
    end = (
        int(index["offset"][-1]) + int(index["length"][-1]) + INDEX_FRAME_BYTES if len(index) else 0
    )
    if len(index) != file.info.records or end != file.info.framed_bytes:
        reason = (
            f"lists {len(index)} records in {end} bytes where the manifest says {file.info.records} in "
            f"{file.info.framed_bytes}"
        )
        raise DataError(reason, source=file.index_path)
    check_contiguous(index, file.index_path)
    return index


def check_range(file: ShardFile, start: int, stop: int, record: int) -> None:
    """Raises DataError if uncompressed bytes [start, stop) are no part of the file, so that a damaged index asks for
    nothing that is not there. record: whose place it says.
    """
    end = file.info.framed_bytes if file.info is not None else file.stat.size_bytes
    if not 0 <= start <= stop <= end:
        reason = f"says bytes {start} to {stop} of a shard that has {end}; verify the data set"
        raise DataError(reason, source=file.index_path or file.path, place=f"record {record}")


def load_members(file: ShardFile) -> Index:
    """The member table of one of our compressed shards."""
    assert file.members_path is not None
    return map_table(file.members_path, MEMBERS_DTYPE)


def read_piece(
    file: ShardFile, piece: Piece, *, check: bool = True, coming: Callable[[], Bytes] | None = None
) -> Iterator[FrameBlock]:
    """The frames of a piece, CRCs checked unless check is False; one block, or several of a stream. coming: gives the
    piece's bytes, if they were asked for (`begin_piece`).

    Raises:
        DataError: damaged or truncated, with the file, the record number and the offset; or another number of records
            than was planned.
    """
    if piece.stop is None:
        yield from stream(file, check=check)
        return
    data = read_piece_bytes(file, piece) if coming is None else coming()
    where = {"first_record": piece.first_record, "first_offset": piece.start}
    frames, _ = scan(data, source=file.path, **where, final=True, check=check)
    if piece.records is not None and len(frames) != piece.records:
        raise DataError(
            f"{len(frames)} records where {piece.records} were expected",
            source=file.path,
            place=f"bytes {piece.start} to {piece.stop}",
        )
    yield FrameBlock(frames, piece.first_record, piece.start)


def stream(
    file: ShardFile,
    *,
    check: bool = True,
    max_record_bytes: int = MAX_RECORD_BYTES,
    batch_bytes: int = PIECE_BYTES,
) -> Iterator[FrameBlock]:
    """The whole file's frames, from its first byte to its last."""
    parts = read_frames(
        file.path,
        source=file.path,
        batch_bytes=batch_bytes,
        max_record_bytes=max_record_bytes,
        check=check,
        compression=file.compression,
    )
    with explain_missing(file.path):
        for part in parts:
            file.check_unchanged()
            yield FrameBlock(part, part.first_record, part.first_offset)


def read_piece_bytes(
    file: ShardFile, piece: Piece, damaged: list[tuple[int, int]] | None = None
) -> Bytes:
    """The uncompressed bytes of a piece that has a stop.

    damaged: if given, takes the byte ranges (within the result) of members that can't be read, which are zeros
    then, and a file that ends too early gives what is there.

    Raises:
        DataError: a member is damaged or the file ends too early, unless damaged is given.
    """
    assert piece.stop is not None
    if file.info is not None or file.codec.is_plain:
        check_range(file, piece.start, piece.stop, piece.first_record)
    plain = file.codec.is_plain
    with explain_missing(file.path):
        data = (
            read_range(file.path, piece.start, piece.stop)
            if plain
            else _unpack(file, piece.start, piece.stop, damaged)
        )
    file.check_unchanged()
    return data if damaged is not None else _whole(data, file, piece, piece.stop)


def begin_piece(file: ShardFile, piece: Piece) -> Callable[[], Bytes] | None:
    """Have the bytes of a piece asked for, if they are in a store; gives what waits for them, None for any other piece.

    What it gives raises as `read_piece_bytes` does.
    """
    if piece.stop is None or not file.codec.is_plain or not is_remote(file.path):
        return None
    start, stop = piece.start, piece.stop
    check_range(file, start, stop, piece.first_record)
    with explain_missing(file.path):
        read = start_range_read(file.path, start, stop)

    def whole() -> Bytes:
        with explain_missing(file.path):
            data = read()
        file.check_unchanged()
        return _whole(data, file, piece, stop)

    return whole


def _whole(data: Bytes, file: ShardFile, piece: Piece, stop: int) -> Bytes:
    if len(data) != stop - piece.start:
        reason = f"truncated: it ends {stop - piece.start - len(data)} bytes before the last record that was there"
        raise DataError(reason, source=file.path, place=f"byte {piece.start + len(data)}")
    return data


def _members_of(
    file: ShardFile, members: Index, start: int, stop: int
) -> tuple[list[int], list[int]]:
    """Returns the bounds of the members that hold uncompressed bytes [start, stop): in the file, and uncompressed."""
    assert file.info is not None
    first = int(np.searchsorted(members["uncompressed"], start, "right")) - 1
    last = int(np.searchsorted(members["uncompressed"], stop, "left"))
    bounds = _bounds(members["compressed"], first, last, file.info.bytes)
    begins = _bounds(members["uncompressed"], first, last, file.info.framed_bytes)
    for found, end in (bounds, file.info.bytes), (begins, file.info.framed_bytes):
        if first < 0 or found != sorted(found) or found[0] < 0 or found[-1] > end:
            raise DataError(
                "does not fit the shard; verify the data set", source=file.members_path or file.path
            )
    for (at, end), (begin, behind) in zip(
        itertools.pairwise(bounds), itertools.pairwise(begins), strict=True
    ):
        if behind - begin > min(file.codec.most_bytes(end - at), _MOST_MEMBER_BYTES):
            says = f"says {behind - begin} bytes in a member of {end - at}, which can't hold them"
            raise DataError(f"{says}; verify the data set", source=file.members_path or file.path)
    return bounds, begins


def _unpack(file: ShardFile, start: int, stop: int, damaged: list[tuple[int, int]] | None) -> Bytes:
    """The members that hold uncompressed bytes [start, stop), cut to these."""
    bounds, begins = _members_of(file, load_members(file), start, stop)
    data = memoryview(read_range(file.path, bounds[0], bounds[-1]))
    result = np.zeros(begins[-1] - begins[0], np.uint8)
    for (at, end), (begin, behind) in zip(
        itertools.pairwise(bounds), itertools.pairwise(begins), strict=True
    ):
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
    """Returns where members [first, last) begin, and where the last of them ends."""
    return [*column[first:last].tolist(), int(column[last]) if last < len(column) else end]


def _member(data: memoryview, file: ShardFile, at: int, size: int) -> Bytes:
    try:
        return np.frombuffer(file.codec.members.unpack(data, size), np.uint8)
    except ValueError as error:
        reason = f"{file.compression} member {error}"
        raise DataError(reason, source=file.path, place=f"byte {at} of the file") from None
