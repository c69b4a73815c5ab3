"""Reads, checks and decodes pieces of shards as RecordBatches.

Also reads records at scattered positions without the records between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import Int64s, allocate
from recordmill.base.errors import OUT_OF_MEMORY_REASON, DataError
from recordmill.base.option_names import option
from recordmill.base.threads import thread_map
from recordmill.records.columns.conversions import Decoding
from recordmill.records.tfrecord.frames import (
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES,
    Frames,
    pack_spans,
    scan_frames,
)
from recordmill.records.tfrecord.stream import Gap, read_good_frames
from recordmill.schemas.feature import Schema
from recordmill.shards.access import FileAccess, group_by_file
from recordmill.shards.catalog import ShardFile
from recordmill.shards.pieces import PIECE_BYTES, FrameBlock, Piece, begin_piece, read_piece, stream
from recordmill.storage.files import Bytes

# A record is in memory several times: as it is read, as a frame, and in a sorted run.
_MEMORY_PER_RECORD_BYTE = 4


@dataclass(frozen=True)
class Load:
    """Work of one thread: a piece to read, or a block of a stream.

    Attributes:
        block: The block, which was already read. None for a piece.
        coming: Result of `begin_piece`, if the piece was requested before.
    """

    file: ShardFile
    piece: Piece
    block: FrameBlock | None = None
    coming: Callable[[], Bytes] | None = None

    @property
    def first_offset(self) -> int:
        """Uncompressed offset of the first record in the file."""
        return self.piece.start if self.block is None else self.block.first_offset

    @property
    def framed_bytes(self) -> int:
        """Uncompressed size of the load."""
        if self.block is not None:
            return int(self.block.frames.lengths.sum()) + FRAME_OVERHEAD_BYTES * len(
                self.block.frames
            )
        return (self.piece.stop or self.piece.start) - self.piece.start


def max_record_bytes(memory_bytes: int) -> int:
    """Returns the maximum size of a record for this memory."""
    return max(memory_bytes // _MEMORY_PER_RECORD_BYTE, 4 * PIECE_BYTES)


def within_memory(load: Load, memory_bytes: int) -> Load:
    """Returns the load, or a replacement if its record is too large for the memory.

    The replacement has a fault, see `without_record`.
    """
    size = load.framed_bytes
    if size <= max_record_bytes(memory_bytes):
        return load
    given, enough = (
        option("memory", f"{n >> 20}MiB")
        for n in (memory_bytes, _MEMORY_PER_RECORD_BYTE * size + (1 << 20))
    )
    return without_record(
        load, f"a record of {size:,} bytes, more than {given} leaves for one; {enough} is enough"
    )


def without_record(load: Load, reason: str) -> Load:
    """Replaces a load of one large record by a load without bytes.

    The piece of the result has `reason` as its fault.
    """
    piece, block = load.piece, load.block
    first = piece.first_record if block is None else block.first_record
    start, stop = load.first_offset, load.first_offset + load.framed_bytes
    return Load(
        load.file, Piece(piece.file, first, None, start, stop, reason, OUT_OF_MEMORY_REASON)
    )


def refused_load(load: Load) -> DataError:
    """Returns the error for a load with a fault."""
    place = f"record {load.piece.first_record}, byte {load.piece.start}"
    return DataError(load.piece.fault, source=load.file.path, place=place)


def loads(
    files: Sequence[ShardFile], pieces: Iterable[Piece], *, lenient: bool = False
) -> Iterator[Load]:
    """Yields the loads of the pieces, in order. Streams are read here, block by block.

    Args:
        files: The files that the pieces refer to.
        lenient: A damaged range of a stream becomes a load with a fault, instead of an error.
    """
    for piece in pieces:
        file = files[piece.file]
        if piece.stop is not None:
            yield Load(file, piece)
        elif lenient:
            yield from _lenient(file, piece)
        else:
            for block in stream(file):
                yield Load(file, piece, block)


def first_records(work: Iterable[Load], records: int) -> Iterator[Load]:
    """Yields loads with the first records.

    Damaged records count, too. If a block of a stream has more records, only a part of it is used.
    """
    left = records
    for load in work:
        if left <= 0:
            return
        block, count = load.block, load.piece.records or 1
        if block is not None:
            count, frames = len(block.frames), block.frames
            if count > left:
                some = slice(left)
                frames = Frames(
                    frames.data, frames.starts[some], frames.lengths[some], frames.crcs[some]
                )
                load = replace(load, block=replace(block, frames=frames))
        yield load
        left -= count


def prefetch_loads(work: Iterable[Load]) -> Iterator[Load]:
    """Yields the same loads and requests each one from its store early.

    A load is requested when the one before it is yielded.
    """
    before: Load | None = None
    for load in work:
        coming = None if load.block is not None else begin_piece(load.file, load.piece)
        if before is not None:
            yield before
        before = replace(load, coming=coming)
    if before is not None:
        yield before


def _lenient(file: ShardFile, piece: Piece) -> Iterator[Load]:
    for part in read_good_frames(file.path, compression=file.compression, batch_bytes=PIECE_BYTES):
        file.check_unchanged()
        if isinstance(part, Gap):
            end = part.first_offset + part.size_bytes
            yield Load(
                file,
                Piece(
                    piece.file,
                    part.first_record,
                    None,
                    part.first_offset,
                    end,
                    part.reason,
                    part.kind,
                ),
            )
        else:
            yield Load(file, piece, FrameBlock(part, part.first_record, part.first_offset))


def decode_block(block: FrameBlock, schema: Schema | Decoding, source: str) -> pa.RecordBatch:
    """Decodes the records of a block as columns."""
    frames = block.frames
    return Decoding.from_schema(schema).decode(
        frames.data,
        frames.starts + HEADER_BYTES,
        frames.lengths,
        source=source,
        first_record=block.first_record,
        offsets=frames.starts + block.first_offset,
    )


def blocks_of(load: Load, check: bool = True) -> list[FrameBlock]:
    """Returns the frames of a load. Reads them if necessary.

    Raises:
        DataError: A frame is damaged.
    """
    if load.block is not None:
        return [load.block]
    return list(read_piece(load.file, load.piece, check=check, coming=load.coming))


def decode_load(load: Load, schema: Schema | Decoding) -> list[pa.RecordBatch]:
    """Reads a load if necessary, and decodes it: one batch per block.

    Raises:
        DataError: A record is damaged or does not fit the schema. The error names file, record and
            offset.
    """
    return [decode_block(block, schema, load.file.path) for block in blocks_of(load)]


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
        lambda together: decode_block(FrameBlock(_concatenate(together), 0, 0), schema, ""),
        _group_frames(frames),
        threads,
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
