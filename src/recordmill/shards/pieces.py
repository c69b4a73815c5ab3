"""Pieces of TFRecord files, and reading them as checked frames."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from recordmill.base.buffers import Int64s, allocate, to_offsets
from recordmill.base.errors import OUT_OF_MEMORY_REASON, DataError
from recordmill.base.messages import Message
from recordmill.records.tfrecord.frames import (
    FRAME_OVERHEAD_BYTES,
    MAX_RECORD_BYTES,
    Damage,
    FileFrames,
    FileOrigin,
    JoinedOrigin,
)
from recordmill.records.tfrecord.members import MEMBER_BYTES
from recordmill.records.tfrecord.stream import read_frames, scan_piece
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

# 8 MiB uncompressed. With this size, the fixed costs of a read do not matter, and many pieces fit
# into memory.
PIECE_BYTES = 8 << 20
# Maximum number of pieces that are read together. All their requests to a store are sent at once.
_MAX_JOINED_READS = 256
# A member contains one frame of any size, or several small ones.
_MAX_MEMBER_BYTES = max(MAX_RECORD_BYTES + FRAME_OVERHEAD_BYTES, MEMBER_BYTES)


@dataclass(frozen=True, slots=True)
class Piece:
    """The records of a file that begin at uncompressed bytes [start, stop).

    Attributes:
        file: Ordinal of the file in the catalog.
        start: The first byte.
        stop: The end. None means the complete file, which is read as a stream.
        first_record: Number of the first record. None if only the index of the shard knows it.
            `cutting.resolve` then finds the records.
        records: Number of records. None if it is unknown.
        damage: Set if the complete piece is damaged. It is then not read.
    """

    file: int
    start: int
    stop: int | None
    first_record: int | None = 0
    records: int | None = None
    damage: Damage | None = None

    @property
    def size_bytes(self) -> int:
        """Uncompressed size. 0 if it is unknown."""
        return 0 if self.stop is None else self.stop - self.start


# (begin, end, damage) of a range of a buffer that could not be read. Each record that begins in it
# has this damage.
Unreadable = tuple[int, int, Damage]
# A deferred read. The call reads and checks the frames of consecutive records. Any thread may call
# it.
FrameRead = Callable[[], FileFrames]


def load_index(file: ShardFile, *, lenient: bool = False) -> Index | None:
    """Maps the index of a shard into memory and compares it with the manifest.

    Args:
        lenient: If True, the size of the shard may differ from the manifest.

    Returns:
        The index. None if the file is not a shard of a data set.

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


def check_range(
    file: ShardFile, start: int, stop: int, record: int, end: int | None = None
) -> None:
    """Raises DataError if uncompressed bytes [start, stop) are not part of the file.

    So a damaged index never causes a read of bytes that do not exist.

    Args:
        record: The record number in the message.
        end: Uncompressed size of the file. None means the size in the manifest, or of the file.
    """
    if end is None:
        end = file.info.framed_bytes if file.info is not None else file.stat.size_bytes
    if not 0 <= start <= stop <= end:
        reason = f"says bytes {start} to {stop} of a shard that has {end}; verify the data set"
        raise DataError(reason, source=file.index_path or file.path, place=f"record {record}")


def load_members(file: ShardFile) -> Index:
    """Maps the member table of a compressed shard into memory."""
    assert file.members_path is not None
    return map_table(file.members_path, MEMBERS_DTYPE)


def iter_piece_reads(
    files: Sequence[ShardFile] | Mapping[int, ShardFile],
    pieces: Iterable[Piece],
    *,
    limit: int | None = None,
    refuse: Callable[[int], str] | None = None,
) -> Iterator[FrameRead]:
    """Yields deferred reads of pieces, in order.

    A piece without an end is a stream. The thread that iterates reads it, and yields a read for
    each batch of it. Objects in stores are requested one piece ahead.

    Args:
        files: The files, by their ordinals in the pieces.
        pieces: Pieces with known record numbers.
        limit: Reading stops after the piece with this number of records, including damaged ones. If
            None, all are read.
        refuse: Takes the size of a record in bytes. Returns the reason why it is too large, or "".
            A record that is too large becomes damage. If None, records of any size are read.
    """
    yield from _read_ahead(files, pieces, lambda pieces: _iter_reads(files, pieces, limit, refuse))


