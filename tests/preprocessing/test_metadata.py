"""The manifest and TensorFlow Transform's metadata describe the fitted transform."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kit.transform_sets import folder_of
from kit.transformed_set import DECLARED, ROWS, words

import recordmill
from recordmill.base.errors import DataError, UsageError
from recordmill.pipelines.build import build
from recordmill.preprocessing import metadata
from recordmill.preprocessing.declaration import declare_transform
from recordmill.preprocessing.metadata import (
    check_transform_files,
    describe_uncounted_records,
    find_passthrough_features,
    make_declared_outputs,
    make_transformed_schema,
    restore_transform,
    trace_outputs,
)
from recordmill.preprocessing.saved_transform import SavedTransform
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.tfmd import from_pbtxt, to_pbtxt
from recordmill.shards.manifest import Manifest, load_manifest
from recordmill.sources.arrow.single_example import example

tf = pytest.importorskip("tensorflow")


def test_manifest_holds_the_fitted_values_as_json(out: Path, raw: Any) -> None:
    transform = json.loads((out / "manifest.json").read_text())["transform"]
    age, miles = raw["train"]["age"].to_numpy(), raw["train"]["miles"].to_numpy()
    assert transform["found"]["age"] == {
        "mean": pytest.approx(age.mean()),
        "variance": pytest.approx(age.var()),
    }
    assert transform["found"]["miles"] == {"min": float(miles.min()), "max": float(miles.max())}
    assert transform["found"]["city"]["vocabulary"] == 5
    path = folder_of(out) / transform["found"]["city"]["vocabulary_file"]
    assert path.read_text().splitlines() == words(raw["train"]["city"].to_pylist())[:5]
    schema = recordmill.open(out).schema
    assert dict(schema["age"].found) == transform["found"]["age"]
    assert dict(schema["city"].found) == {"vocabulary": 5}
    assert schema["label"].found == ()
    assert transform["given"] == DECLARED
    assert (transform["fitted_on"], transform["inputs"]) == (
        "train",
        ["age", "fare", "miles", "city", "note", "kind"],
    )
    assert load_manifest(out).options["transform"] == transform["digest"]


def test_tf_transform_reads_the_saved_transform(out: Path, raw: Any) -> None:
    import tensorflow as tf
    import tensorflow_transform as tft

    output = tft.TFTransformOutput(str(folder_of(out)))
    manifest = load_manifest(out)
    schema, raw_schema = from_pbtxt(manifest.schema), from_pbtxt(manifest.transform["raw_schema"])
    assert (
        output.vocabulary_size_by_name("vocabulary_3_city"),
        output.vocabulary_size_by_name("city"),
    ) == (5, 5)
    assert output.vocabulary_by_name("kind") == [
        word.encode() for word in output_words(out, "kind")
    ]
    spec = output.transformed_feature_spec()  # includes kept features and the label
    assert set(spec) == set(schema.names) > {"id", "label"}
    records = [example(row, schema) for row in recordmill.open(out, split="validation")]
    parsed = tf.io.parse_example(records, spec)
    (batch,) = recordmill.open(out, split="validation").to_tf(
        len(records), shuffle=False, label=False
    )
    for name in ("id", "label", "age", "kind"):
        assert np.array_equal(parsed[name], batch[name])
    spec = output.raw_feature_spec()
    assert set(spec) == set(manifest.transform["inputs"])
    raw_records = [example(row, raw_schema) for row in raw["validation"].to_pylist()]
    transformed = output.transform_raw_features(tf.io.parse_example(raw_records, spec))
    order = np.argsort(batch["id"])
    assert np.allclose(transformed["age"], batch["age"].numpy()[order])
    assert np.array_equal(transformed["kind"], batch["kind"].numpy()[order])
    assert np.array_equal(
        tf.sparse.to_dense(transformed["city"], -9)[:, 0],
        np.where(batch["city/valid"], batch["city"], -9)[order],
    )


def test_tf_transform_parses_made_and_kept_lists(tmp_path: Path) -> None:
    import tensorflow as tf
    import tensorflow_transform as tft

    data = {
        "note": ["x y", "z", "", "y"],
        "ids": [[7], [], [7, 8], [9]],
        "deep": [[[1], [2, 3]], [], [[]], [[4]]],
    }
    steps = {"note": ["tokenize", "vocabulary"], "more": {"from": "ids", "vocabulary": {}}}
    build(data, tmp_path / "out", transform=steps, shuffle=False)
    dataset = recordmill.open(tmp_path / "out")
    spec = tft.TFTransformOutput(str(folder_of(tmp_path / "out"))).transformed_feature_spec()
    assert set(spec) == set(dataset.schema.names) == {"note", "more", "ids", "deep"}
    parsed = tf.io.parse_example([example(row, dataset.schema) for row in dataset], spec)
    expected = dataset.to_table()
    for name in ("note", "more", "deep"):
        assert parsed[name].to_list() == expected[name].to_pylist()
    assert [len(words) for words in parsed["note"].to_list()] == [2, 1, 0, 1]
    assert tf.sparse.to_dense(parsed["ids"], -1).numpy().tolist() == [
        [7, -1],
        [-1, -1],
        [7, 8],
        [9, -1],
    ]


def output_words(out: Path, feature: str) -> list[str]:
    name = load_manifest(out).transform["found"][feature]["vocabulary_file"]
    return (folder_of(out) / name).read_text().splitlines()


def test_manifest_of_a_build_without_transform_has_none(inputs: Path, tmp_path: Path) -> None:
    build(inputs, tmp_path / "out", num_shards=1)
    text = (tmp_path / "out/manifest.json").read_text()
    assert "transform" not in json.loads(text)
    assert Manifest.from_json(text).transform == {}
    assert load_manifest(tmp_path / "out").records == {"train": ROWS}
    with pytest.raises(UsageError, match="was built without a transform"):
        build(inputs, tmp_path / "other", transform_from=tmp_path / "out")


RAW = Schema(
    (
        Feature("id", "int64", required=True),
        Feature("age", "int32", required=True),
        Feature("city", "string"),
        Feature("tags", "string", (None,)),
        Feature("label", "int64", required=True, classes=("no", "yes")),
    ),
    label="label",
)


def test_outputs_take_the_positions_of_their_raw_features() -> None:
    outputs = Schema(
        (Feature("word_count", "int64"), Feature("age_z", "float32"), Feature("id", "int64"))
    )
    schema = make_transformed_schema(
        RAW, outputs, [("y", "label"), ("age", "age")], {"age_z": "age"}
    )
    assert schema.names == ("id", "age_z", "age", "y", "word_count")
    assert schema.label == "y"
    assert schema["y"].classes == ("no", "yes")


def test_label_is_lost_if_no_output_has_it() -> None:
    assert make_transformed_schema(RAW, Schema((Feature("id", "int64"),)), [], {}).label is None


def test_two_outputs_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="transform: two outputs are called 'age'; rename one"):
        make_transformed_schema(RAW, Schema((Feature("age", "int64"),)), [("age", "age")], {})


def test_raw_features_that_no_output_keeps_get_a_prefix() -> None:
    pairs = find_passthrough_features(RAW, [("y", "label"), ("age", "age")])
    assert pairs == (("raw/id", "id"), ("raw/city", "city"), ("raw/tags", "tags"))


def test_declared_output_is_required_if_its_shape_is_fixed() -> None:
    declared = declare_transform({"age": "zscore", "tags": {"hash": 9}, "city": {"hash": 9}}, RAW)
    outputs = {feature.name: feature for feature in make_declared_outputs(declared)}
    assert (outputs["age"].required, outputs["tags"].required) == (True, False)
    assert outputs["tags"] == Feature("tags", "int64", (None,))
    assert outputs["city"].required is False


def trace(spec: Any, name: str = "out", source: str | None = None) -> Feature:
    graph: Any = SimpleNamespace(
        specs={name: spec},
        find_passed_input=lambda _: None,
        find_sparse_source=lambda _: source,
    )
    return trace_outputs(graph, RAW)[name]


def test_output_of_a_function_becomes_a_feature_of_its_spec() -> None:
    dense_feature = trace(tf.TensorSpec([None, 2, 3], tf.float32))
    assert dense_feature == Feature("out", "float32", (2, 3), required=True)
    ragged_feature = trace(tf.RaggedTensorSpec([None, None], tf.string, 1))
    assert ragged_feature == Feature("out", "bytes", (None,))
    # A text of a function is bytes, unless the raw feature of this name is text.
    assert trace(tf.TensorSpec([None], tf.string), "city").dtype == "string"
    sparse_spec = tf.SparseTensorSpec([None, None], tf.int64)
    assert (
        trace(sparse_spec) == trace(sparse_spec, source="tags") == Feature("out", "int64", (None,))
    )
    assert trace(sparse_spec, source="city") == Feature("out", "int64")
    assert trace(tf.SparseTensorSpec([None, 1], tf.int64)) == Feature("out", "int64")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (tf.TensorSpec([None, None], tf.float32), "each row needs a known one"),
        (tf.TensorSpec([], tf.float32), "each row needs a known one"),
        (tf.TensorSpec(None, tf.float32), "each row needs a known one"),
        (tf.RaggedTensorSpec([None, None, None], tf.int64, 2), "return a tensor, or a list"),
    ],
)
def test_output_that_no_feature_can_hold_is_refused(spec: Any, message: str) -> None:
    with pytest.raises(UsageError, match=rf"^transform: output 'out' .*{message}"):
        trace(spec)


def test_passed_input_keeps_the_raw_feature() -> None:
    graph: Any = SimpleNamespace(
        specs={"y": tf.TensorSpec([None], tf.int64)}, find_passed_input=lambda _: "label"
    )
    assert trace_outputs(graph, RAW)["y"] == Feature("y", "int64", (), True, ("no", "yes"))


@pytest.fixture
def entry(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "transform_fn").mkdir()
    (tmp_path / "transform_fn" / "model").write_bytes(b"model")
    return {
        "digest": "d",
        "raw_schema": to_pbtxt(RAW),
        "inputs": ["age"],
        "outputs": ["age"],
        "kept": [["y", "label"]],
        "files": dict(metadata._hash_files(str(tmp_path))),
    }


SCHEMA = Schema((Feature("age", "float32", required=True), Feature("y", "int64")), label="y")


def test_transform_is_restored_from_its_entry(tmp_path: Path, entry: dict[str, Any]) -> None:
    saved = restore_transform(str(tmp_path), entry, SCHEMA)
    assert (saved.inputs.names, saved.outputs.names) == (("age",), ("age",))
    assert (saved.copied, saved.digest) == ((("y", "label"),), "d")
    assert saved.inputs["age"].dtype == "int32"


@pytest.mark.parametrize("change", ["missing", "content", "size"])
def test_missing_or_changed_file_is_an_error_with_its_path(
    tmp_path: Path, entry: dict[str, Any], change: str
) -> None:
    model = tmp_path / "transform_fn" / "model"
    (tmp_path / "another file").touch()
    check_transform_files(str(tmp_path), entry)
    if change == "missing":
        model.unlink()
    else:
        model.write_bytes(b"MODEL" if change == "content" else b"model!")
    problem = "is missing" if change == "missing" else "differs from what the manifest says"
    with pytest.raises(DataError, match=f"^{model}: {problem}; the transform can't be used"):
        restore_transform(str(tmp_path), entry, SCHEMA)


@pytest.mark.parametrize(
    "damage",
    [
        {"kept": [["y"]]},
        {"inputs": ["gone"]},
        {"outputs": 5},
        {"raw_schema": "x"},
        {"digest": None},
    ],
)
def test_damaged_entry_is_an_error(
    tmp_path: Path, entry: dict[str, Any], damage: dict[str, Any]
) -> None:
    damaged_entry = {**entry, **damage}
    if damage == {"digest": None}:
        del damaged_entry["digest"]
    with pytest.raises(DataError):
        restore_transform(str(tmp_path), damaged_entry, SCHEMA)


def test_values_that_the_analysis_left_out_are_noted() -> None:
    fitted = {"age": {"mean": 3.0, "nonfinite": 1234}, "city": {"unlisted": 2, "vocabulary": 9}}
    saved = SavedTransform(
        "f", RAW, RAW, (), RAW, "d", {"found": fitted, "given": {"age": "zscore"}}
    )
    age, city = describe_uncounted_records(saved)
    assert age == "transform: feature 'age': 1,234 values are NaN or infinite, and do not count"
    assert city.startswith("transform: feature 'city': 2 words are empty or contain a line break")
    function = SavedTransform("f", RAW, RAW, (), RAW, "d", {"found": fitted, "given": "f.py:f"})
    assert describe_uncounted_records(function) == ()


def test_results_become_json_values() -> None:
    assert metadata._to_json_value(np.array([[1.0, np.inf]])) == [1.0, "inf"]
    assert metadata._to_json_value(np.array(b"\xffa", object)) == "\\xffa"
    assert metadata._to_json_value(np.float64(0.5)) == 0.5


def test_last_word_of_a_vocabulary_counts_without_a_line_break(tmp_path: Path) -> None:
    for text, count in ((b"", 0), (b"a\n", 1), (b"a\nb", 2)):
        (tmp_path / "words").write_bytes(text)
        assert metadata._count_lines(str(tmp_path / "words")) == count
