"""Reads damaged shards: the good records, and a `Reject` for each lost one.

Each record of a piece is either in the batch or among the rejects. A shard of a data set has an
index with the begin of each record, so a damaged length costs one record only. In other files the
next valid header is searched, and the skipped bytes are one reject.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.base.errors import Reject
from recordmill.records.example.decode import decode_lenient
from recordmill.records.example.locate import BadRecord
from recordmill.records.tfrecord.frames import (
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES,
    Frames,
    try_scan_frames,
)
from recordmill.records.tfrecord.stream import STREAM_GAP, add_skipped_bytes, find_resume_offset
from recordmill.schemas.feature import Schema
from recordmill.shards.loading.batches import Load
from recordmill.shards.pieces import PIECE_BYTES, load_index, read_piece_bytes
from recordmill.storage.files import Bytes

PARSE, MISSING_RECORDS = "record", "truncated"


@dataclass(frozen=True)
class Salvaged:
    """Result of reading consecutive records.

    Attributes:
        batches: The good records.
        rejects: The bad records.
        filtered: Number of good records that a filter has left out.
        numbers: Number of each good record in its file. Only set by `salvage`.
    """

    batches: tuple[pa.RecordBatch, ...]
    rejects: tuple[Reject, ...]
    filtered: int = 0
    numbers: Int64s = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def rows(self) -> int:
        return sum(int(batch.num_rows) for batch in self.batches)

    @property
    def records(self) -> int:
        """Number of all records: good, bad and filtered ones."""
        return self.rows + len(self.rejects) + self.filtered


@dataclass(frozen=True)
class Recovered:
    """Complete frames of a piece.

    Record numbers[i] of the file is data[starts[i] : starts[i] + lengths[i] + 16].

    Attributes:
        data: Buffer with the frames.
        starts: Position of each frame in `data`.
        lengths: Length of each payload.
        numbers: Number of each record in its file.
        rejects: The records of the piece that are not among the frames.
    """

    data: Bytes
    starts: Int64s
    lengths: Int64s
    numbers: Int64s
    rejects: tuple[Reject, ...] = ()


def salvage(load: Load, schema: Schema) -> Salvaged:
    """Decodes the good records of a load, and lists the bad ones."""
    found = frames_of(load)
    batch, _, bad = decode_lenient(found.data, found.starts + HEADER_BYTES, found.lengths, schema)
    numbers = np.delete(found.numbers, [record.row for record in bad])
    rejects = (*found.rejects, *_unfit(found, bad, load.file.name, load.first_offset))
    return Salvaged((batch,) if batch.num_rows else (), rejects, numbers=numbers)


def fitting_frames(
    found: Recovered, schema: Schema, source: str, first_offset: int, *, bounded: bool = False
) -> Recovered:
    """Keeps the frames that fit a schema. The others become rejects.

    Args:
        found: The frames.
        source: Name of the file in messages.
        first_offset: Offset of `found.data` in the file.
        bounded: A number that is not one of the classes of the schema makes a record a reject, too.
    """
    bad, first = list[BadRecord](), 0
    ends = np.cumsum(found.lengths + FRAME_OVERHEAD_BYTES)
    # The decoded values are only checked, but may be many times as large as the frames. So they are
    # decoded in blocks.
    while first < len(ends):
        stop = max(int(np.searchsorted(ends, ends[first] + PIECE_BYTES, "right")), first + 1)
        starts, lengths = found.starts[first:stop] + HEADER_BYTES, found.lengths[first:stop]
        batch, kept, some = decode_lenient(found.data, starts, lengths, schema)
        more = _classless(batch, schema) if bounded else {}
        some = [*some, *(BadRecord(int(kept[row]), *why) for row, why in more.items())]
        bad += (
            replace(one, row=one.row + first) for one in sorted(some, key=lambda record: record.row)
        )
        first = stop
    good = np.delete(np.arange(len(found.starts)), [one.row for one in bad])
    if not bad:
        return found
    rejects = (*found.rejects, *_unfit(found, bad, source, first_offset))
    return Recovered(
        found.data, found.starts[good], found.lengths[good], found.numbers[good], rejects
    )


def _classless(batch: pa.RecordBatch, schema: Schema) -> dict[int, tuple[str, str]]:
    """Returns the first value of each row that is not one of the classes.

    Returns:
        (feature, reason), by row.
    """
    import pyarrow.compute as pc

    bad: dict[int, tuple[str, str]] = {}
    for feature in schema:
        if feature.classes is None:
            continue
        values, rows = batch.column(feature.name), np.arange(batch.num_rows)
        while pa.types.is_nested(values.type):
            rows, values = rows[np.asarray(values.value_parent_indices())], values.flatten()
        outside = pc.or_(pc.less(values, 0), pc.greater_equal(values, len(feature.classes)))
        for at in np.flatnonzero(np.asarray(outside.fill_null(False))).tolist():
            reason = f"{values[at].as_py()} is none of the {len(feature.classes):,} classes that the schema names"
            bad.setdefault(int(rows[at]), (feature.name, reason))
    return bad


def _unfit(
    found: Recovered, bad: Sequence[BadRecord], source: str, first_offset: int
) -> tuple[Reject, ...]:
    return tuple(
        Reject(
            source,
            _place(int(found.numbers[record.row]), int(found.starts[record.row]) + first_offset),
            PARSE,
            f"feature {record.feature!r}: {record.reason}"[:290]
            if record.feature
            else record.reason,
        )
        for record in bad
    )


def recovered(frames: Frames, first_record: int) -> Recovered:
    """Returns undamaged frames as `Recovered`.

    `first_record` is the number of the first one in its file.
    """
    return Recovered(
        frames.data, frames.starts, frames.lengths, np.arange(len(frames)) + first_record
    )


def frames_of(load: Load) -> Recovered:
    """Returns the undamaged frames of a load."""
    if load.block is not None:
        return recovered(load.block.frames, load.block.first_record)
    piece = load.piece
    assert piece.stop is not None
    if piece.fault:
        reason = add_skipped_bytes(piece.fault, piece.fault_kind, piece.stop - piece.start)
        return _nothing(
            [
                Reject(
                    load.file.name,
                    _place(piece.first_record, piece.start),
                    piece.fault_kind,
                    reason,
                )
            ]
        )
    damaged: list[tuple[int, int]] = []
    return _scanned(read_piece_bytes(load.file, piece, damaged), load, damaged)


def _nothing(rejects: list[Reject]) -> Recovered:
    none = np.empty(0, np.int64)
    return Recovered(np.empty(0, np.uint8), none, none, none, tuple(rejects))


def _known(load: Load) -> Int64s | None:
    """Returns the begin of each record of the piece from the index.

    Positions are relative to the piece. None without an index.
    """
    index = load_index(load.file, lenient=True)
    if index is None:
        return None
    first = load.piece.first_record
    return (
        np.ascontiguousarray(index["offset"][first : first + (load.piece.records or 0)])
        - load.piece.start
    )


def _scanned(data: Bytes, load: Load, damaged: Sequence[tuple[int, int]]) -> Recovered:
    """Scans frames and continues after each damaged one.

    `damaged` has the ranges of `data` that belong to unreadable members.
    """
    piece, file, known = load.piece, load.file, _known(load)
    parts: list[tuple[Int64s, Int64s, Int64s]] = [(np.empty(0, np.int64),) * 3]
    rejects: list[Reject] = []
    # Both are relative to the piece.
    at, record = 0, 0
    while at < len(data):
        frames, consumed, error = try_scan_frames(data[at:], source=file.path, is_final=True)
        parts.append(
            (
                frames.starts + at,
                frames.lengths,
                np.arange(record, record + len(frames)) + piece.first_record,
            )
        )
        at, record = at + consumed, record + len(frames)
        if error is None:
            break
        # With an index the next record is known. Otherwise the next valid header is searched.
        kind, behind = find_resume_offset(
            data, at, next_offset=_next_known(known, record, len(data))
        )
        message = add_skipped_bytes(error.reason, kind, behind - at if known is None else 0)
        if any(low <= at < high for low, high in damaged):
            kind, message = STREAM_GAP, f"the {file.compression} member that holds it is damaged"
        rejects.append(
            Reject(file.name, _place(piece.first_record + record, piece.start + at), kind, message)
        )
        at, record = behind, record + 1
    # The file is truncated. Each record that the manifest promises is a reject.
    missing = range(record, piece.records or record)
    rejects += [
        Reject(
            file.name,
            f"record {piece.first_record + i}",
            MISSING_RECORDS,
            "the file ends before this record",
        )
        for i in missing
    ]
    starts, lengths, numbers = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Recovered(data, starts, lengths, numbers, tuple(rejects))


def _next_known(known: Int64s | None, record: int, end: int) -> int | None:
    """Returns the begin of the next record from the index.

    After the last record this is the end of the piece. None without an index.
    """
    if known is None:
        return None
    return int(known[record + 1]) if record + 1 < len(known) else end


def _place(record: int, offset: int) -> str:
    return f"record {record}, byte {offset}"
