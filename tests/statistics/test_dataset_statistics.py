"""Statistics are available by split and feature, and can be saved."""

import json

import pyarrow as pa
import pytest

from recordmill.base.errors import DataError, UsageError
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.statistics.dataset_sketch import DatasetSketch
from recordmill.statistics.dataset_statistics import DatasetStatistics

SCHEMA = Schema((Feature("id", "int64", (), True), Feature("word", "string")), label="word")


@pytest.fixture(scope="module")
def statistics() -> DatasetStatistics:
    """Statistics of 4 records in `train` and 2 in `test`."""
    import numpy as np

    sketch = DatasetSketch(SCHEMA, ["train", "test"])
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([1, 2, 3, 4, 10, 20]),
            pa.array(["a", "b", None, "a", "c", "c"], pa.large_string()),
        ],
        schema=to_arrow(SCHEMA),
    )
    sketch.add(batch, np.arange(6, dtype=np.uint64), np.array([0, 0, 0, 0, 1, 1]))
    return DatasetStatistics.from_sketch(sketch)


def test_figures_are_found_by_split_and_feature(statistics: DatasetStatistics) -> None:
    assert list(statistics) == ["train", "test"]
    assert statistics.records == {"train": 4, "test": 2}
    assert statistics["train"]["id"].mean == 2.5
    assert (statistics["train"]["word"].present, statistics["train"]["word"].missing) == (3, 1)
    assert dict(statistics["test"]["word"].top_values) == {"c": 2}
    with pytest.raises(KeyError):
        statistics["dev"]


def test_equal_statistics_are_equal_bytes(statistics: DatasetStatistics) -> None:
    data = statistics.to_bytes()
    loaded = DatasetStatistics.from_bytes(data, schema=SCHEMA)
    assert loaded.to_bytes() == data
    assert loaded["test"]["id"].mean == statistics["test"]["id"].mean
    assert DatasetStatistics(statistics.to_proto()).to_bytes() == data


def test_damaged_file_is_an_error_that_names_it() -> None:
    with pytest.raises(DataError, match=r"^my\.pb: "):
        DatasetStatistics.from_bytes(b"\xff\xff", "my.pb")


def test_selection_keeps_the_order_of_the_features(statistics: DatasetStatistics) -> None:
    selection = statistics.select(["train", "dev"], ["word", "id"])
    assert list(selection) == ["train"]
    assert list(selection["train"]) == ["word", "id"]
    assert list(statistics.select(["test"])["test"]) == ["id", "word"]
    with pytest.raises(UsageError, match="no feature 'words'"):
        statistics.select(["train"], ["words"])


def test_json_and_summary_hold_plain_values(statistics: DatasetStatistics) -> None:
    text = json.dumps(statistics.to_json(), allow_nan=False)
    assert json.loads(text)["train"]
    assert json.dumps(statistics.summary(), allow_nan=False)


def test_tables_name_every_split_and_feature(statistics: DatasetStatistics) -> None:
    lines = "\n".join(statistics.lines())
    for word in ("train", "test", "id", "word"):
        assert word in lines
    assert repr(statistics).startswith("train: 4 records\n")


def test_options_of_the_command_select_one_split_and_columns(statistics: DatasetStatistics) -> None:
    assert list(statistics.select_checked(None, None)) == ["train", "test"]
    selected = statistics.select_checked("train", " word , id")
    assert list(selected["train"]) == ["word", "id"]
    with pytest.raises(UsageError, match='split="tset": there are train, test'):
        statistics.select_checked("tset", None)


def test_page_for_notebooks_escapes_values() -> None:
    import numpy as np

    sketch = DatasetSketch(Schema((Feature("word", "string"),)), ["train"])
    batch = pa.record_batch({"word": pa.array(["<b>x"], pa.large_string())})
    sketch.add(batch, np.arange(1, dtype=np.uint64))
    page = DatasetStatistics.from_sketch(sketch)._repr_html_()
    assert "&lt;b&gt;x" in page
    assert "<b>x" not in page
