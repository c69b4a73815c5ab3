"""Decompressed content is stored in few temporary files, which processes share.

If the disk is too small for it, the error is clear.
"""

import errno
import gzip
import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.child_processes import read_ids
from kit.files import tfrecord_bytes
from kit.runs import limit_descriptors, run_python

import recordmill
from recordmill.base.errors import RecordmillError
from recordmill.reader.dataset import Dataset
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards import tfrecord_file
from recordmill.shards.tfrecord_file import InflatedFile
from recordmill.sources.arrow.single_example import example
from recordmill.storage import spool as module
from recordmill.storage.spool import Lane, Spool

SCHEMA = Schema((Feature("id", "int64", (), True),))


def write_compressed_set(folder: Path, files: int, rows: int = 20) -> Dataset:
    folder.mkdir(exist_ok=True)
    for number in range(files):
        first = number * rows
        content = tfrecord_bytes(example({"id": first + row}) for row in range(rows))
        (folder / f"{number:04d}.tfrecord.gz").write_bytes(gzip.compress(content, 1))
    return recordmill.open(str(folder / "*.gz"), schema=SCHEMA, threads=2)


def test_lanes_hold_several_files_and_are_reused() -> None:
    spool, ranges = Spool(), []
    for number in range(5):
        with spool.lane() as lane, spool.append_file(lane, "a") as begin:
            lane.append(np.full(5000 + number, number, np.uint8))
            ranges.append((lane, begin, lane.size_bytes))
    assert len({id(lane) for lane, _, _ in ranges}) == 1
    for number, (lane, begin, end) in enumerate(ranges):
        assert lane.read(begin, end).tolist() == [number] * (5000 + number)
        assert lane.read(begin, begin).tolist() == []


def test_failed_file_leaves_no_byte_in_its_lane() -> None:
    spool = Spool()

    def fail(lane: Lane) -> None:
        with spool.append_file(lane, "a"):
            lane.append(np.zeros(5000, np.uint8))
            raise KeyError

    with spool.lane() as lane:
        with pytest.raises(KeyError):
            fail(lane)
        assert lane.size_bytes == 0
        assert os.fstat(lane._file.fileno()).st_size == 0


def test_full_temporary_folder_is_reported_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds, append, total_bytes = write_compressed_set(tmp_path / "in", 3), Lane.append, [0]

    def fill_up(lane: Lane, data: Any) -> None:
        total_bytes[0] += len(data)
        if total_bytes[0] > 1200:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(lane, data)

    monkeypatch.setattr(Lane, "append", fill_up)
    with pytest.raises(
        RecordmillError, match=r"No space left in TMPDIR \(.*\): 000\d\.tfrecord\.gz"
    ) as error:
        ds.batches(8, shuffle="global")
    assert "`recordmill build tfrecord`" in str(error.value)
    assert "Set TMPDIR" in str(error.value)
    assert ds.to_table()["id"].to_pylist() == list(range(60))  # this read uses no temporary file


def test_too_little_room_for_the_compressed_files_is_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = write_compressed_set(tmp_path / "in", 2)
    monkeypatch.setattr(
        module.os, "statvfs", lambda path: os.statvfs_result((1, 1, 0, 0, 0, 0, 0, 0, 0, 0))
    )
    with pytest.raises(RecordmillError, match=r"2 files have .* even before they are inflated"):
        ds.batches(8, shuffle="global")


def test_reads_in_file_order_need_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = write_compressed_set(tmp_path / "in", 3)

    def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("a temporary file is made")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert len(ds) == 60
    assert ds.to_table()["id"].to_pylist() == list(range(60))
    assert ds.head(3)["id"].to_pylist() == [0, 1, 2]
    assert recordmill.inspect(str(tmp_path / "in"), threads=1).records == 60
    assert recordmill.verify(str(tmp_path / "in")) == []


def record_inflations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    inflate = InflatedFile._inflate_into

    def count(self: InflatedFile, lane: Lane) -> Any:
        names.append(self.file.name)
        return inflate(self, lane)

    monkeypatch.setattr(InflatedFile, "_inflate_into", count)
    return names


