"""Each rule finds its violations, and passes only if the statistics can decide it."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.rule_sketches import SCHEMA, TRAIN, statistics

from recordmill.base.errors import UsageError
from recordmill.checks.constraints import (
    ExpectationError,
    check_expectations,
    find_violations,
    read_expectations,
)
from recordmill.checks.rules import Rules, read_rules
from recordmill.records.columns.predicate import Predicate
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.statistics.dataset_sketch import DatasetSketch
from recordmill.statistics.dataset_statistics import DatasetStatistics

TEST = {"fare": [3.0, 4.0], "carrier": [0, 1], "city": ["Rom", "Bonn"]}


@pytest.mark.parametrize(
    ("rules", "texts"),
    [
        (
            {"features": {"fare": {"present": 0.9}}},
            ["train: feature 'fare': presence: 75 % of the records have it (2 l"],
        ),
        ({"features": {"fare": {"present": 0.75}}}, []),
        (
            {"features": {"fare": {"min": 0.5}}},
            ["range: the smallest value is 0, below 0.5", "1 values are infinite"],
        ),
        (
            {"features": {"fare": {"max": 5}}},
            ["range: the largest value is 7, above 5", "1 values are infinite"],
        ),
        (
            {"features": {"fare": {"mean": [0, 3]}}},
            ["test: feature 'fare': mean: the mean is 3.5, outside 0 to 3"],
        ),
        (
            {"features": {"fare": {"zeros": 0.1}}},
            ["zeros: 16.67 % of the values are zero, above 10 %"],
        ),
        ({"features": {"fare": {"nan": 0}}}, ["nan: 16.67 % of the values are NaN, above 0 %"]),
        (
            {"features": {"city": {"distinct": [3, None]}}},
            ["test: feature 'city': distinct: there are 2 distinct values"],
        ),
        (
            {"features": {"city": {"values": ["Rom", "Bonn"]}}},
            ["12.5 % of the values, such as 'Oslo', are not among th"],
        ),
        ({"features": {"city": {"values": ["Rom", "Bonn"], "other_values": 0.2}}}, []),
        (
            {"features": {"carrier": {"values": ["UA"]}}},
            ["25 % of the values, such as 'B6'", "50 % of the values, su"],
        ),
        (
            {"features": {"carrier": {"shares": {"UA": [0.6, 1]}}}},
            ["test: feature 'carrier': shares: 'UA' is 50 % of"],
        ),
        ({"records": [3, None]}, ["test: records: 2 records are outside 3 to any"]),
        (
            {"splits": {"train": [0.85, 0.9], "test": [0, 0.5]}},
            ["train: splits: has 80 % of the records, outside 85 %"],
        ),
        (
            {"classes": {"max_ratio": 2}},
            ["class 'EV' is inf times rarer", "class 'B6' is 3 times", "class 'EV' is inf"],
        ),
        (
            {"classes": {"min_records": 1}},
            ["class 'EV' has 0 records, below 1", "class 'EV' has 0 records, below 1"],
        ),
        (
            {"classes": {"min_share": 0.3}},
            ["'EV' has 0 %", "'B6' has 25 % of the records, below 30 %", "'EV' has 0 %"],
        ),
    ],
    ids=range(17),
)
def test_each_rule_finds_its_violations(rules: dict[str, Any], texts: list[str]) -> None:
    fitted = read_rules(rules).fit_to_schema(SCHEMA, ("train", "test"))
    violations = list(find_violations(statistics({"train": TRAIN, "test": TEST}), SCHEMA, fitted))
    assert len(violations) == len(texts), list(map(str, violations))
    for violation, text in zip(violations, texts, strict=True):
        assert text in str(violation)
        assert violation.remedy
        assert None not in (violation.figure, violation.threshold)
        assert isinstance(violation.to_json()["figure"], int | float | str)


def test_values_rule_finds_other_values_if_not_all_are_counted() -> None:
    columns = {
        "fare": [1.0] * 9000,
        "carrier": [0] * 9000,
        "city": [f"city {n}" for n in range(9000)],
    }
    fitted = read_rules({"features": {"city": {"values": ["city 1"]}}}).fit_to_schema(SCHEMA)
    (violation,) = find_violations(statistics({"train": columns}), SCHEMA, fitted)
    assert isinstance(violation.figure, float)
    assert violation.figure > 0.9


WIDE = Schema(
    (
        Feature("code", "int64"),
        Feature("tensor", "int64", (2,)),
        Feature("flag", "bool"),
        Feature("a b", "float64"),
        Feature("label", "int64"),
        Feature("city", "string"),
    ),
    label="label",
)


@pytest.mark.parametrize(
    ("rules", "text", "is_judged"),
    [
        (
            {"features": {"code": {"shares": {7: [0, 0.1]}}}},
            "between 0 % and 100 % of the values",
            False,
        ),
        (
            {"features": {"code": {"values": [7]}}},
            "at least 46.62 % of the values are not among the expected ones",
            True,
        ),
        (
            {"features": {"code": {"values": list(range(6000))}}},
            "up to 100 % of the values are not listed",
            False,
        ),
        (
            {"features": {"tensor": {"values": [7]}}},
            "up to 100 % of the values are not listed",
            False,
        ),
        (
            {"features": {"tensor": {"distinct": [1, 2]}}},
            "values of tensors are not counted",
            False,
        ),
        (
            {"features": {"code": {"distinct": [4999, 5001]}}},
            "distinct: can't be judged from the statistics: there are about",
            False,
        ),
        ({"features": {"code": {"distinct": [0, 9]}}}, "distinct values, outside 0 to 9", True),
        ({"features": {"city": {"shares": {"Rom": [0.5, 0.5]}}}}, "'Rom' is between 4", False),
        (
            {"features": {"city": {"shares": {"Rom": [0, 0.1]}}}},
            "% of the values, outside 0 % to 10 %",
            True,
        ),
        ({"features": {"city": {"shares": {"Rom": [0.3, 0.7]}}}}, None, True),
        ({"features": {"flag": {"values": ["true"]}}}, None, True),
        (
            {"features": {"flag": {"values": [False]}}},
            "such as '1', are not among the expected ones",
            True,
        ),
        ({"features": {"a b": {"mean": [10, 30]}}}, "no value is finite", True),
        ({"features": {"a b": {"min": 0}}}, "all values are NaN", True),
        ({"classes": {"max_ratio": 2}}, "not all values of the label are listed", False),
    ],
)
def test_rule_passes_only_if_the_statistics_can_decide_it(
    rules: dict[str, Any], text: str | None, is_judged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recordmill.statistics.dataset_sketch.MAX_LABEL_VALUES", 4096)
    numbers, sketch = np.arange(10_000), DatasetSketch(WIDE, ["train"])
    columns = {
        "code": pa.array(np.where(numbers % 2, 7, numbers)),
        "tensor": pa.array([[7, 7]] * 10_000),
        "flag": pa.array([True] * 10_000),
        "a b": pa.array([float("nan")] * 10_000),
        "label": pa.array(numbers),
        "city": pa.array(np.where(numbers % 2, "Rom", numbers.astype("U"))),
    }
    sketch.add(pa.RecordBatch.from_pydict(columns).cast(to_arrow(WIDE)), numbers.astype("u8"))
    violations = list(
        find_violations(
            DatasetStatistics.from_sketch(sketch), WIDE, read_rules(rules).fit_to_schema(WIDE)
        )
    )
    assert [violation.is_judged for violation in violations] == (
        [] if text is None else [is_judged]
    )
    assert text is None or text in str(violations[0])
    with pytest.raises(UsageError, match="features: flag: 'maybe' is neither true nor false"):
        read_rules({"features": {"flag": {"values": ["maybe"]}}}).fit_to_schema(WIDE)


@pytest.mark.parametrize(
    ("shape", "values"),
    [
        ((), [1.0, 3.0]),
        ((2,), [[1.0, 1.0], [1.0, 3.0]]),
        ((None,), [[1.0], [1.0, 3.0]]),
        ((None, None), [[[1.0], []], [[], [3.0]]]),
        ((None, 2), [[[1.0, 2.0]], [[0.0, 3.0]]]),
    ],
)
def test_remedy_of_a_range_rule_selects_the_violating_records(
    shape: tuple[int | None, ...], values: list[Any]
) -> None:
    schema = Schema((Feature('the "a b"', "float64", shape),))
    sketch = DatasetSketch(schema, ["train"])
    batch = pa.RecordBatch.from_pydict(
        {schema.names[0]: pa.array(values, to_arrow(schema).field(0).type)}
    )
    sketch.add(batch, np.arange(2).astype("u8"))
    rules = read_rules({"features": {schema.names[0]: {"max": 2}}})
    (violation,) = find_violations(DatasetStatistics.from_sketch(sketch), schema, rules)
    condition = ast.literal_eval(violation.remedy.partition("where=")[2].partition(")`")[0])
    assert Predicate(condition).evaluate(batch).tolist() == [False, True]


def test_expectation_error_lists_all_violations(tmp_path: Path) -> None:
    rules = read_expectations(
        {"features": {"fare": {"present": 1, "max": 3}, "city": {"values": []}}}
    ).fit_to_schema(SCHEMA)
    with pytest.raises(
        ExpectationError,
        match=r"6 expectations are not met; nothing was committed:\ntrain: feature 'far",
    ):
        check_expectations(statistics({"train": TRAIN, "test": TEST}), SCHEMA, rules)
    check_expectations(statistics({"train": TEST}), SCHEMA, Rules())
    for document in ({"leakage": {"records": 0}}, {"duplicates": {"keys": ["city"]}}):
        with pytest.raises(
            UsageError, match="compares records with each other after they are written"
        ):
            read_expectations(document)
