"""Records and features are selected by mask, number or name.

A selection that does not fit is refused.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.data_sets import MIXED, mixed_rows, write_data_set

from recordmill.base.errors import UsageError, WrongTypeError
from recordmill.reader.dataset import open
from recordmill.reader.selection import (
    check_features,
    check_unique,
    filter_numbers,
    rename_columns,
    rename_features,
)


def test_mask_and_numbers_select_the_same_records() -> None:
    mask = np.array([True, False, True, True])
    assert filter_numbers(mask, 4).tolist() == [0, 2, 3]
    assert filter_numbers(mask.tolist(), 4).tolist() == [0, 2, 3]
    assert sorted(filter_numbers([3, 0, -2], 4).tolist()) == [0, 2, 3]
    assert filter_numbers(np.zeros(4, bool), 4).tolist() == []


@pytest.mark.parametrize(
    ("records", "error", "message"),
    [
        ([True, False], UsageError, "a mask has one bool for each of 4 records, not the shape"),
        (lambda row: True, WrongTypeError, r"np\.array\(\[f\(row\) for row in ds\]\) makes a mask"),
        (object(), WrongTypeError, "filter takes a condition"),
        ([1, 1], UsageError, "a record is named twice"),
        ([1, -3], UsageError, "a record is named twice"),
    ],
)
def test_invalid_selection_is_refused(records: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        filter_numbers(records, 4)


def test_number_outside_of_the_records_is_refused() -> None:
    with pytest.raises(IndexError):
        filter_numbers([4], 4)


def test_renamed_schema_keeps_its_label_and_order() -> None:
    renamed = rename_features(MIXED, {"label": "class", "id": "number"})
    assert renamed.label == "class"
    assert renamed.names[0] == "number"
    assert renamed["class"].classes == MIXED["label"].classes
    assert rename_features(MIXED, {}) is MIXED


def test_batch_gets_the_names_of_the_schema_without_a_copy() -> None:
    (batch,) = mixed_rows(3).combine_chunks().to_batches()
    assert rename_columns(batch, MIXED) is batch
    renamed = rename_columns(batch, rename_features(MIXED, {"id": "number"}))
    assert renamed.schema.names[0] == "number"
    assert renamed.column(0).equals(batch.column(0))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("id, name", r"features must be a list, not one string: use \['id', 'name'\]"),
        (7, "features must be a list, as in"),
        ([0, 1], r"for record numbers use ds\.filter\(\[\.\.\.\]\)"),
        (["idd"], "no feature 'idd' is selected"),
    ],
)
def test_name_that_is_not_a_feature_is_refused_with_a_remedy(names: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_features(names, MIXED)
    check_features(["id", "label"], MIXED)


def test_feature_that_is_named_twice_is_refused() -> None:
    check_unique(["a", "b"])
    with pytest.raises(UsageError, match="feature 'b' is named twice"):
        check_unique(["a", "b", "c", "b"])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data_set(tmp_path_factory.mktemp("set") / "out", {"train": mixed_rows(60)})


def test_filters_are_combined_in_their_order(out: Path) -> None:
    ds = open(out)
    by_condition = ds.filter("id >= 20")
    assert len(by_condition) == 40
    # The numbers count the records that match the condition.
    selection = by_condition.filter([0, 5, 39])
    assert selection.to_numpy()["id"].tolist() == [20, 25, 59]
    assert selection.filter("id > 20").to_numpy()["id"].tolist() == [25, 59]


def test_condition_uses_the_names_of_its_view(out: Path) -> None:
    renamed = open(out).rename({"id": "number"}).filter("number < 3")
    assert renamed.to_numpy()["number"].tolist() == [0, 1, 2]
    with pytest.raises(UsageError, match="id"):
        open(out).rename({"id": "number"}).filter("id < 3")


def test_views_of_other_records_have_another_fingerprint(out: Path) -> None:
    ds = open(out)
    views = [ds, ds.filter("id < 3"), ds.filter("id < 4"), ds.filter([0]), ds.filter([1])]
    assert len({view.fingerprint for view in views}) == len(views)
    assert ds.filter("id < 3").fingerprint == views[1].fingerprint


def test_tables_of_filtered_records_have_no_other_columns(out: Path) -> None:
    table = open(out).select(["name"]).filter("name = 'row 7 ü'").to_table()
    assert table.to_pydict() == {"name": ["row 7 ü"]}
    assert isinstance(table, pa.Table)
