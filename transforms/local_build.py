"""A build whose records are read and whose shards are written by one process, as one stage: each step on threads, with
no runner between them. On an engine the stages are those of `spread`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from recordmill.base.progress import find_progress
from recordmill.base.threads import thread_map
from recordmill.building.file_records import plan_without_sort, write_file_records
from recordmill.building.finish_build import commit_local_build, find_existing_commit
from recordmill.building.ingest import IngestResult, create_sketches, ingest
from recordmill.building.plan import BuildPlan
from recordmill.building.run_slices import RunSlice, iter_shard_slices
from recordmill.building.shard_boundaries import ShardRange, add_key_bounds, compute_boundaries
from recordmill.building.shard_writer import FinishedShard, StagedShard, write_shards
from recordmill.building.sorted_run import Histogram, SortedRun
from recordmill.building.workers.shared_files import PlanHandle
from recordmill.shards.file_names import ShardName
from recordmill.shards.manifest import Manifest
from recordmill.statistics.dataset_sketch import SketchPool
from recordmill.transforms.beam_types import Map, PCollection, PTransform

_SYNC_THREADS = 4  # threads that only wait for the disk, so that the others need not
_TURNS = 8  # of each thread, at least, so that all end at about the same time
_OFFSETS = 64  # of the memory: the share of the offsets of slices of some shards


@dataclass
class LocalBuild(PTransform):
    """Turns an impulse into a committed data set; gives the one Manifest. Each further transform takes Beam 10 ms."""

    plan: PlanHandle

    def expand(self, impulse: PCollection) -> PCollection:  # b"" -> Manifest
        return impulse | Map(build_locally, self.plan)


def build_locally(_: bytes, given: PlanHandle) -> Manifest:
    """Groups to runs, to shards, to the commit."""
    plan = given.load()
    progress, sketches = find_progress(plan.folder), create_sketches(plan)
    try:
        if (done := find_existing_commit(plan)) is not None:  # runners may repeat any stage
            return done
        if (stripes := plan_without_sort(plan)) is not None:
            ingested, shards = write_file_records(plan, stripes, progress, sketches)
        else:
            ingested, total = ingest_all(plan, sketches)
            runs = [run for one in ingested for run in one.sorted_runs]
            shards = list(write_all_shards(plan, plan_slices(plan, runs, total)))
        progress.begin_commit()
        return commit_local_build(
            plan, ingested, shards, None if sketches is None else sketches.total()
        )
    except BaseException as error:
        progress.fail(
            error
        )  # itself, for the process that started the job: runners hand on only its text
        raise


def ingest_all(
    plan: BuildPlan, sketches: SketchPool | None = None
) -> tuple[list[IngestResult], Histogram]:
    """Reads, encodes, counts and writes all groups as runs, on the plan's threads; and where all keys lie."""
    progress = find_progress(plan.folder)
    total = Histogram.zeros(plan.key_buckets.num_splits, plan.key_buckets.num_buckets)
    done = []
    for ingested, histogram in thread_map(
        lambda group: ingest(plan, group, progress, plan.local_buffer_bytes, sketches),
        range(len(plan.unit_groups)),
        plan.threads,
    ):
        done.append(ingested)
        total += histogram
    return done, total


def plan_slices(
    plan: BuildPlan, runs: Sequence[SortedRun], total: Histogram
) -> Iterator[tuple[ShardRange, list[RunSlice]]]:  # shards, and what they need
    """The shards of the whole data set with what they need of the runs, small ones together, so that a run is not asked
    for a few records at a time; none if there is no record.
    """
    cuts = add_key_bounds(
        compute_boundaries(total, plan.shard_options, plan.split_names), total, runs
    )
    find_progress(plan.folder).begin("write", int(total.records.sum()))
    size = int(total.bytes.sum()) // max(len(cuts), 1)
    most = min(plan.local_buffer_bytes // (2 * max(size, 1)), len(cuts) // (_TURNS * plan.threads))
    return iter_shard_slices(runs, cuts, max(most, 1), plan.memory_bytes // _OFFSETS)


def write_all_shards(
    plan: BuildPlan, slices: Iterable[tuple[ShardRange, list[RunSlice]]]
) -> Iterator[FinishedShard]:
    """The shards, merged from their slices, on the plan's threads; others wait for the disk."""
    progress, folder = find_progress(plan.folder), Path(plan.folder)

    def write(some: tuple[ShardRange, list[RunSlice]]) -> list[StagedShard]:
        shards, pieces = some
        numbers = range(shards.index, shards.index + len(shards))
        names = [
            ShardName(
                plan.split_names[shards.split_id], number, shards.num_shards, plan.compression
            )
            for number in numbers
        ]
        return write_shards(
            folder / "data",
            folder / "runs",
            names,
            shards,
            pieces,
            plan.local_buffer_bytes,
            progress,
        )

    written = itertools.chain.from_iterable(thread_map(write, slices, plan.threads))
    yield from thread_map(
        lambda shard: shard.finalize(durable=not plan.store_url), written, _SYNC_THREADS
    )
