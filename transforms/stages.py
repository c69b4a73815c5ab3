"""The stages of a build as PTransforms: each calls one function of `shards` on the elements that it gets.

Elements are coarse: a group of units, a run, the blocks of a shard. On one machine (`local`) a stage gets all its work
as one pack and uses threads inside, since FnApiRunner feeds a bundle serially; on engines every pack is one piece of
work, and they spread the packs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recordmill.base.progress import progress_of
from recordmill.base.threads import thread_map
from recordmill.building.conclude import committed_by, conclude
from recordmill.building.cuts import Cut, cut_shards
from recordmill.building.ingest import Ingested, ingest
from recordmill.building.plan import EXCHANGE_RUNNER, BuildPlan, load_plan
from recordmill.building.run_file import Histogram
from recordmill.building.shard_writer import UnsyncedShard, WrittenShard, write_shard
from recordmill.building.slices import RunCutter, RunSlice
from recordmill.shards.manifest import Manifest
from recordmill.shards.names import ShardName
from recordmill.shards.run_folder import RunFolder
from recordmill.transforms.beam_types import (
    AsIter,
    AsSingleton,
    CombineFn,
    CombineGlobally,
    FlatMap,
    GroupByKey,
    Map,
    PCollection,
    PTransform,
)

_SYNCING = 4  # threads that only wait for the disk, so that the others need not

PlanPath = str  # where the BuildPlan is pickled; workers load it once


def _given(plan: PlanPath | PCollection) -> Any:
    """The path as the functions of a stage get it:
    as it is, or as a side input where it is known only when the pipeline runs.
    """
    return plan if isinstance(plan, str) else AsSingleton(plan)


class _Reported:
    """Keeps the exception itself for the process that started the job, since runners hand on only its text."""

    def __init__(self, plan: BuildPlan) -> None:
        self._progress = progress_of(plan.folder)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # which says that the consumer failed, and why is told there
        if error is not None and not isinstance(error, GeneratorExit):
            self._progress.fail(error)


def ingest_pack(groups: Iterable[int], plan_path: PlanPath) -> Iterator[Ingested]:
    """The groups of a pack, each read, encoded and written as runs, on the plan's threads."""
    plan = load_plan(plan_path)
    progress = progress_of(plan.folder)
    with _Reported(plan):
        yield from thread_map(lambda group: ingest(plan, group, progress), groups, plan.threads)


@dataclass
class IngestGroups(PTransform):
    """Packs of group numbers to what each became: runs on disk, and accounts.

    plan: the path of the pickled plan, or a PCollection with it.
    """

    plan: PlanPath | PCollection

    def expand(self, packs: PCollection) -> PCollection:  # (group, ...) -> Ingested
        return packs | FlatMap(ingest_pack, _given(self.plan))


class _MergeHistograms(CombineFn):
    """The footers' monoid; the zero needs the plan's shape, so None stands for it."""

    def create_accumulator(self) -> Histogram | None:
        return None

    def add_input(self, total: Histogram | None, one: Histogram) -> Histogram:
        return one if total is None else total + one

    def merge_accumulators(self, totals: Iterable[Histogram | None]) -> Histogram | None:
        result = None
        for total in totals:
            result = total if result is None else result if total is None else result + total
        return result

    def extract_output(self, total: Histogram | None) -> Histogram | None:
        return total


def plan_cuts(total: Histogram | None, plan_path: PlanPath) -> list[Cut]:
    """The shards of the whole data set; none if there is no record."""
    plan = load_plan(plan_path)
    with _Reported(plan):
        cuts = [] if total is None else cut_shards(total, plan.shards, plan.splits)
        progress_of(plan.folder).begin("write", 0 if total is None else int(total.records.sum()))
        return cuts


def cut_run(
    ingested: Ingested, cuts: list[Cut], plan_path: PlanPath, packs: int
) -> Iterator[tuple[int, tuple[int, RunSlice]]]:
    """One block for each shard that needs records of these runs: (pack, (ordinal of the cut, block))."""
    plan = load_plan(plan_path)
    with _Reported(plan):
        for run in ingested.runs:
            cutter = RunCutter(run)
            for ordinal, cut in enumerate(cuts):
                block = cutter.block(
                    cut.split, cut.first_bucket, cut.last_bucket, by_value=plan.exchange == EXCHANGE_RUNNER
                )
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
        return write_shard(folder / "data", folder / "runs", name, cut, blocks[ordinal], plan.arena_bytes, progress)

    with _Reported(plan):
        yield from thread_map(UnsyncedShard.settle, thread_map(write, sorted(blocks), plan.threads), _SYNCING)


def finish_build(
    _: list[Cut], ingested: Iterable[Ingested], shards: Iterable[WrittenShard], plan_path: PlanPath
) -> Manifest:
    """Reconcile and commit."""
    try:
        plan = load_plan(plan_path)
    except FileNotFoundError:  # a repeated attempt, after the folder of the run was removed
        folder = RunFolder.attach(Path(plan_path).parent)
        if (done := committed_by(folder, str(folder.out))) is not None:
            return done
        raise
    with _Reported(plan):
        progress_of(plan.folder).advance()  # the last moment at which a build that was stopped leaves nothing
        return conclude(plan, list(ingested), list(shards))


@dataclass
class ShardRuns(PTransform):
    """Runs, wherever they came from, to a committed data set:
    footers decide the cuts, blocks travel to their shards, shards are merged.

    plan: the path of the pickled plan, or a PCollection with it. packs: over how many elements the shards are spread (1
    on one machine). Gives a PCollection with the one Manifest.
    """

    plan: PlanPath | PCollection
    packs: int = 1

    def expand(self, ingested: PCollection) -> PCollection:  # Ingested -> Manifest
        plan = _given(self.plan)
        # From here on only footers travel: kilobytes a run. They add up to one histogram, which fixes every cut.
        cuts = (
            ingested
            | "Footers" >> FlatMap(lambda one: [run.histogram for run in one.runs])
            | "AddFooters" >> CombineGlobally(_MergeHistograms())
            | "PlanCuts" >> Map(plan_cuts, plan)
        )
        # One block for each run and shard: a reference on one machine,
        # the bytes themselves where the engine is to carry them.
        shards = (
            ingested
            | "CutRuns" >> FlatMap(cut_run, AsSingleton(cuts), plan, self.packs)
            | "ToShards" >> GroupByKey()
            | "WriteShards" >> FlatMap(write_pack, AsSingleton(cuts), plan)
        )
        accounts = ingested | "Accounts" >> Map(_without_footers)
        # The cuts are one element, also of no records: with it the last step runs once, when what it looks at is there.
        return cuts | "Finish" >> Map(finish_build, AsIter(accounts), AsIter(shards), plan)


def _without_footers(ingested: Ingested) -> Ingested:
    """The accounts alone: the last step needs no histograms."""
    empty = Histogram.zero(0, 0)
    return replace(ingested, runs=tuple(replace(run, histogram=empty) for run in ingested.runs))
