"""The step between ingestion and shards.

It adds up the results of all groups, checks them against the budget and each other, and fixes the shard boundaries. If
there are many runs, groups of them are first merged within ranges of keys.
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
    empty_run_table,
    gather,
    listed,
    share_run,
    slices,
)
from recordmill.shards.index import add_checksums
from recordmill.shards.rejects import RejectSummary
from recordmill.statistics.dataset_sketch import DatasetSketch
from recordmill.storage.files import reopen_file

FAN_IN = 1_000  # runs from which a shard is merged. More runs are first merged in groups, by ranges of keys
MERGED_RUN_BYTES = (
    1 << 30
)  # 1 GiB: output of such a merge, which then reads about 1 MiB from each run


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
    """A task that merges slices of several sorted runs into one.

    Attributes:
        begin_run: First row of `ShardLayout.sorted_runs`.
        end_run: One more than the last row.
        begin_bucket: First bucket.
        end_bucket: One more than the last bucket.
    """

    begin_run: int
    end_run: int
    begin_bucket: int
    end_bucket: int


@dataclass(frozen=True)
class ShardPlan:
    """Totals of all groups, and the layout of the shards.

    Attributes:
        records_read: Number of records read: the records in the sorted runs and the rejects.
        records: Number of records in the sorted runs.
        checksum: Checksum of these records.
        rejected: The rejects.
        note_counts: Number of records for each message to the user.
        num_shards: Number of shards. Some may turn out empty.
        num_merges: Number of merges before the shards are written.
        layout: The layout.
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


def survey(
    plan: SharedPlanHandle, accounts: Iterable[SharedIngestResult], histogram: Histogram | None
) -> ShardPlan:
    """Adds up the results of all groups and fixes the shard boundaries.

    Args:
        accounts: The result of each group, in any order.
        histogram: The records of all groups. None without groups.

    Raises:
        TooManyRejects: There are more rejects than the budget allows, or all records are rejected.
        RecordCountError: The records read, rejected and counted do not add up.
        UsageError: The records don't allow the number or size of the shards.
        NotSharedError: This worker can't see a sorted run.
    """
    with task_workspace(plan) as local_plan:
        before = write_plan_rejects(
            local_plan, local_plan.source.plan_rejects if local_plan.source else ()
        )
        before = replace(
            before,
            files=tuple(plan.job_folder.move_in(path, REJECTS_FOLDER) for path in before.files),
        )
    rejected, read, total = before, before.total, 0
    counts: Counter[str] = Counter()
    held = sorted(accounts, key=lambda account: account.group)
    runs: list[SortedRunTable] = [empty_run_table()]
    for one in held:
        rejected += one.rejected
        read += one.records_read
        total = add_checksums(total, one.checksum)
        counts.update(one.note_counts)
        runs.append(one.sorted_runs)
    rejected.check_budget(local_plan.budget, read)
    rejected.check_any_left(read)
    in_all = np.concatenate(runs)
    records = int(in_all["records"].sum())
    in_buckets = 0 if histogram is None else int(histogram.records.sum())
    if not read - rejected.total == records == in_buckets:
        raise RecordCountError(
            f"{read} records were read, {rejected.total} rejected, {records} put in order and {in_buckets} counted: "
            "they don't add up; nothing was committed"
        )
    assert histogram is not None
    cuts = compute_boundaries(histogram, local_plan.shard_options, local_plan.split_names)
    try:
        cuts = add_key_bounds(
            cuts, histogram, listed(plan.job_folder, in_all), choose_concurrency(plan.job_folder)
        )
    except FileNotFoundError as error:
        raise NotSharedError(str(error.filename), plan.job_folder.out) from None
    layout = ShardLayout(cuts, in_all, int(histogram.records.shape[1]))
    merges = sum(1 for _ in plan_merges(layout))
    return ShardPlan(
        read,
        records,
        total,
        rejected,
        dict(counts),
        len(cuts),
        merges,
        plan.job_folder.share_value("layout", layout),
        _merge_sketches(plan.job_folder, held),
    )


def _merge_sketches(
    job_folder: JobFolder, accounts: Sequence[SharedIngestResult]
) -> SharedValue[DatasetSketch] | None:
    """Returns the sum of the groups' statistics, or None. Only two of them are in memory."""
    found = (one.sketch.load_copy() for one in accounts if one.sketch is not None)
    total = next(found, None)
    for sketch in found:
        assert total is not None
        total.merge(sketch)
    return None if total is None else job_folder.share_value("sketch", total)


