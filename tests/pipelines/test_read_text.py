"""Reads to JSON lines and CSV: other parsers get back every value; what CSV can't hold is refused by name."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.csv
import pytest
from made_data_set import mixed_rows, write_data_set

from recordmill.base.errors import UsageError
from recordmill.pipelines.read import read

ROWS = mixed_rows(60)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data_set(tmp_path_factory.mktemp("ds") / "out", {"train": ROWS}, shards=2)


def test_json_lines_hold_every_value(out: Path, tmp_path: Path) -> None:
    result = read(out, tmp_path / "to", to="jsonl")
    assert [path.name for path in result.paths] == ["train-00000-of-00001.jsonl"]
    found = [json.loads(line) for line in result.paths[0].read_text(encoding="utf-8").splitlines()]
    for got, row in zip(found, ROWS.to_pylist(), strict=True):
        row["matrix"] = np.reshape(row["matrix"], (2, 3)).tolist()
        row["payload"] = None if row["payload"] is None else base64.b64encode(row["payload"]).decode()
        row["when"] = None if row["when"] is None else row["when"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        assert got == row
    assert list(found[0]) == ROWS.column_names
    read(out, tmp_path / "beam", to="jsonl", runner="FnApiRunner")
    assert (tmp_path / "beam" / result.paths[0].name).read_bytes() == result.paths[0].read_bytes()


def test_csv_holds_single_values(out: Path, tmp_path: Path) -> None:
    result = read(out, tmp_path / "to", to="csv", columns="id,name,maybe,exact,flag,when,label")
    expected = ROWS.select(["id", "name", "maybe", "exact", "flag", "label"]).to_pylist()
    table = pyarrow.csv.read_csv(
        result.paths[0],
        convert_options=pyarrow.csv.ConvertOptions(strings_can_be_null=True, quoted_strings_can_be_null=False),
    )
    assert table.column_names == ["id", "name", "maybe", "exact", "flag", "when", "label"]
    assert table.drop_columns(["when"]).to_pylist() == expected
    frame = pd.read_csv(result.paths[0])
    assert frame["exact"].tolist() == ROWS["exact"].to_pylist()
    assert frame["when"].isna().tolist() == [value is None for value in ROWS["when"].to_pylist()]


def test_what_csv_can_not_hold_is_named_before_anything_is_written(out: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"to=.csv.: .* not matrix \(float32 \[2, 3\]\), payload \(bytes\), .* and 2 more; leave them out "
        r"with columns=",
    ):
        read(out, tmp_path / "to", to="csv")
    assert not (tmp_path / "to").exists()


def test_no_records(tmp_path: Path) -> None:
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(0)}, shards=1)
    assert read(out, tmp_path / "a", to="jsonl").paths[0].read_bytes() == b""
    assert read(out, tmp_path / "b", to="csv", columns="id,label").paths[0].read_text() == '"id","label"\n'
