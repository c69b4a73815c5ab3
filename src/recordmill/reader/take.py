"""Records by number: a range of them, or any, to the pieces of files that hold them, read the quicker way."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.base.errors import DataError
from recordmill.records.columns.conversions import Decoding
from recordmill.schemas.arrow import to_arrow
from recordmill.shards.access import FileAccess, by_file
from recordmill.shards.loading.batches import Load, are_scattered, record_batches, scattered_batches
from recordmill.shards.pieces import PIECE_BYTES, Piece


def range_loads(
    files: Sequence[FileAccess], ends: Int64s, start: int, stop: int, piece_bytes: int, piece_records: int | None
) -> Iterator[Load]:
    """Yields the pieces of work that give records [start, stop). ends: int64 [files], the records up to and with each
    file.
    """
    for number in range(int(np.searchsorted(ends, start, "right")), len(files)):
        begin = int(ends[number - 1]) if number else 0
        if begin >= stop:
            return
        file = files[number]
        low, high = max(start - begin, 0), min(stop, int(ends[number])) - begin
        if low >= high:
            continue
        if file.seekable and not file.lenient:
            yield from (Load(file.file, piece) for piece in file.pieces(low, high, piece_bytes, piece_records))
        else:
            yield from (Load(file.file, Piece(number, low, None, 0, None), block) for block in file.blocks(low, high))


def head_loads(files: Sequence[FileAccess], records: int) -> Iterator[Load]:
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


def record_numbers(records: Sequence[int] | npt.NDArray[Any], total: int) -> Int64s:
    """Returns the numbers in [0, total) that are meant, negative ones from the end; TypeError for no numbers,
    IndexError beyond.
    """
    wanted = np.asarray(records)
    if wanted.dtype == np.bool_ and wanted.ndim == 1 and wanted.size:
        raise TypeError(f"a bool for each record is a condition: ds.filter(mask) gives its records, not {records!r}")
    if wanted.dtype == np.bool_ or (wanted.size and wanted.dtype.kind not in "iu") or wanted.ndim != 1:
        raise TypeError(f"records are addressed by a number, a slice or a list of numbers, not by {records!r}")
    wanted = wanted.astype(np.int64)
    if len(outside := wanted[(wanted < -total) | (wanted >= total)]):
        raise IndexError(f"record {outside[0]} of {total}")
    return wanted % max(total, 1)


def take_rows(files: Sequence[FileAccess], ends: Int64s, numbers: Int64s, decoding: Decoding, threads: int) -> pa.Table:
    """The records of these numbers among all, in this order, also several times."""
    distinct, back = np.unique(numbers, return_inverse=True)
    return _ascending(files, ends, distinct, decoding, threads).take(pa.array(back.reshape(-1)))


def _ascending(
    files: Sequence[FileAccess], ends: Int64s, numbers: Int64s, decoding: Decoding, threads: int
) -> pa.Table:
    if are_scattered(numbers) and all(files[at].seekable for at, _, _ in by_file(ends, numbers)):
        with contextlib.suppress(DataError):  # which the other way finds, too, and says where
            return pa.Table.from_batches(
                scattered_batches(files, ends, numbers, decoding, threads), to_arrow(decoding.schema)
            )
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1) if len(numbers) else []
    loads = (
        load for run in runs for load in range_loads(files, ends, int(run[0]), int(run[-1]) + 1, PIECE_BYTES, None)
    )
    return pa.Table.from_batches(record_batches(loads, decoding, threads=threads), to_arrow(decoding.schema))
