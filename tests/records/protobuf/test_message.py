"""Single messages are rewritten to the plain form of protobuf.

Hostile messages cost no memory.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.wire_writer import BYTES, INT64, entry, example, feature, field

from recordmill.records.protobuf import message
from recordmill.records.protobuf.message import (
    EXAMPLE_MAPS,
    SEQUENCE_MAPS,
    encode_varint,
    example_class,
    find_invalid_name,
    join_records,
    to_plain_form,
)


@given(st.integers(0, 2**64 - 1))
def test_varint_is_that_of_protobuf(value: int) -> None:
    encoded = encode_varint(value)
    assert all(byte & 128 for byte in encoded[:-1])
    assert not encoded[-1] & 128
    assert sum((byte & 127) << 7 * place for place, byte in enumerate(encoded)) == value
    assert len(encoded) == max(-(-value.bit_length() // 7), 1)


def test_example_class_reads_the_messages_of_tensorflow() -> None:
    example_pb2 = pytest.importorskip("tensorflow.core.example.example_pb2")
    tf_message = example_pb2.Example()
    tf_message.features.feature["a"].int64_list.value.extend([1, -2])
    tf_message.features.feature["b"].bytes_list.value.append(b"x")
    parsed = example_class().FromString(tf_message.SerializeToString())
    assert list(parsed.features.feature["a"].int64_list.value) == [1, -2]
    assert parsed.SerializeToString(deterministic=True) == tf_message.SerializeToString(
        deterministic=True
    )


def test_plain_form_has_the_last_value_of_a_repeated_name() -> None:
    record = example([("a", feature(INT64, [1])), ("a", feature(INT64, [2]))])
    plain_form = to_plain_form(record, EXAMPLE_MAPS)
    assert plain_form is not None
    assert plain_form.data == example([("a", feature(INT64, [2]))])
    assert (plain_form.has_unknown_fields, plain_form.has_map) == (False, True)


def test_unknown_fields_outside_of_the_maps_are_reported() -> None:
    record = example([("a", feature(INT64, [1]))])
    plain_form = to_plain_form(record + field(9, b"unknown"), EXAMPLE_MAPS)
    assert plain_form is not None
    assert plain_form.data == record
    assert plain_form.has_unknown_fields
    nested = to_plain_form(example([("a", feature(INT64, [1]) + field(9, b"x"))]), EXAMPLE_MAPS)
    assert nested is not None
    assert not nested.has_unknown_fields


def test_empty_record_has_no_map() -> None:
    plain_form = to_plain_form(b"", EXAMPLE_MAPS)
    assert plain_form is not None
    assert (plain_form.data, plain_form.has_map) == (b"", False)
    empty_map = to_plain_form(field(1, b""), SEQUENCE_MAPS)
    assert empty_map is not None
    assert empty_map.has_map


def test_bytes_that_are_not_a_message_have_no_plain_form() -> None:
    assert to_plain_form(b"\xff", EXAMPLE_MAPS) is None
    assert to_plain_form(b"\x0a\x7f", EXAMPLE_MAPS) is None


def test_message_with_too_many_entries_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message, "_MAX_ENTRIES", 50)
    smaller = field(1, entry("a", feature(INT64, [1])) * 50)
    larger = field(1, entry("a", feature(INT64, [1])) * 51)
    assert to_plain_form(smaller, EXAMPLE_MAPS) is not None
    assert to_plain_form(larger, EXAMPLE_MAPS) is None
    assert find_invalid_name(larger) is None


def test_invalid_feature_name_is_found() -> None:
    good, bad = entry("a", feature(BYTES, [b"x"])), entry(b"\xff", feature(BYTES, [b"x"]))
    assert find_invalid_name(field(1, good)) is None
    assert find_invalid_name(field(1, good + bad)) == b"\xff"
    assert find_invalid_name(b"\xff") is None


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_joined_records_are_stored_back_to_back(records: list[bytes]) -> None:
    data, starts, lengths = join_records(records)
    parts = [
        data[start : start + length].tobytes()
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
    ]
    assert parts == records
    assert data.nbytes == sum(map(len, records))
    assert not data.flags.writeable or not len(data)
