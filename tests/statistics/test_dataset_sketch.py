"""Sketches merge to the same state in any division, within their memory limit."""

import itertools
import pickle
import tracemalloc
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.sketches import assert_same_numbers

from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.statistics.dataset_sketch import (
    MAX_SKETCHED_COLUMNS,
    SKETCH_BYTES,
    DatasetSketch,
    max_values_per_column,
)
from recordmill.statistics.number_sketch import NumberSketch

# Bytes in memory of the empty sketch of a feature, of each text in it, and of each number in it.
SKETCH_MEMORY, SKETCH_TEXT_MEMORY, SKETCH_NUMBER_MEMORY = 5_000, 800, 120
# Bytes of a pickled sketch of a text feature, and of each text in it.
SKETCH_FILE, SKETCH_TEXT_FILE = 2_000, 240
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


def max_memory(features: int) -> int:
    """Returns the largest size in bytes of the sketches of `features` features."""
    texts, numbers = max_values_per_column(features, True), max_values_per_column(features, False)
    return features * (
        SKETCH_MEMORY + max(texts * SKETCH_TEXT_MEMORY, numbers * SKETCH_NUMBER_MEMORY)
    )


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


def assert_equal(first: DatasetSketch, second: DatasetSketch) -> None:
    assert first.records == second.records
    for feature, other_feature in zip(
        itertools.chain(*first.features), itertools.chain(*second.features), strict=True
    ):
        assert (feature.present, feature.missing) == (other_feature.present, other_feature.missing)
        for name in ("lengths", "numbers", "sizes"):
            assert (getattr(feature, name) is None) == (getattr(other_feature, name) is None)
            if getattr(feature, name) is not None:
                assert_same_numbers(getattr(feature, name), getattr(other_feature, name))
        for name in (
            ("values", "sample")
            if feature.is_text
            else ("values",)
            if feature.values is not None
            else ()
        ):
            (hashes, counts), (other_hashes, other_counts) = (
                getattr(sketch, name).smallest() for sketch in (feature, other_feature)
            )
            assert np.array_equal(hashes, other_hashes)
            assert np.array_equal(counts, other_counts)
            assert getattr(feature, name).is_complete == getattr(other_feature, name).is_complete
            assert not feature.is_text or feature.texts(name) == other_feature.texts(name)
        assert feature.pixels is None or feature.pixels.total() == other_feature.pixels.total()  # type: ignore[union-attr]


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
    expected = sketch_of(batch, np.arange(len(keys)), keys, splits)
    assert not expected.features[0][2].values.is_complete  # type: ignore[union-attr]
    assert expected.records == [int(np.sum(splits == 0)), int(np.sum(splits == 1))]
    order = np.random.default_rng(6).permutation(len(keys))
    first, second, third = (
        sketch_of(batch, rows, keys, splits) for rows in np.array_split(order, 3)
    )
    # Workers share pickled sketches.
    copies = [pickle.loads(pickle.dumps(sketch)) for sketch in (first, second, third)]
    second.merge(first)
    third.merge(second)
    copies[1].merge(copies[2])
    copies[0].merge(copies[1])
    for sketch_of_all in (third, copies[0], pickle.loads(pickle.dumps(expected))):
        assert_equal(expected, sketch_of_all)


def test_feature_sketches_equal_the_counts_of_python(
    records: tuple[pa.RecordBatch, Any, Any],
) -> None:
    batch, keys, splits = records
    sketch = sketch_of(batch, np.arange(len(keys)), keys, splits)
    for split in (0, 1):
        rows = batch.filter(pa.array(splits == split)).to_pylist()
        for feature in sketch.features[split]:
            column = [row[feature.feature.name] for row in rows]
            present_values = [value for value in column if value is not None]
            assert (feature.present, feature.missing) == (
                len(present_values),
                len(column) - len(present_values),
            )
            values = present_values
            while values and isinstance(next(filter(None, values), 0), list):
                values = [item for value in values for item in value]
            if feature.lengths is not None:
                assert (feature.lengths.total, feature.lengths.count) == (
                    len(values),
                    len(present_values),
                )
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
                counts = {
                    texts[value_hash].decode(): count
                    for value_hash, count in feature.values.most_frequent()
                }
                assert counts == Counter(values)


