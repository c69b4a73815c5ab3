"""Shards that are read together return the same records and errors as single shards."""

import os
from pathlib import Path

import numpy as np
import pytest
from kit.files import flip

import recordmill
from recordmill.base.errors import DataError
from recordmill.shards import joined_shards
from recordmill.shards.manifest import load_manifest
from recordmill.shards.record_files import RecordFiles
from recordmill.storage import mapped_files

_RECORDS, _SHARDS = 3000, 40


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(tmp_path_factory.mktemp("joined") / "out")


def _build(out: Path, records: int = _RECORDS, shards: int = _SHARDS) -> Path:
    rows = {"id": list(range(records)), "text": ["x" * (row % 50) for row in range(records)]}
    recordmill.build(rows, out, num_shards=shards)
    return out


def _open_one_by_one(out: Path, patch: pytest.MonkeyPatch) -> recordmill.Dataset:
    with patch.context() as context:
        context.setattr(joined_shards, "MIN_SHARDS", _SHARDS + 1)
        dataset = recordmill.open(out)
    assert dataset.files._joined is None
    return dataset


def _mapped_shards(files: RecordFiles) -> list[int]:
    assert files._joined is not None
    return np.flatnonzero(files._joined._is_mapped).tolist()


def _shard_path(out: Path, ordinal: int) -> Path:
    (part,) = load_manifest(out).parts
    return out / part.folder / part.splits["train"][ordinal].name