def test_each_file_is_inflated_once_for_all_epochs_and_views(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds, names = write_compressed_set(tmp_path / "in", 4), record_inflations(monkeypatch)
    for _ in range(2):
        numbers = [
            number
            for batch in ds.batches(7, shuffle="global", epochs=2)
            for number in batch["id"].tolist()
        ]
        assert sorted(numbers) == sorted([*range(80), *range(80)])
    assert ds.filter([5, 61]).take([1])["id"].to_pylist() == [61]
    assert ds[79]["id"] == 79
    assert sorted(names) == sorted(set(names))
    assert len(names) == 4


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_child_process_reads_data_that_its_parent_inflated(tmp_path: Path, method: str) -> None:
    ds = write_compressed_set(tmp_path / "in", 4)
    ds.files.spool_all(2)
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(False)
    child = context.Process(target=read_ids, args=(ds, sender))
    child.start()
    try:
        assert receiver.poll(60)
        assert receiver.recv() == ([79, 0, 41], 0)
    finally:
        child.join()
    # The parent continues in lanes that the child does not write to.
    assert ds.take([5])["id"].to_pylist() == [5]


def test_forked_child_appends_to_its_own_lanes(tmp_path: Path) -> None:
    ds = write_compressed_set(tmp_path / "in", 2)
    ds.files[0].frame(0)
    (lane, _) = ds.files[0]._place  # type: ignore[attr-defined]
    size = lane.size_bytes
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(False)
    child = context.Process(target=lambda: sender.send(ds.files[1].frame(3).numbers.tolist()))
    child.start()
    assert receiver.poll(60)
    assert receiver.recv() == [3]
    child.join()
    assert os.fstat(lane._file.fileno()).st_size == size


TRAIN = """
import os, resource, sys
import numpy as np
import recordmill
from recordmill.schemas.feature import Feature, Schema

ds = recordmill.open(sys.argv[1], schema=Schema((Feature("id", "int64", (), True),)), threads=2)
most, ids = 0, []
for batch in ds.batches(64, shuffle="global", memory_bytes=16 << 20):
    most = max(most, len(os.listdir("/proc/self/fd")))
    ids += batch["id"].tolist()
assert sorted(ids) == list(range(6000)), len(ids)
print(most)
"""


def test_300_files_are_shuffled_globally_with_few_open_files(tmp_path: Path) -> None:
    write_compressed_set(tmp_path / "in", 300)
    done = run_python("-c", TRAIN, tmp_path / "in", check=False, preexec_fn=limit_descriptors)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) < 60


def test_damage_in_a_compressed_file_is_the_same_in_any_order(tmp_path: Path) -> None:
    write_compressed_set(tmp_path / "in", 1)
    path = tmp_path / "in" / "0000.tfrecord.gz"
    content = bytearray(gzip.decompress(path.read_bytes()))
    size = len(content) // 20
    content[3 * size + 14] ^= 1  # in a payload
    content[9 * size + 2] ^= 1  # in a length
    path.write_bytes(gzip.compress(bytes(content)))
    ds = recordmill.open(path, schema=SCHEMA)
    for mode in (False, "global"):
        with pytest.raises(recordmill.DataError, match="record 3, byte"):
            ds.batches(4, shuffle=mode)
        batches = ds.batches(4, shuffle=mode, on_bad="skip", drop_remainder=False)
        with pytest.warns(UserWarning, match="2 of 20 records were skipped"):
            numbers = [number for batch in batches for number in batch["id"].tolist()]
        assert sorted(numbers) == [n for n in range(20) if n not in (3, 9)]


def test_file_that_changes_between_counting_and_inflating_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ds = write_compressed_set(tmp_path / "in", 1)
    assert len(ds) == 20
    monkeypatch.setattr(tfrecord_file.ShardFile, "check_unchanged", lambda self: None, raising=True)
    content = tfrecord_bytes(example({"id": row}) for row in range(19))
    (tmp_path / "in" / "0000.tfrecord.gz").write_bytes(gzip.compress(content, 1))
    with pytest.raises(recordmill.DataError, match="changed while it was read"):
        ds.take([5])
