"""The stages of a build by workers that share nothing but OUT, as PTransforms: each calls one function of
`building.workers` on values that stay small, since the records lie in files in OUT.

Counters stand under one namespace, `recordmill`; they are for people: what a commit is decided by travels as elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from recordmill.base.progress import find_progress
from recordmill.base.threads import thread_map
from recordmill.building.sorted_run import Histogram
from recordmill.building.workers.shard_planning import (
    MergeTask,
    ShardPlan,
    merge_runs,
    plan_merges,
    plan_shards,
    use_merged_runs,
)
from recordmill.building.workers.shards import (
    FinalShard,
    ShardAttempt,
    commit_shared_build,
    empty_shard_id,
    rename_to_final_names,
    write_shard_attempt,
)
from recordmill.building.workers.shared_files import SharedPlanHandle, SharedValue
from recordmill.building.workers.sorted_runs import SharedIngestResult, SortedRunTable, ingest_group
from recordmill.shards.manifest import Manifest
from recordmill.transforms import beam_types

ACCOUNTS, HISTOGRAMS = "accounts", "histograms"  # the outputs of whatever makes runs


BUILD_NAMESPACE = "recordmill"  # of all counters


def count(**amounts: int) -> None:
    """Adds to counters of the job; to be called by the thread that Beam runs a step on."""
    for name, amount in amounts.items():
        beam_types.counter(BUILD_NAMESPACE, name).inc(amount)


def numbers_below(_: bytes, count: int) -> Iterator[int]:
    """0, 1, ... and as many as that."""
    yield from range(count)


@dataclass
class ElementNumbers(beam_types.PTransform):
    """0, 1, ... and as many as that, spread over the workers; the graph that an engine is sent holds none of them."""

    count: int

    def expand(self, pipeline: Any) -> beam_types.PCollection:  # -> int
        return (
            pipeline
            | beam_types.Impulse()
            | beam_types.FlatMap(numbers_below, self.count)
            | beam_types.Reshuffle()
        )


class IngestGroup(beam_types.DoFn):
    """Groups of units to their accounts; where their keys lie is added up in the bundle."""

    def start_bundle(self) -> None:
        self._total: Histogram | None = None

    def process(self, group: int, plan: SharedPlanHandle) -> Iterator[SharedIngestResult]:
        with plan.job_folder.open_run().keep_alive():
            account, histogram = ingest_group(
                plan, group, find_progress(plan.job_folder.run_path())
            )
        self._total = histogram if self._total is None else self._total + histogram
        count(
            records_read=account.records_read,
            records_rejected=account.rejected.total,
            runs_written=len(account.sorted_runs),
        )
        yield account

    def finish_bundle(self) -> Iterable[object]:
        if self._total is not None:
            yield beam_types.TaggedOutput(HISTOGRAMS, beam_types.windowed(self._total))


def add_histograms(some: Iterable[Histogram | None]) -> Histogram | None:
    """Adds histograms up; the zero needs the plan's shape, so None stands for it."""
    total = None
    for one in some:
        total = one if total is None else total if one is None else total + one
    return total


def survey_all(
    histogram: Histogram | None, accounts: Iterable[SharedIngestResult], plan: SharedPlanHandle
) -> ShardPlan:
    """Turns all accounts into what the other half of the build needs."""
    with plan.job_folder.open_run().keep_alive():
        return plan_shards(plan, accounts, histogram)


def merges_of(shard_plan: ShardPlan) -> Iterator[MergeTask]:
    """Yields the merges that are needed before shards are made: mostly none."""
    if shard_plan.num_merges:
        yield from plan_merges(shard_plan.layout.load())


def merge_some(merge: MergeTask, shard_plan: ShardPlan, plan: SharedPlanHandle) -> SortedRunTable:
    """A group of runs within a range of the keys to one run."""
    with plan.job_folder.open_run().keep_alive():
        return merge_runs(plan, shard_plan, merge, find_progress(plan.job_folder.run_path()))


def list_merged(
    shard_plan: ShardPlan, merged: Iterable[SortedRunTable], plan: SharedPlanHandle
) -> ShardPlan:
    """The shard_plan with the runs that shards are made of."""
    return use_merged_runs(plan.job_folder, shard_plan, merged)


def packs_of(shard_plan: ShardPlan, local: bool) -> Iterator[tuple[int, ...]]:
    """The numbers of the shards: each an element of its own, or all of them one, where this process has threads."""
    numbers = range(shard_plan.num_shards)
    yield from [tuple(numbers)] if local else ((number,) for number in numbers)


