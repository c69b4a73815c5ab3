"""Sources of Parquet files and other files that consist of row groups.

Columns and lists become features. The fields of a struct become features with dotted names, such as
`address.city`. The position of a record is its row number in the file. Files of one input may have
their columns in any order, and may lack some. A column that a file lacks is null in all rows of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from recordmill.base.errors import DataError, Reject
from recordmill.base.threads import thread_map
from recordmill.schemas.feature import Schema, check_feature_count
from recordmill.sources.common.contract import (
    BATCH_BYTES,
    Chunk,
    PlanOptions,
    Unit,
    list_group_units,
    pack_units,
)
from recordmill.sources.common.options import TableOptions
from recordmill.sources.values.conform import conform_chunk
from recordmill.sources.values.flatten import check_column_names, flatten, flatten_schema
from recordmill.sources.values.schema_unifier import (
    SchemaUnifier,
    check_columns,
    declared_dtypes,
    finish_unified_schema,
)
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import check_unchanged

# A batch may take this share of the memory of a thread. During a build it is in memory decoded,
# cast, as frames of three times its size, and once more as frames of a sorted run.
_BATCH_MEMORY_DIVISOR = 64
# 1 MiB: smaller batches save no memory, since the pages of the columns take as much
_MIN_BATCH_BYTES = 1 << 20


@dataclass(frozen=True)
class RowGroupSource:
    """Base class of sources with files that consist of row groups.

    Attributes:
        units: The units. `start` and `stop` of a unit are numbers of groups in one file.
        plan_rejects: Always empty, since rows are checked when they are read.
        columns: Names of the top-level columns to read. A file may lack some. None means all
            columns.
        text_label: Name of the label feature if its class names are the distinct texts in its
            column, else None.
        batch_bytes: Approximate size of a chunk.
    """

    schema: Schema
    files: FileTable
    units: Sequence[Unit]
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    columns: Sequence[str] | None = None
    text_label: str | None = None
    batch_bytes: int = BATCH_BYTES
    kind: str = ""

    @staticmethod
    def read_batches(
        file: InputFile, columns: Sequence[str] | None, groups: range, batch_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of some groups in batches of about `batch_bytes`.

        Args:
            file: The file.
            columns: Names of the columns to read. None means all columns.
            groups: Numbers of the groups.
            batch_bytes: Approximate size of a batch.

        Raises:
            DataError: The groups are damaged.
        """
        raise NotImplementedError

    def media_remedies(self, schema: pa.Schema) -> dict[str, str]:
        """Returns the remedy for images without bytes, by name. See `conform_chunk`."""
        return {}

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields the rows of a unit in chunks of about `batch_bytes`."""
        file, row = self.files[unit.begin_file], unit.first_row
        check_unchanged(file.path, file.stat, file.name)
        groups = range(unit.start, unit.stop)
        for batch in self.read_batches(file, self.columns, groups, self.batch_bytes):
            yield conform_chunk(
                batch,
                self.schema,
                text_label=self.text_label,
                file_id=unit.begin_file,
                file_name=file.name,
                first_row=row,
                media_remedies=self.media_remedies(batch.schema),
            )
            row += batch.num_rows
        check_unchanged(file.path, file.stat, file.name)

    def locate(self, file: int, positions: Sequence[int]) -> list[str]:
        """Returns where the records are in their file, such as `row 7`, for messages.

        See `RecordLocator`.
        """
        return [f"row {position}" for position in positions]


_Source = TypeVar("_Source", bound=RowGroupSource)


@dataclass(frozen=True)
class RowGroupFile:
    """The properties of a file that the plan needs.

    The plan keeps them instead of open files.

    Attributes:
        names: Names of all top-level columns.
        columns: Names of the top-level columns to read.
        flat_schema: The schema of these columns. Each field of a struct is a column of its own.
        null_counts: Number of nulls by name in `flat_schema`. -1 if it is unknown.
        groups: (rows, bytes in memory) of each group that can be read alone.
        notes: Notes for the user.
    """

    names: tuple[str, ...]
    columns: Sequence[str]
    flat_schema: pa.Schema
    null_counts: Mapping[str, int]
    groups: Sequence[tuple[int, int]]
    notes: tuple[str, ...] = ()


def plan_row_groups(
    source_class: type[_Source],
    scan: Callable[[InputFile, TableOptions, PlanOptions], RowGroupFile],
    files: Sequence[InputFile],
    options: TableOptions,
    common: PlanOptions,
    **fields: Any,
) -> _Source:
    """Plans files from the properties of their groups of rows.

    Args:
        source_class: The class of the source.
        scan: Returns the properties of one file.
        files: The input files.
        options: Options of this kind of files.
        common: Options that all kinds share.
        **fields: Further fields of the source.

    Raises:
        DataError: A file is damaged or of another kind, a column can't be a feature, the files
            don't fit each other, or there are no rows.
        UsageError: An option names a column that does not exist.
    """
    files = FileTable.from_files(files)
    scanned_files = list(
        thread_map(lambda file: scan(file, options, common), files, common.threads)
    )
    names = dict.fromkeys(name for scanned in scanned_files for name in scanned.names)
    check_columns(
        [name for name in options.columns or () if name not in common.droppable_features], names
    )
    unifier = SchemaUnifier(declared_dtypes(common))
    for file, scanned in zip(files, scanned_files, strict=True):
        if any(rows for rows, _ in scanned.groups):
            unifier.add(scanned.flat_schema, file.name, scanned.null_counts)
    units = _make_units([scanned.groups for scanned in scanned_files], common.unit_bytes)
    if not units:
        raise DataError("there are no rows", source=files[0].name if files else "")
    labels = _read_label_batches(source_class, files, scanned_files, common)
    schema, notes, text_label = finish_unified_schema(unifier, labels, common, "the files")
    for file in files:
        check_unchanged(file.path, file.stat, file.name)
    return source_class(
        schema=schema,
        files=files,
        units=units,
        notes=(*(note for scanned in scanned_files for note in scanned.notes), *notes),
        columns=options.columns,
        text_label=text_label,
        batch_bytes=max_batch_bytes(common),
        **fields,
    )


def _read_label_batches(
    source_class: type[RowGroupSource],
    files: FileTable,
    scanned_files: Sequence[RowGroupFile],
    common: PlanOptions,
) -> Iterator[pa.RecordBatch]:
    """Yields only the label column of all files, for its class names.

    If the label is a field of a struct, the complete struct is read and flattened.
    """
    label = common.label or ""
    for file, scanned in zip(files, scanned_files, strict=True):
        columns = [
            name for name in scanned.columns if label == name or label.startswith(f"{name}.")
        ]
        if columns:
            groups = range(len(scanned.groups))
            batches = source_class.read_batches(file, columns, groups, max_batch_bytes(common))
            yield from map(flatten, batches)


def _make_units(files: Sequence[Sequence[tuple[int, int]]], unit_bytes: int) -> tuple[Unit, ...]:
    """Returns units of consecutive groups of rows, of about `unit_bytes` uncompressed bytes.

    Args:
        files: (rows, bytes) of each group of each file.
        unit_bytes: Approximate size of a unit.
    """
    units = (
        unit for ordinal, groups in enumerate(files) for unit in list_group_units(ordinal, groups)
    )
    return pack_units(units, unit_bytes, joins_parts=True)


def max_batch_bytes(common: PlanOptions) -> int:
    """Returns the approximate size of a batch in bytes.

    The size is BATCH_BYTES, or less if the threads share little memory.
    """
    return min(
        BATCH_BYTES,
        max(common.memory_bytes // (_BATCH_MEMORY_DIVISOR * common.threads), _MIN_BATCH_BYTES),
    )


def select_columns(columns: Sequence[str] | None, schema: pa.Schema) -> list[str]:
    """Returns the names of the columns to read, if the schema contains them.

    If `columns` is None, the result is all columns of the schema.
    """
    names = dict.fromkeys(schema.names)
    return [name for name in (names if columns is None else columns) if name in names]


def select_flat_schema(
    schema: pa.Schema, file: InputFile, options: TableOptions, common: PlanOptions
) -> tuple[list[str], pa.Schema]:
    """Returns (names of the columns to read, their flattened schema).

    Raises:
        DataError: A column can't be a feature, or there are too many.
    """
    check_column_names(schema.names, file.name)
    columns = select_columns(options.columns, schema)
    fields = [schema.field(name) for name in columns]
    flat_schema = flatten_schema(pa.schema(fields, metadata=schema.metadata))
    check_feature_count(len(flat_schema), common.memory_bytes, file.name)
    return columns, flat_schema
