"""Rules: valid and refused files, what a schema contributes, and the violations that they find
in a data set.
"""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from recordmill.base.errors import UsageError
from recordmill.checks.constraints import (
    ExpectationError,
    check_expectations,
    find_violations,
    read_expectations,
)
from recordmill.checks.rules import Rules, Threshold, Thresholds, read_rules
from recordmill.checks.schema_rules import find_schema_changes, rules_from_schema
from recordmill.checks.violations import Violation
from recordmill.records.columns.predicate import Predicate
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.tfmd import from_pbtxt
from recordmill.statistics.dataset_sketch import DatasetSketch
from recordmill.statistics.dataset_statistics import DatasetStatistics

SCHEMA = Schema(
    (
        Feature("fare", "float64"),
        Feature("carrier", "int64", required=True, classes=("UA", "B6", "EV")),
        Feature("city", "string", required=True),
        Feature("photo", "bytes", required=True),
        Feature("tags", "string", (None,), required=True),
    ),
    label="carrier",
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("features: {fair: {min: 0}}", "no feature 'fair'.*did you mean fare"),
        ("featurs: {}", "has no 'featurs': one of features, .*; did you mean features"),
        ("features: {fare: {most: 3}}", "features.fare: has no 'most': one of present, min, "),
        ("features: {fare: {min: 0, min: 1}}", "line 1: 'min' occurs twice"),
        ("features: [fare]", "features: is a list, not a mapping"),
        ("features: {fare: 3}", "features.fare: is 3, not a mapping of present"),
        ("features: {fare: {present: much}}", "features.fare.present: is 'much', not a number"),
        ("features: {fare: {present: 12}}", "present: is 12, not a share from 0 to 1"),
        ("features: {fare: {min: .nan}}", "min: is nan, not a finite number"),
        ("features: {fare: {min: .inf}}", "min: is inf, not a finite number"),
        ("features: {fare: {min: true}}", "min: is True, not a number"),
        ("features: {fare: {min: 3, max: 1}}", "min: 3 is above max"),
        ("features: {fare: {mean: 3}}", "mean: is 3, not a list of 2 values"),
        (
            "features: {fare: {mean: [3, 1]}}",
            "mean: is a list, not a pair with the smaller number first",
        ),
        (
            "features: {fare: {values: [1]}}",
            "features: fare: values: is only for texts and integers, and the feature holds float64",
        ),
        (
            "features: {city: {zeros: 0.1}}",
            "features: city: zeros: is only for numbers, and the feature holds string",
        ),
        ("features: {carrier: {shares: {XX: [0, 1]}}}", "no class 'XX'"),
        ("features: {city: {values: [1.5]}}", "is 1.5, neither a text nor a whole number"),
        ("drift: {jensen_shannon: high}", "drift.jensen_shannon: is 'high', not a number"),
        (
            "drift: {jenson_shannon: 0.1}",
            "drift: has no 'jenson_shannon'.*did you mean jensen_shannon",
        ),
        ("leakage: {keys: [ids]}", "no feature 'ids'"),
        (
            "leakage: {keys: [tags]}",
            r"keys: 'tags' holds string \[\?\]; name a feature of single values",
        ),
        ("splits: {tets: [0, 1]}", "splits: no split 'tets'.*did you mean test"),
        ("- features", "is not a mapping of rules"),
        ("features: !!python/object/apply:os.system [echo]", "could not determine a constructor"),
        ("features: " + "[" * 2_000 + "]" * 2_000, "nested too deep"),
        ("features: &x {fare: *x}", "nested too deep, or holds itself"),
        (
            f"features: {{fare: {{min: {10**400}}}}}",
            "min: is a number of 1329 bits, not a finite number",
        ),
        ("features: {fare: {min: 2024-99-99}}", "min: is '2024-99-99', not a number"),
    ],
    ids=range(29),
)
def test_invalid_rules_are_refused_in_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(text)
    with pytest.raises(UsageError, match=said) as error:
        read_rules(tmp_path / "rules.yaml").fit_to_schema(SCHEMA, ("train", "test"))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600
    assert "rules.yaml" in str(error.value)


