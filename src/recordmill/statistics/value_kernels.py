"""Compiled passes over values that are to be counted one by one: their 64-bit hashes, and a table of counts by hash.

Numbers are hashed by the finaliser of SplitMix64, which is a bijection, so that a hash says its number; bytes in the
manner of wyhash (Wang Yi, 2019): 16 bytes at each step, multiplied to 128 bits of which the halves are folded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from recordmill.base.arrays import Bytes, Int32s, Int64s
from recordmill.base.kernels import inlined, kernel
from recordmill.base.pointers import address, load8, load32, load64
from recordmill.base.siphash import U64
from recordmill.statistics.number_kernels import float_bits, multiply_high

_STEP = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_P0, _P1, _P2, _P3 = (  # odd numbers with as many ones as zeros
    -0x5F89E29B87429BD1,
    -0x18EE50C4A4BB9F25 | 1,
    0x589965CC75374CC3,
    0x1D8E4E27C47D124F,
)


@inlined
def mixed(bits: np.uint64) -> np.uint64:
    """The hash of a number's bits; never 0, which stands for none."""
    word = bits + np.uint64(_STEP)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(_FIRST)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(_SECOND)
    word ^= word >> np.uint64(31)
    return word if word != np.uint64(0) else np.uint64(1)


def unmixed(hashes: U64) -> Int64s:
    """The bits whose hashes these are."""
    first, second = (pow(factor, -1, 1 << 64) for factor in (_FIRST, _SECOND))
    word = hashes ^ (hashes >> np.uint64(31)) ^ (hashes >> np.uint64(62))
    word = word * np.uint64(second)
    word = word ^ (word >> np.uint64(27)) ^ (word >> np.uint64(54))
    word = word * np.uint64(first)
    word = word ^ (word >> np.uint64(30)) ^ (word >> np.uint64(60))
    return np.asarray((word - np.uint64(_STEP)).view(np.int64))


@kernel
def hash_ints(values: Int64s, out: U64) -> None:
    """out[i] = the hash of values[i]."""
    for i in range(len(values)):
        out[i] = mixed(np.uint64(values[i]))


@kernel
def hash_floats(values: npt.NDArray[np.floating[Any]], out: U64) -> int:
    """The hashes of those that are numbers, as float64, into out; gives how many there are."""
    size = 0
    for i in range(len(values)):
        value = np.float64(values[i]) + 0.0
        if value == value:
            out[size] = mixed(np.uint64(float_bits(value)))
            size += 1
    return size


@inlined
def _folded(one: int, other: int) -> int:
    return int((one * other) ^ multiply_high(one, other))


@kernel
def hash_values(data: Bytes, starts: Int64s, ends: Int64s, out: U64) -> None:
    """out[i] = the hash of data[starts[i]:ends[i]]."""
    base = address(data)
    for i in range(len(starts)):
        at, end = base + starts[i], base + ends[i]
        size = end - at
        state = _P0 ^ size
        if size > 64:  # four lanes, which wait for none of the others
            second, third, fourth = state, state, state
            while end - at > 64:
                state = _folded(load64(at) ^ _P1, load64(at + 8) ^ state)
                second = _folded(load64(at + 16) ^ _P2, load64(at + 24) ^ second)
                third = _folded(load64(at + 32) ^ _P3, load64(at + 40) ^ third)
                fourth = _folded(load64(at + 48) ^ _P0, load64(at + 56) ^ fourth)
                at += 64
            state = _folded(state ^ _P1, second) ^ _folded(third ^ _P2, fourth)
        while end - at > 16:
            state = _folded(load64(at) ^ _P1, load64(at + 8) ^ state)
            at += 16
        if size >= 16:
            one, other = load64(end - 16), load64(end - 8)
        elif size >= 8:
            one, other = load64(at), load64(end - 8)
        elif size >= 4:
            one, other = load32(at), load32(end - 4)
        elif size > 0:
            one, other = (load8(at) << 16) | (load8(at + (size >> 1)) << 8) | load8(end - 1), 0
        else:
            one, other = 0, 0
        state = _folded(one ^ _P2, other ^ state)
        out[i] = mixed(np.uint64(state ^ (size * _P3)))


@kernel
def hash_occurrences(hashes: U64, keys: U64, out: U64) -> None:
    """out[i] = a hash of the i-th value and of the record that has it."""
    for i in range(len(hashes)):
        out[i] = mixed(hashes[i] ^ mixed(keys[i]))


@kernel
def count_hashes(
    hashes: U64,
    first: int,
    threshold: np.uint64,
    used: int,
    slots: U64,
    counts: Int64s,
    firsts: Int32s,
) -> int:
    """Count the hashes from the first one on that are at most the threshold, in a table with open addresses.
    firsts: where a hash that was not in the table stands.

    Gives used << 32 | how many were looked at: all of them, or as many as the table had room for. It has room for three
    quarters of its slots, whose number is a power of two.
    """
    mask, most = len(slots) - 1, len(slots) // 4 * 3
    bound = np.uint64(threshold)
    for i in range(first, len(hashes)):
        one = hashes[i]
        if one > bound:
            continue
        at = np.int64(one) & mask
        while slots[at] != one and slots[at] != np.uint64(0):
            at = (at + 1) & mask
        if slots[at] == np.uint64(0):
            if used == most:
                return (used << 32) | i
            slots[at], firsts[at] = one, np.int32(i)
            used += 1
        counts[at] += 1
    return (used << 32) | len(hashes)


@kernel
def put_hashes(hashes: U64, some: Int64s, places: Int32s, slots: U64, counts: Int64s, firsts: Int32s) -> None:
    """Put hashes that are not in the table into it, with their counts and places."""
    mask = len(slots) - 1
    for i in range(len(hashes)):
        at = np.int64(hashes[i]) & mask
        while slots[at] != np.uint64(0):
            at = (at + 1) & mask
        slots[at], counts[at], firsts[at] = hashes[i], some[i], places[i]
