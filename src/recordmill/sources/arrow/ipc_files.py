"""Source for Arrow IPC files and streams. Feather files of version 2 are Arrow IPC files.

Columns and lists become features, and structs become dotted names. The position of a record is its
row number in the file. Files of one input may lack columns, which are null there, and may have them
in any order.

A file has an index of its record batches, so a unit is a range of them. A stream, which Hugging
Face's datasets write, has none. So it is one unit.

Arrow reads batches without a check of their values. So each batch is validated before its values
are used. Source: https://arrow.apache.org/docs/format/Columnar.html
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from recordmill.base.errors import DataError, Reject
from recordmill.base.threads import thread_map
from recordmill.schemas.feature import Schema, check_feature_count
from recordmill.sources.arrow.parquet import build_row_units, max_batch_bytes, select_columns
from recordmill.sources.common.contract import (
    BATCH_BYTES,
    BATCH_ROWS,
    Chunk,
    PlanOptions,
    TableOptions,
    Unit,
)
from recordmill.sources.values.conform import conform_chunk
from recordmill.sources.values.flatten import check_column_names, flatten, flatten_schema
from recordmill.sources.values.schema_unifier import (
    SchemaUnifier,
    check_columns,
    declared_dtypes,
    finish_unified_schema,
)
from recordmill.storage.arrow_files import map_arrow_file
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import check_unchanged, read_range

_FILE_MAGIC = b"ARROW1"
# The end of a stream: a continuation mark and a message of 0 bytes.
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"


@dataclass(frozen=True)
class ArrowSource:
    """A source of the rows of Arrow IPC files and streams.

    Attributes:
        units: Ranges of record batches.
        plan_rejects: Always empty, since rows are checked when they are read.
        columns: Names of the top-level columns to read. A file may lack some. None reads all.
        text_label: The label, if its classes are the texts of its own values.
        batch_bytes: Target size of a batch. Larger batches of a file are divided.
    """

    schema: Schema
    files: FileTable
    units: Sequence[Unit]
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    columns: Sequence[str] | None = None
    text_label: str | None = None
    batch_bytes: int = BATCH_BYTES
    kind: str = "arrow"

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields the rows of a unit in batches of bounded size."""
        file, row = self.files[unit.begin_file], unit.first_row
        check_unchanged(file.path, file.stat, file.name)
        batches = _read_batches(file, range(unit.start, unit.stop))
        for batch in _divide_batches(batches, self.columns, self.batch_bytes, file.name):
            yield conform_chunk(
                batch,
                self.schema,
                text_label=self.text_label,
                file_id=unit.begin_file,
                file_name=file.name,
                first_row=row,
            )
            row += batch.num_rows
        check_unchanged(file.path, file.stat, file.name)

    def locate(self, file: int, positions: Sequence[int]) -> list[str]:
        """Returns the places of records in their file, for messages. See `RecordLocator`."""
        return [f"row {position}" for position in positions]


@dataclass(frozen=True)
class _ScannedFile:
    """Metadata of a file for the plan.

    No file stays open after it is scanned.

    Attributes:
        names: Names of all top-level columns.
        flat_schema: The flattened schema of the columns to read.
        null_counts: Number of nulls by column of the flat schema.
        batches: (rows, bytes) of each record batch that can be read alone. A stream is one.
        notes: Notes for the user.
    """

    names: tuple[str, ...]
    flat_schema: pa.Schema
    null_counts: Mapping[str, int]
    batches: Sequence[tuple[int, int]]
    notes: tuple[str, ...] = ()


def plan_arrow(
    files: Sequence[InputFile], options: TableOptions, common: PlanOptions
) -> ArrowSource:
    """Plans Arrow IPC files and streams from the metadata of their batches.

    Raises:
        DataError: A file is not Arrow or is damaged, a column can't be a feature, the files don't
            fit each other, or there are no rows.
        UsageError: An option names a column that does not exist.
    """
    files = FileTable.from_files(files)
    scanned_files = list(
        thread_map(lambda file: _scan_file(file, options, common), files, common.threads)
    )
    names = dict.fromkeys(name for scanned in scanned_files for name in scanned.names)
    check_columns(
        [name for name in options.columns or () if name not in common.droppable_features], names
    )
    unifier = SchemaUnifier(declared_dtypes(common))
    for file, scanned in zip(files, scanned_files, strict=True):
        if any(rows for rows, _ in scanned.batches):
            unifier.add(scanned.flat_schema, file.name, scanned.null_counts)
    units = build_row_units([scanned.batches for scanned in scanned_files], common.unit_bytes)
    if not units:
        raise DataError("there are no rows", source=files[0].name if files else "")
    schema, notes, text_label = finish_unified_schema(
        unifier, _read_label_batches(files, scanned_files, common), common, "the files"
    )
    for file in files:
        check_unchanged(file.path, file.stat, file.name)
    return ArrowSource(
        schema=schema,
        files=files,
        units=units,
        notes=(*(note for scanned in scanned_files for note in scanned.notes), *notes),
        columns=options.columns,
        text_label=text_label,
        batch_bytes=max_batch_bytes(common),
    )


def _scan_file(file: InputFile, options: TableOptions, common: PlanOptions) -> _ScannedFile:
    with _errors_of(file.name):
        data = map_arrow_file(file.path)
        is_stream = _is_stream(data)
        schema = (pa.ipc.open_stream if is_stream else pa.ipc.open_file)(data).schema
        check_column_names(schema.names, file.name)
        columns = select_columns(options.columns, schema)
        flat_schema = flatten_schema(
            pa.schema([schema.field(name) for name in columns], metadata=schema.metadata)
        )
        check_feature_count(len(flat_schema), common.memory_bytes, file.name)
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
    return _ScannedFile(
        names=tuple(schema.names),
        flat_schema=flat_schema,
        null_counts=null_counts,
        batches=sizes,
        notes=notes,
    )


def _is_stream(data: pa.NativeFile) -> bool:
    """Returns whether an open file is a stream, and moves to its start."""
    is_stream: bool = data.read(len(_FILE_MAGIC)) != _FILE_MAGIC
    data.seek(0)
    return is_stream


@contextmanager
def _errors_of(source: str) -> Iterator[None]:
    """Raises DataError for an error of Arrow. Errors of the file system pass."""
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


def _divide_batches(
    batches: Iterable[pa.RecordBatch],
    columns: Sequence[str] | None,
    batch_bytes: int,
    source: str,
) -> Iterator[pa.RecordBatch]:
    """Yields the selected columns in valid batches of about `batch_bytes`."""
    for batch in batches:
        selected = batch.select(select_columns(columns, batch.schema))
        with _errors_of(source):
            selected.validate()
            rows = max(1, batch.num_rows * batch_bytes // max(selected.nbytes, 1))
            for start in range(0, batch.num_rows, min(rows, BATCH_ROWS)):
                part = selected.slice(start, min(rows, BATCH_ROWS))
                part.validate(full=True)
                yield part


def _read_label_batches(
    files: FileTable, scanned_files: Sequence[_ScannedFile], common: PlanOptions
) -> Iterator[pa.RecordBatch]:
    """Yields only the label column of all files, for its class names.

    If the label is a field of a struct, the complete struct is read and flattened.
    """
    label = common.label or ""
    for file, scanned in zip(files, scanned_files, strict=True):
        columns = [name for name in scanned.names if label == name or label.startswith(f"{name}.")]
        if columns:
            batches = _divide_batches(
                _read_batches(file, None), columns, max_batch_bytes(common), file.name
            )
            yield from map(flatten, batches)
