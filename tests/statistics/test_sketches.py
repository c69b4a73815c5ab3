"""Sketches agree with NumPy and exact arithmetic, and merge to the same bytes in any order and
division.
"""

import itertools
import math
import pickle
import tracemalloc
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow_metadata.proto.v0 import statistics_pb2

from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.statistics.dataset_sketch import (
    MAX_SKETCHED_COLUMNS,
    SKETCH_BYTES,
    DatasetSketch,
    max_values_per_column,
)
from recordmill.statistics.number_sketch import NumberSketch
from recordmill.statistics.protobuf import _put_equal_widths
from recordmill.statistics.value_sketch import ValueSketch, hash_numbers, hash_texts, unhash_numbers

INTS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-600, 600), max_size=60)
# bytes of memory: of a sketch without values, and of each text and number that one keeps
SKETCH_MEMORY, SKETCH_TEXT_MEMORY, SKETCH_NUMBER_MEMORY = 5_000, 800, 120
SKETCH_FILE, SKETCH_TEXT_FILE = (
    2_000,
    240,
)  # the same of what workers share, for features that are texts
FLOATS = st.lists(st.floats(width=64), max_size=60)
SCHEMA = Schema(
    (
        Feature("x", "float32"),
        Feature("i", "int64", classes=tuple("abcdefg")),
        Feature("s", "string"),
        Feature("words", "string", (None,)),
        Feature("t", "float64", (3,)),
        Feature("pixels", "uint8", (2, 2)),
        Feature("ragged", "float64", (None, None)),
        Feature("ids", "int64", (None,)),
        Feature("flag", "bool"),
        Feature("blob", "bytes"),
    ),
    label="i",
)


def most_memory(features: int) -> int:
    """Bytes that sketches of so many features take at most."""
    texts, numbers = max_values_per_column(features, True), max_values_per_column(features, False)
    return features * (
        SKETCH_MEMORY + max(texts * SKETCH_TEXT_MEMORY, numbers * SKETCH_NUMBER_MEMORY)
    )


def number_sketch(values: Any, dtype: Any, most_bins: int = 8192) -> NumberSketch:
    sketch = NumberSketch(np.dtype(dtype).kind in "iu", most_bins)
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
    same = number_sketch(pixels, np.int64)
    assert_same_numbers(number_sketch(pixels, np.uint8), same)


def assert_same_numbers(one: NumberSketch, other: NumberSketch) -> None:
    for name, value in vars(one).items():
        assert np.array_equal(value, getattr(other, name)), name


def rank_error(values: Any, share: float, found: float) -> float:
    """How far the rank of a quantile is from its share, of all values."""
    below, upto = np.mean(values < found), np.mean(values <= found)
    return float(max(below - share, share - upto, 0))


def large_column(name: str) -> Any:
    """Values of more kinds than a sketch has bins, of the sort that columns of real tables have."""
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


IN_ONE_BIN = ["one price", "zip codes of one town", "dates and junk"]  # much of them


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
def test_quantiles_are_within_the_stated_error(name: str) -> None:
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
    true, _ = np.histogram(values.astype(np.float64), edges)
    found = [bucket.sample_count for bucket in histogram.buckets]
    assert np.abs(np.array(found) - true).max() <= 0.005 * len(values)
    assert name != "money" or sketch.quantile(0.2) == 0


def test_quantiles_of_few_values_are_exact() -> None:
    values = np.random.default_rng(4).integers(-3000, 3000, 40_000)
    for scale, dtype in ((1, np.int64), (0.1, np.float64)):
        some = (values * scale).astype(dtype)
        sketch = number_sketch(some, dtype)
        assert sketch.quantile_error == 0
        for share in np.linspace(0, 1, 21).tolist():
            assert sketch.quantile(share) == np.quantile(some, share, method="inverted_cdf")


@given(FLOATS, st.integers(0, 60), st.integers(2, 40))
def test_bins_do_not_depend_on_division_or_merge_order(
    values: list[float], at: int, bins: int
) -> None:
    whole, one, other = (
        number_sketch(some, np.float64, bins) for some in (values, values[:at], values[at:])
    )
    both = number_sketch(values[at:], np.float64, bins)
    both.add(np.array(values[:at]))
    other.merge(one)
    assert_same_numbers(whole, both)
    assert_same_numbers(whole, other)


@given(INTS)
def test_hash_of_a_number_is_invertible(values: list[int]) -> None:
    hashes = hash_numbers(np.array(values, np.int64))
    assert unhash_numbers(hashes).tolist() == values


