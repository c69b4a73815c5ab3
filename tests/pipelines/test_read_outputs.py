"""Outputs of a read: their estimates, Parquet options, and values in other parsers."""

import base64
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from kit.data_sets import FOLDER, MIXED, mixed_rows, write_data_set
from kit.files import tree

from recordmill.__main__ import main
from recordmill.base.errors import UsageError
from recordmill.pipelines.read import dry_run, read
from recordmill.storage.codecs import SHARD_SUFFIXES

ROWS = mixed_rows(60)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data_set(tmp_path_factory.mktemp("ds") / "out", {"train": ROWS}, shards=2)


def test_json_lines_hold_every_value(out: Path, tmp_path: Path) -> None:
    result = read(out, tmp_path / "to", to="jsonl")
    assert [path.name for path in result.paths] == ["train-00000-of-00001.jsonl"]
    records = [
        json.loads(line) for line in result.paths[0].read_text(encoding="utf-8").splitlines()
    ]
    for record, row in zip(records, ROWS.to_pylist(), strict=True):
        row["matrix"] = np.reshape(row["matrix"], (2, 3)).tolist()
        row["payload"] = (
            None if row["payload"] is None else base64.b64encode(row["payload"]).decode()
        )
        row["when"] = None if row["when"] is None else row["when"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        assert record == row
    assert list(records[0]) == ROWS.column_names
    read(out, tmp_path / "beam", to="jsonl", runner="FnApiRunner")
    assert (tmp_path / "beam" / result.paths[0].name).read_bytes() == result.paths[0].read_bytes()


def test_csv_holds_scalar_values(out: Path, tmp_path: Path) -> None:
    result = read(out, tmp_path / "to", to="csv", columns="id,name,maybe,exact,flag,when,label")
    expected = ROWS.select(["id", "name", "maybe", "exact", "flag", "label"]).to_pylist()
    table = pyarrow.csv.read_csv(
        result.paths[0],
        convert_options=pyarrow.csv.ConvertOptions(
            strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )
    assert table.column_names == ["id", "name", "maybe", "exact", "flag", "when", "label"]
    assert table.drop_columns(["when"]).to_pylist() == expected
    frame = pd.read_csv(result.paths[0])
    assert frame["exact"].tolist() == ROWS["exact"].to_pylist()
    assert frame["when"].isna().tolist() == [value is None for value in ROWS["when"].to_pylist()]


def test_features_that_csv_cannot_hold_are_refused_by_name(out: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"to=.csv.: .* not matrix \(float32 \[2, 3\]\), payload \(bytes\), .* and 2 more; leave them out "
        r"with columns=",
    ):
        read(out, tmp_path / "to", to="csv")
    assert not (tmp_path / "to").exists()


@pytest.fixture(scope="module", params=SHARD_SUFFIXES)
def out_of_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = {"train": mixed_rows(400), "test": mixed_rows(30, 400)}
    return write_data_set(
        tmp_path_factory.mktemp("ds") / "out", tables, shards=3, compression=request.param
    )


@pytest.mark.parametrize("to", ["npy", "npz", "parquet", "arrow", "jsonl"])
def test_dry_run_predicts_records_files_and_shapes(
    out_of_run: Path, tmp_path: Path, to: str
) -> None:
    estimate = dry_run(out_of_run, to=to)
    result = read(out_of_run, tmp_path / "to", to=to)
    assert estimate.records == result.records
    assert estimate.outputs == len(result.paths)
    assert 200 < estimate.sampled <= 430
    written_bytes = sum(
        len(data) for name, data in tree(tmp_path / "to").items() if name != "_read.json"
    )
    # The size of headers matters for so few rows.
    assert estimate.disk_bytes == pytest.approx(written_bytes, rel=0.5)
    shapes = {column.feature.name: (column.dtype, column.shape) for column in estimate.columns}
    assert shapes["matrix"] == ("float32", (430, 2, 3))
    assert shapes["tokens"] == ("int32", (430, None))
    assert shapes["name"] == ("str", (430,))


def test_dry_run_respects_limit_columns_and_split(out_of_run: Path) -> None:
    estimate = dry_run(out_of_run, columns="label,id", limit=7)
    assert estimate.records == {"train": 7, "test": 7}
    assert [column.feature.name for column in estimate.columns] == ["label", "id"]
    assert dry_run(out_of_run, split="test").records == {"test": 30}
    assert dry_run(out_of_run, limit=0).rows == 0


def test_dry_run_counts_streamed_files(out_of_run: Path, tmp_path: Path) -> None:
    files = sorted((out_of_run / FOLDER).glob("train-*.tfrecord*"))
    for file in files:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    estimate = dry_run(tmp_path, schema=MIXED, to="npy")
    assert estimate.rows == 400


def test_dry_run_command_prints_the_estimate(
    out_of_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    assert (
        main(["read", str(out_of_run), "--dry-run", "--to", "npy", "--out", str(tmp_path / "to")])
        == 0
    )
    text = capsys.readouterr().out
    assert "430 records (train 400, test 30) would be written to 2 outputs of npy\n" in text
    assert "  matrix   float32 [430, 2, 3]\n" in text
    assert "tokens   int32 [430, ?], may be missing\n" in text
    assert "disk: about " in text
    assert main(["read", str(out_of_run), "--dry-run", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["records"] == {"train": 400, "test": 30}
    assert summary["columns"]["matrix"]["shape"] == [430, 2, 3]
    assert sorted(tmp_path.iterdir()) == before
    assert main(["read", str(out_of_run)]) == 2
    assert "--out OUT is needed" in capsys.readouterr().err
    assert dry_run(out_of_run, limit=0).describe().startswith("0 records")


def test_npz_beyond_memory_is_refused_before_the_read(tmp_path: Path) -> None:
    out_of_run = write_data_set(tmp_path / "out", {"train": mixed_rows(10)}, shards=1)
    estimate = dry_run(out_of_run, to="npz", memory="256MiB", threads=1)
    assert estimate.memory_bytes <= 256 << 20
    with pytest.raises(UsageError, match='more than the 100 B of memory=; use to="npy"'):
        estimate.check_memory_fits(100)


ROWS_OF_OPTIONS = mixed_rows(400)


@pytest.fixture(scope="module")
def of_400(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data_set(
        tmp_path_factory.mktemp("of_400") / "out", {"train": ROWS_OF_OPTIONS}, shards=2
    )


@pytest.mark.parametrize("compression", ["zstd", "zstd:9", "gzip", "snappy", "none"])
def test_parquet_has_the_requested_row_groups_and_compression(
    of_400: Path, tmp_path: Path, compression: str
) -> None:
    (path,) = read(of_400, tmp_path / "to", row_group_rows=150, compression=compression).paths
    metadata = pq.read_metadata(path)
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [
        150,
        150,
        100,
    ]
    assert metadata.row_group(0).column(0).compression == {"none": "UNCOMPRESSED"}.get(
        compression, compression.split(":")[0].upper()
    )
    assert metadata.row_group(1).column(0).statistics.min == 150
    assert pq.read_table(path).to_pylist() == ROWS_OF_OPTIONS.to_pylist()


def test_row_group_size_and_compression_are_estimated(of_400: Path, tmp_path: Path) -> None:
    (path,) = read(of_400, tmp_path / "to", row_group_size="8KiB").paths
    assert pq.read_metadata(path).num_row_groups > 1
    assert dry_run(of_400, compression="none").disk_bytes > dry_run(of_400).disk_bytes
