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

from recordmill.base import native
from recordmill.base.arrays import Int64s


def key_of(*words: object) -> int:
    """A key of 64 bits that these words decide."""
    text = "\x00".join(str(word) for word in words).encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def permuted(numbers: Int64s, size: int, key: int) -> Int64s:
    """Returns where the permutation of [0, size) that the key decides takes each number.

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
    numbers, edges = np.ascontiguousarray(numbers, np.int64), np.ascontiguousarray(edges, np.int64)
    stretches = np.searchsorted(edges, numbers, "right") - 1
    out = np.empty_like(numbers)
    native.permute(numbers, stretches, edges, key, out)
    return out
