"""SequenceExamples are written and read like protobuf and tf.io do it."""

import os
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.protobuf_oracle import comparable, expected_row, messages
from kit.wire_writer import FLOAT, INT64, entry, feature, field

from recordmill.base.errors import DataError
from recordmill.records.example.decode import decode, decode_lenient
from recordmill.records.example.encode import encode_sequences
from recordmill.records.protobuf.message import join_records
from recordmill.records.tfrecord.frames import Frames, scan_frames
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import SEQUENCE_EXAMPLE, Feature, Schema

SCHEMA = Schema(
    (
        Feature("c/ints", "int64", (None,)),
        Feature("c/text", "string", required=True),
        Feature("l/bytes", "bytes", (None, None), per_step=True),
        Feature("l/float", "float32", (None,), per_step=True),
        Feature("l/image", "uint8", (None, 2, 2), per_step=True),
        Feature("l/ints", "int64", (None, None), per_step=True),
        Feature("l/pairs", "int32", (None, 2), per_step=True),
        Feature("l/words", "string", (None,), True, per_step=True),
    ),
    message=SEQUENCE_EXAMPLE,
)

_INT32, _INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_FLOAT = st.floats(width=32, allow_nan=False)


def lists_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(values, max_size=4)


ROWS = lists_of(
    st.fixed_dictionaries(
        {
            "c/ints": st.none() | lists_of(_INT64),
            "c/text": st.text(max_size=5),
            "l/bytes": st.none() | lists_of(st.none() | lists_of(st.binary(max_size=20))),
            "l/float": st.none() | lists_of(st.none() | _FLOAT),
            "l/image": st.none()
            | lists_of(st.none() | st.lists(st.integers(0, 255), min_size=4, max_size=4)),
            "l/ints": st.none() | lists_of(st.none() | lists_of(_INT64)),
            "l/pairs": st.none() | lists_of(st.lists(_INT32, min_size=2, max_size=2)),
            "l/words": lists_of(st.none() | st.text(max_size=300)),
        }
    )
)


def decode_frames(frames: Frames, schema: Schema) -> pa.RecordBatch:
    scanned_frames, consumed = scan_frames(frames.data, source="encoded", is_final=True)
    assert consumed == len(frames.data)
    np.testing.assert_array_equal(scanned_frames.crcs, frames.crcs)
    return decode(frames.data, frames.starts + 12, frames.lengths, schema)


@settings(deadline=None, max_examples=int(os.environ.get("RECORDMILL_FUZZ", "60")))
@given(ROWS)
def test_sequence_examples_survive_a_round_trip_and_equal_protobuf(
    rows: list[dict[str, Any]],
) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=to_arrow(SCHEMA))
    frames = encode_sequences(batch, SCHEMA)
    result = decode_frames(frames, SCHEMA)
    result.validate(full=True)
    assert result.equals(batch, check_metadata=True)
    for i, row in enumerate(rows):
        expected = expected_row(frames.payload(i).tobytes(), SCHEMA)
        assert isinstance(expected, dict)
        assert expected == {name: comparable(value) for name, value in row.items()}


def test_encoded_sequence_examples_are_the_pinned_bytes() -> None:
    """Protobuf in pure Python writes these bytes with deterministic=True."""
    schema = Schema(
        (Feature("a", "int64"), Feature("b", "int64", (None,), per_step=True)),
        message=SEQUENCE_EXAMPLE,
    )
    batch = pa.RecordBatch.from_pylist(
        [{"a": 5, "b": [1, 300, None]}, {"a": None, "b": []}, {"a": None, "b": None}],
        schema=to_arrow(schema),
    )
    frames = encode_sequences(batch, schema)
    assert [frames.payload(i).tobytes().hex(" ") for i in range(3)] == [
        "0a 0c 0a 0a 0a 01 61 12 05 1a 03 0a 01 05 12 18 0a 16 0a 01 62 12 11 0a 05 1a 03 0a 01 01 0a 06 1a "
        "04 0a 02 ac 02 0a 00",
        "0a 00 12 07 0a 05 0a 01 62 12 00",
        "0a 00 12 00",
    ]
    _, sequence_example, _ = messages()
    message = sequence_example()
    message.context.feature["a"].int64_list.value.append(5)
    steps = message.feature_lists.feature_list["b"].feature
    for value in (1, 300):
        steps.add().int64_list.value.append(value)
    steps.add()
    assert message.SerializeToString(deterministic=True) == frames.payload(0).tobytes()


def test_sequences_from_slices_and_32_bit_lists_encode_alike() -> None:
    schema = Schema((Feature("w", "string", (None,), per_step=True),), message=SEQUENCE_EXAMPLE)
    values = [["a", "b"], None, [], ["größe", None], ["x" * 300]]
    expected = decode_frames(
        encode_sequences(
            pa.RecordBatch.from_pylist([{"w": value} for value in values], schema=to_arrow(schema)),
            schema,
        ),
        schema,
    )
    batch = pa.record_batch({"w": pa.array([["no"], *values], pa.list_(pa.string()))}).slice(1)
    assert decode_frames(encode_sequences(batch, schema), schema).equals(expected)
    assert expected.to_pydict() == {"w": values}


@pytest.mark.parametrize(
    ("feature", "value", "words"),
    [
        (
            Feature("w", "int64", (None,), True, per_step=True),
            None,
            "null, but the feature is required",
        ),
        (Feature("w", "uint64", (None, 1), per_step=True), [[2**63]], "in its steps"),
    ],
)
def test_value_that_a_sequence_example_cannot_hold_is_refused(
    feature: Feature, value: object, words: str
) -> None:
    schema = Schema((feature,), message=SEQUENCE_EXAMPLE)
    batch = pa.RecordBatch.from_pylist(
        [{"w": value}], schema=pa.schema([pa.field("w", to_arrow(schema).field("w").type)])
    )
    with pytest.raises(DataError, match=words):
        encode_sequences(batch, schema)


def test_step_of_mixed_kinds_is_a_bad_record() -> None:
    steps = [
        b"".join(field(1, feature(kind, [1])) for kind in kinds)
        for kinds in ([INT64], [INT64, FLOAT])
    ]
    records = [*(field(2, entry("x", values)) for values in steps), b""]
    schema = Schema((Feature("x", "int64", (None,), per_step=True),), message=SEQUENCE_EXAMPLE)
    batch, good, bad = decode_lenient(*join_records(records), schema)
    assert batch.to_pydict() == {"x": [[1], None]}
    assert good.tolist() == [0, 2]
    assert [(error.row, error.feature) for error in bad] == [(1, "x")]
