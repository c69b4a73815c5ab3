"""What the plan of a build learns of each TFRecord file: its units, its digest and, where they are to be told by the
records, what these are.

A file of one unit is read once for all of it, and so is a compressed one for its units and records; what is damaged,
or larger, is looked at by one pass for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

from recordmill.base.threads import thread_map
from recordmill.records.inference.infer import Inference
from recordmill.records.tfrecord.frames import try_scan
from recordmill.shards.catalog import ShardFile
from recordmill.shards.loads.batches import loads
from recordmill.shards.loads.salvage import frames_of, recovered
from recordmill.shards.loads.schema_of import infer_files, infer_frames
from recordmill.shards.pieces import Piece, cut
from recordmill.sources.inputs.contract import UNIT_BYTES, PlanOptions, Unit
from recordmill.storage.digest import chunk_digests, combine, digest_file
from recordmill.storage.files import read_range

_HELD_SHARE = 4  # a fourth of the memory, at most, for files that are held whole


@dataclass(frozen=True)
class Looked:
    """inference: what the records are; None where they were not counted on the way."""

    units: tuple[Unit, ...]
    digest: str
    inference: Inference | None = None


def look_at(shards: Sequence[ShardFile], common: PlanOptions, counting: bool) -> list[Looked]:
    """Each file, in order; counting: also what its records are."""
    held = min(UNIT_BYTES, common.memory_bytes // (_HELD_SHARE * common.threads))
    return list(thread_map(partial(_look, held_bytes=held, counting=counting), enumerate(shards), common.threads))


def count_records(shards: Sequence[ShardFile], looked: Sequence[Looked], common: PlanOptions) -> Inference:
    """What the records of all files are, those that were not counted on the way included."""
    parts = (
        one.inference or infer_files([shard], threads=common.threads, lenient=True)
        for shard, one in zip(shards, looked, strict=True)
    )
    return reduce(lambda one, other: one + other, parts, Inference())


def _look(item: tuple[int, ShardFile], *, held_bytes: int, counting: bool) -> Looked:
    ordinal, shard = item
    if shard.info is None and shard.compression == "none" and shard.stat.size_bytes <= held_bytes:
        found = _at_once(ordinal, shard, counting)
        if found is not None:
            return found
    units, inference = [], None
    for piece in cut(shard, ordinal, UNIT_BYTES, lenient=True):
        if piece.stop is None:
            unit, inference = _of_stream(shard, piece, counting)
        else:
            records = 1 if piece.fault else piece.records
            size = piece.stop - piece.start
            unit = Unit(ordinal, ordinal + 1, piece.start, piece.stop, piece.first_record, records, size)
        units.append(unit)
    return Looked(tuple(units), digest_file(shard.path), inference)


def _at_once(ordinal: int, shard: ShardFile, counting: bool) -> Looked | None:
    """All of a file of one unit; None if it is damaged."""
    data = read_range(shard.path)
    frames, _, error = try_scan(data, source=shard.path, final=True, check=counting)
    if error is not None:
        return None
    unit = Unit(ordinal, ordinal + 1, 0, len(data), 0, len(frames), len(data))
    inference = infer_frames(recovered(frames, 0), shard.name) if counting else None
    return Looked((unit,) if len(data) else (), combine(chunk_digests(data)), inference)


def _of_stream(shard: ShardFile, piece: Piece, counting: bool) -> tuple[Unit, Inference | None]:
    """A compressed file tells its records only by reading it."""
    records = size = 0
    inference = Inference()
    for load in loads({piece.file: shard}, [piece], lenient=True):  # type: ignore[arg-type]
        found = frames_of(load)
        records += len(found.starts) + len(found.rejects)
        size += int(found.lengths.sum())
        if counting:
            inference = inference + infer_frames(found, shard.name)
    unit = Unit(piece.file, piece.file + 1, rows=records, size_bytes=size)
    return unit, inference if counting else None
