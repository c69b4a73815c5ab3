"""TensorFlow Datasets opens our shards with our JSON files and reads all values."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.example_values import every_feature, example, flat, numpy_dtype, value

from recordmill.schemas import tfds
from recordmill.schemas.feature import Feature, Schema

ROWS = 5


def write_set(out: Path, schema: Schema, rows: list[dict[str, Any]]) -> None:
    """Writes two shards of one split, and the JSON files in the folder above."""
    import tensorflow as tf

    (out / "data-1").mkdir()
    lengths = [2, len(rows) - 2]
    for shard, part in enumerate((rows[:2], rows[2:])):
        with tf.io.TFRecordWriter(
            str(out / f"data-1/train-0000{shard}-of-00002.tfrecord")
        ) as writer:
            for row in part:
                writer.write(example(schema.features, row))
    info = tfds.dataset_info_json(
        "mill",
        "1.2.3",
        {"train": tfds.SplitSizes(lengths, 99)},
        "data-1/{SPLIT}-{SHARD_X_OF_Y}.{FILEFORMAT}",
        schema=schema,
    )
    (out / "dataset_info.json").write_text(json.dumps(info))
    (out / "features.json").write_text(json.dumps(tfds.to_features_json(schema)))
    for name, text in tfds.label_files(schema).items():
        (out / name).write_text(text, encoding="utf-8")


def plain(value: Any) -> Any:
    """Returns a value of TensorFlow Datasets as nested lists."""
    import tensorflow as tf

    if isinstance(value, (tf.RaggedTensor, tf.compat.v1.ragged.RaggedTensorValue)):
        return value.to_list()
    return value if isinstance(value, bytes) else np.asarray(value).tolist()


def nested(feature: Feature, value: Any) -> Any:
    if isinstance(value, list):
        return [nested(feature, item) for item in value]
    return np.asarray(value, numpy_dtype(feature)).tolist()


@pytest.mark.sweep
def test_tfds_reads_every_feature_with_its_original_value(tmp_path: Path) -> None:
    import tensorflow_datasets

    label = Feature("the/label", "int64", (), True, ("cat", "hund å"))
    tags = Feature("tags", "int64", (None,), True, ("a", "b", "c"))
    schema = Schema((*every_feature(), label, tags), "the/label")
    rng = np.random.default_rng(0)
    rows = [
        {f.name: value(f, rng) for f in schema}
        | {"the/label": np.int64(i % 2), "tags": [np.int64(i % 3)] * i}
        for i in range(ROWS)
    ]
    write_set(tmp_path, schema, rows)

    builder = tensorflow_datasets.builder_from_directory(str(tmp_path))
    assert builder.info.splits["train"].num_examples == ROWS
    assert builder.info.features["the/label"].names == ["cat", "hund å"]
    assert builder.info.features["tags"].feature.names == ["a", "b", "c"]
    unsupported_names = {text.split(":")[0] for text in tfds.tfds_limitations(schema)}
    supported_features = [feature for feature in schema if feature.name not in unsupported_names]
    assert {feature.dtype for feature in schema if feature.name in unsupported_names} == {
        "bfloat16",
        "float64",
    }
    assert len(supported_features) > 100
    records = list(
        tensorflow_datasets.as_numpy(builder.as_dataset(split="train", shuffle_files=False))
    )
    assert len(records) == ROWS
    for row, record in zip(rows, records, strict=True):
        assert set(record) == {feature.name for feature in supported_features}
        for feature in supported_features:
            assert plain(record[feature.name]) == nested(feature, row[feature.name]), feature
            if (
                isinstance(record[feature.name], np.ndarray | np.generic)
                and feature.kind != "bytes"
            ):
                assert record[feature.name].dtype == numpy_dtype(feature), feature

    inputs, output = next(
        iter(tensorflow_datasets.as_numpy(builder.as_dataset(split="train", as_supervised=True)))
    )
    assert output == rows[0]["the/label"]
    assert set(inputs) == {feature.name for feature in supported_features} - {"the/label"}


def test_supervised_inputs_leave_out_features_that_reveal_the_label() -> None:
    label, revealing_features = (
        Feature("label", "int64", (), True, ("a", "b")),
        [Feature("class_name", "string", (), True), Feature("source", "string", (), True)],
    )

    def inputs(*features: Feature) -> Any:
        return tfds.dataset_info_json(
            "n", "1.0.0", {}, schema=Schema((*features, *revealing_features, label), "label")
        )["supervisedKeys"]["tuple"]["items"][0]

    assert inputs(Feature("image", "bytes", (), True), Feature("height", "int64", (), True)) == {
        "featureKey": "image"
    }
    assert inputs(Feature("text", "string", (), True)) == {"featureKey": "text"}
    assert inputs(Feature("x", "int64", (), True), Feature("y", "int64", (), True)) == {
        "dict": {"dict": {"x": {"featureKey": "x"}, "y": {"featureKey": "y"}}}
    }


def test_tfds_reads_lists_of_float64_exactly(tmp_path: Path) -> None:
    import tensorflow_datasets

    schema = Schema((Feature("x", "float64", (None, 2), True),))
    rows: list[dict[str, Any]] = [
        {"x": []},
        {"x": [np.array([1e300, 1 / 3])]},
        {"x": [np.zeros(2), np.array([-0.0, 5e-324])]},
    ]
    write_set(tmp_path, schema, rows)
    records = tensorflow_datasets.as_numpy(
        tensorflow_datasets.builder_from_directory(str(tmp_path)).as_dataset(split="train")
    )
    assert [record["x"].tolist() for record in records] == [
        [list(item) for item in row["x"]] for row in rows
    ]
    assert flat(schema["x"], rows[2]["x"]).tolist() == [0.0, 0.0, -0.0, 5e-324]


def test_features_json_equals_the_json_of_tfds() -> None:
    import tensorflow_datasets
    from google.protobuf import json_format

    features = tensorflow_datasets.features
    expected = features.FeaturesDict(
        {
            "text": features.Text(),
            "label": features.ClassLabel(num_classes=2),
            "raw": features.Tensor(shape=(None,), dtype=np.float64, encoding="bytes"),
            "boxes": features.Sequence(
                features.Sequence(features.Tensor(shape=(4,), dtype=np.uint16))
            ),
            "image": features.Scalar(np.object_),
            "photo": features.Image(),
            "flag": features.Scalar(np.bool_),
        }
    )
    schema = Schema(
        (
            Feature("text", "string", (), True),
            Feature("label", "int64", (), True, ("a", "b")),
            Feature("raw", "float64", (None,), True),
            Feature("boxes", "uint16", (None, None, 4), True),
            Feature("image", "bytes", (), True),
            Feature("photo", "bytes", (), True),
            Feature("flag", "bool", (), True),
        )
    )
    assert tfds.to_features_json(schema, ["photo"]) == json_format.MessageToDict(
        expected.to_proto()
    )


@pytest.mark.parametrize(
    ("feature", "reason"),
    [
        (Feature("x", "int64"), "nulls"),
        (Feature("x", "bfloat16", (2,), True), "bfloat16"),
        (Feature("x", "float64", (None, None), True), "nested lists of float64"),
        (Feature("x", "int64", (None, 0), True), "size zero"),
        (
            Feature("x", "int64", (None,), True, per_step=True),
            "the context of SequenceExamples only",
        ),
    ],
)
def test_feature_that_tfds_would_change_is_left_out_and_reported(
    feature: Feature, reason: str
) -> None:
    message = "SequenceExample" if feature.per_step else "Example"
    schema = Schema((feature, Feature("y", "int64", (), True)), "x", message)
    (refusal,) = tfds.tfds_limitations(schema)
    assert refusal.startswith("x: ")
    assert reason in refusal
    assert list(tfds.to_features_json(schema)["featuresDict"]["features"]) == ["y"]
    assert "supervisedKeys" not in tfds.dataset_info_json("n", "1.0.0", {}, schema=schema)


def test_data_set_that_tfds_cannot_read_is_reported() -> None:
    schema = Schema((Feature("x", "int64", (), True),))
    assert "gzip" in tfds.tfds_limitations(schema, "gzip")[0]
    (refusal,) = tfds.tfds_limitations(
        Schema((Feature("record", "bytes", (), True),), message="bytes")
    )
    assert "bytes" in refusal
    assert tfds.tfds_limitations(schema) == []


@pytest.mark.parametrize("names", [("a", "a"), ("a", ""), ("a", " b"), ("a", "b\nc"), ("a", "b\r")])
def test_class_names_that_a_labels_file_cannot_hold_get_no_file(names: tuple[str, ...]) -> None:
    schema = Schema(
        (Feature("x", "int64", (), True, names), Feature("y", "int64", (), True, ("b", "c")))
    )
    assert tfds.label_files(schema) == {"y.labels.txt": "b\nc\n"}


def test_labels_whose_file_names_collide_get_no_file() -> None:
    schema = Schema(
        (
            Feature("a/b", "int64", (), True, ("p", "q")),
            Feature("a.b", "int64", (), True, ("r", "s")),
        )
    )
    assert tfds.label_files(schema) == {}
