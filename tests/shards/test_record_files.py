"""Records of many files are read by one number each, in any order."""

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.data_sets import mixed_rows, plain_file, write_data_set
from kit.files import flip

from recordmill.shards.catalog import catalog_files, catalog_inputs
from recordmill.shards.record_files import RecordFiles


@pytest.fixture(scope="module", params=["shards", "compressed shards", "foreign files"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RecordFiles:
    """60 records in three files."""
    folder = tmp_path_factory.mktemp("files")
    if request.param == "foreign files":
        plain_file(folder / "a.tfrecord", 20)
        plain_file(folder / "b.tfrecord", 10, 20)
        path = plain_file(folder / "c.tfrecord", 30, 30)
        (folder / "c.tfrecord.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        return RecordFiles.open(catalog_files([str(folder)]).files)
    compression = "gzip" if request.param == "compressed shards" else "none"
    rows = {"train": mixed_rows(60)}
    out = write_data_set(folder / "out", rows, shards=3, compression=compression)
    return RecordFiles.open(catalog_inputs(out).files)


def payloads_of(files: RecordFiles, numbers: list[int]) -> list[bytes]:
    frames = files.frames(np.array(numbers, np.int64))
    assert frames.damage == ()
    assert frames.numbers.tolist() == numbers
    return [frames.payload(row).tobytes() for row in range(len(frames))]


@given(st.lists(st.integers(0, 59), min_size=1, max_size=30))
def test_records_are_read_in_any_order(files: RecordFiles, numbers: list[int]) -> None:
    locations = [files.find(number) for number in numbers]
    expected = [file.frame(record).payload(0).tobytes() for file, record in locations]
    assert payloads_of(files, numbers) == expected


def test_number_of_a_record_counts_the_records_of_all_files(files: RecordFiles) -> None:
    ends = files.ends.tolist()
    assert len(files) == 3
    assert ends[-1] == 60
    for ordinal, end in enumerate(ends):
        file, record = files.find(end - 1)
        assert file is files[ordinal]
        assert record == file.records - 1
        assert files.path(end - 1) == file.file.path
        assert files.location(end - 1) == (file.file.path, f"record {record}")
        assert files.place(end - 1).startswith(f"record {record}, byte ")


def test_pickled_files_need_no_new_count(files: RecordFiles) -> None:
    files.count_records(1)
    copy = pickle.loads(pickle.dumps(files))
    assert copy.is_counted
    assert payloads_of(copy, [59, 0]) == payloads_of(files, [59, 0])


def test_joined_files_have_the_records_of_each_set(files: RecordFiles, tmp_path: Path) -> None:
    plain_file(tmp_path / "x.tfrecord", 5, 900)
    other_files = RecordFiles.open(catalog_files([str(tmp_path / "x.tfrecord")]).files)
    joined = RecordFiles.join([files, other_files, files])
    assert joined.ends.tolist()[-1] == 125
    payloads = payloads_of(joined, [0, 60, 64, 65, 124])
    assert payloads == [
        *payloads_of(files, [0]),
        *payloads_of(other_files, [0, 4]),
        *payloads_of(files, [0, 59]),
    ]
    assert pickle.loads(pickle.dumps(joined)).ends.tolist() == joined.ends.tolist()


def test_damaged_record_is_reported_by_its_number_among_all(tmp_path: Path) -> None:
    plain_file(tmp_path / "a.tfrecord", 20)
    path = plain_file(tmp_path / "b.tfrecord", 10, 20)
    shards = catalog_files([str(tmp_path)]).files
    (offset,), _ = RecordFiles.open(shards)[1].locate(np.array([4]))
    flip(path, int(offset) + 12)  # a byte of the payload
    files = RecordFiles.open(catalog_files([str(tmp_path)]).files)
    frames = files.frames(np.array([25, 24, 3]))
    assert frames.numbers.tolist() == [25, 3]
    assert [damage.record for damage in frames.damage] == [24]


def test_ascending_numbers_are_divided_within_files_by_their_bytes(files: RecordFiles) -> None:
    numbers = np.arange(0, 60, 2)
    parts = list(files.split(numbers, 1000))
    assert np.concatenate(parts).tolist() == numbers.tolist()
    assert 6 < len(parts) < 30
    for part in parts:
        assert len({files.path(int(number)) for number in part}) == 1
        size = len(files.frames(part).data)
        assert size < 2000 or len(part) == 1
    assert [len(part) for part in files.split(numbers, 1 << 30)] == [
        int(((numbers >= begin) & (numbers < end)).sum())
        for begin, end in zip([0, *files.ends[:-1]], files.ends, strict=True)
    ]
