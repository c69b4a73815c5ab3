"""Source for Arrow IPC files and streams. Feather files of version 2 are Arrow IPC files.

A file has an index of its record batches, so a unit is a range of them. A stream, which Hugging
Face's datasets write, has no index, so it is one unit.

Arrow reads batches without a check of their values. So each batch is validated before its values
are used. Source: https://arrow.apache.org/docs/format/Columnar.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.sources.arrow.row_groups import (
    RowGroupFile,
    RowGroupSource,
    plan_row_groups,
    select_columns,
    select_flat_schema,
)
from recordmill.sources.common.contract import BATCH_ROWS, PlanOptions
from recordmill.sources.common.options import TableOptions
from recordmill.sources.values.flatten import flatten
from recordmill.storage.arrow_files import map_arrow_file
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import read_range

_FILE_MAGIC = b"ARROW1"
# The end of a stream: a continuation mark and a message of 0 bytes.
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"


@dataclass(frozen=True)
class ArrowSource(RowGroupSource):
    """A source of the rows of Arrow IPC files and streams. A group of rows is a record batch."""

    kind: str = "arrow"

    @staticmethod
    def read_batches(
        file: InputFile, columns: Sequence[str] | None, groups: range, batch_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """Yields the selected columns in valid batches. See `RowGroupSource.read_batches`."""
        for batch in _read_batches(file, groups):
            selected = batch.select(select_columns(columns, batch.schema))
            with _errors_of(file.name):
                selected.validate()
                rows = max(1, batch.num_rows * batch_bytes // max(selected.nbytes, 1))
                for start in range(0, batch.num_rows, min(rows, BATCH_ROWS)):
                    part = selected.slice(start, min(rows, BATCH_ROWS))
                    part.validate(full=True)
                    yield part


def plan_arrow(
    files: Sequence[InputFile], options: TableOptions, common: PlanOptions
) -> ArrowSource:
    """Plans Arrow IPC files and streams. See `plan_row_groups`."""
    return plan_row_groups(ArrowSource, _scan_file, files, options, common)


def _scan_file(file: InputFile, options: TableOptions, common: PlanOptions) -> RowGroupFile:
    with _errors_of(file.name):
        data = map_arrow_file(file.path)
        is_stream = _is_stream(data)
        schema = (pa.ipc.open_stream if is_stream else pa.ipc.open_file)(data).schema
        columns, flat_schema = select_flat_schema(schema, file, options, common)
        # The values of lists and structs are used when they are flattened.
        has_nested = any(pa.types.is_nested(schema.field(name).type) for name in columns)
        sizes = list[tuple[int, int]]()
        null_counts = Counter[str](dict.fromkeys(flat_schema.names, 0))
        for batch in _read_batches(file, None):
            selected = batch.select(columns)
            selected.validate(full=has_nested)
            sizes.append((batch.num_rows, selected.nbytes))
            for name, column in zip(flat_schema.names, flatten(selected).columns, strict=True):
                null_counts[name] += column.null_count
    if is_stream:
        sizes = [(sum(rows for rows, _ in sizes), sum(size for _, size in sizes))]
    notes: tuple[str, ...] = ()
    end = read_range(file.path, max(file.stat.size_bytes - len(_STREAM_END), 0)).tobytes()
    if is_stream and end != _STREAM_END:
        notes = (f"{file.name}: the Arrow stream has no end mark, so it may be cut off",)
    return RowGroupFile(
        names=tuple(schema.names),
        columns=columns,
        flat_schema=flat_schema,
        null_counts=null_counts,
        groups=sizes,
        notes=notes,
    )


def _is_stream(data: pa.NativeFile) -> bool:
    """Returns whether an open file is a stream, and moves to its start."""
    is_stream: bool = data.read(len(_FILE_MAGIC)) != _FILE_MAGIC
    data.seek(0)
    return is_stream


@contextmanager
def _errors_of(source: str) -> Iterator[None]:
    """Turns errors of Arrow inside the `with` block into a DataError.

    Errors of the file system are raised unchanged.
    """
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        message = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"is not an Arrow file, or damaged: {message}", source=source) from None


def _read_batches(file: InputFile, numbers: range | None) -> Iterator[pa.RecordBatch]:
    """Yields the record batches of a file or stream.

    Args:
        file: The file.
        numbers: Numbers of the batches of a file with an index. None, or an empty range, reads all.
    """
    with _errors_of(file.name):
        data = map_arrow_file(file.path)
        if _is_stream(data):
            stream = pa.ipc.open_stream(data)
            yield from stream
            if data.tell() < data.size():
                raise DataError(
                    f"there is data after the end of the Arrow stream at byte {data.tell()}",
                    source=file.name,
                )
            return
        reader = pa.ipc.open_file(data)
        yield from map(reader.get_batch, numbers or range(reader.num_record_batches))
