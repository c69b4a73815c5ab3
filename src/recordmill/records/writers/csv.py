"""Output to CSV files, for small data sets.

A file has a header, and each field is a single value. All texts are quoted, so an empty text
differs from a missing value.
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
    """Writer of one CSV file.

    Args:
        path: A path that does not exist yet.
        schema: The features. `check_csv` raises UsageError for a feature that CSV can't hold.
        settings: Not used.
    """

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
        """Appends the rows of a batch.

        Raises:
            DataError: A time is not in the years 1 to 9999.
        """
        columns = [
            column.cast(field.type)
            for column, field in zip(batch.columns, self._arrow, strict=True)
        ]
        # pyarrow would write words instead of such a time.
        for field, column in zip(self._arrow, columns, strict=True):
            if (row := _find_unsupported_year(column)) is not None:
                raise DataError(
                    "feature {field}: the time of row {rows} is outside of the years 1 to 9999, "
                    "which {to} can hold; use {to2}, or choose records with {where}",
                    field=repr(field.name),
                    rows=f"{self.rows + row:,}",
                    to=option("to", "csv"),
                    to2=option("to", "parquet"),
                    where=option("where"),
                )
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._arrow))
        self.rows += batch.num_rows

    def close(self) -> None:
        self._writer.close()
        self._file.close()

    def abort(self) -> None:
        self._file.close()


def check_csv(schema: Schema) -> None:
    """Raises UsageError if CSV can't hold the features.

    CSV holds single numbers and texts, but no lists, tensors or bytes. At least one feature is
    needed.
    """
    unfit = [
        f"{feature.name} ({feature.describe()})"
        for feature in schema
        if feature.shape or feature.dtype == "bytes"
    ]
    if unfit:
        suffix = f" and {len(unfit) - 5} more" if len(unfit) > 5 else ""
        raise UsageError(
            "{to}: a field holds one number or text, not {unfit}{suffix}; leave them out "
            "with {columns}, or use {to2} or parquet",
            to=option("to", "csv"),
            unfit=", ".join(unfit[:5]),
            suffix=suffix,
            columns=option("columns"),
            to2=option("to", "jsonl"),
        )
    if not schema.features:
        raise UsageError("{to}: there is no feature to write", to=option("to", "csv"))


def _find_unsupported_year(column: pa.Array) -> int | None:
    """Returns the first row with a time outside the years 1 to 9999.

    The result is None if there is no such row.
    """
    # Nanoseconds in 64 bits only reach from 1677 to 2262.
    if not pa.types.is_timestamp(column.type) or column.type.unit == "ns":
        return None
    begin, end = (np.datetime64(year, column.type.unit).astype(int) for year in ("0001", "10000"))
    times = column.cast(pa.int64())
    is_unsupported = pc.or_(pc.less(times, begin), pc.greater_equal(times, end))
    return int(pc.index(is_unsupported, True).as_py()) if pc.any(is_unsupported).as_py() else None
