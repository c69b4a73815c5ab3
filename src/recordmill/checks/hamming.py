"""Pairs of 256-bit hashes that differ in few bits, among very many: without comparing each with each.

Multi-index hashing (Norouzi, Punjani, Fleet, "Fast search in Hamming space with multi-index hashing", 2012): of 13
portions of two hashes that differ in at most 24 bits, one differs in at most one bit, since 13 * 2 > 24. So each hash
is looked up in 13 tables, under its portion and under each portion that differs from it in one bit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recordmill.base import native
from recordmill.base.arrays import Int64s
from recordmill.base.siphash import U64
from recordmill.records.images.similarity import NEAR_BITS

_HASH_BITS = 256
_FOUND_AT_ONCE = 1 << 16  # pairs of one array


def near_pairs(hashes: U64) -> Iterator[tuple[Int64s, Int64s]]:
    """Yields each pair of rows of hashes, [n, 4] words, that differ in at most NEAR_BITS bits, once, as (smaller,
    larger) numbers, in portions; in which order follows from the hashes.

    Memory: 44 bytes a hash beside the hashes, and a portion. Time grows with n and with the pairs that share a portion:
    where very many hashes are alike in most of their bits, it is that of comparing each of these with each.
    """
    hashes = np.ascontiguousarray(hashes)
    one, other = np.empty(_FOUND_AT_ONCE, np.int64), np.empty(_FOUND_AT_ONCE, np.int64)
    for portion in range(native.HASH_PORTIONS):
        bits = len(range(portion, _HASH_BITS, native.HASH_PORTIONS))
        keys = np.empty(len(hashes), np.int32)
        native.take_portions(hashes, portion, keys)
        members = np.argsort(keys, kind="stable")
        keys, ranked = keys[members], hashes[members]  # what is looked up together lies together: a tenth of the time
        starts = np.zeros((1 << bits) + 1, np.int32)
        np.cumsum(np.bincount(keys, minlength=1 << bits), out=starts[1:])
        search = native.PairSearch(portion=portion, most_bits=NEAR_BITS)
        while search.row < len(hashes):
            count = native.find_near_pairs(ranked, keys, starts, search, one, other)
            if count:
                found = members[one[:count]], members[other[:count]]
                yield np.minimum(*found), np.maximum(*found)
