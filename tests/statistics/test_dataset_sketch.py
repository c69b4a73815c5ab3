"""Sketches of all features merge to the same state in any division, within the stated memory."""

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

# bytes of memory: of a sketch without values, and of each text and number that one keeps
SKETCH_MEMORY, SKETCH_TEXT_MEMORY, SKETCH_NUMBER_MEMORY = 5_000, 800, 120
SKETCH_FILE, SKETCH_TEXT_FILE = (
    2_000,
    240,
)  # the same of what workers share, for features that are texts
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
