"""The decoder agrees with the encoder, TensorFlow, tfx-bsl and protobuf.

Records that do not fit are reported.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from kit import ROOT
from kit.data_sets import MIXED, mixed_rows
from kit.decoding import decode_all
from kit.example_oracle import arrow_value, schemas_and_rows
from kit.runs import run_python
from kit.wire_writer import BYTES, FLOAT, INT64, Scribe, example, feature, field

from recordmill.base.errors import DataError
from recordmill.records.example.decode import decode, decode_lenient
from recordmill.records.example.encode import encode
from recordmill.records.protobuf.message import join_records as buffer
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import OPAQUE_BYTES, Feature, Schema


@settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(schemas_and_rows())
def test_decoding_an_encoded_batch_returns_the_batch(
    schema_and_rows: tuple[Schema, list[dict[str, Any]]],
) -> None:
    schema, rows = schema_and_rows
    batch = pa.RecordBatch.from_pylist(
        [
            {feature.name: arrow_value(feature, row[feature.name]) for feature in schema}
            for row in rows
        ],
        schema=to_arrow(schema),
    )
    frames = encode(batch, schema)
    result = decode(frames.data, frames.starts + 12, frames.lengths, schema)
    result.validate(full=True)
    assert result.schema.equals(batch.schema, check_metadata=True)
    assert result.equals(batch)


def test_projection_has_the_requested_columns_in_order() -> None:
    frames = encode(mixed_rows(3).combine_chunks().to_batches()[0], MIXED)
    result = decode(frames.data, frames.starts + 12, frames.lengths, MIXED, ["words", "id"])
    assert result.schema.equals(to_arrow(MIXED.select(["words", "id"])), check_metadata=True)
    assert result.to_pylist() == mixed_rows(3).select(["words", "id"]).to_pylist()
    empty = decode(frames.data, frames.starts + 12, frames.lengths, MIXED, [])
    assert (empty.num_rows, empty.num_columns) == (3, 0)
    with pytest.raises(KeyError, match="no feature 'other'"):
        decode(frames.data, frames.starts + 12, frames.lengths, MIXED, ["other"])


def test_features_outside_the_projection_are_not_parsed() -> None:
    record = example([("broken", field(INT64, field(1, b"\xff"))), ("good", feature(INT64, [7]))])
    schema = Schema((Feature("broken", "int64"), Feature("good", "int64")))
    assert decode_all([record], schema, ["good"]).to_pylist() == [{"good": 7}]
    with pytest.raises(DataError, match="protobuf refuses it"):
        decode_all([record], schema)
    # Nothing is skipped if all features of the schema are selected.
    with pytest.raises(DataError, match="protobuf refuses it"):
        decode_all([record], schema.select(["good"]))


@pytest.mark.parametrize("order", ["same", "shuffled"])
def test_features_are_found_in_any_order_among_many_other_names(order: str) -> None:
    rng = np.random.default_rng(0)
    names = [f"feature/{i}" for i in range(5)] + [f"other/{i}/{'x' * (i % 40)}" for i in range(400)]
    schema = Schema(tuple(Feature(name, "int64") for name in names[:5]))
    records = []
    for row in range(40):
        record_names = names if order == "same" else [names[i] for i in rng.permutation(len(names))]
        records.append(
            example(
                [(name, feature(INT64, [row * 1000 + names.index(name)])) for name in record_names]
            )
        )
    assert decode_all(records, schema).to_pylist() == [
        {name: row * 1000 + i for i, name in enumerate(names[:5])} for row in range(40)
    ]


def test_names_that_differ_only_in_the_middle_are_distinguished() -> None:
    names = [
        f"12345678{middle}12345678"
        for middle in ("", "a", "b", "aaaaaaaab", "aaaaaaaac", "baaaaaaab")
    ]
    record = example([(name, feature(INT64, [i])) for i, name in enumerate(names)])
    schema = Schema(tuple(Feature(name, "int64") for name in reversed(names)))
    assert decode_all([record, record], schema).to_pylist() == 2 * [
        {name: i for i, name in reversed(list(enumerate(names)))}
    ]


@pytest.mark.parametrize(
    "name", ["key", "a feature with a name so long that it would fill the message " * 10]
)
@pytest.mark.parametrize(
    ("feature_of", "value", "words"),
    [
        (Feature("_", "int64"), feature(FLOAT, [1.0]), "another kind of list"),
        (Feature("_", "int64"), feature(INT64, [1, 2]), "another number of values"),
        (Feature("_", "int8", (None,)), feature(INT64, [1, 128]), "outside the range"),
        (Feature("_", "bool"), feature(INT64, [2]), "outside the range"),
        (Feature("_", "string"), feature(BYTES, [b"\xff"]), "not UTF-8"),
        (Feature("_", "float64", (2,)), feature(BYTES, [b"12345678"]), "another number of bytes"),
        (
            Feature("_", "float64", (None,)),
            feature(BYTES, [b"123456789"]),
            "another number of bytes",
        ),
        (Feature("_", "int64", (), True), b"", "missing"),
        (Feature("_", "float32", (2, 2)), feature(FLOAT, [1.0]), "another number of values"),
        (Feature("_", "bytes", (2,)), feature(BYTES, [b""]), "another number of values"),
    ],
)
def test_decode_error_has_file_record_byte_feature_and_reason(
    name: str, feature_of: Feature, value: bytes, words: str
) -> None:
    schema = Schema((Feature(name, feature_of.dtype, feature_of.shape, feature_of.required),))
    with pytest.raises(DataError) as error:
        decode(
            *buffer([example([(name, value)])]),
            schema,
            source="folder/part-00000.tfrecord",
            first_record=41,
            offsets=np.array([1234]),
        )
    text = str(error.value)
    assert len(text) < 300
    assert text.startswith(
        f"folder/part-00000.tfrecord: record 41, byte 1234: feature '{name[:40]}"
    )
    assert words in text


def test_record_that_protobuf_refuses_is_reported_with_its_place() -> None:
    message = (
        r"not a tf\.train\.Example: protobuf refuses it, or it names features over 262,144 times"
    )
    with pytest.raises(DataError, match=rf"^f: record 1, byte 8: {message}$"):
        decode(
            *buffer([b"\x0a\x06\x0a\x04\x0a\x00\x12\x00", b"\x0a\x05"]),
            MIXED.select(["payload"]),
            source="f",
        )


def test_record_range_outside_the_buffer_is_refused() -> None:
    data = np.zeros(10, np.uint8)
    for start, length in ((-1, 1), (0, 11), (10, 1), (5, -1), (2**63 - 1, 2)):
        with pytest.raises(ValueError, match="do not lie inside"):
            decode(data, np.array([start]), np.array([length]), MIXED)


def test_opaque_records_decode_to_one_bytes_column() -> None:
    schema = Schema((Feature("record", "bytes", (), True),), message=OPAQUE_BYTES)
    records = [b"", b"\xff" * 100, b"text"]
    assert decode_all(records, schema).to_pydict() == {"record": records}
    assert decode_all(records, schema).schema.equals(to_arrow(schema), check_metadata=True)
    assert decode_all(records, schema, []).num_rows == 3


def test_no_records_decode_to_an_empty_batch() -> None:
    batch = decode_all([], MIXED)
    assert batch.num_rows == 0
    assert batch.schema.equals(to_arrow(MIXED), check_metadata=True)
    assert decode_lenient(*buffer([b"\x0a"]), MIXED)[0].num_rows == 0


def test_threads_that_share_a_schema_decode_alike() -> None:
    """Each call copies the table of names, which a schema makes once."""
    generator = Scribe(5, 0.05, {"int": INT64, "text": BYTES, "words": BYTES, "ints": INT64})
    records = [generator.message(False) for _ in range(500)]
    schema = Schema((Feature("words", "string", (None,)), Feature("ints", "int64", (None,))))
    expected = decode_lenient(*buffer(records), schema)
    with ThreadPoolExecutor(8) as pool:
        for batch, good, bad in pool.map(
            lambda _: decode_lenient(*buffer(records), schema), range(32)
        ):
            assert batch.equals(expected[0])
            assert good.tolist() == expected[1].tolist()
            assert bad == expected[2]


_GUARDED = """
import ctypes, mmap, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from kit.wire_writer import Scribe
from kit.fuzzed_schemas import FLAT, KINDS, STEPPED
from recordmill.records.example.decode import decode_lenient
from recordmill.records.inference.infer import infer
from recordmill.records.tfrecord.stream import read_frames

