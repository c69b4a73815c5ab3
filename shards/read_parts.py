"""The pieces of one `Job` to its records in order: read, checked, decoded, filtered and converted on threads, the bad ones as rejects.

Without conversions a piece is decoded as a whole. Conversions may make much of little, so a piece's frames are then cut into slices
whose output has about a stated size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.records.columns import is_bytes
from recordmill.records.convert import convert
from recordmill.records.decode import decode_lenient
from recordmill.records.decode_images import DecodeImages
from recordmill.records.frames import HEADER_BYTES, Int64s
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.errors import DataError, Reject
from recordmill.schemas.feature import ITEM_BYTES, Schema
from recordmill.schemas.threads import thread_map
from recordmill.shards.batches import Load, decode_load, loads
from recordmill.shards.catalog import ShardFile
from recordmill.shards.pieces import read
from recordmill.shards.read_plan import Job, ReadPlan
from recordmill.shards.salvage import PARSE, Found, Salvaged, frames_of, salvage
from recordmill.shards.siphash import derive_key, hash_positions

CONVERT = "convert"  # the reason of a reject whose record is whole but holds a value that can't be converted
_SLICE_BYTES = 16 << 20  # 16 MiB converted: two of them per thread wait for the writer
_SAMPLE = b"recordmill-sampl"
_IMAGES_BYTES = 1 << 20  # 1 MiB encoded is some 20 MiB of pixels, where no common size says it better


@dataclass(frozen=True)
class Slice:
    """Frames of one file, whose offsets in it are found.starts + first_offset."""

    found: Found
    first_offset: int
    file: ShardFile


def read_parts(plan: ReadPlan, job: Job, threads: int) -> Iterator[Salvaged]:
    """All that the job holds, in order.

    Raises:
        DataError: a record is damaged or can't be converted, and the plan is not lenient.
    """
    return _limited(parts_of(plan, loads(plan.files, job.pieces, lenient=plan.options.lenient), threads), job.limit, plan.options.filters)


def parts_of(plan: ReadPlan, work: Iterator[Load], threads: int) -> Iterator[Salvaged]:
    """The records of these loads, in order."""
    if not plan.steps and not plan.options.filters:
        return thread_map(lambda load: _decoded(plan, load), work, threads)
    rows = max(_SLICE_BYTES // row_bytes(plan.schema), 1)
    limit = _IMAGES_BYTES if any(isinstance(step, DecodeImages) and step.height is None for step in plan.steps) else 0
    found = thread_map(lambda load: _frames(load, plan.options.lenient), work, threads)
    return thread_map(lambda part: _converted(plan, part), (part for whole in found for part in _cut(whole, rows, limit)), threads)


def row_bytes(schema: Schema) -> int:
    """The bytes of one row's columns of fixed size."""
    sizes = [feature.inner_size * ITEM_BYTES.get(feature.dtype, 8) for feature in schema if not feature.ragged_rank and not is_bytes(feature)]
    return max(sum(sizes), 1)


def _decoded(plan: ReadPlan, load: Load) -> Salvaged:
    return salvage(load, plan.schema) if plan.options.lenient else Salvaged(tuple(decode_load(load, plan.schema)), ())


def _frames(load: Load, lenient: bool) -> Slice:
    """The frames of a load, checked."""
    if lenient:
        return Slice(frames_of(load), load.piece.start if load.block is None else load.block.first_offset, load.file)
    block = next(read(load.file, load.piece)) if load.block is None else load.block  # a piece with an end is one block
    frames = block.frames
    return Slice(Found(frames.data, frames.starts, frames.lengths, np.arange(len(frames)) + block.first_record), block.first_offset, load.file)


def _cut(whole: Slice, rows: int, limit: int) -> Iterator[Slice]:
    """Slices of at most so many records and, unless limit is 0, bytes (or one record); the rejects go with the first one."""
    found = whole.found
    rejects = found.rejects
    ends = np.cumsum(found.lengths)
    start = 0
    while start < max(len(found.starts), 1):
        stop = start + rows
        if limit and start < len(ends):
            stop = min(stop, max(int(np.searchsorted(ends, (ends[start - 1] if start else 0) + limit, "right")), start + 1))
        part = slice(start, stop)
        yield replace(whole, found=Found(found.data, found.starts[part], found.lengths[part], found.numbers[part], rejects))
        start, rejects = stop, ()


def _converted(plan: ReadPlan, part: Slice) -> Salvaged:
    """The records of a slice: those of the sample decoded, those for which the predicate holds converted."""
    found, options = part.found, plan.options
    at = np.arange(len(found.starts)) if options.sample is None else np.flatnonzero(sampled(part.file.identity, found.numbers, options.sample, options.seed))
    batch, good, undecoded = decode_lenient(found.data, found.starts[at] + HEADER_BYTES, found.lengths[at], plan.decoded)
    good = at[good]
    filtered = len(found.starts) - len(at)
    if options.where is not None:
        try:
            keep = options.where.keep(batch)
        except DataError as error:
            raise DataError(error.reason, source=part.file.path) from None
        filtered += int(len(keep) - keep.sum())
        batch, good = batch.filter(pa.array(keep)), good[keep]
    if plan.selected is not plan.decoded:
        batch = pa.RecordBatch.from_arrays(batch.columns[: len(plan.selected)], schema=to_arrow(plan.selected))
    converted = convert(plan.steps, batch, plan.selected)
    bad = [(int(at[record.row]), PARSE, record) for record in undecoded] + [(int(good[record.row]), CONVERT, record) for record in converted.bad]
    rejects = list(found.rejects)
    for row, reason, record in sorted(bad, key=lambda item: item[0]):
        place = f"record {found.numbers[row]}, byte {int(found.starts[row]) + part.first_offset}"
        message = f"feature {record.feature!r}: {record.reason}" if record.feature else record.reason
        if not options.lenient:
            raise DataError(message[:290], source=part.file.path, place=place)
        rejects.append(Reject(part.file.name, place, reason, message[:290]))
    return Salvaged((converted.batch,) if converted.batch.num_rows else (), tuple(rejects), filtered)


def sampled(file: bytes, numbers: Int64s, share: float, seed: int) -> npt.NDArray[np.bool_]:
    """[records] which of these records of the file belong to a random share: decided by seed, the file's identity and the record's number alone."""
    key0, key1 = (np.array([word], np.uint64) for word in derive_key(seed, _SAMPLE, file))
    keys = np.empty(len(numbers), np.uint64)
    hash_positions(key0, key1, np.zeros(len(numbers), np.uint32), 0, np.ascontiguousarray(numbers, np.int64), keys)
    return (keys >> np.uint64(11)) < np.uint64(round(share * 2**53))


def _limited(parts: Iterator[Salvaged], limit: int | None, filters: bool) -> Iterator[Salvaged]:
    """The parts up to limit records, or rows where records are filtered; a stream can hold more than its plan asks for."""
    left = limit
    for part in parts:
        if left is not None and (part.rows if filters else part.records) > left:
            batches = []
            room = left
            for batch in part.batches:
                batches.append(batch.slice(0, room))
                room -= min(room, batch.num_rows)
            part = replace(part, batches=tuple(batch for batch in batches if batch.num_rows), rejects=part.rejects if filters else part.rejects[:room])
        yield part
        if left is not None:
            left -= part.rows if filters else part.records
            if left <= 0:
                return
