"""All accounts of what was read, held against the budget and each other, to what the other half of a build needs: where
the shards are cut, and the list of runs; and the level between runs and shards, where runs are many: a group of runs,
within a range of the keys, to one run.
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
from recordmill.building.workers.runs import Account, Runs, gather, hand_over_run, listed, no_runs, requests_of, slices
from recordmill.building.workers.shared_files import (
    REJECTS_FOLDER,
    NotSharedError,
    Shared,
    SharedFolder,
    SharedPlan,
    workbench,
)
from recordmill.shards.index import add_sums
from recordmill.shards.rejects import Rejected
from recordmill.statistics.dataset_sketch import DatasetSketch
from recordmill.storage.files import reopen_file

FAN_IN = 1_000  # runs that a shard is merged from: more are merged in groups before, each by ranges of the keys
MERGED_BYTES = 1 << 30  # 1 GiB: about what one such merge writes, so that what it reads of a run is about 1 MiB


@dataclass(frozen=True)
class ShardLayout:
    """The layout of shards, for those who write them. cuts: the shards; runs: what they are merged from; buckets: of a
    split.
    """

    cuts: Cuts
    runs: Runs
    buckets: int


@dataclass(frozen=True)
class Merge:
    """A merge of the runs [first_run, last_run) of the list, in buckets [first, last), all splits counted on."""

    first_run: int
    last_run: int
    first: int
    last: int


@dataclass(frozen=True)
class Survey:
    """The sum of what was read: records = read - rejected. shards: how many there will be, empty ones among them.
    merges: how many runs are merged before that. sketch: of all records; None: they were not counted.
    """

    read: int
    records: int
    sum: int
    rejected: Rejected
    counts: Mapping[str, int]
    shards: int
    merges: int
    layout: Shared[ShardLayout]
    sketch: Shared[DatasetSketch] | None = None


def survey(plan: SharedPlan, accounts: Iterable[Account], histogram: Histogram | None) -> Survey:
    """Add up.

    Raises:
        TooManyRejects: more than the budget, or all. AccountsError: read = in runs + rejected does not hold.
        UsageError: the shards that are asked for can't be. NotSharedError: a run is not there.
    """
    with workbench(plan) as bench:
        before = planned_rejects(bench, bench.source.plan_rejects if bench.source else ())
        before = replace(before, files=tuple(plan.job_folder.hand_over(path, REJECTS_FOLDER) for path in before.files))
    rejected, read, total = before, before.total, 0
    counts: Counter[str] = Counter()
    held = sorted(accounts, key=lambda account: account.group)
    runs: list[Runs] = [no_runs()]
    for one in held:
        rejected += one.rejected
        read += one.read
        total = add_sums(total, one.sum)
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
        cuts = with_splitters(cuts, histogram, listed(plan.job_folder, in_all), requests_of(plan.job_folder))
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


def _all_counted(job_folder: SharedFolder, accounts: Sequence[Account]) -> Shared[DatasetSketch] | None:
    """Adds up what all groups have counted; two of them at a time are in memory."""
    found = (one.sketch.read() for one in accounts if one.sketch is not None)
    total = next(found, None)
    for sketch in found:
        assert total is not None
        total.merge(sketch)
    return None if total is None else job_folder.share("sketch", total)


def plan_merges(layout: ShardLayout) -> Iterator[Merge]:
    """Yields the merges that go before those of shards: none, of up to FAN_IN runs."""
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
    """All buckets in ranges of about as many shards each: a merge of one group then writes about MERGED_BYTES."""
    size = int(layout.runs["bytes"].sum())
    wanted = max(1, min(len(layout.cuts), -(-size // (groups * MERGED_BYTES))))
    firsts = set(layout.cuts.table["first"][:: -(-len(layout.cuts) // wanted)].tolist())
    most = int(layout.cuts.table["split"][-1])
    splits = {split * layout.buckets for split in range(most + 2)}  # a merged run is of one split
    edges = sorted(firsts | splits)
    return list(itertools.pairwise(edges))


def with_merged(job_folder: SharedFolder, before: Survey, merged: Iterable[Runs]) -> Survey:
    """The survey with the merged runs in job_folder of those that they were merged from. AccountsError: they hold more
    or fewer records.
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


_ENTRIES_AT_ONCE = 1 << 18  # 6 MiB of them


def merge_runs(plan: SharedPlan, survey: Survey, merge: Merge, progress: Progress) -> Runs:
    """The run that all records of the merge become, as it is listed; none if there are none."""
    layout = survey.layout.load()
    job_folder = plan.job_folder
    found = slices(job_folder, layout.runs[merge.first_run : merge.last_run], merge.first, merge.last)
    if not found:
        return no_runs()
    with workbench(plan) as bench:
        scratch = Path(bench.folder, "runs")
        memory = bench.memory_bytes // (2 * bench.threads)
        near = gather(found, str(scratch / "gathered")) if job_folder.is_remote else found
        path = scratch / f"level-{uuid.uuid4().hex}"
        with at_most(fan_in(memory), near, scratch, memory, progress.advance) as few:
            one = merged_into(few, path, memory, progress.advance)
        index, split = RunIndex(bench.buckets), merge.first // layout.buckets
        assert (merge.last - 1) // layout.buckets == split, merge  # else keys would begin anew
        for at in range(0, one.records, _ENTRIES_AT_ONCE):
            index.add(split, one.entries(at, min(at + _ENTRIES_AT_ONCE, one.records)))
        run = RunFile(one.path, one.records, one.frames_bytes, 0, 0)
        with reopen_file(run.path, run.index_at) as file:
            first, last = index.write(file)
        return hand_over_run(job_folder, replace(run, first=first, last=last))
