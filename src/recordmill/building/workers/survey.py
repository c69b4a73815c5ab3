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
from recordmill.building.cuts import Cuts, cut_shards, with_splitters
from recordmill.building.merge import at_most, fan_in, merged_into
from recordmill.building.reconcile import AccountsError, planned_rejects
from recordmill.building.run_file import Histogram, RunFile, RunIndex
from recordmill.building.workers.runs import (
    Account,
    Runs,
    gather,
    hand_over_run,
    listed,
    no_runs,
    requests_of,
    slices,
)
from recordmill.building.workers.shared_files import (
    REJECTS_FOLDER,
    NotSharedError,
    Shared,
    SharedFolder,
    SharedPlan,
    workbench,
)
from recordmill.shards.index import add_checksums
from recordmill.shards.rejects import RejectSummary
from recordmill.statistics.dataset_sketch import DatasetSketch
from recordmill.storage.files import reopen_file

FAN_IN = 1_000  # runs from which a shard is merged. More runs are first merged in groups, by ranges of keys
MERGED_BYTES = 1 << 30  # 1 GiB: output of such a merge, which then reads about 1 MiB from each run


@dataclass(frozen=True)
class ShardLayout:
    """The boundaries of all shards, and the sorted runs that contain their records.

    Attributes:
        cuts: The boundaries.
        runs: RUN_DTYPE, all sorted runs.
        buckets: Number of buckets of a split.
    """

    cuts: Cuts
    runs: Runs
    buckets: int


@dataclass(frozen=True)
class Merge:
    """A task that merges slices of several sorted runs into one.

    Attributes:
        first_run: First row of `ShardLayout.runs`.
        last_run: One more than the last row.
        first: First bucket.
        last: One more than the last bucket.
    """

    first_run: int
    last_run: int
    first: int
    last: int


@dataclass(frozen=True)
class Survey:
    """Totals of all groups, and the layout of the shards.

    Attributes:
        read: Number of records read: the records in the sorted runs and the rejects.
        records: Number of records in the sorted runs.
        sum: Checksum of these records.
        rejected: The rejects.
        counts: Number of records for each message to the user.
        shards: Number of shards. Some may turn out empty.
        merges: Number of merges before the shards are written.
        layout: The layout.
        sketch: The statistics of all records. None if the plan has none.
    """

    read: int
    records: int
    sum: int
    rejected: RejectSummary
    counts: Mapping[str, int]
    shards: int
    merges: int
    layout: Shared[ShardLayout]
    sketch: Shared[DatasetSketch] | None = None


def survey(plan: SharedPlan, accounts: Iterable[Account], histogram: Histogram | None) -> Survey:
    """Adds up the results of all groups and fixes the shard boundaries.

    Args:
        accounts: The result of each group, in any order.
        histogram: The records of all groups. None without groups.

    Raises:
        TooManyRejects: There are more rejects than the budget allows, or all records are rejected.
        AccountsError: The records read, rejected and counted do not add up.
        UsageError: The records don't allow the number or size of the shards.
        NotSharedError: This worker can't see a sorted run.
    """
    with workbench(plan) as bench:
        before = planned_rejects(bench, bench.source.plan_rejects if bench.source else ())
        before = replace(
            before,
            files=tuple(plan.job_folder.hand_over(path, REJECTS_FOLDER) for path in before.files),
        )
    rejected, read, total = before, before.total, 0
    counts: Counter[str] = Counter()
    held = sorted(accounts, key=lambda account: account.group)
    runs: list[Runs] = [no_runs()]
    for one in held:
        rejected += one.rejected
        read += one.read
        total = add_checksums(total, one.sum)
        counts.update(one.counts)
        runs.append(one.runs)
    rejected.check(bench.budget, read)
    rejected.check_some_left(read)
    in_all = np.concatenate(runs)
    records = int(in_all["records"].sum())
    in_buckets = 0 if histogram is None else int(histogram.records.sum())
    if not read - rejected.total == records == in_buckets:
        raise AccountsError(
            f"{read} records were read, {rejected.total} rejected, {records} put in order and {in_buckets} counted: "
            "they don't add up; nothing was committed"
        )
    assert histogram is not None
    cuts = cut_shards(histogram, bench.shards, bench.splits)
    try:
        cuts = with_splitters(
            cuts, histogram, listed(plan.job_folder, in_all), requests_of(plan.job_folder)
        )
    except FileNotFoundError as error:
        raise NotSharedError(str(error.filename), plan.job_folder.out) from None
    layout = ShardLayout(cuts, in_all, int(histogram.records.shape[1]))
    merges = sum(1 for _ in plan_merges(layout))
    return Survey(
        read,
        records,
        total,
        rejected,
        dict(counts),
        len(cuts),
        merges,
        plan.job_folder.share("layout", layout),
        _all_counted(plan.job_folder, held),
    )


