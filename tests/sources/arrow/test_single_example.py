"""`example()` writes the bytes of `encode`, and `parse_example()` reads the values back."""

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from kit.batches import plain
from kit.example_oracle import arrow_value, parse, row_entries, schemas_and_rows
from kit.protobuf_oracle import messages

from recordmill.base.errors import DataError
from recordmill.records.example.encode import encode
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import SEQUENCE_EXAMPLE, Feature, Schema
from recordmill.sources.arrow.single_example import example, parse_example


def test_example_returns_the_pinned_bytes() -> None:
    assert example({"b": [1, 300], "a": 1.5, "none": None}).hex() == (
        "0a1d0a0d0a0161120812060a040000c03f0a0c0a016212071a050a0301ac02"
    )


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=schemas_and_rows())
def test_example_equals_the_columnar_path_and_parses_back(
    case: tuple[Schema, list[dict[str, Any]]],
) -> None:
    schema, rows = case
    assume("bfloat16" not in {feature.dtype for feature in schema})  # a build rounds bfloat16
    columns = [{f.name: arrow_value(f, row[f.name]) for f in schema} for row in rows]
    frames = encode(pa.RecordBatch.from_pylist(columns, schema=to_arrow(schema)), schema)
    for i, row in enumerate(rows):
        data = example(row, schema)
        assert data == frames.payload(i).tobytes()
        assert parse(data) == {
            name: (kind, list(map(plain, values)))
            for name, (kind, values) in row_entries(schema, row).items()
        }
        parsed = parse_example(data, schema)
        for feature in schema:
            assert plain(parsed[feature.name]) == plain(row[feature.name])
        assert example(parsed, schema) == data
        assert {name: plain(value) for name, value in parse_example(data).items()} == {
            name: values for name, (_, values) in parse(data).items()
        }


class Tensor:
    """A tensor of another library, which can be converted to an array."""

    def __init__(self, array: Any) -> None:
        self._array = np.asarray(array)

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        return self._array


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (5, "int64", [5]),
        (True, "int64", [1]),
        (0.5, "float", [0.5]),
        (np.float64(0.5), "float", [0.5]),
        ("ü", "bytes", [b"\xc3\xbc"]),
        (b"\xff", "bytes", [b"\xff"]),
        (bytearray(b"x"), "bytes", [b"x"]),
        ([1, 2], "int64", [1, 2]),
        ((1, 2.5), "float", [1, 2.5]),
        (["a", "b"], "bytes", [b"a", b"b"]),
        ([], "bytes", []),
        (np.array([1, 2], np.int16), "int64", [1, 2]),
        (np.array([[1, 2]], np.uint8), "bytes", [b"\1\2"]),
        (np.array([1.5]), "bytes", [np.array([1.5]).tobytes()]),
        (np.array([b"a", b"b"], object), "bytes", [b"a", b"b"]),
        (np.array([2**64 - 1], np.uint64), "bytes", [b"\xff" * 8]),
        (np.array([], np.float32), "float", []),
        (np.array(["2020-01-02"], "M8[us]"), "int64", [1577923200000000]),
        (Tensor(np.float32(2)), "float", [2]),
        (Tensor([[1, 2], [3, 4]]), "int64", [1, 2, 3, 4]),
    ],
)
def test_type_of_a_value_determines_the_kind_of_list(value: Any, kind: str, expected: Any) -> None:
    assert parse(example({"x": value})) == {"x": (kind, expected)}


def make_schema(dtype: str, *shape: int | None) -> Schema:
    return Schema((Feature("x", dtype, shape),))


@pytest.mark.parametrize(
    "convert", [lambda v: v, lambda v: np.array(v), lambda v: [v], lambda v: np.array([v, v])]
)
def test_class_names_and_numbers_are_resolved_as_in_a_build(convert: Any) -> None:
    for classes, values in (
        (("no", "yes"), {"no": 0, "yes": 1, 0: 0, 1: 1}),
        (("true", "false"), {True: 0, False: 1, "true": 0}),
        (("x", "false", "true"), {True: 2, False: 1, 2: 2}),
    ):
        is_scalar = np.ndim(convert(0)) == 0
        schema = Schema((Feature("y", "int64", () if is_scalar else (None,), classes=classes),))
        numbers = Schema((Feature("y", "int64", () if is_scalar else (None,)),))
        for value, number in values.items():
            assert example({"y": convert(value)}, schema) == example(
                {"y": convert(number)}, numbers
            )
        for value in (-1, len(classes), "cat", *(() if "true" in classes else (True, np.False_))):
            with pytest.raises(DataError, match="not one of the"):
                example({"y": convert(value)}, schema)


