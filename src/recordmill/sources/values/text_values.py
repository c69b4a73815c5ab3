"""Numbers in text for the kernels of JSON, which still are Numba's: the grammar of native/numbers.h, which is the one
to change. It goes with the last of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recordmill.base.arrays import Bytes
from recordmill.base.byte_masks import first_bit, high_product, leading_zeros, load_word
from recordmill.base.kernels import intrinsic, kernel, types

# mypy: disable-error-code="arg-type,assignment,return-value,no-any-return"
# In compiled code NumPy's scalars and Python's are the same.


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


# mypy: disable-error-code="arg-type,assignment,return-value,no-any-return"
# In compiled code NumPy's scalars and Python's are the same.


NO_LOSS, INEXACT_DECIMAL, INEXACT_INTEGER, OVERFLOW = 0, 1, 2, 3  # what float32 would do to a number
NOT_A_NUMBER, WHOLE, DECIMAL = 0, 1, 2  # what Number.kind says

_KEPT_DIGITS = 19  # as many as fit any uint64
# FLT_DIG: 6 digits always survive; FLT_DECIMAL_DIG: a float32 has no more than 9
_SAFE, _TOO_MANY = (np.uint64(10**6), np.uint64(10**9))
_MAX_EXPONENT = 1_000_000  # beyond it every value is 0 or inf; keeps the sum of exponents far from overflow
_FLOAT32_MAX = float(np.finfo(np.float32).max)
OVERFLOW_FLOAT32 = _FLOAT32_MAX + 2.0**103  # half a step above the largest: from here on a value rounds to inf


@kernel
def scan_number(data: Bytes, start: int, stop: int) -> tuple[int, bool, bool, np.uint64, int, bool, bool]:
    """(kind, odd, negative, digits, power, long, cut) of the text [start, stop).

    odd: a plus sign or a leading zero, so that it is text unless declared. The value is ±digits * 10^power; digits
    holds the first 19 from the first nonzero one on; long: there were more; cut: and not all of those were 0.
    """
    negative = start < stop and data[start] == 45
    plus = start < stop and data[start] == 43
    first = start + 1 if negative or plus else start
    points, fraction, digits = -1, 0, np.uint64(0)
    if first < stop <= first + 8 and stop >= 8:
        points, fraction, digits = _digits_word(data, first, stop)
    elif first + 8 < stop <= first + 16 and stop >= 16:
        points, fraction, digits = _digits_word(data, first, stop - 8)
        more, behind, rest = _digits_word(data, stop - 8, stop)
        fraction = behind if points == 0 else fraction + 8
        digits = digits * np.uint64(100_000_000 if more == 0 else 10_000_000) + rest
        points = -1 if points < 0 or more < 0 else points + more
    size = stop - first - points
    if size == 0 or not 0 <= points <= 1:
        return _any_number(data, first, stop, negative, plus)
    odd = plus or (size - fraction > 1 and data[first] == 48)
    return (DECIMAL if points == 1 else WHOLE), odd, negative, digits, -fraction, False, False


@kernel
def _digits_word(data: Bytes, first: int, stop: int) -> tuple[int, int, np.uint64]:
    """(points, digits behind the point, digits) of 1 to 8 digits with at most one point among them, without a branch
    per digit; -1 points for any other text.

    The eight bytes that end the text are one word, those before the text made `0`, the point taken out by moving what
    stands before it.
    """
    low = np.uint64(8 * (8 - (stop - first)))
    keep = np.uint64(0xFFFFFFFFFFFFFFFF) << low
    word = (load_word(data, stop - 8) & keep) | (np.uint64(0x3030303030303030) & ~keep)
    other = word ^ np.uint64(0x2E2E2E2E2E2E2E2E)  # a byte is 0 where the point is
    rest = np.uint64(0x7F7F7F7F7F7F7F7F)
    found = ~(((other & rest) + rest) | other | rest)  # bit 7 of those bytes
    points, fraction = 0, 0
    if found != np.uint64(0):
        if found & (found - np.uint64(1)) != np.uint64(0):
            return -1, 0, np.uint64(0)
        place = first_bit(found) >> 3
        before = (np.uint64(1) << np.uint64(8 * place)) - np.uint64(1)
        behind = ~before & ~(np.uint64(0xFF) << np.uint64(8 * place))
        word = (word & behind) | ((word & before) << np.uint64(8)) | np.uint64(0x30)
        points, fraction = 1, 7 - place
    high = np.uint64(0xF0F0F0F0F0F0F0F0)
    if (word & high) | (((word + np.uint64(0x0606060606060606)) & high) >> np.uint64(4)) != np.uint64(
        0x3333333333333333
    ):
        return -1, 0, np.uint64(0)
    word -= np.uint64(0x3030303030303030)
    word = word * np.uint64(10) + (word >> np.uint64(8))  # pairs of digits, then fours, then all eight (D. Lemire)
    fours = np.uint64(0x000000FF000000FF)
    word = (
        (word & fours) * np.uint64(0x000F424000000064)
        + ((word >> np.uint64(16)) & fours) * np.uint64(0x0000271000000001)
    ) >> np.uint64(32)
    return points, fraction, word


@kernel
def _any_number(
    data: Bytes, first: int, stop: int, negative: bool, plus: bool
) -> tuple[int, bool, bool, np.uint64, int, bool, bool]:
    """scan_number of any text; first: behind the sign."""
    nothing = (NOT_A_NUMBER, False, False, np.uint64(0), 0, False, False)
    digits, power, count, cut = np.uint64(0), 0, 0, False
    at, point = first, -1
    while at < stop:
        byte = data[at]
        digit = np.uint8(byte - 48)
        if digit <= 9:
            count += count > 0 or digit > 0
            if count <= _KEPT_DIGITS:
                digits = digits * np.uint64(10) + np.uint64(digit)
            else:
                power += 1
                cut = cut or digit > 0
            if point >= 0:
                power -= 1
        elif byte == 46 and point < 0:
            point = at
        else:
            break
        at += 1
    whole = (point if point >= 0 else at) - first
    if whole == 0 and (point < 0 or at == point + 1):
        return nothing
    odd = plus or (whole > 1 and data[first] == 48)
    if at == stop:
        return (DECIMAL if point >= 0 else WHOLE), odd, negative, digits, power, count > _KEPT_DIGITS, cut
    if data[at] | 32 != 101:
        return nothing
    exponent = _exponent(data, at + 1, stop)
    if exponent == -2 * _MAX_EXPONENT:
        return nothing
    return DECIMAL, odd, negative, digits, power + exponent, count > _KEPT_DIGITS, cut


@kernel
def _exponent(data: Bytes, at: int, stop: int) -> int:
    """The exponent behind an `e`, cut to ±_MAX_EXPONENT; -2 * _MAX_EXPONENT if it is none."""
    minus = at < stop and data[at] == 45
    if at < stop and (minus or data[at] == 43):
        at += 1
    if at == stop:
        return -2 * _MAX_EXPONENT
    exponent = 0
    for index in range(at, stop):
        digit = np.uint8(data[index] - 48)
        if digit > 9:
            return -2 * _MAX_EXPONENT
        exponent = min(exponent * 10 + np.int64(digit), _MAX_EXPONENT)
    return -exponent if minus else exponent


@kernel
def magnitude(digits: np.uint64, power: int, cut: bool) -> tuple[float, bool]:
    """(the float64 nearest to digits * 10^power, whether that is decided; if not, Python's float() must tell)."""
    value, decided = scale(digits, power)
    if cut and decided:
        above, decided = scale(digits + np.uint64(1), power)
        decided = decided and above == value
    return value, decided


@kernel
def whole_value(digits: np.uint64, power: int) -> tuple[np.uint64, int]:
    """digits * 10^power with a power nearer to 0: 0 of a whole number below 2^64; else what no digits could take in."""
    if digits == np.uint64(0):
        return digits, 0
    while power < 0 and digits % np.uint64(10) == np.uint64(0):
        digits //= np.uint64(10)
        power += 1
    while power > 0 and digits <= np.uint64(((1 << 64) - 1) // 10):
        digits *= np.uint64(10)
        power -= 1
    return digits, power


@kernel
def fits_int64(negative: bool, digits: np.uint64, long: bool) -> bool:
    """Whether a whole number is in int64's range."""
    return not long and digits <= np.uint64((1 << 63) - 1) + np.uint64(negative)


@kernel
def _equals(data: Bytes, at: int, stop: int, low: int, high: int, size: int) -> bool:
    """Whether [at, stop) is, in any case, the word of that size whose first 4 bytes make low and whose others make high
    (big-endian).
    """
    if stop - at != size:
        return False
    word, rest = 0, 0
    for index in range(size):
        if index < 4:
            word = word << 8 | np.int64(data[at + index] | 32)
        else:
            rest = rest << 8 | np.int64(data[at + index] | 32)
    return word == low and rest == high


_NAN, _INF = 0x6E616E, 0x696E66  # nan, inf
_INFI, _NITY = 0x696E6669, 0x6E697479  # infi nity


@kernel
def word_number(data: Bytes, start: int, stop: int) -> tuple[bool, float]:
    """(whether the text spells a number that is none or infinite, its value)."""
    if start == stop:
        return False, 0.0
    negative = data[start] == 45
    at = start + 1 if negative else start
    if _equals(data, at, stop, _NAN, 0, 3):
        return True, np.nan
    if _equals(data, at, stop, _INF, 0, 3) or _equals(data, at, stop, _INFI, _NITY, 8):
        return True, -np.inf if negative else np.inf
    return False, 0.0


@kernel
def exact_float32(digits: np.uint64) -> bool:
    """Whether a whole number has no more than 24 bits between its first and its last set one."""
    while digits > np.uint64(1 << 24) and digits & np.uint64(1) == np.uint64(0):
        digits >>= np.uint64(1)
    return digits <= np.uint64(1 << 24)


@kernel
def decimal_loss(digits: np.uint64, power: int, cut: bool) -> int:
    """What float32 loses of digits * 10**power: NO_LOSS, INEXACT_DECIMAL or OVERFLOW; cut: other digits stand behind
    these.
    """
    if digits < _SAFE and (digits == np.uint64(0) or -36 < power < 32):
        return NO_LOSS
    value, decided = magnitude(digits, power, cut)
    if not decided:
        return INEXACT_DECIMAL
    if value >= OVERFLOW_FLOAT32:
        return OVERFLOW
    single = np.float64(np.float32(value))
    if single == value:
        # a value that underflows even float64 is not kept, however exactly float32 has the zero
        return NO_LOSS if value > 0.0 else INEXACT_DECIMAL
    while digits % np.uint64(10) == np.uint64(0):
        digits //= np.uint64(10)
        power += 1
    if cut or digits >= _TOO_MANY:
        return INEXACT_DECIMAL
    scaled = single
    while power < 0:
        step = min(-power, 22)
        scaled *= _TENS[step]
        power += step
    while power > 0:
        step = min(power, 22)
        scaled /= _TENS[step]
        power -= step
    off = abs(scaled - np.float64(digits))
    # A tie rounds to the even digit, as printing does.
    return NO_LOSS if off < 0.5 or (off == 0.5 and digits % np.uint64(2) == np.uint64(0)) else INEXACT_DECIMAL
