"""The sum that accounts for records: of mix64(key, CRC32C of the payload) mod 2^64 over any set of them, in any order.

Runs, shards and `verify` compute it independently; equal counts and equal sums mean that the same records are there.
The mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", 2014), a bijection of 64 bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recordmill.base.kernels import kernel


@kernel
def mix64(key: np.uint64, crc: np.uint32) -> np.uint64:
    """One record's contribution: its key and its payload's unmasked CRC32C, mixed to 64 bits."""
    mixed = np.uint64(key) ^ (np.uint64(crc) * np.uint64(0x9E3779B97F4A7C15))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@kernel
def _sum(keys: npt.NDArray[np.uint64], crcs: npt.NDArray[np.uint32]) -> np.uint64:
    total = np.uint64(0)
    for row in range(len(keys)):
        total += mix64(keys[row], crcs[row])
    return total


def record_sum(keys: npt.NDArray[np.uint64], crcs: npt.NDArray[np.uint32]) -> int:
    """The sum over records with these keys [n] and unmasked payload CRCs [n]."""
    if len(keys) != len(crcs):
        raise ValueError(f"{len(keys)} keys for {len(crcs)} records")
    return int(_sum(np.ascontiguousarray(keys), np.ascontiguousarray(crcs)))


def add_sums(one: int, other: int) -> int:
    """The sum of two disjoint sets of records."""
    return (one + other) & 0xFFFF_FFFF_FFFF_FFFF
