"""Sums, quantiles and histograms of numbers are exact or within their error bound.

They do not depend on the order and the division of the numbers.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.sketches import INTS, assert_same_numbers
from tensorflow_metadata.proto.v0 import statistics_pb2

from recordmill.statistics.number_sketch import NumberSketch
from recordmill.statistics.protobuf import _put_equal_widths

FLOATS = st.lists(st.floats(width=64), max_size=60)


def number_sketch(values: Any, dtype: Any, max_bins: int = 8192) -> NumberSketch:
    sketch = NumberSketch(np.dtype(dtype).kind in "iu", max_bins)
    sketch.add(np.array(values, dtype))
    return sketch


@given(FLOATS)
def test_sums_of_floats_are_exact(values: list[float]) -> None:
    sketch = number_sketch(values, np.float64)
    finite = [value for value in values if math.isfinite(value)]
    assert sketch.exact_sum == sum(map(Fraction, finite))
    assert Fraction(sketch.squares, 1 << 2148) == sum(Fraction(value) ** 2 for value in finite)
    assert (sketch.finite, sketch.nans) == (len(finite), sum(map(math.isnan, values)))
    assert (sketch.plus_infinities, sketch.minus_infinities) == (
        values.count(math.inf),
        values.count(-math.inf),
    )
    assert sketch.zeros == finite.count(0.0)
    assert (sketch.minimum, sketch.maximum) == (
        (min(finite), max(finite)) if finite else (None, None)
    )


def test_standard_deviation_is_finite_if_the_variance_overflows_or_underflows() -> None:
    largest = number_sketch([-1.5e308, 1.5e308], np.float64)
    assert (largest.variance, largest.standard_deviation) == (math.inf, 1.5e308)
    smallest = number_sketch([-1e-200, 1e-200], np.float64)
    assert (smallest.variance, smallest.standard_deviation) == (0, pytest.approx(1e-200))
    assert number_sketch([3.0, 3.0], np.float64).standard_deviation == 0
    assert math.isnan(number_sketch([], np.float64).standard_deviation)


@given(st.lists(st.floats(width=32), max_size=60))
def test_sketch_of_float32_equals_that_of_the_same_float64_values(values: list[float]) -> None:
    single, double = number_sketch(values, np.float32), number_sketch(values, np.float64)
    assert str(vars(single)) == str(vars(double))


def test_sums_of_very_many_large_float32_values_are_exact() -> None:
    value = float(np.nextafter(np.float32(2), np.float32(0)))  # all 24 bits are ones
    sketch = number_sketch(np.full(200_000, value), np.float32)
    assert (sketch.exact_sum, sketch.finite) == (200_000 * Fraction(value), 200_000)
    assert Fraction(sketch.squares, 1 << 2148) == 200_000 * Fraction(value) ** 2


@given(INTS)
def test_sums_of_integers_are_exact(values: list[int]) -> None:
    sketch = number_sketch(values, np.int64)
    assert (sketch.total, sketch.squares) == (sum(values), sum(value * value for value in values))
    assert (sketch.finite, sketch.zeros) == (len(values), values.count(0))
    assert (sketch.minimum, sketch.maximum) == (
        (min(values), max(values)) if values else (None, None)
    )


def test_uint64_above_int64_and_uint8_are_counted() -> None:
    values = [0, 5, 2**63, 2**64 - 1, 2**64 - 1]
    sketch = number_sketch(values, np.uint64)
    assert (sketch.total, sketch.minimum, sketch.maximum, sketch.finite) == (
        sum(values),
        0,
        2**64 - 1,
        5,
    )
    pixels = np.random.default_rng(0).integers(0, 256, 3000).astype(np.uint8)
    expected = number_sketch(pixels, np.int64)
    assert_same_numbers(number_sketch(pixels, np.uint8), expected)


def rank_error(values: Any, share: float, quantile: float) -> float:
    """Returns how far `quantile` is from the exact quantile, as a share of the values.

    0 means that `share` is one of its possible ranks.
    """
    share_below, share_up_to = np.mean(values < quantile), np.mean(values <= quantile)
    return float(max(share_below - share, share - share_up_to, 0))


def large_column(name: str) -> Any:
    """Returns a column with more distinct values than a sketch has bins.

    The columns resemble columns of real tables.
    """
    random, rows = np.random.default_rng(8), 200_000
    is_common = random.random(rows) < 0.5
    columns = {
        "years": random.integers(2010, 2015, rows),
        "dates": 1_600_000_000 + random.integers(0, 31_536_000, rows),
        "dates, some missing": np.where(
            random.random(rows) < 0.03, 0, 1_600_000_000 + random.integers(0, 10**7, rows)
        ),
        "latitudes": np.where(
            random.random(rows) < 0.02, 0.0, 40.7 + 0.05 * random.standard_normal(rows)
        ),
        "zip codes": random.integers(501, 99_951, rows),
        "money": np.where(
            random.random(rows) < 0.4, 0.0, np.round(random.lognormal(3, 1.5, rows), 2)
        ),
        "dates, some junk": np.where(
            random.random(rows) < 0.02,
            random.normal(0, 1e9, rows),
            1_600_000_000 + random.integers(0, 10**8, rows),
        ),
        "latitudes, some elsewhere": np.where(
            random.random(rows) < 0.01,
            random.uniform(-90, 90, rows),
            40.7 + 0.05 * random.standard_normal(rows),
        ),
        "codes of unequal frequency": 501 + random.zipf(1.3, rows) * 7 % 99_000,
        "all magnitudes": random.lognormal(0, 40, rows),
        "nanoseconds": 1_700_000_000_000_000_000 + random.integers(0, 86_400 * 10**9, rows),
        "one price": np.where(is_common, 19.99, np.round(random.lognormal(4, 1.5, rows), 2)),
        "zip codes of one town": np.where(
            is_common, random.integers(10_001, 10_283, rows), random.integers(501, 99_951, rows)
        ),
        "dates and junk": np.where(
            is_common, 1.6e9 + random.integers(0, 10**7, rows), random.lognormal(0, 40, rows)
        ),
    }
    return columns[name]


LARGE = ["years", "dates", "dates, some missing", "latitudes", "zip codes", "money", "nanoseconds"]


# Columns with half of their values in one bin.
IN_ONE_BIN = ["one price", "zip codes of one town", "dates and junk"]


@pytest.mark.parametrize(
    "name",
    [
        *LARGE,
        "dates, some junk",
        "latitudes, some elsewhere",
        "codes of unequal frequency",
        "all magnitudes",
        *IN_ONE_BIN,
    ],
)
def test_quantiles_are_within_the_documented_error(name: str) -> None:
    values = large_column(name)
    sketch = number_sketch(values, values.dtype)
    assert len(sketch.keys) <= 8192
    assert (sketch.quantile_error > 0) == (sketch.dropped_bits is not None)
    shares = [number / 100 for number in range(101)]
    assert (
        max(map(rank_error, [values] * 101, shares, sketch.quantiles(shares)))
        <= sketch.quantile_error
        < 0.6
    )
    assert (sketch.quantile_error > 0.005) == (name in IN_ONE_BIN)


@pytest.mark.parametrize("name", LARGE)
def test_histograms_of_large_numbers_in_a_narrow_range_are_right(name: str) -> None:
    values = large_column(name)
    sketch = number_sketch(values, values.dtype)
    histogram = statistics_pb2.Histogram()
    _put_equal_widths(histogram, sketch)
    edges = [histogram.buckets[0].low_value, *(bucket.high_value for bucket in histogram.buckets)]
    expected, _ = np.histogram(values.astype(np.float64), edges)
    counts = [bucket.sample_count for bucket in histogram.buckets]
    assert np.abs(np.array(counts) - expected).max() <= 0.005 * len(values)
    assert name != "money" or sketch.quantile(0.2) == 0


def test_quantiles_of_few_values_are_exact() -> None:
    values = np.random.default_rng(4).integers(-3000, 3000, 40_000)
    for scale, dtype in ((1, np.int64), (0.1, np.float64)):
        scaled = (values * scale).astype(dtype)
        sketch = number_sketch(scaled, dtype)
        assert sketch.quantile_error == 0
        for share in np.linspace(0, 1, 21).tolist():
            assert sketch.quantile(share) == np.quantile(scaled, share, method="inverted_cdf")


@given(FLOATS, st.integers(0, 60), st.integers(2, 40))
def test_bins_do_not_depend_on_division_or_merge_order(
    values: list[float], cut: int, bins: int
) -> None:
    expected, first, second = (
        number_sketch(part, np.float64, bins) for part in (values, values[:cut], values[cut:])
    )
    two_additions = number_sketch(values[cut:], np.float64, bins)
    two_additions.add(np.array(values[:cut]))
    second.merge(first)
    assert_same_numbers(expected, two_additions)
    assert_same_numbers(expected, second)
