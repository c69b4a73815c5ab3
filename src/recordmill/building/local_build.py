"""A build on the threads of this process, from plan to commit.

A compaction sorts and writes its records with the same functions. The stages for engines are in
`transforms.build_stages`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from recordmill.base.progress import Progress
from recordmill.base.threads import thread_map
from recordmill.building.file_records import plan_without_sort, write_file_records
from recordmill.building.finish_build import commit_local_build, find_existing_commit
from recordmill.building.ingest import IngestResult, create_sketches, ingest
from recordmill.building.plan import BuildPlan
from recordmill.building.run_slices import RunSlice, iter_shard_slices
from recordmill.building.shard_boundaries import ShardRange, add_key_bounds, compute_boundaries
from recordmill.building.shard_writer import FinishedShard, StagedShard, write_shards
from recordmill.building.sorted_run import Histogram, SortedRun
from recordmill.shards.file_names import ShardName
from recordmill.shards.manifest import Manifest

_Item = TypeVar("_Item")

# 4 threads that only wait for the disk, so that the merging threads need not.
_SYNC_THREADS = 4
# Each thread gets at least 8 ranges of shards, so that all threads end at about the same time.
_MIN_TURNS_PER_THREAD = 8
# The slice bounds of several shards may take 1/64 of the memory.
_SLICE_BOUNDS_DIVISOR = 64


def build_locally(plan: BuildPlan, progress: Progress) -> Manifest:
    """Runs a complete build, and returns its manifest.

    Ingests all unit groups, writes the shards and commits them. If an earlier attempt has already
    committed the run, its manifest is returned.

    Args:
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
            results, shards = sort_and_write(
                plan,
                range(len(plan.unit_groups)),
                lambda group: ingest(
                    plan,
                    group,
                    progress=progress,
                    buffer_bytes=plan.local_buffer_bytes,
                    sketches=sketches,
                ),
                progress,
            )
        progress.begin_commit()
        return commit_local_build(
            plan, results, shards, None if sketches is None else sketches.total()
        )
    except BaseException as error:
        # Passes the error itself to the process that started the job. Runners pass only its text.
        progress.fail(error)
        raise


def sort_and_write(
    plan: BuildPlan,
    items: Iterable[_Item],
    sort: Callable[[_Item], tuple[IngestResult, Histogram]],
    progress: Progress,
) -> tuple[list[IngestResult], list[FinishedShard]]:
    """Sorts all records, and merges them into shards.

    Args:
        items: The inputs, such as unit groups.
        sort: Writes the records of an input to sorted runs. It returns the result, and the
            histogram of the records. Several threads call it.
        progress: Receives the counts.

    Returns:
        (the result of each input, all shards).
    """
    histogram = Histogram.zeros(plan.key_buckets.num_splits, plan.key_buckets.num_buckets)
    results = []
    for result, result_histogram in thread_map(sort, items, plan.threads):
        results.append(result)
        histogram += result_histogram
    sorted_runs = [run for result in results for run in result.sorted_runs]
    slices_by_range = plan_shard_slices(plan, sorted_runs, histogram)
    progress.begin("write", int(histogram.records.sum()))
    return results, list(write_all_shards(plan, slices_by_range, progress))


def plan_shard_slices(
    plan: BuildPlan, sorted_runs: Sequence[SortedRun], histogram: Histogram
) -> Iterator[tuple[ShardRange, list[RunSlice]]]:
    """Yields ranges of shards, each with the run slices that contain their records.

    Small shards are combined in one range, so that a sorted run is not read for a few records at a
    time. Yields nothing if there are no records.

    Args:
        sorted_runs: All sorted runs.
        histogram: The histogram of all records.
    """
    boundaries = add_key_bounds(
        compute_boundaries(histogram, plan.shard_options, plan.split_names), histogram, sorted_runs
    )
    shard_bytes = int(histogram.bytes.sum()) // max(len(boundaries), 1)
    max_shards = min(
        plan.local_buffer_bytes // (2 * max(shard_bytes, 1)),
        len(boundaries) // (_MIN_TURNS_PER_THREAD * plan.threads),
    )
    return iter_shard_slices(
        sorted_runs,
        boundaries,
        max_shards=max(max_shards, 1),
        memory_bytes=plan.memory_bytes // _SLICE_BOUNDS_DIVISOR,
    )


def write_all_shards(
    plan: BuildPlan,
    slices_by_range: Iterable[tuple[ShardRange, list[RunSlice]]],
    progress: Progress,
) -> Iterator[FinishedShard]:
    """Writes the shards by merging their run slices. Yields each shard when it is durable.

    The threads of the plan merge, and other threads wait for the disk. If the data set goes to a
    store, the local shards are not synced.

    Args:
        slices_by_range: Ranges of shards with their run slices.
        progress: Receives the counts.
    """
    folder = Path(plan.folder)

    def write(shard_slices: tuple[ShardRange, list[RunSlice]]) -> list[StagedShard]:
        shard_range, run_slices = shard_slices
        indices = range(shard_range.index, shard_range.index + len(shard_range))
        names = [
            ShardName(
                plan.split_names[shard_range.split_id],
                index=index,
                num_shards=shard_range.num_shards,
                compression=plan.compression,
            )
            for index in indices
        ]
        return write_shards(
            folder=folder / "data",
            scratch=folder / "runs",
            names=names,
            shard_range=shard_range,
            slices=run_slices,
            memory_bytes=plan.local_buffer_bytes,
            progress=progress,
        )

    written = itertools.chain.from_iterable(thread_map(write, slices_by_range, plan.threads))
    yield from thread_map(
        lambda shard: shard.finalize(durable=not plan.store_url), written, _SYNC_THREADS
    )
