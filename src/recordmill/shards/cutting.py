"""Divides TFRecord files into pieces of about 8 MiB.

The boundaries come from the index of a shard. Without an index they come from the frame headers,
and payloads are not read. A compressed file without members is one piece, which is read as a
stream. The pieces depend on the file only, so results never depend on threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from recordmill.base.buffers import Int64s
from recordmill.base.errors import DataError
from recordmill.base.threads import thread_map
from recordmill.records.tfrecord.frames import iter_frame_offsets, read_frame_end
from recordmill.records.tfrecord.stream import find_resume_offset
from recordmill.shards.catalog import ShardFile, check_size
from recordmill.shards.index import INDEX_FRAME_BYTES, Index, PartialIndex
from recordmill.shards.manifest import ShardInfo
from recordmill.shards.pieces import PIECE_BYTES, Piece, Span, load_index, load_members
from recordmill.storage.files import is_remote, map_file, stat

# Number of files in a store that are read at once.
_AT_ONCE = 16
# A shard with more records per piece than this is divided by a partial index.
PROBED_RECORDS = 8192
_Item = TypeVar("_Item")


def cut(
    file: ShardFile,
    ordinal: int,
    piece_bytes: int | None = None,
    *,
    lenient: bool = False,
    within: tuple[int, int] | None = None,
) -> Iterator[Piece]:
    """Yields the pieces of one file in order. An empty file has none.

    Args:
        ordinal: Ordinal of the file in the catalog.
        piece_bytes: Target size. None means PIECE_BYTES.
        lenient: Bytes that are not a frame become a piece with a fault, up to the next frame,
            instead of an error.
        within: Range of a `Span`: only its records. Only for a shard with an index.

    Raises:
        DataError: The index contradicts the manifest, or a frame header is damaged in a file
            without an index.
    """
    piece_bytes = piece_bytes or PIECE_BYTES
    if (far := _far_index(file, piece_bytes, within)) is not None:
        check_size(file.path, far[0], lenient=lenient)
        yield from _cut_far(far[1], ordinal, piece_bytes, *(within or (0, far[1].end)))
        return
    index = load_index(file, lenient=lenient)
    if index is not None:
        starts = np.asarray(load_members(file)["uncompressed"]) if file.members_path else None
        yield from _cut_index(
            index, starts, ordinal, piece_bytes, file.index_path or file.path, within
        )
    elif file.codec.is_plain:
        yield from hop_piece(file, ordinal, piece_bytes, lenient=lenient)
    elif file.stat.size_bytes:
        yield Piece(ordinal, 0, None, 0, None)


def cut_files(files: Iterable[tuple[int, ShardFile]], *, lenient: bool = False) -> Iterator[Piece]:
    """Yields the pieces of several files in order, see `cut`.

    Several files in a store are read at once.
    """
    found = list(files)
    return _cut_all(
        found,
        lambda one: cut(one[1], one[0], lenient=lenient),
        any(is_remote(file.path) for _, file in found),
    )


def pieces_of(
    files: Sequence[ShardFile], found: Iterable[Piece | Span], *, lenient: bool = False
) -> Iterator[Piece]:
    """Yields pieces in order, dividing each `Span` by the index of its shard.

    Several indexes in a store are read at once.
    """

    def pieces(one: Piece | Span) -> Iterable[Piece]:
        if isinstance(one, Piece):
            return (one,)
        return cut(files[one.file], one.file, lenient=lenient, within=(one.start, one.stop))

    left = iter(found)
    first = list(itertools.islice(left, 1))
    far = any(isinstance(one, Span) and is_remote(files[one.file].path) for one in first)
    return _cut_all(itertools.chain(first, left), pieces, far)


def _cut_all(
    found: Iterable[_Item], cuts: Callable[[_Item], Iterable[Piece]], far: bool
) -> Iterator[Piece]:
    if not far:
        return itertools.chain.from_iterable(map(cuts, found))
    return itertools.chain.from_iterable(thread_map(lambda one: list(cuts(one)), found, _AT_ONCE))


def _far_index(
    file: ShardFile, piece_bytes: int, within: tuple[int, int] | None
) -> tuple[ShardInfo, PartialIndex] | None:
    """Returns a partial index if few entries suffice to find the pieces.

    This can be the case for a shard in a store, or for a range of a shard.
    """
    if file.info is None or file.index_path is None or file.members_path is not None:
        return None
    start, stop = within or (0, file.info.framed_bytes)
    if not is_remote(file.index_path) and (start, stop) == (0, file.info.framed_bytes):
        return None
    # The bounds of a range inside of the shard must be found in the index, too.
    ends = (start > 0) + (stop < file.info.framed_bytes)
    looked = ((stop - start) // piece_bytes + ends) * PROBED_RECORDS
    if not file.info.records > looked:
        return None
    return file.info, PartialIndex(file.index_path, file.info.records, file.info.framed_bytes)


def _cut_far(
    index: PartialIndex, ordinal: int, piece_bytes: int, low: int, high: int
) -> Iterator[Piece]:
    """Yields the same pieces as `_cut_index`."""
    index.prefetch(
        [
            *range(low + piece_bytes, high, piece_bytes),
            *(at - 1 for at in (low, high) if 0 < at < index.end),
        ]
    )
    first, start = _record_at(index, low)
    last, end = _record_at(index, high)
    while start < end:
        behind, stop = last, end
        if start + piece_bytes < end:
            behind, stop, after = index.find_record(start + piece_bytes)
            # A single record is larger than a piece.
            if stop <= start:
                behind, stop = behind + 1, after
        yield Piece(ordinal, first, behind - first, start, stop)
        start, first = stop, behind


def _record_at(index: PartialIndex, byte: int) -> tuple[int, int]:
    """Returns the first record that begins at `byte` or after it.

    Returns:
        Its number and its offset.
    """
    if byte <= 0:
        return 0, 0
    if byte >= index.end:
        return index.records, index.end
    number, _, behind = index.find_record(byte - 1)
    return number + 1, behind


def _cut_index(
    index: Index,
    allowed: Int64s | None,
    ordinal: int,
    piece_bytes: int,
    source: str,
    within: tuple[int, int] | None = None,
) -> Iterator[Piece]:
    """Yields the pieces of a shard.

    Args:
        index: The complete index.
        allowed: Offsets where a piece may begin. None allows every record. The first piece of
            `within` may begin anywhere.
        ordinal: Ordinal of the file in the catalog.
        piece_bytes: Target size.
        source: Path of the index, for error messages.
        within: Only records that begin in this range.
    """
    # Searching a field of a structured array would copy it for each search.
    offsets = np.ascontiguousarray(index["offset"])
    if len(offsets) == 0:
        return
    whole = int(offsets[-1] + index["length"][-1]) + INDEX_FRAME_BYTES
    first, last = (0, len(offsets)) if within is None else np.searchsorted(offsets, within).tolist()
    start, end = (int(offsets[at]) if at < len(offsets) else whole for at in (first, last))
    places = offsets if allowed is None else allowed
    while start < end:
        # The last boundary within `piece_bytes`, or the next one if a single record or member is
        # larger.
        at = max(
            int(np.searchsorted(places, start + piece_bytes, "right")) - 1,
            int(np.searchsorted(places, start, "right")),
        )
        stop = min(int(places[at]), end) if at < len(places) and start + piece_bytes < end else end
        if stop <= start:
            raise DataError(
                "is not in order; verify the data set", source=source, place=f"record {first}"
            )
        behind = int(np.searchsorted(offsets, stop))
        yield Piece(ordinal, first, behind - first, start, stop)
        start, first = stop, behind


def hop_piece(
    file: ShardFile, ordinal: int, piece_bytes: int = PIECE_BYTES, *, lenient: bool = False
) -> Iterator[Piece]:
    """Yields the pieces of an uncompressed file by its frame headers.

    The CRC of each header is checked. If `lenient`, a damaged header yields a piece with its error,
    and the search goes on at the next intact header.

    Raises:
        DataError: A header is damaged or the file is truncated, and `lenient` is false. The pieces
            before it were yielded.
    """
    at, first = 0, 0
    while True:
        cutter = _Cutter(ordinal, at, first, piece_bytes)
        try:
            for starts in iter_frame_offsets(file.path, start=at, first_record=first):
                yield from cutter.add(starts)
        except DataError as error:
            at = _end_of(file.path, cutter)
            yield from cutter.finish(at)
            if not lenient:
                raise
            kind, behind = find_resume_offset(map_file(file.path), at)
            yield Piece(ordinal, cutter.first, None, at, behind, error.reason, kind)
            at, first = behind, cutter.first + 1
        else:
            yield from cutter.finish(stat(file.path).size_bytes)
            return


class _Cutter:
    """Groups the offsets of records into pieces of at most `piece_bytes` or one record.

    Attributes:
        start: Offset of the first record that is not in a piece yet.
        first: Number of this record.
        starts: Offsets of the records from `start` on.
    """

    def __init__(self, ordinal: int, start: int, first: int, piece_bytes: int) -> None:
        self.ordinal, self.start, self.first, self.piece_bytes = ordinal, start, first, piece_bytes
        # Of the records from `start` on.
        self.starts = np.empty(0, np.int64)

    def add(self, starts: Int64s) -> Iterator[Piece]:
        self.starts = np.concatenate([self.starts, starts])
        yield from self._cut(int(self.starts[-1]))

    def finish(self, end: int) -> Iterator[Piece]:
        """Yields the rest. The last record ends at `end`."""
        yield from self._cut(end)
        if len(self.starts):
            yield self._piece(len(self.starts), end)

    def _cut(self, end: int) -> Iterator[Piece]:
        while end - self.start > self.piece_bytes and len(self.starts) > 1:
            records = max(
                int(np.searchsorted(self.starts, self.start + self.piece_bytes, "right")) - 1, 1
            )
            yield self._piece(records, int(self.starts[records]))

    def _piece(self, records: int, stop: int) -> Piece:
        piece = Piece(self.ordinal, self.first, records, self.start, stop)
        self.start, self.first, self.starts = stop, self.first + records, self.starts[records:]
        return piece


def _end_of(path: str, cutter: _Cutter) -> int:
    """Returns the end of the last record that was found."""
    return read_frame_end(path, int(cutter.starts[-1])) if len(cutter.starts) else cutter.start
