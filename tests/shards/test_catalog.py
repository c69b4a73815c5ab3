"""Files, their splits and their compressions are listed from names and first bytes."""

import gzip
import os
from pathlib import Path

import pytest
from kit.data_sets import mixed_rows, plain_file, write_data_set

from recordmill.base.errors import DataError, UsageError
from recordmill.reader.dataset import open
from recordmill.shards.catalog import (
    UNKNOWN_SPLIT,
    catalog_files,
    catalog_inputs,
    sniff_compression,
    split_from_shard_name,
)


def test_file_names_determine_splits(tmp_path: Path) -> None:
    plain_file(tmp_path / "train-00000-of-00001.tfrecord", 5)
    plain_file(tmp_path / "mnist-test.tfrecord-00000-of-00001", 3)
    assert len(open(tmp_path, "train")) == 5
    assert len(open(tmp_path, "test")) == 3
    with pytest.raises(UsageError, match="no split 'dev'"):
        open(tmp_path, "dev")


def test_tfx_folders_and_usual_words_determine_splits(tmp_path: Path) -> None:
    for name, rows in (("Split-eval", 2), ("Split-train", 4)):
        (tmp_path / name).mkdir()
        plain_file(tmp_path / name / "data_tfrecord-00000-of-00001", rows)
    plain_file(tmp_path / "test.tfrecord", 1)
    plain_file(tmp_path / "testing-ground.tfrecord", 7)
    assert {split: len(open(tmp_path, split)) for split in open(tmp_path).splits} == {
        "eval": 2,
        "train": 4,
        "test": 1,
        "data": 7,
    }
    assert open(tmp_path / "Split-eval").splits == ("eval",)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("a/train-00000-of-00002.tfrecord", "train"),
        ("a/..-00000-of-00002.tfrecord", UNKNOWN_SPLIT),
        ("mnist-test.tfrecord-00000-of-00001", "test"),
        ("mnist-test.array_record-00000-of-00001", "test"),
        ("Split-eval/x.gz", "eval"),
        ("validation_3.tfrecords.gz", "validation"),
        ("trainer.tfrecord", UNKNOWN_SPLIT),
        ("x/photo.tfrecord", UNKNOWN_SPLIT),
    ],
)
def test_split_is_detected_from_the_name(name: str, split: str) -> None:
    assert split_from_shard_name(name) == split


def test_compression_is_detected_from_the_first_record_header(tmp_path: Path) -> None:
    plain = plain_file(tmp_path / "a")
    (tmp_path / "b").write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "text").write_text("no record at all")
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"no record at all"))
    (tmp_path / "short").write_bytes(plain.read_bytes()[:11])
    compressions = {name: sniff_compression(str(tmp_path / name)) for name in os.listdir(tmp_path)}
    assert compressions == {
        "a": "none",
        "b": "gzip",
        "empty.gz": "gzip",
        "text": None,
        "text.gz": None,
        "short": None,
    }


def test_files_that_are_not_tfrecords_are_left_out_and_noted(tmp_path: Path) -> None:
    plain_file(tmp_path / "data")
    (tmp_path / "notes").write_text("some text")
    catalog = catalog_files([str(tmp_path)])
    assert [os.path.basename(file.path) for file in catalog.files] == ["data"]
    assert catalog.notes == ("left out files that are not TFRecords (1): notes",)
    with pytest.raises(DataError, match="is not a TFRecord file"):
        catalog_files([str(tmp_path / "notes")])


def test_folder_without_tfrecords_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("some text")
    with pytest.raises(DataError, match="there is no TFRecord file among the 1 files"):
        catalog_files([str(tmp_path)])


def test_missing_shard_of_a_set_is_noted_unless_files_are_named(tmp_path: Path) -> None:
    name = str(plain_file(tmp_path / "x-00001-of-00003.tfrecord"))
    catalog = catalog_files([str(tmp_path)])
    assert [os.path.basename(path) for path in catalog.missing_shards] == [
        "x-00000-of-00003.tfrecord",
        "x-00002-of-00003.tfrecord",
    ]
    assert catalog_files([name]).missing_shards == ()


def test_data_set_is_listed_by_its_manifest(tmp_path: Path) -> None:
    rows = {"train": mixed_rows(20), "test": mixed_rows(5)}
    out = write_data_set(tmp_path / "out", rows, shards=2)
    catalog = catalog_inputs(out)
    assert catalog.splits == ("train", "test")
    assert [file.info.records for file in catalog.files if file.info] == [10, 10, 2, 3]
    assert [file.split for file in catalog_inputs(out, "test").files] == ["test", "test"]
    with pytest.raises(
        UsageError, match=r"no split 'tets'; there are train, test; did you mean test"
    ):
        catalog_inputs(out, "tets")
    with pytest.raises(UsageError, match="is itself a data set; read it alone"):
        catalog_inputs([out, tmp_path])


def test_generation_of_files_without_a_manifest_is_refused(tmp_path: Path) -> None:
    path = plain_file(tmp_path / "a.tfrecord")
    with pytest.raises(UsageError, match=r"generation=1: .* has no generations"):
        catalog_inputs(path, generation=1)


def test_shard_of_another_size_is_refused_unless_damage_is_allowed(tmp_path: Path) -> None:
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(20)}, shards=1)
    (file,) = catalog_inputs(out).files
    os.truncate(file.path, 100)
    with pytest.raises(DataError, match="has 100 bytes where the manifest says"):
        catalog_inputs(out)
    assert catalog_inputs(out, lenient=True).files[0].stat.size_bytes == 100


def test_replaced_file_is_noticed(tmp_path: Path) -> None:
    path = plain_file(tmp_path / "a.tfrecord")
    (file,) = catalog_files([str(path)]).files
    file.check_unchanged()
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(DataError, match=r"a\.tfrecord"):
        file.check_unchanged()
