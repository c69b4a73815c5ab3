"""Units of the source to runs: read, place, encode, sort.
The first half of a build, for one group of units at a time.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.base.progress import Progress
from recordmill.base.room import give_back
from recordmill.building.plan import BuildPlan
from recordmill.building.run_file import Run, RunWriter
from recordmill.records.example.encode import encode
from recordmill.records.tfrecord.frames import FRAME_BYTES, MAX_RECORD_BYTES, Frames, frame
from recordmill.shards.rejects import Rejected, RejectWriter
from recordmill.sources.inputs.contract import Chunk


@dataclass(frozen=True)
class Ingested:
    """The runs of one group and its accounts: records read = written into runs + rejected.

    digests: of the files it read whole. counts: what the source counted for the user to know (`Chunk.counts`).
    """

    group: int
    runs: tuple[Run, ...]
    read: int
    rejected: Rejected
    digests: Mapping[int, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)


def ingest(plan: BuildPlan, group: int, progress: Progress) -> Ingested:
    """Read the units of a group and write their records as sorted runs.

    Raises:
        DataError: an input is broken as a whole (truncated, changed since the plan); records that are broken are
            rejects.
        TooManyRejects: so many records can't be used that the build need not go on.
    """
    source = plan.source
    assert source is not None
    folder = Path(plan.folder)
    rejects = RejectWriter(
        folder / "rejects" / f"{group:06d}-{uuid.uuid4().hex}.jsonl", most=plan.most_rejects, work=str(group)
    )
    expected = sum(source.units[number].size_bytes for number in plan.groups[group])
    writer = RunWriter(os.fspath(folder / "runs"), plan.buckets, min(plan.arena_bytes, 3 * expected + (16 << 20)))
    runs: list[Run] = []
    read = 0
    digests: dict[int, str] = {}
    counts: Counter[str] = Counter()
    for number in plan.groups[group]:
        for chunk in source.read(source.units[number]):
            rejected = rejects.write(chunk.rejects)
            digests.update(chunk.digests)
            counts.update(chunk.counts)
            read += chunk.rows + rejected
            if chunk.rows:
                runs += _add(plan, writer, chunk)
            progress.advance(chunk.rows, rejected)
    if not writer.empty:
        runs.append(writer.finish())
    give_back()
    return Ingested(group, tuple(runs), read, rejects.close(), digests, counts)


def _add(plan: BuildPlan, writer: RunWriter, chunk: Chunk) -> list[Run]:
    batch = chunk.records if isinstance(chunk.records, pa.RecordBatch) else None
    keys, splits = plan.ordering.place(batch, chunk.file, chunk.position)
    frames = frame_chunk(plan, chunk)
    if len(frames) != chunk.rows:
        raise DataError(
            f"{chunk.rows} rows became {len(frames)} records", source=plan.source.kind if plan.source else ""
        )
    if (large := find_too_large(frames)) is not None:
        source = plan.source.files[int(chunk.file[large])].name if plan.source else ""
        raise DataError(too_large(frames, large), source=source, place=f"record {int(chunk.position[large])}")
    return list(
        writer.add(frames.data, frames.lengths + FRAME_BYTES, frames.crcs, keys, splits, chunk.file, chunk.position)
    )


def find_too_large(frames: Frames) -> int | None:
    """The largest record, if no reader would take it, or None."""
    return int(np.argmax(frames.lengths)) if len(frames) and int(frames.lengths.max()) > MAX_RECORD_BYTES else None


def too_large(frames: Frames, record: int) -> str:
    """What is wrong with a record that is too large."""
    return (
        f"{int(frames.lengths[record])} bytes in one record, of which readers take {MAX_RECORD_BYTES} at "
        "most; divide it"
    )


def frame_chunk(plan: BuildPlan, chunk: Chunk) -> Frames:
    """The chunk's records as frames: encoded, or as they are where they were not to be parsed."""
    if isinstance(chunk.records, pa.RecordBatch):
        return encode(chunk.records, plan.schema)
    return frame(chunk.records.data, np.ascontiguousarray(chunk.records.offsets))