def iter_joined_reads(
    files: Sequence[ShardFile] | Mapping[int, ShardFile],
    pieces: Iterable[Piece],
    *,
    limit: int | None = None,
    refuse: Callable[[int], str] | None = None,
) -> Iterator[FrameRead]:
    """Yields deferred reads like `iter_piece_reads`, but reads small pieces together.

    So the frames of a read may come from several files. A read and its batch have fixed costs of
    about 0.5 ms, which 1,000 small shards would pay 1,000 times.

    The read of several pieces raises DataError at once if a record is damaged.

    Args:
        files: The files, by their ordinals in the pieces.
        pieces: Pieces with known record numbers.
        limit: See `iter_piece_reads`.
        refuse: See `iter_piece_reads`.
    """
    yield from _read_ahead(
        files, pieces, lambda pieces: join_reads(_iter_reads(files, pieces, limit, refuse))
    )


def _read_ahead(
    files: Sequence[ShardFile] | Mapping[int, ShardFile],
    pieces: Iterable[Piece],
    start_reads: Callable[[Iterable[Piece]], Iterator[FrameRead]],
) -> Iterator[FrameRead]:
    """Yields deferred reads. If the first file is in a store, one read is requested ahead."""
    remaining_pieces = iter(pieces)
    first_pieces = list(itertools.islice(remaining_pieces, 1))
    reads = start_reads(itertools.chain(first_pieces, remaining_pieces))
    if not any(is_remote(files[piece.file].path) for piece in first_pieces):
        yield from reads
        return
    waiting = list(itertools.islice(reads, 1))
    for read in reads:
        yield waiting.pop()
        waiting.append(read)
    yield from waiting


def join_reads(reads: Iterable[FrameRead], max_records: int | None = None) -> Iterator[FrameRead]:
    """Joins consecutive reads of pieces that have together at most PIECE_BYTES.

    Args:
        reads: The deferred reads. Reads that are not from `start_read` are not joined.
        max_records: Maximum number of records of a joined read. None means no limit.
    """
    group: list[_PieceRead] = []
    group_bytes = group_records = 0
    for read in reads:
        if not isinstance(read, _PieceRead):
            if group:
                yield functools.partial(_read_together, group)
                group, group_bytes, group_records = [], 0, 0
            yield read
            continue
        size_bytes, records = read.piece.size_bytes, read.piece.records or 0
        if group and (
            group_bytes + size_bytes > PIECE_BYTES
            or len(group) == _MAX_JOINED_READS
            or (max_records is not None and group_records + records > max_records)
        ):
            yield functools.partial(_read_together, group)
            group, group_bytes, group_records = [], 0, 0
        group.append(read)
        group_bytes += size_bytes
        group_records += records
    if group:
        yield functools.partial(_read_together, group)


def _read_together(reads: Sequence[_PieceRead]) -> FileFrames:
    """Reads pieces into one buffer, and checks their frames."""
    if len(reads) == 1:
        return reads[0]()
    begins = to_offsets([read.piece.size_bytes for read in reads])
    data = allocate(int(begins[-1]), np.uint8)
    is_complete = all(
        read.fill(data[begin:end])
        for read, (begin, end) in zip(reads, itertools.pairwise(begins.tolist()), strict=True)
    )
    for read in reads:
        read.file.check_unchanged()
    frames = scan_piece(data, FileOrigin(""), first_record=0)
    bounds = np.append(frames.starts, len(data))
    firsts = np.searchsorted(bounds, begins)
    if (
        not is_complete
        or frames.damage
        or not np.array_equal(bounds[firsts], begins)
        or np.diff(firsts).tolist() != [read.piece.records for read in reads]
    ):
        # A read of one piece finds the damage, and describes it with its place in the file.
        return _join_frames([read() for read in reads], reads)
    return replace(frames, origin=_join_origins(reads, firsts[:-1], begins[:-1]))


