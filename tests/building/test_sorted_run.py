"""A sorted run contains its records in key order, and indexes to find them."""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.sorted_runs import payloads_of, write_runs, write_runs_with_histogram

from recordmill.building.sorted_run import (
    ENTRY_DTYPE,
    KeyBuckets,
    SortedRun,
    SortedRunIndex,
    gather_frames,
)


def test_marks_of_a_sorted_run_are_every_64th_record_in_order(tmp_path: Path) -> None:
    entries = np.zeros(1000, ENTRY_DTYPE)
    entries["key"], entries["size"] = np.arange(1000) * 3 + 5, np.arange(1000) % 7 + 16
    entries["position"], entries["file"] = np.arange(1000)[::-1], 2**32 - 1
    buckets = KeyBuckets(3, 16, 256)
    contents = []
    for step in (1, 63, 64, 1000):
        index = SortedRunIndex(buckets)
        for record_number in range(0, 1000, step):
            index.add(1, entries[record_number : record_number + step])
        path = tmp_path / f"{step}"
        with path.open("wb") as file:
            first, last = index.write(file)
        contents.append(path.read_bytes())
    assert len(set(contents)) == 1
    run = SortedRun(str(path), 0, 0, first, last)
    assert (first, last) == (16, 28)
    ends = np.cumsum(entries["size"])
    for bucket in range(48):
        count = int((entries["key"] < (bucket - 16) * 256).sum()) if bucket > 16 else 0
        assert run.count_before(np.array([bucket])).tolist() == [
            [count, int(ends[count - 1]) if count else 0]
        ]
    number, marks = run.read_sparse_index(100, 300)
    assert number == 128
    assert marks["bytes"].tolist() == [
        int(ends[record_number - 1]) for record_number in (128, 192, 256)
    ]
    keys = [
        int.from_bytes(bytes(sort_key).ljust(20, b"\0")[:8], "big")
        for sort_key in marks["sort_key"].tolist()
    ]
    assert keys == [128 * 3 + 5, 192 * 3 + 5, 256 * 3 + 5]


def frames_of(run: SortedRun) -> tuple[list[bytes], list[int]]:
    """Returns the payloads and the keys of a sorted run, in file order."""
    data = np.fromfile(run.path, np.uint8)
    entries = data[run.frames_bytes : run.index_offset].view(ENTRY_DTYPE)
    return payloads_of(data[: run.frames_bytes]), entries["key"].tolist()


@given(
    keys=st.lists(
        st.sampled_from([0, 1, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1), min_size=1
    ),
    chunk=st.integers(1, 9),
    max_bytes=st.sampled_from([1, 500, 1 << 20]),
)
def test_sorted_runs_hold_all_records_in_the_order_of_keys(
    keys: list[int], chunk: int, max_bytes: int
) -> None:
    buckets = KeyBuckets(2, 16, 2**60)
    records = [
        (row % 2, key, row % 3, row, bytes([row % 256]) * (row % 40))
        for row, key in enumerate(keys)
    ]
    with tempfile.TemporaryDirectory() as folder:
        runs, histogram = write_runs_with_histogram(
            Path(folder), records, chunk, max_bytes, buckets
        )
        rows = []
        for run in runs:
            payloads, run_keys = frames_of(run)
            assert len(payloads) == run.records
            first = len(rows) and rows[-1][0] + 1
            rows += [(first, key, payload) for key, payload in zip(run_keys, payloads, strict=True)]
    assert sorted(payload for *_, payload in rows) == sorted(record[4] for record in records)
    # Each run sorts its chunks by split, key, file and position.
    if max_bytes == 1 << 20:
        assert [payload for *_, payload in rows] == [record[4] for record in sorted(records)]
    if max_bytes == 1:
        assert len(runs) == -(-len(records) // chunk)
    for split in (0, 1):
        counts = Counter(key >> 60 for part, key, *_ in records if part == split)
        assert histogram.records[split].tolist() == [counts[bucket] for bucket in range(16)]
    assert int(histogram.bytes.sum()) == sum(run.frames_bytes for run in runs)


@given(st.integers(1, 300), st.integers(1, 2**64))
def test_inner_edges_of_buckets_divide_all_keys(num_buckets: int, key_limit: int) -> None:
    width = max(-(-key_limit // num_buckets), 1)
    edges = KeyBuckets(1, num_buckets, width).inner_edges()
    expected = [min(width * bucket, 2**64 - 1) for bucket in range(1, num_buckets)]
    assert edges.tolist() == expected


@pytest.mark.parametrize("num_shards", [1, 63, 64, 100, 5000, 10**6])
def test_buckets_are_16_to_32_for_each_shard_within_limits(num_shards: int) -> None:
    buckets = KeyBuckets.for_shards(2, 2**64, num_shards)
    assert buckets.num_splits == 2
    assert 1 << 10 <= buckets.num_buckets <= 1 << 16
    if 64 <= num_shards <= 2048:
        assert 16 * num_shards <= buckets.num_buckets < 32 * num_shards
    assert buckets.num_buckets * buckets.width >= 2**64


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=40),
    seed=st.integers(0, 99),
    buffer_bytes=st.integers(1, 100),
)
def test_gathered_frames_have_the_requested_order_within_the_buffer(
    sizes: list[int], seed: int, buffer_bytes: int
) -> None:
    items = [bytes([row % 256]) * size for row, size in enumerate(sizes)]
    data = np.frombuffer(b"".join(items), np.uint8)
    starts = np.cumsum([0, *sizes[:-1]])
    order = np.random.default_rng(seed).permutation(len(items))
    output, count = b"", 0
    for buffer, frames in gather_frames([data], starts, np.array(sizes), order, buffer_bytes):
        # A buffer is larger than requested only for a single frame.
        assert len(buffer) <= buffer_bytes or frames == 1
        output, count = output + buffer.tobytes(), count + frames
    assert output == b"".join(items[row] for row in order)
    assert count == len(items)


def test_checksum_of_sorted_runs_does_not_depend_on_their_number(tmp_path: Path) -> None:
    records = [(0, key * 977 % 1000, 0, key, b"%d" % key) for key in range(100)]
    buckets = KeyBuckets(1, 4, 2**62)
    (single_run,) = write_runs(tmp_path, records, 100, 1 << 20, buckets)
    small_runs = write_runs(tmp_path, records, 7, 1, buckets)
    assert len(small_runs) == 15
    assert single_run.checksum
    assert single_run.checksum == sum(run.checksum for run in small_runs) % 2**64
