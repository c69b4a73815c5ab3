"""Declared dtypes override inferred ones, and parts are joined to one schema."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.base.errors import DataError, UsageError
from recordmill.schemas.arrow import to_arrow_field
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.values import labels
from recordmill.sources.values.labels import ClassNames
from recordmill.sources.values.schema_unifier import (
    SchemaUnifier,
    apply_dtypes,
    join_dtypes,
    join_shapes,
    parse_dtype,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("float64", ("float64", None)),
        ("uint8[28,28]", ("uint8", (28, 28))),
        ("int64[?]", ("int64", (None,))),
        ("string[]", ("string", ())),
        (" float32[?, 4] ", ("float32", (None, 4))),
        ("timestamp[us]", ("timestamp[us]", None)),
        ("timestamp[us,UTC]", ("timestamp[us, UTC]", None)),
        ("timestamp[ms, UTC][?]", ("timestamp[ms, UTC]", (None,))),
    ],
)
def test_dtype_text_is_parsed_into_dtype_and_shape(text: str, expected: tuple[str, Any]) -> None:
    assert parse_dtype(text) == expected


@pytest.mark.parametrize(
    "text", ["float", "int63", "timestamp", "timestamp[m]", "uint8[28", "uint8[a]", ""]
)
def test_unknown_dtype_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="unknown dtype"):
        parse_dtype(text)


def test_declared_dtypes_override_a_schema() -> None:
    schema = Schema((Feature("a", "int64", (None,), classes=("x",)), Feature("b", "string")))
    assert apply_dtypes(schema, {"a": "int32"})["a"] == Feature("a", "int32", (None,))
    assert apply_dtypes(schema, {"a": "int64[3]"})["a"] == Feature(
        "a", "int64", (3,), classes=("x",)
    )
    with pytest.raises(
        UsageError, match=r"--dtype 'a=int64\[3,\?\]': feature 'a': .*variable dimensions"
    ):
        apply_dtypes(schema, {"a": "int64[3,?]"})


def test_classes_are_sorted_by_utf8_bytes_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ClassNames("y")
    names.add(pa.array(["ä", "z", None, "Z"]))
    names += ClassNames("", ["\U00010000", "\uffff"])
    assert names.sorted_classes() == ("Z", "z", "ä", "\uffff", "\U00010000")
    monkeypatch.setattr(labels, "MAX_CLASSES", 5)
    for new_names in (["one more"], ["and more"]):
        names.add(pa.array(new_names))
        with pytest.raises(DataError, match="label 'y' has more than 5 different values"):
            names.sorted_classes()
    assert len(names.names) == 6


NUMBERS = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]
OTHERS = ["bool", "string", "bytes", "timestamp[s]", "timestamp[ns]", "timestamp[us, UTC]"]


@given(st.sampled_from(NUMBERS + OTHERS), st.sampled_from(NUMBERS + OTHERS))
def test_joined_dtype_is_commutative_and_holds_both(first: str, second: str) -> None:
    joined_dtype = join_dtypes(first, second)
    assert joined_dtype == join_dtypes(second, first)
    assert join_dtypes(first, first) == first
    if joined_dtype is None:
        return
    assert join_dtypes(joined_dtype, first) == joined_dtype
    if first.startswith(("int", "uint")) and joined_dtype.startswith(("int", "uint")):
        assert np.iinfo(joined_dtype).min <= np.iinfo(first).min
        assert np.iinfo(joined_dtype).max >= np.iinfo(first).max
    if first in NUMBERS[8:] and joined_dtype not in ("bfloat16", "float16"):
        assert joined_dtype in ("float32", "float64")


def test_joined_dtypes_and_shapes() -> None:
    assert join_dtypes("int8", "uint8") == "int16"
    assert join_dtypes("int64", "uint64") is None
    assert join_dtypes("int32", "float32") == "float64"
    assert join_dtypes("int16", "float32") == "float32"
    assert join_dtypes("bool", "int8") is None
    assert join_dtypes("float16", "bfloat16") == "float32"
    assert join_dtypes("timestamp[s]", "timestamp[ms]") == "timestamp[ms]"
    assert join_dtypes("timestamp[s]", "timestamp[s, UTC]") is None
    assert join_shapes((2, 3), (4, 3)) == (None, 3)
    assert join_shapes((2, 3), (2, 4)) == (None, None)
    assert join_shapes((), (2,)) is None


def test_feature_is_required_if_every_part_has_it() -> None:
    unifier = SchemaUnifier()
    unifier.add(
        pa.schema({"a": pa.int8(), "b": pa.null(), "c": pa.string()}),
        "one",
        {"a": 0, "b": 2, "c": 0},
    )
    unifier.add(pa.schema({"a": pa.int16(), "b": pa.string()}), "two", {"a": 0, "b": 0})
    assert unifier.schema() == Schema(
        (Feature("a", "int16", required=True), Feature("b", "string"), Feature("c", "string"))
    )
    assert unifier.empty_columns() == ()


def test_repeated_tables_count_as_tables() -> None:
    unifier = SchemaUnifier()
    schema = pa.schema({"a": pa.int8(), "b": pa.string(), "c": pa.float32()})
    for nulls in (0, 0, 1, 1):
        unifier.add(schema, "alike", {"a": 0, "b": nulls, "c": 0})
    assert [feature.required for feature in unifier.schema()] == [True, False, True]
    for _ in range(2):
        unifier.add(pa.schema({"a": pa.int16(), "b": pa.string()}), "other", {"a": 0, "b": 0})
    unifier.add(schema, "alike", {"a": 0, "b": 0, "c": 0})
    assert unifier.schema() == Schema(
        (Feature("a", "int16", required=True), Feature("b", "string"), Feature("c", "float32"))
    )


def test_repeated_table_with_other_metadata_is_read() -> None:
    unifier = SchemaUnifier()
    for names in (("cat",), ("cat",), ("dog",)):
        label = to_arrow_field(Feature("a", "int64", classes=names))
        unifier.add(pa.schema([label]), "somewhere")
    assert unifier.schema()["a"].classes == ("cat", "dog")


def test_empty_lists_join_with_lists() -> None:
    unifier = SchemaUnifier()
    for kind in (
        pa.list_(pa.null()),
        pa.null(),
        pa.list_(pa.list_(pa.int8())),
        pa.list_(pa.null()),
    ):
        unifier.add(pa.schema({"a": kind}), "somewhere")
    assert unifier.schema() == Schema((Feature("a", "int8", (None, None)),))
    with pytest.raises(
        DataError,
        match=r"there: 'a' is string \[\?, \?, \?\] here, but int8 \[\?, \?\] in somewhere",
    ):
        unifier.add(pa.schema({"a": pa.list_(pa.list_(pa.list_(pa.null())))}), "there")
    second_unifier = SchemaUnifier()
    second_unifier.add(pa.schema({"a": pa.list_(pa.null())}), "here")
    with pytest.raises(DataError, match=r"there: 'a' is int8 here, but string \[\?\] in here"):
        second_unifier.add(pa.schema({"a": pa.int8()}), "there")
