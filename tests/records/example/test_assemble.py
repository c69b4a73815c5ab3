"""Values become valid Arrow arrays, and lists of the wrong form are bad records."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.decoding import decode_all
from kit.wire_writer import BYTES, INT64, example, feature, varint

from recordmill.base import native
from recordmill.records.example.decode import decode, decode_lenient
from recordmill.records.protobuf.message import join_records as buffer
from recordmill.schemas.feature import Feature, Schema

RAGGED = Schema((Feature("x", "int64", (None, None, 2)),))


def ragged_record(values: Sequence[int], lengths: Sequence[int] | None) -> bytes:
    parts = [("x/ragged_flat_values", feature(INT64, list(values)))]
    if lengths is not None:
        parts.append(("x/ragged_row_lengths_0", feature(INT64, list(lengths))))
    return example(parts)


def test_nested_lists_are_decoded() -> None:
    records = [
        ragged_record([1, 2, 3, 4, 5, 6], [1, 0, 2]),
        example([]),
        ragged_record([], []),
        ragged_record([], [0, 0, 0]),
    ]
    assert decode_all(records, RAGGED).to_pydict() == {
        "x": [[[[1, 2]], [], [[3, 4], [5, 6]]], None, [], [[], [], []]]
    }
    deep = Schema((Feature("y", "int64", (None, None, None)),))
    record = example(
        [
            (f"y/ragged_{name}", feature(INT64, values))
            for name, values in [
                ("flat_values", []),
                ("row_lengths_0", [2]),
                ("row_lengths_1", [0, 0]),
            ]
        ]
    )
    assert decode_all([record], deep).to_pydict() == {"y": [[[[], []]]]}


@pytest.mark.parametrize(
    "record",
    [
        ragged_record([1, 2], [2]),
        ragged_record([1, 2, 3], [1]),
        ragged_record([1, 2], None),
        ragged_record([1, 2], [-1, 2]),
        ragged_record([1, 2, 3, 4], [2**62, 2**62, 2**62, 2**62 + 2]),
    ],
)
def test_nested_lists_with_inconsistent_lengths_are_bad_records(record: bytes) -> None:
    good = ragged_record([1, 2], [0, 1])
    batch, rows, bad = decode_lenient(*buffer([good, record, good]), RAGGED)
    assert rows.tolist() == [0, 2]
    assert batch.to_pydict() == {"x": [[[], [[1, 2]]]] * 2}
    assert [(error.row, error.feature) for error in bad] == [(1, "x")]


@pytest.mark.sweep
def test_column_beyond_2_gib_is_decoded() -> None:
    value = np.random.default_rng(0).bytes(64 << 20)
    data, starts, lengths = buffer(
        [example([("x", feature(BYTES, [value])), ("n", feature(INT64, list(range(10))))])]
    )
    schema = Schema((Feature("n", "int64", (None,), True), Feature("x", "bytes", (), True)))
    batch = decode(data, starts.repeat(34), lengths.repeat(34), schema)
    assert batch["x"].nbytes > 2**31
    assert batch["x"][33].as_buffer().equals(pa.py_buffer(value))
    assert batch["n"].to_pylist() == 34 * [list(range(10))]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(1, 10), st.integers(1, 20), st.integers(0, 2**63 - 1)), max_size=8
        ),
        max_size=5,
    ),
    st.integers(0, 20),
)
def test_packed_varints_of_every_length_are_decoded(
    rows: list[list[tuple[int, int, int]]], tail: int
) -> None:
    values: list[list[int]] = []
    payloads: list[bytes] = []
    for row in rows:
        values.append([])
        payloads.append(b"")
        for size, count, number in row:
            value = number % (1 << 7 * size) % (1 << 63)
            shortest = varint(value)
            values[-1] += [value] * count
            payloads[-1] += (
                varint(value, size - len(shortest)) * count
                if len(shortest) < size
                else shortest * count
            )
    size = np.array([len(payload) for payload in payloads], np.int64)
    data = np.frombuffer(b"".join(payloads) + bytes(tail), np.uint8)
    spans = data, np.cumsum(size) - size, size
    bad, offsets = np.zeros(len(rows), np.uint8), np.empty(len(rows) + 1, np.int64)
    count = native.read_varints(*spans, offsets, None, bad)
    numbers = np.empty(count + native.VARINT_ROOM, np.int64)
    native.read_varints(*spans, offsets, numbers, bad)
    assert numbers[:count].tolist() == [value for row in values for value in row]
    assert np.diff(offsets).tolist() == [len(row) for row in values]
    assert not bad.any()
