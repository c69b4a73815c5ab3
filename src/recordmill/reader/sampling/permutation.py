"""A permutation of the numbers below a size, as a function: any number is looked up by itself, and nothing of the size
of the permutation is held.

A Feistel network over as many bits as the size needs is a bijection of the numbers of that many bits; where it leads
out of the size it is followed further until it leads back (cycle walking: fewer than two turns on the average). The
round function is the finalizer of SplitMix64 (Steele, Lea, Flood 2014) over the key, the round and the other half. The
result is part of what a saved position means: it never changes.
"""

from __future__ import annotations

import hashlib

import numpy as np

from recordmill.base.arrays import Int64s
from recordmill.base.kernels import inlined, kernel

_ROUNDS = 3  # of two half-rounds each; four half-rounds of random functions are the least that is no weakness
_LEAST_BITS = 6  # halves of 3 bits and more, so that sets of few numbers are mixed as well
_STEP, _FIRST, _SECOND = (np.uint64(word) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_27, _30, _31, _ONE = (np.uint64(bits) for bits in (27, 30, 31, 1))


def key_of(*words: object) -> int:
    """A key of 64 bits that these words decide."""
    text = "\x00".join(str(word) for word in words).encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def permuted(numbers: Int64s, size: int, key: int) -> Int64s:
    """Where the permutation of [0, size) that the key decides takes each number.

    >>> sorted(permuted(np.arange(10), 10, key=7).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    return permuted_within(numbers, np.array([0, size], np.int64), key)


def permuted_within(numbers: Int64s, edges: Int64s, key: int) -> Int64s:
    """Each number permuted among those of its stretch, a permutation of its own for each.

    Args:
        numbers: int64 [n], each in [edges[0], edges[-1]).
        edges: int64 [stretches + 1], ascending: stretch i is [edges[i], edges[i + 1]).
    """
    numbers = np.ascontiguousarray(numbers, np.int64)
    intervals = np.searchsorted(edges, numbers, "right") - 1
    out = np.empty_like(numbers)
    _permute(numbers, intervals, np.ascontiguousarray(edges, np.int64), np.uint64(key), out)
    return out


@inlined
def _mixed(word: np.uint64) -> np.uint64:
    word = (word ^ (word >> _30)) * _FIRST
    word = (word ^ (word >> _27)) * _SECOND
    return word ^ (word >> _31)


@kernel
def _permute(numbers: Int64s, intervals: Int64s, edges: Int64s, key: np.uint64, out: Int64s) -> None:
    last = -1
    start, size = 0, np.uint64(0)
    own, low_bits = key, np.uint64(0)
    low = high = np.uint64(0)
    for i in range(len(numbers)):
        if intervals[i] != last:
            last = intervals[i]
            start = edges[last]
            size = np.uint64(edges[last + 1] - start)
            own = _mixed(key + np.uint64(last + 1) * _STEP)
            bits = _LEAST_BITS
            while (np.uint64(1) << np.uint64(bits)) < size:
                bits += 1
            low_bits = np.uint64(bits // 2)
            low = (_ONE << low_bits) - _ONE
            high = (_ONE << np.uint64(bits - bits // 2)) - _ONE
        at = np.uint64(numbers[i] - start)
        while True:
            left, right = at >> low_bits, at & low
            word = own
            for _ in range(_ROUNDS):
                word += _STEP
                left = (left ^ _mixed(word ^ right)) & high
                word += _STEP
                right = (right ^ _mixed(word ^ left)) & low
            at = (left << low_bits) | right
            if at < size:
                break
        out[i] = start + np.int64(at)
