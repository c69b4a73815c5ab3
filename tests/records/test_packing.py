"""Lists of whole numbers to packed varints: byte by byte what a loop over the values writes, in words
and one by one.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recordmill.base.pointers import address_of
from recordmill.records.example.encode import encoded_varint as varint
from recordmill.records.protobuf.varints import OVERRUN_BYTES, SCRATCH_BYTES, put_varints, varints_bytes

GUARD = 0xA5


def packed(values: np.ndarray) -> bytes:
    """What put_varints writes; what stands further behind it than it may write must stay."""
    size = varints_bytes(address_of(values), len(values))
    out, scratch = np.full(size + OVERRUN_BYTES + 32, GUARD, np.uint8), np.empty(SCRATCH_BYTES, np.uint8)
    assert put_varints(address_of(out), address_of(values), len(values), address_of(scratch)) == address_of(out) + size
    assert (out[size + OVERRUN_BYTES :] == GUARD).all()
    return out[:size].tobytes()


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