def test_missing_rules_file_and_rules_without_label_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.yaml.*can't be read"):
        read_rules(tmp_path / "missing.yaml")
    with pytest.raises(UsageError, match="the data set has no label"):
        read_rules({"classes": {"min_share": 0.1}}).fit_to_schema(Schema((Feature("x", "int64"),)))


def test_given_thresholds_are_exact_and_null_disables_them() -> None:
    rules = read_rules(
        {
            "drift": {"l_infinity": 0.2, "missing": None},
            "features": {"fare": {"skew": None, "drift": 0}},
        }
    )
    assert rules.drift == Thresholds(l_infinity=Threshold(0.2), missing=None)
    assert rules.for_feature("fare").drift == Threshold(0.0)
    assert rules.for_feature("fare").skew is None
    assert rules.skew is None


def statistics(splits: dict[str, dict[str, Any]]) -> DatasetStatistics:
    sketch = DatasetSketch(SCHEMA, list(splits))
    for number, columns in enumerate(splits.values()):
        count = len(columns["fare"])
        arrays = {
            "fare": pa.array(columns["fare"], pa.float64()),
            "carrier": pa.array(columns["carrier"], pa.int64()),
            "city": pa.array(columns["city"], pa.large_string()),
            "photo": pa.array([b"x"] * count, pa.large_binary()),
            "tags": pa.array([["a"]] * count, pa.large_list(pa.large_string())),
        }
        batch = pa.RecordBatch.from_pydict(arrays)
        sketch.add(batch, np.arange(count).astype("u8"), np.full(count, number))
    return DatasetStatistics.from_sketch(sketch)


TRAIN = {
    "fare": [None, None, 1.0, 2.0, 0.0, float("nan"), 7.0, float("inf")],
    "carrier": [0, 0, 0, 0, 0, 1, 1, 0],
    "city": ["Rom", "Rom", "Bonn", "Bonn", "Bonn", "Oslo", "Rom", "Rom"],
}
TEST = {"fare": [3.0, 4.0], "carrier": [0, 1], "city": ["Rom", "Bonn"]}