def _join_origins(reads: Sequence[_PieceRead], firsts: Int64s, begins: Int64s) -> JoinedOrigin:
    origins = [FileOrigin(read.file.path, read.piece.file, read.piece.start) for read in reads]
    records = np.array([read.piece.first_record for read in reads])
    return JoinedOrigin(origins, firsts, records, begins)


def _join_frames(parts: Sequence[FileFrames], reads: Sequence[_PieceRead]) -> FileFrames:
    """Returns the frames and the damage of several pieces as one object.

    Args:
        parts: The frames of each piece.
        reads: The read of each piece.
    """
    firsts = to_offsets([part.records for part in parts])[:-1]
    begins = to_offsets([len(part.data) for part in parts])[:-1]
    origin = _join_origins(reads, firsts, begins)
    shifts = (firsts - origin.records).tolist()
    return FileFrames(
        data=np.concatenate([part.data for part in parts]),
        starts=np.concatenate(
            [part.starts + begin for part, begin in zip(parts, begins, strict=True)]
        ),
        lengths=np.concatenate([part.lengths for part in parts]),
        crcs=np.concatenate([part.crcs for part in parts]),
        numbers=np.concatenate(
            [part.numbers + shift for part, shift in zip(parts, shifts, strict=True)]
        ),
        origin=origin,
        # The place contains the number of the record in its file.
        damage=tuple(
            damage.shift(shift)
            for part, shift in zip(parts, shifts, strict=True)
            for damage in part.damage
        ),
    )


def _iter_reads(
    files: Sequence[ShardFile] | Mapping[int, ShardFile],
    pieces: Iterable[Piece],
    limit: int | None,
    refuse: Callable[[int], str] | None,
) -> Iterator[FrameRead]:
    remaining = limit
    for piece in pieces:
        if remaining is not None and remaining <= 0:
            return
        file = files[piece.file]
        if piece.stop is not None:
            # A damaged range is not read anyway, so its size does not matter.
            if refuse is not None and piece.damage is None and (reason := refuse(piece.size_bytes)):
                piece = _without_record(piece, reason)
            yield start_read(file, piece)
            remaining = None if remaining is None else remaining - (piece.records or 1)
            continue
        for frames in stream(file, piece.file):
            if refuse is not None:
                frames = _without_large_record(frames, refuse)
            if remaining is not None:
                frames = frames.first(remaining)
                remaining -= frames.records
            yield functools.partial(return_frames, frames)
            if remaining is not None and remaining <= 0:
                return


def return_frames(frames: FileFrames) -> FileFrames:
    """Returns the frames, as a deferred read of frames that are in memory already."""
    return frames


def _without_record(piece: Piece, reason: str) -> Piece:
    """Returns the piece with damage instead of its only record."""
    assert piece.first_record is not None
    return replace(
        piece,
        damage=Damage(
            piece.first_record, piece.start, piece.size_bytes, OUT_OF_MEMORY_REASON, reason
        ),
    )


def _without_large_record(frames: FileFrames, refuse: Callable[[int], str]) -> FileFrames:
    """Replaces the largest record by damage, if it is too large."""
    if not len(frames):
        return frames
    row = int(np.argmax(frames.lengths))
    size_bytes = int(frames.lengths[row]) + FRAME_OVERHEAD_BYTES
    reason = refuse(size_bytes)
    return replace_by_damage(frames, row, reason) if reason else frames


def replace_by_damage(frames: FileFrames, row: int, reason: str) -> FileFrames:
    """Replaces a record that is too large for the memory by damage."""
    assert isinstance(frames.origin, FileOrigin)
    damage = Damage(
        record=int(frames.numbers[row]),
        offset=frames.origin.data_offset + int(frames.starts[row]),
        size_bytes=int(frames.lengths[row]) + FRAME_OVERHEAD_BYTES,
        kind=OUT_OF_MEMORY_REASON,
        reason=reason,
    )
    remaining_rows = np.delete(np.arange(len(frames)), row)
    return frames.select(
        remaining_rows,
        tuple(sorted((*frames.damage, damage), key=lambda damage: damage.record)),
    )


