"""Slices of sorted runs.

A slice is a range of a sorted run's file that contains all of its records for one shard. It may
contain records of neighbouring shards, too, because slices begin and end where the indexes of the
sorted run have a row. Slices are found when a shard is about to be written, so no object is kept
for each pair of sorted run and shard.
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

# A slice, as positions in its sorted run.
# records: the number of records before the start of the slice, and before its end.
# bytes: the same for bytes of frames.
# skipped: (records, bytes) from the start of the shard's first bucket to the start of the slice.
SLICE_BOUNDS_DTYPE = np.dtype([("records", "<i8", 2), ("bytes", "<i8", 2), ("skipped", "<i8", 2)])
SliceBounds = npt.NDArray[np.void]


@dataclass(frozen=True)
class RunSlice:
    """Consecutive records of a sorted run.

    Attributes:
        path: The file of the sorted run.
        records: Number of records.
        frames_bytes: Total size of the frames.
        frames_offset: Offset of the first frame in the file.
        entries_offset: Offset of the first entry in the file.
    """

    path: str
    records: int
    frames_bytes: int
    frames_offset: int
    entries_offset: int

    def entries(self, begin: int, end: int) -> RunEntries:
        """Reads the entries of records [begin, end) of the slice."""
        data = np.empty((end - begin) * ENTRY_DTYPE.itemsize, np.uint8)
        read_ranges(self.path, [(self.entries_offset + begin * ENTRY_DTYPE.itemsize, data)])
        return data.view(ENTRY_DTYPE)

    def read_frames(self, start: int, buffer: Bytes) -> None:
        """Fills `buffer` with frames of the slice, from byte `start` on.

        Byte 0 is the start of the first frame.
        """
        read_ranges(self.path, [(self.frames_offset + start, buffer)])


def find_slice_bounds(run: SortedRun, boundaries: npt.NDArray[np.void]) -> SliceBounds:
    """Returns the slice of a sorted run for each shard, SLICE_BOUNDS_DTYPE [shards].

    Args:
        run: The sorted run.
        boundaries: BOUNDARY_DTYPE [shards], all of one split.

    Raises:
        OSError: The file of the sorted run is missing.
        DataError: The file is too short.
    """
    bounds = np.empty(len(boundaries), SLICE_BOUNDS_DTYPE)
    counts = run.count_before(
        np.concatenate([boundaries["begin_bucket"], boundaries["end_bucket"]]).astype(np.int64)
    ).reshape(2, len(boundaries), 2)
    bounds["records"], bounds["bytes"], bounds["skipped"] = counts[:, :, 0].T, counts[:, :, 1].T, 0
    if (boundaries["lower_key"] != b"").any() or (boundaries["upper_key"] != b"").any():
        _narrow_bounds(run, boundaries, bounds)
    return bounds


def _narrow_bounds(run: SortedRun, boundaries: npt.NDArray[np.void], bounds: SliceBounds) -> None:
    """Narrows slice bounds in place, for boundaries with a `lower_key` or `upper_key`.

    These sort keys bound a shard inside of a large bucket. A slice then begins at the last row of
    the sparse index up to `lower_key`, and ends at the first row after `upper_key`.

    Args:
        run: The sorted run.
        boundaries: BOUNDARY_DTYPE [shards].
        bounds: SLICE_BOUNDS_DTYPE [shards], the slices of entire buckets.
    """
    first_indexed, sparse_index = run.read_sparse_index(
        int(bounds["records"].min()), int(bounds["records"].max())
    )
    records = first_indexed + INDEX_STRIDE * np.arange(len(sparse_index))
    starts = np.searchsorted(sparse_index["sort_key"], boundaries["lower_key"], side="right") - 1
    rows = np.flatnonzero((boundaries["lower_key"] != b"") & (starts >= 0))
    # A row outside of the slice narrows nothing.
    rows = rows[records[starts[rows]] > bounds["records"][rows, 0]]
    for name, values in (("records", records), ("bytes", sparse_index["bytes"])):
        i = int(name == "bytes")
        bounds["skipped"][rows, i] = values[starts[rows]] - bounds[name][rows, 0]
        bounds[name][rows, 0] = values[starts[rows]]
    ends = np.searchsorted(sparse_index["sort_key"], boundaries["upper_key"], side="right")
    rows = np.flatnonzero((boundaries["upper_key"] != b"") & (ends < len(sparse_index)))
    rows = rows[records[ends[rows]] < bounds["records"][rows, 1]]
    bounds["records"][rows, 1] = records[ends[rows]]
    bounds["bytes"][rows, 1] = sparse_index["bytes"][ends[rows]]


def make_slices(sorted_runs: Sequence[SortedRun], bounds: SliceBounds) -> list[RunSlice]:
    """Returns the run slices of one shard.

    A sorted run without records of the shard has no slice in the result.

    Args:
        bounds: SLICE_BOUNDS_DTYPE, one row for each sorted run.
    """
    return [
        RunSlice(
            sorted_runs[run_id].path,
            records=end - begin,
            frames_bytes=end_byte - begin_byte,
            frames_offset=begin_byte,
            entries_offset=sorted_runs[run_id].frames_bytes + begin * ENTRY_DTYPE.itemsize,
        )
        for run_id, (begin, end), (begin_byte, end_byte) in zip(
            range(len(sorted_runs)),
            bounds["records"].tolist(),
            bounds["bytes"].tolist(),
            strict=True,
        )
        if begin < end
    ]


def measure_skipped(bounds: SliceBounds, measure: str) -> int:
    """Returns the total that the slices of a shard skip at their start.

    `ShardRange.edges` count from the start of the shard's first bucket. Slices of a large bucket
    begin later, because the search for the shard's `lower_key` (see BOUNDARY_DTYPE) has skipped
    records of earlier shards. The caller passes the result to `ShardRange.shift_left`.

    Args:
        bounds: SLICE_BOUNDS_DTYPE, one row for each sorted run.
        measure: BY_RECORDS or BY_BYTES.

    Returns:
        The number of records, or of bytes of their frames.
    """
    return int(bounds["skipped"][:, 0 if measure == BY_RECORDS else 1].sum())


def iter_shard_slices(
    sorted_runs: Sequence[SortedRun],
    boundaries: ShardBoundaries,
    max_shards: int,
    memory_bytes: int,
) -> Iterator[tuple[ShardRange, list[RunSlice]]]:
    """Yields (shards, slices) for blocks of consecutive shards, in their order.

    Args:
        sorted_runs: All sorted runs.
        boundaries: The boundaries of all shards.
        max_shards: The maximum number of shards in a block.
        memory_bytes: The memory for slice bounds, which are computed for several blocks at once.
    """
    blocks_at_once = max(
        memory_bytes // (2 * SLICE_BOUNDS_DTYPE.itemsize * max(len(sorted_runs), 1)), 1
    )
    all_edges = boundaries.block_edges(max_shards)
    for first in range(0, len(all_edges) - 1, blocks_at_once):
        edges = all_edges[first : first + blocks_at_once + 1]
        table = boundaries.merge_rows(edges)
        bounds = np.empty((len(table), len(sorted_runs)), SLICE_BOUNDS_DTYPE)
        # One split at a time: a read of the bucket index goes from the first requested bucket to
        # the last one, and so would include all buckets between two splits.
        for split_id in np.unique(table["split_id"]).tolist():
            rows = np.flatnonzero(table["split_id"] == split_id)
            for i, run in enumerate(sorted_runs):
                bounds[rows, i] = find_slice_bounds(run, table[rows])
        for i, (begin, end) in enumerate(itertools.pairwise(edges)):
            shard_range = boundaries.shard_range(begin, end).shift_left(
                measure_skipped(bounds[i], boundaries.measure)
            )
            yield shard_range, make_slices(sorted_runs, bounds[i])
