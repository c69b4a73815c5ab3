"""Declared dtypes and schemas apply to inferred ones, parts are joined to one type, and values
that don't fit are faults.
"""

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.runs import in_flags

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.records.example.encode import encode
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import MAX_FEATURES, Feature, Schema, max_feature_count
from recordmill.sources.values import labels
from recordmill.sources.values.casting import cast_values
from recordmill.sources.values.conform import ConformedBatch, conform
from recordmill.sources.values.flatten import flatten, flatten_schema
from recordmill.sources.values.labels import ClassNames
from recordmill.sources.values.schema_unifier import (
    SchemaUnifier,
    apply_dtypes,
    join_dtypes,
    join_shapes,
    parse_dtype,
)
from recordmill.sources.values.text_columns import find_inexact, narrow_floats


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("float64", ("float64", None)),
        ("uint8[28,28]", ("uint8", (28, 28))),
        ("int64[?]", ("int64", (None,))),
        ("string[]", ("string", ())),
        (" float32[?, 4] ", ("float32", (None, 4))),
        ("timestamp[us]", ("timestamp[us]", None)),
        ("timestamp[us,UTC]", ("timestamp[us, UTC]", None)),
        ("timestamp[ms, UTC][?]", ("timestamp[ms, UTC]", (None,))),
    ],
)
def test_dtypes_are_parsed_as_users_type_them(text: str, expected: tuple[str, Any]) -> None:
    assert parse_dtype(text) == expected


@pytest.mark.parametrize(
    "text", ["float", "int63", "timestamp", "timestamp[m]", "uint8[28", "uint8[a]", ""]
)
def test_unknown_dtype_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="unknown dtype"):
        parse_dtype(text)


def test_declared_dtypes_override_a_schema() -> None:
    schema = Schema((Feature("a", "int64", (None,), classes=("x",)), Feature("b", "string")))
    assert apply_dtypes(schema, {"a": "int32"})["a"] == Feature("a", "int32", (None,))
    assert apply_dtypes(schema, {"a": "int64[3]"})["a"] == Feature(
        "a", "int64", (3,), classes=("x",)
    )
    with pytest.raises(
        UsageError, match=r"--dtype 'a=int64\[3,\?\]': feature 'a': .*variable dimensions"
    ):
        apply_dtypes(schema, {"a": "int64[3,?]"})


def test_classes_are_sorted_by_utf8_bytes_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ClassNames("y")
    names.add(pa.array(["ä", "z", None, "Z"]))
    names += ClassNames("", ["\U00010000", "\uffff"])
    assert names.sorted_classes() == ("Z", "z", "ä", "\uffff", "\U00010000")
    monkeypatch.setattr(labels, "MAX_CLASSES", 5)
    for more in (["one more"], ["and more"]):
        names.add(pa.array(more))
        with pytest.raises(DataError, match="label 'y' has more than 5 different values"):
            names.sorted_classes()
    assert len(names.names) == 6


NUMBERS = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]
OTHERS = ["bool", "string", "bytes", "timestamp[s]", "timestamp[ns]", "timestamp[us, UTC]"]


@given(st.sampled_from(NUMBERS + OTHERS), st.sampled_from(NUMBERS + OTHERS))
def test_joined_dtype_is_commutative_and_holds_both(one: str, other: str) -> None:
    joined = join_dtypes(one, other)
    assert joined == join_dtypes(other, one)
    assert join_dtypes(one, one) == one
    if joined is None:
        return
    assert join_dtypes(joined, one) == joined
    if one.startswith(("int", "uint")) and joined.startswith(("int", "uint")):
        assert np.iinfo(joined).min <= np.iinfo(one).min
        assert np.iinfo(joined).max >= np.iinfo(one).max
    if one in NUMBERS[8:] and joined not in ("bfloat16", "float16"):
        assert joined in ("float32", "float64")


def test_joined_dtypes_and_shapes() -> None:
    assert join_dtypes("int8", "uint8") == "int16"
    assert join_dtypes("int64", "uint64") is None
    assert join_dtypes("int32", "float32") == "float64"
    assert join_dtypes("int16", "float32") == "float32"
    assert join_dtypes("bool", "int8") is None
    assert join_dtypes("float16", "bfloat16") == "float32"
    assert join_dtypes("timestamp[s]", "timestamp[ms]") == "timestamp[ms]"
    assert join_dtypes("timestamp[s]", "timestamp[s, UTC]") is None
    assert join_shapes((2, 3), (4, 3)) == (None, 3)
    assert join_shapes((2, 3), (2, 4)) == (None, None)
    assert join_shapes((), (2,)) is None