page = mmap.PAGESIZE
memory = mmap.mmap(-1, 18 * page)
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
for at in (0, 17):
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(base + at * page), page, 0) == 0
room = np.frombuffer(memory, np.uint8)[page : 17 * page]
kept = 0
for seed in range(300):
    scribe = Scribe(seed, (0.0, 0.05, 0.3)[seed % 3], KINDS)
    record = scribe.message(seed % 2 == 1)
    for one in (record, scribe.mutate(record), record[: scribe.random.randrange(len(record) + 1)]):
        if len(one) > len(room):
            continue
        for data in (room[len(room) - len(one) :], room[: len(one)]):
            data[:] = np.frombuffer(one, np.uint8)
            where = np.zeros(1, np.int64), np.array([len(one)])
            kept += len(decode_lenient(data, *where, STEPPED if seed % 2 else FLAT)[1]) + infer(data, *where).records
print("kept", kept)
"""


@pytest.mark.sweep
@pytest.mark.skipif(
    sys.platform != "linux", reason="guards the pages around the buffer with Linux's mprotect"
)
def test_decoder_reads_no_byte_outside_the_buffer() -> None:
    """Records begin or end at a page that must not be accessed.

    A read of one byte outside the buffer kills the process.
    """
    pytest.importorskip("tensorflow.core.example.example_pb2")
    result = run_python("-c", _GUARDED, ROOT / "tests", check=False, timeout=300)
    assert result.returncode == 0, result.stderr[-2000:]
    assert int(result.stdout.split()[-1]) > 1000
