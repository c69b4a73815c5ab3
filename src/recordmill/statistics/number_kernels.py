"""Compiled passes over numbers: exact sums, and counts by bins whose keys are the top bits of the float64.

A bin's key is the sign, the exponent and the first 8 bits of the mantissa, with the bits turned so that keys are in the
order of the values: an integer below 512 has a bin of its own, and a bin is at most 1/256 as wide as its values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from recordmill.base.arrays import Int64s
from recordmill.base.kernels import inlined, intrinsic, kernel, types
from recordmill.base.pointers import bit_length
from recordmill.base.siphash import U64

KEY_BITS = 20
USED_WORDS = (1 << KEY_BITS) // 64
MOST_AT_ONCE = 1 << 20  # values of one pass: below 2^21, so that no limb of a sum overflows
MOST_SINGLES = 1 << 16  # float32 values of one pass: so many squares of 24 bits add up to less than 2^64
_SMALL = 1 << 31
LIMBS, EXPONENTS = 5, 2048  # of each exponent: two limbs of the sum of the mantissas, three of that of their squares
FLOAT_FACTS = 4  # NaN, infinities above and below, zeros
INT_FACTS = 9  # two limbs of the sum, four of the squares', zeros, least, most

Counts32 = npt.NDArray[np.uint32]

_WORD = ir.IntType(64)


@intrinsic
def float_bits(typing, value):  # type: ignore[no-untyped-def]
    """(float64) -> int64: its bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _WORD)

    return types.int64(types.float64), generate


