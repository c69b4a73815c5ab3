"""Runs in a folder or a store: a run is listed as one `RUN_DTYPE` record, and its file has the index by which slices of
it are found; and a group of units to such runs, with an account small enough for any number of them to meet in one
job_folder.
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
from recordmill.shards.index import add_sums
from recordmill.shards.rejects import Rejected
from recordmill.statistics.dataset_sketch import DatasetSketch, SketchPool
from recordmill.storage.files import create_file, read_ranges, write_all

# first, last: the buckets that the index is of, as `Run` has them
RUN_DTYPE = np.dtype([("name", "S64"), ("records", "<i8"), ("bytes", "<i8"), ("first", "<i8"), ("last", "<i8")])
Runs = npt.NDArray[np.void]
REQUESTS = 32  # that one worker has under way: each waits, and none computes


def no_runs() -> Runs:
    """An empty list."""
    return np.empty(0, RUN_DTYPE)


def hand_over_run(job_folder: SharedFolder, run: RunFile) -> Runs:
    """A run that a worker has written becomes one that all find; gives its record."""
    name = os.path.basename(job_folder.hand_over(run.path, RUNS))
    return np.array([(name.encode(), run.records, run.frames_bytes, run.first, run.last)], RUN_DTYPE)


def listed(job_folder: SharedFolder, runs: Runs) -> list[RunFile]:
    """The runs of a list, to be read."""
    return [RunFile(job_folder.run(RUNS, name.decode()), *numbers) for name, *numbers in runs.tolist()]


def requests_of(job_folder: SharedFolder) -> int:
    """How many runs one worker reads at once."""
    return REQUESTS if job_folder.is_remote else 1


def cut_slices(job_folder: SharedFolder, runs: Runs, cuts: Cuts, number: int) -> tuple[ShardRange, list[RunSlice]]:
    """A shard, and what it needs of these runs; one without any is left out. NotSharedError: a run is not there."""
    near, found = _offsets(job_folder, runs, cuts.table[number : number + 1])
    return cuts.shards(number, number + 1).without(skipped(found, cuts.by)), slices_at(near, found)


def slices(job_folder: SharedFolder, runs: Runs, first: int, last: int) -> list[RunSlice]:
    """Returns what these runs have in buckets [first, last) of one split; a run without any is left out.
    NotSharedError: a run is not there.
    """
    row = np.zeros(1, CUT_DTYPE)
    row["first"], row["last"] = first, last
    return slices_at(*_offsets(job_folder, runs, row))


def _offsets(job_folder: SharedFolder, runs: Runs, cut: npt.NDArray[np.void]) -> tuple[list[RunFile], Offsets]:
    """The runs that may have what the one cut needs, and where in each of them."""

    def find(run: RunFile) -> Offsets:
        try:
            return offsets(run, cut)
        except FileNotFoundError:
            raise NotSharedError(run.path, job_folder.out) from None

    near = listed(job_folder, runs[(runs["first"] < cut["last"]) & (runs["last"] > cut["first"])])
    found = thread_map(find, near, requests_of(job_folder))
    return near, np.concatenate([np.empty(0, OFFSETS_DTYPE), *found])


def gather(found: Sequence[RunSlice], path: str) -> list[RunSlice]:
    """The slices of runs in a store, fetched into one new file of this machine, by many requests at once."""
    sizes = np.array([piece.frames_bytes + piece.records * ENTRY_DTYPE.itemsize for piece in found], np.int64)
    begins = np.concatenate([[0], np.cumsum(sizes)]).tolist()

    def fetch(piece: RunSlice) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        frames = np.empty(piece.frames_bytes, np.uint8)
        entries = np.empty(piece.records * ENTRY_DTYPE.itemsize, np.uint8)
        read_ranges(piece.path, [(piece.frames_at, frames), (piece.entries_at, entries)])
        return frames, entries

    with create_file(path) as file:
        for parts in thread_map(
            fetch, found, REQUESTS, weight=lambda piece: piece.frames_bytes + piece.records * 24, room=64 << 20
        ):
            for part in parts:
                write_all(file, part)
    return [
        RunSlice(path, piece.records, piece.frames_bytes, begin, begin + piece.frames_bytes)
        for piece, begin in zip(found, begins[:-1], strict=True)
    ]


@dataclass(frozen=True)
class Account:
    """The account of a group: records read = those in `runs` + rejected. sum: of the records in runs. runs: as they are
    listed. counts: as `Ingested` has them. sketch: of the records in runs.
    """

    group: int
    runs: Runs
    sum: int
    read: int
    rejected: Rejected
    counts: Mapping[str, int] = field(default_factory=dict)
    sketch: Shared[DatasetSketch] | None = None

    @property
    def records(self) -> int:
        return int(self.runs["records"].sum())


def ingest_group(plan: SharedPlan, group: int, progress: Progress) -> tuple[Account, Histogram]:
    """Read the units of a group into runs; gives what became of them, and where their keys lie.

    Raises:
        DataError, TooManyRejects: as `ingest` does. NotSharedError: this worker does not see OUT.
    """
    with workbench(plan) as bench:
        sketches = sketches_of(bench)
        ingested, histogram = ingest(bench, group, progress, bench.arena_bytes, sketches)
        return handed_over(plan.job_folder, ingested, sketches), histogram


def handed_over(job_folder: SharedFolder, ingested: Ingested, sketches: SketchPool | None = None) -> Account:
    """Moves what this worker has written and counted to where all workers find it."""
    runs, sums = no_runs(), 0
    for run in ingested.runs:
        sums = add_sums(sums, run.sum)
        runs = np.concatenate([runs, hand_over_run(job_folder, run)])
    files = tuple(job_folder.hand_over(path, REJECTS_FOLDER) for path in ingested.rejected.files)
    rejected = replace(ingested.rejected, files=files)
    sketch = None if sketches is None else job_folder.share("sketch", sketches.total())
    return Account(ingested.group, runs, sums, ingested.read, rejected, ingested.counts, sketch)
