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
    packed,
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
from recordmill.storage.arrow_files import range_file
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import SizedFile, check_unchanged, is_remote

_DISK_READ_BYTES = 64 << 10  # 64 KiB of a column at once: what is larger makes nothing quicker
_STORE_READ_BYTES = 1 << 20  # 1 MiB: there each read waits for a request
_AHEAD_BATCHES = (
    4  # what may be read ahead of a store, in the size of batches: a unit, with enough memory
)
# of the memory, for a batch of each thread: it stands there decoded, fitted, as frames of three times its size, and so
# once more in a run
_BATCH_SHARE = 64
_LEAST_BATCH_BYTES = (
    1 << 20
)  # 1 MiB: smaller ones save no memory, since pages of columns take as much
_MAGIC_BYTES = 4
_ROW_GROUPS, _COLUMNS, _META_DATA, _STATISTICS, _NULL_COUNT = (
    4,
    1,
    3,
    12,
    3,
)  # fields on the way to a null count
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = (
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
    named: str | None = None
    batch_bytes: int = BATCH_BYTES
    kind: str = "parquet"

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields the rows of the unit's row groups, in batches of bounded size however large a row group is."""
        ordinal, row = unit.first_file, unit.first_row
        file = self.files[ordinal]
        check_unchanged(file.path, file.stat, file.name)
        data = range_file(file.path)
        for part in _batches(
            file, data, self.columns, range(unit.start, unit.stop), self.batch_bytes
        ):
            yield conform_chunk(part, self.schema, self.named, ordinal, file.name, row)
            row += part.num_rows
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
    footers = list(thread_map(lambda file: _footer(file, options, common), files, common.threads))
    known = dict.fromkeys(name for footer in footers for name in footer.names)
    check_columns([name for name in options.columns or () if name not in common.may_lack], known)
    unifier = SchemaUnifier(declared_dtypes(common))
    for file, footer in zip(files, footers, strict=True):
        if footer.rows:
            unifier.add(footer.flat, file.name, footer.nulls)
    units = _units([footer.groups for footer in footers], common.unit_bytes)
    if not units:
        raise DataError("there are no rows", source=files[0].name if files else "")
    labels = _labels(files, footers, common)
    schema, notes, named = finish_unified_schema(unifier, labels, common, "the files")
    for file in files:
        check_unchanged(file.path, file.stat, file.name)
    return ParquetSource(
        schema,
        files,
        units,
        notes,
        columns=options.columns,
        named=named,
        batch_bytes=batch_bytes_within(common),
    )


def batch_bytes_within(common: PlanOptions) -> int:
    """Returns the bytes of a batch: batches are the smaller, the less memory each thread has."""
    return min(
        BATCH_BYTES, max(common.memory_bytes // (_BATCH_SHARE * common.threads), _LEAST_BATCH_BYTES)
    )


@dataclass(frozen=True)
class _Footer:
    """The parts of a file's footer that a plan needs, so that no file stays open.

    Attributes:
        names: Names of its top-level columns.
        columns: The columns that are read.
        flat: Their flattened schema.
        nulls: Nulls of each column, as `_nulls` gives them.
        groups: Rows and bytes of each row group.
    """

    names: tuple[str, ...]
    columns: Sequence[str]
    flat: pa.Schema
    nulls: Mapping[str, int]
    groups: Sequence[tuple[int, int]]

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.groups)


def _footer(file: InputFile, options: TableOptions, common: PlanOptions) -> _Footer:
    with _open(file, range_file(file.path)) as parquet:
        whole, about = parquet.schema_arrow, parquet.metadata
    check_column_names(whole.names, file.name)
    columns = _there(options.columns, whole)
    flat = flatten_schema(
        pa.schema([whole.field(name) for name in columns], metadata=whole.metadata)
    )
    check_feature_count(len(flat), common.memory_bytes, file.name)
    groups = [about.row_group(at) for at in range(about.num_row_groups)]
    for group in groups:  # of a column that is not there Arrow reads what lies after
        if group.num_columns != about.num_columns or group.num_rows < 0:
            raise DataError(
                "is damaged: a row group has not the columns or rows of the file", source=file.name
            )
    sizes = [(group.num_rows, _group_bytes(group, parquet.schema_arrow)) for group in groups]
    nulls = {
        **_nulls(about, flat),
        **dict.fromkeys(hugging_face_classes(whole.metadata or {}), -1),
    }  # -1 stands for a null
    return _Footer(tuple(whole.names), columns, flat, nulls, sizes)


def _open(
    file: InputFile,
    data: pa.NativeFile,
    about: pq.FileMetaData | None = None,
    *,
    ahead: bool = False,
) -> pq.ParquetFile:
    """Opens a file, or opens it again; about: its footer then.

    Each column is read by pieces; ahead: all row groups that are asked for at once, and held as they are stored.
    """
    at_once = _STORE_READ_BYTES if is_remote(file.path) else _DISK_READ_BYTES
    in_memory = isinstance(data, pa.BufferReader)
    try:
        parquet = pq.ParquetFile(
            data, metadata=about, pre_buffer=ahead, buffer_size=0 if in_memory or ahead else at_once
        )
        if about is None:
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


def _batches(
    file: InputFile,
    data: pa.NativeFile,
    columns: Sequence[str] | None,
    groups: range,
    batch_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """Gives the rows of a file's row groups, in batches of about batch_bytes by the groups' sizes. columns: those to
    read, if they are there; None: all.
    """
    parquet = _open(file, data)
    about, schema = parquet.metadata, parquet.schema_arrow
    stated = [about.row_group(group) for group in groups]
    row_bytes = max(
        (_group_bytes(group, schema) // max(group.num_rows, 1) for group in stated), default=0
    )
    rows = max(1, min(BATCH_ROWS, batch_bytes // max(row_bytes, 1)))
    wanted = _there(columns, schema)
    if (
        is_remote(file.path)
        and sum(group.total_byte_size for group in stated) <= _AHEAD_BATCHES * batch_bytes
    ):
        parquet = _open(file, data, about, ahead=True)
    try:
        for batch in parquet.iter_batches(
            rows, row_groups=list(groups), columns=wanted, use_threads=False
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


def _there(columns: Sequence[str] | None, schema: pa.Schema) -> list[str]:
    known = dict.fromkeys(schema.names)
    return [name for name in (known if columns is None else columns) if name in known]


def _nulls(about: pq.FileMetaData, flat: pa.Schema) -> dict[str, int]:
    """Returns how many nulls each top-level scalar column has, by the footer's statistics; -1 where they don't say."""
    leaves = {about.schema.column(at).path: at for at in range(about.num_columns)}
    said = null_counts(
        about, {leaves[field.name] for field in flat if field.nullable and field.name in leaves}
    )
    return {
        field.name: said.get(leaves.get(field.name, -1), -1) if field.nullable else 0
        for field in flat
    }


def _units(files: Sequence[Sequence[tuple[int, int]]], unit_bytes: int) -> tuple[Unit, ...]:
    """Returns units of consecutive row groups of about unit_bytes, uncompressed."""
    units: list[Unit] = []
    for ordinal, groups in enumerate(files):
        first_row = 0
        for group, (rows, size) in enumerate(groups):
            if rows:
                units.append(Unit(ordinal, ordinal + 1, group, group + 1, first_row, rows, size))
            first_row += rows
    return packed(units, unit_bytes, parts=True)


def _labels(
    files: FileTable, footers: Sequence[_Footer], common: PlanOptions
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of all files with the label's column alone, or the struct in which it stands."""
    label = common.label
    for file, footer in zip(files, footers, strict=True):
        tops = [
            name for name in footer.columns if label == name or (label or "").startswith(f"{name}.")
        ]
        if tops:
            data, groups = range_file(file.path), range(len(footer.groups))
            yield from map(flatten, _batches(file, data, tops, groups, batch_bytes_within(common)))


# Footers may contradict themselves. pyarrow's accessors (`FileMetaData.row_group(i).column(j)`, and `.statistics` of
# that) end the process then, or where a column is encrypted: an exception of the C++ library is not caught (pyarrow
# 25: `_parquet.pxd` declares these without `except +`). A reader that fetches row groups ahead looks at columns as the
# former does, caught. Statistics are taken from the footer itself (github.com/apache/parquet-format, parquet.thrift),
# which is a struct in Thrift's compact protocol (github.com/apache/thrift, thrift-compact-protocol.md).


class _FooterOnly(SizedFile):
    """A file that ends wherever it is read; asked: whether data was asked for."""

    asked = False

    def read(self, size: int = -1) -> bytes:
        self.asked = True
        return b""


def check_footer(about: pq.FileMetaData, file_bytes: int) -> None:
    """Looks at all columns of all row groups: some 0.5 ms a file, and 1 µs a column of a row group.

    Raises:
        OSError, pyarrow.ArrowException: pyarrow's accessors would end the process.
    """
    groups = [at for at in range(about.num_row_groups) if about.num_columns]
    if not groups:
        return
    file = _FooterOnly(file_bytes)
    with pa.PythonFile(file, "r") as nothing:
        parquet = pq.ParquetFile(nothing, metadata=about, pre_buffer=True)
        try:
            next(parquet.iter_batches(1, row_groups=groups, use_threads=False), None)
        except (pa.ArrowException, OSError):
            if not file.asked:
                raise


def null_counts(about: pq.FileMetaData, columns: Collection[int]) -> dict[int, int]:
    """Returns the nulls of these columns in all row groups; -1 where a row group doesn't say."""
    if not columns:
        return {}
    sink = pa.BufferOutputStream()
    about.write_metadata_file(sink)
    found = dict.fromkeys(columns, 0)
    for group in _Compact(sink.getvalue().to_pybytes(), _MAGIC_BYTES).struct().get(_ROW_GROUPS, ()):
        for at in found:
            statistics = group[_COLUMNS][at].get(_META_DATA, {}).get(_STATISTICS, {})
            nulls = statistics.get(_NULL_COUNT, -1)
            found[at] = -1 if nulls < 0 or found[at] < 0 else found[at] + nulls
    return found


class _Compact:
    """Reads structs that pyarrow has written as {field number: value}; texts and float64 are left out."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at

    def struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._integer()
            fields[field] = (
                head & 15 == _TRUE if head & 15 in (_TRUE, _FALSE) else self._value(head & 15)
            )
        return fields

    def _value(self, kind: int) -> Any:
        if kind == _STRUCT:
            return self.struct()
        if kind in (_LIST, _SET):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            return [self._value(head & 15) for _ in range(count)]
        if kind in (_TRUE, _FALSE, _BYTE):  # truth values are bytes in lists
            return self._byte()
        if kind in (_BINARY, _DOUBLE):
            size = self._varint() if kind == _BINARY else 8
            self._at += size
            return None
        return self._integer()

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7
