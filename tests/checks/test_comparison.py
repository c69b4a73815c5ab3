"""Drift and skew: what was planted is found, two samples of one distribution pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from recordmill.checks.comparison import drift, skew
from recordmill.checks.rules import Rules, read_rules
from recordmill.checks.violations import Violation
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.statistics.dataset_sketch import DatasetSketch
from recordmill.statistics.dataset_statistics import DatasetStatistics

Values = dict[str, npt.NDArray[Any]]


def values(rows: int, seed: int) -> Values:
    """Columns of many shapes: heavy tails, zeros, few and many integers, times, frequent and rare texts."""
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
        "carrier": random.choice(np.array(["UA", "B6", "EV", "rare"]), rows, p=[0.6, 0.3, 0.09, 0.01]),
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
    return DatasetStatistics.of_sketch(sketch), schema


def _feature(item: tuple[str, pa.Array]) -> Feature:
    dtype = {"double": "float64", "float": "float32", "int64": "int64"}.get(str(item[1].type), "string")
    return Feature(item[0], dtype, required=True)


def found(first: Values, second: Values, rules: Rules | None = None) -> list[Violation]:
    (one, schema), (other, _) = statistics({"train": first}), statistics({"train": second})
    return list(drift(one, other, schema, rules or Rules(), "old"))


@pytest.mark.parametrize("rows", [(40, 40), (100, 1500), (3000, 3000), (20_000, 9000)])
def test_two_samples_of_one_distribution_pass(rows: tuple[int, int]) -> None:
    for seed in range(1 if max(rows) > 5000 else 4):
        first, second = values(rows[0], 10 + seed), values(rows[1], 100 + seed)
        assert list(map(str, found(first, second))) == []
        both, schema = statistics({"train": first, "test": second})
        assert list(map(str, skew(both, schema, Rules()))) == []


def test_chance_has_room_where_few_occurrences_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recordmill.statistics.dataset_sketch._TEXTS_IN_ALL", 64)  # as of 1,000 columns and more

    def words(seed: int) -> Values:
        random = np.random.default_rng(seed)
        rare = random.integers(0, 10**6, (40, 3000))
        return {
            f"x{at}": np.where(random.random(3000) < 0.5, "frequent", [f"w{n}" for n in one])
            for at, one in enumerate(rare)
        }

    first, second = words(1), words(2)
    one, _ = statistics({"train": first})
    assert one["train"]["x0"].sampled == 32
    assert list(map(str, found(first, second))) == []


def awkward(rows: int, seed: int) -> Values:
    """Columns of which clean splits were said to differ: mostly rare texts, zeros in a tenth more, few values."""
    random = np.random.default_rng(seed)
    names = np.array([f"name {number}" for number in random.integers(0, 10**9, rows)])
    return {
        "owner": np.where(random.random(rows) < 0.5, "Unknown", names),
        "toll": np.where(random.random(rows) < 0.7, 0.0, random.lognormal(1, 1, rows)),
        "rain": np.where(random.random(rows) < 0.9, 0.0, random.random(rows)),
        "rating": random.integers(1, 6, rows).astype(np.float64),
        "tract": np.where(random.random(rows) < 0.45, 17031.5, 17000 + np.round(random.lognormal(3, 0.7, rows)) % 180),
        "infinite": np.where(random.random(rows) < 0.1, np.inf, random.random(rows)),
    }


@pytest.mark.parametrize("seed", range(10))
def test_clean_splits_of_awkward_columns_pass(seed: int) -> None:
    one, other = awkward(6000, seed), awkward(2000 + 500 * seed, seed + 50)
    assert list(map(str, found(one, other))) == []
    assert list(map(str, found(other, one))) == []


def test_infinities_and_shares_of_frequent_texts_drift() -> None:
    one, other = awkward(6000, 1), awkward(6000, 2)
    chosen = np.random.default_rng(3).random(6000)
    changed = {
        "owner": np.where(chosen < 0.5, "Unknown", other["owner"]),
        "toll": np.where(chosen < 0.8, 0.0, other["toll"] + 1),
        "rain": np.where(chosen < 0.5, 1.0, other["rain"]),
        "rating": np.where(chosen < 0.3, 5.0, other["rating"]),
        "tract": other["tract"] + 60.0,
        "infinite": np.full(6000, -np.inf),
    }
    assert {each.feature for each in found(changed, one)} == set(changed)
    assert {each.feature for each in found(one, changed)} == set(changed)


@pytest.mark.parametrize("dtype", ["int64", "float32", "string"])
def test_lists_that_are_all_empty_drift(dtype: str) -> None:
    schema, items = Schema((Feature("x", dtype, (None,)),)), np.arange(3).astype(dtype if dtype != "string" else "U")
    read = []
    for values in (items.tolist(), []):
        sketch = DatasetSketch(schema, ["train"])
        batch = pa.RecordBatch.from_pylist([{"x": values}] * 500, to_arrow(schema))
        sketch.add(batch, np.arange(500).astype("u8"))
        read.append(DatasetStatistics.of_sketch(sketch))
    for first, second in ((read[0], read[1]), (read[1], read[0])):
        (one,) = drift(first, second, schema, Rules(), "old")
        assert "values in its lists" in str(one)


@pytest.mark.parametrize("dtype", ["int64", "string"])
def test_lengths_of_lists_drift_and_clean_ones_pass(dtype: str) -> None:
    schema, read = Schema((Feature("x", dtype, (None,)),)), []
    for mean, seed in ((2, 1), (2, 2), (8, 3)):
        lengths = np.random.default_rng(seed).poisson(mean, 900)
        rows = [{"x": [1 if dtype == "int64" else "a"] * length} for length in lengths.tolist()]
        sketch = DatasetSketch(schema, ["train"])
        sketch.add(pa.RecordBatch.from_pylist(rows, to_arrow(schema)), np.arange(900).astype("u8"))
        read.append(DatasetStatistics.of_sketch(sketch))
    assert list(drift(read[0], read[1], schema, Rules(), "old")) == []
    for first, second in ((read[0], read[2]), (read[2], read[0])):
        (one,) = drift(first, second, schema, Rules(), "old")
        assert "the lengths of lists are not distributed as in" in str(one)


def test_sizes_of_texts_that_are_not_all_listed_drift() -> None:
    random = np.random.default_rng(1)
    first, second, longer = ({"x": random.integers(10**8, 10**9, 2000).astype("U")} for _ in range(3))
    longer["x"] = np.char.add(longer["x"], "suffix")
    assert found(first, second) == []
    (one,) = found(first, longer)
    assert "the sizes in bytes are not distributed as in split 'train' of old" in one.what


def test_what_was_planted_is_found() -> None:
    first, second = values(4000, 1), values(4000, 2)
    later = {
        **second,
        "normal": second["normal"] + 3,
        "income": second["income"] * 20,
        "rain": np.where(second["rain"] > 0, second["rain"], np.arange(4000) % 2),
        "holes": np.where(np.arange(4000) % 10 < 8, np.nan, second["holes"]),
        "digit": np.where(second["digit"] < 5, 7, second["digit"]),
        "time": second["time"] + 10**15,
        "carrier": np.where(np.arange(4000) % 5 == 0, "XX", second["carrier"]),
    }
    wrong = found(later, first)
    assert {one.feature for one in wrong} == {"normal", "income", "rain", "holes", "digit", "time", "carrier"}
    for one in wrong:
        assert one.check == "drift"
        assert one.split == "train"
        assert isinstance(one.figure, float)
        assert isinstance(one.threshold, float)
        assert one.figure > one.threshold
        assert "split 'train' of old" in one.what
    assert any("'XX' among them, do not occur in" in one.what for one in wrong)


def test_thresholds_that_are_given_hold_as_they_are() -> None:
    first, second = values(500, 1), values(500, 2)
    strict = read_rules({"drift": {"jensen_shannon": 0, "l_infinity": 0}, "features": {"normal": {"drift": 0.9}}})
    assert {"income", "carrier", "id"} <= {one.feature for one in found(first, second, strict)}
    assert "normal" not in {one.feature for one in found(first, second, strict)}
    shifted = {**second, "normal": second["normal"] + 9, "carrier": np.full(500, "UA")}
    loose = read_rules({"drift": {"l_infinity": None, "new_values": None}, "features": {"normal": {"drift": None}}})
    assert found(first, shifted, loose) == []


def test_missing_records_and_other_types_are_told() -> None:
    schema = Schema((Feature("x", "float64"),))
    protos = []
    for share in (0.1, 0.4):
        sketch = DatasetSketch(schema, ["train"])
        column = pa.array(np.arange(1000.0), mask=np.arange(1000) % 10 < share * 10)
        sketch.add(pa.RecordBatch.from_pydict({"x": column}), np.arange(1000).astype("u8"))
        protos.append(DatasetStatistics.of_sketch(sketch))
    (one,) = drift(protos[1], protos[0], schema, Rules(), "old")
    assert "is missing in 40 % of the records, and in split 'train' of old in 10 %" in str(one)
    text, _ = statistics({"train": {"x": np.array(["a", "b"])}})
    (one,) = drift(protos[0], text, schema, Rules(), "old")
    assert "is of type FLOAT, and in split 'train' of old STRING" in str(one)


def test_a_split_is_compared_with_its_own_or_with_that_for_training() -> None:
    first, second = values(900, 1), values(900, 2)
    far = {**second, "normal": second["normal"] + 30}
    one, schema = statistics({"train": first, "test": far})
    both, _ = statistics({"train": second, "test": values(900, 3)})
    assert [(each.split, each.feature) for each in drift(one, both, schema, Rules(), "o")] == [("test", "normal")]
    only, _ = statistics({"": second})
    assert [(each.split, each.feature) for each in drift(one, only, schema, Rules(), "o")] == [("test", "normal")]
    others, _ = statistics({"validation": far, "train": second})
    (alone,) = drift(one, others, schema, Rules(), "o")
    assert (alone.split, alone.feature) == ("test", "normal")
    assert "as in split 'train' of o" in alone.what
    assert [(each.check, each.split) for each in skew(one, schema, Rules())] == [("skew", "test")]
    assert list(drift(one, DatasetStatistics.from_bytes(b""), schema, Rules(), "o")) == []
