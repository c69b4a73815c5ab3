"""Statistics of any view are counted, and yield class weights and arguments of layers."""

from pathlib import Path

import numpy as np
import pytest
from kit.data_sets import mixed_rows, write_data_set

from recordmill.base.errors import DataError, UsageError
from recordmill.reader.dataset import Dataset, open
from recordmill.reader.statistics import (
    count_expected_records,
    count_statistics,
    load_statistics,
    normalize,
    normalize_all,
    read_stored_statistics,
    weigh_classes,
)

ROWS = 90


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    rows = {"train": mixed_rows(ROWS), "test": mixed_rows(30, 1000)}
    return open(write_data_set(tmp_path_factory.mktemp("set") / "out", rows, shards=2))


def test_data_set_without_stored_statistics_is_counted(ds: Dataset) -> None:
    assert read_stored_statistics(ds.records) is None
    by_split = load_statistics(ds.records)
    assert by_split["train"]["id"].present == ROWS
    assert by_split["test"]["maybe"].missing == sum(
        value is None for value in mixed_rows(30, 1000)["maybe"].to_pylist()
    )
    assert count_expected_records(ds.records.open_files.catalog) == ROWS + 30


def test_progress_counts_every_record(ds: Dataset) -> None:
    counts: list[int] = []
    count_statistics(ds.records, counts.append)
    assert sum(counts) == ROWS + 30


def test_view_is_counted_under_its_own_names(ds: Dataset) -> None:
    view = ds.rename({"id": "number"}).filter("number < 10")
    by_split = load_statistics(view.records)
    assert by_split["train"]["number"].present == 10
    assert "id" not in by_split["train"]


def test_weights_of_all_classes_have_the_same_sum(ds: Dataset) -> None:
    weights = weigh_classes(ds.filter("id < 7"), "label")
    counts = {0: 3, 1: 2, 2: 2}
    assert list(weights) == [0, 1, 2]
    assert {label: weights[label] * counts[label] for label in counts} == pytest.approx(
        dict.fromkeys(counts, 7 / 3)
    )


def test_weights_without_a_label_are_refused(ds: Dataset) -> None:
    with pytest.raises(UsageError, match="the data set has no label"):
        weigh_classes(ds.select(["id"]), None)


def test_normalization_has_the_moments_of_the_training_split(ds: Dataset) -> None:
    arguments = normalize(ds, "maybe", "moments")
    values = np.array(
        [value for value in mixed_rows(ROWS)["maybe"].to_pylist() if value is not None]
    )
    assert arguments["mean"] == pytest.approx(values.mean(), rel=1e-12)
    assert arguments["variance"] == pytest.approx(values.var(), rel=1e-9)
    names = normalize_all(ds, "moments")
    assert {"id", "maybe", "exact"} <= set(names)
    assert "label" not in names
    assert "name" not in names


def test_text_cannot_be_normalized(ds: Dataset) -> None:
    with pytest.raises(UsageError, match="'name'"):
        normalize(ds, "name", "moments")


def test_damaged_record_ends_the_count_with_its_place(tmp_path: Path) -> None:
    from kit.data_sets import flip_record

    out = write_data_set(tmp_path / "out", {"train": mixed_rows(60)}, shards=3)
    flip_record(out, 4)
    with pytest.raises(DataError, match=r"train-00001.*record 4"):
        count_statistics(open(out).records)
