"""Raw data counted for statistics: read as a build reads it, without anything being written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recordmill.base.progress import Progress
from recordmill.base.threads import thread_map
from recordmill.building.ingest import assign_keys, count_values, read_unit
from recordmill.building.plan import BuildPlan
from recordmill.building.reconcile import planned_rejects
from recordmill.pipelines.build import make_plan
from recordmill.pipelines.build_options import make_options
from recordmill.pipelines.plan import kind_of
from recordmill.shards.rejects import Rejected, RejectWriter
from recordmill.shards.run import RunFolder
from recordmill.sources.registry import DATA_EXTENSIONS
from recordmill.statistics.dataset_sketch import DatasetSketch, SketchPool
from recordmill.storage.folders import make_scratch, remove_tree
from recordmill.storage.listing import list_inputs


def is_raw(inputs: Sequence[str]) -> bool:
    """Whether `build` reads these, by their content, and `open` does not."""
    return kind_of(list_inputs(inputs, data_extensions=DATA_EXTENSIONS))[0] != "tfrecord"


def count_raw(inputs: Sequence[str], progress: Progress, **options: Any) -> DatasetSketch:
    """What the records are like that a build of these inputs would have. options: those of `build`.

    Raises:
        UsageError, DataError: as `build` does. TooManyRejects: more records than `max_rejects` can't be used.
    """
    scratch = make_scratch("stats-")
    try:
        folder = RunFolder.create(scratch)
        try:
            plan = make_plan(list(inputs), folder, scratch, 0, make_options(scratch, **options))
            return _count_groups(plan, progress)
        finally:
            folder.close()
    finally:
        remove_tree(scratch, ignore_errors=True)


def _count_groups(plan: BuildPlan, progress: Progress) -> DatasetSketch:
    sketches = SketchPool(plan.schema, plan.splits, plan.memory_bytes)

    def count(group: int) -> tuple[int, Rejected]:
        rejects = RejectWriter(Path(plan.folder, "rejects", f"{group:06d}.jsonl"), most=plan.most_rejects)
        rows = 0
        for chunk in read_unit(plan, group):
            placed = assign_keys(plan, chunk)
            if placed.rows:
                count_values(plan, sketches, placed)
            rejected = rejects.write(chunk.rejects)
            rows += placed.rows + rejected
            progress.advance(placed.rows, rejected)
        return rows, rejects.close()

    planned = plan.source.plan_rejects if plan.source else ()
    read, rejected = len(planned), planned_rejects(plan, planned)
    for rows, lost in thread_map(count, range(len(plan.groups)), plan.threads):
        read, rejected = read + rows, rejected + lost
    rejected.check(plan.budget, read)
    rejected.check_some_left(read)
    return sketches.total()
