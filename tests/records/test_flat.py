"""Arrow's many layouts of one column: all give the same Examples, and only the part in use is looked at."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from example_oracle import parse

from recordmill.records.example.encode import encode
from recordmill.records.example.flat_arrays import to_flat
from recordmill.schemas.arrow import arrow_type
from recordmill.schemas.feature import Feature, Schema

TEXTS = ["a", None, "", "long enough to be no inline view", "ü"]
LISTS = [[1, 2], None, [], [300]]


def encoded(column: pa.Array, feature: Feature) -> list[bytes]:
    frames = encode(pa.RecordBatch.from_arrays([column], names=[feature.name]), Schema((feature,)))
    return [frames.payload(i).tobytes() for i in range(len(frames))]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(TEXTS, pa.string()),
        pa.array(TEXTS).dictionary_encode(),
        pa.array(["x", *TEXTS, "y"], pa.string()).slice(1, 5),
        pa.array(["x", *TEXTS, "y"], pa.large_string()).slice(1, 5),
    ],
    ids=str,
)
def test_strings(column: pa.Array) -> None:
    feature = Feature("x", "string")
    assert encoded(column, feature) == encoded(pa.array(TEXTS, pa.large_string()), feature)
    assert [parse(record) for record in encoded(column, feature)] == [
        {} if text is None else {"x": ("bytes", [text.encode()])} for text in TEXTS
    ]


def test_string_views() -> None:
    column = pa.array(TEXTS, pa.string_view())
    try:
        column.cast(pa.large_string())
    except pa.ArrowNotImplementedError:
        pytest.skip("this pyarrow has no cast for string views")
    assert encoded(column, Feature("x", "string")) == encoded(
        pa.array(TEXTS, pa.large_string()), Feature("x", "string")
    )


@pytest.mark.parametrize(
    "column",
    [
        pa.array(LISTS, pa.list_(pa.int64())),
        pa.array([[9] * 20, *LISTS, [8]], pa.list_(pa.int64())).slice(1, 4),
        pa.array([[9] * 20, *LISTS, [8]], pa.large_list(pa.int64())).slice(1, 4),
        pa.array(LISTS, pa.list_(pa.dictionary(pa.int8(), pa.int64()))),
    ],
    ids=str,
)
def test_lists(column: pa.Array) -> None:
    feature = Feature("x", "int64", (None,))
    assert encoded(column, feature) == encoded(pa.array(LISTS, pa.large_list(pa.int64())), feature)


def test_fixed_size_binary_dates_and_nulls() -> None:
    assert parse(encoded(pa.array([b"abc"], pa.binary(3)), Feature("x", "bytes"))[0]) == {"x": ("bytes", [b"abc"])}
    assert parse(encoded(pa.array([2], pa.date32()), Feature("x", "timestamp[s]"))[0]) == {"x": ("int64", [2 * 86400])}
    assert encoded(pa.nulls(2), Feature("x", "int64", (None,))) == [b"\n\0"] * 2


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int16", "float64"])
def test_tensors_fixed_variable_and_extension(dtype: str) -> None:
    feature = Feature("x", dtype, (2, 3))
    values = np.arange(18, dtype=dtype)
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(values), 6)
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(values.reshape(3, 2, 3))
    nested = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(pa.array(values), 3), 2)
    variable = pa.LargeListArray.from_arrays(pa.array([0, 6, 12, 18]), pa.array(values))
    wanted = encoded(fixed, feature)
    assert [parse(record)["x"][0] for record in wanted] == [feature.kind] * 3
    for column in (tensor, nested, variable, pa.concat_arrays([fixed, fixed]).slice(3)):
        assert encoded(column, feature) == wanted
    missing = pa.LargeListArray.from_arrays(
        pa.array([0, 6, 6, 12]), pa.array(values[:12]), mask=pa.array([False, True, False])
    )
    assert encoded(missing, feature) == [wanted[0], b"\n\0", wanted[1]]


def test_a_null_fixed_list_is_absent_though_its_values_are_null() -> None:
    column = pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2))
    assert column.values.null_count == 2 or len(column.values) == 6
    assert [parse(record) for record in encoded(column, Feature("x", "float32", (2,)))] == [
        {"x": ("float", [1, 2])},
        {},
        {"x": ("float", [3, 4])},
    ]


def test_nothing_outside_a_slice_is_converted() -> None:
    bools = pa.LargeListArray.from_arrays(np.arange(0, 1_000_001, 10), pa.array(np.ones(1_000_000, bool)))
    flat = to_flat(bools.slice(5, 3), Feature("x", "bool", (None,)))[0]
    assert flat.values.tolist() == [1] * 30
    assert flat.splits is not None
    assert flat.splits.tolist() == [0, 10, 20, 30]
    nested = pa.LargeListArray.from_arrays(np.arange(0, 100_001, 2), bools)
    values, lengths = to_flat(nested.slice(5, 3), Feature("x", "bool", (None, None)))
    assert (len(values.values), len(lengths.values)) == (60, 6)


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
        (
            Feature("x", "int64", (None,)),
            pa.array([[1]], pa.list_view(pa.int64())),
        ),  # pyarrow 25 loses values where it casts them to lists
        (Feature("x", "int64"), pa.array(["a"]).dictionary_encode()),
    ],
)
def test_another_type_is_refused_by_name(feature: Feature, column: pa.Array) -> None:
    with pytest.raises(TypeError, match=r"feature 'x' is .* and needs a column of type .*cast it first"):
        to_flat(column, feature)


def test_zero_copy_where_arrow_has_it() -> None:
    data = pa.array(np.arange(1000, dtype=np.int64))
    flat = to_flat(data.slice(100, 50), Feature("x", "int64"))[0]
    assert flat.values.ctypes.data == data.buffers()[1].address + 800
    text = pa.array(["abc", "d"], pa.large_string())
    flat = to_flat(text, Feature("x", "string"))[0]
    assert flat.values.ctypes.data == text.buffers()[2].address
    assert flat.value_splits is not None
    assert flat.value_splits.ctypes.data == text.buffers()[1].address
    assert arrow_type(Feature("x", "string")) == text.type
