"""Records at scattered places to RecordBatches, without what lies between them:
a batch of a shuffled data set, a sample, a selection.

A record of an uncompressed file costs its own bytes, one of a compressed shard the member that it lies in. Whatever is
wrong is left to the reader of whole pieces, which names the place: here it only stops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.base.room import room
from recordmill.base.threads import thread_map
from recordmill.records.columns.decoding import Decoding
from recordmill.records.tfrecord.frames import FRAME_BYTES, Frames, Int64s, gather_frames, scan
from recordmill.schemas.feature import Schema
from recordmill.shards.access import FileAccess
from recordmill.shards.loads.batches import decode_block
from recordmill.shards.pieces import PIECE_BYTES, FrameBlock

Portion = tuple[FileAccess, Int64s]


def are_scattered(numbers: Int64s) -> bool:
    """Whether ascending numbers are mostly alone,
    so that to read them one by one is less than to read the stretches in which they lie.
    """
    return len(numbers) > 1 and int(np.count_nonzero(np.diff(numbers) > 1)) > len(numbers) // 2


def scattered_batches(
    files: Sequence[FileAccess], ends: Int64s, numbers: Int64s, schema: Schema | Decoding, threads: int
) -> Iterator[pa.RecordBatch]:
    """The records of these numbers, ascending, of files that are all seekable;
    ends: the number of records up to and with each file.

    Raises:
        DataError: a record is damaged or does not fit; the place is not told.
    """
    edges = np.searchsorted(numbers, np.concatenate([[0], ends])).tolist()
    portions = (
        (file, portion)
        for at, file in enumerate(files)
        if edges[at] < edges[at + 1]
        for portion in file.portions(numbers[edges[at] : edges[at + 1]] - (int(ends[at - 1]) if at else 0), PIECE_BYTES)
    )
    frames = thread_map(_frames, portions, threads)
    # A batch costs the decoder half a millisecond before its first record,
    # so what came from many files or members is decoded together.
    yield from thread_map(
        lambda together: decode_block(FrameBlock(_joined(together), 0, 0), schema, ""), _together(frames), threads
    )


def _frames(portion: Portion) -> Frames:
    """The portion's frames, one after the other, checked."""
    file, records = portion
    data, starts, lengths = file.reach(records)
    sizes = lengths + FRAME_BYTES
    if int((starts + sizes).max()) > len(data):
        raise DataError("ends before its last record", source=file.file.path)
    out = room(int(sizes.sum()), np.uint8)
    gather_frames(data, starts, sizes, np.arange(len(records)), out)
    frames, _ = scan(out, source=file.file.path, final=True)
    if not np.array_equal(frames.lengths, lengths):
        raise DataError("the index does not fit the shard", source=file.file.path)
    return frames


def _together(parts: Iterable[Frames]) -> Iterator[list[Frames]]:
    """Consecutive parts of about PIECE_BYTES."""
    held: list[Frames] = []
    for part in parts:
        if held and sum(len(one.data) for one in held) + len(part.data) > PIECE_BYTES:
            yield held
            held = []
        held.append(part)
    if held:
        yield held


def _joined(parts: Sequence[Frames]) -> Frames:
    if len(parts) == 1:
        return parts[0]
    sizes = [len(part.data) for part in parts]
    before = (np.cumsum(sizes) - sizes).tolist()
    starts = np.concatenate([part.starts + shift for part, shift in zip(parts, before, strict=True)])
    lengths, crcs = np.concatenate([part.lengths for part in parts]), np.concatenate([part.crcs for part in parts])
    return Frames(np.concatenate([part.data for part in parts]), starts, lengths, crcs)
