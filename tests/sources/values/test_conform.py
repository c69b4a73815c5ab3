"""Values are fitted to the schema exactly.

A value that does not fit is a fault with a reason.
"""

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.runs import in_flags

from recordmill.base.errors import DataError
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.values.conform import ConformedBatch, conform


def conform_checked(
    values: Any, feature: Feature, kind: pa.DataType | None = None
) -> ConformedBatch:
    column = values if isinstance(values, pa.Array) else pa.array(values, kind)
    schema = Schema((feature,))
    result = conform(pa.RecordBatch.from_arrays([column], names=[feature.name]), schema)
    result.batch.validate(full=True)
    assert result.batch.schema.equals(to_arrow(schema), check_metadata=True)
    assert sorted([*result.good_rows.tolist(), *result.faults]) == list(range(len(column)))
    return result


BENT = [
    (
        [1.5, 1e39],
        "float32",
        1,
        "range",
        "x: 1e+39 does not fit float32; --dtype x=float64 keeps it",
    ),
    (
        [2**24, 2**24 + 1],
        "float32",
        1,
        "range",
        "x: 16777217 does not fit float32; --dtype x=float64 keeps it",
    ),
    (
        [2**53, 2**53 + 1],
        "float64",
        1,
        "range",
        "x: 9007199254740993 does not fit float64; --dtype x=int64 keeps it",
    ),
    (
        [65504.0, 65520.0],
        "float16",
        1,
        "range",
        "x: 65520.0 does not fit float16; --dtype x=float64 keeps it",
    ),
    ([1.0, 1.5], "int64", 1, "range", "x: 1.5 does not fit int64; --dtype x=float64 keeps it"),
    (
        [1.0, float("nan")],
        "int32",
        1,
        "range",
        "x: nan does not fit int32; --dtype x=float64 keeps it",
    ),
    (
        [9.2e18, 2.0**63],
        "int64",
        1,
        "range",
        "x: 9.223372036854776e+18 does not fit int64; --dtype x=float64 keeps it",
    ),
    ([127, 128], "int8", 1, "range", "x: 128 does not fit int8; --dtype x=int64 keeps it"),
    ([0, -1], "uint32", 1, "range", "x: -1 does not fit uint32; --dtype x=int64 keeps it"),
    ([1, 2], "bool", 1, "range", "x: 2 does not fit bool; --dtype x=int64 keeps it"),
    (["1", "x"], "int64", 1, "type", "x: 'x' does not fit int64; --dtype x=string keeps it"),
    (
        ["1.5", "1e400"],
        "float64",
        1,
        "type",
        "x: '1e400' does not fit float64; --dtype x=string keeps it",
    ),
    (
        ["1.5", "1e39"],
        "float32",
        1,
        "type",
        "x: '1e39' does not fit float32; --dtype x=float64 keeps it",
    ),
    (
        ["2020-01-01", "2020-13-01"],
        "timestamp[s]",
        1,
        "type",
        "x: '2020-13-01' does not fit timestamp[s]; --dtype x=string keeps it",
    ),
    (
        ["2020-01-01T00:00:00Z", "2020-01-01T00:00:00"],
        "timestamp[s, UTC]",
        1,
        "type",
        "does not fit timestamp[s, UTC]",
    ),
    ([b"ok", b"\xff"], "string", 1, "type", r"x: b'\xff' does not fit string"),
]


@pytest.mark.parametrize(
    ("values", "dtype", "row", "reason", "message"),
    BENT,
    ids=[f"{case[1]}-{case[0][1]}" for case in BENT],
)
def test_value_that_would_be_changed_is_a_fault(
    values: list[Any], dtype: str, row: int, reason: str, message: str
) -> None:
    result = conform_checked(values, Feature("x", dtype))
    assert [(fault_row, fault.reason) for fault_row, fault in result.faults.items()] == [
        (row, reason)
    ]
    assert message in in_flags(result.faults[row].message)
    assert result.good_rows.tolist() == [0]


def test_uint64_scalars_beyond_int64_are_faults() -> None:
    values = pa.array([2**63 - 1, 2**63], pa.uint64())
    assert [*conform_checked(values, Feature("x", "uint64")).faults] == [1]
    assert [*conform_checked(values, Feature("x", "int64")).faults] == [1]
    tensors = pa.array([[2**63, 1]], pa.list_(pa.uint64()))
    # Raw bytes can hold all values of uint64.
    assert conform_checked(tensors, Feature("x", "uint64", (2,))).batch.column(0).to_pylist() == [
        [2**63, 1]
    ]


def test_decimals_are_rounded_to_float32_and_counted() -> None:
    result = conform_checked([0.1, 0.5, None, float("nan"), float("inf")], Feature("x", "float32"))
    assert result.rounded_counts == {"x": 1}
    assert result.batch.column(0).to_pylist()[:3] == [np.float32(0.1).item(), 0.5, None]


def test_every_wrong_value_of_a_column_is_a_fault() -> None:
    result = conform_checked(["1", *["x"] * 5000], Feature("x", "int64"))
    assert len(result.faults) == 5000
    assert result.batch.column(0).to_pylist() == [1]


