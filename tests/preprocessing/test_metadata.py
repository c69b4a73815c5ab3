"""The manifest and TensorFlow Transform's metadata describe the fitted transform."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.transform_sets import folder_of
from kit.transformed_set import DECLARED, ROWS, words

import recordmill
from recordmill.base.errors import UsageError
from recordmill.pipelines.build import build
from recordmill.schemas.tfmd import from_pbtxt
from recordmill.shards.manifest import Manifest, load_manifest
from recordmill.sources.arrow.single_example import example


def test_manifest_holds_the_fitted_values_as_json(out: Path, raw: Any) -> None:
    about = json.loads((out / "manifest.json").read_text())["transform"]
    age, miles = raw["train"]["age"].to_numpy(), raw["train"]["miles"].to_numpy()
    assert about["found"]["age"] == {
        "mean": pytest.approx(age.mean()),
        "variance": pytest.approx(age.var()),
    }
    assert about["found"]["miles"] == {"min": float(miles.min()), "max": float(miles.max())}
    assert about["found"]["city"]["vocabulary"] == 5
    path = folder_of(out) / about["found"]["city"]["vocabulary_file"]
    assert path.read_text().splitlines() == words(raw["train"]["city"].to_pylist())[:5]
    schema = recordmill.open(out).schema
    assert dict(schema["age"].found) == about["found"]["age"]
    assert dict(schema["city"].found) == {"vocabulary": 5}
    assert schema["label"].found == ()
    assert about["given"] == DECLARED
    assert (about["fitted_on"], about["inputs"]) == (
        "train",
        ["age", "fare", "miles", "city", "note", "kind"],
    )
    assert load_manifest(out).options["transform"] == about["digest"]


def test_tf_transform_reads_the_saved_transform(out: Path, raw: Any) -> None:
    import tensorflow as tf
    import tensorflow_transform as tft

    output = tft.TFTransformOutput(str(folder_of(out)))
    about = load_manifest(out)
    schema, raw_schema = from_pbtxt(about.schema), from_pbtxt(about.transform["raw_schema"])
    assert (
        output.vocabulary_size_by_name("vocabulary_3_city"),
        output.vocabulary_size_by_name("city"),
    ) == (5, 5)
    assert output.vocabulary_by_name("kind") == [
        word.encode() for word in output_words(out, "kind")
    ]
    spec = output.transformed_feature_spec()  # also of what is kept, and of the label
    assert set(spec) == set(schema.names) > {"id", "label"}
    records = [example(row, schema) for row in recordmill.open(out, split="validation")]
    parsed = tf.io.parse_example(records, spec)
    (batch,) = recordmill.open(out, split="validation").to_tf(
        len(records), shuffle=False, label=False
    )
    for name in ("id", "label", "age", "kind"):
        assert np.array_equal(parsed[name], batch[name])
    spec = output.raw_feature_spec()
    assert set(spec) == set(about.transform["inputs"])
    raw_records = [example(row, raw_schema) for row in raw["validation"].to_pylist()]
    made = output.transform_raw_features(tf.io.parse_example(raw_records, spec))
    by_id = np.argsort(batch["id"])
    assert np.allclose(made["age"], batch["age"].numpy()[by_id])
    assert np.array_equal(made["kind"], batch["kind"].numpy()[by_id])
    assert np.array_equal(
        tf.sparse.to_dense(made["city"], -9)[:, 0],
        np.where(batch["city/valid"], batch["city"], -9)[by_id],
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
    opened = recordmill.open(tmp_path / "out")
    spec = tft.TFTransformOutput(str(folder_of(tmp_path / "out"))).transformed_feature_spec()
    assert set(spec) == set(opened.schema.names) == {"note", "more", "ids", "deep"}
    parsed = tf.io.parse_example([example(row, opened.schema) for row in opened], spec)
    expected = opened.to_table()
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
