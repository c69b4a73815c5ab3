"""Features and schemas are validated, and know how an Example stores them."""

import pickle
from typing import Any

import pytest
from hypothesis import given
from kit.example_values import schemas

from recordmill.base.errors import DataError, UsageError
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import (
    DTYPES,
    ITEM_BYTES,
    MAX_FEATURES,
    Feature,
    Schema,
    Storage,
    check_feature_count,
    max_feature_count,
    step_feature_name,
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x", "int7"), "unknown dtype 'int7'"),
        (("x", "timestamp[h]"), "unknown dtype"),
        (("x", "timestamp[us, CET]"), "unknown dtype"),
        (("x", "int64", (True,)), "whole numbers and None"),
        (("x", "int64", (1,) * 65), "at most 64"),
        (("x", "int64", (2, None)), r"variable dimensions \(None\) must come first"),
        (("x", "int64", (-1,)), "has a negative dimension"),
        (("x", "int64", (1 << 16, 1 << 15)), "is more than a record can hold"),
        (("x", "int64", (), False, "ab"), "class names are a list of texts"),
        (("x", "string", (), False, ("a",)), "class names belong to int64, not string"),
        (("x", "int64", (3,), False, None, True), "first dimension is the step: None"),
    ],
)
def test_impossible_feature_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Feature(*arguments)


def test_name_that_a_record_cannot_hold_is_refused() -> None:
    with pytest.raises(DataError, match="rename it"):
        Feature("\ud800", "int64")


def test_dimensions_are_variable_first_and_then_fixed() -> None:
    feature = Feature("x", "float32", (None, None, 2, 3))
    assert (feature.ragged_rank, feature.inner_shape, feature.inner_size) == (2, (2, 3), 6)
    scalar = Feature("x", "float32")
    assert (scalar.ragged_rank, scalar.inner_shape, scalar.inner_size) == (0, (), 1)
    assert Feature("x", "float32", (2, 0)).inner_size == 0


def test_timestamp_has_a_unit_and_maybe_a_zone() -> None:
    assert Feature("t", "timestamp[us, UTC]").timestamp == ("us", "UTC")
    assert Feature("t", "timestamp[s]").timestamp == ("s", None)
    assert Feature("t", "int64").timestamp is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_stored_in_a_list_of_an_example(dtype: str) -> None:
    feature = Feature("x", dtype)
    assert feature.kind in ("int64", "float", "bytes")
    (storage,) = feature.storage()
    assert (storage.name, storage.kind) == ("x", feature.kind)
    if feature.raw:
        assert feature.kind == "bytes"
        assert ITEM_BYTES[dtype] > 0


def test_nested_lists_store_their_lengths_in_an_entry_for_each_level() -> None:
    names = [storage.name for storage in Feature("x", "int64", (None, None, None)).storage()]
    assert all(name.startswith("x/") for name in names)
    assert len(names) == len(set(names)) == 3


def test_description_shows_dtype_and_shape() -> None:
    assert Feature("x", "uint8", (28, 28)).describe() == "uint8 [28, 28]"
    assert Feature("x", "int64", (None,)).describe() == "int64 [?]"


def test_schema_selects_features_in_the_requested_order() -> None:
    schema = Schema((Feature("a", "int64"), Feature("b", "string")), label="a")
    assert schema.names == ("a", "b")
    assert schema.select(["b", "a"]).names == ("b", "a")
    assert schema.select(["b"]).label is None
    assert "a" in schema
    assert 7 not in schema
    assert schema["b"].dtype == "string"
    assert len(schema) == 2


def test_schema_with_two_features_of_one_name_is_refused() -> None:
    with pytest.raises((UsageError, DataError), match="'a'"):
        Schema((Feature("a", "int64"), Feature("a", "string")))


def test_label_that_is_not_a_feature_is_refused() -> None:
    with pytest.raises(UsageError, match="'b'"):
        Schema((Feature("a", "int64"),), label="b")


def test_pickled_schema_is_equal_and_usable() -> None:
    schema = Schema((Feature("a", "int64", (), True, ("x",)),), label="a")
    unpickled = pickle.loads(pickle.dumps(schema))
    assert unpickled == schema
    assert unpickled["a"].classes == ("x",)


