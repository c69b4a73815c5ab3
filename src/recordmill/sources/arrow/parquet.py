"""Plans and reads Parquet files: columns and lists become features, row groups units, and structs dotted paths.

The footers tell types, rows and nulls, so the plan reads no data but the label's column. A record's position is its row
number in the file. Files of one input may lack columns (null there), and have them in any order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recordmill.base.errors import DataError, Reject
from recordmill.base.threads import thread_map
from recordmill.schemas.feature import Schema, check_feature_count
from recordmill.sources.common.contract import (
    BATCH_BYTES,
    BATCH_ROWS,
    Chunk,
    PlanOptions,
    TableOptions,
    Unit,
    pack_units,
)
from recordmill.sources.values.conform import conform_chunk
from recordmill.sources.values.flatten import (
    check_column_names,
    flatten,
    flatten_schema,
    hugging_face_classes,
)
from recordmill.sources.values.schema_unifier import (
    SchemaUnifier,
    check_columns,
    declared_dtypes,
    finish_unified_schema,
)
from recordmill.storage.arrow_files import open_arrow_file
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import SizedFile, check_unchanged, is_remote

_DISK_READ_BYTES = 64 << 10  # 64 KiB of a column at once: what is larger makes nothing quicker
_STORE_READ_BYTES = 1 << 20  # 1 MiB: there each read waits for a request
_PREFETCH_BATCHES = (
    4  # what may be read ahead of a store, in the size of batches: a unit, with enough memory
)
# of the memory, for a batch of each thread: it stands there decoded, fitted, as frames of three times its size, and so
# once more in a run
_BATCH_MEMORY_DIVISOR = 64
_MIN_BATCH_BYTES = (
    1 << 20
)  # 1 MiB: smaller ones save no memory, since pages of columns take as much
_MAGIC_BYTES = 4
_FIELD_ROW_GROUPS, _FIELD_COLUMNS, _FIELD_META_DATA, _FIELD_STATISTICS, _FIELD_NULL_COUNT = (
    4,
    1,
    3,
    12,
    3,
)  # fields on the way to a null count
(
    _TYPE_TRUE,
    _TYPE_FALSE,
    _TYPE_BYTE,
    _TYPE_DOUBLE,
    _TYPE_BINARY,
    _TYPE_LIST,
    _TYPE_SET,
    _TYPE_STRUCT,
) = (
    1,
    2,
    3,
    7,
    8,
    9,
    10,
    12,
)  # types; others are integers


@dataclass(frozen=True)
class ParquetSource:
    """columns: the top-level ones to read, of which files may lack some; None: all. named: the label, if its classes
    are texts of its values.
    """

    schema: Schema
    files: FileTable
    units: Sequence[Unit]
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    columns: Sequence[str] | None = None
    text_label: str | None = None
    batch_bytes: int = BATCH_BYTES
    kind: str = "parquet"

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields the rows of the unit's row groups, in batches of bounded size however large a row group is."""
        ordinal, row = unit.first_file, unit.first_row
        file = self.files[ordinal]
        check_unchanged(file.path, file.stat, file.name)
        data = open_arrow_file(file.path)
        for batch in _read_batches(
            file, data, self.columns, range(unit.start, unit.stop), self.batch_bytes
        ):
            yield conform_chunk(
                batch,
                self.schema,
                text_label=self.text_label,
                file_id=ordinal,
                file_name=file.name,
                first_row=row,
            )
            row += batch.num_rows
        check_unchanged(file.path, file.stat, file.name)

    def locate(self, file: int, positions: Sequence[int]) -> list[str]:
        """Returns where people find these records: see sources.contract.RecordLocator."""
        return [f"row {position}" for position in positions]


def plan_parquet(
    files: Sequence[InputFile], options: TableOptions, common: PlanOptions
) -> ParquetSource:
    """Reads the footers.

    Raises:
        DataError: no Parquet file, a column that can't be a feature, files that don't go together, no rows.
        UsageError: an option names a column that is not there.
    """
    files = FileTable.of(files)
    footers = list(
        thread_map(lambda file: _read_footer(file, options, common), files, common.threads)
    )
    names = dict.fromkeys(name for footer in footers for name in footer.names)
    check_columns([name for name in options.columns or () if name not in common.may_lack], names)
    unifier = SchemaUnifier(declared_dtypes(common))
    for file, footer in zip(files, footers, strict=True):
        if footer.rows:
            unifier.add(footer.flat_schema, file.name, footer.null_counts)
    units = _build_units([footer.groups for footer in footers], common.unit_bytes)
    if not units:
        raise DataError("there are no rows", source=files[0].name if files else "")
    labels = _read_label_batches(files, footers, common)
    schema, notes, text_label = finish_unified_schema(unifier, labels, common, "the files")
    for file in files:
        check_unchanged(file.path, file.stat, file.name)
    return ParquetSource(
        schema,
        files,
        units,
        notes,
        columns=options.columns,
        text_label=text_label,
        batch_bytes=max_batch_bytes(common),
    )


