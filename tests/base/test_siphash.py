"""SipHash and SplitMix64 return the published values.

Other programs can thus compute the same keys and random shares.
"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recordmill.base.siphash import (
    GOLDEN_RATIO,
    derive_key,
    hash_bytes,
    hash_positions,
    mix64,
    random_shares,
)

# The first outputs with the seed 1234567, from the implementation of the authors.
PUBLISHED = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]


def test_mix64_returns_the_published_sequence_of_splitmix64() -> None:
    states = np.uint64(1234567) + np.arange(1, 6, dtype=np.uint64) * np.uint64(GOLDEN_RATIO)
    assert mix64(states).tolist() == PUBLISHED


def test_random_shares_are_the_upper_53_bits_of_splitmix64() -> None:
    def mix(word: int) -> int:
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
        return word ^ (word >> 31)

    for key, number in [(0, 0), (5, 1999), (~7, 3), (2**64 - 1, 2**40)]:
        start = mix((key + number * GOLDEN_RATIO) % 2**64)
        shares = [(mix((start + i * GOLDEN_RATIO) % 2**64) >> 11) / 2**53 for i in range(1, 41)]
        assert random_shares(key, number, 40).tolist() == shares


def test_siphash_returns_the_reference_vectors() -> None:
    # From appendix A of the SipHash paper and the vectors of its reference code. The key is
    # 00 01 .. 0f. The inputs are 0, 8 and 15 bytes 00 01 02 ...
    key = int.from_bytes(bytes(range(8)), "little"), int.from_bytes(bytes(range(8, 16)), "little")
    data = np.array([*range(8), *range(15)], np.uint8)
    out = hash_bytes(key, data, np.array([0, 0, 8]), np.array([0, 8, 15]))
    assert [hex(value) for value in out.tolist()] == [
        "0x726fdb47dd0e0e31",
        "0x93f5f5799a932462",
        "0xa129ca6149be45e5",
    ]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_hash_of_a_position_is_that_of_its_eight_bytes(positions: list[int]) -> None:
    key0, key1 = derive_key(7, b"test", b"a")
    by_position = np.empty(len(positions), np.uint64)
    array = np.array(positions, np.int64)
    hash_positions(
        np.array([key0], np.uint64),
        np.array([key1], np.uint64),
        np.full(len(positions), 5, np.uint32),
        5,
        array,
        by_position,
    )
    by_bytes = hash_bytes(
        (key0, key1),
        array.view(np.uint8),
        np.arange(len(positions)) * 8,
        np.full(len(positions), 8),
    )
    assert by_position.tolist() == by_bytes.tolist()
