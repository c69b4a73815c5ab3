"""Runs in a folder or a store: a run is listed as one `RUN_DTYPE` record, and its file has the index by which slices of
it are found with two small reads, so that nothing else of it travels.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError
from recordmill.base.threads import thread_map
from recordmill.building.cuts import CUT_DTYPE, Cuts, ShardRange
from recordmill.building.run_file import ENTRY_DTYPE, Run
from recordmill.building.slices import OFFSETS_DTYPE, Offsets, RunSlice, offsets, skipped, slices_at
from recordmill.building.spread.place import RUNS, NotSharedError, Place
from recordmill.storage.files import create_file, read_ranges, write_all

# first, last: the buckets that the index is of, as `Run` has them
RUN_DTYPE = np.dtype([("name", "S64"), ("records", "<i8"), ("bytes", "<i8"), ("first", "<i8"), ("last", "<i8")])
Runs = npt.NDArray[np.void]
REQUESTS = 32  # that one worker has under way: each waits, and none computes
_NAME = re.compile(r"[0-9a-f]{12}-(run|level)-[0-9a-f]{32}", re.ASCII)


def no_runs() -> Runs:
    """An empty list."""
    return np.empty(0, RUN_DTYPE)


def hand_over_run(place: Place, run: Run) -> Runs:
    """A run that a worker has written becomes one that all find; gives its record."""
    name = os.path.basename(place.hand_over(run.path, RUNS))
    return np.array([(name.encode(), run.records, run.frames_bytes, run.first, run.last)], RUN_DTYPE)


def path_of(place: Place, run: np.void) -> str:
    """Where the run lies; DataError for a name that none has."""
    name = bytes(run["name"]).decode("ascii", "replace")
    if _NAME.fullmatch(name) is None:
        raise DataError(f"{name!r} is the name of no run", source="list of runs")
    return place.run(RUNS, name)


def listed(place: Place, runs: Runs) -> list[Run]:
    """The runs of a list, to be read."""
    return [
        Run(path_of(place, run), *(int(run[name]) for name in ("records", "bytes", "first", "last"))) for run in runs
    ]


def requests_of(place: Place) -> int:
    """How many runs one worker reads at once."""
    return REQUESTS if place.is_remote else 1


def cut_slices(place: Place, runs: Runs, cuts: Cuts, number: int) -> tuple[ShardRange, list[RunSlice]]:
    """A shard, and what it needs of these runs; one without any is left out.

    Raises:
        NotSharedError: a run is not there.
    """
    near, found = _offsets(place, runs, cuts.table[number : number + 1])
    return cuts.shards(number, number + 1).without(skipped(found, cuts.by)), slices_at(near, found)


def slices(place: Place, runs: Runs, first: int, last: int) -> list[RunSlice]:
    """What these runs have in buckets [first, last) of one split; a run without any is left out.

    Raises:
        NotSharedError: a run is not there.
    """
    row = np.zeros(1, CUT_DTYPE)
    row["first"], row["last"] = first, last
    return slices_at(*_offsets(place, runs, row))


def _offsets(place: Place, runs: Runs, cut: npt.NDArray[np.void]) -> tuple[list[Run], Offsets]:
    """The runs that may have what the one cut needs, and where in each of them."""

    def find(run: Run) -> Offsets:
        try:
            return offsets(run, cut)
        except FileNotFoundError:
            raise NotSharedError(run.path, place.out) from None

    near = listed(place, runs[(runs["first"] < cut["last"]) & (runs["last"] > cut["first"])])
    found = thread_map(find, near, requests_of(place))
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