def test_feature_is_required_if_every_part_has_it() -> None:
    unifier = SchemaUnifier()
    unifier.add(
        pa.schema({"a": pa.int8(), "b": pa.null(), "c": pa.string()}),
        "one",
        {"a": 0, "b": 2, "c": 0},
    )
    unifier.add(pa.schema({"a": pa.int16(), "b": pa.string()}), "two", {"a": 0, "b": 0})
    assert unifier.schema() == Schema(
        (Feature("a", "int16", required=True), Feature("b", "string"), Feature("c", "string"))
    )
    assert unifier.empty_columns() == ()


def test_empty_lists_join_with_lists() -> None:
    unifier = SchemaUnifier()
    for kind in (
        pa.list_(pa.null()),
        pa.null(),
        pa.list_(pa.list_(pa.int8())),
        pa.list_(pa.null()),
    ):
        unifier.add(pa.schema({"a": kind}), "somewhere")
    assert unifier.schema() == Schema((Feature("a", "int8", (None, None)),))
    with pytest.raises(
        DataError,
        match=r"there: 'a' is string \[\?, \?, \?\] here, but int8 \[\?, \?\] in somewhere",
    ):
        unifier.add(pa.schema({"a": pa.list_(pa.list_(pa.list_(pa.null())))}), "there")
    other = SchemaUnifier()
    other.add(pa.schema({"a": pa.list_(pa.null())}), "here")
    with pytest.raises(DataError, match=r"there: 'a' is int8 here, but string \[\?\] in here"):
        other.add(pa.schema({"a": pa.int8()}), "there")


def test_structs_are_flattened() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "a": [1, 2, 3, 4],
            "s": pa.array(
                [{"x": 1, "t": {"y": "p"}}, None, {"x": None, "t": None}, {"x": 4, "t": {"y": "q"}}]
            ),
            "l": pa.array([[{"x": 1}, {"x": 2}], None, [], [{"x": None}]]),
            "ll": pa.array([[[{"x": 1}], []], [], None, [[{"x": 2}]]]),
        }
    )
    expected = {
        "a": [1, 2, 3, 4],
        "s.x": [1, None, None, 4],
        "s.t.y": ["p", None, None, "q"],
        "l.x": [[1, 2], None, [], [None]],
        "ll.x": [[[1], []], [], None, [[2]]],
    }
    assert flatten(batch).to_pydict() == expected
    assert flatten(batch.slice(1, 3)).to_pydict() == {
        name: column[1:] for name, column in expected.items()
    }
    assert flatten_schema(batch.schema).names == list(expected)
    plain = batch.select(["a"])
    assert flatten(plain) is plain
    with pytest.raises(DataError, match=r"two columns are named 's\.x'"):
        flatten(pa.RecordBatch.from_pydict({"s": [{"x": 1}], "s.x": [1]}))


# Columns made to fit a schema
def fit(values: Any, feature: Feature, kind: pa.DataType | None = None) -> ConformedBatch:
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
    result = fit(values, Feature("x", dtype))
    assert [(at, fault.reason) for at, fault in result.faults.items()] == [(row, reason)]
    assert message in in_flags(result.faults[row].message)
    assert result.good_rows.tolist() == [0]


def test_uint64_scalars_beyond_int64_are_faults() -> None:
    values = pa.array([2**63 - 1, 2**63], pa.uint64())
    assert [*fit(values, Feature("x", "uint64")).faults] == [1]
    assert [*fit(values, Feature("x", "int64")).faults] == [1]
    tensors = pa.array([[2**63, 1]], pa.list_(pa.uint64()))
    # raw bytes hold all of uint64
    assert fit(tensors, Feature("x", "uint64", (2,))).batch.column(0).to_pylist() == [[2**63, 1]]


def test_decimals_are_rounded_to_float32_and_counted() -> None:
    result = fit([0.1, 0.5, None, float("nan"), float("inf")], Feature("x", "float32"))
    assert result.rounded_counts == {"x": 1}
    assert result.batch.column(0).to_pylist()[:3] == [np.float32(0.1).item(), 0.5, None]


def test_every_wrong_value_of_a_column_is_a_fault() -> None:
    result = fit(["1", *["x"] * 5000], Feature("x", "int64"))
    assert len(result.faults) == 5000
    assert result.batch.column(0).to_pylist() == [1]


