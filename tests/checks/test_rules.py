"""Rules are read from files or dicts, and invalid ones are refused."""

from pathlib import Path

import pytest
from kit.rule_sketches import SCHEMA

from recordmill.base.errors import UsageError
from recordmill.checks.rules import Threshold, Thresholds, read_rules
from recordmill.schemas.feature import Feature, Schema


@pytest.mark.parametrize(
    ("text", "message"),
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
def test_invalid_rules_are_refused_in_one_sentence(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(text)
    with pytest.raises(UsageError, match=message) as error:
        read_rules(tmp_path / "rules.yaml").fit_to_schema(SCHEMA, ("train", "test"))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600
    assert "rules.yaml" in str(error.value)


def test_missing_rules_file_and_rules_without_label_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.yaml.*can't be read"):
        read_rules(tmp_path / "missing.yaml")
    with pytest.raises(UsageError, match="the data set has no label"):
        read_rules({"classes": {"min_share": 0.1}}).fit_to_schema(Schema((Feature("x", "int64"),)))


def test_custom_thresholds_are_exact_and_null_disables_them() -> None:
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
