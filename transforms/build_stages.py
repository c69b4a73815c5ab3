"""Stages of a build in Beam.

`build_in_one_step` is the stage of a build in this process. The other stages exchange data only
through the output folder. Most of them call one function of `building.workers`. Records never are
elements of the pipeline. They are in files of the output folder, so that the elements stay small.

All counters have the namespace `recordmill`. They are for users only: everything that a commit
depends on is in the elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from recordmill.base.progress import Progress
from recordmill.base.threads import thread_map
from recordmill.building.local_build import build_locally
from recordmill.building.sorted_run import Histogram
from recordmill.building.workers.shard_planning import (
    MergeTask,
    ShardPlan,
    merge_sorted_runs,
    plan_merges,
    plan_shards,
    use_merged_runs,
)
from recordmill.building.workers.shards import (
    FinalShard,
    ShardAttempt,
    commit_shared_build,
    rename_to_final_names,
    write_shard_attempt,
)
from recordmill.building.workers.shared_files import PlanHandle, SharedPlanHandle, SharedValue
from recordmill.building.workers.sorted_runs import (
    SharedIngestResult,
    SortedRunTable,
    ingest_unit_group,
)
from recordmill.shards.manifest import Manifest
from recordmill.transforms import beam_types

# The two outputs of each step that writes sorted runs.
INGEST_RESULTS, HISTOGRAMS = "accounts", "histograms"


# The namespace of all counters.
BUILD_NAMESPACE = "recordmill"


def increment_counters(**amounts: int) -> None:
    """Adds to counters of the job.

    Only the thread that runs the step for Beam may call this.

    Args:
        amounts: The increment of each counter, by its name.
    """
    for name, amount in amounts.items():
        beam_types.counter(BUILD_NAMESPACE, name).inc(amount)


def build_in_one_step(_: bytes, plan: PlanHandle, progress: Progress) -> Manifest:
    """Runs a complete build as a single step of Beam, and returns its manifest.

    The build is a single step because each further one costs Beam 10 ms.

    Args:
        _: The element of an impulse, which has no meaning.
        plan: The handle of the plan.
        progress: Receives the counts, and the error if the build fails.
    """
    return build_locally(plan.load(), progress)


def generate_numbers(_: bytes, count: int) -> Iterator[int]:
    """Yields 0, 1, ..., count - 1."""
    yield from range(count)


@dataclass
class ElementNumbers(beam_types.PTransform):
    """Outputs the numbers 0, 1, ..., count - 1, distributed over the workers.

    The numbers are generated when the job runs, so that the graph for the engine stays small.
    """

    count: int

    def expand(self, pipeline: Any) -> beam_types.PCollection:  # -> int
        return (
            pipeline
            | beam_types.Impulse()
            | beam_types.FlatMap(generate_numbers, self.count)
            | beam_types.Reshuffle()
        )


class IngestUnitGroup(beam_types.DoFn):
    """Ingests unit groups, and outputs their results.

    A second output with the tag HISTOGRAMS contains one histogram for each bundle, the sum of its
    unit groups.
    """

    def start_bundle(self) -> None:
        self._total: Histogram | None = None

    def process(
        self, unit_group: int, plan: SharedPlanHandle, progress: Progress
    ) -> Iterator[SharedIngestResult]:
        with plan.job_folder.work():
            result, histogram = ingest_unit_group(plan, unit_group, progress)
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
    """Returns the sum of histograms, or None if there are no histograms.

    None represents an empty histogram, and is skipped. An empty histogram can't be created here,
    because its shape is only known from the plan.
    """
    total = None
    for histogram in histograms:
        total = histogram if total is None else total if histogram is None else total + histogram
    return total


def plan_all_shards(
    histogram: Histogram | None, results: Iterable[SharedIngestResult], plan: SharedPlanHandle
) -> ShardPlan:
    """Plans the shards from the results of all unit groups.

    Args:
        histogram: The histogram of all records, or None without records.
        results: The result of each unit group.
        plan: The handle of the plan.
    """
    with plan.job_folder.work():
        return plan_shards(plan, results, histogram)


def list_merges(shard_plan: ShardPlan) -> Iterator[MergeTask]:
    """Yields the merges of sorted runs that must come before the shards are written.

    Usually there are none.
    """
    if shard_plan.num_merges:
        shard_plan.layout.job_folder.begin_step()
        yield from plan_merges(shard_plan.layout.load())


def run_merge_task(
    merge: MergeTask, shard_plan: ShardPlan, plan: SharedPlanHandle, progress: Progress
) -> SortedRunTable:
    """Merges sorted runs within a range of keys, and returns the merged run."""
    with plan.job_folder.work():
        return merge_sorted_runs(plan, shard_plan, merge, progress)


def replace_merged_runs(
    shard_plan: ShardPlan, merged: Iterable[SortedRunTable], plan: SharedPlanHandle
) -> ShardPlan:
    """Returns the shard plan with merged runs in place of their parts."""
    plan.job_folder.begin_step()
    return use_merged_runs(plan.job_folder, shard_plan, merged)


def pack_shard_numbers(shard_plan: ShardPlan, local: bool) -> Iterator[tuple[int, ...]]:
    """Yields tuples with the numbers of the shards.

    Args:
        shard_plan: The plan of the shards.
        local: Whether one tuple contains all numbers, for the threads of one process. Otherwise
            each number is in a tuple of its own, for the workers of an engine.
    """
    numbers = range(shard_plan.num_shards)
    yield from [tuple(numbers)] if local else ((number,) for number in numbers)


def write_shard_attempts(
    numbers: tuple[int, ...], shard_plan: ShardPlan, plan: SharedPlanHandle, progress: Progress
) -> Iterator[ShardAttempt]:
    """Writes shards on the threads of the plan, and yields an attempt for each.

    Args:
        numbers: The numbers of the shards.
        shard_plan: The plan of the shards.
        plan: The handle of the plan.
        progress: Receives the counts.
    """
    progress.begin("write", shard_plan.records)
    with plan.job_folder.work():
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
    """Yields the (split_id, index) of an attempt's shard if that shard is empty."""
    if not attempt.shard.info.records:
        yield attempt.shard.split_id, attempt.shard.index


