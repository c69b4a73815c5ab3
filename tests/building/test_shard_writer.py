"""Shards contain the records between their boundaries. Damaged records are not written."""

import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.files import flip
from kit.sorted_runs import ONE_BUCKET, Record, deal_records, payloads_of, write_runs_with_histogram

from recordmill.base.errors import DataError
from recordmill.base.progress import Progress
from recordmill.building import run_slices, shard_boundaries, sorted_run
from recordmill.building.merge import merge
from recordmill.building.run_slices import (
    RunSlice,
    iter_shard_slices,
)
from recordmill.building.shard_boundaries import (
    ShardOptions,
    add_key_bounds,
    compute_boundaries,
)
from recordmill.building.shard_writer import ShardWriter, divide_frames, write_shards
from recordmill.building.sorted_run import Histogram, KeyBuckets, SortedRun
from recordmill.records.tfrecord.frames import FRAME_OVERHEAD_BYTES, frame_payloads
from recordmill.shards.file_names import ShardName
from recordmill.shards.manifest import INDEX_FOLDER


def test_shards_of_one_frequent_key_read_each_frame_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, total = write_runs_with_histogram(
        tmp_path, [*itertools.chain(*deal_records(5000, 10, "one"))], 500, 1, ONE_BUCKET
    )
    assert len(runs) == 10
    frames_read: list[int] = []
    entries_read: list[int] = []
    read_frames, entries = RunSlice.read_frames, RunSlice.entries
    monkeypatch.setattr(
        RunSlice,
        "read_frames",
        lambda self, start, into: (frames_read.append(len(into)), read_frames(self, start, into)),
    )
    monkeypatch.setattr(
        RunSlice,
        "entries",
        lambda self, begin, end: (entries_read.append(end - begin), entries(self, begin, end))[1],
    )
    folder = tmp_path / "data"
    (folder / INDEX_FOLDER).mkdir(parents=True)
    names = []
    boundaries = add_key_bounds(
        compute_boundaries(total, ShardOptions(num_shards=20), ["train"]), total, runs
    )
    for shards, slices in iter_shard_slices(runs, boundaries, 1, 1 << 20):
        name = ShardName("train", shards.index, shards.num_shards, "none")
        (shard,) = write_shards(folder, tmp_path, [name], shards, slices, 50_000, Progress())
        shard.finalize()
        names.append(folder / str(name))
    assert sum(frames_read) == sum(run.frames_bytes for run in runs)
    assert sum(entries_read) < 3 * 5000  # each shard reads a few entries of its neighbours
    assert sum(path.stat().st_size for path in names) == sum(run.frames_bytes for run in runs)


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
    max_group: int,
    memory_bytes: int,
) -> list[tuple[int, list[bytes]]]:
    """Returns (split, payloads in order) of every shard, by the code under test."""
    boundaries = add_key_bounds(compute_boundaries(total, options, names), total, runs)
    result: list[tuple[int, list[bytes]]] = [
        (split, []) for split in boundaries.table["split_id"].tolist()
    ]
    firsts = [
        int(np.searchsorted(boundaries.table["split_id"], split)) for split in range(len(names))
    ]
    for shards, slices in iter_shard_slices(runs, boundaries, max_group, memory_bytes):
        assert len(shards) <= max_group
        for number, data, keys in divide_frames(merge(slices, memory_bytes), shards):
            payloads = payloads_of(data)
            assert len(keys) == len(payloads)
            result[firsts[shards.split_id] + shards.index + number][1].extend(payloads)
    return result


