"""The level between runs and shards, where runs are many: a group of runs, within a range of the keys, to one run."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import numpy.typing as npt

from recordmill.base.progress import Progress
from recordmill.base.siphash import U64
from recordmill.building.levels import at_most, merged_into
from recordmill.building.merge import fan_in
from recordmill.building.plan import BuildPlan
from recordmill.building.slices import RunSlice
from recordmill.building.spread.place import SharedPlan, workbench
from recordmill.building.spread.runs import Runs, gather, hand_over_file, no_runs, slices
from recordmill.building.spread.survey import Merge, Survey

_ENTRIES_AT_ONCE = 1 << 18  # 6 MiB of them


def merge_runs(plan: SharedPlan, survey: Survey, merge: Merge, progress: Progress) -> Runs:
    """The run that all records of the merge become, as it is listed; none if there are none."""
    layout = survey.layout.load()
    place = plan.place
    found = slices(place, layout.runs[merge.first_run : merge.last_run], merge.first, merge.last)
    if not found:
        return no_runs()
    with workbench(plan) as bench:
        scratch = Path(bench.folder, "runs")
        memory = bench.memory_bytes // (2 * bench.threads)
        near = gather(found, str(scratch / "gathered")) if place.is_remote else found
        path = scratch / f"level-{uuid.uuid4().hex}"
        with at_most(fan_in(memory), near, scratch, memory, progress.advance) as few:
            one = merged_into(few, path, memory, progress.advance)
        counts, sizes = _footer(bench, one, layout.buckets, merge)
        return hand_over_file(place, str(path), one.records, one.frames_bytes, merge.first, counts, sizes)


def _footer(
    plan: BuildPlan, run: RunSlice, buckets: int, merge: Merge
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(records, bytes) of the merged run in each bucket from merge.first on.

    Ranges of buckets may hold the ends of several splits, whose keys begin anew: a merged run has one split.
    """
    split, first = divmod(merge.first, buckets)
    edges: U64 = plan.buckets.edges()
    counts, sizes = np.zeros(merge.last - merge.first, np.int64), np.zeros(merge.last - merge.first, np.int64)
    assert (merge.last - 1) // buckets == split, merge
    for at in range(0, run.records, _ENTRIES_AT_ONCE):
        entries = run.entries(at, min(at + _ENTRIES_AT_ONCE, run.records))
        keys = np.ascontiguousarray(entries["key"])
        which = np.searchsorted(edges, keys, side="right") - first
        counts += np.bincount(which, minlength=len(counts))
        sizes += np.bincount(which, weights=entries["size"].astype(np.float64), minlength=len(sizes)).astype(np.int64)
    assert int(sizes.sum()) == run.frames_bytes
    return counts, sizes
