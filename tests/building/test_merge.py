"""Merged shards equal sorting all records, within the stated rounds, reads and memory."""

import itertools
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.files import flip
from kit.sorted_runs import Record, payloads_of, write_runs, write_runs_with_histogram

from recordmill.base.errors import DataError, UsageError
from recordmill.base.progress import Progress, RunCancelled
from recordmill.building import run_slices, shard_boundaries, sorted_run
from recordmill.building.merge import limit_fan_in, max_fan_in, max_window_entries, merge
from recordmill.building.run_slices import (
    RunSlice,
    find_slice_bounds,
    iter_shard_slices,
    make_slices,
)
from recordmill.building.shard_boundaries import (
    BOUNDARY_DTYPE,
    BY_RECORDS,
    ShardOptions,
    ShardRange,
    add_key_bounds,
    compute_boundaries,
)
from recordmill.building.shard_writer import divide_frames, write_shards
from recordmill.building.sorted_run import Histogram, KeyBuckets, SortedRun
from recordmill.records.tfrecord.frames import FRAME_OVERHEAD_BYTES
from recordmill.shards.file_names import ShardName
from recordmill.shards.manifest import INDEX_FOLDER

ONE = KeyBuckets(1, 1, 2**64)


def slices_of(runs: Sequence[SortedRun]) -> list[RunSlice]:
    row = np.zeros(1, BOUNDARY_DTYPE)
    row["end_bucket"] = 1
    return make_slices(runs, np.concatenate([find_slice_bounds(run, row) for run in runs]))


def runs_of(folder: Path, parts: Sequence[Sequence[Record]]) -> list[SortedRun]:
    return [
        run
        for part in parts
        if part
        for run in write_runs(folder, list(part), len(part), 1 << 26, ONE)
    ]


def merged(slices: Sequence[RunSlice], memory_bytes: int) -> list[bytes]:
    shard = ShardRange(0, 0, 1, (0, sum(piece.records for piece in slices)), BY_RECORDS)
    return [
        payload
        for _, data, _ in divide_frames(merge(slices, memory_bytes), shard)
        for payload in payloads_of(data)
    ]


