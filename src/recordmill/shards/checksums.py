"""The sum that accounts for records: of mix64(key, CRC32C of the payload) mod 2^64 over any set of them, in any order.

Runs, shards and `verify` compute it independently; equal counts and equal sums mean that the same records are there.
The mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", 2014), a bijection of 64 bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recordmill.base import native


def record_sum(keys: npt.NDArray[np.uint64], crcs: npt.NDArray[np.uint32]) -> int:
    """The sum over records with these keys [n] and unmasked payload CRCs [n]."""
    if len(keys) != len(crcs):
        raise ValueError(f"{len(keys)} keys for {len(crcs)} records")
    return native.record_sum(np.ascontiguousarray(keys), np.ascontiguousarray(crcs))


def add_sums(one: int, other: int) -> int:
    """The sum of two disjoint sets of records."""
    return (one + other) & 0xFFFF_FFFF_FFFF_FFFF
