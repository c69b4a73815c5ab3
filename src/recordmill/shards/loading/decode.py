"""Decoding of the frames of shards as RecordBatches.

A reader that stops at errors uses `decode_frames`. A reader that continues uses `salvage`: each
record is then either in the batch or among the rejects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.base.errors import Reject
from recordmill.base.messages import Message, shorten
from recordmill.base.option_names import option
from recordmill.records.columns.conversions import Decoding
from recordmill.records.example.decode import decode_lenient
from recordmill.records.example.locate import BadRecord
from recordmill.records.tfrecord.frames import (
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES,
    FileFrames,
    stop_at_damage,
)
from recordmill.schemas.feature import Schema
from recordmill.shards.pieces import PIECE_BYTES

# Reason of a reject: the frame is intact, but its content does not fit the schema.
PARSE = "record"
# A record is in memory several times: as it is read, as a frame, and in a sorted run.
_MEMORY_PER_RECORD_BYTE = 4


def max_record_bytes(memory_bytes: int) -> int:
    """Returns the size of the largest record that this memory allows, in bytes."""
    return max(memory_bytes // _MEMORY_PER_RECORD_BYTE, 4 * PIECE_BYTES)


def refuse_beyond(memory_bytes: int) -> Callable[[int], str]:
    """Returns the argument `refuse` of `iter_piece_reads` for a memory limit.

    The function returns an error message for records that are too large, and "" for others.
    """

    def refuse(size_bytes: int) -> str:
        if size_bytes <= max_record_bytes(memory_bytes):
            return ""
        given_option, enough_option = (
            option("memory", f"{n >> 20}MiB")
            for n in (memory_bytes, _MEMORY_PER_RECORD_BYTE * size_bytes + (1 << 20))
        )
        return Message(
            "a record of {size_bytes} bytes, more than {given} leaves for one; {enough} is enough",
            size_bytes=f"{size_bytes:,}",
            given=given_option,
            enough=enough_option,
        )

    return refuse


def decode_frames(frames: FileFrames, schema: Schema | Decoding) -> pa.RecordBatch:
    """Decodes frames to columns.

    Raises:
        DataError: A record is damaged or does not fit the schema. The error names file, record and
            offset of the first such record.
    """
    # A record before the damage may not fit the schema, so these frames are decoded first.
    (batch,) = (
        Decoding.from_schema(schema).decode(
            part.data, part.starts + HEADER_BYTES, part.lengths, location=part.location
        )
        for part in stop_at_damage([frames])
    )
    return batch


@dataclass(frozen=True)
class Salvaged:
    """Result of reading consecutive records.

    Attributes:
        batches: The good records.
        rejects: One for each bad record.
        filtered: Number of good records that a filter has left out.
        numbers: Number of each good record in its file. Only `salvage` sets it.
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
        """Number of all records: good, rejected and filtered ones."""
        return self.rows + len(self.rejects) + self.filtered


def list_damage_rejects(frames: FileFrames, name: str) -> tuple[Reject, ...]:
    """Returns a reject for each damaged record.

    Args:
        frames: Frames of one file.
        name: Name of the file in rejects.
    """
    return tuple(damage.reject(name) for damage in frames.damage)


def salvage(frames: FileFrames, name: str, schema: Schema) -> Salvaged:
    """Decodes the good records, and lists the bad ones.

    Args:
        name: Name of the file in rejects.
    """
    batch, _, bad = decode_lenient(
        frames.data, frames.starts + HEADER_BYTES, frames.lengths, schema
    )
    numbers = np.delete(frames.numbers, [record.row for record in bad])
    rejects = (*list_damage_rejects(frames, name), *_make_rejects(frames, bad, name))
    return Salvaged((batch,) if batch.num_rows else (), rejects, numbers=numbers)


def select_fitting(
    frames: FileFrames, schema: Schema, name: str, *, checks_class_numbers: bool = False
) -> tuple[FileFrames, tuple[Reject, ...]]:
    """Selects the frames that fit a schema.

    Args:
        name: Name of the file in rejects.
        checks_class_numbers: If True, a record with a class number that the schema does not have is
            rejected, too.

    Returns:
        The frames that fit, and a reject for each other frame.
    """
    bad, first = list[BadRecord](), 0
    ends = np.cumsum(frames.lengths + FRAME_OVERHEAD_BYTES)
    # Decoded values may be much larger than the frames, so only one block is decoded at a time.
    while first < len(ends):
        stop = max(int(np.searchsorted(ends, ends[first] + PIECE_BYTES, "right")), first + 1)
        starts, lengths = frames.starts[first:stop] + HEADER_BYTES, frames.lengths[first:stop]
        batch, decoded_rows, unfit = decode_lenient(frames.data, starts, lengths, schema)
        classless = _find_classless(batch, schema) if checks_class_numbers else {}
        unfit = [
            *unfit,
            *(BadRecord(int(decoded_rows[row]), *why) for row, why in classless.items()),
        ]
        bad += (
            replace(record, row=record.row + first)
            for record in sorted(unfit, key=lambda record: record.row)
        )
        first = stop
    if not bad:
        return frames, ()
    good = np.delete(np.arange(len(frames)), [record.row for record in bad])
    return frames.select(good, frames.damage), _make_rejects(frames, bad, name)


def _find_classless(batch: pa.RecordBatch, schema: Schema) -> dict[int, tuple[str, str]]:
    """Finds class numbers that the schema does not have.

    Returns:
        (feature, reason) of the first such number of a row, by row.
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
        for index in np.flatnonzero(np.asarray(outside.fill_null(False))).tolist():
            reason = (
                f"{values[index].as_py()} is not one of the {len(feature.classes):,}"
                " classes of the schema"
            )
            bad.setdefault(int(rows[index]), (feature.name, reason))
    return bad


def _make_rejects(frames: FileFrames, bad: Sequence[BadRecord], name: str) -> tuple[Reject, ...]:
    return tuple(
        Reject(
            name,
            frames.location(record.row)[1],
            PARSE,
            shorten(record.describe(), 290),
        )
        for record in bad
    )
