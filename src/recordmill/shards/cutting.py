"""Division of TFRecord files into pieces of about 8 MiB.

The index of a shard determines the boundaries. A file without an index is divided at its frame
headers, without reading the payloads. A compressed file without members is one piece, which is read
as a stream. The pieces depend only on the file, so results never depend on threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np

from recordmill.base.buffers import Int64s
from recordmill.base.errors import DataError
from recordmill.base.threads import thread_map
from recordmill.records.tfrecord.frames import Damage
from recordmill.shards.catalog import ShardFile, check_size
from recordmill.shards.index import MappedIndex, PartialIndex
from recordmill.shards.pieces import PIECE_BYTES, Piece, load_index, load_members
from recordmill.shards.record_table import scan_headers
from recordmill.storage.files import is_remote, stat

# Maximum number of files in a store that are read at the same time.
_MAX_CONCURRENT_FILES = 16
# A shard with more records per piece than this is divided by a partial index.
PROBED_RECORDS = 8192
_Item = TypeVar("_Item")


class RecordOffsets(Protocol):
    """Offsets of the records of a file, in the uncompressed file.

    Attributes:
        records: Number of records.
        end: Offset after the last record.
    """

    @property
    def records(self) -> int: ...

    @property
    def end(self) -> int: ...

    def prefetch(self, offsets: Iterable[int]) -> None:
        """Reads the index entries that `find_record` needs for these offsets, in one batch.

        Only an index in a store needs this.
        """

    def find_record(self, offset: int) -> tuple[int, int, int]:
        """Returns (number, begin, end) of the record that contains the byte at an offset."""

    def offset_of(self, record: int) -> int:
        """Returns the offset of the first byte of a record.

        The number after the last record is valid, too. Its offset is `end`.
        """


def cut(
    file: ShardFile,
    ordinal: int,
    piece_bytes: int | None = None,
    *,
    lenient: bool = False,
    within: tuple[int, int] | None = None,
) -> Iterator[Piece]:
    """Yields the pieces of one file, in order. An empty file has no pieces.

    Args:
        ordinal: Ordinal of the file in the catalog.
        piece_bytes: Target size. None means PIECE_BYTES.
        lenient: If True, bytes between two frames become a piece with damage. Otherwise they are an
            error.
        within: Range of uncompressed bytes. Only records that begin in it are included. This
            requires a shard with an index.

    Raises:
        DataError: The index contradicts the manifest, or a frame header is damaged in a file
            without an index.
    """
    piece_bytes = piece_bytes or PIECE_BYTES
    if file.info is not None and file.index_path is not None:
        offsets = _open_index(file, piece_bytes, within, lenient)
        low, high = within or (0, offsets.end)
        offsets.prefetch(
            [
                *range(low + piece_bytes, high, piece_bytes),
                *(bound - 1 for bound in (low, high) if 0 < bound < offsets.end),
            ]
        )
        yield from cut_records(
            offsets,
            ordinal,
            *(_find_record_at(offsets, byte) for byte in (low, high)),
            piece_bytes=piece_bytes,
            begins=load_member_begins(file),
            source=file.index_path,
        )
    elif file.codec.is_plain:
        yield from cut_by_headers(file, ordinal, piece_bytes, lenient=lenient)
    elif file.stat.size_bytes:
        yield Piece(ordinal, 0, None)


def cut_files(files: Iterable[tuple[int, ShardFile]], *, lenient: bool = False) -> Iterator[Piece]:
    """Yields the pieces of several files in order, see `cut`.

    Several files in a store are read at once.
    """
    numbered_files = list(files)
    return _divide_all(
        numbered_files,
        lambda numbered: cut(numbered[1], numbered[0], lenient=lenient),
        any(is_remote(file.path) for _, file in numbered_files),
    )


def resolve(
    files: Sequence[ShardFile], pieces: Iterable[Piece], *, lenient: bool = False
) -> Iterator[Piece]:
    """Divides pieces with unknown record numbers into pieces with known ones.

    The index of the shard contains the numbers. A piece that is a complete small shard needs no
    index. Other pieces are yielded unchanged. Several indexes in a store are read at the same time.
    """

    def divide(piece: Piece) -> Iterable[Piece]:
        if piece.first_record is not None or piece.stop is None:
            return (piece,)
        if piece.start == 0 and piece.records is not None and piece.size_bytes <= PIECE_BYTES:
            return (replace(piece, first_record=0),)
        within = (piece.start, piece.stop)
        return cut(files[piece.file], piece.file, lenient=lenient, within=within)

    remaining = iter(pieces)
    first = list(itertools.islice(remaining, 1))
    is_far = any(
        piece.first_record is None and is_remote(files[piece.file].path) for piece in first
    )
    return _divide_all(itertools.chain(first, remaining), divide, is_far)


def _divide_all(
    items: Iterable[_Item], divide: Callable[[_Item], Iterable[Piece]], is_far: bool
) -> Iterator[Piece]:
    if not is_far:
        return itertools.chain.from_iterable(map(divide, items))
    return itertools.chain.from_iterable(
        thread_map(lambda item: list(divide(item)), items, _MAX_CONCURRENT_FILES)
    )


def _open_index(
    file: ShardFile, piece_bytes: int, within: tuple[int, int] | None, lenient: bool
) -> MappedIndex | PartialIndex:
    """Opens the index of a shard, completely or as a `PartialIndex`.

    A `PartialIndex` reads single blocks. This is better for a store or a range of a shard, if few
    entries are enough to find the pieces.
    """
    assert file.info is not None
    assert file.index_path is not None
    end = file.info.framed_bytes
    start, stop = within or (0, end)
    # The entries at both ends of a range have to be found, too.
    probes = (stop - start) // piece_bytes + (start > 0) + (stop < end)
    if (
        file.members_path is None
        and (is_remote(file.index_path) or (start, stop) != (0, end))
        and file.info.records > probes * PROBED_RECORDS
    ):
        check_size(file.path, file.info, lenient=lenient)
        return PartialIndex(file.index_path, file.info.records, end)
    index = load_index(file, lenient=lenient)
    assert index is not None
    return MappedIndex(index, file.index_path, end)


def load_member_begins(file: ShardFile) -> Int64s | None:
    """Returns the offset of each member in the uncompressed shard. None if it is not compressed."""
    return np.asarray(load_members(file)["uncompressed"]) if file.members_path else None


def _find_record_at(offsets: RecordOffsets, byte: int) -> tuple[int, int]:
    """Returns (number, offset) of the first record that begins at `byte` or after it."""
    if byte <= 0:
        return 0, 0
    if byte >= offsets.end:
        return offsets.records, offsets.end
    number, _, end = offsets.find_record(byte - 1)
    return number + 1, end


def cut_records(
    offsets: RecordOffsets,
    ordinal: int,
    begin: tuple[int, int],
    end: tuple[int, int],
    *,
    piece_bytes: int,
    piece_records: int | None = None,
    begins: Int64s | None = None,
    source: str = "",
) -> Iterator[Piece]:
    """Yields pieces with consecutive records.

    Args:
        offsets: The offsets of the records.
        ordinal: Ordinal of the file in the catalog.
        begin: Number and offset of the first record.
        end: Number and offset after the last record.
        piece_bytes: Maximum size of a piece. A larger record is a piece of its own.
        piece_records: Maximum number of records of a piece, or None.
        begins: Offsets where a piece may begin, except the first one. If None, it may begin at
            every record.
        source: Path of the index, for error messages.

    Raises:
        DataError: The offsets do not ascend.
    """
    (record, start), (last_record, last_stop) = begin, end
    while record < last_record:
        next_record, stop = last_record, last_stop
        if start + piece_bytes < last_stop:
            next_record, stop = _find_cut(offsets, start, start + piece_bytes, begins)
            if stop > last_stop:
                next_record, stop = last_record, last_stop
        if piece_records is not None and next_record > record + piece_records:
            next_record = record + piece_records
            stop = offsets.offset_of(next_record)
        if not (start < stop <= last_stop and record < next_record <= last_record):
            raise DataError(
                "is not in order; verify the data set", source=source, place=f"record {record}"
            )
        yield Piece(ordinal, start, stop, record, next_record - record)
        record, start = next_record, stop


def _find_cut(
    offsets: RecordOffsets, start: int, limit: int, begins: Int64s | None
) -> tuple[int, int]:
    """Finds the end of a piece.

    The piece contains all records or members that end at `limit` or before it. It contains at least
    one, even if that is larger.

    Args:
        offsets: Offsets of the records.
        start: Offset of the piece's first record.
        limit: Offset after a piece of the maximum size.
        begins: Offsets of the members, or None to end the piece after any record.

    Returns:
        (number, offset) of the record after the piece.
    """
    if begins is None:
        number, begin, end = offsets.find_record(limit)
        return (number, begin) if begin > start else (number + 1, end)
    row = max(
        int(np.searchsorted(begins, limit, "right")) - 1,
        int(np.searchsorted(begins, start, "right")),
    )
    return _find_record_at(offsets, int(begins[row]) if row < len(begins) else offsets.end)


def cut_by_headers(
    file: ShardFile, ordinal: int, piece_bytes: int = PIECE_BYTES, *, lenient: bool = False
) -> Iterator[Piece]:
    """Yields the pieces of an uncompressed file without an index.

    The frame headers are read, and their CRCs are checked. The memory does not depend on the number
    of records. If `lenient` is set, a damaged range is a piece of its own.

    Raises:
        DataError: A header is damaged or the file is truncated, and `lenient` is False. Pieces
            before the damage are yielded first.
    """
    cutter = _Cutter(ordinal, piece_bytes)
    for part in scan_headers(file.path, lenient=lenient):
        if isinstance(part, Damage):
            yield from cutter.finish(part.offset)
            stop = part.offset + part.size_bytes
            yield Piece(ordinal, part.offset, stop, part.record, damage=part)
            cutter = _Cutter(ordinal, piece_bytes, stop, part.record + 1)
        else:
            yield from cutter.add(part)
    yield from cutter.finish(stat(file.path).size_bytes)


class _Cutter:
    """Groups consecutive records into pieces of at most `piece_bytes`, or of one larger record.

    Args:
        start: Offset of the first record.
        record: Number of the first record.
    """

    def __init__(self, ordinal: int, piece_bytes: int, start: int = 0, record: int = 0) -> None:
        self._ordinal, self._piece_bytes = ordinal, piece_bytes
        # offset and number of the first record that is not in a piece yet
        self._start, self._record = start, record
        # offsets of all records that are not in a piece yet
        self._starts = np.empty(0, np.int64)

    def add(self, starts: Int64s) -> Iterator[Piece]:
        """Adds records, and yields the complete pieces."""
        self._starts = np.concatenate([self._starts, starts])
        yield from self._take_full_pieces(int(self._starts[-1]))

    def finish(self, end: int) -> Iterator[Piece]:
        """Yields the remaining pieces. The last record ends at `end`."""
        yield from self._take_full_pieces(end)
        if len(self._starts):
            yield self._take_piece(len(self._starts), end)

    def _take_full_pieces(self, end: int) -> Iterator[Piece]:
        while end - self._start > self._piece_bytes and len(self._starts) > 1:
            records = max(
                int(np.searchsorted(self._starts, self._start + self._piece_bytes, "right")) - 1, 1
            )
            yield self._take_piece(records, int(self._starts[records]))

    def _take_piece(self, records: int, stop: int) -> Piece:
        piece = Piece(self._ordinal, self._start, stop, self._record, records)
        self._start, self._record, self._starts = (
            stop,
            self._record + records,
            self._starts[records:],
        )
        return piece
