"""Output to Parquet files with one column for each feature.

Scalars are scalars, lists are lists, and tensors are fixed-size lists. A tensor that may be missing
is a variable list, because pyarrow can't read fixed-size lists with nulls. Its shape is in the
metadata of the field. The metadata of the file contains the schema, so a build from the file
produces the same Examples.

The default compression is zstd at level 1, which is smaller than snappy and as fast to write.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recordmill.base.buffers import to_offsets
from recordmill.records.columns.numpy_arrays import is_bytes
from recordmill.records.writers.options import ROW_GROUP_ROWS, ParquetOptions
from recordmill.records.writers.outputs import OutputWriter, WriterSettings
from recordmill.schemas.arrow import to_arrow, value_type
from recordmill.schemas.feature import Feature, Schema
from recordmill.storage.files import create_file

# 1 million list values, for which pyarrow needs 35 MiB (`buffer_bytes_per_value` in `OUTPUTS`).
# pyarrow encodes an array in one go, so longer arrays are written in slices of at least one row.
_MAX_WRITE_VALUES = 1 << 20
_ZSTD_LEVEL = 1
# 1 MiB of distinct values per column and row group. Parquet stores further values without the
# dictionary.
_MAX_DICTIONARY_BYTES = 1 << 20


class ParquetWriter(OutputWriter):
    """Writer of one Parquet file, which is complete after `close`.

    The row groups depend only on the batches and the options.
    """

    def __init__(
        self, path: str | Path, schema: Schema, options: ParquetOptions | None = None
    ) -> None:
        self.schema, self.rows = schema, 0
        options = options or ParquetOptions()
        self._arrow, self._group_bytes = to_parquet_schema(schema), options.row_group_size
        self._group_rows = options.row_group_rows or ROW_GROUP_ROWS
        self._file = create_file(path)
        self._writer = pq.ParquetWriter(
            self._file,
            self._arrow,
            compression=options.codec,
            compression_level=_ZSTD_LEVEL
            if options.codec == "zstd" and options.level is None
            else options.level,
            use_dictionary=[
                feature.name for feature in schema if _benefits_from_dictionary(feature)
            ],
            dictionary_pagesize_limit=_MAX_DICTIONARY_BYTES,
        )
        self._pending_batches: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._pending_rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        columns = [
            _to_parquet(column, field.type)
            for column, field in zip(batch.columns, self._arrow, strict=True)
        ]
        # `from_arrays` without columns would lose the number of rows.
        file_batch = pa.RecordBatch.from_arrays(columns, schema=self._arrow) if columns else batch
        start = 0
        row_bytes = max(file_batch.nbytes // max(file_batch.num_rows, 1), 1)
        # A batch is divided where a group has enough rows or bytes. The rows of a batch count as
        # equally large, so a group may exceed `row_group_size` by some rows that are larger.
        while start < file_batch.num_rows:
            max_rows = max((self._group_bytes - self._pending_bytes) // row_bytes, 1)
            batch_slice = file_batch.slice(
                start, min(self._group_rows - self._pending_rows, max_rows)
            )
            start += batch_slice.num_rows
            self._pending_batches.append(batch_slice)
            self._pending_bytes += batch_slice.nbytes
            self._pending_rows += batch_slice.num_rows
            self.rows += batch_slice.num_rows
            if self._pending_bytes >= self._group_bytes or self._pending_rows >= self._group_rows:
                self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()
        self._file.close()

    def abort(self) -> None:
        self._pending_batches = []
        # Otherwise pyarrow would write a footer when the writer is garbage-collected.
        self._writer.is_open = False
        self._file.close()

    def _flush(self) -> None:
        if self._pending_rows:
            batches = [part for batch in self._pending_batches for part in _split_batch(batch)]
            self._writer.write_table(
                pa.Table.from_batches(batches, self._arrow), row_group_size=self._pending_rows
            )
        self._pending_batches, self._pending_bytes, self._pending_rows = [], 0, 0


def open_parquet(path: Path, schema: Schema, settings: WriterSettings) -> ParquetWriter:
    """Opens a writer of a Parquet file.

    Args:
        path: A path that does not exist yet.
        schema: The features of the batches.
        settings: The options are `ParquetOptions`, or None for the defaults.
    """
    return ParquetWriter(path, schema, settings.options)


def _split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields slices of a batch with about _MAX_WRITE_VALUES list values per column.

    A slice may exceed the limit if its lists are longer than the average.
    """
    max_values = max((_count_list_values(column) for column in batch.columns), default=0)
    rows_per_slice = (
        max(batch.num_rows * _MAX_WRITE_VALUES // max_values, 1)
        if max_values > _MAX_WRITE_VALUES
        else batch.num_rows
    )
    for start in range(0, batch.num_rows, rows_per_slice):
        yield batch.slice(start, rows_per_slice)


def _count_list_values(column: pa.Array) -> int:
    """Returns the number of values in all lists of a column.

    The number is 0 for a column without lists.
    """
    if not pa.types.is_nested(column.type):
        return 0
    while pa.types.is_nested(column.type):
        column = column.flatten()
    return len(column)


def to_parquet_schema(schema: Schema) -> pa.Schema:
    """Returns the Arrow schema of the file.

    The only difference from `to_arrow(schema)` is that tensors that may be missing are variable
    lists.
    """
    arrow = to_arrow(schema)
    return pa.schema(
        [
            field.with_type(_file_type(feature, field.type))
            for feature, field in zip(schema, arrow, strict=True)
        ],
        metadata=arrow.metadata,
    )


def _file_type(feature: Feature, arrow: pa.DataType) -> pa.DataType:
    if not feature.inner_shape or (
        feature.inner_size and not feature.ragged_rank and feature.required
    ):
        return arrow
    if feature.ragged_rank and feature.inner_size:
        return arrow  # items of a list are never missing
    result = pa.large_list(value_type(feature))
    for _ in range(feature.ragged_rank):
        result = pa.large_list(result)
    return result


def _to_parquet(column: pa.Array, arrow: pa.DataType) -> pa.Array:
    if column.type == arrow:
        return column
    if not pa.types.is_fixed_size_list(column.type):
        return column.cast(arrow)
    # Fixed-size lists become variable lists of the same values. `flatten` skips the values of
    # missing rows, so missing rows have length 0.
    valid = column.is_valid()
    lengths = np.where(valid.to_numpy(zero_copy_only=False), column.type.list_size, 0)
    return pa.LargeListArray.from_arrays(
        pa.array(to_offsets(lengths)),
        column.flatten(),
        type=arrow,
        mask=None if column.null_count == 0 else pa.compute.invert(valid),
    )


def _benefits_from_dictionary(feature: Feature) -> bool:
    """Returns whether a Parquet dictionary may save space for a feature.

    Text and integers often repeat. Tensors, floats and encoded images don't.
    """
    return (
        not feature.inner_shape
        and feature.dtype != "bytes"
        and (is_bytes(feature) or feature.kind == "int64")
    )
