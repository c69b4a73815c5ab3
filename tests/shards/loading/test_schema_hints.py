"""A schema next to TFRecord files is used if the records agree.

Otherwise a note names it, and the read ignores it.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.data_sets import FOLDER, MIXED, mixed_rows, write_data_set
from kit.files import tfrecord_bytes, write_file

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import DataError, UsageError
from recordmill.pipelines.read import read
from recordmill.reader.dataset import Dataset, open
from recordmill.schemas import tfds, tfmd
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.loading.infer_schema import infer_schema
from recordmill.shards.loading.schema_hints import read_schema_file
from recordmill.sources.arrow.single_example import example
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.common.options import InputOptions
from recordmill.sources.tfrecord.source import plan_tfrecord
from recordmill.storage.listing import list_inputs


def write_foreign(tmp_path: Path, rows: int = 40) -> Path:
    """Writes shards of MIXED to a folder without any other file."""
    out = write_data_set(tmp_path / "made", {"train": mixed_rows(rows)})
    (tmp_path / "in").mkdir()
    for shard in (out / FOLDER).glob("*.tfrecord"):
        shutil.copy(shard, tmp_path / "in")
    return tmp_path / "in"


@pytest.mark.parametrize(
    "place",
    [
        "schema.pbtxt",
        "transformed_metadata/schema.pbtxt",
        "metadata/schema.pbtxt",
        "../schema.pbtxt",
    ],
)
def test_schema_file_in_the_folder_describes_the_features(tmp_path: Path, place: str) -> None:
    folder = write_foreign(tmp_path)
    assert open(folder).schema != MIXED
    write_file(folder / place, tfmd.to_pbtxt(MIXED))
    ds = open(folder)
    assert {f.name: (f.dtype, f.shape, f.classes) for f in ds.schema} == {
        f.name: (f.dtype, f.shape, f.classes) for f in MIXED
    }
    assert ds.schema.label == "label"
    assert ds.to_table()["matrix"].equals(mixed_rows(40)["matrix"])
    assert ds.schema_notes[0].startswith(f"{len(MIXED)} features described by ")
    assert infer_schema(ds.records.catalog.files) == (ds.schema, list(ds.schema_notes))


def test_features_json_of_ours_restores_the_schema(tmp_path: Path) -> None:
    folder = write_foreign(tmp_path)
    write_file(folder / "features.json", json.dumps(tfds.to_features_json(MIXED)))
    for name, text in tfds.label_files(MIXED).items():
        write_file(folder / name, text)
    split = {"train": tfds.SplitSizes([40], 1)}
    write_file(
        folder / "dataset_info.json",
        json.dumps(tfds.dataset_info_json("made", "1.0.0", split, schema=MIXED)),
    )
    schema = open(folder).schema
    for name in ("id", "matrix", "name", "small", "exact", "words", "boxes", "label"):
        assert schema[name] == MIXED[name]
    assert schema.label == "label"


def write(path: Path, *records: dict[str, Any]) -> None:
    path.write_bytes(tfrecord_bytes(example(record) for record in records))


def write_hint(path: Path, *features: Feature) -> None:
    write_file(path / "schema.pbtxt", tfmd.to_pbtxt(Schema(features)))


def test_hint_that_the_records_contradict_is_not_used(tmp_path: Path) -> None:
    write(
        tmp_path / "a.tfrecord",
        *(
            {"n": 300, "x": [1.0, 2.0, 3.0, 4.0], "s": b"\xff", "ok": 7, "raw": b"12345678"}
            for _ in range(3)
        ),
    )
    wrong_features = [
        Feature("n", "uint8"),
        Feature("x", "float32", (3,)),
        Feature("s", "string"),
        Feature("ok", "int8"),
        Feature("raw", "uint8", (2, 2)),
    ]
    write_hint(tmp_path, *wrong_features, Feature("gone", "int64"))
    ds = open(tmp_path)
    # The feature is required, because it is in every record.
    assert ds.schema["ok"] == Feature("ok", "int8", (), True)
    assert [ds.schema[name].describe() for name in ("n", "x", "s", "raw")] == [
        "int64",
        "float32 [4]",
        "bytes",
        "string",
    ]
    used_note, unused_note = ds.schema_notes
    assert used_note.startswith("1 feature described by ")
    assert "n (it declares uint8, but the records contain 300 to 300)" in unused_note
    assert unused_note.endswith("and 2 more")
    assert ds.to_table()["n"].to_pylist() == [300] * 3


def test_shape_of_raw_bytes_and_boxes_comes_from_the_hint(tmp_path: Path) -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    write(
        tmp_path / "a.tfrecord",
        {"pixels": pixels.tobytes(), "boxes": [0.0] * 8},
        {"pixels": pixels.tobytes(), "boxes": [1.0] * 4},
    )
    write_hint(
        tmp_path, Feature("pixels", "uint8", (3, 4), True), Feature("boxes", "float32", (None, 4))
    )
    ds = open(tmp_path)
    assert ds.to_numpy()["pixels"].tolist() == [pixels.tolist()] * 2
    assert [len(boxes) for boxes in ds.to_table()["boxes"].to_pylist()] == [2, 1]


def test_contradictory_or_invalid_hints_are_noted(tmp_path: Path) -> None:
    for name, dtype in (("a", "int8"), ("b", "int16")):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "x.tfrecord", {"n": 1})
        write_hint(tmp_path / name, Feature("n", dtype))
    ds = open(tmp_path)
    assert ds.schema["n"].dtype == "int64"
    assert 'which differ; choose with schema="FILE"' in ds.schema_notes[0]
    (tmp_path / "b" / "schema.pbtxt").unlink()
    assert "next to only some of the files" in open(tmp_path).schema_notes[0]
    (tmp_path / "a" / "schema.pbtxt").write_text("no schema {")
    ds = open(tmp_path / "a")
    assert "is not a tensorflow_metadata schema" in ds.schema_notes[0]
    assert ds.schema["n"].dtype == "int64"
    (tmp_path / "a" / "features.json").write_text('["x"]')
    assert "is not a JSON object" in open(tmp_path / "a").schema_notes[0]
    (tmp_path / "a" / "features.json").write_text('{"featuresDict": 5}')
    assert "is not what TensorFlow Datasets writes" in open(tmp_path / "a").schema_notes[0]
    (tmp_path / "a" / "features.json").write_text('{"featuresDict": {"features": {"n": 5}}}')
    assert open(tmp_path / "a").schema["n"].dtype == "int64"


def build_classes(folder: Path, *labels: str) -> Path:
    """Builds a data set of one record for each label. Its classes are sorted."""
    recordmill.build({"x": list(range(len(labels))), "label": list(labels)}, folder, label="label")
    return folder


@pytest.fixture
def mixed_classes(tmp_path: Path) -> Path:
    """Folder of the data sets `a` and `b`, in which `dog` has the numbers 1 and 0."""
    build_classes(tmp_path / "in" / "a", "cat", "dog")
    build_classes(tmp_path / "in" / "b", "dog", "emu")
    return tmp_path / "in"


DIFFERENT_CLASSES = (
    "b/schema.pbtxt: 'label' has numbers of the classes 'dog', 'emu', and those of .*a/schema.pbtxt "
    "are 'cat', 'dog'; .* read each of them to Parquet and build from that"
)


@pytest.mark.parametrize("inputs", ["", "*", "*/data-*/*.tfrecord"])
def test_different_numbers_of_one_class_are_an_error(
    mixed_classes: Path, inputs: str, tmp_path: Path
) -> None:
    path = mixed_classes / inputs
    calls: list[Callable[[Dataset], object]] = [
        Dataset.to_table,
        Dataset.head,
        lambda ds: next(iter(ds.batches(2))),
        lambda ds: ds.schema,
    ]
    for call in calls:
        with pytest.raises(DataError, match=DIFFERENT_CLASSES):
            call(open(path))
        with pytest.raises(DataError, match=DIFFERENT_CLASSES):
            call(open(path, infer_from=1))
    for limit in (None, 1):
        with pytest.raises(DataError, match=DIFFERENT_CLASSES):
            read(path, tmp_path / "out", limit=limit)
    assert not (tmp_path / "out").exists()


def test_different_classes_fail_before_all_records_are_read(
    mixed_classes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recordmill.reader.open_files.infer_from_files", pytest.fail)
    with pytest.raises(DataError, match=DIFFERENT_CLASSES):
        open(mixed_classes).to_table()


def test_files_with_different_classes_are_readable_without_the_label(
    mixed_classes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = read(mixed_classes, tmp_path / "out", columns="x")
    assert result.schema.names == ("x",)
    assert main(["inspect", str(mixed_classes), "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "label    int64" in text
    assert "'label' has numbers of the classes 'dog', 'emu'" in text


def test_files_with_equal_numbers_of_classes_are_read_together(tmp_path: Path) -> None:
    build_classes(tmp_path / "a", "cat", "dog")
    build_classes(tmp_path / "b", "dog", "cat")
    assert open(tmp_path).schema["label"].classes == ("cat", "dog")
    assert sorted(open(tmp_path).to_table()["label"].to_pylist()) == [0, 0, 1, 1]
    # The first numbers of the third data set are the same.
    build_classes(tmp_path / "c", "cat", "dog", "emu")
    ds = open(tmp_path)
    assert ds.schema["label"].classes is None
    assert sorted(ds.to_table()["label"].to_pylist()) == [0, 0, 0, 1, 1, 1, 2]
    (tmp_path / "d").mkdir()
    write(tmp_path / "d" / "foreign.tfrecord", {"x": 1, "label": 9})
    ds = open(tmp_path)
    assert "next to only some of the files" in ds.schema_notes[0]
    assert len(ds.to_table()) == 8
    build_classes(tmp_path / "e", "dog", "emu")
    with pytest.raises(DataError, match=r"e/schema.pbtxt: 'label' has numbers of the classes"):
        open(tmp_path).to_table()


def test_read_and_build_note_the_used_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.tfrecord", {"n": 1}, {"n": 2})
    assert read(tmp_path / "in", tmp_path / "plain").notes == ()
    write_file(
        tmp_path / "in" / "features.json",
        json.dumps(tfds.to_features_json(Schema((Feature("n", "int8", (), True),)))),
    )
    note = f"1 feature described by {tmp_path}/in/features.json"
    result = read(tmp_path / "in", tmp_path / "out")
    assert result.notes == ("left out files that are not TFRecords (1): features.json", note)
    assert result.schema["n"].dtype == "int8"
    files = list_inputs([str(tmp_path / "in" / "a.tfrecord")]).files
    assert plan_tfrecord(files, InputOptions(), PlanOptions()).notes == (
        "schema inferred from all records",
        note,
    )
    assert main(["read", str(tmp_path / "in"), "--out", str(tmp_path / "cli")]) == 0
    assert f"note: {note}\n" in capsys.readouterr().err


def test_read_notes_images_and_tensors_that_it_could_decode(tmp_path: Path) -> None:
    """The notes are only about bytes that the read does not decode."""
    tf = pytest.importorskip("tensorflow")
    png = tf.io.encode_png(np.zeros((3, 2, 3), np.uint8)).numpy()
    tensor = tf.io.serialize_tensor(np.zeros((2, 3), np.float32)).numpy()
    write(tmp_path / "a.tfrecord", *[{"photo": png, "t": tensor, "text": b"a", "n": 1}] * 3)
    photo = 'photo holds encoded images. To get pixels: decode_images="photo"'
    assert read(tmp_path / "a.tfrecord", tmp_path / "1", decode_tensor="t").notes == (photo,)
    assert (
        read(tmp_path / "a.tfrecord", tmp_path / "2", columns="n,t", decode_tensor="t").notes == ()
    )
    assert (
        read(
            tmp_path / "a.tfrecord", tmp_path / "3", decode_images=True, columns="photo", limit=1
        ).notes
        == ()
    )
    assert read(tmp_path / "a.tfrecord", tmp_path / "4", limit=0).notes == ()


def test_inspect_notes_the_used_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.tfrecord", {"n": 1}, {"n": 2})
    write_hint(tmp_path / "in", Feature("n", "int8"))
    assert main(["inspect", str(tmp_path / "in"), "--quiet"]) == 0
    text = capsys.readouterr().out
    assert f"note: 1 feature described by {tmp_path}/in/schema.pbtxt\n" in text
    assert "n        int8" in text
    write_file(tmp_path / "other.pbtxt", tfmd.to_pbtxt(Schema((Feature("n", "int16", (), True),))))
    assert (
        main(
            ["inspect", str(tmp_path / "in"), "--quiet", "--schema", str(tmp_path / "other.pbtxt")]
        )
        == 0
    )
    text = capsys.readouterr().out
    assert "n        int16" in text
    assert "described by" not in text
    with pytest.raises(UsageError, match="no such file"):
        read_schema_file(tmp_path / "nothing")
    with pytest.raises(DataError, match="can't be read"):
        read_schema_file(tmp_path / "in" / "a.tfrecord")


def test_data_set_written_by_tensorflow_datasets_is_described_by_its_files(tmp_path: Path) -> None:
    tfds_package = pytest.importorskip("tensorflow_datasets")
    kinds = tfds_package.features
    features = kinds.FeaturesDict(
        {
            "label": kinds.ClassLabel(names=["cat", "dog"]),
            "matrix": kinds.Tensor(shape=(2, 3), dtype=np.float32),
            "raw": kinds.Tensor(shape=(2, 2), dtype=np.uint8, encoding="bytes"),
            "pixels": kinds.Tensor(shape=(3,), dtype=np.uint8),
            "packed": kinds.Tensor(shape=(2,), dtype=np.int32, encoding="zlib"),
            "box": kinds.BBoxFeature(),
            "objects": kinds.Sequence(
                {"bbox": kinds.BBoxFeature(), "label": kinds.ClassLabel(names=["p", "q"])}
            ),
            "text": kinds.Text(),
            "small": np.int32,
            "flag": np.bool_,
            "nest": {"x": np.float32},
            "seq": kinds.Sequence(np.int64),
            "rag": kinds.Sequence(kinds.Sequence(np.int64)),
            "double": np.float64,
        }
    )
    box = kinds.BBox(0.0, 0.0, 0.5, 1.0)
    rows = [
        {
            "label": i % 2,
            "matrix": np.full((2, 3), i, np.float32),
            "raw": np.full((2, 2), i, np.uint8),
            "pixels": np.full(3, i, np.uint8),
            "packed": np.full(2, i, np.int32),
            "box": box,
            "objects": [{"bbox": box, "label": 1}] * (i + 1),
            "text": f"text {i}",
            "small": i,
            "flag": i == 1,
            "nest": {"x": float(i)},
            "seq": [i] * (2 * i),
            "rag": [[i], [i, i + 1]],
            "double": float(i),
        }
        for i in range(4)
    ]
    (tmp_path / "x-train.tfrecord-00000-of-00001").write_bytes(
        tfrecord_bytes(features.serialize_example(row) for row in rows)
    )
    features.save_config(str(tmp_path))
    ds = open(tmp_path)
    assert ds.splits == ("train",)
    descriptions = {feature.name: feature.describe() for feature in ds.schema}
    assert descriptions == {
        "label": "int64",
        "matrix": "float32 [2, 3]",
        "raw": "uint8 [2, 2]",
        "pixels": "int64 [3]",
        "packed": "bytes",
        "box": "float32 [4]",
        "objects/bbox": "float32 [?, 4]",
        "objects/label": "int64 [?]",
        "text": "string",
        "small": "int32",
        "flag": "bool",
        "nest/x": "float32",
        "seq": "int64 [?]",
        "rag": "int64 [?, ?]",
        "double": "float32",
    }
    assert ds.schema["label"].classes == ("cat", "dog")
    assert ds.schema["objects/label"].classes == ("p", "q")
    arrays = ds.to_numpy()
    assert np.array_equal(arrays["raw"], [row["raw"] for row in rows])
    assert np.array_equal(arrays["matrix"], [row["matrix"] for row in rows])
    assert arrays["flag"].tolist() == [False, True, False, False]
    assert [list(part) for part in ds[3]["rag"]] == [[3], [3, 4]]