def max_batch_bytes(common: PlanOptions) -> int:
    """Returns the bytes of a batch: batches are the smaller, the less memory each thread has."""
    return min(
        BATCH_BYTES,
        max(common.memory_bytes // (_BATCH_MEMORY_DIVISOR * common.threads), _MIN_BATCH_BYTES),
    )


@dataclass(frozen=True)
class _Footer:
    """The parts of a file's footer that a plan needs, so that no file stays open.

    Attributes:
        names: Names of its top-level columns.
        columns: The columns that are read.
        flat_schema: Their flattened schema.
        null_counts: Nulls of each column, as `_null_counts` gives them.
        groups: Rows and bytes of each row group.
    """

    names: tuple[str, ...]
    columns: Sequence[str]
    flat_schema: pa.Schema
    null_counts: Mapping[str, int]
    groups: Sequence[tuple[int, int]]

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.groups)


def _read_footer(file: InputFile, options: TableOptions, common: PlanOptions) -> _Footer:
    with _open_parquet(file, open_arrow_file(file.path)) as parquet:
        schema, file_metadata = parquet.schema_arrow, parquet.metadata
    check_column_names(schema.names, file.name)
    columns = _select_columns(options.columns, schema)
    flat = flatten_schema(
        pa.schema([schema.field(name) for name in columns], metadata=schema.metadata)
    )
    check_feature_count(len(flat), common.memory_bytes, file.name)
    groups = [file_metadata.row_group(index) for index in range(file_metadata.num_row_groups)]
    for group in groups:  # of a column that is not there Arrow reads what lies after
        if group.num_columns != file_metadata.num_columns or group.num_rows < 0:
            raise DataError(
                "is damaged: a row group has not the columns or rows of the file", source=file.name
            )
    sizes = [(group.num_rows, _group_bytes(group, parquet.schema_arrow)) for group in groups]
    null_counts = {
        **_null_counts(file_metadata, flat),
        **dict.fromkeys(hugging_face_classes(schema.metadata or {}), -1),
    }  # -1 stands for a null
    return _Footer(tuple(schema.names), columns, flat, null_counts, sizes)


def _open_parquet(
    file: InputFile,
    data: pa.NativeFile,
    metadata: pq.FileMetaData | None = None,
    *,
    prefetch: bool = False,
) -> pq.ParquetFile:
    """Opens a file, or opens it again; about: its footer then.

    Each column is read by pieces; ahead: all row groups that are asked for at once, and held as they are stored.
    """
    at_once = _STORE_READ_BYTES if is_remote(file.path) else _DISK_READ_BYTES
    in_memory = isinstance(data, pa.BufferReader)
    try:
        parquet = pq.ParquetFile(
            data,
            metadata=metadata,
            pre_buffer=prefetch,
            buffer_size=0 if in_memory or prefetch else at_once,
        )
        if metadata is None:
            check_footer(parquet.metadata, data.size())
        return parquet
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last of a column's name
        raise DataError(
            f"is no Parquet file, or damaged: {str(error).splitlines()[0]}", source=file.name
        ) from None


