"""Planning of the shards of a build by workers, between ingestion and writing.

This step adds up the results of all unit groups. It checks them against the budget of rejects and
against each other, and computes the shard boundaries. If there are many sorted runs, workers then
merge them in blocks, before they write the shards.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from recordmill.base.progress import Progress
from recordmill.building.finish_build import RecordCountError, write_plan_rejects
from recordmill.building.merge import limit_fan_in, max_fan_in, merge_to_file
from recordmill.building.shard_boundaries import ShardBoundaries, add_key_bounds, compute_boundaries
from recordmill.building.sorted_run import Histogram, SortedRun, SortedRunIndex
from recordmill.building.workers.shared_files import (
    REJECTS_FOLDER,
    JobFolder,
    NotSharedError,
    SharedPlanHandle,
    SharedValue,
    task_workspace,
)
from recordmill.building.workers.sorted_runs import (
    SharedIngestResult,
    SortedRunTable,
    choose_concurrency,
    download_slices,
    empty_run_table,
    find_bucket_slices,
    share_sorted_run,
    to_sorted_runs,
)
from recordmill.shards.index import add_checksums
from recordmill.shards.rejects import RejectSummary
from recordmill.statistics.dataset_sketch import DatasetSketch
from recordmill.storage.files import reopen_file

# Maximum number of sorted runs from which a shard is merged. If there are more, they are first
# merged in blocks.
FAN_IN = 1_000
# 1 GiB: intended output of a merge task. It then reads about 1 MiB from each of FAN_IN sorted runs.
MERGED_RUN_BYTES = 1 << 30


@dataclass(frozen=True)
class ShardLayout:
    """The boundaries of all shards, and the sorted runs that contain their records.

    Attributes:
        boundaries: The boundaries.
        sorted_runs: SORTED_RUN_DTYPE, all sorted runs.
        num_buckets: Number of buckets of a split.
    """

    boundaries: ShardBoundaries
    sorted_runs: SortedRunTable
    num_buckets: int


@dataclass(frozen=True)
class MergeTask:
    """A task that merges slices of several sorted runs into one sorted run.

    Attributes:
        begin_run: First row of `ShardLayout.sorted_runs` to merge.
        end_run: One more than the last row to merge.
        begin_bucket: First bucket of the slices.
        end_bucket: One more than their last bucket.
    """

    begin_run: int
    end_run: int
    begin_bucket: int
    end_bucket: int


@dataclass(frozen=True)
class ShardPlan:
    """Totals of all unit groups, and the layout of the shards.

    Attributes:
        records_read: Number of records read: sorted ones and rejects.
        records: Number of records in the sorted runs.
        checksum: Checksum of these records.
        rejected: The rejects.
        note_counts: Messages to the user, each with the number of records that it is about.
        num_shards: Number of shards. Some may turn out empty.
        num_merges: Number of merge tasks before the shards are written.
        layout: The boundaries of the shards, and the sorted runs.
        sketch: The statistics of all records. None if the plan has none.
    """

    records_read: int
    records: int
    checksum: int
    rejected: RejectSummary
    note_counts: Mapping[str, int]
    num_shards: int
    num_merges: int
    layout: SharedValue[ShardLayout]
    sketch: SharedValue[DatasetSketch] | None = None


def plan_shards(
    plan: SharedPlanHandle, results: Iterable[SharedIngestResult], histogram: Histogram | None
) -> ShardPlan:
    """Adds up the results of all unit groups and computes the shard boundaries.

    Args:
        plan: The handle of the plan.
        results: The result of each unit group, in any order.
        histogram: The number of records in each bucket, for all unit groups together. None if there
            are no unit groups.

    Raises:
        TooManyRejects: There are more rejects than the budget allows, or all records are rejected.
        RecordCountError: The records read, rejected and counted do not add up.
        UsageError: A split has fewer records than shards, or would get too many shards.
        NotSharedError: This worker can't see a sorted run.
    """
    with task_workspace(plan) as local_plan:
        plan_rejects = write_plan_rejects(
            local_plan, local_plan.source.plan_rejects if local_plan.source else ()
        )
        plan_rejects = replace(
            plan_rejects,
            files=tuple(
                plan.job_folder.move_in(path, REJECTS_FOLDER) for path in plan_rejects.files
            ),
        )
    rejected, records_read, checksum = plan_rejects, plan_rejects.total, 0
    note_counts: Counter[str] = Counter()
    ordered_results = sorted(results, key=lambda result: result.unit_group)
    run_tables: list[SortedRunTable] = [empty_run_table()]
    for result in ordered_results:
        rejected += result.rejected
        records_read += result.records_read
        checksum = add_checksums(checksum, result.checksum)
        note_counts.update(result.note_counts)
        run_tables.append(result.sorted_runs)
    rejected.check_budget(local_plan.budget, records_read)
    rejected.check_any_left(records_read)
    all_runs = np.concatenate(run_tables)
    records = int(all_runs["records"].sum())
    records_in_buckets = 0 if histogram is None else int(histogram.records.sum())
    if not records_read - rejected.total == records == records_in_buckets:
        raise RecordCountError(
            f"{records_read} records were read, {rejected.total} rejected, {records} "
            f"sorted and {records_in_buckets} counted: these counts do not agree, so "
            "nothing was committed"
        )
    assert histogram is not None
    boundaries = compute_boundaries(histogram, local_plan.shard_options, local_plan.split_names)
    try:
        boundaries = add_key_bounds(
            boundaries,
            histogram,
            to_sorted_runs(plan.job_folder, all_runs),
            choose_concurrency(plan.job_folder),
        )
    except FileNotFoundError as error:
        raise NotSharedError(str(error.filename), plan.job_folder.out) from None
    layout = ShardLayout(boundaries, all_runs, int(histogram.records.shape[1]))
    num_merges = sum(1 for _ in plan_merges(layout))
    return ShardPlan(
        records_read=records_read,
        records=records,
        checksum=checksum,
        rejected=rejected,
        note_counts=dict(note_counts),
        num_shards=len(boundaries),
        num_merges=num_merges,
        layout=plan.job_folder.share_value("layout", layout),
        sketch=_merge_sketches(plan.job_folder, ordered_results),
    )


def _merge_sketches(
    job_folder: JobFolder, results: Sequence[SharedIngestResult]
) -> SharedValue[DatasetSketch] | None:
    """Returns the sum of the statistics of all unit groups. None without statistics.

    Only two of them are in memory at a time.
    """
    sketches = (result.sketch.load_copy() for result in results if result.sketch is not None)
    total = next(sketches, None)
    for sketch in sketches:
        assert total is not None
        total.merge(sketch)
    return None if total is None else job_folder.share_value("sketch", total)


def plan_merges(layout: ShardLayout) -> Iterator[MergeTask]:
    """Yields the merge tasks that must run before the shards are written.

    Up to FAN_IN sorted runs need no merge. If there are more, they are divided into blocks of at
    most FAN_IN, and the buckets into ranges. A task merges one block in one range. So a shard is
    later merged from one sorted run per block.
    """
    num_runs = len(layout.sorted_runs)
    if num_runs <= FAN_IN:
        return
    num_groups = -(-num_runs // FAN_IN)
    run_edges = [i * num_runs // num_groups for i in range(num_groups + 1)]
    ranges = _merge_ranges(layout, num_groups)
    for begin_run, end_run in itertools.pairwise(run_edges):
        for begin_bucket, end_bucket in ranges:
            yield MergeTask(
                begin_run=begin_run,
                end_run=end_run,
                begin_bucket=begin_bucket,
                end_bucket=end_bucket,
            )


def _merge_ranges(layout: ShardLayout, num_groups: int) -> list[tuple[int, int]]:
    """Divides the buckets into ranges for merge tasks, each within one split.

    The size of a range is chosen so that a task writes about MERGED_RUN_BYTES.

    Args:
        layout: The boundaries and the sorted runs.
        num_groups: The number of blocks of sorted runs.

    Returns:
        (begin_bucket, end_bucket) of each range.
    """
    total_bytes = int(layout.sorted_runs["bytes"].sum())
    num_ranges = max(
        1, min(len(layout.boundaries), -(-total_bytes // (num_groups * MERGED_RUN_BYTES)))
    )
    begin_buckets = set(
        layout.boundaries.table["begin_bucket"][
            :: -(-len(layout.boundaries) // num_ranges)
        ].tolist()
    )
    last_split = int(layout.boundaries.table["split_id"][-1])
    # A merged sorted run belongs to one split.
    split_edges = {split_id * layout.num_buckets for split_id in range(last_split + 2)}
    range_edges = sorted(begin_buckets | split_edges)
    return list(itertools.pairwise(range_edges))


def use_merged_runs(
    job_folder: JobFolder, shard_plan: ShardPlan, merged_runs: Iterable[SortedRunTable]
) -> ShardPlan:
    """Replaces the sorted runs of a shard plan by the merged ones.

    Args:
        job_folder: The folders of the run.
        shard_plan: The plan of the shards. Without merge tasks it is returned as it is.
        merged_runs: The result of each merge task.

    Raises:
        RecordCountError: The merge has changed the number of records.
    """
    if not shard_plan.num_merges:
        return shard_plan
    layout = shard_plan.layout.load()
    sorted_runs = np.concatenate([empty_run_table(), *merged_runs])
    if int(sorted_runs["records"].sum()) != shard_plan.records:
        raise RecordCountError(
            f"{shard_plan.records} records were merged to {int(sorted_runs['records'].sum())}; nothing was committed"
        )
    sorted_runs = sorted_runs[np.argsort(sorted_runs, order=("begin_bucket", "name"))]
    return replace(
        shard_plan,
        layout=job_folder.share_value("layout", replace(layout, sorted_runs=sorted_runs)),
    )


# Number of entries that are read at once to compute an index, 6 MiB.
_ENTRIES_PER_READ = 1 << 18


def merge_sorted_runs(
    plan: SharedPlanHandle, shard_plan: ShardPlan, merge: MergeTask, progress: Progress
) -> SortedRunTable:
    """Merges slices of several sorted runs into one, in the job folder.

    Args:
        plan: The handle of the plan.
        shard_plan: The plan of the shards.
        merge: The sorted runs and buckets to merge.
        progress: Is advanced once per batch, and may raise RunCancelled.

    Returns:
        SORTED_RUN_DTYPE [1], or [0] if the slices have no records.

    Raises:
        NotSharedError: This worker can't see a sorted run.
    """
    layout = shard_plan.layout.load()
    job_folder = plan.job_folder
    run_slices = find_bucket_slices(
        job_folder,
        layout.sorted_runs[merge.begin_run : merge.end_run],
        merge.begin_bucket,
        merge.end_bucket,
    )
    if not run_slices:
        return empty_run_table()
    with task_workspace(plan) as local_plan:
        scratch = Path(local_plan.folder, "runs")
        memory = local_plan.memory_bytes // (2 * local_plan.threads)
        local_slices = (
            download_slices(run_slices, str(scratch / "gathered"))
            if job_folder.is_remote
            else run_slices
        )
        merged_path = scratch / f"level-{uuid.uuid4().hex}"
        with limit_fan_in(
            max_fan_in(memory),
            local_slices,
            folder=scratch,
            memory_bytes=memory,
            on_batch=progress.advance,
        ) as merge_slices:
            merged_slice = merge_to_file(
                merge_slices, merged_path, memory_bytes=memory, on_batch=progress.advance
            )
        # `merge_to_file` writes no index, so the index is computed from the entries and appended.
        index = SortedRunIndex(local_plan.key_buckets)
        split_id = merge.begin_bucket // layout.num_buckets
        # A sorted run is sorted by split first.
        assert (merge.end_bucket - 1) // layout.num_buckets == split_id, merge
        for begin in range(0, merged_slice.records, _ENTRIES_PER_READ):
            index.add(
                split_id,
                merged_slice.entries(begin, min(begin + _ENTRIES_PER_READ, merged_slice.records)),
            )
        sorted_run = SortedRun(
            merged_slice.path,
            records=merged_slice.records,
            frames_bytes=merged_slice.frames_bytes,
            begin_bucket=0,
            end_bucket=0,
        )
        with reopen_file(sorted_run.path, sorted_run.index_offset) as file:
            begin_bucket, end_bucket = index.write(file)
        return share_sorted_run(
            job_folder, replace(sorted_run, begin_bucket=begin_bucket, end_bucket=end_bucket)
        )
