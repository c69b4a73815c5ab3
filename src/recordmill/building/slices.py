"""Slices: what one shard needs of each run, as a reference into the run's file. Runs and cuts in, slices out; nothing
is merged here.

Of a run only its name is held: where slices begin and end is asked of the runs' indexes, for some shards at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recordmill.building.cuts import BY_RECORDS, Cuts, ShardRange
from recordmill.building.run_file import ENTRY_DTYPE, MARKED, RunEntries, RunFile
from recordmill.storage.files import Bytes, read_ranges

# records, bytes: how much of the run lies before the slice, and before its end; skipped: of the former, what lies in
# the slice's first bucket, as (records, bytes)
OFFSETS_DTYPE = np.dtype([("records", "<i8", 2), ("bytes", "<i8", 2), ("skipped", "<i8", 2)])
Offsets = npt.NDArray[np.void]


@dataclass(frozen=True)
class RunSlice:
    """Consecutive records of a run that a shard needs: its frames and entries begin there in the run's file."""

    path: str
    records: int
    frames_bytes: int
    frames_at: int
    entries_at: int

    def entries(self, first: int, last: int) -> RunEntries:
        """Entries [first, last) of the slice."""
        raw = np.empty((last - first) * ENTRY_DTYPE.itemsize, np.uint8)
        read_ranges(self.path, [(self.entries_at + first * ENTRY_DTYPE.itemsize, raw)])
        return raw.view(ENTRY_DTYPE)

    def read_frames(self, start: int, into: Bytes) -> None:
        """Fill the array with the frames from byte `start` on."""
        read_ranges(self.path, [(self.frames_at + start, into)])


def offsets(run: RunFile, cuts: npt.NDArray[np.void]) -> Offsets:
    """[cuts] what each needs of the run; cuts: of one split, as `Cuts.table` has them."""
    found = np.empty(len(cuts), OFFSETS_DTYPE)
    before = run.before(np.concatenate([cuts["first"], cuts["last"]]).astype(np.int64)).reshape(2, len(cuts), 2)
    found["records"], found["bytes"], found["skipped"] = before[:, :, 0].T, before[:, :, 1].T, 0
    if (cuts["low"] != b"").any() or (cuts["high"] != b"").any():
        _narrow(run, cuts, found)
    return found


def _narrow(run: RunFile, cuts: npt.NDArray[np.void], found: Offsets) -> None:
    """Leave out what lies before the last mark up to a cut's `low`, and behind the first one beyond its `high`."""
    number, marks = run.marks(int(found["records"].min()), int(found["records"].max()))
    records = number + MARKED * np.arange(len(marks))
    low = np.searchsorted(marks["place"], cuts["low"], side="right") - 1
    chosen = np.flatnonzero((cuts["low"] != b"") & (low >= 0))
    chosen = chosen[records[low[chosen]] > found["records"][chosen, 0]]
    for name, values in (("records", records), ("bytes", marks["bytes"])):
        at = int(name == "bytes")
        found["skipped"][chosen, at] = values[low[chosen]] - found[name][chosen, 0]
        found[name][chosen, 0] = values[low[chosen]]
    high = np.searchsorted(marks["place"], cuts["high"], side="right")
    chosen = np.flatnonzero((cuts["high"] != b"") & (high < len(marks)))
    chosen = chosen[records[high[chosen]] < found["records"][chosen, 1]]
    found["records"][chosen, 1] = records[high[chosen]]
    found["bytes"][chosen, 1] = marks["bytes"][high[chosen]]


def slices_at(runs: Sequence[RunFile], found: Offsets) -> list[RunSlice]:
    """The slices of [runs] offsets; a run without any records there is left out."""
    return [
        RunSlice(runs[at].path, last - first, end - begin, begin, runs[at].frames_bytes + first * ENTRY_DTYPE.itemsize)
        for at, (first, last), (begin, end) in zip(
            range(len(runs)), found["records"].tolist(), found["bytes"].tolist(), strict=True
        )
        if first < last
    ]


def skipped(found: Offsets, by: str) -> int:
    """How much of the buckets of [runs] offsets lies before the slices."""
    return int(found["skipped"][:, 0 if by == BY_RECORDS else 1].sum())


def shard_slices(
    runs: Sequence[RunFile], cuts: Cuts, most: int, memory_bytes: int
) -> Iterator[tuple[ShardRange, list[RunSlice]]]:
    """Yields all shards, at most so many together, and their slices; the offsets held take memory_bytes."""
    at_once = max(memory_bytes // (2 * OFFSETS_DTYPE.itemsize * max(len(runs), 1)), 1)
    groups = cuts.groups(most)
    for at in range(0, len(groups) - 1, at_once):
        edges = groups[at : at + at_once + 1]
        table = cuts.together(edges)
        found = np.empty((len(table), len(runs)), OFFSETS_DTYPE)
        for split in np.unique(table["split"]).tolist():
            rows = np.flatnonzero(table["split"] == split)
            for number, run in enumerate(runs):
                found[rows, number] = offsets(run, table[rows])
        for number, (first, last) in enumerate(itertools.pairwise(edges)):
            shards = cuts.shards(first, last).without(skipped(found[number], cuts.by))
            yield shards, slices_at(runs, found[number])
