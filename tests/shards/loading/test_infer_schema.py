"""The schema of TFRecord files is inferred from all records.

A guess uses only the first records.
"""

import gzip
from pathlib import Path

import pytest
from kit.data_sets import plain_file
from kit.files import flip, tfrecord_bytes

from recordmill.base.errors import DataError
from recordmill.shards.catalog import ShardFile, catalog_files
from recordmill.shards.loading import infer_schema as module
from recordmill.shards.loading.infer_schema import guess_schema, infer_from_files, infer_schema
from recordmill.sources.arrow.single_example import example


def write_examples(path: Path, rows: list[dict[str, object]]) -> ShardFile:
    path.write_bytes(tfrecord_bytes(example(row) for row in rows))
    return catalog_files([str(path)]).files[0]


@pytest.mark.parametrize("threads", [1, 3])
def test_schema_covers_the_records_of_all_files(tmp_path: Path, threads: int) -> None:
    files = [
        write_examples(tmp_path / f"{number}.tfrecord", [{"id": number}, {"id": 7, name: [1.5]}])
        for number, name in enumerate(("x", "y", "x"))
    ]
    schema, notes = infer_schema(files, threads=threads)
    assert schema.names == ("id", "x", "y")
    assert [feature.dtype for feature in schema] == ["int64", "float32", "float32"]
    assert [feature.required for feature in schema] == [True, False, False]
    assert notes == []


def test_compressed_files_have_the_inferred_schema_of_plain_files(tmp_path: Path) -> None:
    plain = plain_file(tmp_path / "a.tfrecord")
    compressed = tmp_path / "b.tfrecord.gz"
    compressed.write_bytes(gzip.compress(plain.read_bytes()))
    schemas = [
        infer_schema(catalog_files([str(path)]).files, threads=2)[0] for path in (plain, compressed)
    ]
    assert schemas[0] == schemas[1]


def test_damage_is_an_error_unless_it_is_allowed(tmp_path: Path) -> None:
    path = plain_file(tmp_path / "a.tfrecord")
    flip(path, path.stat().st_size - 5)
    files = catalog_files([str(path)]).files
    with pytest.raises(DataError, match=r"a\.tfrecord: record 49, byte"):
        infer_from_files(files)
    assert infer_from_files(files, lenient=True).records == 49


def test_conflict_in_a_feature_that_is_not_selected_is_ignored(tmp_path: Path) -> None:
    file = write_examples(tmp_path / "a.tfrecord", [{"id": 1, "x": 1}, {"id": 2, "x": 1.5}])
    with pytest.raises(DataError, match="'x'"):
        infer_schema([file])
    schema, _ = infer_schema([file], columns=["id"])
    assert schema["id"].dtype == "int64"


def test_guess_knows_the_first_records_of_each_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MIN_BYTES_PER_FILE", 1000)
    monkeypatch.setattr(module, "GUESS_BYTES", 1000)
    rows: list[dict[str, object]] = [{"id": number} for number in range(500)]
    file = write_examples(tmp_path / "a.tfrecord", [*rows, {"id": 1, "late": 2}])
    guess = guess_schema([file], threads=1)
    assert guess is not None
    assert guess.schema.names == ("id",)
    assert infer_schema([file])[0].names == ("id", "late")


def test_schema_is_not_guessed_from_a_damaged_start_of_a_file(tmp_path: Path) -> None:
    path = plain_file(tmp_path / "a.tfrecord")
    flip(path, 0)
    assert guess_schema(catalog_files([str(path)]).files, threads=1) is None


def test_no_feature_is_guessed_from_empty_files(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(b"")
    guess = guess_schema(catalog_files([str(tmp_path / "a.tfrecord")]).files, threads=1)
    assert guess is None
