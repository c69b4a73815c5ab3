"""Declared transforms determine their features, and errors name feature and step."""

import math
import os
from pathlib import Path
from typing import Any

import pytest

from recordmill.base.errors import UsageError
from recordmill.preprocessing.declaration import (
    TRANSFORM_STEPS,
    declare_transform,
    read_declaration,
)
from recordmill.schemas.feature import Feature, Schema

SCHEMA = Schema(
    (
        Feature("age", "int32", required=True),
        Feature("fare", "float64"),
        Feature("company", "string"),
        Feature("photo", "bytes", required=True),
        Feature("tags", "string", (None,)),
        Feature("boxes", "float32", (None, 4)),
        Feature("label", "int64", required=True, classes=("no", "yes")),
    ),
    label="label",
)


@pytest.mark.parametrize(
    "spec", ["zscore", {"zscore": None}, {"zscore": True}, ["zscore"], [{"zscore": None}]]
)
def test_step_without_argument_is_a_word_or_a_mapping(spec: Any) -> None:
    (column,) = declare_transform({"age": spec}, SCHEMA).columns
    assert (column.name, column.source, [step.name for step in column.steps]) == (
        "age",
        "age",
        ["zscore"],
    )
    assert (column.value.dtype, column.value.required) == ("float32", True)


def test_features_that_are_not_named_are_copied_and_dropped_ones_are_not() -> None:
    declared = declare_transform(
        {"age": "zscore", "photo": "drop", "label": {"rename": "y"}}, SCHEMA
    )
    assert declared.copied == (
        ("fare", "fare"),
        ("company", "company"),
        ("tags", "tags"),
        ("boxes", "boxes"),
        ("y", "label"),
    )
    assert declared.inputs == ("age",)


def test_steps_are_chained_and_new_columns_come_from_other_features() -> None:
    declared = declare_transform(
        {
            "fare": [{"impute": "mean"}, "log1p", {"rename": "cost"}],
            "age_group": {"from": "age", "bucketize": 4, "one_hot": True},
            "words": {"from": "company", "tokenize": {"lower": True}, "hash": 50},
        },
        SCHEMA,
    )
    columns = {
        column.name: (column.source, column.value.dtype, column.value.shape)
        for column in declared.columns
    }
    assert columns == {
        "cost": ("fare", "float32", ()),
        "age_group": ("age", "float32", (4,)),
        "words": ("company", "int64", (None,)),
    }
    assert dict(declared.copied)["age"] == "age"


