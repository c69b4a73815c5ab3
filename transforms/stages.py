"""The stages of a build on one machine, each a function of what the one before gave, on threads; `one_stage` calls them
one after the other. On an engine the stages are those of `spread`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from recordmill.base.progress import progress_of
from recordmill.base.threads import thread_map
from recordmill.building.conclude import conclude
from recordmill.building.cuts import Cut, cut_shards
from recordmill.building.ingest import Ingested, ingest
from recordmill.building.plan import BuildPlan, load_plan
from recordmill.building.run_file import Held, Histogram
from recordmill.building.shard_writer import UnsyncedShard, WrittenShard, write_shard
from recordmill.building.slices import RunCutter, RunSlice
from recordmill.shards.entries.names import ShardName
from recordmill.shards.manifest import Manifest
from recordmill.shards.run import RunFolder

_SYNCING = 4  # threads that only wait for the disk, so that the others need not

PlanPath = str  # where the BuildPlan is pickled; workers load it once


class Reported:
    """Keeps the exception itself for the process that started the job, since runners hand on only its text."""

    def __init__(self, plan: BuildPlan) -> None:
        self._progress = progress_of(plan.folder)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # which says that the consumer failed, and why is told there
        if error is not None and not isinstance(error, GeneratorExit):
            self._progress.fail(error)


def ingest_pack(groups: Iterable[int], plan_path: PlanPath, held: Held | None = None) -> Iterator[Ingested]:
    """The groups of a pack, each read, encoded and written as runs, on the plan's threads; held: runs that need not
    leave this process's memory.
    """
    plan = load_plan(plan_path)
    progress = progress_of(plan.folder)
    with Reported(plan):
        yield from thread_map(lambda group: ingest(plan, group, progress, held), groups, plan.threads)


def plan_cuts(total: Histogram | None, plan_path: PlanPath) -> list[Cut]:
    """The shards of the whole data set; none if there is no record."""
    plan = load_plan(plan_path)
    with Reported(plan):
        cuts = [] if total is None else cut_shards(total, plan.shards, plan.splits)
        progress_of(plan.folder).begin("write", 0 if total is None else int(total.records.sum()))
        return cuts


def cut_run(
    ingested: Ingested, cuts: list[Cut], plan_path: PlanPath, packs: int
) -> Iterator[tuple[int, tuple[int, RunSlice]]]:
    """One block for each shard that needs records of these runs: (pack, (ordinal of the cut, block))."""
    plan = load_plan(plan_path)
    with Reported(plan):
        for run in ingested.runs:
            cutter = RunCutter(run)
            for ordinal, cut in enumerate(cuts):
                block = cutter.block(cut.split, cut.first_bucket, cut.last_bucket)
                if block is not None:
                    yield ordinal % packs, (ordinal, block)


def write_pack(
    pack: tuple[int, Iterable[tuple[int, RunSlice]]], cuts: list[Cut], plan_path: PlanPath
) -> Iterator[WrittenShard]:
    """The shards of a pack, each merged from its blocks, on the plan's threads; others wait for the disk."""
    plan = load_plan(plan_path)
    progress = progress_of(plan.folder)
    blocks: dict[int, list[RunSlice]] = {}
    for ordinal, block in pack[1]:
        blocks.setdefault(ordinal, []).append(block)

    def write(ordinal: int) -> UnsyncedShard:
        cut = cuts[ordinal]
        name = ShardName(plan.splits[cut.split], cut.index, cut.of, plan.compression)
        folder = Path(plan.folder)
        return write_shard(folder / "data", folder / "runs", name, cut, blocks[ordinal], plan.run_bytes, progress)

    with Reported(plan):
        written = thread_map(write, sorted(blocks), plan.threads)
        yield from thread_map(lambda shard: shard.settle(durable=not plan.store), written, _SYNCING)


def finish_build(
    _: list[Cut], ingested: Iterable[Ingested], shards: Iterable[WrittenShard], plan_path: PlanPath
) -> Manifest:
    """Reconcile and commit."""
    try:
        plan = load_plan(plan_path)
    except FileNotFoundError:  # a repeated attempt, after the folder of the run was removed
        folder = RunFolder.attach(Path(plan_path).parent)
        if (done := folder.committed()) is not None:
            return done
        raise
    with Reported(plan):
        progress_of(plan.folder).advance()  # the last moment at which a build that was stopped leaves nothing
        return conclude(plan, list(ingested), list(shards))
