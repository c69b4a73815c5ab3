"""Options become conversion steps, which decode and convert records.

Malformed options are refused.
"""

import numpy as np
import pytest
from kit.wire_writer import BYTES, INT64, example, feature

from recordmill.base.errors import DataError, UsageError
from recordmill.records.columns.conversions import (
    Decoding,
    check_converted_once,
    normalize_specs,
    parse_conversion_steps,
    parse_decode_raw,
    parse_reshape,
    parse_shape,
)
from recordmill.records.columns.convert import DecodeRaw, MakeRagged, Pad, Reshape
from recordmill.records.protobuf.message import join_records
from recordmill.schemas.feature import Feature, Schema


@pytest.mark.parametrize(
    ("text", "shape"), [("", ()), ("3", (3,)), ("-1, 4", (None, 4)), ("1,1,1", (1, 1, 1))]
)
def test_shape_is_parsed_with_none_for_a_variable_dimension(
    text: str, shape: tuple[int | None, ...]
) -> None:
    assert parse_shape(text, "x") == shape


@pytest.mark.parametrize("text", ["0", "-2", "-1,-1", "3,-1", "a", "3,,4", "1.5"])
def test_impossible_shape_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^reshape: (a shape must be numbers|dimensions are 1)"):
        parse_shape(text, "reshape")


def test_only_a_reshape_may_have_the_variable_dimension_anywhere() -> None:
    assert parse_shape("3,-1", "x", allows_any_position=True) == (3, None)
    assert parse_reshape("boxes=[4,-1]") == Reshape("boxes", (4, None))


def test_options_become_steps_in_a_fixed_order() -> None:
    steps = parse_conversion_steps(
        pad={"tokens": "8:0"},
        reshape={"boxes": [-1, 4]},
        decode_raw="depth=>float32[2,3]",
        pad_or_cut=["words=3:x=y"],
        ragged="a, b",
    )
    assert steps == (
        DecodeRaw("depth", dtype="float32", shape=(2, 3), is_big_endian=True),
        Reshape("boxes", (None, 4)),
        Pad("tokens", length=8, value="0", cuts_longer=False),
        Pad("words", length=3, value="x=y", cuts_longer=True),
        MakeRagged("a"),
        MakeRagged("b"),
    )


def test_feature_name_may_contain_an_equals_sign() -> None:
    assert parse_decode_raw("a=b=uint8[4]").feature == "a=b"
    assert parse_decode_raw("a=<int16").shape == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decode_raw": "depth"}, r"decode_raw=.*write FEATURE=DTYPE\[SHAPE\]"),
        ({"decode_raw": "depth=float7[2]"}, "a dtype is one of"),
        ({"decode_raw": ["x=int8[1]", "x=int8[2]"]}, "'x' is to be decoded twice"),
        ({"reshape": "boxes=4"}, r"write FEATURE=\[SHAPE\]"),
        ({"reshape": {"boxes": 4.5}}, "must be a text such as"),
        ({"pad": "tokens=0:0"}, "write FEATURE=LENGTH:VALUE"),
        ({"pad": "tokens=8"}, "write FEATURE=LENGTH:VALUE"),
        ({"pad": 3}, "must be a text FEATURE=..., a list of them, or a dict"),
        ({"pad": "x=3:0", "ragged": "x"}, "'x' is to be padded or made ragged twice"),
    ],
)
def test_malformed_conversion_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_conversion_steps(**options)  # type: ignore[arg-type]


def test_specs_of_every_form_become_texts() -> None:
    assert normalize_specs(None, "pad") == ()
    assert normalize_specs("a=1:2", "pad") == ["a=1:2"]
    assert normalize_specs({"a": "1:2", "b": [3, -1]}, "reshape") == ["a=1:2", "b=[3,-1]"]
    check_converted_once(["a", "b"], "padded")


SCHEMA = Schema((Feature("n", "int64"), Feature("raw", "bytes", required=True)))


def record(number: int, raw: bytes) -> bytes:
    return example([("n", feature(INT64, [number])), ("raw", feature(BYTES, [raw]))])


def test_bad_records_of_decoding_and_conversion_have_the_rows_of_the_input() -> None:
    decoding = Decoding(SCHEMA, (DecodeRaw("raw", dtype="int16", shape=(2,)),))
    assert decoding.schema["raw"].shape == (2,)
    records = [record(0, bytes(4)), b"\xff", record(2, bytes(3)), record(3, b"\1\0\2\0")]
    batch, good, bad = decoding.decode_lenient(*join_records(records))
    assert good.tolist() == [0, 3]
    assert [error.row for error in bad] == [1, 2]
    assert batch.column("raw").to_pylist() == [[0, 0], [1, 2]]
    assert batch.column("n").to_pylist() == [0, 3]


def test_strict_decoding_raises_the_first_bad_record_with_its_place() -> None:
    decoding = Decoding(SCHEMA, (DecodeRaw("raw", dtype="int16", shape=(2,)),))
    data = join_records([record(0, bytes(4)), record(2, bytes(3))])
    with pytest.raises(DataError, match=r"^a: record 1: .*'raw'"):
        decoding.decode(*data, location=lambda row: ("a", f"record {row}"))


def test_record_of_another_kind_suggests_to_leave_out_its_file() -> None:
    record = example([("other", feature(INT64, [1]))])
    with pytest.raises(DataError, match=r"^b: record 0: has none of the features of the other"):
        Decoding(SCHEMA).decode(
            *join_records([record]), location=lambda row: ("b", f"record {row}")
        )


def test_decoding_without_steps_returns_the_batch_as_it_is() -> None:
    decoding = Decoding.from_schema(SCHEMA)
    assert Decoding.from_schema(decoding) is decoding
    batch = decoding.decode(*join_records([record(7, b"x")]), location=lambda row: ("", ""))
    assert decoding.convert(batch, lambda row: ("", "")) is batch
    assert np.asarray(batch.column("n")).tolist() == [7]
