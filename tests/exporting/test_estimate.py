"""The estimate of a read counts its records exactly and its bytes approximately."""

from pathlib import Path

import pytest
from kit.data_sets import MIXED, mixed_rows, write_data_set
from kit.files import tree

from recordmill.pipelines.read import dry_run, read


@pytest.fixture(scope="module", params=["none", "gzip"])
def out(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = {"train": mixed_rows(400), "test": mixed_rows(50, 1000)}
    folder = tmp_path_factory.mktemp("set")
    return write_data_set(folder / "out", rows, shards=3, compression=request.param)


def test_records_are_counted(out: Path) -> None:
    estimate = dry_run(out)
    assert estimate.records == {"train": 400, "test": 50}
    assert estimate.rows == 450
    assert [column.feature.name for column in estimate.columns] == list(MIXED.names)


def test_size_is_about_that_of_the_outputs(out: Path, tmp_path: Path) -> None:
    estimate = dry_run(out, to="npy")
    read(out, tmp_path / "result", to="npy")
    files = tree(tmp_path / "result").items()
    size = sum(len(data) for name, data in files if name.endswith(".npy"))
    assert 0.7 * size < estimate.disk_bytes < 1.3 * size


def test_limit_and_columns_are_part_of_the_estimate(out: Path) -> None:
    estimate = dry_run(out, limit=7, columns=["id"])
    assert set(estimate.records.values()) == {7}
    (column,) = estimate.columns
    assert (column.dtype, column.shape) == ("int64", (estimate.rows,))
    assert estimate.to_json()["columns"]["id"]["required"]


def test_condition_makes_the_count_an_estimate(out: Path) -> None:
    estimate = dry_run(out, where="id % 2 = 0")
    assert 150 < estimate.records["train"] < 250
    assert any("the numbers of records are estimates" in note for note in estimate.notes)