def plan_merges(layout: ShardLayout) -> Iterator[MergeTask]:
    """Yields the merges before the shards. Up to FAN_IN sorted runs need no merge.

    The runs are divided into groups of at most FAN_IN, and the buckets into ranges. Each group is merged in each range.
    """
    runs = len(layout.sorted_runs)
    if runs <= FAN_IN:
        return
    groups = -(-runs // FAN_IN)
    edges = [group * runs // groups for group in range(groups + 1)]
    ranges = _merge_ranges(layout, groups)
    for first_run, last_run in itertools.pairwise(edges):
        for first, last in ranges:
            yield MergeTask(first_run, last_run, first, last)


def _merge_ranges(layout: ShardLayout, groups: int) -> list[tuple[int, int]]:
    """Returns ranges of buckets within one split. A merge of a group writes about MERGED_RUN_BYTES."""
    size = int(layout.sorted_runs["bytes"].sum())
    wanted = max(1, min(len(layout.boundaries), -(-size // (groups * MERGED_RUN_BYTES))))
    firsts = set(
        layout.boundaries.table["begin_bucket"][:: -(-len(layout.boundaries) // wanted)].tolist()
    )
    most = int(layout.boundaries.table["split_id"][-1])
    splits = {
        split * layout.num_buckets for split in range(most + 2)
    }  # a merged run belongs to one split
    edges = sorted(firsts | splits)
    return list(itertools.pairwise(edges))


def use_merged_runs(
    job_folder: JobFolder, before: ShardPlan, merged: Iterable[SortedRunTable]
) -> ShardPlan:
    """Returns the survey with merged sorted runs in place of the original ones.

    Raises:
        RecordCountError: The number of records has changed.
    """
    if not before.num_merges:
        return before
    layout = before.layout.load()
    runs = np.concatenate([empty_run_table(), *merged])
    if int(runs["records"].sum()) != before.records:
        raise RecordCountError(
            f"{before.records} records were merged to {int(runs['records'].sum())}; nothing was committed"
        )
    runs = runs[np.argsort(runs, order=("begin_bucket", "name"))]
    return replace(
        before, layout=job_folder.share_value("layout", replace(layout, sorted_runs=runs))
    )


_ENTRIES_PER_READ = 1 << 18  # 6 MiB


def merge_runs(
    plan: SharedPlanHandle, survey: ShardPlan, merge: MergeTask, progress: Progress
) -> SortedRunTable:
    """Merges slices of several sorted runs into one, in the shared folder.

    Returns:
        SORTED_RUN_DTYPE [1], or [0] without records.
    """
    layout = survey.layout.load()
    job_folder = plan.job_folder
    found = slices(
        job_folder,
        layout.sorted_runs[merge.begin_run : merge.end_run],
        merge.begin_bucket,
        merge.end_bucket,
    )
    if not found:
        return empty_run_table()
    with task_workspace(plan) as local_plan:
        scratch = Path(local_plan.folder, "runs")
        memory = local_plan.memory_bytes // (2 * local_plan.threads)
        near = gather(found, str(scratch / "gathered")) if job_folder.is_remote else found
        path = scratch / f"level-{uuid.uuid4().hex}"
        with limit_fan_in(max_fan_in(memory), near, scratch, memory, progress.advance) as few:
            one = merge_to_file(few, path, memory, progress.advance)
        # `merge_to_file` writes no index, so it is computed from the entries and appended
        index, split = (
            SortedRunIndex(local_plan.key_buckets),
            merge.begin_bucket // layout.num_buckets,
        )
        assert (merge.end_bucket - 1) // layout.num_buckets == split, (
            merge
        )  # a run is sorted by split first
        for at in range(0, one.records, _ENTRIES_PER_READ):
            index.add(split, one.entries(at, min(at + _ENTRIES_PER_READ, one.records)))
        run = SortedRun(one.path, one.records, one.frames_bytes, 0, 0)
        with reopen_file(run.path, run.index_offset) as file:
            first, last = index.write(file)
        return share_run(job_folder, replace(run, begin_bucket=first, end_bucket=last))
