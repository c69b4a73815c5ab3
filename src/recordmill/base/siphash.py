"""SipHash-2-4 of many short inputs at once: positions (8 bytes each) or the bytes of a column's values; and `mix64`.

SipHash is Aumasson and Bernstein's keyed hash ("SipHash: a fast short-input PRF", 2012): cheap enough for every record,
and nobody who doesn't know the seed can choose inputs that all fall into one shard. The reference vectors are pinned in
the tests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from recordmill.base import native

U64 = npt.NDArray[np.uint64]
GOLDEN_RATIO = 0x9E3779B97F4A7C15  # 2^64 / the golden ratio, odd


def mix64(words: U64) -> U64:
    """Returns [n] the finaliser of SplitMix64 of each word (Steele, Lea and Flood, "Fast splittable pseudorandom number
    generators", 2014): a bijection of 64 bits.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def derive_key(seed: int, domain: bytes, *parts: bytes) -> tuple[int, int]:
    """A 128-bit key, as two little-endian words: BLAKE2b-128 of seed and parts, personalised by purpose (at most 16
    bytes).

    Parts are length-prefixed, so that ("ab", "c") and ("a", "bc") differ.
    """
    low, high = derive_keys(seed, domain, [parts])[0].tolist()
    return low, high


def derive_keys(seed: int, domain: bytes, part_lists: Iterable[Sequence[bytes]]) -> U64:
    """Returns [items, 2]: `derive_key` of the parts of each."""
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
    """out[i] = SipHash-2-4 of positions[i] as 8 little-endian bytes, under (key0, key1)[which[i] - first]."""
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
    """Returns [n] SipHash-2-4 of the n spans of data under the key."""
    out = np.empty(len(starts), np.uint64)
    key0, key1 = (np.array([word], np.uint64) for word in key)
    spans = np.ascontiguousarray(starts), np.ascontiguousarray(lengths)
    native.hash_spans(key0, key1, None, 0, np.ascontiguousarray(data), *spans, out)
    return out