def start_read(file: ShardFile, piece: Piece) -> FrameRead:
    """Requests the bytes of a piece, and returns a deferred read of it.

    Only bytes in stores are requested now. The read returns damage together with the frames. The
    read raises DataError if the file was replaced, or if the piece contains too many records.

    Args:
        piece: A piece with an end and a known first record.

    Raises:
        DataError: The piece is not inside the file.
    """
    assert piece.stop is not None
    assert piece.first_record is not None
    if piece.damage is not None:
        origin = FileOrigin(file.path, piece.file, piece.start)
        return functools.partial(return_frames, FileFrames.empty(origin, (piece.damage,)))
    if file.info is not None or file.codec.is_plain:
        check_range(file, piece.start, piece.stop, piece.first_record)
    if not (file.codec.is_plain and is_remote(file.path)):
        return _PieceRead(file, piece)
    with explain_missing(file.path):
        return _PieceRead(file, piece, start_range_read(file.path, piece.start, piece.stop))


@dataclass(frozen=True, slots=True)
class _PieceRead:
    """Deferred read of a piece, a `FrameRead`.

    Attributes:
        file: The file.
        piece: A piece with an end and a known first record.
        requested: Waits for the bytes of the piece, which were requested from a store, and returns
            them. None if the file is on a disk.
    """

    file: ShardFile
    piece: Piece
    requested: Callable[[], Bytes] | None = None

    def __call__(self) -> FileFrames:
        """Reads and checks the frames."""
        return _read_piece(self.file, self.piece, self.requested)

    def fill(self, target: Bytes) -> bool:
        """Reads the bytes of the piece into an array.

        Returns:
            True if the array is filled. False if bytes are missing or can't be decompressed.
        """
        path, start = self.file.path, self.piece.start
        with explain_missing(path):
            if self.requested is not None:
                data = self.requested()
            elif self.file.codec.is_plain:
                return len(read_range(path, start, target=target)) == len(target)
            else:
                try:
                    data = inflate_members(self.file, start, start + len(target))
                except DataError:
                    return False
        target[: len(data)] = data
        return len(data) == len(target)


def _read_piece(file: ShardFile, piece: Piece, requested: Callable[[], Bytes] | None) -> FileFrames:
    """Reads and checks the frames of a piece, see `_PieceRead`."""
    assert piece.stop is not None
    assert piece.first_record is not None
    unreadable: list[Unreadable] = []
    with explain_missing(file.path):
        if requested is not None:
            data = requested()
        elif file.codec.is_plain:
            data = read_range(file.path, piece.start, piece.stop)
        else:
            data = inflate_members(file, piece.start, piece.stop, unreadable=unreadable)
    file.check_unchanged()
    frames = scan_piece(
        data,
        FileOrigin(file.path, piece.file, piece.start),
        first_record=piece.first_record,
        records=piece.records,
        known_starts=lambda: _load_known_starts(file, piece),
        unreadable=unreadable,
    )
    if len(data) == piece.size_bytes:
        return frames
    # The file has become shorter, which is the cause of all damage at its end.
    end = piece.start + len(data)
    reason = f"truncated: it ends {piece.stop - end} bytes before the last record that was there"
    return replace(
        frames,
        damage=tuple(
            replace(damage, reason=reason, place=f"byte {end}", reject_message=damage.message)
            if damage.offset < 0 or damage.offset + damage.size_bytes >= end
            else damage
            for damage in frames.damage
        ),
    )


def _load_known_starts(file: ShardFile, piece: Piece) -> Int64s | None:
    """Returns the offset of each record in a piece. None if there is no index."""
    index = load_index(file, lenient=True)
    if index is None:
        return None
    assert piece.first_record is not None
    end = piece.first_record + (piece.records or 0)
    return np.ascontiguousarray(index["offset"][piece.first_record : end]) - piece.start


