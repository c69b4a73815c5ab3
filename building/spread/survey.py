"""All accounts of what was read, held against the budget and each other, to what the other half of a build needs: where
the shards are cut, and the list of runs. A build in which too much was rejected ends here, before a shard is written.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.building.conclude import AccountsError, planned_rejects
from recordmill.building.cuts import Cuts, cut_shards
from recordmill.building.run_file import Histogram
from recordmill.building.splitters import with_splitters
from recordmill.building.spread.digests import DigestList
from recordmill.building.spread.ingesting import Account
from recordmill.building.spread.place import REJECTS, NotSharedError, Place, Shared, SharedPlan, workbench
from recordmill.building.spread.runs import Runs, listed, no_runs, requests_of
from recordmill.shards.rejects import Rejected
from recordmill.shards.sums import add_sums

FAN_IN = 1_000  # runs that a shard is merged from: more are merged in groups before, each by ranges of the keys
MERGED_BYTES = 1 << 30  # 1 GiB: about what one such merge writes, so that what it reads of a run is about 1 MiB


@dataclass(frozen=True)
class Layout:
    """What whoever writes shards must know. cuts: the shards; runs: what they are merged from; buckets: of a split."""

    cuts: Cuts
    runs: Runs
    buckets: int

    def to_arrays(self) -> Mapping[str, npt.NDArray[Any]]:
        """What it is, for `Shared`."""
        return {
            "cuts": self.cuts.table,
            "by": np.array(self.cuts.by),
            "runs": self.runs,
            "buckets": np.array(self.buckets),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], place: Place) -> Layout:
        """What `to_arrays` gave."""
        return cls(Cuts(arrays["cuts"], str(arrays["by"])), arrays["runs"], int(arrays["buckets"]))


@dataclass(frozen=True)
class Merge:
    """Of the runs [first_run, last_run) of the list, what lies in buckets [first, last), all splits counted on."""

    first_run: int
    last_run: int
    first: int
    last: int


@dataclass(frozen=True)
class Survey:
    """What was read, in sum: records = read - rejected. shards: how many there will be, empty ones among them.
    merges: how many runs are merged before that.
    """

    read: int
    records: int
    sum: int
    rejected: Rejected
    counts: Mapping[str, int]
    shards: int
    merges: int
    layout: Shared[Layout]
    digests: Shared[DigestList]


def survey(plan: SharedPlan, accounts: Iterable[Account], histogram: Histogram | None) -> Survey:
    """Add up.

    Raises:
        TooManyRejects: more than the budget, or all. AccountsError: read = in runs + rejected does not hold.
        UsageError: the shards that are asked for can't be. NotSharedError: a run is not there.
    """
    with workbench(plan) as bench:
        before = planned_rejects(bench, bench.source.plan_rejects if bench.source else ())
        before = replace(before, files=tuple(plan.place.hand_over(path, REJECTS) for path in before.files))
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
        cuts = with_splitters(cuts, histogram, listed(plan.place, in_all), requests_of(plan.place))
    except FileNotFoundError as error:
        raise NotSharedError(str(error.filename), plan.place.out) from None
    layout = Layout(cuts, in_all, int(histogram.records.shape[1]))
    merges = sum(1 for _ in plan_merges(layout))
    return Survey(
        read,
        records,
        total,
        rejected,
        dict(counts),
        len(cuts),
        merges,
        plan.place.share("layout", layout),
        plan.place.share("digests", DigestList(one.digests for one in held if one.digests is not None)),
    )


def plan_merges(layout: Layout) -> Iterator[Merge]:
    """What is merged before the shards are: nothing, of up to FAN_IN runs."""
    runs = len(layout.runs)
    if runs <= FAN_IN:
        return
    groups = -(-runs // FAN_IN)
    edges = [group * runs // groups for group in range(groups + 1)]
    ranges = _ranges(layout, groups)
    for first_run, last_run in itertools.pairwise(edges):
        for first, last in ranges:
            yield Merge(first_run, last_run, first, last)


def _ranges(layout: Layout, groups: int) -> list[tuple[int, int]]:
    """All buckets in ranges of about as many shards each: a merge of one group then writes about MERGED_BYTES."""
    size = int(layout.runs["bytes"].sum())
    wanted = max(1, min(len(layout.cuts), -(-size // (groups * MERGED_BYTES))))
    firsts = set(layout.cuts.table["first"][:: -(-len(layout.cuts) // wanted)].tolist())
    most = int(layout.cuts.table["split"][-1])
    splits = {split * layout.buckets for split in range(most + 2)}  # a merged run is of one split
    edges = sorted(firsts | splits)
    return list(itertools.pairwise(edges))


def with_merged(place: Place, before: Survey, merged: Iterable[Runs]) -> Survey:
    """The survey with the merged runs in place of those that they were merged from.

    Raises:
        AccountsError: they hold more or fewer records.
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
    return replace(before, layout=place.share("layout", replace(layout, runs=runs)))
