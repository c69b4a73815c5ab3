"""Row groups become units of about the requested size, without duplicate rows."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.source_reading import input_files

from recordmill.base.errors import DataError, UsageError
from recordmill.sources.arrow.parquet import ParquetSource, plan_parquet
from recordmill.sources.arrow.row_groups import max_batch_bytes, select_columns
from recordmill.sources.common.contract import BATCH_BYTES, PlanOptions
from recordmill.sources.common.options import TableOptions


def write(path: Path, rows: range, group_rows: int = 10) -> Path:
    table = pa.table({"id": list(rows), "text": ["x" * 90] * len(rows)})
    pq.write_table(table, path, row_group_size=group_rows, use_dictionary=False)
    return path


def plan(*paths: Path, columns: list[str] | None = None, **common: Any) -> ParquetSource:
    options = TableOptions(columns=columns)
    return plan_parquet(input_files(*paths), options, PlanOptions(**common))


def read_ids(source: ParquetSource) -> list[int]:
    chunks = [chunk for unit in source.units for chunk in source.read(unit)]
    return [row for chunk in chunks for row in chunk.records.column("id").to_pylist()]  # type: ignore[union-attr]


@pytest.mark.parametrize("unit_bytes", [1, 2500, 1 << 30])
def test_units_have_complete_row_groups_of_about_the_size(tmp_path: Path, unit_bytes: int) -> None:
    paths = [
        write(tmp_path / "a.parquet", range(95)),
        write(tmp_path / "b.parquet", range(95, 130)),
    ]
    source = plan(*paths, unit_bytes=unit_bytes)
    assert read_ids(source) == list(range(130))
    assert sum(unit.rows or 0 for unit in source.units) == 130
    first_rows = [(unit.begin_file, unit.first_row) for unit in source.units]
    assert all(row % 10 == 0 for _, row in first_rows)
    if unit_bytes == 1:
        assert len(source.units) == 14  # one unit for each row group
    elif unit_bytes == 2500:
        assert 14 > len(source.units) > 2
    else:
        assert [unit.begin_file for unit in source.units] == [0, 1]


def test_files_without_rows_are_left_out_or_refused(tmp_path: Path) -> None:
    empty = write(tmp_path / "a.parquet", range(0))
    source = plan(empty, write(tmp_path / "b.parquet", range(3)))
    assert [unit.begin_file for unit in source.units] == [1]
    with pytest.raises(DataError, match=r"a\.parquet: there are no rows"):
        plan(empty)


def test_column_that_no_file_has_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", range(3))
    with pytest.raises(UsageError, match="no column 'idd'"):
        plan(path, columns=["idd"])


def test_file_that_changes_after_the_plan_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", range(3))
    source = plan(path)
    write(path, range(4))
    with pytest.raises(DataError, match=r"a\.parquet"):
        list(source.read(source.units[0]))


def test_selected_columns_keep_the_order_of_the_option() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    assert select_columns(None, schema) == ["a", "b"]
    assert select_columns(["b", "x", "a"], schema) == ["b", "a"]


def test_batches_are_smaller_if_many_threads_share_little_memory() -> None:
    assert max_batch_bytes(PlanOptions(memory_bytes=1 << 40, threads=1)) == BATCH_BYTES
    assert max_batch_bytes(PlanOptions(memory_bytes=256 << 20, threads=2)) == 2 << 20
    assert max_batch_bytes(PlanOptions(memory_bytes=1 << 20, threads=64)) == 1 << 20
