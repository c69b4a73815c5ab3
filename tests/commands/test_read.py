"""Read prints its summary and its rejects."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kit.data_sets import FOLDER
from kit.files import flip
from kit.runs import run_command


def test_read_prints_its_summary_and_rejects(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["read", out, "--out", tmp_path / "to", "--columns", "id,label", "--split", "train"]
    code, text, stderr = run_command(capsys, *words)
    assert (code, text) == (0, "")
    assert stderr.startswith(f"40 records to parquet in {tmp_path / 'to'} (train 40) in ")
    assert pq.read_table(tmp_path / "to" / "train-00000-of-00001.parquet").column_names == [
        "id",
        "label",
    ]
    code, text, _ = run_command(
        capsys, "read", out, "--out", tmp_path / "arrays", "--to", "npy", "--json"
    )
    assert json.loads(text)["records"] == {"train": 40, "test": 3}
    code, text, error = run_command(capsys, "read", out, "--out", tmp_path / "to")
    assert (code, text) == (2, "")
    assert "--overwrite replaces it" in error
    assert run_command(capsys, "read", out, "--out", tmp_path / "x", "--frobnicate=1")[0] == 2
    shard = out / FOLDER / "train-00000-of-00002.tfrecord"
    flip(shard, 40)
    code, _, error = run_command(capsys, "read", out, "--out", tmp_path / "x")
    assert code == 1
    assert error.startswith(f"recordmill: error: {shard}: record 0, byte 0: CRC of the data")
    code, _, stderr = run_command(
        capsys, "read", out, "--out", tmp_path / "x", "--max-rejects", "5%"
    )
    assert code == 0
    assert "1 rejected (reason: wrong checksum), listed in " in stderr
