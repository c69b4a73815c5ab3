"""Runs, cuts and merges against the plain answer: sort everything in memory, then cut the sorted list."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_runs import Record, payloads_of, write_runs_with_histogram

from recordmill.base.errors import DataError, UsageError
from recordmill.base.progress import Progress
from recordmill.building import cuts, run_file, slices
from recordmill.building.cuts import BY_BYTES, BY_RECORDS, ShardOptions, cut_shards, with_splitters
from recordmill.building.merge import merge
from recordmill.building.run_file import Histogram, KeyBuckets, RunFile
from recordmill.building.shard_writer import cut_frames, write_shards
from recordmill.building.slices import RunSlice, shard_slices
from recordmill.records.tfrecord.frames import FRAME_BYTES
from recordmill.shards.grammar import ShardName
from recordmill.shards.manifest import INDEX_FOLDER

records_strategy = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from([0, 1, 2**63, 2**64 - 1, 12345 << 40]) | st.integers(0, 2**64 - 1),
        st.integers(0, 2),
        st.binary(max_size=40),
    ),
    min_size=1,
    max_size=60,
).map(
    lambda items: [(split, key, file, position, payload) for position, (split, key, file, payload) in enumerate(items)]
)


def shards_of(
    runs: list[RunFile], total: Histogram, options: ShardOptions, names: list[str], together: int, memory_bytes: int
) -> list[tuple[int, list[bytes]]]:
    """(split, payloads in order) of every shard, by the code under test."""
    cuts = with_splitters(cut_shards(total, options, names), total, runs)
    result: list[tuple[int, list[bytes]]] = [(split, []) for split in cuts.table["split"].tolist()]
    firsts = [int(np.searchsorted(cuts.table["split"], split)) for split in range(len(names))]
    for shards, found in shard_slices(runs, cuts, together, memory_bytes):
        assert len(shards) <= together
        for number, data, keys in cut_frames(merge(found, memory_bytes), shards):
            payloads = payloads_of(data)
            assert len(keys) == len(payloads)
            result[firsts[shards.split] + shards.index + number][1].extend(payloads)
    return result


def plain_shards(records: list[Record], options: ShardOptions) -> list[tuple[int, list[bytes]]]:
    """The same by sorting a list."""
    result = []
    for split in (0, 1):
        ordered = [payload for _, _, _, _, payload in sorted(record for record in records if record[0] == split)]
        if not ordered:
            continue
        if options.num_shards is not None:
            n = options.num_shards
            result += [(split, ordered[i * len(ordered) // n : (i + 1) * len(ordered) // n]) for i in range(n)]
            continue
        begins = np.cumsum([0, *(len(payload) + FRAME_BYTES for payload in ordered)])
        count = -(-int(begins[-1]) // options.shard_bytes)
        shards: list[list[bytes]] = [[] for _ in range(count)]
        for begin, payload in zip(begins, ordered, strict=False):
            shards[int(begin) // options.shard_bytes].append(payload)
        result += [(split, shard) for shard in shards]
    return result


@settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=records_strategy,
    chunk=st.integers(1, 20),
    arena_bytes=st.sampled_from([1, 300, 5000]),
    buckets=st.sampled_from([1, 2, 7, 1024]),
    shard_bytes=st.sampled_from([20, 100, 1000]),
    num_shards=st.none() | st.integers(1, 3),
    memory_bytes=st.sampled_from([1, 200, 10**6]),
    marked=st.sampled_from([1, 2, 5, 64]),
    most_marks=st.sampled_from([1, 3, 1000]),
    together=st.sampled_from([1, 2, 1000]),
)
def test_shards_are_the_sorted_list_cut(
    tmp_path: Path,
    records: list[Record],
    chunk: int,
    arena_bytes: int,
    buckets: int,
    shard_bytes: int,
    num_shards: int | None,
    memory_bytes: int,
    marked: int,
    most_marks: int,
    together: int,
) -> None:
    sizes = [sum(record[0] == split for record in records) for split in (0, 1)]
    if num_shards is not None:
        num_shards = min(num_shards, *(size for size in sizes if size))
    options = ShardOptions(shard_bytes, num_shards)
    few = KeyBuckets(2, buckets, -(-(2**64) // buckets))
    with pytest.MonkeyPatch.context() as patched:
        for module in (run_file, slices, cuts):
            patched.setattr(module, "MARKED", marked)
        patched.setattr(cuts, "_MOST_MARKS", most_marks)
        runs, total = write_runs_with_histogram(tmp_path, records, chunk, arena_bytes, few)
        assert sum(run.records for run in runs) == len(records)
        got = shards_of(runs, total, options, ["a", "b"], together, memory_bytes)
    # Records of equal key are ordered by (file, position); the plain sort compares the same triple.
    assert got == plain_shards(records, options)


@pytest.mark.sweep
def test_shard_sizes_stay_near_the_target(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    records = [
        (0, int(generator.integers(0, 2**64, dtype=np.uint64)), 0, i, bytes(int(generator.integers(1, 50))))
        for i in range(4000)
    ]
    runs, total = write_runs_with_histogram(tmp_path, records, 500, 20000, KeyBuckets.plan(1, 2**64, 10))
    assert len(runs) > 3
    sizes = []
    for shards, found in shard_slices(runs, cut_shards(total, ShardOptions(10_000), ["train"]), 1, 1 << 20):
        sizes.append(sum(len(data) for _, data, _ in cut_frames(merge(found, 5000), shards)))
    assert sum(sizes) == sum(len(payload) + FRAME_BYTES for *_, payload in records)
    assert all(abs(size - 10_000) <= 1000 for size in sizes[:-1])
    assert len(sizes) == -(-sum(sizes) // 10_000)


def test_numbered_shards_differ_by_at_most_one_record() -> None:
    histogram = Histogram(np.array([[3, 0, 4, 10]]), np.array([[300, 0, 400, 1000]]))
    cuts = cut_shards(histogram, ShardOptions(num_shards=5), ["train"])
    assert cuts.by == BY_RECORDS
    assert np.diff(cuts.shards(0, 5).edges).tolist() == [3, 3, 4, 3, 4]
    assert set(cuts.table["of"].tolist()) == {5}


def test_a_smaller_shard_size_never_gives_fewer_shards() -> None:
    histogram = Histogram(np.array([[5, 5]]), np.array([[500, 501]]))
    counts = [len(cut_shards(histogram, ShardOptions(size), ["train"])) for size in range(1, 1200)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 1001
    assert counts[-1] == 1
    assert cut_shards(histogram, ShardOptions(400), ["train"]).by == BY_BYTES


def test_more_shards_than_records_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"num_shards=4: split 'test' has only 3 records"):
        cut_shards(
            Histogram(np.array([[9], [3]]), np.array([[90], [30]])), ShardOptions(num_shards=4), ["train", "test"]
        )


def test_a_damaged_record_is_placed_in_the_shard_and_rounds_before_a_shard_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # all keys equal: one bucket for all shards
    records = [(0, 7, 0, position, b"%03d" % position) for position in range(300)]
    (run,), total = write_runs_with_histogram(tmp_path, records, 300, 1 << 20, KeyBuckets(1, 4, 2**62))
    frame_bytes = 3 + FRAME_BYTES
    cuts = cut_shards(total, ShardOptions(num_shards=2), ["train"])
    (first, block), (second, _) = shard_slices([run], cuts, 1, 1)
    read: list[int] = []
    read_frames = RunSlice.read_frames
    monkeypatch.setattr(
        RunSlice, "read_frames", lambda self, start, into: (read.append(start), read_frames(self, start, into))
    )
    payloads = [payload for _, data, _ in cut_frames(merge(block, 500), second) for payload in payloads_of(data)]
    assert payloads == [b"%03d" % position for position in range(150, 300)]
    assert min(read) >= 120 * frame_bytes  # a round takes about 26 records
    damaged = bytearray(Path(run.path).read_bytes())
    damaged[120 * frame_bytes + 12] ^= 1
    Path(run.path).write_bytes(damaged)
    (tmp_path / INDEX_FOLDER).mkdir()
    name = ShardName("train", 0, 2)
    with pytest.raises(DataError, match=rf"{name}: record 120, byte {120 * frame_bytes}: CRC of the data"):
        write_shards(tmp_path, tmp_path, [name], first, block, 500, Progress())
