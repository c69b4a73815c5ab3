"""A schema contributes rules, and differences between two schemas are named."""

import pytest
from kit.rule_sketches import SCHEMA, TRAIN, statistics

from recordmill.checks.constraints import (
    find_violations,
)
from recordmill.checks.rules import Threshold, Thresholds
from recordmill.checks.schema_rules import find_schema_changes, rules_from_schema
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.tfmd import from_pbtxt

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
    violations = [
        str(item) for item in find_violations(statistics({"train": TRAIN}), SCHEMA, rules)
    ]
    assert [
        "presence" in violations[0],
        "smallest value is 0" in violations[1],
        "largest" in violations[2],
    ] == [True] * 3
    assert "such as 'Oslo', are not among the expected ones, above 10 %" in violations[4]
    changes = [str(item) for item in find_schema_changes(SCHEMA, from_pbtxt(PBTXT), "schema.pbtxt")]
    assert any(
        "feature 'age': schema: is in schema.pbtxt, but not in the data set" in item
        for item in changes
    )
    assert any("'carrier': schema: is new" in item for item in changes)
    assert any(
        "'fare': schema: is float64, and in schema.pbtxt float32" in item for item in changes
    )


def test_schema_changes_are_named() -> None:
    old_schema = Schema(
        (
            Feature("fare", "float64", required=True),
            Feature("carrier", "int64", (2,), required=True, classes=("B6", "UA")),
            Feature("city", "string", required=True),
            Feature("photo", "bytes", required=True),
            Feature("tags", "string", (None,), required=True),
        ),
        label="city",
    )
    changes = [str(change) for change in find_schema_changes(SCHEMA, old_schema, "old")]
    assert len(changes) == 4
    assert "may be missing, and is required in old" in changes[0]
    assert "is int64, and in old int64 [2]" in changes[1]
    assert "has the classes UA, B6, EV, and in old B6, UA" in changes[2]
    assert "is the label in old, and here 'carrier' is" in changes[3]
    assert list(find_schema_changes(SCHEMA, SCHEMA, "itself")) == []
