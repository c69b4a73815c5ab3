"""Runs in a folder or a store, and what a shard needs of them: by the table behind a run's entries, its footer, a slice
is found with two small reads, so that no footer travels.

A run is listed as one `RUN_DTYPE` record. Its footer holds, for each of its key buckets [first, last) and their end,
how many records and bytes of frames lie before it, as little-endian int64 [last - first + 1, 2].
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError
from recordmill.base.threads import thread_map
from recordmill.building.run_file import ENTRY_DTYPE, Run
from recordmill.building.slices import FileRef, RunSlice
from recordmill.building.spread.place import RUNS, NotSharedError, Place
from recordmill.storage.files import create_file, read_ranges, reopen_file, write_all

# first, last: buckets of all splits, one after the other: split * buckets + bucket
RUN_DTYPE = np.dtype([("name", "S64"), ("records", "<i8"), ("bytes", "<i8"), ("first", "<i8"), ("last", "<i8")])
Runs = npt.NDArray[np.void]
REQUESTS = 32  # that one worker has under way: each waits, and none computes
_ROW = 16  # bytes of a footer's row
_NAME = re.compile(r"[0-9a-f]{12}-(run|level)-[0-9a-f]{32}", re.ASCII)


def no_runs() -> Runs:
    """An empty list."""
    return np.empty(0, RUN_DTYPE)


def hand_over_run(place: Place, run: Run) -> Runs:
    """A run that a worker has written becomes one that all find; gives its record. Its footer goes with it."""
    records, sizes = run.histogram.records.reshape(-1), run.histogram.bytes.reshape(-1)
    return hand_over_file(place, run.path, run.records, run.frames_bytes, 0, records, sizes)


def hand_over_file(
    place: Place,
    path: str,
    records: int,
    frames_bytes: int,
    first: int,
    in_buckets: npt.NDArray[np.int64],
    bytes_in_buckets: npt.NDArray[np.int64],
) -> Runs:
    """As `hand_over_run`, of a file of frames and entries. in_buckets, bytes_in_buckets: [buckets] from `first` on."""
    footer = np.zeros((len(in_buckets) + 1, 2), "<i8")
    np.cumsum(in_buckets, out=footer[1:, 0])
    np.cumsum(bytes_in_buckets, out=footer[1:, 1])
    assert (records, frames_bytes) == tuple(footer[-1].tolist())
    with reopen_file(path, frames_bytes + records * ENTRY_DTYPE.itemsize) as file:
        write_all(file, footer.view(np.uint8).reshape(-1))
    name = os.path.basename(place.hand_over(path, RUNS))
    return np.array([(name.encode(), records, frames_bytes, first, first + len(in_buckets))], RUN_DTYPE)


def path_of(place: Place, run: np.void) -> str:
    """Where the run lies; DataError for a name that none has."""
    name = bytes(run["name"]).decode("ascii", "replace")
    if _NAME.fullmatch(name) is None:
        raise DataError(f"{name!r} is the name of no run", source="list of runs")
    return place.run(RUNS, name)


def slices(place: Place, runs: Runs, first: int, last: int) -> list[RunSlice]:
    """What these runs have in buckets [first, last), of all splits counted on; a run without any is left out.

    Raises:
        NotSharedError: a run is not there.
    """
    near = runs[(runs["first"] < last) & (runs["last"] > first) & (runs["records"] > 0)]

    def find(run: np.void) -> RunSlice | None:
        begin, end = max(int(run["first"]), first), min(int(run["last"]), last)
        path = path_of(place, run)
        before, upto = _footer_rows(path, place, run, begin, end)
        count, size = int(upto[0] - before[0]), int(upto[1] - before[1])
        if count == 0:
            return None
        entries_at = int(run["bytes"]) + int(before[0]) * ENTRY_DTYPE.itemsize
        return RunSlice(count, size, FileRef(path, int(before[1]), entries_at))

    found = thread_map(find, list(near), REQUESTS if place.is_remote else 1)
    return [one for one in found if one is not None]


def _footer_rows(path: str, place: Place, run: np.void, begin: int, end: int) -> list[npt.NDArray[np.int64]]:
    base = int(run["bytes"]) + int(run["records"]) * ENTRY_DTYPE.itemsize
    rows = [np.empty(_ROW, np.uint8) for _ in range(2)]
    starts = [base + (bucket - int(run["first"])) * _ROW for bucket in (begin, end)]
    try:
        read_ranges(path, list(zip(starts, rows, strict=True)))
    except FileNotFoundError:
        raise NotSharedError(path, place.out) from None
    return [row.view("<i8") for row in rows]


def gather(found: Sequence[RunSlice], path: str) -> list[RunSlice]:
    """The slices of runs in a store, fetched into one new file of this machine, by many requests at once."""
    sizes = np.array([piece.frames_bytes + piece.records * ENTRY_DTYPE.itemsize for piece in found], np.int64)
    begins = np.concatenate([[0], np.cumsum(sizes)]).tolist()

    def fetch(piece: RunSlice) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        assert isinstance(piece.payload, FileRef)
        frames = np.empty(piece.frames_bytes, np.uint8)
        entries = np.empty(piece.records * ENTRY_DTYPE.itemsize, np.uint8)
        read_ranges(piece.payload.path, [(piece.payload.frames_at, frames), (piece.payload.entries_at, entries)])
        return frames, entries

    with create_file(path) as file:
        for parts in thread_map(
            fetch, found, REQUESTS, weight=lambda piece: piece.frames_bytes + piece.records * 24, room=64 << 20
        ):
            for part in parts:
                write_all(file, part)
    return [
        RunSlice(piece.records, piece.frames_bytes, FileRef(path, begin, begin + piece.frames_bytes))
        for piece, begin in zip(found, begins[:-1], strict=True)
    ]