def test_tensors_of_wrong_shapes_are_faults() -> None:
    tensor = Feature("t", "uint8", (2, 2))
    result = fit([[[1, 2], [3, 4]], [[1, 2], [3]], None, [[1, 2]], [[5, 6], [7, 8]]], tensor)
    assert result.batch.column(0).to_pylist() == [[1, 2, 3, 4], None, [5, 6, 7, 8]]
    assert [(row, fault.reason) for row, fault in result.faults.items()] == [
        (1, "shape"),
        (3, "shape"),
    ]
    assert result.faults[1].message == "t: [[1, 2], [3]] has not the shape of uint8 [2, 2]"
    assert fit([[1, 2, 3, 4], [1, 2, 3]], tensor).good_rows.tolist() == [0]
    assert fit(pa.array([[1, 2, 3, 4]], pa.list_(pa.int64(), 4)), tensor).good_rows.tolist() == [0]
    assert fit([[], None], Feature("t", "float32", (0,))).batch.column(0).to_pylist() == [[], None]
    assert fit([None, None], Feature("t", "float32", (3,)), pa.list_(pa.float64())).batch.column(
        0
    ).to_pylist() == [
        None,
        None,
    ]


def test_ragged_lists_are_fitted() -> None:
    feature = Feature("a", "int32", (None, None))
    result = fit([[[1], [2, 3]], [], None, [[4, None]], [None], [[2**40]]], feature)
    assert result.batch.column(0).to_pylist() == [[[1], [2, 3]], [], None]
    assert [(row, fault.reason) for row, fault in result.faults.items()] == [
        (3, "null"),
        (4, "null"),
        (5, "range"),
    ]
    assert fit([[], None], feature).batch.column(0).to_pylist() == [[], None]
    assert fit([[], None], Feature("v", "float32", (None, 2))).batch.column(0).to_pylist() == [
        [],
        None,
    ]
    vectors = fit([[[1.0, 2.0]], [[1.0]], []], Feature("v", "float32", (None, 2)))
    assert vectors.batch.column(0).to_pylist() == [[[1.0, 2.0]], []]


def test_sliced_and_dictionary_columns_are_fitted() -> None:
    column = pa.array([[9], [1, 2], None, [3], [9]]).slice(1, 3)
    assert fit(column, Feature("a", "int64", (None,))).batch.column(0).to_pylist() == [
        [1, 2],
        None,
        [3],
    ]
    words = pa.array(["u", "v", None, "u"]).dictionary_encode()
    assert fit(words, Feature("a", "string")).batch.column(0).to_pylist() == ["u", "v", None, "u"]


def test_missing_required_values_are_faults_and_absent_columns_are_null() -> None:
    result = fit([1, None], Feature("x", "int64", required=True))
    assert result.faults == {1: ("null", "x: missing, but the schema requires it")}
    schema = Schema((Feature("y", "string"), Feature("z", "float32", (None,))))
    assert (
        conform(pa.RecordBatch.from_pydict({"other": [1, 2]}), schema).batch.to_pylist()
        == [{"y": None, "z": None}] * 2
    )
    assert conform(pa.RecordBatch.from_pydict({"x": [1, 2]}), Schema(())).batch.num_columns == 0


def test_class_names_are_mapped_to_numbers() -> None:
    result = fit(["cat", None, "dog", "cow"], Feature("x", "int64", classes=("cat", "dog")))
    assert result.batch.column(0).to_pylist() == [0, None, 1]
    assert result.faults == {
        3: ("class", "x: 'cow' does not fit int64: none of the 2 classes 'cat', 'dog'")
    }


def test_dates_decimals_and_durations_are_fitted() -> None:
    day = datetime.date(2020, 1, 2)
    assert fit([day], Feature("x", "timestamp[s]")).batch.column(0).to_pylist() == [
        datetime.datetime(2020, 1, 2)
    ]
    price = [decimal.Decimal("1.50"), decimal.Decimal("2.25")]
    assert fit(price, Feature("x", "float64")).batch.column(0).to_pylist() == [1.5, 2.25]
    assert fit(price, Feature("x", "string")).batch.column(0).to_pylist() == ["1.50", "2.25"]
    halves = [decimal.Decimal("1.50"), decimal.Decimal("2.00")]
    assert [*fit(halves, Feature("x", "int64")).faults] == [0]
    assert fit([datetime.timedelta(seconds=1)], Feature("x", "float32")).good_rows.tolist() == []


