"""Distances of distributions: the published algorithm, and what TensorFlow Data Validation itself says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow_metadata.proto.v0 import statistics_pb2

from recordmill.checks.distance import (
    BucketHistogram,
    divergence_allowance,
    jensen_shannon,
    l_infinity,
    share_allowance,
    unseen_share,
)
from recordmill.schemas.feature import Feature, Schema
from recordmill.statistics.dataset_sketch import DatasetSketch
from recordmill.statistics.dataset_statistics import DatasetStatistics

Buckets = Sequence[tuple[float, float, float]]


def oracle(histograms: Sequence[tuple[Buckets, float]]) -> float:
    """Jensen-Shannon after anomalies/metrics.cc of TensorFlow Data Validation, bucket by bucket."""
    finite = [[b for b in buckets if math.isfinite(b[0]) and math.isfinite(b[1])] for buckets, _ in histograms]
    edges = sorted({edge for some in finite for low, high, _ in some if low < high for edge in (low, high)})
    points = sorted({low for some in finite for low, high, _ in some if low == high})
    masses: list[list[float]] = []
    for at, ((buckets, nans), known) in enumerate(zip(histograms, finite, strict=True)):
        mass = []
        for low, high in itertools.pairwise(edges):
            parts = [n * (high - low) / (b - a) for a, b, n in known if a < b and a <= low and high <= b]
            mass.append(math.fsum(parts))
        mass += [math.fsum(n for a, b, n in known if a == b == point) for point in points]
        infinite = math.fsum(n for a, b, n in buckets if not (math.isfinite(a) and math.isfinite(b)))
        masses.append([*mass, *((infinite, 0.0) if at == 0 else (0.0, infinite)), nans])
    (p, q) = ([each / math.fsum(mass) for each in mass] for mass in masses)
    terms = [x * math.log2(x / ((a + b) / 2)) for a, b in zip(p, q, strict=True) for x in (a, b) if x > 0]
    return min(math.fsum(terms) / 2, 1.0)


def proto(buckets: Buckets, nans: float = 0) -> Any:
    found = statistics_pb2.Histogram(num_nan=int(nans))
    for low, high, count in buckets:
        found.buckets.add(low_value=low, high_value=high, sample_count=count)
    return found


def distance(*histograms: tuple[Buckets, float]) -> float | None:
    one, other = (BucketHistogram.of_proto(proto(*each)) for each in histograms)
    return jensen_shannon(one, other)


EDGES = st.one_of(
    st.integers(-3, 3).map(float), st.floats(-1e9, 1e9, allow_subnormal=False), st.just(math.inf), st.just(-math.inf)
)


@st.composite
def histogram(draw: st.DrawFn) -> tuple[Buckets, float]:
    """As builds write them: edges ascend, and each bucket begins where the one before it ends."""
    edges = sorted(draw(st.lists(EDGES, min_size=2, max_size=8)))
    counts = draw(st.lists(st.floats(0.5, 1e6), min_size=len(edges) - 1, max_size=len(edges) - 1))
    buckets = [(low, high, count) for low, high, count in zip(edges, edges[1:], counts, strict=False)]
    return buckets, float(draw(st.integers(0, 5)))


@given(histogram(), histogram())
def test_it_is_the_published_algorithm(one: tuple[Buckets, float], other: tuple[Buckets, float]) -> None:
    found = distance(one, other)
    assert found == pytest.approx(oracle([one, other]), abs=1e-9)
    assert distance(other, one) == pytest.approx(found, abs=1e-9)
    same = distance(one, one)
    infinite = sum(count for low, high, count in one[0] if math.isinf(low) or math.isinf(high))
    assert same is not None
    assert (same < 1e-9) == (infinite == 0) or infinite < 1e-3


def test_points_nan_and_infinite_buckets_stand_apart() -> None:
    wide = [(0.0, 10.0, 50.0)]
    assert distance((wide, 0), (wide, 0)) == 0
    assert distance((wide, 0), ([(0.0, 4.0, 20.0), (4.0, 10.0, 30.0)], 0)) == pytest.approx(0)
    assert distance(([(3.0, 3.0, 50.0)], 0), (wide, 0)) == 1  # a point is not what is spread around it
    assert distance(([(3.0, 3.0, 20.0), (3.0, 3.0, 30.0)], 0), ([(3.0, 3.0, 7.0)], 0)) == 0
    assert distance((wide, 50), (wide, 0)) == pytest.approx(oracle([(wide, 50), (wide, 0)]))
    assert distance(([(0.0, math.inf, 5.0)], 0), ([(0.0, math.inf, 5.0)], 0)) == 1
    assert distance(([], 0), (wide, 0)) is None
    assert distance(([], 3), ([], 4)) == 0


def sketch(rows: int, factor: int, shift: float) -> DatasetStatistics:
    """Statistics of a formula's values."""
    i = np.arange(rows)
    x = ((i * factor) % 1009).astype("f8") ** 1.5 / 50 + shift
    x[i % 97 == 0] = np.nan
    x[i % 211 == 3] = 0.0
    y = (i * factor) % 23 + (i % 7 == 0) * int(shift * 4)
    part = (i * factor) % 100
    c = np.array(list("abcd"), object)[(part > 60).astype(int) + (part > 80) + (part > 80 + 5 * shift)]
    batch = pa.RecordBatch.from_pydict(
        {"x": pa.array(x), "y": pa.array(y.astype("i8")), "c": pa.array(c.tolist(), pa.large_string())}
    )
    schema = Schema(
        (
            Feature("x", "float64", required=True),
            Feature("y", "int64", required=True),
            Feature("c", "string", required=True),
        )
    )
    found = DatasetSketch(schema, ["train"])
    found.add(batch, np.arange(rows).astype("u8"))
    return DatasetStatistics.of_sketch(found)