def test_joined_shards_have_the_records_of_separate_shards(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined, separate = recordmill.open(out), _open_one_by_one(out, monkeypatch)
    assert joined.files._joined is not None
    numbers = np.random.default_rng(1).integers(0, _RECORDS, 5000)
    assert joined.records.take(numbers).equals(separate.records.take(numbers))
    assert [joined[number] for number in (0, 1234, -1)] == [
        separate[number] for number in (0, 1234, -1)
    ]
    assert joined.to_table().equals(separate.to_table())
    assert joined.to_table(77, 2001).equals(separate.to_table(77, 2001))
    condition = "id % 7 = 3"
    assert joined.filter(condition).to_table().equals(separate.filter(condition).to_table())
    for shuffle in (False, "window", "global"):
        batches = [
            [batch["id"].tolist() for batch in dataset.batches(64, shuffle=shuffle, seed=2)]
            for dataset in (joined, separate)
        ]
        assert batches[0] == batches[1]


def test_first_and_last_records_of_all_shards_may_repeat(out: Path) -> None:
    files = recordmill.open(out).files
    numbers = np.repeat(np.append(files.ends - 1, np.append(0, files.ends[:-1])), 3)[::-1]
    frames = files.frames(numbers)
    assert frames.numbers.tolist() == numbers.tolist()
    for row, number in enumerate(numbers.tolist()):
        file, record = files.find(number)
        assert frames.payload(row).tobytes() == file.frame(record).payload(0).tobytes()


def test_no_records_are_read_from_no_shard(out: Path) -> None:
    files = recordmill.open(out).files
    assert len(files.frames(np.empty(0, np.int64))) == 0
    assert _mapped_shards(files) == []


def test_only_shards_with_requested_records_are_mapped(out: Path) -> None:
    dataset = recordmill.open(out)
    files = dataset.files
    ends = files.ends.tolist()
    assert _mapped_shards(files) == []
    assert dataset[5] == dataset.records.take([5]).to_pylist()[0]
    assert _mapped_shards(files) == [0]
    dataset.records.take([ends[6], ends[8] - 1])
    assert _mapped_shards(files) == [0, 7, 8]
    dataset.records.take(np.arange(0, _RECORDS, 3))
    assert _mapped_shards(files) == list(range(_SHARDS))


def test_mapped_shards_take_no_file_descriptors(out: Path) -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("needs /proc")
    dataset = recordmill.open(out)
    dataset.records.take(np.arange(0, _RECORDS, 3))
    links = [link for link in descriptors.iterdir() if link.is_symlink()]
    assert not [link for link in links if os.readlink(link).startswith(str(out))]


@pytest.mark.parametrize("record", [0, 12])
def test_damage_in_a_shard_is_reported_with_its_file_and_record(
    record: int, tmp_path: Path
) -> None:
    out = _build(tmp_path / "out", 400, 20)
    shard = _shard_path(out, 7)
    (offset,), _ = recordmill.open(out).files[7].locate(np.array([record]))
    flip(shard, int(offset) + 14)
    dataset = recordmill.open(out)
    number = int(dataset.files.ends[6]) + record
    for call in (
        lambda: dataset.records.take(np.arange(400)),
        lambda: dataset.records.take(np.append(np.arange(0, number, 2), number)),
        lambda: dataset[number],
        lambda: dataset.to_table(),
        lambda: dataset.to_table(10, 399),
        lambda: dataset.filter("id >= 0").to_table(),
        lambda: len(dataset.filter("id >= 0")),
        lambda: list(dataset.batches(64, shuffle=False)),
        lambda: list(dataset.batches(64, shuffle="global")),
    ):
        with pytest.raises(DataError, match=f"record {record}, byte {offset}: CRC") as error:
            call()
        assert error.value.source == str(shard)
    batches = dataset.batches(400, shuffle=False, on_bad="skip", drop_remainder=False)
    assert sum(len(batch["id"]) for batch in batches) == 399


def test_missing_shard_and_missing_index_are_reported_with_their_paths(tmp_path: Path) -> None:
    out = _build(tmp_path / "out", 400, 20)
    shard = _shard_path(out, 7)
    first_number = int(recordmill.open(out).files.ends[6])
    dataset = recordmill.open(out)
    (index,) = (shard.parent / "index").glob("*-00007*.npy")
    hidden_index = index.rename(tmp_path / "hidden.npy")
    for call in (lambda: dataset[first_number], lambda: dataset.records.take([0, first_number])):
        with pytest.raises(DataError) as error:
            call()
        assert error.value.source == str(index)
    # The other shards, and all records in order, need no index of this shard.
    assert dataset.records.take([0, first_number - 1]).num_rows == 2
    assert dataset.to_table().num_rows == 400
    hidden_index.rename(index)
    shard.unlink()
    for call in (
        lambda: dataset[first_number],
        lambda: dataset.records.take([0, first_number]),
        lambda: dataset.to_table(),
    ):
        with pytest.raises(DataError) as error:
            call()
        assert error.value.source == str(shard)


def test_index_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    out = _build(tmp_path / "out", 400, 20)
    shard = _shard_path(out, 7)
    (index,) = (shard.parent / "index").glob("*-00007*.npy")
    entries = np.load(index)
    entries["length"][3] += 1
    np.save(index, entries)
    first_number = int(recordmill.open(out).files.ends[6])
    for number in (first_number + 3, [0, first_number + 3]):
        with pytest.raises(
            DataError, match=r"record 3: offset \d+, length \d+: not where"
        ) as error:
            _ = recordmill.open(out)[number]
        assert error.value.source == str(index)


def test_compressed_or_few_shards_are_read_one_by_one(tmp_path: Path) -> None:
    recordmill.build({"id": list(range(400))}, tmp_path / "gz", num_shards=20, compression="gzip")
    assert recordmill.open(tmp_path / "gz").files._joined is None
    recordmill.build({"id": list(range(400))}, tmp_path / "few", num_shards=3)
    assert recordmill.open(tmp_path / "few").files._joined is None


def test_more_shards_than_a_process_can_map_are_read_one_by_one(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = np.arange(_RECORDS)[::-1]
    expected = recordmill.open(out).records.take(numbers)
    monkeypatch.setattr(mapped_files, "MAX_MAPPED_TOGETHER", 2 * _SHARDS)
    dataset = recordmill.open(out)
    assert dataset.files._joined is None
    assert dataset.records.take(numbers).equals(expected)