@pytest.mark.parametrize(
    ("value", "schema", "message"),
    [
        (1e39, None, "does not fit float32"),
        (2**63, None, r"holds whole numbers up to 2\^63 - 1"),
        (256, make_schema("uint8"), "256 does not fit uint8"),
        (2, make_schema("bool"), "2 does not fit bool"),
        ([1, 2], make_schema("int64", 3), "does not have the shape"),
        (np.zeros((2, 3)), make_schema("float32", 3, 2), "does not have the shape"),
        (b"\xff", make_schema("string"), r"'.xff' does not fit string"),
        ("\ud800", None, "surrogates not allowed"),
        (np.datetime64("2020-01-01T00:00:00.5"), make_schema("timestamp[s]"), "does not fit"),
        (datetime.datetime(2500, 1, 1), make_schema("timestamp[ns]"), "does not fit"),
        (np.datetime64(2**62, "us"), make_schema("timestamp[ns]"), "does not fit"),
        (np.datetime64("1600-01-01", "s"), make_schema("timestamp[ns]"), "does not fit"),
        (np.datetime64("400000-01-01"), make_schema("timestamp[us]"), "does not fit"),
        (np.ma.array(np.float32([1.5, 2.5]), mask=[False, True]), None, "masked"),
        ([1, "a"], None, "'a'"),
        ([1, None], None, "null inside a list"),
        (1j, None, "complex"),
        (1.5, make_schema("int64"), "1.5 does not fit int64"),
        (5, make_schema("int64", None), "schema has a list"),
        ([5], make_schema("int64"), "schema has int64"),
    ],
)
def test_value_that_would_lose_information_is_refused(
    value: Any, schema: Schema | None, message: str
) -> None:
    with pytest.raises(DataError, match=message) as error:
        example({"x": value}, schema)
    assert len(str(error.value)) < 300


def test_example_and_parse_example_enforce_the_schema() -> None:
    schema = Schema((Feature("x", "int64", (), True), Feature("y", "string")))
    assert example({"x": 1}, schema) == example({"x": 1, "y": None}, schema)
    with pytest.raises(DataError, match="x: missing, but the schema requires it"):
        example({"y": "a"}, schema)
    with pytest.raises(
        ValueError, match=r"\['z'\] are not features of the schema, which has \['x', 'y'\]"
    ):
        example({"x": 1, "z": 2}, schema)
    with pytest.raises(ValueError, match="SequenceExample"):
        example({}, Schema((), message=SEQUENCE_EXAMPLE))
    with pytest.raises(DataError):
        parse_example(example({"y": "a"}), schema)


def test_times_with_a_zone_are_stored_in_utc() -> None:
    schema = make_schema("timestamp[us, UTC]")
    zone = datetime.timezone(datetime.timedelta(hours=2))
    time = datetime.datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=zone)
    result = parse_example(example({"x": time}, schema), schema)["x"]
    assert result == np.datetime64("2024-05-06T05:08:09.000010")
    assert result.dtype == "M8[us]"
    assert (
        example({"x": result}, schema)
        == example({"x": time}, schema)
        == example({"x": result.astype(int)}, schema)
    )


def test_unpacked_empty_and_broken_records_of_other_programs() -> None:
    # The int64 values 5 and 300 are unpacked, and an empty packed list follows.
    record = bytes.fromhex("0a100a0e0a016112091a07080508ac020a00")
    assert parse_example(record)["a"].tolist() == [5, 300]
    assert parse_example(b"") == parse_example(b"\n\0") == {}
    assert parse_example(bytes.fromhex("0a070a050a01611200")) == {"a": None}
    for data in (b"\x0a", b"\x0a\x05\x0a", b"\xff" * 12):
        with pytest.raises(DataError, match="protobuf refuses it"):
            parse_example(data)


def test_masked_scalar_is_a_missing_value() -> None:
    assert parse_example(example({"x": np.ma.masked, "y": np.ma.array([3])})).keys() == {"y"}


@pytest.mark.parametrize("name", [1, b"a", "\ud800"])
def test_feature_name_that_is_not_text_is_refused(name: Any) -> None:
    with pytest.raises(DataError, match="column"):
        example({name: 1})


@pytest.mark.parametrize("digits", [400, 5000])
def test_error_about_a_huge_number_is_short(digits: int) -> None:
    value = [-(10**digits)]
    with pytest.raises(DataError, match=r"'x' is (too long to be shown|\[-10)") as error:
        example({"x": value})
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((None,), [None, 2**53 + 1]),
        ((None, None), [None, [2**53 + 1]]),
        ((None, 1), [None, [2**53 + 1]]),
    ],
)
def test_missing_step_of_a_sequence_example_is_none(
    shape: tuple[int | None, ...], expected: list[Any]
) -> None:
    message = messages()[1]()
    steps = message.feature_lists.feature_list["d"]
    steps.feature.add()
    steps.feature.add().int64_list.value.append(2**53 + 1)
    schema = Schema((Feature("d", "int64", shape, per_step=True),), message=SEQUENCE_EXAMPLE)
    result = parse_example(message.SerializeToString(), schema)["d"]
    assert [step.tolist() if isinstance(step, np.ndarray) else step for step in result] == expected
