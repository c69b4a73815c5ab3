"""Fuzzed records are accepted exactly if protobuf (upb) accepts them.

Accepted records decode to the same values.
"""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.fuzzed_schemas import FLAT, KINDS, NARROW, STEPPED
from kit.protobuf_oracle import BAD, comparable, expected_row
from kit.wire_writer import Scribe

from recordmill.base.errors import DataError
from recordmill.records.example.decode import decode, decode_lenient
from recordmill.records.protobuf.message import join_records as buffer
from recordmill.schemas.feature import SEQUENCE_EXAMPLE, Schema

RECORDS = int(os.environ.get("RECORDMILL_FUZZ", "60"))


def check(records: list[bytes], schema: Schema) -> int:
    """Compares the decoder with the oracle for one batch.

    Returns:
        The number of good records.
    """
    expected = [expected_row(record, schema) for record in records]
    good = [row for row, values in enumerate(expected) if values is not BAD]
    batch, rows, bad = decode_lenient(*buffer(records), schema)
    batch.validate(full=True)
    differences = [records[row].hex() for row in set(rows.tolist()) ^ set(good)]
    assert rows.tolist() == good, differences
    assert sorted([*rows.tolist(), *(record.row for record in bad)]) == list(range(len(records)))
    for row, result in zip(good, batch.to_pylist(), strict=True):
        assert {name: comparable(value) for name, value in result.items()} == expected[row], (
            records[row].hex()
        )
    if bad:
        with pytest.raises(DataError) as error:
            decode(*buffer(records), schema, source="x" * 300)
        assert len(str(error.value)) < 300
        assert f"record {bad[0].row}, byte" in str(error.value)
    return len(good)


@pytest.mark.parametrize(
    "schemas", [(FLAT,), NARROW, (STEPPED,)], ids=["flat", "narrow", "stepped"]
)
@pytest.mark.parametrize("change_rate", [0.0, 0.03, 0.3])
def test_records_in_unusual_encodings_decode_like_upb(
    schemas: tuple[Schema, ...], change_rate: float
) -> None:
    @settings(deadline=None, max_examples=8, derandomize="RECORDMILL_FUZZ" not in os.environ)
    @given(st.integers(0, 2**32))
    def run(seed: int) -> None:
        generator = Scribe(seed, change_rate, KINDS)
        records = [
            generator.message(schemas[0].message == SEQUENCE_EXAMPLE) for _ in range(RECORDS)
        ]
        for schema in schemas:
            check(records, schema)

    run()


@pytest.mark.parametrize(
    "schemas", [(FLAT,), NARROW, (STEPPED,)], ids=["flat", "narrow", "stepped"]
)
def test_mutated_records_decode_like_upb(schemas: tuple[Schema, ...]) -> None:
    counts: dict[Schema, int] = {}

    @settings(deadline=None, max_examples=12, derandomize="RECORDMILL_FUZZ" not in os.environ)
    @given(st.integers(0, 2**32))
    def run(seed: int) -> None:
        generator = Scribe(seed, 0.05, KINDS)
        records = [
            generator.mutate(generator.message(schemas[0].message == SEQUENCE_EXAMPLE))
            for _ in range(RECORDS)
        ]
        for schema in schemas:
            counts[schema] = counts.get(schema, 0) + check(records, schema)

    run()
    assert all(0 < count < 12 * RECORDS for count in counts.values()), counts


@settings(deadline=None, max_examples=75)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=20))
def test_arbitrary_bytes_decode_like_upb(records: list[bytes]) -> None:
    check(records, FLAT)


def test_truncated_and_bit_flipped_record_decodes_like_upb() -> None:
    generator = Scribe(7, 0.0, KINDS)
    record = max(
        (generator.message(False) for _ in range(30)),
        key=lambda data: 300 > len(data) > 100 and len(data),
    )
    check([record[:size] for size in range(len(record) + 1)], FLAT)
    flips = []
    for bit in range(8 * len(record)):
        damaged_record = bytearray(record)
        damaged_record[bit // 8] ^= 1 << bit % 8
        flips.append(bytes(damaged_record))
    check(flips, FLAT)


def test_records_in_any_order_of_the_buffer_decode_alike() -> None:
    generator = Scribe(3, 0.1, KINDS)
    records = [generator.message(False) for _ in range(50)]
    data, starts, lengths = buffer(records)
    order = np.random.default_rng(0).permutation(len(records)).repeat(2)
    batch, rows, _ = decode_lenient(data, starts[order], lengths[order], FLAT)
    expected, _, _ = decode_lenient(*buffer([records[i] for i in order]), FLAT)
    assert len(rows) > 30
    assert batch.equals(expected)
