"""Merged slices contain the sorted records.

The number of rounds, the number of reads and the memory are limited.
"""

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.sorted_runs import ONE_BUCKET, Record, deal_records, payloads_of, write_runs

from recordmill.base.progress import Progress, RunCancelled
from recordmill.building.merge import limit_fan_in, max_fan_in, max_window_entries, merge
from recordmill.building.run_slices import (
    RunSlice,
    find_slice_bounds,
    make_slices,
)
from recordmill.building.shard_boundaries import (
    BOUNDARY_DTYPE,
    BY_RECORDS,
    ShardRange,
)
from recordmill.building.shard_writer import divide_frames
from recordmill.building.sorted_run import SortedRun


def slices_of(runs: Sequence[SortedRun]) -> list[RunSlice]:
    row = np.zeros(1, BOUNDARY_DTYPE)
    row["end_bucket"] = 1
    return make_slices(runs, np.concatenate([find_slice_bounds(run, row) for run in runs]))


def runs_of(folder: Path, parts: Sequence[Sequence[Record]]) -> list[SortedRun]:
    return [
        run
        for part in parts
        if part
        for run in write_runs(folder, list(part), len(part), 1 << 26, ONE_BUCKET)
    ]


def merge_payloads(slices: Sequence[RunSlice], memory_bytes: int) -> list[bytes]:
    shard = ShardRange(0, 0, 1, (0, sum(piece.records for piece in slices)), BY_RECORDS)
    return [
        payload
        for _, data, _ in divide_frames(merge(slices, memory_bytes), shard)
        for payload in payloads_of(data)
    ]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 250),
    parts=st.integers(1, 40),
    spread=st.sampled_from([1, 3, 2**64]),
    sizes=st.sampled_from([(0, 1), (0, 60), (0, 3000)]),
    memory_bytes=st.sampled_from([1, 5000, 20_000, 100_000, 1 << 22]),
    max_slices=st.sampled_from([2, 5, 1000]),
)
def test_merge_equals_sorting_all_records(
    seed: int,
    count: int,
    parts: int,
    spread: int,
    sizes: tuple[int, int],
    memory_bytes: int,
    max_slices: int,
) -> None:
    dice = random.Random(seed)
    records: list[list[Record]] = [[] for _ in range(parts)]
    for number in range(count):
        payload = number.to_bytes(4, "little") + bytes(dice.randrange(*sizes))
        records[dice.randrange(parts)].append(
            (0, dice.randrange(spread), dice.randrange(3), number, payload)
        )
    with tempfile.TemporaryDirectory() as folder:
        slices = slices_of(runs_of(Path(folder), records))
        with limit_fan_in(
            max_slices, slices, Path(folder), memory_bytes, lambda: None
        ) as merged_slices:
            assert len(merged_slices) <= max_slices
            payloads = merge_payloads(merged_slices, memory_bytes)
        assert len(list(Path(folder).glob("level-*"))) == 0
    assert payloads == [
        record[4] for record in sorted(record for part in records for record in part)
    ]


@pytest.mark.parametrize("keys", ["hashed", "in order", "one"])
@pytest.mark.parametrize(
    ("count", "parts", "memory_bytes"),
    [
        (4000, 200, 8 << 20),
        (4000, 3, 100_000),
        (4000, 7, 100_000),
        (9000, 20, 300_000),
        (9000, 1, 300_000),
    ],
)
def test_merge_rounds_and_reads_stay_under_their_formula(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keys: str,
    count: int,
    parts: int,
    memory_bytes: int,
) -> None:
    slices = slices_of(runs_of(tmp_path, deal_records(count, parts, keys)))
    frames_read: list[int] = []
    entries_read: list[int] = []
    read_frames, entries = RunSlice.read_frames, RunSlice.entries

    def counted_frames(self: RunSlice, start: int, into: np.ndarray) -> None:
        frames_read.append(len(into))
        read_frames(self, start, into)

    def counted_entries(self: RunSlice, first: int, last: int) -> np.ndarray:
        entries_read.append(last - first)
        return entries(self, first, last)

    monkeypatch.setattr(RunSlice, "read_frames", counted_frames)
    monkeypatch.setattr(RunSlice, "entries", counted_entries)
    window = max_window_entries(memory_bytes)
    assert parts <= max_fan_in(memory_bytes)
    rounds = 0
    frames_bytes = sum(piece.frames_bytes for piece in slices)
    for merge_round in merge(slices, memory_bytes):
        rounds += 1
        num_reads_before = len(frames_read)
        assert (
            sum(len(frames) for frames, _ in merge_round.sort().frames(0, merge_round.records))
            == merge_round.frames_bytes
        )
        pieces = -(-merge_round.frames_bytes // (memory_bytes // 4)) * 2
        assert len(frames_read) - num_reads_before <= pieces * len(merge_round.entries_by_slice)
        assert len(frames_read) - num_reads_before <= merge_round.records
    assert rounds <= (1 if count <= window else 4 * count / window + 2 * parts)
    assert sum(frames_read) == frames_bytes
    assert sum(entries_read) <= 2 * count


def test_merge_of_many_slices_that_fit_in_memory_is_one_round(tmp_path: Path) -> None:
    slices = slices_of(runs_of(tmp_path, deal_records(4000, 200, "hashed", size=900)))
    assert len(slices) == 200
    assert sum(piece.frames_bytes for piece in slices) > 1 << 20
    assert len(list(merge(slices, 2 << 20))) == 1


def test_cancelled_run_stops_while_slices_are_merged(tmp_path: Path) -> None:
    slices = slices_of(runs_of(tmp_path, deal_records(500, 50, "hashed")))
    progress = Progress()
    progress.cancel()
    files = set(tmp_path.iterdir())
    with pytest.raises(RunCancelled), limit_fan_in(2, slices, tmp_path, 10_000, progress.advance):
        raise AssertionError("it was not stopped")
    assert set(tmp_path.iterdir()) == files