def stream(
    file: ShardFile,
    ordinal: int = 0,
    *,
    check: bool = True,
    max_record_bytes: int = MAX_RECORD_BYTES,
    batch_bytes: int = PIECE_BYTES,
) -> Iterator[FileFrames]:
    """Yields all frames of a file and the damage between them, in one pass.

    This needs neither an index nor a temporary file. An empty file yields nothing.

    Args:
        ordinal: Ordinal of the file in the catalog.
        check: If True, the CRCs of the payloads are checked, in addition to the headers.
        max_record_bytes: Maximum size of a payload.
        batch_bytes: Size of the frames that are yielded together.

    Raises:
        DataError: The file was replaced after it was listed.
    """
    if not file.stat.size_bytes:
        return
    parts = read_frames(
        file.path,
        batch_bytes=batch_bytes,
        max_record_bytes=max_record_bytes,
        checks_payloads=check,
        compression=file.compression,
        ordinal=ordinal,
    )
    with explain_missing(file.path):
        for part in parts:
            file.check_unchanged()
            yield part


def _find_members(
    file: ShardFile, members: Index, start: int, stop: int
) -> tuple[list[int], list[int]]:
    """Finds the members that contain uncompressed bytes [start, stop).

    Returns:
        Two lists of offsets: where each member begins in the file, and where its contents begin in
        the uncompressed shard. Both end with the end of the last member.

    Raises:
        DataError: The member table does not fit the shard.
    """
    assert file.info is not None
    first = int(np.searchsorted(members["uncompressed"], start, "right")) - 1
    last = int(np.searchsorted(members["uncompressed"], stop, "left"))
    bounds = _slice_bounds(members["compressed"], first, last, file.info.bytes)
    begins = _slice_bounds(members["uncompressed"], first, last, file.info.framed_bytes)
    for offsets, end in (bounds, file.info.bytes), (begins, file.info.framed_bytes):
        if first < 0 or offsets != sorted(offsets) or offsets[0] < 0 or offsets[-1] > end:
            raise DataError(
                "does not fit the shard; verify the data set", source=file.members_path or file.path
            )
    for (offset, end), (begin, stop) in zip(
        itertools.pairwise(bounds), itertools.pairwise(begins), strict=True
    ):
        if stop - begin > min(file.codec.max_content_bytes(end - offset), _MAX_MEMBER_BYTES):
            says = f"says {stop - begin} bytes in a member of {end - offset}, which can't hold them"
            raise DataError(f"{says}; verify the data set", source=file.members_path or file.path)
    return bounds, begins


def inflate_members(
    file: ShardFile,
    start: int,
    stop: int,
    unreadable: list[Unreadable] | None = None,
) -> Bytes:
    """Decompresses the members of a shard that contain bytes [start, stop).

    Args:
        unreadable: Receives the damaged members, as `scan_piece` takes them. Their bytes are zeros
            in the result. If None, their errors are raised.

    Returns:
        Bytes [start, stop) of the uncompressed shard.

    Raises:
        DataError: The member table does not fit the shard, or a member is damaged and `unreadable`
            is None.
    """
    bounds, begins = _find_members(file, load_members(file), start, stop)
    data = memoryview(read_range(file.path, bounds[0], bounds[-1]))
    result = np.zeros(begins[-1] - begins[0], np.uint8)
    for (offset, end), (content_begin, content_end) in zip(
        itertools.pairwise(bounds), itertools.pairwise(begins), strict=True
    ):
        try:
            result[content_begin - begins[0] : content_end - begins[0]] = _inflate_member(
                data[offset - bounds[0] : end - bounds[0]],
                file,
                offset,
                content_end - content_begin,
            )
        except DataError as error:
            if unreadable is None:
                raise
            damage = Damage.of_member(file.compression, error)
            unreadable.append((content_begin - start, content_end - start, damage))
    return result[start - begins[0] : stop - begins[0]]


def _slice_bounds(column: Int64s, first: int, last: int, end: int) -> list[int]:
    """Returns the offsets of members [first, last), and the end of the last one.

    Args:
        column: The offset of each member.
        end: The end of the last member of the shard.
    """
    return [*column[first:last].tolist(), int(column[last]) if last < len(column) else end]


def _inflate_member(data: memoryview, file: ShardFile, offset: int, size: int) -> Bytes:
    try:
        return np.frombuffer(file.codec.member_algorithm.unpack(data, size), np.uint8)
    except ValueError as error:
        reason = Message("{compression} member {error}", compression=file.compression, error=error)
        raise DataError(reason, source=file.path, place=f"byte {offset} of the file") from None
