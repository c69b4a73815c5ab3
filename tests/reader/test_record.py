"""The quick way to one record says what the decoder says, or nothing:
for plain records, unusual ones and damaged ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_data_set import MIXED, mixed_rows

from recordmill.base.errors import DataError
from recordmill.reader.rows import make_record_plan, parse_record, value_of
from recordmill.records.example.decode import decode
from recordmill.records.example.encode import encode
from recordmill.records.example.single_example import example
from recordmill.schemas.feature import Feature, Schema

FLAT = MIXED.select([feature.name for feature in MIXED if feature.name != "nested"])
ROWS = 40
FRAMES = encode(mixed_rows(ROWS).select(FLAT.names).combine_chunks().to_batches()[0], FLAT)
RECORDS = [FRAMES.payload(i).tobytes() for i in range(ROWS)]


def decoded(data: bytes, schema: Schema) -> dict[str, Any] | None:
    try:
        batch = decode(np.frombuffer(data, np.uint8), np.zeros(1, np.int64), np.array([len(data)]), schema)
    except DataError:
        return None
    return {feature.name: value_of(column, feature) for feature, column in zip(schema, batch.columns, strict=True)}


def quick(data: bytes, schema: Schema, whole: bool = True) -> dict[str, Any] | None:
    plan = make_record_plan(schema)
    assert plan is not None
    return parse_record(data, plan, schema, whole=whole)


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        assert type(value) is type(other[name]), name
        if isinstance(value, np.ndarray):
            assert value.dtype == other[name].dtype
            assert value.shape == other[name].shape
        np.testing.assert_equal(value, other[name])


@pytest.mark.parametrize("columns", [FLAT.names, ("label", "tokens"), ("when",)])
def test_plain_records_are_read_quickly_and_alike(columns: tuple[str, ...]) -> None:
    schema = FLAT.select(columns)
    for data in RECORDS:
        found, truth = quick(data, schema, whole=columns == FLAT.names), decoded(data, schema)
        assert found is not None
        assert truth is not None
        same(found, truth)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_records_are_never_read_otherwise(data: st.DataObject) -> None:
    record = bytearray(data.draw(st.sampled_from(RECORDS)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(record) - 1))
        change = data.draw(st.sampled_from(["set", "cut", "insert"]))
        if change == "set":
            record[at] = data.draw(st.integers(0, 255))
        elif change == "cut" and len(record) > 1:
            del record[at]
        else:
            record.insert(at, data.draw(st.integers(0, 255)))
    found, truth = quick(bytes(record), FLAT), decoded(bytes(record), FLAT)
    if found is not None:
        assert truth is not None
        same(found, truth)


@pytest.mark.parametrize(
    ("feature", "values"),
    [
        (Feature("x", "int8"), [-128, 127, None]),
        (Feature("x", "uint64"), [0, 2**63 - 1]),
        (Feature("x", "int64"), [-1, -(2**63)]),
        (Feature("x", "bool"), [True, False]),
        (Feature("x", "float32"), [0.1, float("inf")]),
        (Feature("x", "float64"), [1e300]),
        (Feature("x", "string"), ["", "ü" * 200]),
        (Feature("x", "bytes"), [b"", bytes(300)]),
        (Feature("x", "float64", (None,)), [np.array([1.5, 2.5])]),
        (Feature("x", "uint64", (2,)), [np.array([2**64 - 1, 0], np.uint64)]),
        (Feature("x", "int64", (None,)), [list(range(2000)), []]),
        (Feature("x", "bytes", (2,)), [[b"a", b"bc"]]),
        (Feature("x", "float32", (None, 2)), [[[1.0, 2.0]], []]),
    ],
    ids=str,
)
def test_every_dtype(feature: Feature, values: list[Any]) -> None:
    schema = Schema((feature,))
    for value in values:
        record = example({} if value is None else {"x": value}, schema)
        truth = decoded(record, schema)
        assert truth is not None
        found = quick(record, schema)
        if found is None:
            assert isinstance(value, list)
            assert len(value) > 500
        else:
            same(found, truth)


def test_what_does_not_fit_is_left_to_the_decoder() -> None:
    assert quick(example({"x": 300}), Schema((Feature("x", "int8"),))) is None
    assert quick(example({"x": [1, 2]}), Schema((Feature("x", "int64"),))) is None
    assert quick(example({"x": "a"}), Schema((Feature("x", "int64"),))) is None
    assert quick(b"", Schema((Feature("x", "int64", (), True),))) is None
    assert quick(b"", Schema((Feature("x", "int64"),))) == {"x": None}
    assert quick(example({"x": b"\xff"}), Schema((Feature("x", "string"),))) is None
    assert make_record_plan(MIXED) is None
    assert make_record_plan(Schema((Feature("record", "bytes"),), message="bytes")) is None


def test_a_name_that_is_not_utf8_is_left_to_the_decoder_also_where_it_is_not_wanted() -> None:
    good = example({"a": 1})
    entry = b"\x0a\x05" + b"\x0a\x01\xff" + b"\x12\x00"
    bad = bytes([good[0], good[1] + len(entry)]) + good[2:] + entry
    schema = Schema((Feature("a", "int64"),))
    plan = make_record_plan(schema)
    assert plan is not None
    assert parse_record(good, plan, schema, whole=False) == {"a": 1}
    assert parse_record(bad, plan, schema, whole=False) is None
