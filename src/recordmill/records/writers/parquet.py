"""Output to Parquet files with one column for each feature.

Scalars are scalars, lists are lists, and tensors are fixed-size lists. A tensor that may be missing
is a variable list, because pyarrow can't read fixed-size lists with nulls. Its shape is in the
metadata of the field. The metadata of the file contains the schema, so a build from the file
produces the same Examples.

The default compression is zstd at level 1, which is smaller than snappy and as fast to write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recordmill.base.buffers import to_offsets
from recordmill.base.errors import UsageError
from recordmill.base.option_names import did_you_mean, option
from recordmill.base.sizes import parse_size
from recordmill.records.columns.numpy_arrays import is_bytes
from recordmill.records.writers.outputs import OutputWriter, WriterSettings
from recordmill.schemas.arrow import to_arrow, value_type
from recordmill.schemas.feature import Feature, Schema
from recordmill.storage.files import create_file

# 64 MiB of Arrow memory. DuckDB and Spark read a row group per thread, and a group stays in memory
# until it is written.
ROW_GROUP_BYTES = 64 << 20
# pyarrow's own limit, 1,048,576 rows.
ROW_GROUP_ROWS = 1 << 20
# The memory of a read is planned for groups of this size, so users can't choose a larger one.
MAX_GROUP_BYTES = ROW_GROUP_BYTES
# 1 million list values, for which pyarrow needs 35 MiB (`buffer_bytes_per_value` in `OUTPUTS`).
# pyarrow encodes an array in one go, so longer arrays are written in slices of at least one row.
_MAX_WRITE_VALUES = 1 << 20
_ZSTD_LEVEL = 1
# 1 MiB of distinct values per column and row group. Parquet stores further values without the
# dictionary.
_MAX_DICTIONARY_BYTES = 1 << 20

# The highest level of each compression. 0 means that it has no levels.
MAX_COMPRESSION_LEVELS = {"zstd": 22, "gzip": 9, "snappy": 0, "none": 0}


@dataclass(frozen=True)
class ParquetWriteOptions:
    """Options of the Parquet writer.

    Attributes:
        group_rows: Number of rows in a row group. None writes as many as fit into `group_bytes`.
        group_bytes: Maximum size of a row group in Arrow memory. It may end a row group before
            `group_rows`.
        compression: Name of a codec, a key of MAX_COMPRESSION_LEVELS.
        level: The compression level. None is 1 for zstd and otherwise the codec's default.

    Raises:
        UsageError: A value is out of range.
    """

    group_rows: int | None = None
    group_bytes: int = ROW_GROUP_BYTES
    compression: str = "zstd"
    level: int | None = None

    def __post_init__(self) -> None:
        if self.compression not in MAX_COMPRESSION_LEVELS:
            suggestion = did_you_mean(self.compression, MAX_COMPRESSION_LEVELS)
            raise UsageError(
                "{compression}: must be one of {max_compression_levels}{suggestion}",
                compression=option("compression", self.compression),
                max_compression_levels=", ".join(MAX_COMPRESSION_LEVELS),
                suggestion=suggestion,
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
                "{compression}:{level}: it has {levels}",
                compression=option("compression", self.compression),
                level=self.level,
                levels=levels,
            )
        if self.group_rows is not None and not 1 <= self.group_rows <= ROW_GROUP_ROWS:
            raise UsageError(
                "{row_group_rows}: must be 1 to {row_group_rows2}",
                row_group_rows=option("row_group_rows", self.group_rows),
                row_group_rows2=ROW_GROUP_ROWS,
            )
        if not 1 <= self.group_bytes <= MAX_GROUP_BYTES:
            raise UsageError(
                "{row_group_size}: must be 1 byte to {max_group_bytes} MiB",
                row_group_size=option("row_group_size", self.group_bytes),
                max_group_bytes=MAX_GROUP_BYTES >> 20,
            )


def parse_parquet_options(
    row_group_rows: int | None, row_group_size: str | int, compression: str
) -> ParquetWriteOptions:
    """Creates the options of the writer from the options of `read`.

    Args:
        row_group_rows: Number of rows, or None.
        row_group_size: A size such as "64MiB", or a number of bytes.
        compression: A name, or a name and a level such as "zstd:9".

    Raises:
        UsageError: A value has another form or is out of range.
    """
    name, colon, level = compression.partition(":")
    if colon and not level.isdecimal():
        raise UsageError(
            "{compression}: write a name, or a name and a level as in zstd:9",
            compression=option("compression", compression),
        )
    group_bytes = parse_size(row_group_size, "row_group_size")
    return ParquetWriteOptions(
        group_rows=row_group_rows,
        group_bytes=group_bytes,
        compression=name,
        level=int(level) if colon else None,
    )


class ParquetWriter(OutputWriter):
    """Writer of one Parquet file, which is complete after `close`.

    The row groups depend only on the batches and the options.
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
        # `from_arrays` without columns would lose the number of rows.
        file_batch = pa.RecordBatch.from_arrays(columns, schema=self._arrow) if columns else batch
        start = 0
        # A batch is divided where a group has enough rows. The bytes are only checked after each
        # slice, so a group may exceed `group_bytes` by one batch.
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
        settings: The options are `ParquetWriteOptions`, or None for the defaults.
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

    It is 0 for a column without lists.
    """
    if not pa.types.is_nested(column.type):
        return 0
    while pa.types.is_nested(column.type):
        column = column.flatten()
    return len(column)


def to_parquet_schema(schema: Schema) -> pa.Schema:
    """Returns the Arrow schema of the file.

    It differs from `to_arrow(schema)` in tensors that may be missing, which are variable lists.
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
