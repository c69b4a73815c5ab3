"""A sketch that was saved, loaded and merged equals the sketch of all records.

Appends rely on this: they merge the saved sketch of a data set with that of the new records.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recordmill.base.errors import DataError
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.statistics.dataset_sketch import DatasetSketch
from recordmill.statistics.dataset_statistics import DatasetStatistics

SCHEMA = Schema(
    (
        Feature("price", "float64"),
        Feature("class", "int64", classes=("a", "b", "c")),
        Feature("word", "string"),
        Feature("tags", "string", (None,)),
        Feature("action", "float32", (3,)),
        Feature("mask", "uint8", (2, 2)),
        Feature("ids", "int64", (None,)),
        Feature("ragged", "float32", (None, None)),
        Feature("flag", "bool"),
        Feature("blob", "bytes"),
        Feature("big", "uint64"),
    ),
    label="class",
)
SPLITS = ("train", "test")
FLOATS = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1e300, 1e-300])


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


RECORDS = st.fixed_dictionaries(
    {
        "price": optional(FLOATS),
        "class": st.integers(0, 2),
        "word": optional(st.text(max_size=4) | st.sampled_from(["x" * 200, "y"])),
        "tags": optional(st.lists(st.sampled_from("abcdefgh"), max_size=3)),
        "action": st.lists(st.floats(width=32), min_size=3, max_size=3),
        "mask": st.lists(st.integers(0, 255), min_size=4, max_size=4),
        "ids": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
        "ragged": st.lists(st.lists(st.floats(width=32), max_size=2), max_size=2),
        "flag": st.booleans(),
        "blob": st.binary(max_size=5),
        "big": st.integers(0, 2**63 - 1),
    }
)


def sketch_of(
    records: list[dict[str, Any]], first_key: int, schema: Schema, splits: tuple[str, ...]
) -> DatasetSketch:
    sketch = DatasetSketch(schema, splits)
    batch = pa.RecordBatch.from_pylist(records, to_arrow(schema))
    keys = np.arange(first_key, first_key + len(records)).astype(np.uint64)
    sketch.add(batch, keys, (keys % np.uint64(len(splits))).astype(np.int64))
    return sketch


def statistics_bytes(sketch: DatasetSketch) -> bytes:
    return DatasetStatistics.from_sketch(sketch).to_bytes()


@pytest.mark.parametrize("max_values", [4096, 8])
@settings(deadline=None, max_examples=40)
@given(old_records=st.lists(RECORDS, max_size=30), new_records=st.lists(RECORDS, max_size=30))
def test_saved_sketch_that_is_merged_equals_the_sketch_of_all_records(
    max_values: int, old_records: list[dict[str, Any]], new_records: list[dict[str, Any]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recordmill.statistics.dataset_sketch.MAX_VALUES", max_values)
        patch.setattr("recordmill.statistics.dataset_sketch.MIN_VALUES", max_values)
        expected = sketch_of([*old_records, *new_records], 0, SCHEMA, SPLITS)
        saved_bytes = sketch_of(old_records, 0, SCHEMA, SPLITS).to_bytes()
        total = DatasetSketch(SCHEMA, SPLITS)
        total.merge(DatasetSketch.from_bytes(saved_bytes))
        total.merge(sketch_of(new_records, len(old_records), SCHEMA, SPLITS))
        assert total.to_bytes() == expected.to_bytes()
        assert statistics_bytes(total) == statistics_bytes(expected)
        # A second append reads the sketch that the first one saved.
        loaded = DatasetSketch.from_bytes(total.to_bytes())
        assert loaded.to_bytes() == expected.to_bytes()


def random_records(count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(7)
    return [
        {
            "price": float(random.standard_normal()),
            "class": int(random.integers(3)),
            "word": f"word {random.integers(600)}",
            "tags": [f"tag {random.integers(300)}"],
            "action": random.standard_normal(3).tolist(),
            "mask": random.integers(0, 255, 4).tolist(),
            "ids": random.integers(0, 2**60, 2).tolist(),
            "ragged": [random.standard_normal(2).tolist()],
            "flag": True,
            "blob": random.bytes(9),
            "big": int(random.integers(0, 2**63)),
        }
        for _ in range(count)
    ]


def test_sketch_of_fewer_features_and_splits_merges_into_a_coarser_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # More columns get fewer values each, as in an append that adds a feature or a split.
    for name in ("_MAX_TEXTS_IN_SKETCH", "_MAX_NUMBERS_IN_SKETCH"):
        monkeypatch.setattr(f"recordmill.statistics.dataset_sketch.{name}", 3000)
    features = [*SCHEMA, *(Feature(f"new {number}", "int64") for number in range(30))]
    wider_schema = Schema(tuple(features), label="class")
    records = random_records(2400)
    saved_bytes = sketch_of(records[:1200], 0, SCHEMA, ("train",)).to_bytes()
    total = DatasetSketch(wider_schema, SPLITS)
    total.merge(DatasetSketch.from_bytes(saved_bytes))
    total.merge(sketch_of(records[1200:], 1200, wider_schema, SPLITS))
    expected = DatasetSketch(wider_schema, SPLITS)
    batch = pa.RecordBatch.from_pylist(records, to_arrow(wider_schema))
    keys = np.arange(2400).astype(np.uint64)
    splits = np.where(keys < 1200, 0, keys % 2).astype(np.int64)
    expected.add(batch, keys, splits)
    assert total.features[0][2].values.max_values < 1200  # type: ignore[union-attr]
    assert total.to_bytes() == expected.to_bytes()


def test_numbers_of_a_fixed_length_merge_into_lists() -> None:
    fixed_schema, list_schema = (
        Schema((Feature("x", "int32", shape),)) for shape in ((3,), (None,))
    )
    total = DatasetSketch(list_schema, ("train",))
    total.merge(sketch_of([{"x": [1, 2, 3]}] * 4, 0, fixed_schema, ("train",)))
    total.merge(sketch_of([{"x": [5]}], 4, list_schema, ("train",)))
    (feature,) = DatasetStatistics.from_sketch(total)["train"].values()
    assert (feature.present, feature.values, feature.mean) == (5, 13, 29 / 13)
    assert feature.distinct is None


def test_damaged_sketch_file_is_an_error_that_names_it() -> None:
    data = sketch_of(random_records(5), 0, SCHEMA, SPLITS).to_bytes()
    for damaged_data in (
        b"",
        data[: len(data) // 2],
        data.replace(b"numbers/keys", b"numbers/k_ys"),
    ):
        with pytest.raises(DataError, match=r"out/sketch\.arrow"):
            DatasetSketch.from_bytes(damaged_data, "out/sketch.arrow")