def test_memory_limits_the_number_of_features() -> None:
    assert max_feature_count(1) == 1024
    assert max_feature_count(1 << 40) == MAX_FEATURES
    check_feature_count(1024, 1)
    with pytest.raises(DataError, match=r"a\.csv: it has 1,025 features or more.*memory="):
        check_feature_count(1025, 64 << 20 >> 6, "a.csv")
    with pytest.raises(DataError, match="if the names are data, make them values of a feature"):
        check_feature_count(MAX_FEATURES + 1, 1 << 40)


@pytest.mark.parametrize(
    ("feature", "storage"),
    [
        (Feature("x", "int8"), [Storage("x", "int64", 1)]),
        (Feature("x", "bfloat16", (2, 3)), [Storage("x", "float", 6)]),
        (Feature("x", "string", (None,)), [Storage("x", "bytes", None)]),
        (Feature("x", "float64"), [Storage("x", "bytes", 1, raw=True)]),
        (Feature("x", "float64", (None,)), [Storage("x", "bytes", 1, raw=True)]),
        (Feature("x", "uint8"), [Storage("x", "int64", 1)]),
        (Feature("x", "uint8", (28, 28)), [Storage("x", "bytes", 1, raw=True)]),
        (Feature("x", "uint64", (None, 4)), [Storage("x", "int64", None)]),
        (Feature("x", "uint32", (4,)), [Storage("x", "int64", 4)]),
        (Feature("x", "timestamp[us, UTC]"), [Storage("x", "int64", 1)]),
        (Feature("x", "int64", (0,)), [Storage("x", "int64", 0)]),
        (
            Feature("x", "float32", (None, None, None, 2)),
            [
                Storage("x/ragged_flat_values", "float", None),
                Storage("x/ragged_row_lengths_0", "int64", None),
                Storage("x/ragged_row_lengths_1", "int64", None),
            ],
        ),
        (Feature("x", "bytes", (None, None), per_step=True), [Storage("x", "bytes", None)]),
        (Feature("x/sequence", "int8", (None,), per_step=True), [Storage("x", "int64", None)]),
    ],
)
def test_feature_is_stored_in_these_entries(feature: Feature, storage: list[Storage]) -> None:
    assert list(feature.storage()) == storage


@pytest.mark.parametrize(
    ("features", "arguments", "message"),
    [
        ([Feature("b", "int8"), Feature("a", "int8"), Feature("b", "bool")], {}, r"twice: \['b'\]"),
        ([Feature("a", "int8")], {"label": "b"}, "label 'b' is not a feature; there are a"),
        ([Feature("a", "int8")], {"message": "Exemple"}, "message is Example, SequenceExample or"),
        (
            [Feature("a", "int8", (None, None)), Feature("a/ragged_flat_values", "int8")],
            {},
            "'a' and 'a/ragged_flat_values' both need the Example entry 'a/ragged_flat_values'",
        ),
        (
            [Feature("a", "int8", (None,), per_step=True), Feature("a/sequence", "int8", (None,), per_step=True)],
            {},
            "both need the Example entry 'a'",
        ),
    ],
)  # fmt: skip
def test_schema_with_a_contradiction_is_refused(
    features: list[Feature], arguments: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Schema(tuple(features), **arguments)


def test_context_and_feature_lists_may_have_the_same_entry() -> None:
    schema = Schema(
        (Feature("a", "int8"), Feature("a/sequence", "int8", (None,), per_step=True)),
        message="SequenceExample",
    )
    assert {storage.name for feature in schema for storage in feature.storage()} == {"a"}


@given(schemas())
def test_schema_is_a_collection_of_its_features(schema: Schema) -> None:
    assert len(schema) == len(list(schema)) == len(schema.names)
    assert all(name in schema and schema[name].name == name for name in schema.names)
    assert schema.select(schema.names) == schema
    to_arrow(schema)  # the cached Arrow schema is not pickled
    received = pickle.loads(pickle.dumps(schema))
    assert received == schema
    assert "_arrow" not in vars(received)


@pytest.mark.parametrize("entry", ["a", "a/sequence", "/sequence", ""])
@pytest.mark.parametrize("is_taken", [False, True])
def test_name_of_a_feature_list_is_that_of_the_feature_without_its_suffix(
    entry: str, is_taken: bool
) -> None:
    name = step_feature_name(entry, is_taken)
    assert Feature(name, "int8", (None,), per_step=True).storage()[0].name == entry
    assert not is_taken or name != entry
