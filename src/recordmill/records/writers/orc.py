"""A stream of RecordBatches to one ORC file, for Hive, Spark and Trino; stripes of 64 MiB, compressed by zstd.

Scalars are scalars, tensors and lists are lists, whose shapes the file does not keep. Times have nanoseconds; such as
lie outside of the years 1677 to 2262 are written, and read by others, but pyarrow refuses them. ORC has no unsigned
numbers and no half precision: features of these are refused.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc

from recordmill.base.errors import UsageError
from recordmill.base.option_names import option
from recordmill.records.writers.outputs import OutputWriter, WriterSettings
from recordmill.records.writers.years import NANOSECOND_YEARS, check_years
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.storage.files import create_file, write_all

_UNFIT = ("uint8", "uint16", "uint32", "uint64", "float16")


class _Sink:
    """What the ORC library writes to. It ends the process where that fails, so an error waits here for `check`."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self._error: OSError | None = None

    def write(self, data: Any) -> int:
        if self._error is None:
            try:
                write_all(self._file, data)
            except OSError as error:
                self._error = error
        return len(data)

    def flush(self) -> None:
        """Nothing is held."""

    def check(self) -> None:
        """Raise the error of a write that failed."""
        if self._error is not None:
            raise self._error


class OrcWriter(OutputWriter):
    """Append batches of the schema's Arrow types to a new file, or to one that is open; `close` makes it valid."""

    def __init__(self, path: str | Path | io.BytesIO, schema: Schema) -> None:
        check_orc(schema)
        self.rows = 0
        self._file = path if isinstance(path, io.BytesIO) else create_file(path)
        self._sink = _Sink(self._file)
        self._writer = pyarrow.orc.ORCWriter(pa.PythonFile(self._sink, "w"), compression="zstd")
        self.write(pa.RecordBatch.from_pylist([], to_arrow(schema)))  # by which a file without records has its columns

    def write(self, batch: pa.RecordBatch) -> None:
        check_years(batch, "orc", NANOSECOND_YEARS)
        self._writer.write(pa.Table.from_batches([batch]))
        self._sink.check()
        self.rows += batch.num_rows

    def close(self) -> None:
        self._writer.close()
        self._sink.check()
        self._file.close()

    def abort(self) -> None:
        self._writer.is_open = False  # or pyarrow would write a footer when it is collected
        self._file.close()


def open_orc(path: Path, schema: Schema, settings: WriterSettings) -> OrcWriter:
    """A writer of an ORC file to a new file."""
    return OrcWriter(path, schema)


def check_orc(schema: Schema) -> None:
    """Raises UsageError for features whose dtype ORC doesn't have."""
    unfit = [f"{feature.name} ({feature.describe()})" for feature in schema if feature.dtype in _UNFIT]
    if unfit:
        more = f" and {len(unfit) - 5} more" if len(unfit) > 5 else ""
        raise UsageError(
            f"{option('to', 'orc')}: ORC has no unsigned numbers and no float16, and can't hold "
            f"{', '.join(unfit[:5])}{more}; leave them out with {option('columns')}, or use {option('to', 'parquet')}"
        )
    if not schema.features:
        raise UsageError(f"{option('to', 'orc')}: there is no feature to write")


def orc_column_bytes(batches: Sequence[pa.RecordBatch], schema: Schema, own: Any) -> list[int]:
    """What each column takes once it is encoded and compressed: it is written to memory for it."""
    sizes = []
    for name in schema.names:
        sink = io.BytesIO()
        writer = OrcWriter(sink, schema.select((name,)))
        for batch in batches:
            writer.write(batch.select([name]))
        writer._writer.close()
        sizes.append(sink.tell())
    return sizes
