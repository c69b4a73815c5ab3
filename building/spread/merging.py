"""The level between runs and shards, where runs are many: a group of runs, within a range of the keys, to one run."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

from recordmill.base.progress import Progress
from recordmill.building.levels import at_most, merged_into
from recordmill.building.merge import fan_in
from recordmill.building.run_file import Run, RunIndex
from recordmill.building.spread.place import SharedPlan, workbench
from recordmill.building.spread.runs import Runs, gather, hand_over_run, no_runs, slices
from recordmill.building.spread.survey import Merge, Survey
from recordmill.storage.files import reopen_file

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
        index, split = RunIndex(bench.buckets), merge.first // layout.buckets
        assert (merge.last - 1) // layout.buckets == split, merge  # else keys would begin anew
        for at in range(0, one.records, _ENTRIES_AT_ONCE):
            index.add(split, one.entries(at, min(at + _ENTRIES_AT_ONCE, one.records)))
        run = Run(one.path, one.records, one.frames_bytes, 0, 0)
        with reopen_file(run.path, run.index_at) as file:
            first, last = index.write(file)
        return hand_over_run(place, replace(run, first=first, last=last))
