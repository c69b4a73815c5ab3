"""Distances of distributions equal their definitions, and detect drift.

TensorFlow Data Validation computes the same distances.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow_metadata.proto.v0 import statistics_pb2

from recordmill.checks.comparison import (
    BucketHistogram,
    estimate_unseen_share,
    find_drift,
    find_skew,
    jensen_shannon_divergence,
    l_infinity_distance,
)
from recordmill.checks.rules import Rules, read_rules
from recordmill.checks.violations import Violation
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.statistics.dataset_sketch import DatasetSketch
from recordmill.statistics.dataset_statistics import DatasetStatistics

Buckets = Sequence[tuple[float, float, float]]


def oracle(histograms: Sequence[tuple[Buckets, float]]) -> float:
    """Returns the Jensen-Shannon divergence, bucket by bucket.

    It follows anomalies/metrics.cc of TensorFlow Data Validation.
    """
    finite = [
        [b for b in buckets if math.isfinite(b[0]) and math.isfinite(b[1])]
        for buckets, _ in histograms
    ]
    edges = sorted(
        {
            edge
            for buckets_of_one in finite
            for low, high, _ in buckets_of_one
            if low < high
            for edge in (low, high)
        }
    )
    points = sorted(
        {low for buckets_of_one in finite for low, high, _ in buckets_of_one if low == high}
    )
    masses: list[list[float]] = []
    for index, ((buckets, nans), finite_buckets) in enumerate(zip(histograms, finite, strict=True)):
        mass = []
        for low, high in itertools.pairwise(edges):
            parts = [
                n * (high - low) / (b - a)
                for a, b, n in finite_buckets
                if a < b and a <= low and high <= b
            ]
            mass.append(math.fsum(parts))
        mass += [math.fsum(n for a, b, n in finite_buckets if a == b == point) for point in points]
        infinite = math.fsum(
            n for a, b, n in buckets if not (math.isfinite(a) and math.isfinite(b))
        )
        masses.append([*mass, *((infinite, 0.0) if index == 0 else (0.0, infinite)), nans])
    (p, q) = ([value / math.fsum(mass) for value in mass] for mass in masses)
    terms = [
        x * math.log2(x / ((a + b) / 2)) for a, b in zip(p, q, strict=True) for x in (a, b) if x > 0
    ]
    return min(math.fsum(terms) / 2, 1.0)


def proto(buckets: Buckets, nans: float = 0) -> Any:
    message = statistics_pb2.Histogram(num_nan=int(nans))
    for low, high, count in buckets:
        message.buckets.add(low_value=low, high_value=high, sample_count=count)
    return message


def distance(*histograms: tuple[Buckets, float]) -> float | None:
    first, second = (BucketHistogram.from_proto(proto(*item)) for item in histograms)
    return jensen_shannon_divergence(first, second)


EDGES = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-1e9, 1e9, allow_subnormal=False),
    st.just(math.inf),
    st.just(-math.inf),
)


@st.composite
def histogram(draw: st.DrawFn) -> tuple[Buckets, float]:
    """Draws a histogram as builds write it.

    The edges ascend, and each bucket begins at the end of the one before it.
    """
    edges = sorted(draw(st.lists(EDGES, min_size=2, max_size=8)))
    counts = draw(st.lists(st.floats(0.5, 1e6), min_size=len(edges) - 1, max_size=len(edges) - 1))
    buckets = [
        (low, high, count) for low, high, count in zip(edges, edges[1:], counts, strict=False)
    ]
    return buckets, float(draw(st.integers(0, 5)))


@given(histogram(), histogram())
def test_distance_equals_the_published_algorithm(
    first: tuple[Buckets, float], second: tuple[Buckets, float]
) -> None:
    result = distance(first, second)
    assert result == pytest.approx(oracle([first, second]), abs=1e-9)
    assert distance(second, first) == pytest.approx(result, abs=1e-9)
    own_distance = distance(first, first)
    infinite = sum(count for low, high, count in first[0] if math.isinf(low) or math.isinf(high))
    assert own_distance is not None
    assert (own_distance < 1e-9) == (infinite == 0) or infinite < 1e-3


def sketch(rows: int, factor: int, shift: float) -> DatasetStatistics:
    """Returns statistics of columns that a formula determines."""
    i = np.arange(rows)
    x = ((i * factor) % 1009).astype("f8") ** 1.5 / 50 + shift
    x[i % 97 == 0] = np.nan
    x[i % 211 == 3] = 0.0
    y = (i * factor) % 23 + (i % 7 == 0) * int(shift * 4)
    part = (i * factor) % 100
    c = np.array(list("abcd"), object)[
        (part > 60).astype(int) + (part > 80) + (part > 80 + 5 * shift)
    ]
    batch = pa.RecordBatch.from_pydict(
        {
            "x": pa.array(x),
            "y": pa.array(y.astype("i8")),
            "c": pa.array(c.tolist(), pa.large_string()),
        }
    )
    schema = Schema(
        (
            Feature("x", "float64", required=True),
            Feature("y", "int64", required=True),
            Feature("c", "string", required=True),
        )
    )
    dataset_sketch = DatasetSketch(schema, ["train"])
    dataset_sketch.add(batch, np.arange(rows).astype("u8"))
    return DatasetStatistics.from_sketch(dataset_sketch)


# `drift_skew_info` of tfdv.validate_statistics(new, schema, previous_statistics=old), with
# TensorFlow Data Validation 1.16.1 (Python 3.11, tensorflow-cpu 2.16.2) and the two files of
# DatasetStatistics.to_bytes. By (feature, whether the comparator has source { type: QUANTILES }).
TFDV = {
    ("y", False): 0.04914141266110161,
    ("y", True): 0.06210391897722138,
}
TFDV_L_INFINITY = 0.12  # of feature c, with the comparator's infinity_norm
WIDE = [(0.0, 10.0, 50.0)]
LONG = [*WIDE, (10.0, math.inf, 5.0)]
# The distances that TensorFlow Data Validation computes for hand-made histograms.
TFDV_BUCKETS: Sequence[tuple[Buckets, Buckets, float]] = [
    (WIDE, [(3.0, 3.0, 50.0)], 1.0),
    ([(3.0, 3.0, 20.0), (3.0, 3.0, 30.0)], [(3.0, 3.0, 7.0)], 0.0),
    ([(3.0, 3.0, 20.0), (4.0, 4.0, 30.0)], [(3.0, 3.0, 7.0), (5.0, 5.0, 1.0)], 0.4278901644065944),
    (
        [(0.0, 0.0, 10.0), (0.0, 4.0, 20.0), (4.0, 4.0, 7.0), (4.0, 9.0, 3.0)],
        [(0.0, 3.0, 10.0), (3.0, 7.0, 20.0), (7.0, 7.0, 5.0)],
        0.4332413344222622,
    ),
    (LONG, LONG, 0.09090909090909091),
    (LONG, WIDE, 0.04701649434226942),
]


def test_distance_equals_that_of_tensorflow_data_validation() -> None:
    """The distance equals that of TensorFlow Data Validation, except for NaN.

    If the edges of two histograms differ, as in this test, TensorFlow Data Validation ignores NaN.
    Otherwise, it treats NaN as different values.
    """
    old_features, new_features = sketch(5000, 7, 0.0)["train"], sketch(3000, 11, 2.5)["train"]
    for (name, uses_quantiles), value in TFDV.items():
        pair = [
            replace(
                BucketHistogram.from_proto(
                    features[name].quantile_histogram
                    if uses_quantiles
                    else features[name].value_histogram
                ),
                nan_count=0.0,
            )
            for features in (new_features, old_features)
        ]
        assert jensen_shannon_divergence(*pair) == pytest.approx(value, rel=1e-9)
    result = l_infinity_distance(
        new_features["c"].top_values, old_features["c"].top_values, (3000, 5000)
    )
    assert result is not None
    assert result[1] == pytest.approx(TFDV_L_INFINITY, rel=1e-9)
    for first, second, value in TFDV_BUCKETS:
        assert distance((first, 0), (second, 0)) == pytest.approx(value, abs=1e-12)
    assert distance(([], 0), (WIDE, 0)) is None
    assert distance(([], 3), ([], 4)) == 0


def test_l_infinity_distance_names_the_value_that_differs_most() -> None:
    assert l_infinity_distance({"a": 3, "b": 1}, {"a": 2, "b": 1, "c": 1}, (4, 4)) == ("a", 0.25)
    assert l_infinity_distance({}, {"a": 1}, (5, 5), (0.5, 0.0)) == ("a", 0.0)
    assert l_infinity_distance({}, {}, (5, 5)) is None


def test_share_of_unseen_values_is_estimated_from_values_that_occur_once() -> None:
    random = np.random.default_rng(1)
    names = random.zipf(1.5, (2, 4000))
    _, counts = np.unique(names[0], return_counts=True)
    unseen_share = float(np.mean(~np.isin(names[1], names[0])))
    assert estimate_unseen_share(counts.tolist()) == pytest.approx(unseen_share, abs=0.03)


def test_divergence_does_not_depend_on_the_scale_of_the_numbers() -> None:
    def scaled_histogram(scale: float, *counts: float) -> BucketHistogram:
        edges = np.array([[-1.0, 0.75], [0.75, 0.8], [0.8, 1.0]]) * scale
        return BucketHistogram(edges[: len(counts)], np.array(counts), {})

    largest = float(np.finfo(np.float64).max)
    with np.errstate(all="raise"):
        divergences = [
            jensen_shannon_divergence(
                scaled_histogram(scale, 5, 1, 1), scaled_histogram(scale, 1, 8)
            )
            for scale in (1.0, largest)
        ]
    assert divergences[0] is not None
    assert divergences[0] > 0.2
    assert divergences[1] == pytest.approx(divergences[0])


Values = dict[str, npt.NDArray[Any]]


def values(rows: int, seed: int) -> Values:
    """Returns columns with many different distributions.

    They have heavy tails, zeros, missing values, few and many integers, times, and frequent and
    rare texts.
    """
    random = np.random.default_rng(seed)
    return {
        "normal": random.normal(3, 2, rows),
        "income": random.lognormal(8, 2.5, rows),
        "cauchy": random.standard_cauchy(rows).astype("f4"),
        "rain": np.where(random.random(rows) < 0.7, 0.0, random.exponential(5, rows)),
        "holes": np.where(random.random(rows) < 0.3, np.nan, random.random(rows)),
        "hour": random.integers(0, 24, rows),
        "digit": random.integers(0, 10, rows),
        "count": random.poisson(300, rows),
        "id": random.integers(10**6, 2 * 10**6, rows),
        "time": 1_700_000_000_000_000_000 + random.integers(0, 10**15, rows),
        "constant": np.full(rows, 1_000_000),
        "carrier": random.choice(
            np.array(["UA", "B6", "EV", "rare"]), rows, p=[0.6, 0.3, 0.09, 0.01]
        ),
        "name": np.array([f"name {n}" for n in random.integers(0, 10**6, rows)]),
        "word": np.array([f"w{n}" for n in np.minimum(random.zipf(1.3, rows), 10**9)]),
    }


def statistics(splits: dict[str, Values]) -> tuple[DatasetStatistics, Schema]:
    first = {name: pa.array(column) for name, column in next(iter(splits.values())).items()}
    schema = Schema(tuple(map(_feature, first.items())))
    sketch = DatasetSketch(schema, list(splits))
    for number, columns in enumerate(splits.values()):
        arrays = {
            name: pa.array(column, pa.large_string() if column.dtype.kind == "U" else None)
            for name, column in columns.items()
        }
        batch = pa.RecordBatch.from_pydict(arrays)
        sketch.add(batch, np.arange(batch.num_rows).astype("u8"), np.full(batch.num_rows, number))
    return DatasetStatistics.from_sketch(sketch), schema


def _feature(item: tuple[str, pa.Array]) -> Feature:
    dtype = {"double": "float64", "float": "float32", "int64": "int64"}.get(
        str(item[1].type), "string"
    )
    return Feature(item[0], dtype, required=True)


def detect_drift(first: Values, second: Values, rules: Rules | None = None) -> list[Violation]:
    (first_statistics, schema), (second_statistics, _) = (
        statistics({"train": first}),
        statistics({"train": second}),
    )
    return list(find_drift(first_statistics, second_statistics, schema, rules or Rules(), "old"))


@pytest.mark.parametrize("rows", [(40, 40), (100, 1500), (3000, 3000), (20_000, 9000)])
def test_two_samples_of_one_distribution_pass(rows: tuple[int, int]) -> None:
    for seed in range(1 if max(rows) > 5000 else 4):
        first, second = values(rows[0], 10 + seed), values(rows[1], 100 + seed)
        assert list(map(str, detect_drift(first, second))) == []
        both_statistics, schema = statistics({"train": first, "test": second})
        assert list(map(str, find_skew(both_statistics, schema, Rules()))) == []


def test_small_samples_of_values_raise_no_false_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    # Data sets with 1,000 or more columns have sketches of this size.
    monkeypatch.setattr("recordmill.statistics.dataset_sketch._MAX_TEXTS_IN_SKETCH", 64)

    def words(seed: int) -> Values:
        random = np.random.default_rng(seed)
        rare = random.integers(0, 10**6, (40, 3000))
        return {
            f"x{index}": np.where(random.random(3000) < 0.5, "frequent", [f"w{n}" for n in numbers])
            for index, numbers in enumerate(rare)
        }

    first, second = words(1), words(2)
    sketched, _ = statistics({"train": first})
    assert sketched["train"]["x0"].sampled == 32
    assert list(map(str, detect_drift(first, second))) == []


def awkward(rows: int, seed: int) -> Values:
    """Returns columns that once raised false alarms for clean splits.

    They have many rare texts, zeros of varying frequency, or few values.
    """
    random = np.random.default_rng(seed)
    names = np.array([f"name {number}" for number in random.integers(0, 10**9, rows)])
    return {
        "owner": np.where(random.random(rows) < 0.5, "Unknown", names),
        "toll": np.where(random.random(rows) < 0.7, 0.0, random.lognormal(1, 1, rows)),
        "rain": np.where(random.random(rows) < 0.9, 0.0, random.random(rows)),
        "rating": random.integers(1, 6, rows).astype(np.float64),
        "tract": np.where(
            random.random(rows) < 0.45,
            17031.5,
            17000 + np.round(random.lognormal(3, 0.7, rows)) % 180,
        ),
        "infinite": np.where(random.random(rows) < 0.1, np.inf, random.random(rows)),
    }


@pytest.mark.parametrize("seed", range(10))
def test_clean_splits_of_awkward_columns_pass(seed: int) -> None:
    first, second = awkward(6000, seed), awkward(2000 + 500 * seed, seed + 50)
    assert list(map(str, detect_drift(first, second))) == []
    assert list(map(str, detect_drift(second, first))) == []


def test_drift_of_infinities_and_of_frequent_texts_is_found() -> None:
    first, second = awkward(6000, 1), awkward(6000, 2)
    random_numbers = np.random.default_rng(3).random(6000)
    changed = {
        "owner": np.where(random_numbers < 0.5, "Unknown", second["owner"]),
        "toll": np.where(random_numbers < 0.8, 0.0, second["toll"] + 1),
        "rain": np.where(random_numbers < 0.5, 1.0, second["rain"]),
        "rating": np.where(random_numbers < 0.3, 5.0, second["rating"]),
        "tract": second["tract"] + 60.0,
        "infinite": np.full(6000, -np.inf),
    }
    assert {violation.feature for violation in detect_drift(changed, first)} == set(changed)
    assert {violation.feature for violation in detect_drift(first, changed)} == set(changed)


@pytest.mark.parametrize("dtype", ["int64", "float32", "string"])
def test_drift_of_lists_that_become_empty_is_found(dtype: str) -> None:
    schema, items = (
        Schema((Feature("x", dtype, (None,)),)),
        np.arange(3).astype(dtype if dtype != "string" else "U"),
    )
    statistics_by_case = []
    for values in (items.tolist(), []):
        sketch = DatasetSketch(schema, ["train"])
        batch = pa.RecordBatch.from_pylist([{"x": values}] * 500, to_arrow(schema))
        sketch.add(batch, np.arange(500).astype("u8"))
        statistics_by_case.append(DatasetStatistics.from_sketch(sketch))
    for first, second in (
        (statistics_by_case[0], statistics_by_case[1]),
        (statistics_by_case[1], statistics_by_case[0]),
    ):
        (violation,) = find_drift(first, second, schema, Rules(), "old")
        assert "values in its lists" in str(violation)


@pytest.mark.parametrize("dtype", ["int64", "string"])
def test_drift_of_list_lengths_is_found_and_equal_lengths_pass(dtype: str) -> None:
    schema, statistics_by_case = Schema((Feature("x", dtype, (None,)),)), []
    for mean, seed in ((2, 1), (2, 2), (8, 3)):
        lengths = np.random.default_rng(seed).poisson(mean, 900)
        rows = [{"x": [1 if dtype == "int64" else "a"] * length} for length in lengths.tolist()]
        sketch = DatasetSketch(schema, ["train"])
        sketch.add(pa.RecordBatch.from_pylist(rows, to_arrow(schema)), np.arange(900).astype("u8"))
        statistics_by_case.append(DatasetStatistics.from_sketch(sketch))
    assert (
        list(find_drift(statistics_by_case[0], statistics_by_case[1], schema, Rules(), "old")) == []
    )
    for first, second in (
        (statistics_by_case[0], statistics_by_case[2]),
        (statistics_by_case[2], statistics_by_case[0]),
    ):
        (violation,) = find_drift(first, second, schema, Rules(), "old")
        assert "the lengths of lists are not distributed as in" in str(violation)


def test_drift_of_text_sizes_is_found_if_not_all_values_are_kept() -> None:
    random = np.random.default_rng(1)
    first, second, longer = (
        {"x": random.integers(10**8, 10**9, 2000).astype("U")} for _ in range(3)
    )
    longer["x"] = np.char.add(longer["x"], "suffix")
    assert detect_drift(first, second) == []
    (violation,) = detect_drift(first, longer)
    assert "the sizes in bytes are not distributed as in split 'train' of old" in violation.what


def test_every_planted_change_is_found() -> None:
    first, second = values(4000, 1), values(4000, 2)
    changed = {
        **second,
        "normal": second["normal"] + 3,
        "income": second["income"] * 20,
        "rain": np.where(second["rain"] > 0, second["rain"], np.arange(4000) % 2),
        "holes": np.where(np.arange(4000) % 10 < 8, np.nan, second["holes"]),
        "digit": np.where(second["digit"] < 5, 7, second["digit"]),
        "time": second["time"] + 10**15,
        "carrier": np.where(np.arange(4000) % 5 == 0, "XX", second["carrier"]),
    }
    violations = detect_drift(changed, first)
    assert {violation.feature for violation in violations} == {
        "normal",
        "income",
        "rain",
        "holes",
        "digit",
        "time",
        "carrier",
    }
    for violation in violations:
        assert violation.check == "drift"
        assert violation.split == "train"
        assert isinstance(violation.figure, float)
        assert isinstance(violation.threshold, float)
        assert violation.figure > violation.threshold
        assert "split 'train' of old" in violation.what
    assert any("'XX' among them, do not occur in" in violation.what for violation in violations)


def test_custom_thresholds_are_used_exactly() -> None:
    first, second = values(500, 1), values(500, 2)
    strict = read_rules(
        {"drift": {"jensen_shannon": 0, "l_infinity": 0}, "features": {"normal": {"drift": 0.9}}}
    )
    assert {"income", "carrier", "id"} <= {
        violation.feature for violation in detect_drift(first, second, strict)
    }
    assert "normal" not in {violation.feature for violation in detect_drift(first, second, strict)}
    shifted = {**second, "normal": second["normal"] + 9, "carrier": np.full(500, "UA")}
    loose = read_rules(
        {"drift": {"l_infinity": None, "new_values": None}, "features": {"normal": {"drift": None}}}
    )
    assert detect_drift(first, shifted, loose) == []


def test_drift_of_missing_values_and_of_types_is_found() -> None:
    schema = Schema((Feature("x", "float64"),))
    protos = []
    for share in (0.1, 0.4):
        sketch = DatasetSketch(schema, ["train"])
        column = pa.array(np.arange(1000.0), mask=np.arange(1000) % 10 < share * 10)
        sketch.add(pa.RecordBatch.from_pydict({"x": column}), np.arange(1000).astype("u8"))
        protos.append(DatasetStatistics.from_sketch(sketch))
    (violation,) = find_drift(protos[1], protos[0], schema, Rules(), "old")
    assert "is missing in 40 % of the records, and in split 'train' of old in 10 %" in str(
        violation
    )
    text, _ = statistics({"train": {"x": np.array(["a", "b"])}})
    (violation,) = find_drift(protos[0], text, schema, Rules(), "old")
    assert "is of type FLOAT, and in split 'train' of old STRING" in str(violation)


def test_split_is_compared_with_its_namesake_or_with_the_training_split() -> None:
    first, second = values(900, 1), values(900, 2)
    shifted = {**second, "normal": second["normal"] + 30}
    new_statistics, schema = statistics({"train": first, "test": shifted})
    both_splits, _ = statistics({"train": second, "test": values(900, 3)})
    assert [
        (violation.split, violation.feature)
        for violation in find_drift(new_statistics, both_splits, schema, Rules(), "o")
    ] == [("test", "normal")]
    single_split, _ = statistics({"": second})
    assert [
        (violation.split, violation.feature)
        for violation in find_drift(new_statistics, single_split, schema, Rules(), "o")
    ] == [("test", "normal")]
    other_splits, _ = statistics({"validation": shifted, "train": second})
    (violation_of_test,) = find_drift(new_statistics, other_splits, schema, Rules(), "o")
    assert (violation_of_test.split, violation_of_test.feature) == ("test", "normal")
    assert "as in split 'train' of o" in violation_of_test.what
    assert [
        (violation.check, violation.split)
        for violation in find_skew(new_statistics, schema, Rules())
    ] == [("skew", "test")]
    assert (
        list(find_drift(new_statistics, DatasetStatistics.from_bytes(b""), schema, Rules(), "o"))
        == []
    )


def element_statistics(vectors: npt.NDArray[np.float32]) -> tuple[DatasetStatistics, Schema]:
    schema = Schema((Feature("action", "float32", (vectors.shape[1],), required=True),))
    sketch = DatasetSketch(schema, ["train"])
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    keys = np.arange(len(vectors)).astype("u8")
    sketch.add(pa.RecordBatch.from_arrays([column], ["action"]), keys)
    return DatasetStatistics.from_sketch(sketch), schema


def test_drift_of_one_element_is_found_by_its_number() -> None:
    random = np.random.default_rng(1)
    base, schema = element_statistics(random.normal(size=(3000, 14)).astype("f4"))
    vectors = random.normal(size=(3000, 14)).astype("f4")
    vectors[:, 5] += 1
    vectors[:, 6] -= 1  # the mean of all numbers together does not change
    statistics, _ = element_statistics(vectors)
    (violation,) = find_drift(statistics, base, schema, Rules(), "old")
    assert "the mean of element [5]" in str(violation) or "the mean of element [6]" in str(
        violation
    )
    assert "standard deviations away" in str(violation)


@pytest.mark.parametrize("seed", range(3))
def test_elements_of_one_distribution_do_not_drift(seed: int) -> None:
    random = np.random.default_rng(seed)
    for rows in (50, 2000):
        samples = [
            np.concatenate(
                [
                    random.standard_cauchy(size=(rows, 5)),
                    random.random((rows, 5)) < 0.01,  # rare events
                    np.zeros((rows, 4)),
                ],
                axis=1,
            ).astype("f4")
            for _ in range(2)
        ]
        (statistics, schema), (base, _) = map(element_statistics, samples)
        assert list(find_drift(statistics, base, schema, Rules(), "old")) == []
