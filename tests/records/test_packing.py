"""Lists of whole numbers to packed varints: byte by byte what a loop over the values writes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from recordmill.records.example.encode import encode
from recordmill.records.example.encode import encoded_varint as varint
from recordmill.schemas.feature import Feature, Schema


def packed(values: np.ndarray) -> bytes:
    """The packed field of a record's one list."""
    column = pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), pa.array(values))
    payload = encode(pa.record_batch([column], ["a"]), Schema((Feature("a", "int64", (None,)),))).payload(0).tobytes()
    length = sum(len(varint(int(value) % 2**64)) for value in values)
    return payload[len(payload) - length :]


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 64), st.integers(1, 70), st.randoms(use_true_random=False)), max_size=6))
def test_runs_of_every_length_of_bits(runs: list) -> None:
    values = np.array(
        [random.getrandbits(bits) if bits else 0 for bits, count, random in runs for _ in range(count)], np.uint64
    ).view(np.int64)
    assert packed(values) == b"".join(varint(int(value) % 2**64) for value in values)


def test_every_pattern_of_lengths_of_four_values() -> None:
    edges = [[0, 127], [128, 2**14 - 1], [2**14, 2**21 - 1], [2**21, 2**28 - 1]]
    for number in range(4**4):
        for last in (0, 1):
            values = np.array([edges[number >> 2 * lane & 3][last] for lane in range(4)] * 2, np.int64)
            assert packed(values) == b"".join(varint(int(value)) for value in values)