def finalize_shard(
    attempt: ShardAttempt, empty_shards: Iterable[tuple[int, int]], plan: SharedPlanHandle
) -> Iterator[FinalShard]:
    """Renames the files of an accepted attempt to their final names.

    Yields nothing if the shard is empty.

    Args:
        attempt: The accepted attempt.
        empty_shards: (split_id, index) of each empty shard. Later shards take their numbers.
        plan: The handle of the plan.
    """
    plan.job_folder.begin_step()
    if (final_shard := rename_to_final_names(plan.job_folder, attempt, empty_shards)) is not None:
        yield final_shard


def commit_build(
    shard_plan: ShardPlan, final_shards: Iterable[FinalShard], plan: SharedPlanHandle
) -> Manifest:
    """Verifies and commits the build, and returns its manifest."""
    with plan.job_folder.work():
        return commit_shared_build(plan, shard_plan, final_shards)


def clear_run(manifest: Manifest, plan: SharedPlanHandle) -> Manifest:
    """Removes the files that only the build needed, and returns the manifest.

    The removal is a separate step after the commit. So if the engine repeats the commit, these
    files still exist.
    """
    plan.job_folder.begin_step()
    plan.job_folder.open_run().remove_work_files()
    return manifest


@dataclass
class ShardStages(beam_types.PTransform):
    """Stages from sorted runs to a committed data set.

    The input is a mapping with the collections INGEST_RESULTS and HISTOGRAMS, see `pair_outputs`.
    The output has the manifest as its single element.

    Args:
        plan: The handle of the plan, or a PCollection that contains it.
        progress: The progress of the build.
        local: Whether the shards are written in one process, on its threads. Otherwise they are
            distributed over workers.
    """

    plan: SharedPlanHandle | beam_types.PCollection
    progress: Progress
    local: bool = False

    def expand(self, ingested: Any) -> beam_types.PCollection:
        # {INGEST_RESULTS: SharedIngestResult, HISTOGRAMS: Histogram} -> Manifest
        plan = (
            self.plan if isinstance(self.plan, SharedValue) else beam_types.AsSingleton(self.plan)
        )
        # Each bundle has one histogram. Their sum determines all shard boundaries. The boundaries
        # and the sorted runs are in a file of the output folder, so the element is small.
        shard_plan = (
            ingested[HISTOGRAMS]
            | "AddHistograms" >> beam_types.CombineGlobally(add_histograms)
            | "Survey"
            >> beam_types.Map(plan_all_shards, beam_types.AsIter(ingested[INGEST_RESULTS]), plan)
        )
        # If there are too many sorted runs for the merge of a shard, they are merged before.
        # Usually this collection is empty.
        merged = (
            shard_plan
            | "Merges" >> beam_types.FlatMap(list_merges)
            | "SpreadMerges" >> beam_types.Reshuffle()
            | "MergeRuns"
            >> beam_types.Map(
                run_merge_task, beam_types.AsSingleton(shard_plan), plan, self.progress
            )
        )
        merged_plan = shard_plan | "ListRuns" >> beam_types.Map(
            replace_merged_runs, beam_types.AsIter(merged), plan
        )
        # One number per shard. Until the engine has accepted an attempt, its files have temporary
        # names.
        attempts = (
            merged_plan
            | "Shards" >> beam_types.FlatMap(pack_shard_numbers, self.local)
            | "SpreadShards" >> beam_types.Reshuffle()
            | "MakeShards"
            >> beam_types.FlatMap(
                write_shard_attempts, beam_types.AsSingleton(merged_plan), plan, self.progress
            )
            # From here on, the engine knows which attempt it has accepted.
            | "Account" >> beam_types.Reshuffle()
        )
        empty_shards = attempts | "Gaps" >> beam_types.FlatMap(list_empty_shards)
        final_shards = attempts | "PlaceShards" >> beam_types.FlatMap(
            finalize_shard, beam_types.AsIter(empty_shards), plan
        )
        # A single element, even without records. So the last step runs once, when its side input is
        # complete.
        manifest = merged_plan | "Finish" >> beam_types.Map(
            commit_build, beam_types.AsIter(final_shards), plan
        )
        return manifest | "Release" >> beam_types.Map(clear_run, plan)


@dataclass
class BuildStages(beam_types.PTransform):
    """Stages of a complete build, from unit groups to a committed data set.

    The input elements are indices of unit groups. The output has the manifest as its single
    element.

    Attributes:
        plan: The handle of the plan.
        progress: The progress of the build.
    """

    plan: SharedPlanHandle
    progress: Progress

    def expand(self, groups: beam_types.PCollection) -> beam_types.PCollection:  # group -> Manifest
        ingested: Any = groups | "Ingest" >> beam_types.ParDo(
            IngestUnitGroup(), self.plan, self.progress
        ).with_outputs(HISTOGRAMS, main=INGEST_RESULTS)
        return pair_outputs(ingested) | "Shard" >> ShardStages(self.plan, self.progress)


def pair_outputs(ingested: Any) -> Any:
    """Returns the two outputs of an ingestion by name, as `ShardStages` takes them."""
    return {name: ingested[name] for name in (INGEST_RESULTS, HISTOGRAMS)}
