"""The encoder writes pinned bytes, as the deterministic serialization of protobuf does."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.example_oracle import PurePython, arrow_value, parse, row_entries, schemas_and_rows

from recordmill.base.errors import DataError
from recordmill.records.example.encode import encode
from recordmill.records.protobuf.message import encode_varint as varint
from recordmill.records.tfrecord.frames import scan_frames
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import OPAQUE_BYTES, Feature, Schema


def make_batch(schema: Schema, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    rows = [
        {feature.name: arrow_value(feature, row[feature.name]) for feature in schema}
        for row in rows
    ]
    return pa.RecordBatch.from_pylist(rows, schema=to_arrow(schema))


def payloads(batch: pa.RecordBatch, schema: Schema) -> list[bytes]:
    """Returns the encoded records, and checks their frames as a reader does."""
    frames = encode(batch, schema)
    scanned_frames, consumed = scan_frames(frames.data, source="encoded", is_final=True)
    assert consumed == len(frames.data)
    for computed, expected in (
        (frames.starts, scanned_frames.starts),
        (frames.lengths, scanned_frames.lengths),
        (frames.crcs, scanned_frames.crcs),
    ):
        np.testing.assert_array_equal(computed, expected)
    return [frames.payload(i).tobytes() for i in range(len(frames))]


def encode_value(feature: Feature, value: Any) -> bytes:
    schema = Schema((feature,))
    return payloads(make_batch(schema, [{feature.name: value}]), schema)[0]


@pytest.fixture(scope="module")
def pure_python() -> Iterator[PurePython]:
    with PurePython() as process:
        yield process


PINNED = [
    (Feature("a", "int64"), 5, "0a0c 0a0a 0a0161 1205 1a03 0a01 05"),
    (Feature("a", "int64"), -1, "0a15 0a13 0a0161 120e 1a0c 0a0a ffffffffffffffffff01"),
    (Feature("a", "bool"), True, "0a0c 0a0a 0a0161 1205 1a03 0a01 01"),
    (Feature("a", "float32"), 1.5, "0a0f 0a0d 0a0161 1208 1206 0a04 0000c03f"),
    (Feature("a", "string"), "ü", "0a0d 0a0b 0a0161 1206 0a04 0a02 c3bc"),
    (Feature("a", "float64"), 1e300, "0a13 0a11 0a0161 120c 0a0a 0a08 9c7500883ce4377e"),
    (Feature("a", "uint8", (2,)), [1, 255], "0a0d 0a0b 0a0161 1206 0a04 0a02 01ff"),
    (Feature("a", "int64", (None,)), [1, 300], "0a0e 0a0c 0a0161 1207 1a05 0a03 01ac02"),
    (Feature("a", "int64", (None,)), [], "0a09 0a07 0a0161 1202 1a00"),
    (Feature("a", "float32", (None,)), [], "0a09 0a07 0a0161 1202 1200"),
    (Feature("a", "string", (None,)), [], "0a09 0a07 0a0161 1202 0a00"),
    (Feature("a", "string", (None,)), [""], "0a0b 0a09 0a0161 1204 0a02 0a00"),
    (Feature("a", "float32", (0,)), [], "0a09 0a07 0a0161 1202 1200"),
    (Feature("a", "int64"), None, "0a00"),
]


@pytest.mark.parametrize(("feature", "value", "expected"), PINNED)
def test_encoded_values_are_the_pinned_bytes(feature: Feature, value: Any, expected: str) -> None:
    # All versions must write the same bytes, because manifests and digests depend on them.
    assert encode_value(feature, value).hex() == expected.replace(" ", "")


@settings(
    max_examples=75,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(case=schemas_and_rows())
def test_encoded_records_equal_those_of_pure_python_protobuf(
    pure_python: PurePython, case: tuple[Schema, list[dict[str, Any]]]
) -> None:
    schema, rows = case
    assert payloads(make_batch(schema, rows), schema) == pure_python.serialize(
        [row_entries(schema, row) for row in rows]
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=schemas_and_rows())
def test_slice_encodes_as_its_rows_and_protobuf_parses_it(
    case: tuple[Schema, list[dict[str, Any]]],
) -> None:
    schema, rows = case
    batch = make_batch(schema, [*rows, *rows, *rows])
    part = batch.slice(len(rows) // 2, len(rows))
    encoded = payloads(part, schema)
    assert encoded == payloads(batch, schema)[len(rows) // 2 :][: len(rows)]
    for row, data in zip([*rows, *rows][len(rows) // 2 :], encoded, strict=False):
        assert {
            name: (kind, list(map(to_comparable, values)))
            for name, (kind, values) in row_entries(schema, row).items()
        } == parse(data)


def to_comparable(value: Any) -> Any:
    return float(value) if isinstance(value, np.floating) else value


def many_rows(count: int) -> tuple[Schema, list[dict[str, Any]]]:
    """Returns rows with very different sizes.

    Blocks of rows end at many places, and lengths take one to three bytes.
    """
    random = np.random.default_rng(7)
    features = (
        Feature("id", "int64", (), True),
        Feature("score", "float32"),
        Feature("tags", "string", (None,)),
        Feature("ids", "int32", (None,)),
        Feature("small", "uint8", (None,)),
        Feature("vector", "float32", (5,)),
        Feature("weights", "float32", (None,)),
        Feature("raw", "uint8", (3,)),
        Feature("blob", "bytes"),
        Feature("nested", "int64", (None, None)),
        Feature("n" * 130, "int64"),
    )
    rows = []
    for i in range(count):
        size = int(
            random.choice(
                [0, 1, 5, 30, 200, 3000, 40_000], p=[0.2, 0.2, 0.2, 0.2, 0.15, 0.04, 0.01]
            )
        )
        row = {
            "id": int(random.integers(-(2**63), 2**63)) >> int(random.integers(0, 64)),
            "score": float(np.float32(random.random())),
            "tags": [f"tag{tag}" for tag in range(size % 7)],
            "ids": random.integers(-(2**31), 2**31, size % 300).tolist(),
            "small": random.integers(0, 128, size % 300).tolist(),
            "vector": [1.0, 2.0, 3.0, 4.0, float(i)],
            "weights": random.random(size % 77, dtype=np.float32).tolist(),
            "raw": [1, 2, i % 256],
            "blob": random.bytes(size),
            "nested": [[i] * (size % 3), [], [1, 2]],
            "n" * 130: 1 << int(random.integers(0, 63)),
        }
        rows.append(
            {
                name: value if name == "id" or random.random() < 0.8 else None
                for name, value in row.items()
            }
        )
    return Schema(features), rows


def test_batch_of_many_encoding_blocks_equals_protobuf(pure_python: PurePython) -> None:
    schema, rows = many_rows(1500)
    encoded = payloads(make_batch(schema, rows), schema)
    assert sum(map(len, encoded)) > 4 * (16 << 10)
    assert max(map(len, encoded)) > 16 << 10
    assert encoded == pure_python.serialize([row_entries(schema, row) for row in rows])


def test_batches_without_columns_or_rows_are_encoded() -> None:
    # pyarrow may forget the number of rows of a batch without columns
    assert payloads(pa.RecordBatch.from_pylist([{}, {}]), Schema(())) in ([b"\n\0", b"\n\0"], [])
    schema = Schema((Feature("a", "int64", (None,)), Feature("b", "string"), Feature("c", "bool")))
    assert payloads(make_batch(schema, []), schema) == []


def test_column_order_does_not_change_the_bytes() -> None:
    schema, rows = many_rows(20)
    batch = make_batch(schema, rows)
    reversed_batch = pa.RecordBatch.from_arrays(batch.columns[::-1], names=batch.schema.names[::-1])
    assert payloads(reversed_batch, schema) == payloads(batch, schema)


@pytest.mark.parametrize(
    ("feature", "column", "message"),
    [
        (
            Feature("x", "int64", (), True),
            pa.array([1, None]),
            "feature 'x', row 1: null, but the feature is required",
        ),
        (
            Feature("x", "int64", (None,)),
            pa.array([[1], [2, None]], pa.large_list(pa.int64())),
            "feature 'x', row 1: null inside a list",
        ),
        (
            Feature("x", "float32", (2,)),
            pa.array([[1, 2], [None, 4]], pa.list_(pa.float32(), 2)),
            "feature 'x', row 1: null inside a list",
        ),
        (
            Feature("x", "int64", (None, None)),
            pa.array([[[1], None]], pa.large_list(pa.large_list(pa.int64()))),
            "feature 'x', row 0: null inside",
        ),
        (
            Feature("x", "uint64"),
            pa.array([1, 2**63], pa.uint64()),
            "feature 'x', row 1: 9223372036854775808 is above",
        ),
        (
            Feature("x", "uint64", (None,)),
            pa.array([[1], [5, 2**64 - 1]], pa.large_list(pa.uint64())),
            "row 1: 18446744073709551615 is above",
        ),
        (
            Feature("x", "float32", (2,)),
            pa.array([[1, 2], [4]], pa.large_list(pa.float32())),
            "row 1: a list of 1 values where the shape .2. needs 2",
        ),
    ],
)
def test_value_that_an_example_cannot_hold_is_refused_with_feature_and_row(
    feature: Feature, column: pa.Array, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        encode(pa.RecordBatch.from_arrays([column], names=["x"]), Schema((feature,)))


def test_values_hidden_by_a_null_are_ignored() -> None:
    values = pa.array([1, 2**63, 3, None, 5], pa.uint64())
    lists = pa.LargeListArray.from_arrays(
        pa.array([0, 1, 4, 5]), values, mask=pa.array([False, True, False])
    )
    schema = Schema((Feature("x", "uint64", (None,)),))
    assert [
        parse(p) for p in payloads(pa.RecordBatch.from_arrays([lists], names=["x"]), schema)
    ] == [{"x": ("int64", [1])}, {}, {"x": ("int64", [5])}]


def test_wrong_columns_raise_value_or_type_error() -> None:
    schema = Schema((Feature("x", "int64"),))
    with pytest.raises(ValueError, match=r"columns \['y'\] and the schema the features \['x'\]"):
        encode(pa.RecordBatch.from_pydict({"y": [1]}), schema)
    with pytest.raises(
        TypeError,
        match="feature 'x' is int64 and needs a column of type int64, not double: cast it first",
    ):
        encode(pa.RecordBatch.from_pydict({"x": [1.0]}), schema)


def test_opaque_records_are_encoded_as_they_are() -> None:
    schema = Schema((Feature("record", "bytes", (), True),), message=OPAQUE_BYTES)
    records = [b"", b"one", b"x" * 5000]
    assert (
        payloads(
            pa.RecordBatch.from_pydict(
                {"record": pa.array([b"z", *records], pa.large_binary()).slice(1)}
            ),
            schema,
        )
        == records
    )
    with pytest.raises(DataError, match="feature 'record', row 1: null"):
        encode(
            pa.RecordBatch.from_pydict({"record": pa.array([b"a", None], pa.large_binary())}),
            Schema((Feature("record", "bytes"),), message=OPAQUE_BYTES),
        )
    with pytest.raises(ValueError, match="one column of bytes, not a int64"):
        encode(
            pa.RecordBatch.from_pydict({"a": [1]}),
            Schema((Feature("a", "int64"),), message=OPAQUE_BYTES),
        )


class _Name(str):
    """A name that counts its comparisons with other names."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        _Name.compared += 1
        return str.__eq__(self, other)


