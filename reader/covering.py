"""Which pieces of files have the records that are wanted: files and a range of numbers in, loads out, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from recordmill.records.tfrecord.frames import Int64s
from recordmill.shards.access import FileAccess
from recordmill.shards.loads.batches import Load
from recordmill.shards.pieces import Piece


def covering(
    files: Sequence[FileAccess], ends: Int64s, start: int, stop: int, piece_bytes: int, piece_records: int | None
) -> Iterator[Load]:
    """The pieces of work that give records [start, stop). ends: int64 [files], the number of records up to and with
    each file.
    """
    for number, (file, end) in enumerate(zip(files, ends.tolist(), strict=True)):
        begin = int(ends[number - 1]) if number else 0
        low, high = max(start, begin) - begin, min(stop, end) - begin
        if low >= high:
            continue
        if file.seekable:
            yield from (Load(file.file, piece) for piece in file.pieces(low, high, piece_bytes, piece_records))
        else:
            yield from (Load(file.file, Piece(number, low, None, 0, None), block) for block in file.blocks(low, high))


def covering_first(files: Sequence[FileAccess], records: int) -> Iterator[Load]:
    """The first records, without counting any file: only as much is read as they need."""
    for number, file in enumerate(files):
        if file.file.info is not None:
            blocks = (Load(file.file, piece) for piece in file.pieces(0, min(records, file.records)))
        else:
            blocks = (Load(file.file, Piece(number, 0, None, 0, None), block) for block in file.blocks(0, records))
        for load in blocks:
            yield load
            records -= len(load.block.frames) if load.block is not None else load.piece.records or 0
        if records <= 0:
            return


def spans_of(files: Sequence[FileAccess], ends: Int64s) -> Iterator[tuple[int, int, bool]]:
    """(first of all records, the one behind the last, whether it can be read from anywhere) of each file that has
    records.
    """
    start = 0
    for file, end in zip(files, ends.tolist(), strict=True):
        if end > start:
            yield start, end, file.seekable
        start = end
