"""Slices of sorted runs contain each record of their shards, within a memory limit."""

import itertools
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.sorted_runs import payloads_of, write_runs, write_runs_with_histogram

from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.building.run_slices import find_slice_bounds, iter_shard_slices, make_slices
from recordmill.building.shard_boundaries import (
    BOUNDARY_DTYPE,
    ShardOptions,
    add_key_bounds,
    compute_boundaries,
)
from recordmill.building.sorted_run import INDEX_STRIDE, Histogram, KeyBuckets, SortedRun

# A data set of 1 TB with default options.
NUM_RUNS, RUN_RECORDS, RECORD_BYTES = 3726, 268_384, 1_000


def trace_memory(work: Callable[[], Any]) -> tuple[Any, int]:
    """Returns (result of `work`, largest number of bytes that were allocated during it)."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def runs_of_a_terabyte(last: int) -> list[SortedRun]:
    size = RUN_RECORDS * RECORD_BYTES
    return [
        SortedRun(f"/out/_run-0123456789ab/runs/run-{number:032x}", RUN_RECORDS, size, 0, last)
        for number in range(NUM_RUNS)
    ]


def test_slices_of_a_terabyte_are_found_within_a_part_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buckets = KeyBuckets.for_shards(1, 2**64, NUM_RUNS * RUN_RECORDS * RECORD_BYTES // (128 << 20))

    def count_before(self: SortedRun, buckets_wanted: np.ndarray) -> np.ndarray:
        records = buckets_wanted * RUN_RECORDS // buckets.num_buckets
        return np.stack([records, records * RECORD_BYTES], 1)

    monkeypatch.setattr(SortedRun, "count_before", count_before)

    def count_first_shards() -> tuple[int, int]:
        """Returns (number of slices, number of records) of the first 20 shards."""
        total = Histogram.zeros(1, buckets.num_buckets)
        total.records[0] = (
            np.diff(np.arange(buckets.num_buckets + 1) * RUN_RECORDS // buckets.num_buckets)
            * NUM_RUNS
        )
        total.bytes[0] = total.records[0] * RECORD_BYTES
        runs = runs_of_a_terabyte(buckets.num_buckets)
        cuts = add_key_bounds(compute_boundaries(total, ShardOptions(), ["train"]), total, runs)
        assert len(cuts) == 7451
        # No bucket is larger than a shard, so no run was read for key bounds.
        assert not (cuts.table["lower_key"] != b"").any()
        shard_slices = itertools.islice(
            iter_shard_slices(runs, cuts, 1, DEFAULT_MEMORY_BYTES // 64), 20
        )
        return tuple(
            map(
                sum,
                zip(
                    *(
                        (len(pieces), sum(piece.records for piece in pieces))
                        for _, pieces in shard_slices
                    ),
                    strict=True,
                ),
            )
        )

    (slices, records), peak_bytes = trace_memory(count_first_shards)
    assert slices == 20 * NUM_RUNS
    # Slices contain complete buckets, so they are 1.11 times as large as the shards.
    assert records * RECORD_BYTES == pytest.approx(20 * (128 << 20), rel=0.15)
    assert peak_bytes < DEFAULT_MEMORY_BYTES // 16


@given(
    keys=st.lists(st.integers(0, 255), min_size=1, max_size=80),
    chunk=st.integers(1, 30),
    edges=st.lists(st.integers(0, 16), min_size=1, max_size=5),
)
def test_slices_between_any_buckets_hold_each_record_once(
    keys: list[int], chunk: int, edges: list[int]
) -> None:
    bucket_edges = sorted({0, 16, *edges})
    records = [(0, key, 0, row, b"%d" % row) for row, key in enumerate(keys)]
    rows = np.zeros(len(bucket_edges) - 1, BOUNDARY_DTYPE)
    rows["begin_bucket"], rows["end_bucket"] = bucket_edges[:-1], bucket_edges[1:]
    with tempfile.TemporaryDirectory() as folder:
        runs = write_runs(Path(folder), records, chunk, 1, KeyBuckets(1, 16, 16))
        bounds = np.stack([find_slice_bounds(run, rows) for run in runs], 1)
        for row, (begin, end) in enumerate(itertools.pairwise(bucket_edges)):
            slice_positions = []
            for piece in make_slices(runs, bounds[row]):
                assert piece.records
                frames = np.empty(piece.frames_bytes, np.uint8)
                piece.read_frames(0, frames)
                payloads = payloads_of(frames)
                positions = piece.entries(0, piece.records)["position"].tolist()
                assert payloads == [b"%d" % position for position in positions]
                slice_positions += positions
            assert sorted(slice_positions) == [
                row for row, key in enumerate(keys) if begin <= key // 16 < end
            ]


def test_slices_of_a_frequent_key_skip_the_records_of_other_shards(tmp_path: Path) -> None:
    # All records have the same key, so all shards begin and end inside one bucket.
    records = [(0, 7, 0, row, b"%04d" % row) for row in range(2000)]
    runs, histogram = write_runs_with_histogram(tmp_path, records, 1000, 1, KeyBuckets(1, 4, 64))
    boundaries = compute_boundaries(histogram, ShardOptions(num_shards=10), ["train"])
    unbounded = list(iter_shard_slices(runs, boundaries, 1, 1 << 20))
    assert all(sum(piece.records for piece in slices) == 2000 for _, slices in unbounded)
    bounded = add_key_bounds(boundaries, histogram, runs)
    for index, (shards, slices) in enumerate(iter_shard_slices(runs, bounded, 1, 1 << 20)):
        positions = [row for piece in slices for row in piece.entries(0, piece.records)["position"]]
        assert len(positions) < 200 + 6 * INDEX_STRIDE
        begin, end = shards.edges
        assert sorted(positions)[begin:end] == list(range(200 * index, 200 * index + 200))
