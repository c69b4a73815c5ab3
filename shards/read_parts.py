"""The pieces of one `Job` to its records in order: read, checked and decoded on threads, the bad ones as rejects, at most as many as the limit says."""

from __future__ import annotations

from collections.abc import Iterator

from recordmill.schemas.threads import thread_map
from recordmill.shards.batches import Load, decode_load, loads
from recordmill.shards.read_plan import Job, ReadPlan
from recordmill.shards.salvage import Salvaged, salvage


def read_part(plan: ReadPlan, load: Load) -> Salvaged:
    """The records of one load as the output has them.

    Raises:
        DataError: a record is damaged and the plan is not lenient.
    """
    return salvage(load, plan.schema) if plan.options.lenient else Salvaged(tuple(decode_load(load, plan.schema)), ())


def read_parts(plan: ReadPlan, job: Job, threads: int) -> Iterator[Salvaged]:
    """All that the job holds, in order; see `read_part`."""
    parts = thread_map(lambda load: read_part(plan, load), loads(plan.files, job.pieces, lenient=plan.options.lenient), threads)
    return _limited(parts, job.limit)


def _limited(parts: Iterator[Salvaged], limit: int | None) -> Iterator[Salvaged]:
    """The parts up to limit records; only a stream can hold more than its plan asks for."""
    left = limit
    for part in parts:
        if left is not None and part.records > left:
            batches = []
            room = left
            for batch in part.batches:
                batches.append(batch.slice(0, room))
                room -= min(room, batch.num_rows)
            part = Salvaged(tuple(batch for batch in batches if batch.num_rows), part.rejects[:room])
        yield part
        if left is not None:
            left -= part.records
            if left <= 0:
                return
