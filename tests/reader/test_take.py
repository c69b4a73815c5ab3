"""The fast parser of single records returns the same values as the decoder.

It leaves unusual records to the decoder.
"""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from kit.data_sets import MIXED, mixed_rows
from kit.example_oracle import schemas_and_rows

from recordmill.base.errors import DataError
from recordmill.reader.take import make_parse_plan, parse_record
from recordmill.records.example.encode import encode
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.arrow.single_example import example, parse_example

FLAT = MIXED.select([feature.name for feature in MIXED if feature.name != "nested"])
ROWS = 40
FRAMES = encode(mixed_rows(ROWS).select(FLAT.names).combine_chunks().to_batches()[0], FLAT)
RECORDS = [FRAMES.payload(i).tobytes() for i in range(ROWS)]


def decode(data: bytes, schema: Schema) -> dict[str, Any] | None:
    try:
        return parse_example(data, schema)
    except DataError:
        return None


def parse_quickly(
    data: bytes, schema: Schema, is_full_schema: bool = True
) -> dict[str, Any] | None:
    plan = make_parse_plan(schema)
    assert plan is not None
    return parse_record(data, plan, schema, is_full_schema=is_full_schema)


def check_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert list(first) == list(second)
    for name, value in first.items():
        assert type(value) is type(second[name]), name
        if isinstance(value, np.ndarray):
            assert value.dtype == second[name].dtype
            assert value.shape == second[name].shape
        np.testing.assert_equal(value, second[name])


@pytest.mark.parametrize("columns", [FLAT.names, ("label", "tokens"), ("when",)])
def test_quick_parser_equals_the_decoder_for_plain_records(columns: tuple[str, ...]) -> None:
    schema = FLAT.select(columns)
    for data in RECORDS:
        values, expected = (
            parse_quickly(data, schema, is_full_schema=columns == FLAT.names),
            decode(data, schema),
        )
        assert values is not None
        assert expected is not None
        check_same(values, expected)
    long_list = parse_quickly(
        example({"x": list(range(2000))}), Schema((Feature("x", "int64", (None,)),))
    )
    assert long_list is not None
    assert long_list["x"].tolist() == list(range(2000))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_quick_parser_never_disagrees_on_damaged_records(data: st.DataObject) -> None:
    record = bytearray(data.draw(st.sampled_from(RECORDS)))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(record) - 1))
        change = data.draw(st.sampled_from(["set", "cut", "insert"]))
        if change == "set":
            record[position] = data.draw(st.integers(0, 255))
        elif change == "cut" and len(record) > 1:
            del record[position]
        else:
            record.insert(position, data.draw(st.integers(0, 255)))
    values, expected = parse_quickly(bytes(record), FLAT), decode(bytes(record), FLAT)
    if values is not None:
        assert expected is not None
        check_same(values, expected)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schemas_and_rows())
def test_quick_parser_equals_the_decoder_for_every_dtype_and_shape(
    case: tuple[Schema, list[dict[str, Any]]],
) -> None:
    schema, rows = case
    # A build rounds bfloat16.
    assume("bfloat16" not in {feature.dtype for feature in schema})
    for row in rows if make_parse_plan(schema) is not None else ():
        record = example(row, schema)
        values, expected = parse_quickly(record, schema), decode(record, schema)
        assert values is not None
        assert expected is not None
        check_same(values, expected)


def test_quick_parser_leaves_misfits_to_the_decoder() -> None:
    assert parse_quickly(example({"x": 300}), Schema((Feature("x", "int8"),))) is None
    assert parse_quickly(example({"x": [1, 2]}), Schema((Feature("x", "int64"),))) is None
    assert parse_quickly(example({"x": "a"}), Schema((Feature("x", "int64"),))) is None
    assert parse_quickly(b"", Schema((Feature("x", "int64", (), True),))) is None
    assert parse_quickly(b"", Schema((Feature("x", "int64"),))) == {"x": None}
    assert parse_quickly(example({"x": b"\xff"}), Schema((Feature("x", "string"),))) is None
    assert make_parse_plan(MIXED) is None
    assert make_parse_plan(Schema((Feature("record", "bytes"),), message="bytes")) is None


def test_quick_parser_leaves_names_that_are_not_utf8_to_the_decoder() -> None:
    valid = example({"a": 1})
    entry = b"\x0a\x05" + b"\x0a\x01\xff" + b"\x12\x00"
    invalid = bytes([valid[0], valid[1] + len(entry)]) + valid[2:] + entry
    schema = Schema((Feature("a", "int64"),))
    plan = make_parse_plan(schema)
    assert plan is not None
    assert parse_record(valid, plan, schema, is_full_schema=False) == {"a": 1}
    assert parse_record(invalid, plan, schema, is_full_schema=False) is None