@intrinsic
def multiply_high(typing, one, other):  # type: ignore[no-untyped-def]
    """(int64, int64) -> int64: the upper half of the product of both as unsigned numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), _WORD)

    return types.int64(types.int64, types.int64), generate


@inlined
def _count(bits: int, bins: Counts32, used: U64) -> None:
    """Count a float64 in its bin."""
    key = (bits >> 44) & 0xFFFFF
    key = key ^ 0xFFFFF if bits < 0 else key | 0x80000
    if bins[key] == 0:
        used[key >> 6] |= np.uint64(1) << np.uint64(key & 63)
    bins[key] += np.uint32(1)


@kernel
def count_floats(
    values: npt.NDArray[np.floating[Any]],
    bins: Counts32,
    used: U64,
    limbs: npt.NDArray[np.int64],
    facts: Int64s,
    extremes: npt.NDArray[np.float64],
) -> None:
    """Count up to MOST_AT_ONCE values: bins, limbs [LIMBS, EXPONENTS] and facts are added to, and the extremes, the
    least and the most, widened.
    """
    least, most = extremes[0], extremes[1]
    zeros, nans, plus, minus = 0, 0, 0, 0
    for i in range(len(values)):
        value = np.float64(values[i]) + 0.0  # -0.0 becomes 0.0
        bits = float_bits(value)
        exponent = (bits >> 52) & 0x7FF
        mantissa = bits & 0xFFFFFFFFFFFFF
        if exponent == 0x7FF:
            if mantissa:
                nans += 1
            elif bits < 0:
                minus += 1
            else:
                plus += 1
            continue
        least, most = min(least, value), max(most, value)
        _count(bits, bins, used)
        if exponent:
            mantissa |= 1 << 52
        elif mantissa == 0:
            zeros += 1
        else:
            exponent = 1
        sign = bits >> 63
        low = mantissa * mantissa
        limbs[0, exponent] += ((mantissa & 0x7FFFFFF) ^ sign) - sign
        limbs[1, exponent] += ((mantissa >> 27) ^ sign) - sign
        limbs[2, exponent] += low & 0xFFFFFFFF
        limbs[3, exponent] += (low >> 32) & 0xFFFFFFFF
        limbs[4, exponent] += multiply_high(mantissa, mantissa)
    extremes[0], extremes[1] = least, most
    facts[0] += nans
    facts[1] += plus
    facts[2] += minus
    facts[3] += zeros


@kernel
def count_singles(
    values: npt.NDArray[np.float32],
    bins: Counts32,
    used: U64,
    limbs: npt.NDArray[np.int64],
    facts: Int64s,
    extremes: npt.NDArray[np.float64],
) -> None:
    """`count_floats` of up to MOST_SINGLES values, whose mantissas have 24 bits: limbs[0] of the sums, in units of 2^29
    of those of float64, limbs[1] of the squares, unsigned.
    """
    least, most = extremes[0], extremes[1]
    zeros, nans, plus, minus = 0, 0, 0, 0
    for i in range(len(values)):
        value = np.float64(values[i]) + 0.0  # -0.0 becomes 0.0
        bits = float_bits(value)
        exponent = (bits >> 52) & 0x7FF
        mantissa = (bits & 0xFFFFFFFFFFFFF) >> 29
        if exponent == 0x7FF:
            if bits & 0xFFFFFFFFFFFFF:
                nans += 1
            elif bits < 0:
                minus += 1
            else:
                plus += 1
            continue
        least, most = min(least, value), max(most, value)
        _count(bits, bins, used)
        if exponent == 0:  # those below the normal numbers are normal as float64
            zeros += 1
            continue
        mantissa |= 1 << 23
        sign = bits >> 63
        limbs[0, exponent] += (mantissa ^ sign) - sign
        limbs[1, exponent] += mantissa * mantissa
    extremes[0], extremes[1] = least, most
    facts[0] += nans
    facts[1] += plus
    facts[2] += minus
    facts[3] += zeros


@kernel
def count_ints(values: Int64s, bins: Counts32, used: U64, facts: Int64s) -> None:
    """Count up to MOST_AT_ONCE values; facts: [INT_FACTS], added to, of which the last two are widened."""
    least, most = facts[7], facts[8]
    low, high, zeros = 0, 0, 0
    squares_0, squares_1, squares_2, squares_3 = 0, 0, 0, 0
    for i in range(len(values)):
        value = int(values[i])
        least, most = min(least, value), max(most, value)
        zeros += value == 0
        low += value & 0xFFFFFFFF
        high += value >> 32
    for i in range(len(values)):
        _count(float_bits(np.float64(values[i])), bins, used)
    if least > -_SMALL and most < _SMALL:  # loops of few steps are compiled to vector code
        for i in range(len(values)):
            square = int(values[i]) * int(values[i])
            squares_0 += square & 0xFFFFFFFF
            squares_1 += square >> 32
    else:
        for i in range(len(values)):
            value = int(values[i])
            sign = value >> 63
            size = (value ^ sign) - sign
            square, upper = size * size, multiply_high(size, size)
            squares_0 += square & 0xFFFFFFFF
            squares_1 += (square >> 32) & 0xFFFFFFFF
            squares_2 += upper & 0xFFFFFFFF
            squares_3 += (upper >> 32) & 0xFFFFFFFF
    facts[0] += low
    facts[1] += high
    facts[2] += squares_0
    facts[3] += squares_1
    facts[4] += squares_2
    facts[5] += squares_3
    facts[6] += zeros
    facts[7], facts[8] = least, most


@kernel
def merge_bins(
    bins: Counts32,
    used: U64,
    keys: Counts32,
    counts: Int64s,
    level: int,
    out_keys: Counts32,
    out_counts: Int64s,
) -> int:
    """The counts of a pass and those of before (keys ascending, each without its `level` lowest bits) into out_keys and
    out_counts, with as few bits dropped as they have room for. The pass's are then zero again.

    Gives level << 32 | how many there are.
    """
    first = level
    while True:
        size = _merged(bins, used, keys, counts, level, level - first, out_keys, out_counts)
        if size >= 0:
            break
        level += 1
    for word in range(len(used)):
        if used[word]:
            for at in range(word << 6, (word + 1) << 6):
                bins[at] = 0
            used[word] = np.uint64(0)
    return (level << 32) | size


@inlined
def _merged(
    bins: Counts32,
    used: U64,
    keys: Counts32,
    counts: Int64s,
    level: int,
    dropped: int,
    out_keys: Counts32,
    out_counts: Int64s,
) -> int:
    """How many bins there are, or -1 if there is no room for them."""
    room, size, at, last = len(out_keys), 0, 0, -1
    for word in range(len(used)):
        bits = np.int64(used[word])
        while bits != 0:
            old = (word << 6) + bit_length(bits & -bits) - 1
            bits &= bits - 1
            key = old >> level
            while at < len(keys) and (int(np.int64(keys[at])) >> dropped) <= key:
                known = int(np.int64(keys[at])) >> dropped
                if known == last:
                    out_counts[size - 1] += counts[at]
                else:
                    if size == room:
                        return -1
                    out_keys[size], out_counts[size] = np.uint32(known), counts[at]
                    size, last = size + 1, known
                at += 1
            if key == last:
                out_counts[size - 1] += np.int64(bins[old])
            else:
                if size == room:
                    return -1
                out_keys[size], out_counts[size] = np.uint32(key), np.int64(bins[old])
                size, last = size + 1, key
    while at < len(keys):
        known = int(np.int64(keys[at])) >> dropped
        if known == last:
            out_counts[size - 1] += counts[at]
        else:
            if size == room:
                return -1
            out_keys[size], out_counts[size] = np.uint32(known), counts[at]
            size, last = size + 1, known
        at += 1
    return size
