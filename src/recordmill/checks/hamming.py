"""Pairs of 256-bit hashes that differ in few bits, among very many: without comparing each with each.

Multi-index hashing (Norouzi, Punjani, Fleet, "Fast search in Hamming space with multi-index hashing", 2012): of 13
portions of two hashes that differ in at most 24 bits, one differs in at most one bit, since 13 * 2 > 24. So each hash
is looked up in 13 tables, under its portion and under each portion that differs from it in one bit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recordmill.base.arrays import Int32s, Int64s
from recordmill.base.kernels import inlined, kernel
from recordmill.base.siphash import U64
from recordmill.records.images.similarity import NEAR_BITS

_HASH_BITS = 256
_PORTIONS = 13
_FOUND_AT_ONCE = 1 << 16  # pairs of one array


def near_pairs(hashes: U64) -> Iterator[tuple[Int64s, Int64s]]:
    """Each pair of rows of hashes, [n, 4] words, that differ in at most NEAR_BITS bits, once, as (smaller, larger)
    numbers, in portions; in which order follows from the hashes.

    Memory: 44 bytes a hash beside the hashes, and a portion. Time grows with n and with the pairs that share a portion:
    where very many hashes are alike in most of their bits, it is that of comparing each of these with each.
    """
    hashes = np.ascontiguousarray(hashes)
    one, other = np.empty(_FOUND_AT_ONCE, np.int64), np.empty(_FOUND_AT_ONCE, np.int64)
    for portion in range(_PORTIONS):
        bits = len(range(portion, _HASH_BITS, _PORTIONS))
        keys = np.empty(len(hashes), np.int32)
        take_portion(hashes, portion, _PORTIONS, keys)
        members = np.argsort(keys, kind="stable")
        keys, ranked = keys[members], hashes[members]  # what is looked up together lies together: a tenth of the time
        starts = np.zeros((1 << bits) + 1, np.int32)
        np.cumsum(np.bincount(keys, minlength=1 << bits), out=starts[1:])
        state = np.zeros(3, np.int64)  # the hash, the key among those near its own, the other hash: where it stands
        while state[0] < len(hashes):
            count = int(find_pairs(ranked, keys, starts, portion, bits, state, one, other))
            if count:
                found = members[one[:count]], members[other[:count]]
                yield np.minimum(*found), np.maximum(*found)


@inlined
def _ones(word: np.uint64) -> np.int64:
    """How many bits are set."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@inlined
def _distance(hashes: U64, one: int, other: int) -> np.int64:
    total = np.int64(0)
    for word in range(4):
        total += _ones(hashes[one, word] ^ hashes[other, word])
    return total


@kernel
def take_portion(hashes: U64, portion: int, portions: int, out: Int32s) -> None:
    """out[i] = the bits portion, portion + portions, ... of hashes[i]: from all over the hash, since parts of many
    images are plain.
    """
    for i in range(len(hashes)):
        key = np.int64(0)
        for bit in range(portion, 256, portions):
            key = (key << 1) | np.int64((hashes[i, bit >> 6] >> np.uint64(bit & 63)) & np.uint64(1))
        out[i] = np.int32(key)


@inlined
def _is_near_before(hashes: U64, one: int, other: int, portion: int) -> bool:
    """Whether a portion before this one differs in at most one bit, by which the pair was found."""
    for before in range(portion):
        differing = np.int64(0)
        for bit in range(before, 256, 13):
            word, place = bit >> 6, np.uint64(bit & 63)
            differing += np.int64(((hashes[one, word] ^ hashes[other, word]) >> place) & np.uint64(1))
        if differing <= 1:
            return True
    return False


@kernel
def find_pairs(
    hashes: U64,
    keys: Int32s,
    starts: Int32s,
    portion: int,
    bits: int,
    state: Int64s,
    one: Int64s,
    other: Int64s,
) -> int:
    """Pairs of places into (one, other), from the state on, which is moved; gives how many: as many as there is room
    for. hashes: in the order of their keys, which are their portions; starts: where in it each key begins.
    """
    count = 0
    i, near, at = state[0], state[1], state[2]
    while i < len(hashes):
        while near <= bits:
            key = np.int64(keys[i])
            if near > 0:
                key ^= np.int64(1) << (near - 1)
            end = min(np.int64(starts[key + 1]), i)
            at = max(at, np.int64(starts[key]))
            while at < end:
                j = at
                at += 1
                if _distance(hashes, i, j) <= NEAR_BITS and not _is_near_before(hashes, i, j, portion):
                    one[count], other[count] = j, i
                    count += 1
                    if count == len(one):
                        state[0], state[1], state[2] = i, near, at
                        return count
            at = np.int64(0)
            near += 1
        near = np.int64(0)
        i += 1
    state[0], state[1], state[2] = i, near, at
    return count