def _hashes(texts: list[bytes]) -> list[int]:
    ends = np.cumsum([len(text) for text in texts])
    data = np.frombuffer(b"".join(texts) or b"\0", np.uint8)
    return hash_texts(data, np.concatenate([[0], ends[:-1]]), ends).tolist()


def test_text_hashes_differ_for_each_flipped_bit_and_equal_the_pinned_ones() -> None:
    texts = [bytes(range(size)) for size in range(70)]
    flipped = [
        bytes([*text[:at], text[at] ^ (1 << bit), *text[at + 1 :]])
        for text in texts
        for at in range(len(text))
        for bit in range(8)
    ]
    every = {*texts, *flipped}
    assert len(set(_hashes(sorted(every)))) == len(every)
    assert _hashes([b"", b"a", b"train", b"sixteen letters.", b"seventeen letters"]) == PINNED


PINNED = [
    12794620562993754531,
    15955319866196376629,
    10941426773787512755,
    9926879065517379603,
    16228828315313090698,
]


def test_distinct_count_is_exact_up_to_the_limit_and_estimated_above() -> None:
    for count in (0, 1, 300, 4096, 4097, 200_000):
        sketch = ValueSketch(4096)
        hashes = hash_numbers(np.arange(count) * 7919)
        for some in np.array_split(hashes, 5):
            sketch.add(np.ascontiguousarray(some))
        assert sketch.is_complete == (count <= 4096)
        assert abs(sketch.distinct() - count) <= (0 if sketch.is_complete else 4 * count / 64)
        assert len(sketch.smallest()[0]) == min(count, 4096)


@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 40), st.integers(0, 200))
def test_counts_of_kept_values_are_exact(values: list[int], most: int, at: int) -> None:
    hashes = hash_numbers(np.array(values, np.int64))
    whole, one, other = ValueSketch(most), ValueSketch(most), ValueSketch(most)
    for sketch, some in ((whole, hashes), (one, hashes[:at]), (other, hashes[at:])):
        sketch.add(np.ascontiguousarray(some))
    one.merge(other)
    expected = Counter(hashes.tolist())
    for sketch in (whole, one):
        kept, counts = sketch.smallest()
        assert kept.tolist() == sorted(expected)[:most]
        assert counts.tolist() == [expected[each] for each in kept.tolist()]
        assert sketch.is_complete == (len(expected) <= most)


def make_batch(rows: int, seed: int = 1) -> pa.RecordBatch:
    random = np.random.default_rng(seed)

    def record() -> dict[str, Any]:
        lists = random.integers(0, 4, 4).tolist()
        return {
            "x": float(random.standard_normal()) if random.random() > 0.1 else None,
            "i": int(random.integers(0, 7)),
            "s": f"value {random.integers(0, 900)}",
            "words": [f"w{number}" for number in random.integers(0, 9, lists[0])]
            if random.random() > 0.3
            else None,
            "t": random.random(3).tolist(),
            "pixels": random.integers(0, 255, 4).tolist(),
            "ragged": [random.random(size).tolist() for size in lists[1:3]],
            "ids": random.integers(0, 2**60, lists[3]).tolist(),
            "flag": bool(random.integers(0, 2)),
            "blob": random.bytes(int(random.integers(0, 300))),
        }

    return pa.RecordBatch.from_pylist([record() for _ in range(rows)], to_arrow(SCHEMA))


def sketch_of(batch: pa.RecordBatch, rows: Any, keys: Any, splits: Any) -> DatasetSketch:
    sketch = DatasetSketch(SCHEMA, ("train", "test"))
    sketch.add(batch.take(pa.array(rows)), keys[rows], splits[rows])
    return sketch


def assert_equal(one: DatasetSketch, other: DatasetSketch) -> None:
    assert one.records == other.records
    for mine, others in zip(
        itertools.chain(*one.features), itertools.chain(*other.features), strict=True
    ):
        assert (mine.present, mine.missing) == (others.present, others.missing)
        for name in ("lengths", "numbers", "sizes"):
            assert (getattr(mine, name) is None) == (getattr(others, name) is None)
            if getattr(mine, name) is not None:
                assert_same_numbers(getattr(mine, name), getattr(others, name))
        for name in (
            ("values", "sample") if mine.is_text else ("values",) if mine.values is not None else ()
        ):
            (hashes, counts), (other_hashes, other_counts) = (
                getattr(some, name).smallest() for some in (mine, others)
            )
            assert np.array_equal(hashes, other_hashes)
            assert np.array_equal(counts, other_counts)
            assert getattr(mine, name).is_complete == getattr(others, name).is_complete
            assert not mine.is_text or mine.texts(name) == others.texts(name)
        assert mine.pixels is None or mine.pixels.total() == others.pixels.total()  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def records() -> tuple[pa.RecordBatch, Any, Any]:
    random = np.random.default_rng(5)
    rows = 1500
    return (
        make_batch(rows),
        random.integers(0, 2**63, rows).astype(np.uint64),
        random.integers(0, 2, rows),
    )


