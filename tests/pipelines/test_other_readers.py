"""TensorFlow and TensorFlow Datasets read the same values as our reader."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import recordmill
from recordmill.pipelines.build import BuildResult
from recordmill.reader.inspect.summary import summarise
from recordmill.records.example.encode import encode_sequences
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema


@pytest.fixture(
    scope="module",
    params=[
        "csv/nycflights13/planes.csv",
        pytest.param("csv/nycflights13/weather.csv", marks=pytest.mark.sweep),
        "images/clothing-small",
        "text/gsm8k/test.jsonl",
        "tensors",
    ],
)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    out = tmp_path_factory.mktemp("built") / "data_set"
    if request.param == "tensors":
        generator = np.random.default_rng(1)
        tensors = {
            "image": generator.integers(0, 256, (300, 8, 8, 3)).astype(np.uint8),
            "box": generator.random((300, 4)).astype(np.float32),
            "precise": generator.random(300),
            "flag": generator.random(300) < 0.5,
            "small": generator.integers(-100, 100, (300, 2)).astype(np.int8),
            "tokens": [list(range(i % 5)) for i in range(300)],
        }
        return recordmill.build(tensors, out, num_shards=3)
    source = request.getfixturevalue("shared_data") / request.param
    return recordmill.build(source, out, shard_size="1MiB")


def ours(built: BuildResult) -> dict[str, list[dict[str, Any]]]:
    return {
        split: recordmill.open(built.out, split=split).to_table().to_pylist()
        for split in built.records
    }


def equal(other_value: Any, value: Any) -> bool:
    if isinstance(value, str):
        value = value.encode()
    if hasattr(value, "timestamp"):
        return int(other_value) in (
            int(value.timestamp()),
            int(value.timestamp() * 1000),
            int(value.timestamp() * 1_000_000),
        )
    if isinstance(value, list | np.ndarray):
        return np.array_equal(np.asarray(other_value).reshape(-1), np.asarray(value).reshape(-1))
    return bool(other_value == value)


def test_view_is_built_with_its_types(tmp_path: Path) -> None:
    rows = {
        "a": np.arange(6, dtype=np.float32),
        "t": np.ones((6, 2, 2), np.uint8),
        "x": np.arange(6, dtype=np.int32),
    }
    recordmill.build(rows, tmp_path / "set")
    view = recordmill.open(tmp_path / "set").filter("x >= 2").rename({"a": "b"})
    recordmill.build(view, tmp_path / "again")
    rebuilt = recordmill.open(tmp_path / "again")
    assert {f.name: f.describe() for f in rebuilt.schema} == {
        f.name: f.describe() for f in view.schema
    }
    assert sorted(rebuilt["b"].tolist()) == [2, 3, 4, 5]


def test_tensorflow_parses_the_same_values(built: BuildResult) -> None:
    tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
    for split, rows in ours(built).items():
        paths = [str(path) for path in built.shards if path.name.startswith(f"{split}-")]
        records = list(tf.data.TFRecordDataset(paths).as_numpy_iterator())
        assert len(records) == len(rows) > 100
        for record, row in zip(records, rows, strict=True):
            features = tf.train.Example.FromString(record).features.feature
            for name, value in row.items():
                feature = built.schema[name]
                if value is None:
                    assert name not in features
                    continue
                values = getattr(
                    features[name],
                    {"int64": "int64_list", "float": "float_list", "bytes": "bytes_list"}[
                        feature.kind
                    ],
                ).value
                if feature.raw:
                    values = np.frombuffer(values[0], feature.dtype)
                assert equal(values if feature.shape else values[0], value), (name, value)


def test_tensorflow_datasets_reads_the_context_of_sequence_examples(tmp_path: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets", reason="needs TensorFlow Datasets")
    schema = Schema(
        (
            Feature("id", "int64", (), True),
            Feature("tags", "string", (None,), True),
            Feature("frames", "float32", (None,), True, per_step=True),
        ),
        message="SequenceExample",
    )
    rows = {
        "id": list(range(5)),
        "tags": [["a"] * i for i in range(5)],
        "frames": [[0.5] * i for i in range(5)],
    }
    batch = pa.RecordBatch.from_pydict(rows, to_arrow(schema))
    (tmp_path / "sets.tfrecord").write_bytes(encode_sequences(batch, schema).data.tobytes())
    out = recordmill.build(
        tmp_path / "sets.tfrecord", tmp_path / "out", kind="tfrecord", shuffle=False
    ).out
    records = list(tfds.as_numpy(tfds.builder_from_directory(out).as_dataset(split="train")))
    assert [(int(record["id"]), record["tags"].tolist()) for record in records] == [
        (i, [b"a"] * i) for i in range(5)
    ]
    assert [len(record) for record in records] == [2] * 5
    (refusal,) = summarise(recordmill.open(out).records.open_files).refusals or ()
    assert refusal.startswith("frames: it is a feature list")


def test_tensorflow_datasets_opens_the_folder(built: BuildResult) -> None:
    tf = pytest.importorskip("tensorflow")
    tfds = pytest.importorskip("tensorflow_datasets", reason="needs TensorFlow Datasets")
    from recordmill.schemas.tfds import tfds_limitations

    builder = tfds.builder_from_directory(built.out)
    assert {split: info.num_examples for split, info in builder.info.splits.items()} == dict(
        built.records
    )
    # show_examples uses this class.
    has_images = tfds.visualization.ImageGridVisualizer().match(builder.info)
    assert has_images == ("source" in built.schema)
    refused_names = {refusal.split(":")[0] for refusal in tfds_limitations(built.schema)}
    assert refused_names == {feature.name for feature in built.schema if not feature.required}
    for split, rows in ours(built).items():
        read_config = tfds.ReadConfig(interleave_cycle_length=1)
        records = list(
            tfds.as_numpy(
                builder.as_dataset(split=split, shuffle_files=False, read_config=read_config)
            )
        )
        assert len(records) == len(rows)
        for record, row in zip(records, rows, strict=True):
            assert set(record) == set(row) - refused_names
            for name, value in record.items():
                if has_images and name == "image":
                    row[name] = tf.io.decode_image(row[name], 3).numpy()
                    assert row[name].shape == (row["height"], row["width"], 3)
                assert equal(value, row[name]), name
