"""Row groups and compression of Parquet files by option, and that DuckDB and pandas open what a read wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest
from made_data_set import mixed_rows, write_data_set

from recordmill.base.errors import UsageError
from recordmill.pipelines.dry_run import dry_run
from recordmill.pipelines.read import read

ROWS = mixed_rows(400)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data_set(tmp_path_factory.mktemp("ds") / "out", {"train": ROWS}, shards=2)


@pytest.mark.parametrize("compression", ["zstd", "zstd:9", "gzip", "snappy", "none"])
def test_row_groups_and_codecs(out: Path, tmp_path: Path, compression: str) -> None:
    (path,) = read(out, tmp_path / "to", row_group_rows=150, compression=compression).paths
    about = pq.read_metadata(path)
    assert [about.row_group(i).num_rows for i in range(about.num_row_groups)] == [150, 150, 100]
    assert about.row_group(0).column(0).compression == {"none": "UNCOMPRESSED"}.get(
        compression, compression.split(":")[0].upper()
    )
    assert about.row_group(1).column(0).statistics.min == 150
    assert pq.read_table(path).to_pylist() == ROWS.to_pylist()


def test_a_group_s_size(out: Path, tmp_path: Path) -> None:
    (path,) = read(out, tmp_path / "to", row_group_size="8KiB").paths
    assert pq.read_metadata(path).num_row_groups > 1
    assert dry_run(out, compression="none").disk_bytes > dry_run(out).disk_bytes


def test_duckdb_and_pandas_open_it(out: Path, tmp_path: Path) -> None:
    (path,) = read(out, tmp_path / "to", row_group_rows=100).paths
    assert duckdb.sql(
        f"SELECT label, count(*), sum(matrix[2]) FROM '{path}' WHERE id < 300 GROUP BY label ORDER BY label"
    ).fetchall() == [(label, 100, sum(i + 0.125 for i in range(label, 300, 3))) for label in range(3)]
    frame = pd.read_parquet(path)
    assert frame["name"].tolist() == ROWS["name"].to_pylist()
    assert [None if row is None else row.tolist() for row in frame["tokens"]] == ROWS["tokens"].to_pylist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "lzma"}, 'compression="lzma": one of zstd'),
        ({"compression": "zstd:fast"}, "as in zstd:9"),
        ({"compression": "zstd:23"}, "levels 1 to 22"),
        ({"compression": "snappy:2"}, "no levels"),
        ({"row_group_rows": 0}, "row_group_rows=0"),
        ({"row_group_size": "1GiB"}, "row_group_size="),
    ],
)
def test_wrong_options_are_named(out: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(out, tmp_path / "to", **options)
