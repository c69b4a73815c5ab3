"""Decimal texts become the same float64 values as with Python's float()."""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from recordmill.base import native

RANDOM = np.random.default_rng(11)


def _parse(texts: list[str]) -> np.ndarray:
    """Parses texts with the library. It must round them without Python's help."""
    data = np.frombuffer("".join(texts).encode(), np.uint8)
    lengths = np.array([len(text) for text in texts], np.int32)
    starts = np.cumsum(lengths, dtype=np.int32) - lengths
    values, fault = np.empty(len(texts)), np.zeros(len(texts), np.uint8)
    field_type = native.FieldType(
        kind=native.FieldKind.FLOATS, mantissa_bits=53, overflow_limit=np.inf
    )
    out, counts = values.view(np.uint8), native.ColumnCounts()
    fields = native.TextFields(data=data, starts=starts, infos=lengths)
    native.read_fields(fields, field_type, out, None, fault, counts, None)
    assert not np.isin(fault, [native.FieldFault.WRONG_TYPE, native.FieldFault.UNDECIDED]).any()
    return values


def _assert_equal_to_python(texts: list[str]) -> None:
    expected = np.array([float(text) for text in texts])
    wrong_rows = np.flatnonzero(_parse(texts).view(np.uint64) != expected.view(np.uint64))
    assert [texts[row] for row in wrong_rows[:5].tolist()] == []


def _random_texts(count: int) -> list[str]:
    """Returns decimals of up to 19 digits.

    Their exponents exceed the range of float64 at both ends.
    """
    digits = RANDOM.integers(0, 10**19, count, dtype=np.uint64) // (
        np.uint64(10) ** RANDOM.integers(0, 19, count, dtype=np.uint64)
    )
    powers = RANDOM.integers(-365, 330, count)
    return [f"{d}e{power}" for d, power in zip(digits.tolist(), powers.tolist(), strict=True)]


def _near_midpoints(count: int) -> Iterator[str]:
    """Yields decimals of up to 19 digits near the middle of two adjacent float64 values.

    The first digits of each middle are rounded down, and the last one is changed by -1, 0 and 1.
    """
    for bits in RANDOM.integers(0, 0x7FEF_FFFF_FFFF_FFFF, count, dtype=np.uint64):
        low = np.uint64(bits).view(np.float64)
        middle = (Fraction(float(low)) + Fraction(float(np.nextafter(low, np.inf)))) / 2
        power = len(str(middle.numerator)) - len(str(middle.denominator)) - 18
        digits = int(middle / Fraction(10) ** power)
        while digits >= 10**19:
            digits, power = digits // 10, power + 1
        yield from (f"{digits + step}e{power}" for step in (-1, 0, 1))


def _exact_ties(count: int) -> list[str]:
    """Returns decimals exactly between two float64 values, with or without trailing zeros."""
    integers = 2 * RANDOM.integers(2**52, 2**53, count) + 1
    shifts = RANDOM.integers(0, 9, count)
    return [
        f"{integer << shift}{'0' * (shift % 4)}e-{shift % 4}"
        for integer, shift in zip(integers.tolist(), shifts.tolist(), strict=True)
    ]


def test_random_decimals_are_rounded_to_the_nearest_float64() -> None:
    _assert_equal_to_python(_random_texts(100_000))


def test_decimals_near_a_midpoint_are_rounded_to_the_nearest_float64() -> None:
    _assert_equal_to_python(list(_near_midpoints(10_000)))


def test_ties_are_rounded_to_the_even_float64() -> None:
    texts = [text for text in _exact_ties(10_000) if len(text.partition("e")[0]) <= 19]
    assert len(texts) > 5_000
    _assert_equal_to_python(texts)


def test_limits_of_float64_are_zero_and_infinity() -> None:
    texts = ["4.9e-324", "2.47e-324", "2.4703282292062327e-324", "2.4703282292062328e-324"]
    texts += ["2.2250738585072014e-308", "2.2250738585072011e-308", "1e-400", "1e400"]
    texts += ["1.7976931348623157e308", "1.7976931348623158e308", "1.7976931348623159e308", "0e999"]
    _assert_equal_to_python(texts)


@pytest.mark.sweep
def test_ten_million_decimals_are_rounded_to_the_nearest_float64() -> None:
    for _ in range(10):
        _assert_equal_to_python(_random_texts(900_000))
        _assert_equal_to_python(list(_near_midpoints(35_000)))
