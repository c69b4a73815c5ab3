"""The pieces of one `Job` to its records in order:
read, checked, decoded, filtered and converted on threads, the bad ones as rejects.

Without conversions a piece is decoded as a whole. Conversions may make much of little, so a piece's frames are then cut
into slices whose output has about a stated size. Images are cut by what their headers say (`image_parts`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from recordmill.base.threads import thread_map
from recordmill.exporting.converting import convert_kept, cut_rows, frames_in, keep_matching
from recordmill.exporting.image_parts import image_parts
from recordmill.exporting.input_digest import seen_in
from recordmill.exporting.jobs import Job
from recordmill.exporting.plan import ReadPlan
from recordmill.records.columns.decode_images import DecodeImages
from recordmill.records.columns.parts import is_bytes
from recordmill.schemas.feature import ITEM_BYTES, Schema
from recordmill.shards.cutting import pieces_of
from recordmill.shards.loads.batches import Load, asked_for, blocks_of, decode_block, loads
from recordmill.shards.loads.guess import confirm_block, selected
from recordmill.shards.loads.salvage import Salvaged, salvage

_SLICE_BYTES = 16 << 20  # 16 MiB converted: two of them per thread wait for the writer


def read_parts(plan: ReadPlan, job: Job, threads: int) -> Iterator[Salvaged]:
    """All that the job holds, in order.

    Raises:
        DataError: a record is damaged or can't be converted, and the plan is not lenient.
    """
    lenient = plan.options.lenient
    pieces = pieces_of(plan.files, job.pieces, lenient=lenient)
    return _limited(
        parts_of(plan, loads(plan.files, pieces, lenient=lenient), threads), job.limit, plan.options.filters
    )


def parts_of(plan: ReadPlan, work: Iterator[Load], threads: int) -> Iterator[Salvaged]:
    """The records of these loads, in order."""
    if not plan.options.lenient:  # which reads around damage by itself
        work = asked_for(work)
    if not plan.steps and not plan.options.filters:
        return thread_map(lambda load: _decoded(plan, load), work, threads)
    if any(isinstance(step, DecodeImages) for step in plan.steps):
        # Frames are read by one thread: a hundred times quicker than images are decoded by another.
        whole = (keep_matching(plan, frames_in(load, plan.options.lenient)) for load in work)
        parts = (part for kept in whole for part in image_parts(plan, kept))
        room = plan.image_bytes or sys.maxsize
        return thread_map(
            lambda part: convert_kept(plan, part[0]), parts, threads, weight=lambda part: part[1], room=room
        )
    rows = max(_SLICE_BYTES // row_bytes(plan.schema), 1)
    found = thread_map(lambda load: frames_in(load, plan.options.lenient), work, threads)
    return thread_map(
        lambda part: convert_kept(plan, keep_matching(plan, part)),
        (part for whole in found for part in cut_rows(whole, rows)),
        threads,
    )


def row_bytes(schema: Schema) -> int:
    """The bytes of one row's columns of fixed size."""
    sizes = [
        feature.inner_size * ITEM_BYTES.get(feature.dtype, 8)
        for feature in schema
        if not feature.ragged_rank and not is_bytes(feature)
    ]
    return max(sum(sizes), 1)


def _decoded(plan: ReadPlan, load: Load) -> Salvaged:
    if plan.options.lenient:
        return salvage(load, plan.schema)
    blocks = blocks_of(load)
    seen = seen_in(load.piece.file, blocks)
    if plan.guess is not None:
        batches = tuple(selected(confirm_block(block, plan.guess), plan.schema) for block in blocks)
    else:
        batches = tuple(decode_block(block, plan.schema, load.file.path) for block in blocks)
    return Salvaged(batches, (), seen=seen)


def _limited(parts: Iterator[Salvaged], limit: int | None, filters: bool) -> Iterator[Salvaged]:
    """The parts up to limit records, or rows where records are filtered;
    a stream can hold more than its plan asks for.
    """
    left = limit
    for part in parts:
        if left is not None and (part.rows if filters else part.records) > left:
            batches = []
            room = left
            for batch in part.batches:
                batches.append(batch.slice(0, room))
                room -= min(room, batch.num_rows)
            part = replace(
                part,
                batches=tuple(batch for batch in batches if batch.num_rows),
                rejects=part.rejects if filters else part.rejects[:room],
            )
        yield part
        if left is not None:
            left -= part.rows if filters else part.records
            if left <= 0:
                return
