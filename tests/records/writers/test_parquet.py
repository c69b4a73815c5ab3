"""Parquet and Arrow files keep values and schema, with the requested row groups.

Unfinished files can't be opened.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kit.batches import table_of
from kit.data_sets import MIXED, mixed_rows

from recordmill.records.writers.arrow import ArrowWriter
from recordmill.records.writers.options import ParquetOptions
from recordmill.records.writers.parquet import ParquetWriter, to_parquet_schema
from recordmill.schemas.arrow import from_arrow
from recordmill.schemas.feature import Feature, Schema

ODD = Schema(
    (
        Feature("tensor", "float32", (2, 2)),
        Feature("none", "float32", (0,)),
        Feature("s", "timestamp[s]"),
        Feature("h", "float16"),
        Feature("b", "bfloat16", (3,)),
        Feature("text", "string", (2,)),
        Feature("u", "uint64"),
        Feature("list", "int64", (None, 3, 2)),
        Feature("a.b/c", "int64", (), True),
    ),
    message="Example",
)
ODD_ROWS = {
    "tensor": [[1.0, 2, 3, 4], None],
    "none": [[], None],
    "s": [1, None],
    "h": [np.float16(1.5), None],
    "b": [[1.0, 2, 3], None],
    "text": [["a", "b"], None],
    "u": [2**64 - 1, None],
    "list": [[[1] * 6], None],
    "a.b/c": [1, 2],
}


def odd_table() -> pa.Table:
    return table_of(ODD_ROWS, ODD)


@pytest.mark.parametrize(
    ("schema", "table"), [(MIXED, mixed_rows(40)), (ODD, odd_table())], ids=["mixed", "odd"]
)
def test_parquet_and_arrow_files_keep_values_and_schema(
    tmp_path: Path, schema: Schema, table: pa.Table
) -> None:
    for writer in (
        ParquetWriter(tmp_path / "x.parquet", schema),
        ArrowWriter(tmp_path / "x.arrow", schema),
    ):
        for batch in table.combine_chunks().to_batches():
            writer.write(batch)
            writer.write(batch.slice(1, 1))
        writer.close()
        assert writer.rows == table.num_rows + 1
    expected = pa.concat_tables([table, table.slice(1, 1)])
    result = pq.read_table(tmp_path / "x.parquet")
    for name in schema.names:
        assert result[name].to_pylist() == expected[name].to_pylist(), name
    assert from_arrow(result.schema) == schema
    assert pa.ipc.open_file(tmp_path / "x.arrow").read_all().equals(expected)
    assert from_arrow(pa.ipc.open_file(tmp_path / "x.arrow").schema) == schema


def test_parquet_columns_have_real_types() -> None:
    fields = to_parquet_schema(MIXED)
    assert fields.field("id").type == pa.int64()
    assert fields.field("matrix").type == pa.list_(pa.float32(), 6)
    assert fields.field("boxes").type == pa.large_list(pa.list_(pa.float32(), 4))
    assert to_parquet_schema(ODD).field("tensor").type == pa.large_list(pa.float32())


def test_parquet_row_groups_follow_group_bytes(tmp_path: Path) -> None:
    writer = ParquetWriter(tmp_path / "x.parquet", MIXED, ParquetOptions(row_group_size=4000))
    (batch,) = mixed_rows(100).combine_chunks().to_batches()
    for begin in range(0, 100, 10):
        writer.write(batch.slice(begin, 10))
    writer.close()
    metadata = pq.ParquetFile(tmp_path / "x.parquet").metadata
    assert 2 <= metadata.num_row_groups < 10
    assert metadata.num_rows == 100
    assert metadata.row_group(0).column(0).statistics.min == 0


def test_batch_with_the_bytes_of_several_row_groups_is_divided(tmp_path: Path) -> None:
    writer = ParquetWriter(tmp_path / "x.parquet", MIXED, ParquetOptions(row_group_size=4000))
    (batch,) = mixed_rows(100).combine_chunks().to_batches()
    writer.write(batch)
    writer.close()
    table, metadata = (
        pq.read_table(tmp_path / "x.parquet"),
        pq.read_metadata(tmp_path / "x.parquet"),
    )
    assert table["id"].to_pylist() == list(range(100))
    groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert len(groups) > batch.nbytes // 4000
    assert max(groups) <= 2 * 100 * 4000 // batch.nbytes


def test_aborted_parquet_file_cannot_be_opened(tmp_path: Path) -> None:
    writer = ParquetWriter(tmp_path / "x.parquet", MIXED)
    for batch in mixed_rows(10).combine_chunks().to_batches():
        writer.write(batch)
    writer.abort()
    with pytest.raises(pa.ArrowInvalid):
        pq.read_table(tmp_path / "x.parquet")


def test_parquet_file_without_rows_is_valid(tmp_path: Path) -> None:
    ParquetWriter(tmp_path / "x.parquet", MIXED).close()
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 0
