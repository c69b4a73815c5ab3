"""New records are read with the schema of the data set.

It changes only if an option allows that.
"""

import pytest

from recordmill.base.errors import UsageError
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.values.appended_schema import AppendRules, extend_schema

STRICT, WIDEN = AppendRules("out"), AppendRules("out", widen=True)


def extend(
    stored: Feature, inferred: Feature | None, rules: AppendRules = STRICT, kind: str = "parquet"
) -> Feature:
    new = () if inferred is None else (inferred,)
    return extend_schema(Schema((stored,)), Schema(new), rules, kind)["x"]


@pytest.mark.parametrize(
    ("stored", "inferred"),
    [
        ("int64", "int64"),
        ("int64", "int8"),
        ("float32", "float64"),  # these values are rounded
        ("float32", "int64"),
        ("string", "int64"),
    ],
)
def test_type_that_fits_or_is_rounded_is_read_as_the_stored_one(stored: str, inferred: str) -> None:
    feature = Feature("x", stored, (), True)
    assert extend(feature, Feature("x", inferred, (), True)) == feature
    assert extend(feature, Feature("x", inferred, (), True), WIDEN) == feature


def test_wider_type_is_refused_until_it_is_allowed() -> None:
    stored, wider = Feature("x", "int8", (), True), Feature("x", "int32", (), True)
    with pytest.raises(
        UsageError, match=r"'x' is int32 in the new inputs and int8 in out; --widen "
    ):
        extend(stored, wider)
    assert extend(stored, wider, WIDEN) == wider


def test_integers_in_text_keep_the_stored_type() -> None:
    stored, inferred = Feature("x", "int8", (), True), Feature("x", "int64", (), True)
    assert extend(stored, inferred, kind="csv") == stored
    with pytest.raises(UsageError, match="--widen "):
        extend(stored, inferred, kind="parquet")


def test_lists_of_a_fixed_length_may_become_variable() -> None:
    stored, inferred = Feature("x", "int64", (3,), True), Feature("x", "int64", (None,), True)
    with pytest.raises(UsageError, match="--widen "):
        extend(stored, inferred)
    assert extend(stored, inferred, WIDEN).shape == (None,)


def test_missing_values_are_refused_until_they_are_allowed() -> None:
    stored = Feature("x", "int64", (), True)
    for inferred in (None, Feature("x", "int64")):
        with pytest.raises(UsageError, match="'x' is missing in some or all of the new records"):
            extend(stored, inferred)
        assert not extend(stored, inferred, WIDEN).required
    assert extend(Feature("x", "int64"), None) == Feature("x", "int64")


def test_new_classes_get_the_numbers_after_the_others() -> None:
    stored = Feature("x", "int64", (), True, ("cat", "dog"))
    inferred = Feature("x", "int64", (), True, ("ant", "dog"))
    with pytest.raises(UsageError, match=r"'x' has the class .*ant.*--new-classes "):
        extend(stored, inferred)
    rules = AppendRules("out", new_classes=True)
    assert extend(stored, inferred, rules).classes == ("cat", "dog", "ant")
    assert extend(stored, Feature("x", "int64", (), True, ("dog",))) == stored


def test_new_feature_is_refused_until_it_is_allowed_and_is_then_optional() -> None:
    stored = Schema((Feature("x", "int64", (), True),), label="x")
    inferred = Schema((Feature("y", "string", (), True), Feature("x", "int64", (), True)))
    with pytest.raises(UsageError, match="out has no feature 'y'; --widen "):
        extend_schema(stored, inferred, STRICT, "csv")
    extended = extend_schema(stored, inferred, WIDEN, "csv")
    assert extended == Schema((stored["x"], Feature("y", "string")), label="x")


def test_kept_column_comes_last_and_needs_no_permission() -> None:
    stored = Schema((Feature("x", "int64", (), True),))
    inferred = Schema((Feature("part", "string", (), True), Feature("x", "int64", (), True)))
    schema = extend_schema(stored, inferred, STRICT, "csv", kept_columns=["part"])
    assert schema.names == ("x", "part")
    assert schema["part"].required