def plain_shards(records: list[Record], options: ShardOptions) -> list[tuple[int, list[bytes]]]:
    """Returns the result of `shards_of`, computed from a sorted list."""
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
    index_stride=st.sampled_from([1, 2, 5, 64]),
    max_index_rows=st.sampled_from([1, 3, 1000]),
    max_group=st.sampled_from([1, 2, 1000]),
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
    index_stride: int,
    max_index_rows: int,
    max_group: int,
) -> None:
    sizes = [sum(record[0] == split for record in records) for split in (0, 1)]
    if num_shards is not None:
        num_shards = min(num_shards, *(size for size in sizes if size))
    options = ShardOptions(shard_bytes, num_shards)
    key_buckets = KeyBuckets(2, buckets, -(-(2**64) // buckets))
    with pytest.MonkeyPatch.context() as patched:
        for module in (sorted_run, run_slices, shard_boundaries):
            patched.setattr(module, "INDEX_STRIDE", index_stride)
        patched.setattr(shard_boundaries, "_MAX_INDEX_ROWS", max_index_rows)
        runs, total = write_runs_with_histogram(
            tmp_path, records, chunk, max_run_buffer_bytes, key_buckets
        )
        assert sum(run.records for run in runs) == len(records)
        shards = shards_of(runs, total, options, ["a", "b"], max_group, memory_bytes)
    # Records with equal keys are ordered by (file, position), as in the sorted list.
    assert shards == plain_shards(records, options)


def test_damaged_record_is_placed_in_its_shard_and_earlier_rounds_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All keys are equal, so one bucket contains all shards.
    records = [(0, 7, 0, position, b"%03d" % position) for position in range(300)]
    (run,), total = write_runs_with_histogram(
        tmp_path, records, 300, 1 << 20, KeyBuckets(1, 4, 2**62)
    )
    frame_bytes = 3 + FRAME_OVERHEAD_BYTES
    boundaries = compute_boundaries(total, ShardOptions(num_shards=2), ["train"])
    (first, block), (second, _) = iter_shard_slices([run], boundaries, 1, 1)
    frame_starts: list[int] = []
    read_frames = RunSlice.read_frames
    monkeypatch.setattr(
        RunSlice,
        "read_frames",
        lambda self, start, into: (frame_starts.append(start), read_frames(self, start, into)),
    )
    payloads = [
        payload
        for _, data, _ in divide_frames(merge(block, 500), second)
        for payload in payloads_of(data)
    ]
    assert payloads == [b"%03d" % position for position in range(150, 300)]
    assert min(frame_starts) >= 120 * frame_bytes  # a round takes about 26 records
    flip(run.path, 120 * frame_bytes + 12)
    (tmp_path / INDEX_FOLDER).mkdir()
    name = ShardName("train", 0, 2)
    with pytest.raises(
        DataError, match=rf"{name}: record 120, byte {120 * frame_bytes}: CRC of the data"
    ):
        write_shards(tmp_path, tmp_path, [name], first, block, 500, Progress())


def _data_folder(tmp_path: Path) -> Path:
    (tmp_path / INDEX_FOLDER).mkdir()
    return tmp_path


def test_shard_is_visible_only_after_it_has_its_final_name(tmp_path: Path) -> None:
    folder = _data_folder(tmp_path)
    writer = ShardWriter(folder, ShardName("train", 0, 1), split_id=0, index=0)
    frames = frame_payloads(np.frombuffer(b"abcde", np.uint8), np.array([0, 2, 5]))
    writer.add(frames, np.array([3, 4], np.uint64))
    assert (writer.records, writer.framed_bytes) == (2, len(frames.data))
    staged_shard = writer.finish()
    visible_files = [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]
    assert visible_files == []
    shard = staged_shard.finalize()
    assert (folder / shard.info.name).read_bytes() == frames.data.tobytes()
    assert shard.info.records == 2
    assert shard.info.bytes == shard.info.framed_bytes == len(frames.data)
    assert (folder / INDEX_FOLDER / ShardName("train", 0, 1).index_name).exists()
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 2


def test_compressed_shard_has_a_table_of_its_members(tmp_path: Path) -> None:
    folder = _data_folder(tmp_path)
    name = ShardName("train", 0, 1, "gzip")
    writer = ShardWriter(folder, name, split_id=0, index=0)
    frames = frame_payloads(np.zeros(5000, np.uint8), np.array([0, 2000, 5000]))
    writer.add(frames, np.array([3, 4], np.uint64))
    info = writer.finish().finalize().info
    assert gzip.decompress((folder / str(name)).read_bytes()) == frames.data.tobytes()
    table = np.load(folder / INDEX_FOLDER / name.members_name)
    assert table.tolist() == [(0, 0)]  # the start of the only member
    assert info.bytes == (folder / str(name)).stat().st_size
    assert info.framed_bytes == len(frames.data)


def test_removed_or_aborted_shard_never_gets_its_name(tmp_path: Path) -> None:
    folder = _data_folder(tmp_path)
    writer = ShardWriter(folder, ShardName("train", 0, 1), split_id=0, index=0)
    writer.finish().remove()
    assert not [path for path in folder.rglob("*") if path.is_file()]
    ShardWriter(folder, ShardName("train", 0, 1), split_id=0, index=0).abort()
    assert not [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]


def test_empty_shards_of_a_range_are_files_without_records(tmp_path: Path) -> None:
    # The only record is longer than the shards, so the second and the third one are empty.
    folder = _data_folder(tmp_path)
    runs, total = write_runs_with_histogram(folder, [(0, 7, 0, 0, bytes(100))], 1, 1, ONE_BUCKET)
    boundaries = compute_boundaries(total, ShardOptions(50), ["train"])
    ((shards, slices),) = iter_shard_slices(runs, boundaries, 9, 1 << 20)
    names = [ShardName("train", index, len(shards)) for index in range(len(shards))]
    staged_shards = write_shards(folder, folder, names, shards, slices, 1 << 20, Progress())
    assert [shard.finalize().info.records for shard in staged_shards] == [1, 0, 0]
    assert [(folder / str(name)).stat().st_size for name in names] == [116, 0, 0]
