"""Sorted runs in the shared folder.

Workers ingest groups of units into sorted runs, and locate the slices for each shard. A run is a row of RUN_DTYPE, and
its file contains the index that locates slices. One process can collect the results of all groups, since these are
small.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from recordmill.base.progress import Progress
from recordmill.base.threads import thread_map
from recordmill.building.cuts import CUT_DTYPE, Cuts, ShardRange
from recordmill.building.ingest import Ingested, ingest, sketches_of
from recordmill.building.run_file import ENTRY_DTYPE, Histogram, RunFile
from recordmill.building.slices import OFFSETS_DTYPE, Offsets, RunSlice, offsets, skipped, slices_at
from recordmill.building.workers.shared_files import (
    REJECTS_FOLDER,
    RUNS,
    NotSharedError,
    Shared,
    SharedFolder,
    SharedPlan,
    workbench,
)
from recordmill.shards.index import add_checksums
from recordmill.shards.rejects import RejectSummary
from recordmill.statistics.dataset_sketch import DatasetSketch, SketchPool
from recordmill.storage.files import create_file, read_ranges, write_all

# first, last: as in `RunFile`
RUN_DTYPE = np.dtype(
    [("name", "S64"), ("records", "<i8"), ("bytes", "<i8"), ("first", "<i8"), ("last", "<i8")]
)
Runs = npt.NDArray[np.void]
REQUESTS = 32  # concurrent requests of a worker: their threads only wait


def no_runs() -> Runs:
    """Returns an empty RUN_DTYPE table."""
    return np.empty(0, RUN_DTYPE)


def hand_over_run(job_folder: SharedFolder, run: RunFile) -> Runs:
    """Moves a sorted run to the shared folder and returns its row."""
    name = os.path.basename(job_folder.hand_over(run.path, RUNS))
    return np.array(
        [(name.encode(), run.records, run.frames_bytes, run.first, run.last)], RUN_DTYPE
    )


def listed(job_folder: SharedFolder, runs: Runs) -> list[RunFile]:
    """Returns the RunFile of each row."""
    return [
        RunFile(job_folder.run(RUNS, name.decode()), *numbers) for name, *numbers in runs.tolist()
    ]


def requests_of(job_folder: SharedFolder) -> int:
    """Returns the number of concurrent reads: REQUESTS for a store, 1 for a disk."""
    return REQUESTS if job_folder.is_remote else 1


def cut_slices(
    job_folder: SharedFolder, runs: Runs, cuts: Cuts, number: int
) -> tuple[ShardRange, list[RunSlice]]:
    """Returns a shard, and the slices that contain its records.

    Args:
        runs: All sorted runs.
        cuts: The boundaries of all shards.
        number: The number of the shard among all shards.

    Raises:
        NotSharedError: This worker can't see a sorted run.
    """
    near, found = _offsets(job_folder, runs, cuts.table[number : number + 1])
    return cuts.shards(number, number + 1).without(skipped(found, cuts.by)), slices_at(near, found)


def slices(job_folder: SharedFolder, runs: Runs, first: int, last: int) -> list[RunSlice]:
    """Returns the slices of the runs in buckets [first, last), without empty ones.

    The buckets must belong to one split.

    Raises:
        NotSharedError: This worker can't see a sorted run.
    """
    row = np.zeros(1, CUT_DTYPE)
    row["first"], row["last"] = first, last
    return slices_at(*_offsets(job_folder, runs, row))


def _offsets(
    job_folder: SharedFolder, runs: Runs, cut: npt.NDArray[np.void]
) -> tuple[list[RunFile], Offsets]:
    """Returns the runs near a cut, and which part of each the cut needs.

    Args:
        runs: All sorted runs.
        cut: CUT_DTYPE [1].

    Raises:
        NotSharedError: This worker can't see a sorted run.
    """

    def find(run: RunFile) -> Offsets:
        try:
            return offsets(run, cut)
        except FileNotFoundError:
            raise NotSharedError(run.path, job_folder.out) from None

    near = listed(job_folder, runs[(runs["first"] < cut["last"]) & (runs["last"] > cut["first"])])
    found = thread_map(find, near, requests_of(job_folder))
    return near, np.concatenate([np.empty(0, OFFSETS_DTYPE), *found])


def gather(found: Sequence[RunSlice], path: str) -> list[RunSlice]:
    """Copies slices from a store into one local file.

    A merge reads its slices in many short ranges, and each of them would be a request. Here many requests run at once.

    Returns:
        The slices in the local file, in the same order.
    """
    sizes = np.array(
        [piece.frames_bytes + piece.records * ENTRY_DTYPE.itemsize for piece in found], np.int64
    )
    begins = np.concatenate([[0], np.cumsum(sizes)]).tolist()

    def fetch(piece: RunSlice) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        frames = np.empty(piece.frames_bytes, np.uint8)
        entries = np.empty(piece.records * ENTRY_DTYPE.itemsize, np.uint8)
        read_ranges(piece.path, [(piece.frames_at, frames), (piece.entries_at, entries)])
        return frames, entries

    with create_file(path) as file:
        for parts in thread_map(
            fetch,
            found,
            REQUESTS,
            item_bytes=lambda piece: piece.frames_bytes + piece.records * 24,
            max_bytes=64 << 20,
        ):
            for part in parts:
                write_all(file, part)
    return [
        RunSlice(path, piece.records, piece.frames_bytes, begin, begin + piece.frames_bytes)
        for piece, begin in zip(found, begins[:-1], strict=True)
    ]


@dataclass(frozen=True)
class Account:
    """The result of ingesting one group on a worker, without the records.

    Attributes:
        group: Index of the group in `BuildPlan.groups`.
        runs: RUN_DTYPE, the sorted runs in the shared folder.
        sum: Checksum of all records in the runs.
        read: Number of records read: the records in the sorted runs and the rejects.
        rejected: The rejects.
        counts: Number of records for each message to the user.
        sketch: The statistics of the records in the runs, or None.
    """

    group: int
    runs: Runs
    sum: int
    read: int
    rejected: RejectSummary
    counts: Mapping[str, int] = field(default_factory=dict)
    sketch: Shared[DatasetSketch] | None = None

    @property
    def records(self) -> int:
        return int(self.runs["records"].sum())


def ingest_group(plan: SharedPlan, group: int, progress: Progress) -> tuple[Account, Histogram]:
    """Ingests a group of units and moves the results to the shared folder.

    Returns:
        (result, histogram): The histogram counts the records of all sorted runs of the group.

    Raises:
        DataError: See `ingest`.
        TooManyRejects: See `ingest`.
        NotSharedError: This worker can't see the output folder.
    """
    with workbench(plan) as bench:
        sketches = sketches_of(bench)
        ingested, histogram = ingest(bench, group, progress, bench.arena_bytes, sketches)
        return handed_over(plan.job_folder, ingested, sketches), histogram


def handed_over(
    job_folder: SharedFolder, ingested: Ingested, sketches: SketchPool | None = None
) -> Account:
    """Moves the results of an ingestion to the shared folder and describes them."""
    runs, sums = no_runs(), 0
    for run in ingested.runs:
        sums = add_checksums(sums, run.sum)
        runs = np.concatenate([runs, hand_over_run(job_folder, run)])
    files = tuple(job_folder.hand_over(path, REJECTS_FOLDER) for path in ingested.rejected.files)
    rejected = replace(ingested.rejected, files=files)
    sketch = None if sketches is None else job_folder.share("sketch", sketches.total())
    return Account(ingested.group, runs, sums, ingested.read, rejected, ingested.counts, sketch)