def test_merged_sketches_equal_the_sketch_of_all_records(
    records: tuple[pa.RecordBatch, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recordmill.statistics.dataset_sketch.MAX_VALUES", 128)
    monkeypatch.setattr("recordmill.statistics.dataset_sketch.MIN_VALUES", 128)
    batch, keys, splits = records
    whole = sketch_of(batch, np.arange(len(keys)), keys, splits)
    assert not whole.features[0][2].values.is_complete  # type: ignore[union-attr]
    assert whole.records == [int(np.sum(splits == 0)), int(np.sum(splits == 1))]
    order = np.random.default_rng(6).permutation(len(keys))
    one, two, three = (sketch_of(batch, rows, keys, splits) for rows in np.array_split(order, 3))
    again = [
        pickle.loads(pickle.dumps(each)) for each in (one, two, three)
    ]  # as workers share them
    two.merge(one)
    three.merge(two)
    again[1].merge(again[2])
    again[0].merge(again[1])
    for other in (three, again[0], pickle.loads(pickle.dumps(whole))):
        assert_equal(whole, other)


def test_feature_sketches_equal_the_counts_of_python(
    records: tuple[pa.RecordBatch, Any, Any],
) -> None:
    batch, keys, splits = records
    sketch = sketch_of(batch, np.arange(len(keys)), keys, splits)
    for split in (0, 1):
        rows = batch.filter(pa.array(splits == split)).to_pylist()
        for feature in sketch.features[split]:
            column = [row[feature.feature.name] for row in rows]
            present = [value for value in column if value is not None]
            assert (feature.present, feature.missing) == (len(present), len(column) - len(present))
            values = present
            while values and isinstance(next(filter(None, values), 0), list):
                values = [item for value in values for item in value]
            if feature.lengths is not None:
                assert (feature.lengths.total, feature.lengths.count) == (len(values), len(present))
            if feature.sizes is not None:
                assert feature.sizes.total == sum(
                    len(v.encode() if isinstance(v, str) else v) for v in values
                )
            if feature.numbers is not None:
                assert feature.numbers.exact_sum == sum(map(Fraction, values))
                assert feature.numbers.count == len(values)
            if feature.values is not None:
                assert feature.values.is_complete == (len(set(values)) <= feature.values.max_values)
                if feature.values.is_complete:
                    assert feature.values.distinct() == len(set(values))
            if feature.is_bytes and feature.feature.name != "blob":
                assert feature.values is not None
                texts = feature.texts("values")
                found = {texts[one].decode(): many for one, many in feature.values.most_frequent()}
                assert found == Counter(values)


def test_small_chunks_are_joined_before_they_are_counted(
    records: tuple[pa.RecordBatch, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, keys, splits = records
    rows = np.arange(min(len(keys), 700))
    whole = sketch_of(batch, rows, keys, splits)
    passes, add = Counter[int](), NumberSketch.add

    def counted(self: NumberSketch, values: Any) -> None:
        passes[id(self)] += 1
        add(self, values)

    monkeypatch.setattr(NumberSketch, "add", counted)
    parts = DatasetSketch(SCHEMA, ("train", "test"))
    for at in range(0, len(rows), 3):
        some = rows[at : at + 3]
        parts.add(batch.take(pa.array(some)), keys[some], splits[some])
    assert_equal(whole, parts)
    assert max(passes.values()) <= 4


def _column(kind: str, chunk: int, rows: int) -> pa.Array:
    """Values of which none was there before."""
    numbers = np.arange(chunk * rows, (chunk + 1) * rows)
    texts = [f"{number} {'x' * 150}" for number in numbers]
    if kind == "float32":
        return pa.array((numbers * 1e3).astype(np.float32))
    if kind == "int64":
        return pa.array(numbers * 7_919_000_001)
    if kind == "words":
        return pa.array([[text, text + "y"] for text in texts], pa.large_list(pa.large_string()))
    return pa.array(
        [text.encode() for text in texts] if kind == "binary" else texts,
        getattr(pa, f"large_{kind}")(),
    )


def _held_after_chunks(kinds: list[str], rows: int, chunks: int) -> list[int]:
    """[chunks / 6] bytes that a sketch of features of these kinds has taken behind every sixth
    one.
    """
    of_kind = {"words": ("string", (None,)), "binary": ("bytes", ())}
    schema = Schema(
        tuple(Feature(f"x{at}", *of_kind.get(kind, (kind, ()))) for at, kind in enumerate(kinds))
    )
    held: list[int] = []

    def add(sketch: DatasetSketch, chunk: int) -> None:
        columns = {kind: _column(kind, chunk, rows) for kind in set(kinds)}
        batch = pa.RecordBatch.from_arrays([columns[kind] for kind in kinds], names=schema.names)
        sketch.add(batch, np.arange(chunk * rows, (chunk + 1) * rows).astype(np.uint64))

    once = DatasetSketch(schema, ("train",))
    add(once, 0)
    assert once.features  # what threads and kernels need, which is not a sketch's
    del once
    sketch, before = DatasetSketch(schema, ("train",)), pa.total_allocated_bytes()
    # not what Python's own tables take when they grow
    own = [tracemalloc.Filter(True, f"*/{room}/*") for room in ("statistics", "example", "numpy")]
    tracemalloc.start()
    for chunk in range(chunks):
        add(sketch, chunk)
        if chunk % 6 == 5:
            traces = tracemalloc.take_snapshot().filter_traces(own).traces
            held.append(sum(trace.size for trace in traces) + pa.total_allocated_bytes() - before)
    tracemalloc.stop()
    return held


def test_sketch_of_1000_features_stays_within_its_memory_over_many_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part, rows, chunks = 25, 48, 24  # part: of the features, and of what a data set may keep
    promised = most_memory(1000)
    for name, whole in (("_MAX_TEXTS_IN_SKETCH", 1 << 17), ("_MAX_NUMBERS_IN_SKETCH", 1 << 18)):
        monkeypatch.setattr(f"recordmill.statistics.dataset_sketch.{name}", whole // part)
    assert (
        max_values_per_column(1000 // part, True),
        max_values_per_column(1000 // part, False),
    ) == (128, 256)
    assert rows * chunks > 4 * 256
    of_each = {"string": 16, "words": 12, "binary": 4, "float32": 4, "int64": 4}
    held = _held_after_chunks(
        [kind for kind, count in of_each.items() for _ in range(count)], rows, chunks
    )
    assert promised / 4 < part * max(held) < promised < SKETCH_BYTES


@pytest.mark.parametrize(
    ("texts", "numbers", "splits", "most"), [(3, 16, 2, 4096), (24, 32, 1, 4096), (25, 32, 1, 2048)]
)
def test_few_texts_among_many_numbers_keep_the_most_values_that_fit(
    texts: int, numbers: int, splits: int, most: int
) -> None:
    names = [("string" if at < texts else "int64") for at in range(texts + numbers)]
    schema = Schema(tuple(Feature(f"x{at}", dtype) for at, dtype in enumerate(names)))
    sketch = DatasetSketch(schema, [f"split {at}" for at in range(splits)])
    kept = [
        one.values.max_values if one.values is not None else 0
        for features in sketch.features
        for one in features
    ]
    assert kept[:texts] == [most] * texts
    each = [
        SKETCH_TEXT_MEMORY if one.is_text else SKETCH_NUMBER_MEMORY
        for some in sketch.features
        for one in some
    ]
    assert sum(count * size for count, size in zip(kept, each, strict=True)) < SKETCH_BYTES


@pytest.mark.sweep
@pytest.mark.parametrize("columns", [12, 32, MAX_SKETCHED_COLUMNS])
def test_sketch_of_many_text_columns_stays_within_its_memory(columns: int) -> None:
    most = max_values_per_column(columns, True)
    held = _held_after_chunks(["words"] * columns, most // 4, 12)
    promised = most_memory(columns)
    assert promised / 4 < max(held) < promised <= SKETCH_BYTES


def test_pickled_sketch_is_no_larger_than_its_stated_bound() -> None:
    schema = Schema(tuple(Feature(f"x{at}", "string", (None,)) for at in range(3)))
    sketch = DatasetSketch(schema, ("train",))
    for chunk in range(5):
        batch = pa.RecordBatch.from_arrays([_column("words", chunk, 2000)] * 3, names=schema.names)
        sketch.add(batch, np.arange(2000 * chunk, 2000 * (chunk + 1)).astype(np.uint64))
    promised = 3 * (SKETCH_FILE + max_values_per_column(3, True) * SKETCH_TEXT_FILE)
    assert promised / 2 < len(pickle.dumps(sketch)) <= promised
