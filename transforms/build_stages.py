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

INGEST_RESULTS, HISTOGRAMS = "accounts", "histograms"  # the outputs of whatever makes runs


BUILD_NAMESPACE = "recordmill"  # of all counters


def increment_counters(**amounts: int) -> None:
    """Adds to counters of the job; to be called by the thread that Beam runs a step on."""
    for name, amount in amounts.items():
        beam_types.counter(BUILD_NAMESPACE, name).inc(amount)


def generate_numbers(_: bytes, count: int) -> Iterator[int]:
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
            | beam_types.FlatMap(generate_numbers, self.count)
            | beam_types.Reshuffle()
        )


class IngestUnitGroup(beam_types.DoFn):
    """Groups of units to their accounts; where their keys lie is added up in the bundle."""

    def start_bundle(self) -> None:
        self._total: Histogram | None = None

    def process(self, unit_group: int, plan: SharedPlanHandle) -> Iterator[SharedIngestResult]:
        with plan.job_folder.open_run().keep_alive():
            result, histogram = ingest_group(
                plan, unit_group, find_progress(plan.job_folder.run_path())
            )
        self._total = histogram if self._total is None else self._total + histogram
        increment_counters(
            records_read=result.records_read,
            records_rejected=result.rejected.total,
            runs_written=len(result.sorted_runs),
        )
        yield result

    def finish_bundle(self) -> Iterable[object]:
        if self._total is not None:
            yield beam_types.TaggedOutput(HISTOGRAMS, beam_types.in_global_window(self._total))


def add_histograms(histograms: Iterable[Histogram | None]) -> Histogram | None:
    """Adds histograms up; the zero needs the plan's shape, so None stands for it."""
    total = None
    for histogram in histograms:
        total = histogram if total is None else total if histogram is None else total + histogram
    return total


def plan_all_shards(
    histogram: Histogram | None, results: Iterable[SharedIngestResult], plan: SharedPlanHandle
) -> ShardPlan:
    """Turns all accounts into what the other half of the build needs."""
    with plan.job_folder.open_run().keep_alive():
        return plan_shards(plan, results, histogram)


def list_merges(shard_plan: ShardPlan) -> Iterator[MergeTask]:
    """Yields the merges that are needed before shards are made: mostly none."""
    if shard_plan.num_merges:
        yield from plan_merges(shard_plan.layout.load())


def run_merge_task(
    merge: MergeTask, shard_plan: ShardPlan, plan: SharedPlanHandle
) -> SortedRunTable:
    """A group of runs within a range of the keys to one run."""
    with plan.job_folder.open_run().keep_alive():
        return merge_runs(plan, shard_plan, merge, find_progress(plan.job_folder.run_path()))


def replace_merged_runs(
    shard_plan: ShardPlan, merged: Iterable[SortedRunTable], plan: SharedPlanHandle
) -> ShardPlan:
    """The shard_plan with the runs that shards are made of."""
    return use_merged_runs(plan.job_folder, shard_plan, merged)


def pack_shard_numbers(shard_plan: ShardPlan, local: bool) -> Iterator[tuple[int, ...]]:
    """The numbers of the shards: each an element of its own, or all of them one, where this process has threads."""
    numbers = range(shard_plan.num_shards)
    yield from [tuple(numbers)] if local else ((number,) for number in numbers)


def write_shard_attempts(
    numbers: tuple[int, ...], shard_plan: ShardPlan, plan: SharedPlanHandle
) -> Iterator[ShardAttempt]:
    """Shards of a pack, on the plan's threads."""
    progress = find_progress(plan.job_folder.run_path())
    progress.begin("write", shard_plan.records)
    with plan.job_folder.open_run().keep_alive():
        threads = plan.load().threads if len(numbers) > 1 else 1
        for attempt in thread_map(
            lambda number: write_shard_attempt(plan, shard_plan, number, progress), numbers, threads
        ):
            increment_counters(
                shards_written=1,
                records_written=attempt.shard.info.records,
                bytes_written=attempt.shard.info.bytes,
            )
            yield attempt


