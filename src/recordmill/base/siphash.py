"""SipHash-2-4 of many short inputs at once: positions (8 bytes each) or the bytes of a column's values.

SipHash is Aumasson and Bernstein's keyed hash ("SipHash: a fast short-input PRF", 2012): cheap enough for every record,
and nobody who doesn't know the seed can choose inputs that all fall into one shard. The reference vectors are pinned in
the tests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from recordmill.base.kernels import kernel

U64 = npt.NDArray[np.uint64]
_State = tuple[np.uint64, np.uint64, np.uint64, np.uint64]  # v0 to v3 of the paper


def derive_key(seed: int, purpose: bytes, *parts: bytes) -> tuple[int, int]:
    """A 128-bit key, as two little-endian words:
    BLAKE2b-128 of seed and parts, personalised by purpose (at most 16 bytes).

    Parts are length-prefixed, so that ("ab", "c") and ("a", "bc") differ.
    """
    low, high = derive_keys(seed, purpose, [parts])[0].tolist()
    return low, high


def derive_keys(seed: int, purpose: bytes, of: Iterable[Sequence[bytes]]) -> U64:
    """[items, 2]: `derive_key` of the parts of each."""
    begun = hashlib.blake2b(seed.to_bytes(8, "little", signed=True), digest_size=16, person=purpose)

    def digest(parts: Sequence[bytes]) -> bytes:
        state = begun.copy()
        state.update(b"".join([len(part).to_bytes(8, "little") + part for part in parts]))
        return state.digest()

    return np.frombuffer(b"".join(map(digest, of)), "<u8").reshape(-1, 2)


@kernel
def _rotate(value: np.uint64, bits: int) -> np.uint64:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@kernel
def _round(v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64) -> _State:
    v0 += v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 += v3
    v3 = _rotate(v3, 16) ^ v2
    v0 += v3
    v3 = _rotate(v3, 21) ^ v0
    v2 += v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@kernel
def _start(k0: np.uint64, k1: np.uint64) -> _State:
    return (
        k0 ^ np.uint64(0x736F6D6570736575),
        k1 ^ np.uint64(0x646F72616E646F6D),
        k0 ^ np.uint64(0x6C7967656E657261),
        k1 ^ np.uint64(0x7465646279746573),
    )


@kernel
def _absorb(word: np.uint64, v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64) -> _State:
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ word, v1, v2, v3


@kernel
def _finish(v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64) -> np.uint64:
    v2 ^= np.uint64(0xFF)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


@kernel
def hash_positions(
    key0: U64, key1: U64, which: npt.NDArray[np.uint32], first: int, positions: npt.NDArray[np.int64], out: U64
) -> None:
    """out[i] = SipHash-2-4 of positions[i] as 8 little-endian bytes, under (key0, key1)[which[i] - first]."""
    for row in range(len(positions)):
        source = np.int64(which[row]) - first
        v0, v1, v2, v3 = _start(key0[source], key1[source])
        v0, v1, v2, v3 = _absorb(np.uint64(positions[row]), v0, v1, v2, v3)
        v0, v1, v2, v3 = _absorb(np.uint64(8) << np.uint64(56), v0, v1, v2, v3)
        out[row] = _finish(v0, v1, v2, v3)


@kernel
def hash_spans(
    key0: np.uint64,
    key1: np.uint64,
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    out: U64,
) -> None:
    """out[i] = SipHash-2-4 of data[starts[i]:starts[i] + lengths[i]] under (key0, key1)."""
    for row in range(len(starts)):
        at, length = starts[row], lengths[row]
        end = at + length
        v0, v1, v2, v3 = _start(np.uint64(key0), np.uint64(key1))
        while end - at >= 8:
            word = np.uint64(0)
            for byte in range(8):
                word |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
            v0, v1, v2, v3 = _absorb(word, v0, v1, v2, v3)
            at += 8
        word = np.uint64(length & 0xFF) << np.uint64(56)
        for byte in range(end - at):
            word |= np.uint64(data[at + byte]) << np.uint64(8 * byte)
        v0, v1, v2, v3 = _absorb(word, v0, v1, v2, v3)
        out[row] = _finish(v0, v1, v2, v3)


def hash_bytes(
    key: tuple[int, int], data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> U64:
    """[n] SipHash-2-4 of the n spans of data under the key."""
    out = np.empty(len(starts), np.uint64)
    hash_spans(
        np.uint64(key[0]),
        np.uint64(key[1]),
        np.ascontiguousarray(data),
        np.ascontiguousarray(starts),
        np.ascontiguousarray(lengths),
        out,
    )
    return out