@pytest.mark.parametrize("message", ["Example", "SequenceExample"])
def test_columns_of_many_features_are_found_in_linear_time(message: str) -> None:
    names = [_Name(f"feature_{number:04}") for number in range(400)]
    schema = Schema(tuple(Feature(name, "int64") for name in names), None, message)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([7])] * len(names), names=[str(name) for name in names]
    )
    count = _Name.compared
    assert len(encode(batch, schema)) == 1
    # A linear search in a list would compare 400 * 400 / 2 names.
    assert _Name.compared - count < 20 * len(names)


def test_arrow_schema_is_made_once_per_schema() -> None:
    schema = Schema((Feature("x", "int64", classes=("a", "b")),), "x")
    arrow_schema = to_arrow(schema)
    assert to_arrow(schema) is arrow_schema
    unpickled = pickle.loads(pickle.dumps(schema))
    assert unpickled == schema
    assert to_arrow(unpickled).equals(arrow_schema, check_metadata=True)
    assert to_arrow(replace(schema, label=None)).metadata != arrow_schema.metadata


def encode_packed(values: np.ndarray) -> bytes:
    """Returns the packed field of a record with one list."""
    column = pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), pa.array(values))
    payload = (
        encode(pa.record_batch([column], ["a"]), Schema((Feature("a", "int64", (None,)),)))
        .payload(0)
        .tobytes()
    )
    length = sum(len(varint(int(value) % 2**64)) for value in values)
    return payload[len(payload) - length :]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(st.integers(0, 64), st.integers(1, 70), st.randoms(use_true_random=False)),
        max_size=6,
    )
)
def test_packed_integers_of_every_bit_length_are_encoded(runs: list) -> None:
    values = np.array(
        [
            random.getrandbits(bits) if bits else 0
            for bits, count, random in runs
            for _ in range(count)
        ],
        np.uint64,
    ).view(np.int64)
    assert encode_packed(values) == b"".join(varint(int(value) % 2**64) for value in values)


def test_packed_integers_of_every_pattern_of_four_lengths_are_encoded() -> None:
    edges = [[0, 127], [128, 2**14 - 1], [2**14, 2**21 - 1], [2**21, 2**28 - 1]]
    for number in range(4**4):
        for edge in (0, 1):
            values = np.array(
                [edges[number >> 2 * index & 3][edge] for index in range(4)] * 2, np.int64
            )
            assert encode_packed(values) == b"".join(varint(int(value)) for value in values)
