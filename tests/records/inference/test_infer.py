"""Inference finds the schema and the counts of records from any writer.

Parts of a data set add up to the same result.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.protobuf_oracle import messages
from kit.wire_writer import (
    BYTES,
    FLOAT,
    INT64,
    Scribe,
    entry,
    example,
    feature,
    feature_list,
    field,
    serialize_row,
)

from recordmill.base import native
from recordmill.base.errors import DataError
from recordmill.records.example.decode import decode, decode_lenient
from recordmill.records.example.encode import encode
from recordmill.records.inference.infer import Inference, infer
from recordmill.records.protobuf.message import join_records as buffer
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import OPAQUE_BYTES, SEQUENCE_EXAMPLE, Feature, Schema

JPEG, PNG = b"\xff\xd8\xff\xe0" + bytes(20), b"\x89PNG\r\n\x1a\n" + bytes(20)
OTHERS = {
    "GIF": b"GIF89a" + bytes(10),
    "BMP": b"BM" + bytes([70, 0, 0, 0]) + bytes(10),
    "WebP": b"RIFF\x10\0\0\0WEBPVP8 ",
    "TIFF": b"II*\0\x08\0\0\0" + bytes(8),
}


def infer_records(records: Sequence[bytes], source: str = "", first_record: int = 0) -> Inference:
    return infer(*buffer(records), source=source, first_record=first_record)


def make_records(rows: Sequence[dict[str, tuple[int, list[object]] | None]]) -> list[bytes]:
    return [serialize_row(row) for row in rows]


FIXED = (FLOAT, [1.0, 2.0])
ROWS: list[dict[str, tuple[int, list[object]] | None]] = [
    {
        "fixed": FIXED,
        "image": (BYTES, [JPEG]),
        "list": (INT64, [1, 2]),
        "one": (INT64, [-5]),
        "text": (BYTES, ["größe".encode()]),
        "some": (INT64, [1]),
    },
    {
        "fixed": FIXED,
        "image": (BYTES, [PNG]),
        "list": (INT64, []),
        "one": (INT64, [300]),
        "text": (BYTES, [b""]),
        "some": None,
    },
    {
        "fixed": FIXED,
        "image": (BYTES, [JPEG]),
        "list": (INT64, [7]),
        "one": (INT64, [0]),
        "text": (BYTES, [b"line\n"]),
    },
]
SCHEMA = Schema(
    (
        Feature("fixed", "float32", (2,), True),
        Feature("image", "bytes", (), True),
        Feature("list", "int64", (None,), True),
        Feature("one", "int64", (), True),
        Feature("some", "int64"),
        Feature("text", "string", (), True),
    )
)


def test_inference_finds_the_schema_and_counts() -> None:
    result = infer_records(make_records(ROWS), "file", 100)
    assert result.to_schema() == SCHEMA
    assert (result.records, result.examples, result.sequences, result.other_records) == (3, 3, 0, 0)
    image, text, items, integer, optional = (
        result.features[name, False] for name in ("image", "text", "list", "one", "some")
    )
    assert (image.texts, image.min_bytes, image.max_bytes) == (0, 24, 28)
    assert (text.texts, text.min_bytes, text.max_bytes) == (3, 0, 7)
    assert (items.min_values, items.max_values, items.values) == (0, 2, 3)
    assert (items.first_min_values, items.first_max_values) == (("file", 101), ("file", 100))
    assert (integer.min_int, integer.max_int, integer.sum_int, integer.length) == (-5, 300, 295, 1)
    assert (optional.records, optional.present) == (2, 1)
    assert optional.first_locations == {"int64": ("file", 100)}


TEXTS = [b"", b"BMW is a company", b"\ttab\r\n", "日本語 \U0001f600".encode(), b"GIF", b"x" * 1000]
NO_TEXTS = [
    b"\x00\x01\x02\x03",
    bytes(784),
    b"\xff\xfe",
    b"a\x00b",
    b"12345678\x01234567",
    *OTHERS.values(),
]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [*(("string", text) for text in TEXTS), *(("bytes", data) for data in NO_TEXTS)],
)
def test_bytes_feature_is_text_if_all_values_are_valid_text(dtype: str, value: bytes) -> None:
    assert infer_records(make_records([{"x": (BYTES, [value])}])).to_schema() == Schema(
        (Feature("x", dtype, (), True),)
    )


def test_feature_without_any_value_is_inferred_as_bytes() -> None:
    records = make_records([{"x": None}, {}])
    schema = infer_records(records).to_schema()
    assert schema == Schema((Feature("x", "bytes"),))
    assert decode(*buffer(records), schema).to_pydict() == {"x": [None, None]}


def test_conflicting_kinds_are_reported_with_feature_and_record() -> None:
    result = infer_records(
        make_records([{"x": (INT64, [1])}, {"x": (INT64, [2])}]), "a"
    ) + infer_records(make_records([{"x": (INT64, [1])}, {"x": (FLOAT, [2.0])}]), "b", 7)
    assert result.conflicts() == [
        "feature 'x': int64_list first in a record 0 (3 times), float_list first in b record 8 (1 times)"
    ]
    with pytest.raises(
        DataError, match=r"no schema fits all records: feature 'x': int64_list first in a record 0"
    ):
        result.to_schema()
    assert result.to_schema(use_opaque_on_conflict=True) == Schema(
        (Feature("record", "bytes", (), True),), message=OPAQUE_BYTES
    )


def test_nested_lists_are_inferred() -> None:
    schema = Schema(
        (
            Feature("deep", "string", (None, None, None), True),
            Feature("pairs", "float32", (None, None, 2)),
        )
    )
    rows = [{"deep": [[["a"], []], []], "pairs": [[[1.0, 2.0]], []]}, {"deep": [], "pairs": None}]
    frames = encode(pa.RecordBatch.from_pylist(rows, schema=to_arrow(schema)), schema)
    assert infer(frames.data, frames.starts + 12, frames.lengths).to_schema() == schema


@pytest.mark.parametrize(
    ("values", "lengths"), [([1, 2, 3], [2]), ([1, 2], [2**63 - 1, 2**63 - 1, 4])]
)
def test_names_of_nested_lists_with_inconsistent_lengths_are_plain_features(
    values: list[object], lengths: list[object]
) -> None:
    """The lengths of the second record are consistent modulo 2^64 only."""
    records = make_records(
        [{"x/ragged_flat_values": (INT64, values), "x/ragged_row_lengths_0": (INT64, lengths)}]
    )
    assert infer_records(records).to_schema().names == (
        "x/ragged_flat_values",
        "x/ragged_row_lengths_0",
    )


def test_sequence_examples_are_inferred_and_decoded() -> None:
    lists = [
        feature_list("ints", INT64, [[1], [2, 3]]) + feature_list("words", BYTES, [[b"word"]] * 2),
        b"",
    ]
    pairs = feature_list("pairs", FLOAT, [[1, 2]])
    lengths = [field(1, entry("length", feature(INT64, [length]))) for length in (2, 0)]
    records = [
        length + field(2, items + pairs) for length, items in zip(lengths, lists, strict=True)
    ]
    result = infer_records(records)
    assert (result.sequences, result.message) == (2, SEQUENCE_EXAMPLE)
    assert result.to_schema() == Schema(
        (
            Feature("ints", "int64", (None, None), per_step=True),
            Feature("length", "int64", (), True),
            Feature("pairs", "float32", (None, 2), True, per_step=True),
            Feature("words", "string", (None,), per_step=True),
        ),
        message=SEQUENCE_EXAMPLE,
    )
    assert decode(*buffer(records), result.to_schema()).to_pylist()[0] == {
        "ints": [[1], [2, 3]],
        "length": 2,
        "pairs": [[1.0, 2.0]],
        "words": ["word", "word"],
    }


def test_feature_list_with_the_name_of_a_context_feature_is_renamed() -> None:
    context = b"".join(entry(name, feature(INT64, [1])) for name in ("x", "y", "y/sequence"))
    lists = b"".join(feature_list(name, FLOAT, [[1]]) for name in ("x", "z", "z/sequence"))
    schema = infer_records([field(1, context) + field(2, lists)]).to_schema()
    assert {feature.name: (feature.dtype, feature.storage()[0].name) for feature in schema} == {
        "x": ("int64", "x"),
        "y": ("int64", "y"),
        "y/sequence": ("int64", "y/sequence"),
        "x/sequence": ("float32", "x"),
        "z": ("float32", "z"),
        "z/sequence/sequence": ("float32", "z/sequence"),
    }
    with pytest.raises(DataError, match="'y': is in the context and in the feature lists"):
        infer_records(
            [field(1, context) + field(2, lists + feature_list("y", FLOAT, [[1]]))]
        ).to_schema()


@pytest.mark.parametrize(
    "records",
    [
        [b"plain text"],
        [b"\xff\xff"],
        [field(1, field(1, field(1, b"\n\x03key"))) + field(2, b"")],
        [b"\x08\x01", b"\x10\x02"],
        [bytes(100)],
    ],
)
def test_records_that_are_not_examples_are_inferred_as_bytes(records: list[bytes]) -> None:
    result = infer_records(records, "f", 5)
    assert (result.other_records, result.first_other_record) == (len(records), ("f", 5))
    assert result.to_schema() == Schema(
        (Feature("record", "bytes", (), True),), message=OPAQUE_BYTES
    )


def test_bad_record_does_not_change_the_schema_of_the_others() -> None:
    result = infer_records([*make_records(ROWS), b"\xff"])
    assert (result.examples, result.other_records, result.first_other_record) == (3, 1, ("", 3))
    assert result.to_schema() == SCHEMA


@pytest.mark.parametrize("fields", ["1801", "2a03616263", "0a001801"])
def test_example_with_empty_features_and_unknown_fields_lacks_every_feature(fields: str) -> None:
    rows = [{"a": (INT64, [1])}] * 3
    result = infer_records([*make_records(rows), field(1, b"") + bytes.fromhex(fields)])
    assert (result.examples, result.other_records) == (4, 0)
    assert result.to_schema() == Schema((Feature("a", "int64", (), False),))


def test_inference_of_no_records_is_empty() -> None:
    assert infer(*buffer([])) == Inference()
    assert Inference().to_schema() == Schema(())


def test_thousands_of_feature_names_are_inferred() -> None:
    records = make_records(
        [{f"row {row} name {i}": (INT64, [i]) for i in range(1000)} for row in range(6)]
    )
    result = infer_records(records)
    assert len(result.features) == 6000
    assert not any(feature.required for feature in result.to_schema())


def sort_features(inference: Inference) -> Inference:
    return Inference(
        inference.examples,
        inference.sequences,
        inference.other_records,
        inference.first_other_record,
        dict(sorted(inference.features.items())),
    )


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.1]),
    st.booleans(),
    st.lists(st.integers(0, 20), min_size=1, max_size=3),
)
def test_sum_of_inferred_parts_equals_the_inference_of_all_records(
    seed: int, change_rate: float, sequence: bool, cuts: list[int]
) -> None:
    generator = Scribe(
        seed, change_rate, {"a": INT64, "b": BYTES, "c": FLOAT, "long name of a feature": BYTES}
    )
    records = [generator.message(sequence) for _ in range(20)]
    complete = infer_records(records, "f")
    edges = [0, *sorted(cuts), len(records)]
    parts = [
        infer_records(records[begin:end], "f", begin) for begin, end in itertools.pairwise(edges)
    ]
    left, right = Inference(), Inference()
    for part in parts:
        left = left + part
    for part in reversed(parts):
        right = part + right
    assert sort_features(left) == sort_features(right) == sort_features(complete)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_inferred_counts_equal_those_of_protobuf(seed: int) -> None:
    example_class, _, error = messages()
    generator = Scribe(seed, 0.1, {"a": INT64, "b": BYTES, "c": FLOAT})
    records = [generator.message(False) for _ in range(20)]
    inference = infer_records(records)
    parsed = []
    for record in records:
        try:
            message = example_class.FromString(record)
        except error:
            continue
        message.DiscardUnknownFields()
        if message.features.feature or not record:
            parsed.append(message)
    for name in "abc":
        expected: dict[str, int] = {}
        for message in parsed:
            if name in message.features.feature and (
                kind := message.features.feature[name].WhichOneof("kind")
            ):
                expected[kind.removesuffix("_list")] = (
                    expected.get(kind.removesuffix("_list"), 0) + 1
                )
        counts = inference.features.get((name, False))
        assert (dict(counts.kinds) if counts else {}) == expected


def test_similar_names_are_spread_over_the_hash_table() -> None:
    """The names have the same length, beginning and end.

    A hash of these alone would be the same for all names.
    """
    names = [
        np.frombuffer(f"features/{number:012d}/features".encode(), np.uint8)
        for number in range(2000)
    ]
    args = 2000, 2000 * 40, names, np.ones(2000, np.int64)
    table = np.empty(native.make_names(None, *args), np.int64)
    native.make_names(table, *args)
    head, slots = np.dtype(native.NamesHead), np.dtype(native.NameSlot)
    # Slot 0 is the beginning of a record.
    assert np.frombuffer(table, head, 1)["used_slots"] == 2001
    previous = np.frombuffer(table, slots, 2001, head.itemsize)["before"]
    # By slot: the number of names with the same hash, up to this name.
    chain_lengths = np.zeros(2001, np.int64)
    for slot in range(1, 2001):
        chain_lengths[slot] = chain_lengths[previous[slot]] + 1
    assert int(chain_lengths.max()) < 12


def test_invalid_feature_name_is_an_error_of_its_record() -> None:
    valid_record, invalid_record = (
        example([(name, feature(INT64, [1]))]) for name in ("c", "a\0b")
    )
    data, starts, lengths = buffer([invalid_record, valid_record])
    schema = infer(data, starts, lengths).to_schema()
    _, good, bad = decode_lenient(data, starts, lengths, schema)
    assert good.tolist() == [1]
    assert "it holds one called b'a\\x00b', which is not a name" in bad[0].message