# `drift_skew_info` of tfdv.validate_statistics(two, schema, previous_statistics=one) with TensorFlow Data Validation
# 1.16.1 (Python 3.11, tensorflow-cpu 2.16.2), which loaded the two files that DatasetStatistics.to_bytes gives;
# `standard` by default, `quantiles` with source { type: QUANTILES } in the comparator
TFDV = {
    ("y", False): 0.04914141266110161,
    ("y", True): 0.06210391897722138,
}  # fmt: skip
TFDV_L_INFINITY = 0.12  # of c, by the comparator's infinity_norm
WIDE = [(0.0, 10.0, 50.0)]
LONG = [*WIDE, (10.0, math.inf, 5.0)]
TFDV_BUCKETS: Sequence[tuple[Buckets, Buckets, float]] = [  # the same of histograms made by hand
    (WIDE, [(3.0, 3.0, 50.0)], 1.0),
    ([(3.0, 3.0, 20.0), (3.0, 3.0, 30.0)], [(3.0, 3.0, 7.0)], 0.0),
    ([(3.0, 3.0, 20.0), (4.0, 4.0, 30.0)], [(3.0, 3.0, 7.0), (5.0, 5.0, 1.0)], 0.4278901644065944),
    ([(0.0, 0.0, 10.0), (0.0, 4.0, 20.0), (4.0, 4.0, 7.0), (4.0, 9.0, 3.0)],
     [(0.0, 3.0, 10.0), (3.0, 7.0, 20.0), (7.0, 7.0, 5.0)], 0.4332413344222622),
    (LONG, LONG, 0.09090909090909091),
    (LONG, WIDE, 0.04701649434226942),
]  # fmt: skip
# of x, of which earlier statistics had these histograms: edges and counts of both, of equal widths and of quantiles
TFDV_OF_X: Sequence[tuple[list[list[float]], list[list[float]], float]] = [
    ([
        [0.0, 64.25601571727458, 128.51203143454916, 192.76804715182374, 257.0240628690983, 321.2800785863729,
         385.5360943036475, 449.79211002092205, 514.0481257381966, 578.3041414554712, 642.5601571727458],
        [0.0, 64.00601571727458, 128.01203143454916, 192.01804715182374, 256.0240628690983, 320.0300785863729,
         384.0360943036475, 448.04211002092205, 512.0481257381966, 576.0541414554712, 640.0601571727458],
    ], [
        [643.0, 379.07218860729495, 317.5360943036476, 285.4639056963524, 259.60828291094253, 242.92781139270483,
         224.14437721459035, 214.36765421995915, 205.79211002092188, 197.0875756335863],
        [1098.0, 625.1203143454916, 526.0601571727459, 472.9398428272543, 429.180471518237, 404.87968565450865,
         368.03007858637284, 354.9819528481762, 338.078204324569, 330.72929272264446],
    ], 0.001378583392457273),
    ([
        [0.0, 21.03125, 57.4375, 104.875, 160.75, 224.75, 294.5, 372.5, 456.5, 547.0, 642.5601571727458],
        [0.0, 18.53125, 54.4375, 101.875, 158.25, 221.75, 292.5, 368.5, 454.5, 545.0, 640.0601571727458],
    ], [
        [296.9] * 10,
        [494.8] * 10,
    ], 0.0022376906961378788),
]  # fmt: skip