def test_column_of_another_form_is_an_error() -> None:
    with pytest.raises(
        DataError, match="column 'x' is a list<item: int64>, but the schema has int64"
    ):
        fit([[1]], Feature("x", "int64"))
    with pytest.raises(DataError, match=r"holds int64 where the schema has a list, int64 \[\?\]"):
        fit([1], Feature("x", "int64", (None,)))


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
    st.sampled_from(["float64", "float32", "float16", "bfloat16"]),
)
def test_integers_become_floats_only_if_exact(numbers: list[int], dtype: str) -> None:
    bits = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}[dtype]

    def holds(number: int) -> bool:
        magnitude = abs(number)
        while magnitude and magnitude % 2 == 0:
            magnitude //= 2
        return magnitude < 2**bits and (dtype != "float16" or abs(number) <= 65504)

    assert find_inexact(np.array(numbers, np.int64), dtype).tolist() == [
        not holds(number) for number in numbers
    ]
    cast = cast_values(pa.array(numbers, pa.int64()), Feature("x", dtype))
    for number, value, bad in zip(
        numbers,
        cast.values.to_pylist(),
        cast.bad_mask if cast.bad_mask is not None else [False] * len(numbers),
        strict=True,
    ):
        assert bad or int(value) == number


@given(st.lists(st.floats(width=64), max_size=20))
def test_float64_narrows_as_numpy_rounds(numbers: list[float]) -> None:
    array = np.array(numbers, np.float64)
    with np.errstate(over="ignore"):
        expected = array.astype(np.float32)
    cast = cast_values(pa.array(array), Feature("x", "float32"))
    bad = cast.bad_mask if cast.bad_mask is not None else np.zeros(len(array), np.bool_)
    assert bad.tolist() == (np.isinf(expected) & ~np.isinf(array)).tolist()
    assert np.array_equal(
        cast.values.to_numpy(zero_copy_only=False)[~bad], expected[~bad], equal_nan=True
    )


def test_bfloat16_rounds_to_nearest_even() -> None:
    narrow, lost = narrow_floats(
        np.array([1.0, 1.00390625, 1.01171875, 3.4e38, np.nan, -np.inf]), "bfloat16"
    )
    assert narrow.tolist()[:3] == [1.0, 1.0, 1.015625]
    assert np.isinf(narrow[3])
    assert np.isnan(narrow[4])
    assert narrow[5] == -np.inf
    assert lost == 3


# More features than the memory allows are refused in every kind of input, before they take it
MEMORY = 128 << 20
MOST = max_feature_count(MEMORY)


def write(path: Path, features: int) -> Path:
    """A file of one record of so many numbers, of the kind that its name says."""
    names = [f"f{at}" for at in range(features)]
    if path.suffix == ".csv":
        path.write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
    elif path.suffix == ".jsonl":
        path.write_text(json.dumps(dict.fromkeys(names, 1)) + "\n")
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({name: [1] for name in names}), path)
    else:
        batch = pa.record_batch({name: pa.array([1]) for name in names})
        frames = encode(batch, Schema(tuple(Feature(name, "int64") for name in names)))
        path.write_bytes(frames.data.tobytes())
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "tfrecord"])
def test_file_of_too_many_features_is_refused(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"wide.{kind}", MOST + 2000)
    said = rf"wide\.{kind}: it has [\d,]+ features or more, and the most is {MOST:,}: (--memory |memory=\")128MiB"
    with pytest.raises(DataError, match=said):
        recordmill.build(path, tmp_path / "out", memory=MEMORY, quiet=True)
    assert not (tmp_path / "out").exists()


def test_data_in_memory_of_too_many_features_is_refused(tmp_path: Path) -> None:
    data = pa.table({f"f{at}": [1] for at in range(MOST + 1)})
    with pytest.raises(
        DataError, match=f"memory: it has {MOST + 1:,} features or more, and the most is {MOST:,}"
    ):
        recordmill.build(data, tmp_path / "out", memory=MEMORY, quiet=True)


@pytest.mark.sweep
def test_foreign_records_of_too_many_features_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "wide.tfrecord", MAX_FEATURES + 1)
    with pytest.raises(
        DataError, match=r"wide\.tfrecord: it has 65,537 features or more, and the most is 65,536"
    ):
        recordmill.read(path, tmp_path / "out", to="jsonl", quiet=True)
    with pytest.raises(DataError, match="the most is 65,536"):
        recordmill.open(path).schema  # noqa: B018 - it is inferred where it is asked for


def test_as_many_features_as_the_memory_allows_are_built(tmp_path: Path) -> None:
    recordmill.build(
        write(tmp_path / "wide.tfrecord", MOST),
        tmp_path / "out",
        memory=MEMORY,
        quiet=True,
        stats=False,
    )
    assert len(recordmill.open(tmp_path / "out").schema) == MOST
