"""Many small shards are read together, with the records and errors of reading them one by one."""

from pathlib import Path

import numpy as np
import pytest
from kit.files import flip

import recordmill
from recordmill.base.errors import DataError
from recordmill.shards import joined_index
from recordmill.shards.manifest import load_manifest

_RECORDS, _SHARDS = 3000, 40


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("joined") / "out"
    rows = {"id": list(range(_RECORDS)), "text": ["x" * (row % 50) for row in range(_RECORDS)]}
    recordmill.build(rows, out, num_shards=_SHARDS)
    return out


def _open_one_by_one(out: Path, patch: pytest.MonkeyPatch) -> recordmill.Dataset:
    with patch.context() as patched:
        patched.setattr(joined_index, "MIN_SHARDS", _SHARDS + 1)
        dataset = recordmill.open(out)
    assert not dataset.files.has_small_shards
    return dataset


def test_small_shards_have_the_records_of_one_by_one(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined, separate = recordmill.open(out), _open_one_by_one(out, monkeypatch)
    assert joined.files.has_small_shards
    numbers = np.random.default_rng(1).integers(0, _RECORDS, 5000)
    assert joined.records.take(numbers).equals(separate.records.take(numbers))
    assert joined.to_table().equals(separate.to_table())
    assert joined.to_table(77, 2001).equals(separate.to_table(77, 2001))
    some = "id % 7 = 3"
    assert joined.filter(some).to_table().sort_by("id") == separate.filter(some).to_table().sort_by(
        "id"
    )
    for shuffle in (False, "window", "global"):
        batches = [
            [batch["id"].tolist() for batch in dataset.batches(64, shuffle=shuffle, seed=2)]
            for dataset in (joined, separate)
        ]
        assert batches[0] == batches[1]


def test_index_is_not_read_for_records_of_a_few_files(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = recordmill.open(out)
    monkeypatch.setattr("recordmill.shards.record_files.JoinedIndex", None)
    assert dataset[5] == dataset.records.take([5]).to_pylist()[0]
    assert len(dataset.records.take(np.arange(100, 400))) == 300


def test_damage_in_a_small_shard_is_reported_with_its_file_and_record(tmp_path: Path) -> None:
    out = tmp_path / "out"
    recordmill.build({"id": list(range(400))}, out, num_shards=20)
    part = load_manifest(out).parts[0]
    shard = out / part.folder / part.splits["train"][7].name
    flip(shard, 14)
    with pytest.raises(DataError, match="record 0") as error:
        recordmill.open(out).records.take(np.arange(400))
    assert error.value.source == str(shard)


def test_compressed_or_large_shards_are_read_one_by_one(tmp_path: Path) -> None:
    recordmill.build({"id": list(range(400))}, tmp_path / "gz", num_shards=20, compression="gzip")
    assert not recordmill.open(tmp_path / "gz").files.has_small_shards
    recordmill.build({"id": list(range(400))}, tmp_path / "few", num_shards=3)
    assert not recordmill.open(tmp_path / "few").files.has_small_shards


def test_small_shards_are_mapped_a_few_at_a_time(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = recordmill.open(out).records.take(np.arange(_RECORDS))
    monkeypatch.setattr(joined_index.MAPPED_FILES, "max_slots", 6)
    assert recordmill.open(out).records.take(np.arange(_RECORDS)).equals(whole)