def list_empty_shards(attempt: ShardAttempt) -> Iterator[tuple[int, int]]:
    """Shards that came out empty."""
    if (gap := empty_shard_id(attempt)) is not None:
        yield gap


def finalize_shard(
    attempt: ShardAttempt, empty_shards: Iterable[tuple[int, int]], plan: SharedPlanHandle
) -> Iterator[FinalShard]:
    """Gives a shard that was made its final name."""
    if (final_shard := rename_to_final_names(plan.job_folder, attempt, empty_shards)) is not None:
        yield final_shard


def commit_build(
    shard_plan: ShardPlan, final_shards: Iterable[FinalShard], plan: SharedPlanHandle
) -> Manifest:
    """Look, reconcile, commit."""
    with plan.job_folder.open_run().keep_alive():
        return commit_shared_build(plan, shard_plan, final_shards)


def clear_run(manifest: Manifest, plan: SharedPlanHandle) -> Manifest:
    """Removes what only the build needed; a step of its own, so that a repeated commit still finds it."""
    plan.job_folder.open_run().remove_work_files()
    return manifest


@dataclass
class ShardStages(beam_types.PTransform):
    """Turns a mapping of ACCOUNTS of sorted runs in OUT and HISTOGRAMS, as IngestUnitGroup's outputs are, into a committed
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
        shard_plan = (
            ingested[HISTOGRAMS]
            | "AddHistograms" >> beam_types.CombineGlobally(add_histograms)
            | "Survey"
            >> beam_types.Map(plan_all_shards, beam_types.AsIter(ingested[INGEST_RESULTS]), plan)
        )
        # Of more runs than a shard is to be merged from: a level between. Mostly no element.
        merged = (
            shard_plan
            | "Merges" >> beam_types.FlatMap(list_merges)
            | "SpreadMerges" >> beam_types.Reshuffle()
            | "MergeRuns"
            >> beam_types.Map(run_merge_task, beam_types.AsSingleton(shard_plan), plan)
        )
        merged_plan = shard_plan | "ListRuns" >> beam_types.Map(
            replace_merged_runs, beam_types.AsIter(merged), plan
        )
        # One number a shard. What was made lies under names of the attempt, until the engine has accounted for it.
        attempts = (
            merged_plan
            | "Shards" >> beam_types.FlatMap(pack_shard_numbers, self.local)
            | "SpreadShards" >> beam_types.Reshuffle()
            | "MakeShards"
            >> beam_types.FlatMap(write_shard_attempts, beam_types.AsSingleton(merged_plan), plan)
            | "Account" >> beam_types.Reshuffle()
        )
        empty_shards = attempts | "Gaps" >> beam_types.FlatMap(list_empty_shards)
        final_shards = attempts | "PlaceShards" >> beam_types.FlatMap(
            finalize_shard, beam_types.AsIter(empty_shards), plan
        )
        # One element, also of no records: with it the last step runs once, when what it looks at is there.
        manifest = merged_plan | "Finish" >> beam_types.Map(
            commit_build, beam_types.AsIter(final_shards), plan
        )
        return manifest | "Release" >> beam_types.Map(clear_run, plan)


@dataclass
class BuildStages(beam_types.PTransform):
    """Turns numbers of a plan's groups into a committed data set."""

    plan: SharedPlanHandle

    def expand(self, groups: beam_types.PCollection) -> beam_types.PCollection:  # group -> Manifest
        ingested: Any = groups | "Ingest" >> beam_types.ParDo(
            IngestUnitGroup(), self.plan
        ).with_outputs(HISTOGRAMS, main=INGEST_RESULTS)
        return pair_outputs(ingested) | "Shard" >> ShardStages(self.plan)


def pair_outputs(ingested: Any) -> Any:
    """The outputs of whatever makes runs, as `ShardStages` takes them."""
    return {name: ingested[name] for name in (INGEST_RESULTS, HISTOGRAMS)}
