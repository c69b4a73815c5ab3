"""Build by one process, from a plan to a committed data set.

Each step runs on threads, without a runner between the steps. The stages for engines are in
`transforms.build_stages`.
"""

from __future__ import annotations

from recordmill.base.progress import Progress
from recordmill.base.threads import thread_map
from recordmill.building.file_records import plan_without_sort, write_file_records
from recordmill.building.finish_build import commit_local_build, find_existing_commit
from recordmill.building.ingest import IngestResult, create_sketches, ingest
from recordmill.building.local_shards import plan_shard_slices, write_all_shards
from recordmill.building.plan import BuildPlan
from recordmill.building.sorted_run import Histogram
from recordmill.shards.manifest import Manifest
from recordmill.statistics.dataset_sketch import SketchPool


def build_locally(plan: BuildPlan, progress: Progress) -> Manifest:
    """Runs a complete build in this process, and returns its manifest.

    It ingests all unit groups, writes the shards and commits them. If an earlier attempt has
    already committed the run, the manifest of that is returned.

    Args:
        plan: The plan.
        progress: Receives the counts, and the error if the build fails.
    """
    sketches = create_sketches(plan)
    try:
        # Beam's runners may repeat any stage.
        if (committed := find_existing_commit(plan)) is not None:
            return committed
        if (file_batches := plan_without_sort(plan)) is not None:
            results, shards = write_file_records(plan, file_batches, progress, sketches)
        else:
            results, histogram = ingest_all(plan, progress, sketches)
            sorted_runs = [run for result in results for run in result.sorted_runs]
            slices_by_range = plan_shard_slices(plan, sorted_runs, histogram)
            progress.begin("write", int(histogram.records.sum()))
            shards = list(write_all_shards(plan, slices_by_range, progress))
        progress.begin_commit()
        return commit_local_build(
            plan, results, shards, None if sketches is None else sketches.total()
        )
    except BaseException as error:
        # The error itself, for the process that started the job. Runners forward only its text.
        progress.fail(error)
        raise


def ingest_all(
    plan: BuildPlan, progress: Progress, sketches: SketchPool | None
) -> tuple[list[IngestResult], Histogram]:
    """Ingests all unit groups on the threads of the plan.

    Returns:
        (results, histogram): The result of each unit group, and the histogram of all records.
    """
    total_histogram = Histogram.zeros(plan.key_buckets.num_splits, plan.key_buckets.num_buckets)
    results = []
    for result, histogram in thread_map(
        lambda group: ingest(
            plan, group, progress=progress, buffer_bytes=plan.local_buffer_bytes, sketches=sketches
        ),
        range(len(plan.unit_groups)),
        plan.threads,
    ):
        results.append(result)
        total_histogram += histogram
    return results, total_histogram
