"""Arrow columns convert to arrays, `Ragged` and `Strings`.

Missing, empty and zero values stay distinct in any slice.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.batches import plain
from kit.data_sets import MIXED, mixed_rows

from recordmill.records.columns.numpy_arrays import (
    concatenate_arrays,
    extract_arrays,
    gather_columns,
    numpy_dtype,
    to_numpy,
)
from recordmill.records.example.flat_arrays import flatten_column
from recordmill.schemas.arrow import arrow_type
from recordmill.schemas.feature import Feature

FEATURES = [
    Feature("f", "int64"),
    Feature("f", "float16"),
    Feature("f", "bfloat16"),
    Feature("f", "bool", (2,)),
    Feature("f", "uint64", (2,)),
    Feature("f", "string"),
    Feature("f", "bytes", (2,)),
    Feature("f", "float32", (None,)),
    Feature("f", "string", (None,)),
    Feature("f", "int8", (None, None)),
    Feature("f", "float64", (None, 2)),
    Feature("f", "timestamp[ms]"),
    Feature("f", "timestamp[s]", (None,)),
    Feature("f", "string", (None, None)),
]


def draw_value(feature: Feature, shape: tuple[int | None, ...], draw: st.DrawFn) -> Any:
    if shape:
        if shape[0] is not None:
            return [
                item for _ in range(feature.inner_size) for item in [draw_value(feature, (), draw)]
            ]
        return [draw_value(feature, shape[1:], draw) for _ in range(draw(st.integers(0, 3)))]
    if feature.dtype == "bool":
        return draw(st.booleans())
    if feature.dtype == "string":
        return draw(st.text(max_size=3))
    if feature.dtype == "bytes":
        return draw(st.binary(max_size=3))
    number = draw(st.integers(0, 100))
    return (
        np.float16(number)
        if feature.dtype == "float16"
        else float(number)
        if "float" in feature.dtype
        else number
    )


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.describe())
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_values_of_every_feature_survive_conversion_to_numpy(
    feature: Feature, data: st.DataObject
) -> None:
    rows = [
        None
        if data.draw(st.booleans())
        else data.draw(st.composite(lambda draw: draw_value(feature, feature.shape, draw))())
        for _ in range(4)
    ]
    column = pa.array(rows, arrow_type(feature)).slice(1)
    converted = to_numpy(column, feature)
    result = [plain(row) for row in converted]
    expected = [
        None
        if row is None
        else [float(item) for item in row]
        if feature.dtype == "bfloat16" and feature.shape
        else row
        for row in rows[1:]
    ]
    assert result == expected
    halves = concatenate_arrays(
        [extract_arrays(column.slice(0, 1), feature), extract_arrays(column.slice(1), feature)],
        feature,
    )
    expected_arrays = extract_arrays(column, feature)
    assert halves.values.tolist() == expected_arrays.values.tolist()
    assert [splits.tolist() for splits in halves.splits] == [
        splits.tolist() for splits in expected_arrays.splits
    ]
    assert halves.valid.tolist() == expected_arrays.valid.tolist()


def test_columns_gathered_from_batches_equal_those_of_the_table() -> None:
    table = mixed_rows(50).combine_chunks()
    (batch,) = table.to_batches()
    columns = gather_columns([batch.slice(0, 7), batch.slice(7, 0), batch.slice(7)], MIXED, 50)
    for feature in MIXED:
        column = to_numpy(batch.column(feature.name), feature)
        assert type(columns[feature.name]) is type(column)
        assert [plain(row) for row in columns[feature.name]] == [plain(row) for row in column]
        assert not isinstance(column, np.ndarray) or column.dtype == numpy_dtype(feature)


def test_only_the_values_of_a_slice_are_converted() -> None:
    bools = pa.LargeListArray.from_arrays(
        np.arange(0, 1_000_001, 10), pa.array(np.ones(1_000_000, bool))
    )
    flat = flatten_column(bools.slice(5, 3), Feature("x", "bool", (None,)))[0]
    assert flat.values.tolist() == [1] * 30
    assert flat.splits is not None
    assert flat.splits.tolist() == [0, 10, 20, 30]
    nested = pa.LargeListArray.from_arrays(np.arange(0, 100_001, 2), bools)
    values, lengths = flatten_column(nested.slice(5, 3), Feature("x", "bool", (None, None)))
    assert (len(values.values), len(lengths.values)) == (60, 6)