def _all_counted(
    job_folder: SharedFolder, accounts: Sequence[Account]
) -> Shared[DatasetSketch] | None:
    """Returns the sum of the groups' statistics, or None. Only two of them are in memory."""
    found = (one.sketch.read() for one in accounts if one.sketch is not None)
    total = next(found, None)
    for sketch in found:
        assert total is not None
        total.merge(sketch)
    return None if total is None else job_folder.share("sketch", total)


def plan_merges(layout: ShardLayout) -> Iterator[Merge]:
    """Yields the merges before the shards. Up to FAN_IN sorted runs need no merge.

    The runs are divided into groups of at most FAN_IN, and the buckets into ranges. Each group is merged in each range.
    """
    runs = len(layout.runs)
    if runs <= FAN_IN:
        return
    groups = -(-runs // FAN_IN)
    edges = [group * runs // groups for group in range(groups + 1)]
    ranges = _ranges(layout, groups)
    for first_run, last_run in itertools.pairwise(edges):
        for first, last in ranges:
            yield Merge(first_run, last_run, first, last)


def _ranges(layout: ShardLayout, groups: int) -> list[tuple[int, int]]:
    """Returns ranges of buckets within one split. A merge of a group writes about MERGED_BYTES."""
    size = int(layout.runs["bytes"].sum())
    wanted = max(1, min(len(layout.cuts), -(-size // (groups * MERGED_BYTES))))
    firsts = set(layout.cuts.table["first"][:: -(-len(layout.cuts) // wanted)].tolist())
    most = int(layout.cuts.table["split"][-1])
    splits = {
        split * layout.buckets for split in range(most + 2)
    }  # a merged run belongs to one split
    edges = sorted(firsts | splits)
    return list(itertools.pairwise(edges))


def with_merged(job_folder: SharedFolder, before: Survey, merged: Iterable[Runs]) -> Survey:
    """Returns the survey with merged sorted runs in place of the original ones.

    Raises:
        AccountsError: The number of records has changed.
    """
    if not before.merges:
        return before
    layout = before.layout.load()
    runs = np.concatenate([no_runs(), *merged])
    if int(runs["records"].sum()) != before.records:
        raise AccountsError(
            f"{before.records} records were merged to {int(runs['records'].sum())}; nothing was committed"
        )
    runs = runs[np.argsort(runs, order=("first", "name"))]
    return replace(before, layout=job_folder.share("layout", replace(layout, runs=runs)))


_ENTRIES_AT_ONCE = 1 << 18  # 6 MiB


def merge_runs(plan: SharedPlan, survey: Survey, merge: Merge, progress: Progress) -> Runs:
    """Merges slices of several sorted runs into one, in the shared folder.

    Returns:
        RUN_DTYPE [1], or [0] without records.
    """
    layout = survey.layout.load()
    job_folder = plan.job_folder
    found = slices(
        job_folder, layout.runs[merge.first_run : merge.last_run], merge.first, merge.last
    )
    if not found:
        return no_runs()
    with workbench(plan) as bench:
        scratch = Path(bench.folder, "runs")
        memory = bench.memory_bytes // (2 * bench.threads)
        near = gather(found, str(scratch / "gathered")) if job_folder.is_remote else found
        path = scratch / f"level-{uuid.uuid4().hex}"
        with at_most(fan_in(memory), near, scratch, memory, progress.advance) as few:
            one = merged_into(few, path, memory, progress.advance)
        # `merged_into` writes no index, so it is computed from the entries and appended
        index, split = RunIndex(bench.buckets), merge.first // layout.buckets
        assert (merge.last - 1) // layout.buckets == split, merge  # a run is sorted by split first
        for at in range(0, one.records, _ENTRIES_AT_ONCE):
            index.add(split, one.entries(at, min(at + _ENTRIES_AT_ONCE, one.records)))
        run = RunFile(one.path, one.records, one.frames_bytes, 0, 0)
        with reopen_file(run.path, run.index_at) as file:
            first, last = index.write(file)
        return hand_over_run(job_folder, replace(run, first=first, last=last))
