"""Columns and Parquet files of a view are complete, or they do not exist."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.data_sets import MIXED, flip_record, mixed_rows, write_data_set

from recordmill.base.errors import DataError, UsageError
from recordmill.reader.arrays import rebatch, write_memory_mapped, write_parquet
from recordmill.reader.dataset import open


@given(st.lists(st.integers(0, 20), max_size=12), st.integers(1, 15))
def test_rebatch_changes_the_batch_size_and_keeps_the_rows(
    sizes: list[int], batch_rows: int
) -> None:
    ends = np.cumsum([0, *sizes])
    batches = [
        pa.RecordBatch.from_pydict({"x": np.arange(begin, end)})
        for begin, end in itertools.pairwise(ends)
    ]
    result = list(rebatch(iter(batches), batch_rows))
    assert [row for batch in result for row in batch.column(0).to_pylist()] == list(range(ends[-1]))
    assert all(batch.num_rows == batch_rows for batch in result[:-1])
    assert all(0 < batch.num_rows <= batch_rows for batch in result)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return write_data_set(tmp_path / "out", {"train": mixed_rows(60)}, shards=3)


def test_memory_mapped_columns_are_those_of_the_view(out: Path, tmp_path: Path) -> None:
    records = open(out).select(["id", "name"]).records
    columns = write_memory_mapped(records, tmp_path / "columns")
    assert list(columns) == ["id", "name"]
    assert np.asarray(columns["id"]).tolist() == list(range(60))
    assert columns["name"][7] == "row 7 ü"
    with pytest.raises(UsageError, match="holds columns already"):
        write_memory_mapped(records, tmp_path / "columns")


def test_folder_that_is_a_file_is_refused(out: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="is a file, or below one"):
            write_memory_mapped(open(out).records, path)


def test_parquet_file_holds_the_records(out: Path, tmp_path: Path) -> None:
    ds = open(out)
    path = write_parquet(ds.records, tmp_path / "a.parquet")
    assert pq.read_table(path).select(["id", "name"]).to_pydict() == {
        "id": list(range(60)),
        "name": [f"row {row} ü" for row in range(60)],
    }
    assert pq.read_table(path).schema.names == list(MIXED.names)
    with pytest.raises(UsageError, match="overwrite"):
        write_parquet(ds.records, path)
    write_parquet(ds.filter("id < 3").records, path, overwrite=True)
    assert pq.read_metadata(path).num_rows == 3


@pytest.mark.parametrize("write", [write_parquet, write_memory_mapped])
def test_failed_output_is_not_visible(out: Path, tmp_path: Path, write: Any) -> None:
    flip_record(out, 4)
    old_files = {path for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(DataError, match="record 4"):
        write(open(out).records, tmp_path / "result")
    new_files = {path for path in tmp_path.rglob("*") if path.is_file()} - old_files
    assert not [
        path for path in new_files if path.name in ("result", "columns.json", "_columns.json")
    ]
    if write is write_parquet:
        assert new_files == set()