def test_small_chunks_are_joined_before_they_are_counted(
    records: tuple[pa.RecordBatch, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, keys, splits = records
    rows = np.arange(min(len(keys), 700))
    expected = sketch_of(batch, rows, keys, splits)
    passes, add = Counter[int](), NumberSketch.add

    def count_and_add(self: NumberSketch, values: Any) -> None:
        passes[id(self)] += 1
        add(self, values)

    monkeypatch.setattr(NumberSketch, "add", count_and_add)
    parts = DatasetSketch(SCHEMA, ("train", "test"))
    for start in range(0, len(rows), 3):
        chunk_rows = rows[start : start + 3]
        parts.add(batch.take(pa.array(chunk_rows)), keys[chunk_rows], splits[chunk_rows])
    assert_equal(expected, parts)
    assert max(passes.values()) <= 4


def _new_values(kind: str, chunk: int, rows: int) -> pa.Array:
    """Returns values that no earlier chunk contains."""
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


def _measure_memory(kinds: list[str], rows: int, chunks: int) -> list[int]:
    """Returns the bytes that a sketch uses after every sixth chunk.

    Args:
        kinds: The kind of each feature.
    """
    types = {"words": ("string", (None,)), "binary": ("bytes", ())}
    schema = Schema(
        tuple(
            Feature(f"x{index}", *types.get(kind, (kind, ()))) for index, kind in enumerate(kinds)
        )
    )
    sizes: list[int] = []

    def add(sketch: DatasetSketch, chunk: int) -> None:
        columns = {kind: _new_values(kind, chunk, rows) for kind in set(kinds)}
        batch = pa.RecordBatch.from_arrays([columns[kind] for kind in kinds], names=schema.names)
        sketch.add(batch, np.arange(chunk * rows, (chunk + 1) * rows).astype(np.uint64))

    warm_up = DatasetSketch(schema, ("train",))
    add(warm_up, 0)
    # Threads and kernels allocate memory at their first use, which does not belong to a sketch.
    assert warm_up.features
    del warm_up
    sketch, arrow_bytes = DatasetSketch(schema, ("train",)), pa.total_allocated_bytes()
    # Excludes the tables of Python itself, which grow, too.
    filters = [
        tracemalloc.Filter(True, f"*/{room}/*") for room in ("statistics", "example", "numpy")
    ]
    tracemalloc.start()
    for chunk in range(chunks):
        add(sketch, chunk)
        if chunk % 6 == 5:
            traces = tracemalloc.take_snapshot().filter_traces(filters).traces
            sizes.append(
                sum(trace.size for trace in traces) + pa.total_allocated_bytes() - arrow_bytes
            )
    tracemalloc.stop()
    return sizes


def test_sketch_of_1000_features_stays_within_its_memory_over_many_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # For speed, both the number of features and the limits are divided by `part`.
    part, rows, chunks = 25, 48, 24
    limit = max_memory(1000)
    for name, max_values in (
        ("_MAX_TEXTS_IN_SKETCH", 1 << 17),
        ("_MAX_NUMBERS_IN_SKETCH", 1 << 18),
    ):
        monkeypatch.setattr(f"recordmill.statistics.dataset_sketch.{name}", max_values // part)
    assert (
        max_values_per_column(1000 // part, True),
        max_values_per_column(1000 // part, False),
    ) == (128, 256)
    assert rows * chunks > 4 * 256
    counts = {"string": 16, "words": 12, "binary": 4, "float32": 4, "int64": 4}
    sizes = _measure_memory(
        [kind for kind, count in counts.items() for _ in range(count)], rows, chunks
    )
    assert limit / 4 < part * max(sizes) < limit < SKETCH_BYTES


@pytest.mark.parametrize(
    ("texts", "numbers", "splits", "max_values"),
    [(3, 16, 2, 4096), (24, 32, 1, 4096), (25, 32, 1, 2048)],
)
def test_few_texts_among_many_numbers_keep_the_most_values_that_fit(
    texts: int, numbers: int, splits: int, max_values: int
) -> None:
    names = [("string" if index < texts else "int64") for index in range(texts + numbers)]
    schema = Schema(tuple(Feature(f"x{index}", dtype) for index, dtype in enumerate(names)))
    sketch = DatasetSketch(schema, [f"split {index}" for index in range(splits)])
    limits = [
        feature.values.max_values if feature.values is not None else 0
        for features in sketch.features
        for feature in features
    ]
    assert limits[:texts] == [max_values] * texts
    value_bytes = [
        SKETCH_TEXT_MEMORY if feature.is_text else SKETCH_NUMBER_MEMORY
        for features_of_split in sketch.features
        for feature in features_of_split
    ]
    assert sum(count * size for count, size in zip(limits, value_bytes, strict=True)) < SKETCH_BYTES


@pytest.mark.sweep
@pytest.mark.parametrize("columns", [12, 32, MAX_SKETCHED_COLUMNS])
def test_sketch_of_many_text_columns_stays_within_its_memory(columns: int) -> None:
    max_values = max_values_per_column(columns, True)
    sizes = _measure_memory(["words"] * columns, max_values // 4, 12)
    limit = max_memory(columns)
    assert limit / 4 < max(sizes) < limit <= SKETCH_BYTES


def test_pickled_sketch_is_not_larger_than_its_documented_bound() -> None:
    schema = Schema(tuple(Feature(f"x{index}", "string", (None,)) for index in range(3)))
    sketch = DatasetSketch(schema, ("train",))
    for chunk in range(5):
        batch = pa.RecordBatch.from_arrays(
            [_new_values("words", chunk, 2000)] * 3, names=schema.names
        )
        sketch.add(batch, np.arange(2000 * chunk, 2000 * (chunk + 1)).astype(np.uint64))
    limit = 3 * (SKETCH_FILE + max_values_per_column(3, True) * SKETCH_TEXT_FILE)
    assert limit / 2 < len(pickle.dumps(sketch)) <= limit
