"""Pairs of 256-bit hashes that differ in few bits, found by comparing each with each: a second for 50,000."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recordmill.base import native
from recordmill.base.arrays import Int64s
from recordmill.base.siphash import U64
from recordmill.records.images.similarity import NEAR_BITS

_FOUND_AT_ONCE = 1 << 16  # pairs of one array


def near_pairs(hashes: U64) -> Iterator[tuple[Int64s, Int64s]]:
    """Yields each pair of rows of hashes, [n, 4] words, that differ in at most NEAR_BITS bits, once, as (smaller,
    larger) numbers, some at a time.
    """
    hashes, search = np.ascontiguousarray(hashes), native.PairSearch(most_bits=NEAR_BITS)
    one, other = np.empty(_FOUND_AT_ONCE, np.int64), np.empty(_FOUND_AT_ONCE, np.int64)
    while search.row < len(hashes):
        if count := native.find_near_pairs(hashes, search, one, other):
            yield one[:count].copy(), other[:count].copy()
