"""A build whose records are read and whose shards are written by one process, as one stage: each step on threads, with
no runner between them. On an engine the stages are those of `spread`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from recordmill.base.progress import progress_of
from recordmill.base.threads import thread_map
from recordmill.building.conclude import committed_by, conclude
from recordmill.building.cuts import Cut, Cuts, cut_shards
from recordmill.building.ingest import Ingested, ingest
from recordmill.building.plan import BuildPlan, load_plan
from recordmill.building.run_file import Histogram, Run
from recordmill.building.shard_writer import UnsyncedShard, WrittenShard, write_shard
from recordmill.building.slices import RunSlice, shard_slices
from recordmill.building.splitters import with_splitters
from recordmill.building.straight.write import straight_stripes, write_straight
from recordmill.shards.entries.names import ShardName
from recordmill.shards.manifest import Manifest
from recordmill.shards.run import RunFolder
from recordmill.transforms.beam_types import Map, PCollection, PTransform

_SYNCING = 4  # threads that only wait for the disk, so that the others need not
_OFFSETS = 64  # of the memory: the share of the offsets of slices of some shards

PlanPath = str  # where the BuildPlan is pickled; workers load it once


@dataclass
class BuildHere(PTransform):
    """An impulse to a committed data set; gives the one Manifest. Each transform more takes Beam some 10 ms.

    plan: the path of the pickled plan.
    """

    plan: PlanPath

    def expand(self, impulse: PCollection) -> PCollection:  # b"" -> Manifest
        return impulse | Map(build_here, self.plan)


def build_here(_: bytes, plan_path: PlanPath) -> Manifest:
    """Groups to runs, to shards, to the commit."""
    try:
        plan = load_plan(plan_path)
    except FileNotFoundError:  # a repeated attempt, after the folder of the run was removed
        if (done := RunFolder.attach(Path(plan_path).parent).committed()) is not None:
            return done
        raise
    if (done := committed_by(plan)) is not None:  # runners may repeat any stage
        return done
    progress = progress_of(plan.folder)
    try:
        if (stripes := straight_stripes(plan)) is not None:
            ingested, shards = write_straight(plan, stripes, progress)
        else:
            ingested, total = ingest_all(plan)
            runs = [run for one in ingested for run in one.runs]
            shards = list(write_shards(plan, plan_slices(plan, runs, total)))
        progress.advance()  # the last moment at which a build that was stopped leaves nothing
        return conclude(plan, ingested, shards)
    except BaseException as error:
        progress.fail(error)  # itself, for the process that started the job: runners hand on only its text
        raise


def ingest_all(plan: BuildPlan) -> tuple[list[Ingested], Histogram]:
    """All groups, each read, encoded and written as runs, on the plan's threads; and where all keys lie."""
    progress = progress_of(plan.folder)
    total = Histogram.zero(plan.buckets.splits, plan.buckets.count)
    done = []
    for ingested, histogram in thread_map(
        lambda group: ingest(plan, group, progress, plan.run_bytes), range(len(plan.groups)), plan.threads
    ):
        done.append(ingested)
        total += histogram
    return done, total


def plan_slices(
    plan: BuildPlan, runs: Sequence[Run], total: Histogram
) -> Iterator[tuple[Cut, list[RunSlice]]]:  # a shard, and what it needs
    """The shards of the whole data set, each with what it needs of the runs; none if there is no record."""
    cuts: Cuts = with_splitters(cut_shards(total, plan.shards, plan.splits), total, runs)
    progress_of(plan.folder).begin("write", int(total.records.sum()))
    return shard_slices(runs, cuts, plan.memory_bytes // _OFFSETS)


def write_shards(plan: BuildPlan, slices: Iterator[tuple[Cut, list[RunSlice]]]) -> Iterator[WrittenShard]:
    """The shards, each merged from its slices, on the plan's threads; others wait for the disk."""
    progress, folder = progress_of(plan.folder), Path(plan.folder)

    def write(shard: tuple[Cut, list[RunSlice]]) -> UnsyncedShard:
        cut, pieces = shard
        name = ShardName(plan.splits[cut.split], cut.index, cut.of, plan.compression)
        return write_shard(folder / "data", folder / "runs", name, cut, pieces, plan.run_bytes, progress)

    written = thread_map(write, slices, plan.threads)
    yield from thread_map(lambda shard: shard.settle(durable=not plan.store), written, _SYNCING)
