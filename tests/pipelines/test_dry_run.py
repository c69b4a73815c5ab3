"""`read --dry-run` says what a read then writes: rows and NumPy bytes exactly, the rest within reason;
and it writes nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from made_data_set import FOLDER, MIXED, mixed_rows, write_data_set

from recordmill.__main__ import main
from recordmill.base.errors import UsageError
from recordmill.pipelines.dry_run import check_fits, describe_estimate, dry_run
from recordmill.pipelines.read import read
from recordmill.storage.codecs import SHARD_SUFFIXES


@pytest.fixture(scope="module", params=SHARD_SUFFIXES)
def out(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = {"train": mixed_rows(400), "test": mixed_rows(30, 400)}
    return write_data_set(tmp_path_factory.mktemp("ds") / "out", tables, shards=3, compression=request.param)


def test_npy_is_foretold_to_the_byte_but_for_headers(out: Path, tmp_path: Path) -> None:
    found = dry_run(out, to="npy")
    result = read(out, tmp_path / "to", to="npy")
    assert found.records == result.records
    assert found.outputs == len(result.paths)
    assert 200 < found.sampled <= 430
    for column in found.columns:
        files = [
            path
            for folder in result.paths
            for path in folder.glob("*.npy")
            if path.name.split(".")[0] == column.feature.name
        ]
        size = sum(np.load(path, mmap_mode="r").nbytes for path in files)
        assert column.bytes == size or (not column.exact and column.bytes == pytest.approx(size, rel=0.1)), column
    shapes = {column.feature.name: (column.dtype, column.shape, column.exact) for column in found.columns}
    assert shapes["matrix"] == ("float32", (430, 2, 3), True)
    assert shapes["tokens"] == ("int32", (430, None), False)
    assert shapes["name"] == ("str", (430,), False)


@pytest.mark.sweep
@pytest.mark.parametrize("to", ["parquet", "arrow"])
def test_tables_are_foretold_roughly(tmp_path: Path, to: str) -> None:
    rows = mixed_rows(20_000)  # enough for headers and footers not to count
    out = write_data_set(tmp_path / "out", {"train": rows}, shards=2)
    found = dry_run(out, to=to)
    written = sum(path.stat().st_size for path in read(out, tmp_path / "to", to=to).paths)
    assert found.disk_bytes == pytest.approx(written, rel=0.3)


def test_limits_features_and_splits_count(out: Path) -> None:
    found = dry_run(out, columns="label,id", limit=7)
    assert found.records == {"train": 7, "test": 7}
    assert [column.feature.name for column in found.columns] == ["label", "id"]
    assert dry_run(out, split="test").records == {"test": 30}
    assert dry_run(out, limit=0).rows == 0


def test_streams_are_counted(out: Path, tmp_path: Path) -> None:
    """Files without manifest and index: a gzip file says nothing of its records before it is read."""
    files = sorted((out / FOLDER).glob("train-*.tfrecord*"))
    for file in files:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    found = dry_run(tmp_path, schema=MIXED, to="npy")
    assert found.rows == 400


def test_nothing_is_written_and_the_text_says_all(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    assert main(["read", str(out), "--dry-run", "--to", "npy", "--out", str(tmp_path / "to")]) == 0
    text = capsys.readouterr().out
    assert "430 records (train 400, test 30) would be written to 2 outputs of npy\n" in text
    assert "  matrix   float32 [430, 2, 3]: 10.1 KiB\n" in text
    assert "tokens   int32 [430, ?], may be missing: about " in text
    assert "disk: about " in text
    assert main(["read", str(out), "--dry-run", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["records"] == {"train": 400, "test": 30}
    assert about["columns"]["matrix"]["shape"] == [430, 2, 3]
    assert sorted(tmp_path.iterdir()) == before
    assert main(["read", str(out)]) == 2
    assert "--out OUT is needed" in capsys.readouterr().err
    assert describe_estimate(dry_run(out, limit=0)).startswith("0 records")


def test_npz_that_would_not_fit_is_refused_beforehand(tmp_path: Path) -> None:
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(10)}, shards=1)
    found = dry_run(out, to="npz", memory="256MiB", threads=1)
    assert found.memory_bytes <= 256 << 20
    with pytest.raises(UsageError, match='more than the 100 B of memory=; use to="npy"'):
        check_fits(found, 100)