def test_it_is_what_tensorflow_data_validation_says_of_our_statistics() -> None:
    """But for NaN, which it leaves out where the edges of two histograms differ, as here, and else takes for unlike."""
    one, two = sketch(5000, 7, 0.0)["train"], sketch(3000, 11, 2.5)["train"]
    for (name, of_quantiles), value in TFDV.items():
        pair = [replace(BucketHistogram.of_proto(each[name].histogram(of_quantiles)), nans=0.0) for each in (two, one)]
        assert jensen_shannon(*pair) == pytest.approx(value, rel=1e-9)
    found = l_infinity(two["c"].top_values, one["c"].top_values, (3000, 5000))
    assert found is not None
    assert found[1] == pytest.approx(TFDV_L_INFINITY, rel=1e-9)
    for edges, counts, value in TFDV_OF_X:
        first, second = (list(zip(at, at[1:], each, strict=False)) for at, each in zip(edges, counts, strict=True))
        assert distance((first, 0), (second, 0)) == pytest.approx(value, rel=1e-9)
    for first, second, value in TFDV_BUCKETS:
        assert distance((first, 0), (second, 0)) == pytest.approx(value, abs=1e-12)


def test_the_value_whose_shares_differ_most_is_named() -> None:
    assert l_infinity({"a": 3, "b": 1}, {"a": 2, "b": 1, "c": 1}, (4, 4)) == ("a", 0.25)
    assert l_infinity({}, {"a": 1}, (5, 5), (0.5, 0.0)) == ("a", 0.0)
    assert l_infinity({}, {}, (5, 5)) is None


def test_chance_stays_within_what_is_allowed() -> None:
    """Figures of samples of one distribution; the allowances are for one in a million."""
    random = np.random.default_rng(3)
    for sizes in ((60, 400), (3000, 3000)):
        for shares in (np.full(10, 0.1), np.array([0.9, 0.05, 0.05])):
            most, widest = 0.0, 0.0
            for _ in range(200):
                first, second = (random.multinomial(size, shares).astype(float) for size in sizes)
                gap = np.abs(first / sizes[0] - second / sizes[1]).max()
                rows = [[(float(at), at + 1.0, count) for at, count in enumerate(each)] for each in (first, second)]
                most, widest = max(most, distance((rows[0], 0), (rows[1], 0)) or 0.0), max(widest, gap)
            assert 0.1 * divergence_allowance(sizes, 10) < most < divergence_allowance(sizes, 10)
            assert 0.1 * share_allowance(sizes, 10) < widest < share_allowance(sizes, 10)


def test_what_a_further_sample_has_new_is_told_by_what_stands_there_once() -> None:
    random = np.random.default_rng(1)
    names = random.zipf(1.5, (2, 4000))
    _, counts = np.unique(names[0], return_counts=True)
    new = float(np.mean(~np.isin(names[1], names[0])))
    assert unseen_share(counts.tolist()) == pytest.approx(new, abs=0.03)


def test_the_largest_numbers_are_spread_as_others_are() -> None:
    def of(scale: float, *counts: float) -> BucketHistogram:
        edges = np.array([[-1.0, 0.75], [0.75, 0.8], [0.8, 1.0]]) * scale
        return BucketHistogram(edges[: len(counts)], np.array(counts), {})

    largest = float(np.finfo(np.float64).max)
    with np.errstate(all="raise"):
        found = [jensen_shannon(of(scale, 5, 1, 1), of(scale, 1, 8)) for scale in (1.0, largest)]
    assert found[0] is not None
    assert found[0] > 0.2
    assert found[1] == pytest.approx(found[0])
