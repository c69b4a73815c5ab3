"""Slices of sorted runs: the records of a run that belong to a shard.

A slice refers to a range of the run's file. The index of the run determines it, when the shard is about to be written.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recordmill.building.shard_boundaries import BY_RECORDS, ShardBoundaries, ShardRange
from recordmill.building.sorted_run import ENTRY_DTYPE, INDEX_STRIDE, RunEntries, SortedRun
from recordmill.storage.files import Bytes, read_ranges

# records, bytes: how much of the run is before the start and before the end of the slice.
# skipped: (records, bytes) between the start of the slice's first bucket and the start of the slice.
SLICE_BOUNDS_DTYPE = np.dtype([("records", "<i8", 2), ("bytes", "<i8", 2), ("skipped", "<i8", 2)])
SliceBounds = npt.NDArray[np.void]


@dataclass(frozen=True)
class RunSlice:
    """Consecutive records of a sorted run.

    Attributes:
        path: The file of the sorted run.
        records: Number of records.
        frames_bytes: Total size of the frames.
        frames_at: Offset of the first frame in the file.
        entries_at: Offset of the first entry in the file.
    """

    path: str
    records: int
    frames_bytes: int
    frames_at: int
    entries_at: int

    def entries(self, first: int, last: int) -> RunEntries:
        """Reads the entries of records [first, last) of the slice."""
        raw = np.empty((last - first) * ENTRY_DTYPE.itemsize, np.uint8)
        read_ranges(self.path, [(self.entries_at + first * ENTRY_DTYPE.itemsize, raw)])
        return raw.view(ENTRY_DTYPE)

    def read_frames(self, start: int, into: Bytes) -> None:
        """Fills `into` with bytes of the frames, from byte `start` of the slice on."""
        read_ranges(self.path, [(self.frames_at + start, into)])


def offsets(run: SortedRun, cuts: npt.NDArray[np.void]) -> SliceBounds:
    """Returns the part of a run that each cut needs, SLICE_BOUNDS_DTYPE [cuts].

    Args:
        cuts: BOUNDARY_DTYPE [cuts], all of one split.
    """
    found = np.empty(len(cuts), SLICE_BOUNDS_DTYPE)
    before = run.count_before(
        np.concatenate([cuts["begin_bucket"], cuts["end_bucket"]]).astype(np.int64)
    ).reshape(2, len(cuts), 2)
    found["records"], found["bytes"], found["skipped"] = before[:, :, 0].T, before[:, :, 1].T, 0
    if (cuts["lower_key"] != b"").any() or (cuts["upper_key"] != b"").any():
        _narrow_bounds(run, cuts, found)
    return found


def _narrow_bounds(run: SortedRun, cuts: npt.NDArray[np.void], found: SliceBounds) -> None:
    """Narrows offsets in place, for cuts with `low` or `high`.

    A slice then begins at the last mark up to `low`, and ends at the first mark after `high`.
    """
    number, marks = run.read_sparse_index(int(found["records"].min()), int(found["records"].max()))
    records = number + INDEX_STRIDE * np.arange(len(marks))
    low = np.searchsorted(marks["sort_key"], cuts["lower_key"], side="right") - 1
    chosen = np.flatnonzero((cuts["lower_key"] != b"") & (low >= 0))
    # a mark outside of the slice narrows nothing
    chosen = chosen[records[low[chosen]] > found["records"][chosen, 0]]
    for name, values in (("records", records), ("bytes", marks["bytes"])):
        at = int(name == "bytes")
        found["skipped"][chosen, at] = values[low[chosen]] - found[name][chosen, 0]
        found[name][chosen, 0] = values[low[chosen]]
    high = np.searchsorted(marks["sort_key"], cuts["upper_key"], side="right")
    chosen = np.flatnonzero((cuts["upper_key"] != b"") & (high < len(marks)))
    chosen = chosen[records[high[chosen]] < found["records"][chosen, 1]]
    found["records"][chosen, 1] = records[high[chosen]]
    found["bytes"][chosen, 1] = marks["bytes"][high[chosen]]


def make_slices(runs: Sequence[SortedRun], found: SliceBounds) -> list[RunSlice]:
    """Returns the slices of one cut, without empty ones.

    Args:
        found: The offsets in each run.
    """
    return [
        RunSlice(
            runs[at].path,
            last - first,
            end - begin,
            begin,
            runs[at].frames_bytes + first * ENTRY_DTYPE.itemsize,
        )
        for at, (first, last), (begin, end) in zip(
            range(len(runs)), found["records"].tolist(), found["bytes"].tolist(), strict=True
        )
        if first < last
    ]


def skipped(found: SliceBounds, by: str) -> int:
    """Returns the records or bytes that all slices skip because of `low`."""
    return int(found["skipped"][:, 0 if by == BY_RECORDS else 1].sum())


def iter_shard_slices(
    runs: Sequence[SortedRun], cuts: ShardBoundaries, most: int, memory_bytes: int
) -> Iterator[tuple[ShardRange, list[RunSlice]]]:
    """Yields groups of consecutive shards with their slices.

    Args:
        runs: All sorted runs.
        cuts: The boundaries of all shards.
        most: The number of shards in a group, at most.
        memory_bytes: The memory for offsets, which are computed for several groups at once.
    """
    at_once = max(memory_bytes // (2 * SLICE_BOUNDS_DTYPE.itemsize * max(len(runs), 1)), 1)
    groups = cuts.group_edges(most)
    for at in range(0, len(groups) - 1, at_once):
        edges = groups[at : at + at_once + 1]
        table = cuts.merge_rows(edges)
        found = np.empty((len(table), len(runs)), SLICE_BOUNDS_DTYPE)
        # split by split, because a read of the index spans all requested buckets
        for split in np.unique(table["split_id"]).tolist():
            rows = np.flatnonzero(table["split_id"] == split)
            for number, run in enumerate(runs):
                found[rows, number] = offsets(run, table[rows])
        for number, (first, last) in enumerate(itertools.pairwise(edges)):
            shards = cuts.shard_range(first, last).shift_left(skipped(found[number], cuts.measure))
            yield shards, make_slices(runs, found[number])
