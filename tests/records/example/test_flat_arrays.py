"""All Arrow types of a feature encode alike, and other columns are refused."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.example_oracle import parse

from recordmill.records.example.encode import encode
from recordmill.records.example.flat_arrays import flatten_column
from recordmill.schemas.arrow import arrow_type
from recordmill.schemas.feature import Feature, Schema

# Values that Arrow can store in several layouts.
TEXTS = ["a", None, "", "long enough to be no inline view", "ü"]
LISTS = [[1, 2], None, [], [300]]


def encode_column(column: pa.Array, feature: Feature) -> list[bytes]:
    frames = encode(pa.RecordBatch.from_arrays([column], names=[feature.name]), Schema((feature,)))
    return [frames.payload(i).tobytes() for i in range(len(frames))]


@pytest.mark.parametrize(
    ("values", "column"),
    [
        (TEXTS, pa.array(TEXTS, pa.string())),
        (TEXTS, pa.array(TEXTS).dictionary_encode()),
        (TEXTS, pa.array(["x", *TEXTS, "y"], pa.string()).slice(1, 5)),
        (TEXTS, pa.array(["x", *TEXTS, "y"], pa.large_string()).slice(1, 5)),
        (LISTS, pa.array(LISTS, pa.list_(pa.int64()))),
        (LISTS, pa.array([[9] * 20, *LISTS, [8]], pa.list_(pa.int64())).slice(1, 4)),
        (LISTS, pa.array([[9] * 20, *LISTS, [8]], pa.large_list(pa.int64())).slice(1, 4)),
        (LISTS, pa.array(LISTS, pa.list_(pa.dictionary(pa.int8(), pa.int64())))),
    ],
    ids=str,
)
def test_text_and_list_types_of_arrow_encode_alike(values: list[Any], column: pa.Array) -> None:
    feature = Feature("x", "string") if values is TEXTS else Feature("x", "int64", (None,))
    records = encode_column(column, feature)
    assert records == encode_column(pa.array(values, arrow_type(feature)), feature)
    kind = "bytes" if values is TEXTS else "int64"
    assert [parse(record) for record in records] == [
        {}
        if value is None
        else {"x": (kind, value if isinstance(value, list) else [value.encode()])}
        for value in values
    ]


def test_string_views_encode_like_strings() -> None:
    column = pa.array(TEXTS, pa.string_view())
    try:
        column.cast(pa.large_string())
    except pa.ArrowNotImplementedError:
        pytest.skip("this pyarrow has no cast for string views")
    assert encode_column(column, Feature("x", "string")) == encode_column(
        pa.array(TEXTS, pa.large_string()), Feature("x", "string")
    )


def test_fixed_size_binary_dates_and_null_columns_are_encoded() -> None:
    assert parse(encode_column(pa.array([b"abc"], pa.binary(3)), Feature("x", "bytes"))[0]) == {
        "x": ("bytes", [b"abc"])
    }
    assert parse(encode_column(pa.array([2], pa.date32()), Feature("x", "timestamp[s]"))[0]) == {
        "x": ("int64", [2 * 86400])
    }
    assert encode_column(pa.nulls(2), Feature("x", "int64", (None,))) == [b"\n\0"] * 2


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int16", "float64"])
def test_fixed_variable_and_extension_tensors_encode_alike(dtype: str) -> None:
    feature = Feature("x", dtype, (2, 3))
    values = np.arange(18, dtype=dtype)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(values), 6)
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(values.reshape(3, 2, 3))
    nested = pa.FixedSizeListArray.from_arrays(
        pa.FixedSizeListArray.from_arrays(pa.array(values), 3), 2
    )
    variable = pa.LargeListArray.from_arrays(pa.array([0, 6, 12, 18]), pa.array(values))
    expected = encode_column(fixed, feature)
    assert [parse(record)["x"][0] for record in expected] == [feature.kind] * 3
    for column in (tensor, nested, variable, pa.concat_arrays([fixed, fixed]).slice(3)):
        assert encode_column(column, feature) == expected
    missing = pa.LargeListArray.from_arrays(
        pa.array([0, 6, 6, 12]), pa.array(values[:12]), mask=pa.array([False, True, False])
    )
    assert encode_column(missing, feature) == [expected[0], b"\n\0", expected[1]]


def test_null_in_a_fixed_size_list_is_a_missing_feature() -> None:
    column = pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2))
    assert column.values.null_count == 2 or len(column.values) == 6
    assert [parse(record) for record in encode_column(column, Feature("x", "float32", (2,)))] == [
        {"x": ("float", [1, 2])},
        {},
        {"x": ("float", [3, 4])},
    ]


@pytest.mark.parametrize(
    ("feature", "column"),
    [
        (Feature("x", "int64"), pa.array([1], pa.int32())),
        (Feature("x", "string"), pa.array([b"a"])),
        (Feature("x", "timestamp[us]"), pa.array([1], pa.timestamp("ms"))),
        (Feature("x", "int64", (None,)), pa.array([1])),
        (Feature("x", "int64"), pa.array([[1]])),
        (Feature("x", "int64", (None, None)), pa.array([[1]])),
        (Feature("x", "float32", (2, 2)), pa.array([[1, 2, 3]], pa.list_(pa.float32(), 3))),
        (Feature("x", "int64"), pa.array([{"a": 1}])),
        # pyarrow 25 loses values when it casts list views to lists
        (Feature("x", "int64", (None,)), pa.array([[1]], pa.list_view(pa.int64()))),
        (Feature("x", "int64"), pa.array(["a"]).dictionary_encode()),
    ],
)
def test_column_of_another_type_is_refused_with_feature_and_type(
    feature: Feature, column: pa.Array
) -> None:
    with pytest.raises(
        TypeError, match=r"feature 'x' is .* and needs a column of type .*cast it first"
    ):
        flatten_column(column, feature)


def test_flattened_numbers_and_texts_share_the_memory_of_arrow() -> None:
    data = pa.array(np.arange(1000, dtype=np.int64))
    flat = flatten_column(data.slice(100, 50), Feature("x", "int64"))[0]
    assert flat.values.ctypes.data == data.buffers()[1].address + 800
    text = pa.array(["abc", "d"], pa.large_string())
    flat = flatten_column(text, Feature("x", "string"))[0]
    assert flat.values.ctypes.data == text.buffers()[2].address
    assert flat.value_splits is not None
    assert flat.value_splits.ctypes.data == text.buffers()[1].address
    assert arrow_type(Feature("x", "string")) == text.type
