"""Sorted runs in the job folder.

Workers ingest unit groups into sorted runs, and find the slices for each shard. A sorted run is
described by a row of SORTED_RUN_DTYPE. Its file contains the indexes that locate slices. So the
results of all unit groups are small, and one process can collect them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import to_offsets
from recordmill.base.progress import Progress
from recordmill.base.threads import thread_map
from recordmill.building.ingest import IngestResult, create_sketches, ingest
from recordmill.building.run_slices import (
    SLICE_BOUNDS_DTYPE,
    RunSlice,
    SliceBounds,
    find_slice_bounds,
    make_slices,
    measure_skipped,
)
from recordmill.building.shard_boundaries import BOUNDARY_DTYPE, ShardBoundaries, ShardRange
from recordmill.building.sorted_run import ENTRY_DTYPE, Histogram, SortedRun
from recordmill.building.workers.shared_files import (
    REJECTS_FOLDER,
    SORTED_RUNS_FOLDER,
    JobFolder,
    NotSharedError,
    SharedPlanHandle,
    SharedValue,
    task_workspace,
)
from recordmill.shards.index import add_checksums
from recordmill.shards.rejects import RejectSummary
from recordmill.statistics.dataset_sketch import DatasetSketch, SketchPool
from recordmill.storage.files import create_file, read_ranges, write_all

# A sorted run in the job folder.
# name: the name of its file in the folder of sorted runs.
# bytes: the total size of its frames.
# begin_bucket, end_bucket: see `SortedRun`.
SORTED_RUN_DTYPE = np.dtype(
    [
        ("name", "S64"),
        ("records", "<i8"),
        ("bytes", "<i8"),
        ("begin_bucket", "<i8"),
        ("end_bucket", "<i8"),
    ]
)
SortedRunTable = npt.NDArray[np.void]
# Concurrent requests of a worker to a store. Their threads only wait.
STORE_CONCURRENCY = 32


def empty_run_table() -> SortedRunTable:
    """Returns an empty SORTED_RUN_DTYPE table."""
    return np.empty(0, SORTED_RUN_DTYPE)


def share_sorted_run(job_folder: JobFolder, sorted_run: SortedRun) -> SortedRunTable:
    """Moves a sorted run to the job folder and returns its row, SORTED_RUN_DTYPE [1]."""
    name = os.path.basename(job_folder.move_in(sorted_run.path, SORTED_RUNS_FOLDER))
    return np.array(
        [
            (
                name.encode(),
                sorted_run.records,
                sorted_run.frames_bytes,
                sorted_run.begin_bucket,
                sorted_run.end_bucket,
            )
        ],
        SORTED_RUN_DTYPE,
    )


def to_sorted_runs(job_folder: JobFolder, sorted_runs: SortedRunTable) -> list[SortedRun]:
    """Returns the `SortedRun` of each row."""
    return [
        SortedRun(job_folder.run_path(SORTED_RUNS_FOLDER, name.decode()), *numbers)
        for name, *numbers in sorted_runs.tolist()
    ]


def choose_concurrency(job_folder: JobFolder) -> int:
    """Returns the number of concurrent reads: STORE_CONCURRENCY for a store, 1 for a disk."""
    return STORE_CONCURRENCY if job_folder.is_remote else 1


def find_shard_slices(
    job_folder: JobFolder,
    sorted_runs: SortedRunTable,
    boundaries: ShardBoundaries,
    shard_number: int,
) -> tuple[ShardRange, list[RunSlice]]:
    """Returns a shard, and the slices that contain its records.

    Args:
        job_folder: The folders of the run.
        sorted_runs: All sorted runs.
        boundaries: The boundaries of all shards.
        shard_number: The row of the shard in `boundaries`.

    Returns:
        (shard_range, slices). The range has one shard, and its edges count from the start of the
        slices.

    Raises:
        NotSharedError: This worker can't see a sorted run.
    """
    runs_in_range, slice_bounds = _find_slice_bounds(
        job_folder, sorted_runs, boundaries.table[shard_number : shard_number + 1]
    )
    return boundaries.shard_range(shard_number, shard_number + 1).shift_left(
        measure_skipped(slice_bounds, boundaries.measure)
    ), make_slices(runs_in_range, slice_bounds)


def find_bucket_slices(
    job_folder: JobFolder, sorted_runs: SortedRunTable, begin_bucket: int, end_bucket: int
) -> list[RunSlice]:
    """Returns the run slices that contain the records of some buckets.

    A sorted run without such records has no slice in the result.

    Args:
        job_folder: The folders that workers share.
        sorted_runs: SORTED_RUN_DTYPE, the sorted runs to search.
        begin_bucket: The first bucket.
        end_bucket: The bucket after the last one. It must belong to the same split.

    Raises:
        NotSharedError: This worker can't see a sorted run.
    """
    boundary = np.zeros(1, BOUNDARY_DTYPE)
    boundary["begin_bucket"], boundary["end_bucket"] = begin_bucket, end_bucket
    return make_slices(*_find_slice_bounds(job_folder, sorted_runs, boundary))


def _find_slice_bounds(
    job_folder: JobFolder, sorted_runs: SortedRunTable, boundary: npt.NDArray[np.void]
) -> tuple[list[SortedRun], SliceBounds]:
    """Returns the sorted runs that overlap a shard's buckets, and the slice of each.

    Args:
        job_folder: The folders of the run.
        sorted_runs: All sorted runs.
        boundary: BOUNDARY_DTYPE [1].

    Returns:
        (sorted_runs, bounds), with one row of SLICE_BOUNDS_DTYPE for each sorted run.

    Raises:
        NotSharedError: This worker can't see a sorted run.
    """

    def find_bounds(run: SortedRun) -> SliceBounds:
        try:
            return find_slice_bounds(run, boundary)
        except FileNotFoundError:
            raise NotSharedError(run.path, job_folder.out) from None

    runs_in_range = to_sorted_runs(
        job_folder,
        sorted_runs[
            (sorted_runs["begin_bucket"] < boundary["end_bucket"])
            & (sorted_runs["end_bucket"] > boundary["begin_bucket"])
        ],
    )
    slice_bounds = thread_map(find_bounds, runs_in_range, choose_concurrency(job_folder))
    return runs_in_range, np.concatenate([np.empty(0, SLICE_BOUNDS_DTYPE), *slice_bounds])


def download_slices(run_slices: Sequence[RunSlice], path: str) -> list[RunSlice]:
    """Copies slices from a store into one local file.

    A merge reads its slices in many short ranges. From a store, each of them would be a request.
    Here each slice needs only two requests, and many requests run at once.

    Args:
        path: The local file to create.

    Returns:
        The slices in the local file, in the same order.
    """
    sizes = np.array(
        [
            run_slice.frames_bytes + run_slice.records * ENTRY_DTYPE.itemsize
            for run_slice in run_slices
        ],
        np.int64,
    )
    offsets = to_offsets(sizes).tolist()

    def fetch(run_slice: RunSlice) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        frames = np.empty(run_slice.frames_bytes, np.uint8)
        entries = np.empty(run_slice.records * ENTRY_DTYPE.itemsize, np.uint8)
        read_ranges(
            run_slice.path, [(run_slice.frames_offset, frames), (run_slice.entries_offset, entries)]
        )
        return frames, entries

    with create_file(path) as file:
        for buffers in thread_map(
            fetch,
            run_slices,
            STORE_CONCURRENCY,
            item_bytes=lambda run_slice: (
                run_slice.frames_bytes + run_slice.records * ENTRY_DTYPE.itemsize
            ),
            max_bytes=64 << 20,
        ):
            for buffer in buffers:
                write_all(file, buffer)
    return [
        RunSlice(
            path,
            records=run_slice.records,
            frames_bytes=run_slice.frames_bytes,
            frames_offset=offset,
            entries_offset=offset + run_slice.frames_bytes,
        )
        for run_slice, offset in zip(run_slices, offsets[:-1], strict=True)
    ]


@dataclass(frozen=True)
class SharedIngestResult:
    """A worker's report on the ingestion of one unit group. It does not contain the records.

    Attributes:
        unit_group: Index of the unit group in `BuildPlan.unit_groups`.
        sorted_runs: SORTED_RUN_DTYPE, the sorted runs in the job folder.
        checksum: Checksum of all records in the sorted runs.
        records_read: Number of records read. Rejects are included.
        rejected: The rejects.
        note_counts: Number of records for each message to the user.
        sketch: The statistics of the records in the sorted runs. None if they are not computed.
    """

    unit_group: int
    sorted_runs: SortedRunTable
    checksum: int
    records_read: int
    rejected: RejectSummary
    note_counts: Mapping[str, int] = field(default_factory=dict)
    sketch: SharedValue[DatasetSketch] | None = None

    @property
    def records(self) -> int:
        return int(self.sorted_runs["records"].sum())


def ingest_unit_group(
    plan: SharedPlanHandle, unit_group: int, progress: Progress
) -> tuple[SharedIngestResult, Histogram]:
    """Ingests a unit group and moves the results to the job folder.

    Returns:
        (result, histogram). The histogram counts the records of all sorted runs of the unit group.

    Raises:
        DataError: An input is broken or has changed, or a record is too large. See `ingest`.
        TooManyRejects: The rejects exceed the budget by far.
        NotSharedError: This worker can't see the run's folder.
    """
    with task_workspace(plan) as local_plan:
        sketches = create_sketches(local_plan)
        result, histogram = ingest(
            local_plan,
            unit_group,
            progress=progress,
            buffer_bytes=local_plan.max_run_buffer_bytes,
            sketches=sketches,
        )
        return share_results(plan.job_folder, result, sketches), histogram


def share_results(
    job_folder: JobFolder, result: IngestResult, sketches: SketchPool | None = None
) -> SharedIngestResult:
    """Moves the results of an ingestion to the job folder and returns their description.

    Args:
        job_folder: The folders of the run.
        result: The sorted runs and rejects, in local files.
        sketches: The statistics of the records, or None.
    """
    sorted_runs, checksum = empty_run_table(), 0
    for sorted_run in result.sorted_runs:
        checksum = add_checksums(checksum, sorted_run.checksum)
        sorted_runs = np.concatenate([sorted_runs, share_sorted_run(job_folder, sorted_run)])
    files = tuple(job_folder.move_in(path, REJECTS_FOLDER) for path in result.rejected.files)
    rejected = replace(result.rejected, files=files)
    sketch = None if sketches is None else job_folder.share_value("sketch", sketches.total())
    return SharedIngestResult(
        unit_group=result.unit_group,
        sorted_runs=sorted_runs,
        checksum=checksum,
        records_read=result.records_read,
        rejected=rejected,
        note_counts=result.note_counts,
        sketch=sketch,
    )