def dealt(count: int, parts: int, keys: str, size: int = 20) -> list[list[Record]]:
    """Records in parts: with keys of their own, of all parts in turn; of consecutive parts; or all
    the same.
    """
    dice = random.Random(count + parts)
    result: list[list[Record]] = [[] for _ in range(parts)]
    for number in range(count):
        key = {"hashed": dice.getrandbits(64), "in order": number, "one": 7}[keys]
        part = number * parts // count
        result[part].append((0, key, part, number, b"%08d" % number + b"x" * dice.randrange(size)))
    return result


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 250),
    parts=st.integers(1, 40),
    spread=st.sampled_from([1, 3, 2**64]),
    sizes=st.sampled_from([(0, 1), (0, 60), (0, 3000)]),
    memory_bytes=st.sampled_from([1, 5000, 20_000, 100_000, 1 << 22]),
    most=st.sampled_from([2, 5, 1000]),
)
def test_merge_equals_sorting_all_records(
    seed: int,
    count: int,
    parts: int,
    spread: int,
    sizes: tuple[int, int],
    memory_bytes: int,
    most: int,
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
        with limit_fan_in(most, slices, Path(folder), memory_bytes, lambda: None) as few:
            assert len(few) <= most
            got = merged(few, memory_bytes)
        assert len(list(Path(folder).glob("level-*"))) == 0
    assert got == [record[4] for record in sorted(record for part in records for record in part)]


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
    slices = slices_of(runs_of(tmp_path, dealt(count, parts, keys)))
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
    for one in merge(slices, memory_bytes):
        rounds += 1
        before = len(frames_read)
        assert (
            sum(len(frames) for frames, _ in one.sort().frames(0, one.records)) == one.frames_bytes
        )
        pieces = -(-one.frames_bytes // (memory_bytes // 4)) * 2
        assert len(frames_read) - before <= pieces * len(one.entries_by_slice)
        assert len(frames_read) - before <= one.records
    assert rounds <= (1 if count <= window else 4 * count / window + 2 * parts)
    assert sum(frames_read) == frames_bytes
    assert sum(entries_read) <= 2 * count


def test_merge_of_many_slices_that_fit_in_memory_is_one_round(tmp_path: Path) -> None:
    slices = slices_of(runs_of(tmp_path, dealt(4000, 200, "hashed", size=900)))
    assert len(slices) == 200
    assert sum(piece.frames_bytes for piece in slices) > 1 << 20
    assert len(list(merge(slices, 2 << 20))) == 1


def test_shards_of_one_frequent_key_read_each_frame_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, total = write_runs_with_histogram(
        tmp_path, [*itertools.chain(*dealt(5000, 10, "one"))], 500, 1, ONE
    )
    assert len(runs) == 10
    read: list[int] = []
    entries_read: list[int] = []
    read_frames, entries = RunSlice.read_frames, RunSlice.entries
    monkeypatch.setattr(
        RunSlice,
        "read_frames",
        lambda self, start, into: (read.append(len(into)), read_frames(self, start, into)),
    )
    monkeypatch.setattr(
        RunSlice,
        "entries",
        lambda self, at, upto: (entries_read.append(upto - at), entries(self, at, upto))[1],
    )
    folder = tmp_path / "data"
    (folder / INDEX_FOLDER).mkdir(parents=True)
    names = []
    cuts = add_key_bounds(
        compute_boundaries(total, ShardOptions(num_shards=20), ["train"]), total, runs
    )
    for shards, of_shards in iter_shard_slices(runs, cuts, 1, 1 << 20):
        name = ShardName("train", shards.index, shards.num_shards, "none")
        (shard,) = write_shards(folder, tmp_path, [name], shards, of_shards, 50_000, Progress())
        shard.finalize()
        names.append(folder / str(name))
    assert sum(read) == sum(run.frames_bytes for run in runs)
    assert sum(entries_read) < 3 * 5000  # a few of its neighbours' each
    assert sum(path.stat().st_size for path in names) == sum(run.frames_bytes for run in runs)


def test_cancelled_run_stops_while_slices_are_merged(tmp_path: Path) -> None:
    slices = slices_of(runs_of(tmp_path, dealt(500, 50, "hashed")))
    progress = Progress()
    progress.cancel()
    before = set(tmp_path.iterdir())
    with pytest.raises(RunCancelled), limit_fan_in(2, slices, tmp_path, 10_000, progress.advance):
        raise AssertionError("it was not stopped")
    assert set(tmp_path.iterdir()) == before


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
    lambda items: [
        (split, key, file, position, payload)
        for position, (split, key, file, payload) in enumerate(items)
    ]
)


def shards_of(
    runs: list[SortedRun],
    total: Histogram,
    options: ShardOptions,
    names: list[str],
    together: int,
    memory_bytes: int,
) -> list[tuple[int, list[bytes]]]:
    """(split, payloads in order) of every shard, by the code under test."""
    cuts = add_key_bounds(compute_boundaries(total, options, names), total, runs)
    result: list[tuple[int, list[bytes]]] = [
        (split, []) for split in cuts.table["split_id"].tolist()
    ]
    firsts = [int(np.searchsorted(cuts.table["split_id"], split)) for split in range(len(names))]
    for shards, found in iter_shard_slices(runs, cuts, together, memory_bytes):
        assert len(shards) <= together
        for number, data, keys in divide_frames(merge(found, memory_bytes), shards):
            payloads = payloads_of(data)
            assert len(keys) == len(payloads)
            result[firsts[shards.split_id] + shards.index + number][1].extend(payloads)
    return result


def plain_shards(records: list[Record], options: ShardOptions) -> list[tuple[int, list[bytes]]]:
    """The same by sorting a list."""
    result = []
    for split in (0, 1):
        ordered = [
            payload
            for _, _, _, _, payload in sorted(record for record in records if record[0] == split)
        ]
        if not ordered:
            continue
        if options.num_shards is not None:
            n = options.num_shards
            result += [
                (split, ordered[i * len(ordered) // n : (i + 1) * len(ordered) // n])
                for i in range(n)
            ]
            continue
        begins = np.cumsum([0, *(len(payload) + FRAME_OVERHEAD_BYTES for payload in ordered)])
        count = -(-int(begins[-1]) // options.shard_bytes)
        shards: list[list[bytes]] = [[] for _ in range(count)]
        for begin, payload in zip(begins, ordered, strict=False):
            shards[int(begin) // options.shard_bytes].append(payload)
        result += [(split, shard) for shard in shards]
    return result


@settings(
    max_examples=75, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    records=records_strategy,
    chunk=st.integers(1, 20),
    max_run_buffer_bytes=st.sampled_from([1, 300, 5000]),
    buckets=st.sampled_from([1, 2, 7, 1024]),
    shard_bytes=st.sampled_from([20, 100, 1000]),
    num_shards=st.none() | st.integers(1, 3),
    memory_bytes=st.sampled_from([1, 200, 10**6]),
    marked=st.sampled_from([1, 2, 5, 64]),
    most_marks=st.sampled_from([1, 3, 1000]),
    together=st.sampled_from([1, 2, 1000]),
)
def test_shards_equal_the_divided_sorted_list(
    tmp_path: Path,
    records: list[Record],
    chunk: int,
    max_run_buffer_bytes: int,
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
        for module in (sorted_run, run_slices, shard_boundaries):
            patched.setattr(module, "INDEX_STRIDE", marked)
        patched.setattr(shard_boundaries, "_MAX_INDEX_ROWS", most_marks)
        runs, total = write_runs_with_histogram(tmp_path, records, chunk, max_run_buffer_bytes, few)
        assert sum(run.records for run in runs) == len(records)
        got = shards_of(runs, total, options, ["a", "b"], together, memory_bytes)
    # Records of equal key are ordered by (file, position); the plain sort compares the same triple.
    assert got == plain_shards(records, options)


def test_more_shards_than_records_of_a_split_is_refused() -> None:
    with pytest.raises(UsageError, match=r"num_shards=4: split 'test' has only 3 records"):
        compute_boundaries(
            Histogram(np.array([[9], [3]]), np.array([[90], [30]])),
            ShardOptions(num_shards=4),
            ["train", "test"],
        )


def test_damaged_record_is_placed_in_its_shard_and_earlier_rounds_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # all keys equal: one bucket for all shards
    records = [(0, 7, 0, position, b"%03d" % position) for position in range(300)]
    (run,), total = write_runs_with_histogram(
        tmp_path, records, 300, 1 << 20, KeyBuckets(1, 4, 2**62)
    )
    frame_bytes = 3 + FRAME_OVERHEAD_BYTES
    cuts = compute_boundaries(total, ShardOptions(num_shards=2), ["train"])
    (first, block), (second, _) = iter_shard_slices([run], cuts, 1, 1)
    read: list[int] = []
    read_frames = RunSlice.read_frames
    monkeypatch.setattr(
        RunSlice,
        "read_frames",
        lambda self, start, into: (read.append(start), read_frames(self, start, into)),
    )
    payloads = [
        payload
        for _, data, _ in divide_frames(merge(block, 500), second)
        for payload in payloads_of(data)
    ]
    assert payloads == [b"%03d" % position for position in range(150, 300)]
    assert min(read) >= 120 * frame_bytes  # a round takes about 26 records
    flip(run.path, 120 * frame_bytes + 12)
    (tmp_path / INDEX_FOLDER).mkdir()
    name = ShardName("train", 0, 2)
    with pytest.raises(
        DataError, match=rf"{name}: record 120, byte {120 * frame_bytes}: CRC of the data"
    ):
        write_shards(tmp_path, tmp_path, [name], first, block, 500, Progress())