def _group_bytes(group: pq.RowGroupMetaData, schema: pa.Schema) -> int:
    """Returns the bytes of a row group in memory, roughly: as its footer says, but no fewer than its numbers take,
    which may be stored in less where they are repeated.
    """
    widths = (kind.bit_width // 8 if pa.types.is_primitive(kind) else 8 for kind in schema.types)
    return int(max(group.total_byte_size, group.num_rows * sum(widths)))


def _read_batches(
    file: InputFile,
    data: pa.NativeFile,
    columns: Sequence[str] | None,
    groups: range,
    batch_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """Gives the rows of a file's row groups, in batches of about batch_bytes by the groups' sizes. columns: those to
    read, if they are there; None: all.
    """
    parquet = _open_parquet(file, data)
    file_metadata, schema = parquet.metadata, parquet.schema_arrow
    row_groups = [file_metadata.row_group(group) for group in groups]
    row_bytes = max(
        (_group_bytes(group, schema) // max(group.num_rows, 1) for group in row_groups), default=0
    )
    rows = max(1, min(BATCH_ROWS, batch_bytes // max(row_bytes, 1)))
    selected = _select_columns(columns, schema)
    if (
        is_remote(file.path)
        and sum(group.total_byte_size for group in row_groups) <= _PREFETCH_BATCHES * batch_bytes
    ):
        parquet = _open_parquet(file, data, file_metadata, prefetch=True)
    try:
        for batch in parquet.iter_batches(
            rows, row_groups=list(groups), columns=selected, use_threads=False
        ):
            # Texts that are stored once, and are those of many rows, may make more of it than was said.
            fit = max(1, batch.num_rows * batch_bytes // max(batch.nbytes, 1))
            yield from (batch.slice(start, fit) for start in range(0, batch.num_rows, fit))
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"damaged: {str(error).splitlines()[0]}",
            source=file.name,
            place=f"row groups {groups.start} to {groups.stop - 1}",
        ) from None


def _select_columns(columns: Sequence[str] | None, schema: pa.Schema) -> list[str]:
    names = dict.fromkeys(schema.names)
    return [name for name in (names if columns is None else columns) if name in names]


def _null_counts(metadata: pq.FileMetaData, flat: pa.Schema) -> dict[str, int]:
    """Returns how many nulls each top-level scalar column has, by the footer's statistics; -1 where they don't say."""
    leaves = {metadata.schema.column(index).path: index for index in range(metadata.num_columns)}
    counts = read_null_counts(
        metadata, {leaves[field.name] for field in flat if field.nullable and field.name in leaves}
    )
    return {
        field.name: counts.get(leaves.get(field.name, -1), -1) if field.nullable else 0
        for field in flat
    }


def _build_units(files: Sequence[Sequence[tuple[int, int]]], unit_bytes: int) -> tuple[Unit, ...]:
    """Returns units of consecutive row groups of about unit_bytes, uncompressed."""
    units: list[Unit] = []
    for ordinal, groups in enumerate(files):
        first_row = 0
        for group, (rows, size) in enumerate(groups):
            if rows:
                units.append(Unit(ordinal, ordinal + 1, group, group + 1, first_row, rows, size))
            first_row += rows
    return pack_units(units, unit_bytes, parts=True)


def _read_label_batches(
    files: FileTable, footers: Sequence[_Footer], common: PlanOptions
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of all files with the label's column alone, or the struct in which it stands."""
    label = common.label
    for file, footer in zip(files, footers, strict=True):
        tops = [
            name for name in footer.columns if label == name or (label or "").startswith(f"{name}.")
        ]
        if tops:
            data, groups = open_arrow_file(file.path), range(len(footer.groups))
            yield from map(
                flatten, _read_batches(file, data, tops, groups, max_batch_bytes(common))
            )


# Footers may contradict themselves. pyarrow's accessors (`FileMetaData.row_group(i).column(j)`, and `.statistics` of
# that) end the process then, or where a column is encrypted: an exception of the C++ library is not caught (pyarrow
# 25: `_parquet.pxd` declares these without `except +`). A reader that fetches row groups ahead looks at columns as the
# former does, caught. Statistics are taken from the footer itself (github.com/apache/parquet-format, parquet.thrift),
# which is a struct in Thrift's compact protocol (github.com/apache/thrift, thrift-compact-protocol.md).


class _EmptyFile(SizedFile):
    """A file that ends wherever it is read; asked: whether data was asked for."""

    was_read = False

    def read(self, size: int = -1) -> bytes:
        self.was_read = True
        return b""


def check_footer(metadata: pq.FileMetaData, file_bytes: int) -> None:
    """Looks at all columns of all row groups: some 0.5 ms a file, and 1 µs a column of a row group.

    Raises:
        OSError, pyarrow.ArrowException: pyarrow's accessors would end the process.
    """
    groups = [index for index in range(metadata.num_row_groups) if metadata.num_columns]
    if not groups:
        return
    file = _EmptyFile(file_bytes)
    with pa.PythonFile(file, "r") as nothing:
        parquet = pq.ParquetFile(nothing, metadata=metadata, pre_buffer=True)
        try:
            next(parquet.iter_batches(1, row_groups=groups, use_threads=False), None)
        except (pa.ArrowException, OSError):
            if not file.was_read:
                raise


def read_null_counts(metadata: pq.FileMetaData, columns: Collection[int]) -> dict[int, int]:
    """Returns the nulls of these columns in all row groups; -1 where a row group doesn't say."""
    if not columns:
        return {}
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    counts = dict.fromkeys(columns, 0)
    for group in (
        _ThriftReader(sink.getvalue().to_pybytes(), _MAGIC_BYTES)
        .struct()
        .get(_FIELD_ROW_GROUPS, ())
    ):
        for index in counts:
            statistics = (
                group[_FIELD_COLUMNS][index].get(_FIELD_META_DATA, {}).get(_FIELD_STATISTICS, {})
            )
            nulls = statistics.get(_FIELD_NULL_COUNT, -1)
            counts[index] = -1 if nulls < 0 or counts[index] < 0 else counts[index] + nulls
    return counts


class _ThriftReader:
    """Reads structs that pyarrow has written as {field number: value}; texts and float64 are left out."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data, self._position = data, position

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._integer()
            fields[field] = (
                head & 15 == _TYPE_TRUE
                if head & 15 in (_TYPE_TRUE, _TYPE_FALSE)
                else self._value(head & 15)
            )
        return fields

    def _value(self, kind: int) -> Any:
        if kind == _TYPE_STRUCT:
            return self.struct()
        if kind in (_TYPE_LIST, _TYPE_SET):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            return [self._value(head & 15) for _ in range(count)]
        if kind in (_TYPE_TRUE, _TYPE_FALSE, _TYPE_BYTE):  # truth values are bytes in lists
            return self._byte()
        if kind in (_TYPE_BINARY, _TYPE_DOUBLE):
            size = self._varint() if kind == _TYPE_BINARY else 8
            self._position += size
            return None
        return self._integer()

    def _byte(self) -> int:
        self._position += 1
        return self._data[self._position - 1]

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