def test_tensors_of_wrong_shapes_are_faults() -> None:
    tensor = Feature("t", "uint8", (2, 2))
    result = conform_checked(
        [[[1, 2], [3, 4]], [[1, 2], [3]], None, [[1, 2]], [[5, 6], [7, 8]]], tensor
    )
    assert result.batch.column(0).to_pylist() == [[1, 2, 3, 4], None, [5, 6, 7, 8]]
    assert [(row, fault.reason) for row, fault in result.faults.items()] == [
        (1, "shape"),
        (3, "shape"),
    ]
    assert result.faults[1].message == "t: [[1, 2], [3]] does not have the shape of uint8 [2, 2]"
    assert conform_checked([[1, 2, 3, 4], [1, 2, 3]], tensor).good_rows.tolist() == [0]
    assert conform_checked(
        pa.array([[1, 2, 3, 4]], pa.list_(pa.int64(), 4)), tensor
    ).good_rows.tolist() == [0]
    assert conform_checked([[], None], Feature("t", "float32", (0,))).batch.column(
        0
    ).to_pylist() == [[], None]
    assert conform_checked(
        [None, None], Feature("t", "float32", (3,)), pa.list_(pa.float64())
    ).batch.column(0).to_pylist() == [
        None,
        None,
    ]


def test_ragged_lists_are_fitted() -> None:
    feature = Feature("a", "int32", (None, None))
    result = conform_checked([[[1], [2, 3]], [], None, [[4, None]], [None], [[2**40]]], feature)
    assert result.batch.column(0).to_pylist() == [[[1], [2, 3]], [], None]
    assert [(row, fault.reason) for row, fault in result.faults.items()] == [
        (3, "null"),
        (4, "null"),
        (5, "range"),
    ]
    assert conform_checked([[], None], feature).batch.column(0).to_pylist() == [[], None]
    assert conform_checked([[], None], Feature("v", "float32", (None, 2))).batch.column(
        0
    ).to_pylist() == [
        [],
        None,
    ]
    vectors = conform_checked([[[1.0, 2.0]], [[1.0]], []], Feature("v", "float32", (None, 2)))
    assert vectors.batch.column(0).to_pylist() == [[[1.0, 2.0]], []]


def test_sliced_and_dictionary_columns_are_fitted() -> None:
    column = pa.array([[9], [1, 2], None, [3], [9]]).slice(1, 3)
    assert conform_checked(column, Feature("a", "int64", (None,))).batch.column(0).to_pylist() == [
        [1, 2],
        None,
        [3],
    ]
    words = pa.array(["u", "v", None, "u"]).dictionary_encode()
    assert conform_checked(words, Feature("a", "string")).batch.column(0).to_pylist() == [
        "u",
        "v",
        None,
        "u",
    ]


def test_missing_required_values_are_faults_and_absent_columns_are_null() -> None:
    result = conform_checked([1, None], Feature("x", "int64", required=True))
    assert result.faults == {1: ("null", "x: missing, but the schema requires it")}
    schema = Schema((Feature("y", "string"), Feature("z", "float32", (None,))))
    assert (
        conform(pa.RecordBatch.from_pydict({"other": [1, 2]}), schema).batch.to_pylist()
        == [{"y": None, "z": None}] * 2
    )
    assert conform(pa.RecordBatch.from_pydict({"x": [1, 2]}), Schema(())).batch.num_columns == 0


def test_class_names_are_mapped_to_numbers() -> None:
    result = conform_checked(
        ["cat", None, "dog", "cow"], Feature("x", "int64", classes=("cat", "dog"))
    )
    assert result.batch.column(0).to_pylist() == [0, None, 1]
    assert result.faults == {
        3: ("class", "x: 'cow' does not fit int64: not one of the 2 classes 'cat', 'dog'")
    }


def test_dates_decimals_and_durations_are_fitted() -> None:
    day = datetime.date(2020, 1, 2)
    assert conform_checked([day], Feature("x", "timestamp[s]")).batch.column(0).to_pylist() == [
        datetime.datetime(2020, 1, 2)
    ]
    price = [decimal.Decimal("1.50"), decimal.Decimal("2.25")]
    assert conform_checked(price, Feature("x", "float64")).batch.column(0).to_pylist() == [
        1.5,
        2.25,
    ]
    assert conform_checked(price, Feature("x", "string")).batch.column(0).to_pylist() == [
        "1.50",
        "2.25",
    ]
    halves = [decimal.Decimal("1.50"), decimal.Decimal("2.00")]
    assert [*conform_checked(halves, Feature("x", "int64")).faults] == [0]
    assert (
        conform_checked([datetime.timedelta(seconds=1)], Feature("x", "float32")).good_rows.tolist()
        == []
    )


def test_column_of_another_form_is_an_error() -> None:
    with pytest.raises(
        DataError, match="column 'x' is a list<item: int64>, but the schema has int64"
    ):
        conform_checked([[1]], Feature("x", "int64"))
    with pytest.raises(DataError, match=r"holds int64 where the schema has a list, int64 \[\?\]"):
        conform_checked([1], Feature("x", "int64", (None,)))
