"""Writes a stream of RecordBatches to one Parquet file of real columns, in row groups of about a stated size.

Scalars are scalars, lists are lists, tensors fixed-size lists. A tensor that may be missing is a variable list, since
pyarrow can't read back a fixed-size list with nulls; its shape stands in the field's metadata, as the whole schema
does, so that a build from the file gives the same Examples. Compression is zstd at its fast level 1, unless told
otherwise: smaller than snappy and as quick to write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recordmill.base.errors import UsageError
from recordmill.base.option_names import did_you_mean, option
from recordmill.base.sizes import parse_size
from recordmill.records.columns.numpy_arrays import is_bytes
from recordmill.records.writers.outputs import OutputWriter, WriterSettings
from recordmill.schemas.arrow import to_arrow, value_type
from recordmill.schemas.feature import Feature, Schema
from recordmill.storage.files import create_file

# 64 MiB of Arrow memory: DuckDB and Spark read a group per thread, and it bounds the writer's memory
ROW_GROUP_BYTES = 64 << 20
ROW_GROUP_ROWS = 1 << 20  # 1,048,576 rows: pyarrow's own limit
MAX_GROUP_BYTES = (
    ROW_GROUP_BYTES  # what a read's memory is planned with; a group is held until it is written
)
# 1 million values of lists, or one row, for which pyarrow takes 35 MiB (`buffer_bytes_per_value` of the table of outputs): it
# writes an array as a whole, so arrays are cut
_MAX_WRITE_VALUES = 1 << 20
_ZSTD_LEVEL = 1
_MAX_DICTIONARY_BYTES = (
    1 << 20
)  # bytes of distinct values per column and group; Parquet falls back to plain after it

MAX_COMPRESSION_LEVELS = {
    "zstd": 22,
    "gzip": 9,
    "snappy": 0,
    "none": 0,
}  # name to its highest level; 0: it has none


@dataclass(frozen=True)
class ParquetWriteOptions:
    """Options of the Parquet writer.

    Attributes:
        group_rows: Rows of a row group, None: as many as group_bytes hold.
        group_bytes: Arrow memory of a group, which ends it in any case.
        compression: One of MAX_COMPRESSION_LEVELS.
        level: None for the codec's own (1 for zstd).
    """

    group_rows: int | None = None
    group_bytes: int = ROW_GROUP_BYTES
    compression: str = "zstd"
    level: int | None = None

    def __post_init__(self) -> None:
        if self.compression not in MAX_COMPRESSION_LEVELS:
            suggestion = did_you_mean(self.compression, MAX_COMPRESSION_LEVELS)
            raise UsageError(
                f"{option('compression', self.compression)}: one of {', '.join(MAX_COMPRESSION_LEVELS)}{suggestion}"
            )
        if (
            self.level is not None
            and not 1 <= self.level <= MAX_COMPRESSION_LEVELS[self.compression]
        ):
            levels = (
                f"levels 1 to {MAX_COMPRESSION_LEVELS[self.compression]}"
                if MAX_COMPRESSION_LEVELS[self.compression]
                else "no levels"
            )
            raise UsageError(
                f"{option('compression', self.compression)}:{self.level}: it has {levels}"
            )
        if self.group_rows is not None and not 1 <= self.group_rows <= ROW_GROUP_ROWS:
            raise UsageError(f"{option('row_group_rows', self.group_rows)}: 1 to {ROW_GROUP_ROWS}")
        if not 1 <= self.group_bytes <= MAX_GROUP_BYTES:
            raise UsageError(
                f"{option('row_group_size', self.group_bytes)}: 1 byte to {MAX_GROUP_BYTES >> 20} MiB"
            )


def parse_parquet_options(
    row_group_rows: int | None, row_group_size: str | int, compression: str
) -> ParquetWriteOptions:
    """Returns the options as `read` takes them, or raises UsageError."""
    name, colon, level = compression.partition(":")
    if colon and not level.isdecimal():
        raise UsageError(
            f"{option('compression', compression)}: a name, or a name and a level as in zstd:9"
        )
    group_bytes = parse_size(row_group_size, "row_group_size")
    return ParquetWriteOptions(
        group_rows=row_group_rows,
        group_bytes=group_bytes,
        compression=name,
        level=int(level) if colon else None,
    )


class ParquetWriter(OutputWriter):
    """Appends batches of the schema's Arrow types to a new file; `close` makes it valid.

    Groups depend on the batches alone.
    """

    def __init__(
        self, path: str | Path, schema: Schema, options: ParquetWriteOptions | None = None
    ) -> None:
        self.schema, self.rows = schema, 0
        options = options or ParquetWriteOptions()
        self._arrow, self._group_bytes = to_parquet_schema(schema), options.group_bytes
        self._group_rows = options.group_rows or ROW_GROUP_ROWS
        self._file = create_file(path)
        self._writer = pq.ParquetWriter(
            self._file,
            self._arrow,
            compression=options.compression,
            compression_level=_ZSTD_LEVEL
            if options.compression == "zstd" and options.level is None
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
        file_batch = pa.RecordBatch.from_arrays(columns, schema=self._arrow) if columns else batch
        start = 0
        while start < file_batch.num_rows:
            batch_slice = file_batch.slice(start, self._group_rows - self._pending_rows)
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
        self._writer.is_open = False  # or pyarrow would write a footer when it is collected
        self._file.close()

    def _flush(self) -> None:
        if self._pending_rows:
            batches = [part for batch in self._pending_batches for part in _split_batch(batch)]
            self._writer.write_table(
                pa.Table.from_batches(batches, self._arrow), row_group_size=self._pending_rows
            )
        self._pending_batches, self._pending_bytes, self._pending_rows = [], 0, 0


def open_parquet(path: Path, schema: Schema, settings: WriterSettings) -> ParquetWriter:
    """Returns a writer of a Parquet file to a new file."""
    return ParquetWriter(path, schema, settings.options)


def _split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices of a batch whose lists have no more than _MAX_WRITE_VALUES values, if rows are about equally long."""
    max_values = max((_count_list_values(column) for column in batch.columns), default=0)
    rows_per_slice = (
        max(batch.num_rows * _MAX_WRITE_VALUES // max_values, 1)
        if max_values > _MAX_WRITE_VALUES
        else batch.num_rows
    )
    for start in range(0, batch.num_rows, rows_per_slice):
        yield batch.slice(start, rows_per_slice)


def _count_list_values(column: pa.Array) -> int:
    """Returns how many values the lists of a column hold; 0 of a column that is no list."""
    if not pa.types.is_nested(column.type):
        return 0
    while pa.types.is_nested(column.type):
        column = column.flatten()
    return len(column)


def to_parquet_schema(schema: Schema) -> pa.Schema:
    """Returns the Arrow schema of the file: `to_arrow(schema)` with variable lists for tensors that may be missing."""
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
        return arrow  # the items of a list are never missing
    result = pa.large_list(value_type(feature))
    for _ in range(feature.ragged_rank):
        result = pa.large_list(result)
    return result


def _to_parquet(column: pa.Array, arrow: pa.DataType) -> pa.Array:
    if column.type == arrow:
        return column
    # A fixed-size list with nulls: the same values after offsets, which missing rows do not advance.
    if not pa.types.is_fixed_size_list(column.type):
        return column.cast(arrow)
    valid = column.is_valid()
    lengths = np.where(valid.to_numpy(zero_copy_only=False), column.type.list_size, 0)
    offsets = np.zeros(len(column) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return pa.LargeListArray.from_arrays(
        pa.array(offsets),
        column.flatten(),
        type=arrow,
        mask=None if column.null_count == 0 else pa.compute.invert(valid),
    )


def _benefits_from_dictionary(feature: Feature) -> bool:
    """Returns whether a dictionary can pay: text and whole numbers repeat, tensors, floats and encoded images don't."""
    return (
        not feature.inner_shape
        and feature.dtype != "bytes"
        and (is_bytes(feature) or feature.kind == "int64")
    )
