"""SplitMix64 returns the published sequence, so other programs compute the same random shares."""

import numpy as np

from recordmill.base.siphash import GOLDEN_RATIO, mix64, random_shares

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