def make_shards(
    numbers: tuple[int, ...], shard_plan: ShardPlan, plan: SharedPlanHandle
) -> Iterator[ShardAttempt]:
    """Shards of a pack, on the plan's threads."""
    progress = find_progress(plan.job_folder.run_path())
    progress.begin("write", shard_plan.records)
    with plan.job_folder.open_run().keep_alive():
        threads = plan.load().threads if len(numbers) > 1 else 1
        for made in thread_map(
            lambda number: write_shard_attempt(plan, shard_plan, number, progress), numbers, threads
        ):
            count(
                shards_written=1,
                records_written=made.shard.info.records,
                bytes_written=made.shard.info.bytes,
            )
            yield made


def list_empty_shards(made: ShardAttempt) -> Iterator[tuple[int, int]]:
    """Shards that came out empty."""
    if (gap := empty_shard_id(made)) is not None:
        yield gap


def name_shard(
    made: ShardAttempt, gaps: Iterable[tuple[int, int]], plan: SharedPlanHandle
) -> Iterator[FinalShard]:
    """Gives a shard that was made its final name."""
    if (placed := rename_to_final_names(plan.job_folder, made, gaps)) is not None:
        yield placed


def finish_build_stage(
    shard_plan: ShardPlan, placed: Iterable[FinalShard], plan: SharedPlanHandle
) -> Manifest:
    """Look, reconcile, commit."""
    with plan.job_folder.open_run().keep_alive():
        return commit_shared_build(plan, shard_plan, placed)


def release(manifest: Manifest, plan: SharedPlanHandle) -> Manifest:
    """Removes what only the build needed; a step of its own, so that a repeated commit still finds it."""
    plan.job_folder.open_run().remove_work_files()
    return manifest


@dataclass
class ShardStages(beam_types.PTransform):
    """Turns a mapping of ACCOUNTS of sorted runs in OUT and HISTOGRAMS, as IngestGroup's outputs are, into a committed
    data set: gives its one Manifest. plan: the SharedPlanHandle, or a PCollection with it. local: shards are one element, and
    made on threads of one process.
    """

    plan: SharedPlanHandle | beam_types.PCollection
    local: bool = False

    def expand(
        self, ingested: Any
    ) -> beam_types.PCollection:  # {ACCOUNTS: Account, HISTOGRAMS: Histogram} -> Manifest
        plan = (
            self.plan if isinstance(self.plan, SharedValue) else beam_types.AsSingleton(self.plan)
        )
        # One histogram a bundle, one in all: it fixes every cut. What is cut, and of which runs, is a file in OUT.
        surveyed = (
            ingested[HISTOGRAMS]
            | "AddHistograms" >> beam_types.CombineGlobally(add_histograms)
            | "Survey" >> beam_types.Map(survey_all, beam_types.AsIter(ingested[ACCOUNTS]), plan)
        )
        # Of more runs than a shard is to be merged from: a level between. Mostly no element.
        merged = (
            surveyed
            | "Merges" >> beam_types.FlatMap(merges_of)
            | "SpreadMerges" >> beam_types.Reshuffle()
            | "MergeRuns" >> beam_types.Map(merge_some, beam_types.AsSingleton(surveyed), plan)
        )
        listed = surveyed | "ListRuns" >> beam_types.Map(
            list_merged, beam_types.AsIter(merged), plan
        )
        # One number a shard. What was made lies under names of the attempt, until the engine has accounted for it.
        made = (
            listed
            | "Shards" >> beam_types.FlatMap(packs_of, self.local)
            | "SpreadShards" >> beam_types.Reshuffle()
            | "MakeShards" >> beam_types.FlatMap(make_shards, beam_types.AsSingleton(listed), plan)
            | "Account" >> beam_types.Reshuffle()
        )
        gaps = made | "Gaps" >> beam_types.FlatMap(list_empty_shards)
        placed = made | "PlaceShards" >> beam_types.FlatMap(
            name_shard, beam_types.AsIter(gaps), plan
        )
        # One element, also of no records: with it the last step runs once, when what it looks at is there.
        manifest = listed | "Finish" >> beam_types.Map(
            finish_build_stage, beam_types.AsIter(placed), plan
        )
        return manifest | "Release" >> beam_types.Map(release, plan)


@dataclass
class BuildStages(beam_types.PTransform):
    """Turns numbers of a plan's groups into a committed data set."""

    plan: SharedPlanHandle

    def expand(self, groups: beam_types.PCollection) -> beam_types.PCollection:  # group -> Manifest
        ingested: Any = groups | "Ingest" >> beam_types.ParDo(
            IngestGroup(), self.plan
        ).with_outputs(HISTOGRAMS, main=ACCOUNTS)
        return of_both(ingested) | "Shard" >> ShardStages(self.plan)


def of_both(ingested: Any) -> Any:
    """The outputs of whatever makes runs, as `ShardStages` takes them."""
    return {name: ingested[name] for name in (ACCOUNTS, HISTOGRAMS)}
