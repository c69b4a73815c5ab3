"""Any record of a TFRecord file is found, also in a forked process."""

import gzip
import multiprocessing
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.data_sets import mixed_rows, plain_file, write_data_set
from kit.files import flip

from recordmill.base.errors import DataError
from recordmill.records.tfrecord.frames import FRAME_OVERHEAD_BYTES
from recordmill.shards import tfrecord_file
from recordmill.shards.catalog import ShardFile, catalog_files, catalog_inputs
from recordmill.shards.tfrecord_file import open_tfrecord
from recordmill.storage.codecs import SHARD_SUFFIXES


def test_forked_child_finds_record_offsets_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shard,) = catalog_files([str(plain_file(tmp_path / "a.tfrecord"))]).files
    file = open_tfrecord(shard, 0)
    scan_started, scan_may_continue = threading.Event(), threading.Event()
    scan_headers = tfrecord_file.scan_headers

    def scan_and_wait(*arguments: Any, **options: Any) -> Any:
        if threading.current_thread() is thread:
            scan_started.set()
            scan_may_continue.wait(60)
        return scan_headers(*arguments, **options)

    monkeypatch.setattr(tfrecord_file, "scan_headers", scan_and_wait)
    thread = threading.Thread(target=lambda: file.records)
    receiver, sender = multiprocessing.Pipe(False)
    child = multiprocessing.get_context("fork").Process(target=lambda: sender.send(file.records))
    thread.start()
    try:
        assert scan_started.wait(60)
        child.start()
        assert receiver.poll(60), "the child waits"
        assert receiver.recv() == 50
    finally:
        scan_may_continue.set()
        thread.join()
        child.kill()
        child.join()


@pytest.fixture(scope="module", params=[*SHARD_SUFFIXES, "foreign", "foreign gzip"])
def shard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ShardFile:
    """A file of 50 records.

    It is a shard of each compression, or a file without an index.
    """
    folder = tmp_path_factory.mktemp("shard")
    if request.param.startswith("foreign"):
        path = plain_file(folder / "a.tfrecord")
        if request.param == "foreign gzip":
            path.write_bytes(gzip.compress(path.read_bytes()))
        (file,) = catalog_files([str(path)]).files
        return file
    rows = {"train": mixed_rows(50)}
    out = write_data_set(folder / "out", rows, shards=1, compression=request.param)
    (file,) = catalog_inputs(out).files
    return file


@pytest.fixture(scope="module")
def payloads(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The 50 records, as a stream of an uncompressed file returns them."""
    path = plain_file(tmp_path_factory.mktemp("plain") / "a.tfrecord")
    (file,) = catalog_files([str(path)]).files
    return [
        frames.payload(row).tobytes()
        for call in open_tfrecord(file, 0).iter_first_reads(100)
        for frames in [call()]
        for row in range(len(frames))
    ]


def test_every_record_is_read_alone_and_in_ranges(shard: ShardFile, payloads: list[bytes]) -> None:
    file = open_tfrecord(shard, 4)
    assert file.records == len(payloads) == 50
    for number in (0, 17, 49):
        frames = file.frame(number)
        assert frames.numbers.tolist() == [number]
        assert frames.payload(0).tobytes() == payloads[number]
    for start, stop in ((0, 50), (13, 14), (13, 40), (20, 20)):
        result = []
        for call in file.iter_reads(start, stop, piece_records=9):
            frames = call()
            assert len(frames) <= 9
            result += [frames.payload(row).tobytes() for row in range(len(frames))]
        assert result == payloads[start:stop]


def test_offsets_and_lengths_are_those_of_the_frames(
    shard: ShardFile, payloads: list[bytes]
) -> None:
    file = open_tfrecord(shard, 0)
    offsets, lengths = file.locate(np.array([49, 0, 7]))
    ends = np.cumsum([0, *(len(payload) + FRAME_OVERHEAD_BYTES for payload in payloads)])
    assert lengths.tolist() == [len(payloads[row]) for row in (49, 0, 7)]
    assert offsets.tolist() == [int(ends[row]) for row in (49, 0, 7)]
    assert file.framed_bytes == int(ends[-1])


def test_pickled_file_reads_the_same_records(shard: ShardFile, payloads: list[bytes]) -> None:
    file = pickle.loads(pickle.dumps(open_tfrecord(shard, 0)))
    assert file.frame(3).payload(0).tobytes() == payloads[3]


def test_first_reads_stop_at_the_record_limit(shard: ShardFile, payloads: list[bytes]) -> None:
    reads = [call() for call in open_tfrecord(shard, 0).iter_first_reads(5)]
    assert sum(len(frames) for frames in reads) == 5
    assert reads[0].payload(0).tobytes() == payloads[0]


def test_unneeded_pieces_are_not_read(shard: ShardFile) -> None:
    file = open_tfrecord(shard, 0)
    needed = file.iter_reads(
        0, 50, piece_records=10, is_needed=lambda first, end: first <= 25 < end
    )
    numbers = [number for call in needed for number in call().numbers.tolist()]
    assert 25 in numbers
    # A compressed file without an index is a stream, which has no pieces to leave out.
    if shard.info is not None or shard.codec.is_plain:
        assert numbers[-1] - numbers[0] < 10


def test_damaged_record_of_a_file_without_an_index_has_no_length(tmp_path: Path) -> None:
    path = plain_file(tmp_path / "a.tfrecord")
    (shard,) = catalog_files([str(path)]).files
    offset = int(open_tfrecord(shard, 0).locate(np.array([20]))[0][0])
    flip(path, offset)  # the length of record 20
    (shard,) = catalog_files([str(path)]).files
    file = open_tfrecord(shard, 0)
    assert [damage.record for damage in file.damage] == [20]
    assert file.records == 50
    assert file.locate(np.array([19, 20]))[1][1] == -1
    with pytest.raises(DataError, match=r"record 20, byte"):
        file.frame(20)
    file.frame(21)