@pytest.mark.parametrize(
    ("feature", "spec", "dtype", "shape", "required"),
    [
        ("age", {"clip": [0, None]}, "int64", (), True),
        ("age", {"clip": [-1e30, 1e30]}, "int64", (), True),
        ("age", {"impute": 0.5}, "float32", (), True),
        ("age", {"impute": 1e18}, "int64", (), True),
        ("fare", "minmax", "float32", (), False),
        ("fare", {"bucketize": 3}, "int64", (), False),
        ("company", "vocabulary", "int64", (), False),
        (
            "company",
            {"impute": "?", "vocabulary": {"top_k": 3}, "one_hot": None},
            "float32",
            (4,),
            True,
        ),
        ("tags", {"vocabulary": {"oov_buckets": 0}}, "int64", (None,), True),
        ("label", "one_hot", "float32", (2,), True),
        ("age", {"hash": 7}, "int64", (), True),
        ("photo", {"image": {"resize": [8, 9], "channels": 1}}, "float32", (8, 9, 1), True),
    ],
)
def test_steps_determine_dtype_shape_and_presence_of_the_value(
    feature: str, spec: Any, dtype: str, shape: tuple[int, ...], required: bool
) -> None:
    (column,) = declare_transform({feature: spec}, SCHEMA).columns
    assert (column.value.dtype, column.value.shape, column.value.required) == (
        dtype,
        shape,
        required,
    )


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (
            {"agee": "zscore"},
            "there is no feature 'agee'; there are age, fare, .*; did you mean age.; `from: FEATURE` makes",
        ),
        ({"x": {"from": "z", "zscore": None}}, "there is no feature 'z'; there are age"),
        (
            {"age": "z-score"},
            f"feature 'age', step 'z-score': there is no such step; there are {', '.join(TRANSFORM_STEPS)}, keep",
        ),
        (
            {"company": "zscore"},
            "feature 'company', step 'zscore': it takes numbers, not string that may be missing; steps",
        ),
        ({"age": "zscor"}, r"there is no such step; .*; did you mean zscore\?$"),
        (
            {"company": {"vocabulary": {"topk": 3}}},
            r"has no 'topk': one of top_k, .*; did you mean top_k\?; write",
        ),
        (
            {"age": {"bucketize": 1}},
            "step 'bucketize': is 1, not from 2 to 65536; write bucketize: 10",
        ),
        ({"age": {"bucketize": True}}, "step 'bucketize': is True, not a whole number"),
        (
            {"company": {"vocabulary": {"top": 3}}},
            "step 'vocabulary': has no 'top': one of top_k, min_count, oov_buckets",
        ),
        (
            {"fare": "vocabulary"},
            "it takes text or whole numbers, not float32; bucketize first",
        ),
        ({"fare": ["zscore", {"hash": 3}]}, "step 'hash': it takes text or whole numbers"),
        (
            {"company": {"vocabulary": None, "one_hot": None}},
            "not int64 that may be missing; impute first",
        ),
        ({"age": "one_hot"}, "not known before the data is read; write one_hot: N"),
        # 1 equals True, which would be allowed.
        ({"label": {"one_hot": 1}}, "step 'one_hot': is 1, not from 2 to"),
        ({"age": {"zscore": 1}}, "step 'zscore': 1: it takes no argument"),
        ({"company": {"vocabulary": 1.0}}, "step 'vocabulary': is 1.0, not a mapping"),
        ({"age": {"clip": [3, 1]}}, "step 'clip': 3 is above 1; write clip: "),
        ({"age": {"clip": [0.2, 0.8]}}, "step 'clip': no whole number lies between 0.2 and 0.8"),
        ({"age": {"clip": [1e30, None]}}, r"step 'clip': 1\d+ is beyond int64"),
        ({"age": {"clip": [None, -1e30]}}, r"step 'clip': -1\d+ is beyond int64"),
        ({"fare": {"clip": [None, 1e300]}}, r"step 'clip': 1e\+300 is beyond float32"),
        ({"age": {"impute": 1e30}}, r"step 'impute': 1e\+30 is beyond int64"),
        ({"age": {"impute": 2**63}}, "step 'impute': 9223372036854775808 is beyond int64"),
        ({"fare": {"impute": -1e39}}, r"step 'impute': -1e\+39 is beyond float32"),
        (
            {"age": {"clip": [0, 10**400]}},
            r"step 'clip': \[1\]: is a number of 1329 bits, not a finite number; write clip",
        ),
        (
            {"fare": {"impute": math.inf}},
            "step 'impute': is inf, not a finite number; write impute",
        ),
        ({"age": {"impute": math.nan}}, "step 'impute': is nan, not a finite number; write impute"),
        (
            {"age": {"bucketize": 10**9}},
            "step 'bucketize': is 1000000000, not from 2 to 65536; write bucketize",
        ),
        (
            {"company": {"hash": 2**63}},
            "step 'hash': is 9223372036854775808, not from 1 to 2.63 - 1; write hash",
        ),
        (
            {"company": {"vocabulary": {"oov_buckets": 2**63}}},
            "step 'vocabulary': oov_buckets: is 9223372036854775808, not from 0 to",
        ),
        ({"age": {"impute": "x"}}, "step 'impute': 'x' does not fit int64"),
        ({"photo": "image"}, "step 'image': resize: is missing"),
        (
            {"photo": "tokenize"},
            "it takes text, not bytes; steps for this type are vocabulary, hash, impute, image",
        ),
        (
            {"boxes": "zscore"},
            r"feature 'boxes': it is float32 \[\?, 4\], and a transform takes no lists of lists; keep",
        ),
        ({"age": ["drop", "zscore"]}, "feature 'age': 'drop' can't be combined with other steps"),
        (
            {"age": {"rename": "fare", "zscore": None}},
            "two outputs are called 'fare'; rename or drop one",
        ),
        ({"age": 7}, "feature 'age': 7 is not a step; write one, as in `zscore`"),
        ({"age": "drop"}, "no feature has a step; there are zscore"),
        ({3: "zscore"}, "3 is not a text; quote the name"),
        ({"age": {"zscore": 3}}, "step 'zscore': 3: it takes no argument; write zscore"),
    ],
)
def test_invalid_declaration_is_refused_with_feature_step_and_choices(
    declared: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        declare_transform(declared, SCHEMA)


def test_yaml_declaration_runs_no_code(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("age: zscore\nfare: [{impute: 0}, log1p]\n")
    assert read_declaration(path) == {"age": "zscore", "fare": [{"impute": 0}, "log1p"]}
    for text, message in (
        (
            "age: !!python/object/apply:os.system [echo]\n",
            "can't be read: line 1: could not determine a constructor",
        ),
        ("- age\n", "is not a mapping of features to steps"),
        ("a: [\n", "can't be read"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=message):
            read_declaration(path)
    with pytest.raises(
        UsageError, match=r"missing\.yaml.: can't be read: No such file or directory$"
    ):
        read_declaration(tmp_path / "missing.yaml")
    os.truncate(path, 30 << 30)
    with pytest.raises(
        UsageError, match=r"t\.yaml.: has 32,212,254,720 bytes, above the 16,777,216 allowed$"
    ):
        read_declaration(path)
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(UsageError, match=r"pipe\.yaml.: is not a regular file$"):
        read_declaration(tmp_path / "pipe.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age: zscore\nfare: zscore\nage: minmax\n", "'age' occurs twice"),
        ("company: {vocabulary: {top_k: 5, top_k: 6}}\n", "'top_k' occurs twice"),
        ("age: &x [*x]\n", "holds itself"),
        ("age: " + "[" * 20000 + "]" * 20000, "nested too deep"),
        ("age: " + "[" * 30 + "zscore" + "]" * 30, "nested too deep"),
        (
            "\n".join(
                [
                    "a0: &a0 [zscore, zscore]",
                    *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)),
                ]
            ),
            "holds itself",
        ),
    ],
    ids=["repeated", "repeated inside", "itself", "deep", "deeper", "many times itself"],
)
def test_yaml_with_ambiguous_keys_or_values_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(UsageError, match=message):
        declare_transform(read_declaration(tmp_path / "t.yaml"), SCHEMA)


def test_yaml_aliases_and_merged_mappings_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(
        "age: &steps [log1p, zscore]\nfare: *steps\nx: {<<: {from: age}, bucketize: 4}\n"
    )
    declared = declare_transform(read_declaration(tmp_path / "t.yaml"), SCHEMA)
    assert [(column.name, len(column.steps)) for column in declared.columns] == [
        ("age", 2),
        ("fare", 2),
        ("x", 1),
    ]
