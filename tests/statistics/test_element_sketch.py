"""Users can normalize each joint of a robot by its own mean and quantiles.

The results do not depend on the division of the records among threads and workers.
"""

import json
import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import recordmill
from recordmill.base.errors import UsageError
from recordmill.statistics.element_sketch import MAX_ELEMENTS, ElementSketch

DTYPES = ("float16", "float32", "float64", "bool", "uint8", "int16", "int64")


def sketch_of(values: np.ndarray[Any, Any], keys: np.ndarray[Any, Any]) -> ElementSketch:
    sketch = ElementSketch(1)
    sketch.add(values, keys)
    return sketch


def figures_of(sketch: ElementSketch) -> list[Any]:
    columns = [sketch.finite, sketch.minima, sketch.maxima, *sketch.moments(), *sketch.quantiles()]
    return [sketch.rows, sketch.sampled, *(column.tolist() for column in columns)]


def exact_moments(column: list[Fraction]) -> tuple[float, float]:
    """Returns the expected mean and variance, computed with fractions and rounded once."""
    mean = sum(column) / len(column)
    variance = sum(value * value for value in column) / len(column) - mean * mean
    try:
        return float(mean), float(variance)
    except OverflowError:
        return float(mean), float("inf")


@pytest.mark.parametrize("elements", [2, 14, 256, 700])
@pytest.mark.parametrize("rows", [1, 17, 9000])
@pytest.mark.parametrize("kind", ["similar", "zeros", "different", "infinite", "subnormal"])
def test_float32_is_counted_as_the_same_float64(elements: int, rows: int, kind: str) -> None:
    random = np.random.default_rng(elements + rows)
    values = random.normal(size=(rows, elements)).astype(np.float32)
    if kind == "zeros":
        values[random.random(values.shape) < 0.9] = -0.0
    elif kind == "different":
        values *= np.exp2(random.integers(-120, 120, values.shape)).astype(np.float32)
    elif kind == "infinite":
        values[random.random(values.shape) < 0.01] = np.inf
        values[random.random(values.shape) < 0.01] = np.nan
    elif kind == "subnormal":
        values *= np.float32(2**-130)
    keys = np.arange(rows, dtype=np.uint64)
    single, double = sketch_of(values, keys), sketch_of(values.astype(np.float64), keys)
    assert single.finite.tolist() == double.finite.tolist()
    assert single.minima.tobytes() == double.minima.tobytes()
    assert single.maxima.tobytes() == double.maxima.tobytes()
    for column, other_column in zip(single.moments(), double.moments(), strict=True):
        assert np.array_equal(column, other_column, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_moments_equal_exact_fractions(dtype: str, data: st.DataObject) -> None:
    values = data.draw(arrays(dtype, st.tuples(st.integers(1, 9), st.integers(2, 4))))
    sketch = sketch_of(values, np.arange(len(values), dtype=np.uint64))
    means, variances = sketch.moments()
    for column, mean, variance, count in zip(
        values.T, means.tolist(), variances.tolist(), sketch.finite.tolist(), strict=True
    ):
        finite = [Fraction(value) for value in column[np.isfinite(column)].tolist()]
        assert count == len(finite)
        if finite:
            assert (mean, variance) == exact_moments(finite)
        else:
            assert np.isnan([mean, variance]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@given(seed=st.integers(0, 999), num_rows=st.integers(1, 200), num_parts=st.integers(1, 5))
def test_merged_parts_equal_the_sketch_of_all_rows(
    dtype: str, seed: int, num_rows: int, num_parts: int
) -> None:
    random = np.random.default_rng(seed)
    with np.errstate(invalid="ignore", over="ignore"):
        values = (random.normal(size=(num_rows, 5)) * 10 ** random.integers(0, 5)).astype(dtype)
    keys = random.integers(0, 1 << 63, num_rows).astype(np.uint64)
    keys[::3] = keys[0]  # equal keys occur when records are shuffled by a column
    total = ElementSketch(1)
    for rows in np.array_split(random.permutation(num_rows), num_parts):
        total.merge(pickle.loads(pickle.dumps(sketch_of(values[rows], keys[rows]))))
    assert repr(figures_of(total)) == repr(figures_of(sketch_of(values, keys)))


def test_sample_is_bounded_and_does_not_depend_on_order() -> None:
    random = np.random.default_rng(1)
    values = random.normal(size=(100_000, 3)).astype(np.float32)
    keys = np.arange(len(values), dtype=np.uint64)
    order = random.permutation(len(values))
    sketch, shuffled = ElementSketch(1), ElementSketch(1)
    for block in np.array_split(np.arange(len(values)), 30):
        sketch.add(values[block], keys[block])
        shuffled.add(values[order[block]], keys[order[block]])
    assert repr(figures_of(sketch)) == repr(figures_of(shuffled))
    assert sketch.sampled == 1 << 14
    # The standard error of the share below a quantile is sqrt(p (1 - p) / sampled).
    for percent, quantiles in zip((1, 50, 99), sketch.quantiles(), strict=True):
        share = percent / 100
        error = np.sqrt(share * (1 - share) / sketch.sampled)
        assert np.abs((values <= quantiles).mean(0) - share).max() < 5 * error


def test_carries_of_many_rows_do_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recordmill.statistics.element_sketch._MAX_ROWS_WITHOUT_CARRY", 8)
    values = np.full((7, 2), np.finfo(np.float32).max)
    sketch = ElementSketch(1)
    for _ in range(20):
        sketch.add(values, np.arange(7, dtype=np.uint64))
    assert sketch.moments()[0].tolist() == [float(values[0, 0])] * 2


@pytest.mark.parametrize("size", [1, MAX_ELEMENTS + 1])
def test_sketch_is_dropped_for_one_or_too_many_elements(size: int) -> None:
    sketch = sketch_of(np.zeros((2, size), np.uint8), np.arange(2, dtype=np.uint64))
    assert sketch.dropped
    total = sketch_of(np.zeros((2, 4), np.uint8), np.arange(2, dtype=np.uint64))
    total.merge(sketch)
    assert total.dropped


def test_sketches_of_different_sizes_are_dropped_in_any_order() -> None:
    keys = np.arange(2, dtype=np.uint64)
    parts = [sketch_of(np.zeros((2, size)), keys) for size in (3, 4)]
    for first, second in (parts, parts[::-1]):
        total = ElementSketch(1)
        total.merge(first)
        total.merge(second)
        assert total.dropped


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set with vectors, lists of vectors, and lists of any length."""
    folder = tmp_path_factory.mktemp("robot")
    random = np.random.default_rng(7)
    records = 500
    action = (random.normal(size=(records, 14)) * np.arange(1, 15) + 5).astype(np.float32)
    lengths = random.integers(0, 5, records)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    steps = random.normal(size=(offsets[-1], 4)).astype(np.float32)
    table = pa.table(
        {
            "action": pa.FixedSizeListArray.from_arrays(pa.array(action.ravel()), 14),
            "same": pa.array([None, *action[1:, :3].tolist()], pa.list_(pa.float32())),
            "steps": pa.ListArray.from_arrays(
                pa.array(offsets), pa.FixedSizeListArray.from_arrays(pa.array(steps.ravel()), 4)
            ),
            "ragged": pa.array([[1] * length for length in lengths.tolist()]),
            "label": random.integers(0, 3, records),
        }
    )
    pq.write_table(table, folder / "robot.parquet", row_group_size=60)
    recordmill.build(
        str(folder / "robot.parquet"), str(folder / "out"), splits="train=0.8,test=0.2"
    )
    return folder / "out"


def vectors(dataset: Any, name: str) -> np.ndarray[Any, Any]:
    column = dataset.to_table().column(name).drop_null().to_pylist()
    if name == "steps":
        column = [item for row in column for item in row]
    return np.array(column, np.float64)


@pytest.mark.parametrize("name", ["action", "same", "steps"])
def test_figures_of_each_element_equal_those_of_numpy(robot: Path, name: str) -> None:
    train = recordmill.open(robot, "train")
    values, elements = vectors(train, name), train.statistics["train"][name].elements
    assert elements is not None
    assert elements.mean == pytest.approx(values.mean(0), rel=1e-12, abs=1e-12)
    assert elements.std_dev == pytest.approx(values.std(0), rel=1e-12)
    assert (elements.min == values.min(0)).all()
    assert (elements.max == values.max(0)).all()
    assert elements.finite.tolist() == [len(values)] * values.shape[1]
    assert elements.sampled == len(values)
    ordered = np.sort(values, axis=0)
    for share, quantile in ((0.01, elements.q01), (0.5, elements.q50), (0.99, elements.q99)):
        assert (quantile == ordered[int(np.ceil(share * len(values))) - 1]).all()


def test_lists_of_several_lengths_and_scalars_have_no_elements(robot: Path) -> None:
    statistics = recordmill.open(robot).statistics["train"]
    assert statistics["ragged"].elements is None
    assert statistics["label"].elements is None


@pytest.mark.parametrize("threads", [1, 3])
def test_statistics_have_the_same_bytes_for_any_threads(
    robot: Path, tmp_path: Path, threads: int
) -> None:
    recordmill.build(
        str(robot.parent / "robot.parquet"),
        str(tmp_path / "out"),
        splits="train=0.8,test=0.2",
        threads=threads,
    )
    statistics = recordmill.open(tmp_path / "out").statistics
    assert statistics.to_bytes() == recordmill.open(robot).statistics.to_bytes()


def test_filtered_view_counts_its_own_elements(robot: Path) -> None:
    view = recordmill.open(robot, "train").filter("label == 1")
    elements = view.statistics["train"]["action"].elements
    assert elements is not None
    assert elements.mean == pytest.approx(vectors(view, "action").mean(0), rel=1e-12)


def test_normalization_of_vectors_is_ready_for_keras(robot: Path) -> None:
    import keras

    dataset = recordmill.open(robot)
    train = vectors(recordmill.open(robot, "train"), "action")
    layer = keras.layers.Normalization(**dataset.normalization("action"))
    normalized = np.asarray(layer(train.astype(np.float32)))
    assert normalized.mean(0) == pytest.approx(np.zeros(14), abs=1e-5)
    assert normalized.std(0) == pytest.approx(np.ones(14), abs=1e-5)
    quantile_layer = keras.layers.Normalization(**dataset.normalization("action", by="quantiles"))
    low, high = np.percentile(
        np.asarray(quantile_layer(train.astype(np.float32))), [1, 99], axis=0, method="inverted_cdf"
    )
    assert low == pytest.approx(-np.ones(14), abs=1e-4)
    assert high == pytest.approx(np.ones(14), abs=1e-4)


def test_normalization_by_quantiles_needs_vectors_and_one_split(robot: Path) -> None:
    dataset = recordmill.open(robot)
    assert set(dataset.normalization(by="quantiles")) == {"action", "same", "steps"}
    with pytest.raises(UsageError, match="vectors of one length"):
        dataset.normalization("ragged", by="quantiles")
    with pytest.raises(UsageError, match="one of moments, quantiles"):
        dataset.normalization("action", by="median")


def test_normalization_adds_splits_if_there_is_no_train_split(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    rows = [
        {"v": random.normal(size=3).tolist(), "split": "test" if i % 3 else "validation"}
        for i in range(60)
    ]
    recordmill.build(rows, str(tmp_path / "out"), split_column="split")
    dataset = recordmill.open(tmp_path / "out")
    values = vectors(dataset, "v")
    keywords = dataset.normalization("v")
    assert keywords["mean"] == pytest.approx(values.mean(0), rel=1e-12)
    assert keywords["variance"] == pytest.approx(values.var(0), rel=1e-12)
    with pytest.raises(UsageError, match="no split 'train'"):
        dataset.normalization("v", by="quantiles")


def test_foreign_records_of_one_length_have_elements(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    values = random.normal(size=(40, 6)).astype(np.float32)
    path = str(tmp_path / "foreign.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for row in values:
            feature = tf.train.Feature(float_list=tf.train.FloatList(value=row))
            example = tf.train.Example(features=tf.train.Features(feature={"state": feature}))
            writer.write(example.SerializeToString())
    (features,) = recordmill.open(path).statistics.values()
    elements = features["state"].elements
    assert elements is not None
    assert elements.mean == pytest.approx(values.astype(np.float64).mean(0), rel=1e-12)


def test_elements_are_shown_by_stats_and_json(robot: Path) -> None:
    statistics = recordmill.open(robot).statistics
    assert "action[13]" in repr(statistics)
    document = json.loads(json.dumps(statistics.to_json()))
    figures = {feature["name"]: feature for feature in document["train"]["features"]}
    assert len(figures["action"]["elements"]["mean"]) == 14
    assert "elements" not in figures["ragged"]
