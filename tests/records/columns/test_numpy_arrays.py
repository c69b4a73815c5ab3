"""Arrow columns convert to arrays, Ragged and Strings, and missing, empty and zero stay distinct
in any slice.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.batches import plain
from kit.data_sets import MIXED, mixed_rows
from kit.example_oracle import parse

from recordmill.records.columns.numpy_arrays import (
    concatenate_arrays,
    extract_arrays,
    gather_columns,
    numpy_dtype,
    to_numpy,
)
from recordmill.records.columns.ragged import Ragged, Strings
from recordmill.records.example.encode import encode
from recordmill.records.example.flat_arrays import flatten_column
from recordmill.schemas.arrow import arrow_type
from recordmill.schemas.feature import Feature, Schema

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


def one(feature: Feature, shape: tuple[int | None, ...], draw: st.DrawFn) -> Any:
    if shape:
        if shape[0] is not None:
            return [item for _ in range(feature.inner_size) for item in [one(feature, (), draw)]]
        return [one(feature, shape[1:], draw) for _ in range(draw(st.integers(0, 3)))]
    if feature.dtype == "bool":
        return draw(st.booleans())
    if feature.dtype == "string":
        return draw(st.text(max_size=3))
    if feature.dtype == "bytes":
        return draw(st.binary(max_size=3))
    small = draw(st.integers(0, 100))
    return (
        np.float16(small)
        if feature.dtype == "float16"
        else float(small)
        if "float" in feature.dtype
        else small
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
        else data.draw(st.composite(lambda draw: one(feature, feature.shape, draw))())
        for _ in range(4)
    ]
    column = pa.array(rows, arrow_type(feature)).slice(1)
    found = to_numpy(column, feature)
    shown = [plain(row) for row in found]
    expected = [
        None
        if row is None
        else [float(v) for v in row]
        if feature.dtype == "bfloat16" and feature.shape
        else row
        for row in rows[1:]
    ]
    assert shown == expected
    halves = concatenate_arrays(
        [extract_arrays(column.slice(0, 1), feature), extract_arrays(column.slice(1), feature)],
        feature,
    )
    whole = extract_arrays(column, feature)
    assert halves.values.tolist() == whole.values.tolist()
    assert [a.tolist() for a in halves.splits] == [a.tolist() for a in whole.splits]
    assert halves.valid.tolist() == whole.valid.tolist()


def test_columns_gathered_from_batches_equal_those_of_the_table() -> None:
    table = mixed_rows(50).combine_chunks()
    (batch,) = table.to_batches()
    gathered = gather_columns([batch.slice(0, 7), batch.slice(7, 0), batch.slice(7)], MIXED, 50)
    for feature in MIXED:
        whole = to_numpy(batch.column(feature.name), feature)
        assert type(gathered[feature.name]) is type(whole)
        assert [plain(row) for row in gathered[feature.name]] == [plain(row) for row in whole]
        assert not isinstance(whole, np.ndarray) or whole.dtype == numpy_dtype(feature)


def test_ragged_and_strings_pad_truncate_and_slice() -> None:
    rows = Ragged(
        np.arange(6, dtype=np.int32), np.array([0, 3, 3, 6]), np.array([True, False, True])
    )
    assert rows.to_padded(2, -1).tolist() == [[0, 1], [-1, -1], [3, 4]]
    assert rows.to_padded(5, 9).tolist() == [[0, 1, 2, 9, 9], [9] * 5, [3, 4, 5, 9, 9]]
    assert rows[1] is None
    assert rows[-1].tolist() == [3, 4, 5]
    assert rows[1:][1].tolist() == [3, 4, 5]
    assert rows[2:].to_padded().tolist() == [[3, 4, 5]]
    assert rows.lengths.tolist() == [3, 0, 3]
    with pytest.raises(IndexError, match="row 3 of 3"):
        rows[3]
    with pytest.raises(IndexError, match="consecutive"):
        rows[::2]
    words = Ragged(
        Strings(np.frombuffer(b"abc", np.uint8), np.array([0, 1, 3]), True), np.array([0, 2, 2])
    )
    assert words.to_padded(value="").tolist() == [["a", "bc"], ["", ""]]
    assert words.to_list() == [["a", "bc"], []]
    assert "2 rows of 0 to 2 items" in repr(words)


def test_strings_convert_to_arrays_and_lists() -> None:
    text = Strings(
        np.frombuffer("aü".encode(), np.uint8),
        np.array([0, 1, 1, 3]),
        True,
        np.array([True, False, True]),
    )
    assert np.asarray(text).tolist() == ["a", None, "ü"]
    assert text[1:].to_list() == [None, "ü"]
    assert repr(text) == "Strings(3 rows: 'a', None, 'ü')"


def test_ragged_converts_to_a_ragged_tensor() -> None:
    tf = pytest.importorskip("tensorflow")
    nested = to_numpy(
        pa.array([[[1], [2, 3]], [], [[]]], pa.large_list(pa.large_list(pa.int64()))),
        Feature("n", "int64", (None, None), True),
    )
    assert nested.to_tf().to_list() == [[[1], [2, 3]], [], [[]]]
    assert nested[1:].to_tf().to_list() == [[], [[]]]
    assert tf.RaggedTensor is type(nested.to_tf())


# Arrow's many layouts of one column
TEXTS = ["a", None, "", "long enough to be no inline view", "ü"]
LISTS = [[1, 2], None, [], [300]]


def encoded(column: pa.Array, feature: Feature) -> list[bytes]:
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
    records = encoded(column, feature)
    assert records == encoded(pa.array(values, arrow_type(feature)), feature)
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
    assert encoded(column, Feature("x", "string")) == encoded(
        pa.array(TEXTS, pa.large_string()), Feature("x", "string")
    )


def test_fixed_size_binary_dates_and_null_columns_are_encoded() -> None:
    assert parse(encoded(pa.array([b"abc"], pa.binary(3)), Feature("x", "bytes"))[0]) == {
        "x": ("bytes", [b"abc"])
    }
    assert parse(encoded(pa.array([2], pa.date32()), Feature("x", "timestamp[s]"))[0]) == {
        "x": ("int64", [2 * 86400])
    }
    assert encoded(pa.nulls(2), Feature("x", "int64", (None,))) == [b"\n\0"] * 2


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
    wanted = encoded(fixed, feature)
    assert [parse(record)["x"][0] for record in wanted] == [feature.kind] * 3
    for column in (tensor, nested, variable, pa.concat_arrays([fixed, fixed]).slice(3)):
        assert encoded(column, feature) == wanted
    missing = pa.LargeListArray.from_arrays(
        pa.array([0, 6, 6, 12]), pa.array(values[:12]), mask=pa.array([False, True, False])
    )
    assert encoded(missing, feature) == [wanted[0], b"\n\0", wanted[1]]


def test_null_in_a_fixed_size_list_is_a_missing_feature() -> None:
    column = pa.array([[1.0, 2.0], None, [3.0, 4.0]], pa.list_(pa.float32(), 2))
    assert column.values.null_count == 2 or len(column.values) == 6
    assert [parse(record) for record in encoded(column, Feature("x", "float32", (2,)))] == [
        {"x": ("float", [1, 2])},
        {},
        {"x": ("float", [3, 4])},
    ]


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
