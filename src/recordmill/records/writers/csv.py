"""Writes a stream of RecordBatches to one CSV file, for people and small tools. Bulk belongs into Parquet.

A header and single values only, every text in quotes, so that empty text and a missing value differ.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from recordmill.base.errors import DataError, UsageError
from recordmill.base.option_names import option
from recordmill.records.writers.outputs import OutputWriter, WriterSettings
from recordmill.schemas.arrow import value_type
from recordmill.schemas.feature import Schema
from recordmill.storage.files import create_file


class CsvWriter(OutputWriter):
    """Appends batches of the schema's Arrow types to a new CSV file; see `check_csv` for what it can hold."""

    def __init__(
        self, path: str | Path, schema: Schema, settings: WriterSettings | None = None
    ) -> None:
        check_csv(schema)
        self.rows = 0
        self._file = create_file(path)
        self._arrow = pa.schema(
            [(f.name, pa.float32() if f.dtype == "float16" else value_type(f)) for f in schema]
        )
        self._writer = pyarrow.csv.CSVWriter(self._file, self._arrow)

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends rows; DataError for a time outside of the years 1 to 9999, for which pyarrow writes words."""
        columns = [
            column.cast(field.type)
            for column, field in zip(batch.columns, self._arrow, strict=True)
        ]
        for field, column in zip(self._arrow, columns, strict=True):
            if (row := _find_unsupported_year(column)) is not None:
                raise DataError(
                    f"feature {field.name!r}: the time of row {self.rows + row:,} is outside of the years 1 to 9999, "
                    f"which {option('to', 'csv')} can hold; use {option('to', 'parquet')}, or choose records with "
                    f"{option('where')}"
                )
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._arrow))
        self.rows += batch.num_rows

    def close(self) -> None:
        self._writer.close()
        self._file.close()

    def abort(self) -> None:
        self._file.close()


def check_csv(schema: Schema) -> None:
    """Raises UsageError for a feature that CSV can't hold: a list, a tensor, bytes."""
    unfit = [
        f"{feature.name} ({feature.describe()})"
        for feature in schema
        if feature.shape or feature.dtype == "bytes"
    ]
    if unfit:
        suffix = f" and {len(unfit) - 5} more" if len(unfit) > 5 else ""
        raise UsageError(
            f"{option('to', 'csv')}: a field holds one number or text, not {', '.join(unfit[:5])}{suffix}; leave them "
            f"out with {option('columns')}, or use {option('to', 'jsonl')} or parquet"
        )
    if not schema.features:
        raise UsageError(f"{option('to', 'csv')}: there is no feature to write")


def _find_unsupported_year(column: pa.Array) -> int | None:
    """Returns the first row with a time outside of the years 1 to 9999; nanoseconds reach from 1677 to 2262 only."""
    if not pa.types.is_timestamp(column.type) or column.type.unit == "ns":
        return None
    begin, end = (np.datetime64(year, column.type.unit).astype(int) for year in ("0001", "10000"))
    times = column.cast(pa.int64())
    is_unsupported = pc.or_(pc.less(times, begin), pc.greater_equal(times, end))
    return int(pc.index(is_unsupported, True).as_py()) if pc.any(is_unsupported).as_py() else None
