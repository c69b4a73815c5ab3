"""Conversions of columns have the results of NumPy for the same rows.

Bad records are reported with their reason.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.base.errors import UsageError
from recordmill.records.columns.convert import (
    ConversionStep,
    ConvertedBatch,
    DecodeRaw,
    MakeRagged,
    Pad,
    Reshape,
    convert_columns,
    output_schema,
)
from recordmill.records.columns.numpy_arrays import to_numpy
from recordmill.records.columns.ragged import Ragged
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import ITEM_BYTES, Feature, Schema

IDS = Feature("id", "int64", (), True)


def convert_checked(
    feature: Feature, values: list[Any], *steps: ConversionStep
) -> tuple[ConvertedBatch, pa.Array]:
    """Converts a column and checks that the result is a valid batch.

    The batch has a second column `id`, which must lose the same rows.

    Returns:
        (all results of the conversion, the converted column).
    """
    schema = Schema((IDS, feature))
    arrow = to_arrow(schema)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(range(len(values)), pa.int64()),
            pa.array(values, arrow.field(feature.name).type),
        ],
        schema=arrow,
    )
    result = convert_columns(steps, batch, schema)
    result.batch.validate(full=True)
    assert result.batch.schema == to_arrow(output_schema(steps, schema))
    assert result.batch.column(0).to_pylist() == result.rows.tolist()
    assert sorted([*result.rows.tolist(), *(record.row for record in result.bad_records)]) == list(
        range(len(values))
    )
    return result, result.batch.column(1)


@pytest.mark.parametrize("dtype", sorted(ITEM_BYTES))
@pytest.mark.parametrize("order", ["<", ">"])
def test_decode_raw_reads_every_dtype_in_both_byte_orders(dtype: str, order: str) -> None:
    rng = np.random.default_rng(1)
    stored_dtype = {"bool": "u1", "bfloat16": "u2"}.get(dtype, dtype)
    arrays = [
        (rng.integers(0, 2, (2, 3)) if dtype == "bool" else rng.integers(0, 100, (2, 3))).astype(
            np.dtype(stored_dtype).newbyteorder(order)
        )
        for _ in range(5)
    ]
    if dtype == "bfloat16":
        arrays = [
            (array.astype(np.float32).view(np.uint32) >> 16).astype(f"{order}u2")
            for array in arrays
        ]
    step = DecodeRaw("x", dtype, (2, 3), order == ">")
    result, column = convert_checked(
        Feature("x", "bytes", (), True), [array.tobytes() for array in arrays], step
    )
    result_array = to_numpy(column, step.output_feature(Feature("x", "bytes", (), True)))
    expected = np.stack(arrays)
    if dtype == "bfloat16":
        expected = (expected.astype(np.uint32) << 16).view(np.float32)
    assert result_array.dtype == np.dtype({"bfloat16": "float32"}.get(dtype, dtype))
    assert np.array_equal(result_array, expected)
    assert not result.bad_records


def test_decode_raw_keeps_nulls_and_reports_wrong_sizes() -> None:
    good = [np.arange(i, i + 4, dtype="<f4").tobytes() for i in range(4)]
    values = [good[0], None, good[1][:-1], good[2], b"", good[3] + b"\0", None]
    result, column = convert_checked(
        Feature("x", "bytes"), values, DecodeRaw("x", "float32", (2, 2))
    )
    assert column.to_pylist() == [[0, 1, 2, 3], None, [2, 3, 4, 5], None]
    assert [(record.row, record.message) for record in result.bad_records] == [
        (row, f"{size} bytes, which is not float32 [2, 2] of 16 bytes")
        for row, size in [(2, 15), (4, 0), (5, 17)]
    ]


def test_decode_raw_reads_a_variable_number_of_items() -> None:
    arrays = [np.arange(3 * rows, dtype="<i2").reshape(rows, 3) for rows in (2, 0, 1)]
    result, column = convert_checked(
        Feature("x", "bytes"),
        [arrays[0].tobytes(), None, arrays[1].tobytes(), b"abc", arrays[2].tobytes()],
        DecodeRaw("x", "int16", (None, 3)),
    )
    assert column.to_pylist() == [arrays[0].tolist(), None, [], arrays[2].tolist()]
    assert [record.message for record in result.bad_records] == [
        "3 bytes, which is not int16 [?, 3] of 6 bytes an item"
    ]


def test_decode_raw_reads_scalars_from_text() -> None:
    """Inference reports bytes as text if they happen to be UTF-8."""
    _, column = convert_checked(
        Feature("x", "string"),
        ["\0\0\0\0\0\0\0\0", None, "\1\0\0\0\0\0\0\0"],
        DecodeRaw("x", "int64", ()),
    )
    assert column.to_pylist() == [0, None, 1]


def test_reshape_of_lists_reports_lengths_that_do_not_fit() -> None:
    result, column = convert_checked(
        Feature("x", "float32", (None,)),
        [list(range(8)), None, [], [1, 2, 3], [5, 6, 7, 8]],
        Reshape("x", (None, 4)),
    )
    assert column.to_pylist() == [[[0, 1, 2, 3], [4, 5, 6, 7]], None, [], [[5, 6, 7, 8]]]
    assert [(record.row, record.message) for record in result.bad_records] == [
        (3, "3 values, which do not fit [-1, 4]")
    ]
    result, column = convert_checked(
        Feature("x", "string", (None,)), [list("abcd"), None, list("abc")], Reshape("x", (2, 2))
    )
    assert column.to_pylist() == [list("abcd"), None]
    assert result.bad_records[0].message == "3 values, which do not fit [2, 2]"


def test_reshape_of_tensors_computes_the_open_dimension() -> None:
    feature = Feature("x", "int64", (2, 6))
    step = Reshape("x", (3, None))
    _, column = convert_checked(feature, [list(range(12)), None], step)
    assert step.output_feature(feature).shape == (3, 4)
    assert column.to_pylist() == [list(range(12)), None]
    _, column = convert_checked(Feature("x", "int64", (1,), True), [[4]], Reshape("x", ()))
    assert column.to_pylist() == [4]


@pytest.mark.parametrize(
    ("dtype", "value", "fill"),
    [
        ("int64", "-1", -1),
        ("float32", "0.5", 0.5),
        ("float16", "2", 2.0),
        ("uint8", 7, 7),
        ("bool", "1", True),
        ("string", "<pad>", "<pad>"),
        ("bytes", "", b""),
    ],
)
def test_pad_fills_truncates_and_reports_longer_lists_of_every_dtype(
    dtype: str, value: Any, fill: Any
) -> None:
    item = {"bool": True, "string": "a", "bytes": b"a"}.get(dtype, 1)
    if dtype == "float16":
        item = np.float16(1)
    result, column = convert_checked(
        Feature("x", dtype, (None,)), [[item], None, [], [item] * 3, [item] * 4], Pad("x", 3, value)
    )
    assert column.to_pylist() == [[item, fill, fill], None, [fill] * 3, [item] * 3]
    assert (
        result.bad_records[0].message
        == "4 items, more than the length of 3 (to cut longer lists: pad_or_cut=)"
    )
    _, column = convert_checked(
        Feature("x", dtype, (None,)), [[item] * 9], Pad("x", 3, value, cuts_longer=True)
    )
    assert column.to_pylist() == [[item] * 3]


def test_pad_and_reshape_accept_fixed_shapes_like_lists() -> None:
    """A part of a data set may have a fixed shape.

    One command must work for such a part, too.
    """
    rows = [[1, 2, 3], None, [4, 5, 6]]
    assert convert_checked(Feature("x", "int64", (3,)), rows, Pad("x", 5, "0"))[1].to_pylist() == [
        [1, 2, 3, 0, 0],
        None,
        [4, 5, 6, 0, 0],
    ]
    assert convert_checked(Feature("x", "int64"), [7, None, 8], Pad("x", 2, "0"))[
        1
    ].to_pylist() == [
        [7, 0],
        None,
        [8, 0],
    ]
    result, column = convert_checked(Feature("x", "int64", (3,)), rows, MakeRagged("x"))
    assert (column.to_pylist(), result.bad_records) == (rows, ())
    assert output_schema([MakeRagged("x")], Schema((Feature("x", "int64", (3, 2)),)))[
        "x"
    ].shape == (None, 2)
    result, _ = convert_checked(Feature("x", "int64", (3,)), rows, Pad("x", 2, "0"))
    assert [record.row for record in result.bad_records] == [0, 2]


@given(st.lists(st.none() | st.lists(st.integers(-100, 100), max_size=6), max_size=20))
def test_pad_equals_ragged_to_padded(rows: list[list[int] | None]) -> None:
    """This holds for vectors and truncation, too.

    The oracle is `Ragged.to_padded` on the same column.
    """
    feature = Feature("x", "int32", (None, 2))
    pairs = [None if row is None else [[item, -item] for item in row] for row in rows]
    result, column = convert_checked(feature, pairs, Pad("x", 4, "9", cuts_longer=True))
    assert not result.bad_records
    ragged = to_numpy(pa.array(pairs, to_arrow(Schema((feature,))).field(0).type), feature)
    assert isinstance(ragged, Ragged)
    expected = ragged.to_padded(4, 9)
    padded = to_numpy(column, Feature("x", "int32", (4, 2)))
    assert padded.shape == (len(rows), 4, 2)
    assert column.is_valid().to_pylist() == [row is not None for row in rows]
    for i, row in enumerate(rows):
        if row is not None:
            assert np.array_equal(padded[i], expected[i])


def test_chained_steps_collect_their_bad_records() -> None:
    lists = [[1, 2, 3, 4], [1, 2, 3], [1, 2] * 5, None, [], [7, 8]]
    result, column = convert_checked(
        Feature("x", "int64", (None,)), lists, Reshape("x", (None, 2)), Pad("x", 2, "0")
    )
    assert column.to_pylist() == [[1, 2, 3, 4], None, [0, 0, 0, 0], [7, 8, 0, 0]]
    assert [record.row for record in result.bad_records] == [1, 2]


def test_slice_converts_like_the_complete_column() -> None:
    feature = Feature("x", "int64", (None,))
    column = pa.array([[1], None, [1, 2], [3, 4, 5], []] * 3, pa.large_list(pa.int64()))
    for step in (Pad("x", 3, "0"), Reshape("x", (None,))):
        expected, _ = step.convert(column, feature)
        converted, _ = step.convert(column.slice(2, 9), feature)
        assert converted.to_pylist() == expected.to_pylist()[2:11]


@pytest.mark.parametrize(
    ("feature", "step", "message"),
    [
        (Feature("y", "int64"), Reshape("x", (1,)), "no feature 'x' to convert"),
        (Feature("x", "int64"), DecodeRaw("x", "float32", (2,)), "only a single bytes value"),
        (
            Feature("x", "bytes", (None,)),
            DecodeRaw("x", "float32", (2,)),
            "only a single bytes value",
        ),
        (Feature("x", "int64", (None, None)), Reshape("x", (4,)), "lists of lists"),
        (
            Feature("x", "int64", (None,)),
            Reshape("x", (4, None)),
            "only the first dimension can be -1",
        ),
        (Feature("x", "int64", (6,)), Reshape("x", (None, 4)), "does not fit"),
        (
            Feature("x", "int64", (None, None)),
            Pad("x", 4, "0", cuts_longer=True),
            'pad_or_cut="x": it is .*, lists of lists',
        ),
        (Feature("x", "int8", (None,)), Pad("x", 4, "300"), "'300' is not int8"),
        (Feature("x", "int64", (None,)), Pad("x", 4, "0.5"), "'0.5' is not int64"),
        (Feature("x", "bool", (None,)), Pad("x", 4, "2"), "'2' is not bool"),
    ],
)
def test_impossible_conversion_is_refused(
    feature: Feature, step: ConversionStep, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        output_schema([step], Schema((feature,)))