@pytest.mark.parametrize(
    ("rules", "said"),
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
def test_each_rule_finds_its_violations(rules: dict[str, Any], said: list[str]) -> None:
    fitted = read_rules(rules).fit_to_schema(SCHEMA, ("train", "test"))
    found = list(find_violations(statistics({"train": TRAIN, "test": TEST}), SCHEMA, fitted))
    assert len(found) == len(said), list(map(str, found))
    for one, text in zip(found, said, strict=True):
        assert text in str(one)
        assert one.remedy
        assert None not in (one.figure, one.threshold)
        assert isinstance(one.to_json()["figure"], int | float | str)


def test_values_rule_finds_other_values_if_not_all_are_counted() -> None:
    many = {"fare": [1.0] * 9000, "carrier": [0] * 9000, "city": [f"city {n}" for n in range(9000)]}
    fitted = read_rules({"features": {"city": {"values": ["city 1"]}}}).fit_to_schema(SCHEMA)
    (found,) = find_violations(statistics({"train": many}), SCHEMA, fitted)
    assert isinstance(found.figure, float)
    assert found.figure > 0.9


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
    ("rules", "said", "is_judged"),
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
    rules: dict[str, Any], said: str | None, is_judged: bool, monkeypatch: pytest.MonkeyPatch
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
    found = list(
        find_violations(
            DatasetStatistics.from_sketch(sketch), WIDE, read_rules(rules).fit_to_schema(WIDE)
        )
    )
    assert [one.is_judged for one in found] == ([] if said is None else [is_judged])
    assert said is None or said in str(found[0])
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
    (one,) = find_violations(DatasetStatistics.from_sketch(sketch), schema, rules)
    condition = ast.literal_eval(one.remedy.partition("where=")[2].partition(")`")[0])
    assert Predicate(condition).evaluate(batch).tolist() == [False, True]


PBTXT = """
feature { name: "fare" type: FLOAT presence { min_fraction: 0.9 } float_domain { min: 1 max: 5 }
          value_count { min: 1 max: 1 }
          drift_comparator { jensen_shannon_divergence { threshold: 0.03 } } }
feature { name: "city" type: BYTES domain: "cities" value_count { min: 1 max: 1 }
          distribution_constraints { min_domain_mass: 0.9 } skew_comparator { infinity_norm { threshold: 0.02 } } }
feature { name: "age" type: INT value_count { min: 1 max: 1 } presence { min_fraction: 1.0 } }
string_domain { name: "cities" value: "Rom" value: "Bonn" }
"""


def test_schema_contributes_domains_presence_and_comparators() -> None:
    rules = rules_from_schema(PBTXT, set(SCHEMA.names), "schema.pbtxt").fit_to_schema(SCHEMA)
    assert rules.for_feature("fare").drift == Threshold(pytest.approx(0.03))  # type: ignore[arg-type]
    assert rules.for_feature("city").skew == Threshold(pytest.approx(0.02))  # type: ignore[arg-type]
    assert rules.drift == Thresholds(None, None, None, None)
    found = [str(one) for one in find_violations(statistics({"train": TRAIN}), SCHEMA, rules)]
    assert ["presence" in found[0], "smallest value is 0" in found[1], "largest" in found[2]] == [
        True
    ] * 3
    assert "such as 'Oslo', are not among the expected ones, above 10 %" in found[4]
    changes = [str(one) for one in find_schema_changes(SCHEMA, from_pbtxt(PBTXT), "schema.pbtxt")]
    assert any(
        "feature 'age': schema: is in schema.pbtxt, but not in the data set" in one
        for one in changes
    )
    assert any("'carrier': schema: is new" in one for one in changes)
    assert any("'fare': schema: is float64, and in schema.pbtxt float32" in one for one in changes)


def test_schema_changes_are_named() -> None:
    other = Schema(
        (
            Feature("fare", "float64", required=True),
            Feature("carrier", "int64", (2,), required=True, classes=("B6", "UA")),
            Feature("city", "string", required=True),
            Feature("photo", "bytes", required=True),
            Feature("tags", "string", (None,), required=True),
        ),
        label="city",
    )
    found = [str(one) for one in find_schema_changes(SCHEMA, other, "old")]
    assert len(found) == 4
    assert "may be missing, and is required in old" in found[0]
    assert "is int64, and in old int64 [2]" in found[1]
    assert "has the classes UA, B6, EV, and in old B6, UA" in found[2]
    assert "is the label in old, and here 'carrier' is" in found[3]
    assert list(find_schema_changes(SCHEMA, SCHEMA, "itself")) == []


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
    for given in ({"leakage": {"records": 0}}, {"duplicates": {"keys": ["city"]}}):
        with pytest.raises(
            UsageError, match="compares records with each other after they are written"
        ):
            read_expectations(given)


def test_violation_text_has_place_and_remedy() -> None:
    found = Violation(
        "leakage", "3 records leak", "take them out", None, "test", 0.5, 0.0, "a.tfrecord", 7
    )
    assert str(found) == "a.tfrecord, record 7: test: leakage: 3 records leak; take them out"
    assert found.to_json() == {
        "check": "leakage",
        "what": "3 records leak",
        "remedy": "take them out",
        "feature": None,
        "split": "test",
        "figure": 0.5,
        "threshold": 0.0,
        "file": "a.tfrecord",
        "record": 7,
        "is_judged": True,
    }


def test_yaml_rules_parse_words_and_numbers_as_yaml_1_2(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(
        "features: {city: {values: [NO, yes, on, 12:30, 1_000, 2024-01-02], shares: {off: [0, 1]}}, "
        "flag: {values: [true, False]}}\n"
        "drift: {jensen_shannon: 1e-3, missing: 2.5E-2}\nrecords: [010, 0x1F]\n"
    )
    rules = read_rules(path)
    assert rules.features["city"].values == ("NO", "yes", "on", "12:30", "1_000", "2024-01-02")
    assert rules.records == (10, 31)
    assert list(rules.features["city"].shares) == ["off"]
    assert rules.features["flag"].values == ("1", "0")
    assert rules.drift.jensen_shannon == Threshold(0.001)
    assert rules.drift.missing == Threshold(0.025)
