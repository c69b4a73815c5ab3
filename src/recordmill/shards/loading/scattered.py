"""Reads records at scattered positions without the records between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import Int64s, allocate
from recordmill.base.errors import DataError
from recordmill.base.threads import thread_map
from recordmill.records.columns.conversions import Decoding
from recordmill.records.tfrecord.frames import (
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES,
    Frames,
    pack_spans,
    scan_frames,
)
from recordmill.schemas.feature import Schema
from recordmill.shards.access import FileAccess, group_by_file
from recordmill.shards.pieces import PIECE_BYTES

# Offsets and payload lengths of records that one call of `FileAccess.reach` reads.
Portion = tuple[FileAccess, Int64s, Int64s]


def are_scattered(numbers: Int64s) -> bool:
    """Returns whether most of these ascending numbers have no neighbour.

    Reading each record alone is then less work.
    """
    return len(numbers) > 1 and int(np.count_nonzero(np.diff(numbers) > 1)) > len(numbers) // 2


def scattered_batches(
    files: Sequence[FileAccess],
    ends: Int64s,
    numbers: Int64s,
    schema: Schema | Decoding,
    threads: int,
) -> Iterator[pa.RecordBatch]:
    """Yields the records with these numbers, decoded in batches.

    Args:
        files: Files of a data set. All must be seekable.
        ends: Number of records up to and including each file.
        numbers: Record numbers in the data set, in ascending order.
        schema: Schema or decoder.
        threads: Number of threads.

    Raises:
        DataError: A record is damaged or does not fit. The error does not name the place.
    """
    frames = thread_map(_frames, _portions(files, ends, numbers), threads)
    # Decoding a batch costs half a millisecond before its first record. So records from many files
    # or members are decoded together.
    yield from thread_map(
        lambda together: _decode(_concatenate(together), schema),
        _group_frames(frames),
        threads,
    )


def _decode(frames: Frames, schema: Schema | Decoding) -> pa.RecordBatch:
    return Decoding.from_schema(schema).decode(
        frames.data, frames.starts + HEADER_BYTES, frames.lengths, location=lambda row: ("", "")
    )


def _portions(files: Sequence[FileAccess], ends: Int64s, numbers: Int64s) -> Iterator[Portion]:
    for at, first, own in group_by_file(ends, numbers):
        offsets, lengths = files[at].locate(numbers[own] - first)
        for part in files[at].portions(offsets, lengths, PIECE_BYTES):
            yield files[at], offsets[part], lengths[part]


def _frames(portion: Portion) -> Frames:
    """Reads the frames of a portion into one buffer and checks them."""
    file, offsets, lengths = portion
    data, starts = file.reach(offsets, lengths)
    sizes = lengths + FRAME_OVERHEAD_BYTES
    if int((starts + sizes).max()) > len(data):
        raise DataError("ends before its last record", source=file.file.path)
    out = allocate(int(sizes.sum()), np.uint8)
    pack_spans([data], starts, sizes, out)
    file.file.check_unchanged()
    frames, _ = scan_frames(out, source=file.file.path, is_final=True)
    if not np.array_equal(frames.lengths, lengths):
        raise DataError("the index does not fit the shard", source=file.file.path)
    return frames


def _group_frames(parts: Iterable[Frames]) -> Iterator[list[Frames]]:
    """Joins consecutive portions to groups of about PIECE_BYTES."""
    held: list[Frames] = []
    for part in parts:
        if held and sum(len(one.data) for one in held) + len(part.data) > PIECE_BYTES:
            yield held
            held = []
        held.append(part)
    if held:
        yield held


def _concatenate(parts: Sequence[Frames]) -> Frames:
    if len(parts) == 1:
        return parts[0]
    sizes = [len(part.data) for part in parts]
    before = (np.cumsum(sizes) - sizes).tolist()
    starts = np.concatenate(
        [part.starts + shift for part, shift in zip(parts, before, strict=True)]
    )
    lengths, crcs = (
        np.concatenate([part.lengths for part in parts]),
        np.concatenate([part.crcs for part in parts]),
    )
    return Frames(np.concatenate([part.data for part in parts]), starts, lengths, crcs)
