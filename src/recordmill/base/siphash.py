"""SipHash-2-4 of many short inputs at once, and SplitMix64.

SipHash is the keyed hash of Aumasson and Bernstein ("SipHash: a fast short-input PRF", 2012). It is
fast enough for every record. Without the seed, an attacker can't choose inputs that all go to one
shard. The tests pin the reference vectors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from recordmill.base import native

U64 = npt.NDArray[np.uint64]
# 2^64 divided by the golden ratio, rounded to an odd number: the increment of SplitMix64
GOLDEN_RATIO = 0x9E3779B97F4A7C15


def mix64(words: U64) -> U64:
    """Scrambles each 64-bit word. Different words have different results.

    The function is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable
    pseudorandom number generators", 2014).
    """
    out = np.empty(len(words), np.uint64)
    native.mix_words(np.ascontiguousarray(words), out)
    return out


def random_shares(key: int, number: int, count: int) -> npt.NDArray[np.float64]:
    """Returns `count` pseudorandom numbers in [0, 1), from the generator SplitMix64.

    The key and the number determine its initial state, so equal arguments have equal results.

    Args:
        key: Seed, any integer of 64 bits.
        number: Index of the independent sequence, such as the number of a record.
        count: How many numbers to return.
    """
    increments = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN_RATIO)
    start = np.array([(key + number * GOLDEN_RATIO) & 0xFFFFFFFFFFFFFFFF], np.uint64)
    # The upper 53 bits are used, as many as a float has.
    return (mix64(mix64(start) + increments) >> np.uint64(11)) / (1 << 53)


def derive_key(seed: int, domain: bytes, *parts: bytes) -> tuple[int, int]:
    """Returns a 128-bit key as two little-endian words, (low, high).

    The key is the BLAKE2b-128 hash of the seed and the parts. Each part has its length as a prefix,
    so ("ab", "c") and ("a", "bc") have different keys.

    Args:
        seed: The seed, which must fit into 64 bits with a sign.
        domain: The purpose of the key, at most 16 bytes. Keys of different domains are independent.
        *parts: The byte strings to hash.
    """
    low, high = derive_keys(seed, domain, [parts])[0].tolist()
    return low, high


def derive_keys(seed: int, domain: bytes, part_lists: Iterable[Sequence[bytes]]) -> U64:
    """Returns one 128-bit key for each sequence of byte strings, as `derive_key` computes it.

    One call is faster than many calls of `derive_key`, because the seed is hashed only once.

    Returns:
        uint64 [keys, 2], the low and the high word of each key.
    """
    # The seed is hashed once, and each key continues from a copy of that state.
    initial_state = hashlib.blake2b(
        seed.to_bytes(8, "little", signed=True), digest_size=16, person=domain
    )

    def digest(parts: Sequence[bytes]) -> bytes:
        state = initial_state.copy()
        state.update(b"".join([len(part).to_bytes(8, "little") + part for part in parts]))
        return state.digest()

    return np.frombuffer(b"".join(map(digest, part_lists)), "<u8").reshape(-1, 2)


def hash_positions(
    key0: U64,
    key1: U64,
    key_indices: npt.NDArray[np.uint32],
    first_key: int,
    positions: npt.NDArray[np.int64],
    out: U64,
) -> None:
    """Hashes positions with keys, each position as 8 little-endian bytes.

    Keys have numbers. Key n is at index n - first_key of `key0` and `key1`.

    Args:
        key0: [keys] low word of each key.
        key1: [keys] high word of each key.
        key_indices: [positions] number of the key of each position.
        first_key: Number of the first key.
        positions: [positions] int64.
        out: [positions] receives the hashes.
    """
    starts, lengths = np.arange(0, positions.nbytes, 8), np.full(len(positions), 8, np.int64)
    native.hash_spans(
        key0, key1, key_indices, first_key, positions.view(np.uint8), starts, lengths, out
    )


def hash_bytes(
    key: tuple[int, int],
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> U64:
    """Returns the hash of each span of `data`, uint64 [spans].

    Args:
        key: The two words of the key, from `derive_key`.
        data: The bytes.
        starts: [spans] offset of each span.
        lengths: [spans] size of each span in bytes.
    """
    out = np.empty(len(starts), np.uint64)
    key0, key1 = (np.array([word], np.uint64) for word in key)
    spans = np.ascontiguousarray(starts), np.ascontiguousarray(lengths)
    native.hash_spans(key0, key1, None, 0, np.ascontiguousarray(data), *spans, out)
    return out
