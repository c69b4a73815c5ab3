"""Pieces of TFRecord files, and reading them as checked frames."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from recordmill.base.buffers import Int64s
from recordmill.base.errors import DataError
from recordmill.records.tfrecord.frames import (
    FRAME_OVERHEAD_BYTES,
    MAX_RECORD_BYTES,
    Frames,
    scan_frames,
)
from recordmill.records.tfrecord.members import MEMBER_BYTES
from recordmill.records.tfrecord.stream import FRAME_GAP, read_frames
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

# 8 MiB uncompressed: large enough that the fixed costs of a call do not matter, small enough that
# many pieces fit into memory.
PIECE_BYTES = 8 << 20
# A member contains one frame of any size, or several small ones.
_MOST_MEMBER_BYTES = max(MAX_RECORD_BYTES + FRAME_OVERHEAD_BYTES, MEMBER_BYTES)


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive bytes of a file that begin and end between records.

    The piece has records [first_record, first_record + records) at uncompressed bytes [start,
    stop).

    Attributes:
        file: Ordinal of the file in the catalog.
        records: Number of records. None if `stop` is None.
        stop: End of the piece. None means the rest of the file, which is read as a stream.
        fault: Reason why these bytes contain no readable frame. Only set if the caller asked for
            damaged ranges.
        fault_kind: Kind of the fault, as in `Gap`.
    """

    file: int
    first_record: int
    records: int | None
    start: int
    stop: int | None
    fault: str = ""
    fault_kind: str = FRAME_GAP


@dataclass(frozen=True, slots=True)
class Span:
    """Part of a shard with an index, in uncompressed bytes.

    The records are those that begin at bytes [start, stop). Creating a span opens no file, because
    the index provides the record numbers later.

    Attributes:
        file: Ordinal of the file in the catalog.
        records: Number of records. None if only the index knows it.
    """

    file: int
    start: int
    stop: int
    records: int | None = None


@dataclass(frozen=True)
class FrameBlock:
    """Consecutive frames of a file.

    Attributes:
        frames: The frames. None of them if `fault` is set.
        first_record: Number of the first record in the file.
        first_offset: Uncompressed offset of the first frame in the file.
        fault: Reason why one record is damaged, which is then the only record of the block. Only
            set if the caller asked for damaged records.
    """

    frames: Frames
    first_record: int
    first_offset: int
    fault: str = ""

    @property
    def records(self) -> int:
        """Number of records, including a damaged one."""
        return 1 if self.fault else len(self.frames)


def load_index(file: ShardFile, *, lenient: bool = False) -> Index | None:
    """Maps the index of a shard into memory and compares it with the manifest.

    Args:
        lenient: The size of the shard may differ from the manifest.

    Returns:
        None if the file is not a shard of a data set.

    Raises:
        DataError: The index or the shard differs from the manifest.
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
    """Raises DataError if uncompressed bytes [start, stop) are not part of the file.

    So a damaged index never causes a read of bytes that do not exist. `record` is the record number
    in the message.
    """
    end = file.info.framed_bytes if file.info is not None else file.stat.size_bytes
    if not 0 <= start <= stop <= end:
        reason = f"says bytes {start} to {stop} of a shard that has {end}; verify the data set"
        raise DataError(reason, source=file.index_path or file.path, place=f"record {record}")


def load_members(file: ShardFile) -> Index:
    """Maps the member table of a compressed shard into memory."""
    assert file.members_path is not None
    return map_table(file.members_path, MEMBERS_DTYPE)


def read_piece(
    file: ShardFile, piece: Piece, *, check: bool = True, coming: Callable[[], Bytes] | None = None
) -> Iterator[FrameBlock]:
    """Yields the frames of a piece: one block, or several of a stream.

    Args:
        check: Checks the CRCs.
        coming: Result of `begin_piece`, if it was called before.

    Raises:
        DataError: The piece is damaged or truncated, or the number of its records differs from the
            plan. The error names file, record and offset.
    """
    if piece.stop is None:
        yield from stream(file, check=check)
        return
    data = read_piece_bytes(file, piece) if coming is None else coming()
    where = {"first_record": piece.first_record, "first_offset": piece.start}
    frames, _ = scan_frames(data, source=file.path, **where, is_final=True, checks_payloads=check)
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
    """Yields all frames of a file, from its first byte to its last."""
    parts = read_frames(
        file.path,
        source=file.path,
        batch_bytes=batch_bytes,
        max_record_bytes=max_record_bytes,
        checks_payloads=check,
        compression=file.compression,
    )
    with explain_missing(file.path):
        for part in parts:
            file.check_unchanged()
            yield FrameBlock(part, part.first_record, part.first_offset)


def read_piece_bytes(
    file: ShardFile, piece: Piece, damaged: list[tuple[int, int]] | None = None
) -> Bytes:
    """Reads the uncompressed bytes of a piece with a `stop`.

    Args:
        damaged: If given, damage does not raise an error. The byte ranges of unreadable members in
            the result are added to this list and contain zeros. A file that ends too early yields a
            shorter result.

    Raises:
        DataError: A member is damaged or the file ends too early, and `damaged` is None.
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
    """Requests the bytes of a piece from a store.

    Returns:
        A function that waits for the bytes and raises like `read_piece_bytes`. None if the piece
        needs no request.
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
    """Returns the bounds of the members that contain uncompressed bytes [start, stop).

    Returns:
        The bounds in the file, and the bounds of the contents in the uncompressed shard.
    """
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
        if behind - begin > min(file.codec.max_content_bytes(end - at), _MOST_MEMBER_BYTES):
            says = f"says {behind - begin} bytes in a member of {end - at}, which can't hold them"
            raise DataError(f"{says}; verify the data set", source=file.members_path or file.path)
    return bounds, begins


def _unpack(file: ShardFile, start: int, stop: int, damaged: list[tuple[int, int]] | None) -> Bytes:
    """Decompresses the members that contain bytes [start, stop), and returns these bytes."""
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
    """Returns the begins of members [first, last) and the end of the last one."""
    return [*column[first:last].tolist(), int(column[last]) if last < len(column) else end]


def _member(data: memoryview, file: ShardFile, at: int, size: int) -> Bytes:
    try:
        return np.frombuffer(file.codec.member_algorithm.unpack(data, size), np.uint8)
    except ValueError as error:
        reason = f"{file.compression} member {error}"
        raise DataError(reason, source=file.path, place=f"byte {at} of the file") from None
