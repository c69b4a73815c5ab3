"""Decimal digits and a power of ten in, the nearest float64 out, as Python's `float()` rounds, in a Numba kernel.

Clinger's exact path where the digits and the power are both exact doubles; else the algorithm of Eisel and Lemire (D.
Lemire, "Number parsing at a gigabyte per second", 2021) with its table of 128-bit powers of five. The few texts that
neither decides come back undecided.
"""

# mypy: disable-error-code="arg-type,assignment,return-value,no-any-return"
# In compiled code NumPy's scalars and Python's are the same.

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recordmill.base.byte_masks import high_product, leading_zeros
from recordmill.base.kernels import intrinsic, kernel, types

# powers of ten: below, 19 digits are under half the least subnormal; above, they exceed the largest float64
_LEAST, _MOST = (-342, 308)
_TENS = np.array([float(10**power) for power in range(23)])  # 10^0 .. 10^22: exact as float64
_EXACT = 1 << 53  # integers up to here are exact as float64
_FIXED = 3  # bits below the 53 of the significand that the product must settle


def _powers_of_five() -> npt.NDArray[np.uint64]:
    """[651, 2]: the upper and lower 64 bits of 5^q for q = -342 .. 308, scaled to 128 bits;
    truncated, for q < 0 rounded up.
    """
    table = np.empty((_MOST - _LEAST + 1, 2), np.uint64)
    for power in range(_LEAST, _MOST + 1):
        if power < 0:
            five = 5**-power
            bits = (five - 1).bit_length()
            scaled = (1 << (bits + 127 if power >= -27 else 2 * bits + 128)) // five + 1
        else:
            scaled = 5**power << 128
        scaled >>= max(scaled.bit_length() - 128, 0)
        table[power - _LEAST] = scaled >> 64, scaled & ((1 << 64) - 1)
    return table


_FIVES = _powers_of_five()


@intrinsic
def _from_bits(_context: object, bits: object) -> object:
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], context.get_value_type(types.float64))

    return types.float64(types.uint64), generate


@kernel
def scale(digits: np.uint64, power: int) -> tuple[float, bool]:
    """(digits * 10^power rounded to nearest, ties to even; whether that is decided).

    digits: the significant digits as an integer, all of them (at most 19). Beyond float64's range the value is inf.
    """
    if digits <= np.uint64(_EXACT) and -22 <= power <= 22:
        value = np.float64(digits)
        return (value * _TENS[power], True) if power >= 0 else (value / _TENS[-power], True)
    if digits == np.uint64(0) or power < _LEAST:
        return 0.0, True
    if power > _MOST:
        return np.inf, True
    return _eisel_lemire(digits, power)


@kernel
def _eisel_lemire(digits: np.uint64, power: int) -> tuple[float, bool]:
    zeros = leading_zeros(digits)
    digits <<= np.uint64(zeros)
    upper, lower = _FIVES[power - _LEAST, 0], _FIVES[power - _LEAST, 1]
    high, low = high_product(digits, upper), digits * upper
    unsettled = np.uint64((1 << (64 - 52 - _FIXED)) - 1)
    if high & unsettled == unsettled:
        more = high_product(digits, lower)
        low += more
        if low < more:
            high += np.uint64(1)
    if low == np.uint64(0xFFFFFFFFFFFFFFFF) and not -27 <= power <= 55:
        return 0.0, False
    top = np.int64(high >> np.uint64(63))
    shift = np.uint64(top + 64 - 52 - _FIXED)
    significand = high >> shift
    exponent = (((152170 + 65536) * power) >> 16) + 63 + top - zeros + 1023
    if exponent <= 0:
        return _subnormal(significand, exponent), True
    if (
        low <= np.uint64(1)
        and -4 <= power <= 23
        and significand & np.uint64(3) == np.uint64(1)
        and significand << shift == high
    ):
        significand &= ~np.uint64(1)  # exactly halfway: to even
    significand = (significand + (significand & np.uint64(1))) >> np.uint64(1)
    if significand >= np.uint64(1 << 53):
        significand = np.uint64(1 << 52)
        exponent += 1
    if exponent >= 0x7FF:
        return np.inf, True
    return _from_bits((significand & np.uint64((1 << 52) - 1)) | (np.uint64(exponent) << np.uint64(52))), True


@kernel
def _subnormal(significand: np.uint64, exponent: int) -> float:
    if 1 - exponent >= 64:
        return 0.0
    significand >>= np.uint64(1 - exponent)
    significand = (significand + (significand & np.uint64(1))) >> np.uint64(1)
    return _from_bits(significand)  # a carry into bit 52 is the exponent 1: the least normal number
