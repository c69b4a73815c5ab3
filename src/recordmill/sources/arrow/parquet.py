"""Source for Parquet files.

A unit consists of row groups. The footers contain types, row counts and null counts, so the plan
reads only the values of the label.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recordmill.base.errors import DataError
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.sources.arrow.row_groups import (
    RowGroupFile,
    RowGroupSource,
    plan_row_groups,
    select_columns,
    select_flat_schema,
)
from recordmill.sources.common.contract import BATCH_ROWS, PlanOptions
from recordmill.sources.common.options import TableOptions
from recordmill.sources.values.flatten import hugging_face_classes, leaf_names, media_names
from recordmill.storage.arrow_files import open_arrow_file
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import SizedFile, is_remote

_DISK_READ_BYTES = 64 << 10  # size of a read of one column; larger reads are not faster
_STORE_READ_BYTES = 1 << 20  # larger than for disks, since each read waits for a request
# A unit of at most this many batches is prefetched from a store. If the memory allows batches of
# full size, this is the size of a unit.
_PREFETCH_BATCHES = 4
_MAGIC_BYTES = 4
_ARROW_SCHEMA_KEY = b"ARROW:schema"
# Field numbers in the Thrift struct of a footer, on the path to the statistics of a column.
_FIELD_ROW_GROUPS = 4
_FIELD_COLUMNS = 1
_FIELD_META_DATA = 3
_FIELD_PHYSICAL_TYPE = 1
_FIELD_NUM_VALUES = 5
_FIELD_STATISTICS = 12
_FIELD_NULL_COUNT = 3
_FIELD_MIN_VALUE = 6
# Physical types whose minimum is a signed integer in little-endian order: INT32 and INT64.
_INTEGER_TYPES = (1, 2)
# Type codes of Thrift's compact protocol. All other codes are integers.
_TYPE_TRUE, _TYPE_FALSE, _TYPE_BYTE, _TYPE_DOUBLE = 1, 2, 3, 7
_TYPE_BINARY, _TYPE_LIST, _TYPE_SET, _TYPE_STRUCT = 8, 9, 10, 12

# For each row group, the Thrift structs of its columns: values by field number.
_ColumnMetadata = list[list[dict[int, Any]]]


@dataclass(frozen=True)
class ParquetSource(RowGroupSource):
    """A source of the rows of Parquet files.

    Attributes:
        file_columns: Names of the columns that contain the names of files to read.
    """

    file_columns: frozenset[str] = frozenset()
    kind: str = "parquet"

    @staticmethod
    def read_batches(
        file: InputFile, columns: Sequence[str] | None, groups: range, batch_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """Yields the rows of some row groups. See `RowGroupSource.read_batches`."""
        data = open_arrow_file(file.path)
        parquet = _open_parquet(file, data)
        file_metadata, schema = parquet.metadata, parquet.schema_arrow
        row_groups = [file_metadata.row_group(group) for group in groups]
        row_bytes = max(
            (_group_bytes(group, schema) // max(group.num_rows, 1) for group in row_groups),
            default=0,
        )
        rows = max(1, min(BATCH_ROWS, batch_bytes // max(row_bytes, 1)))
        selected = select_columns(columns, schema)
        # a small unit of a store is fetched by few large requests
        prefetch = (
            is_remote(file.path)
            and sum(group.total_byte_size for group in row_groups)
            <= _PREFETCH_BATCHES * batch_bytes
        )
        if prefetch:
            parquet = _open_parquet(file, data, file_metadata, prefetch=True)
        try:
            plain_columns = [
                name for name in selected if not _has_fixed_lists(schema.field(name).type)
            ]
            batches = parquet.iter_batches(
                rows, row_groups=list(groups), columns=plain_columns, use_threads=False
            )
            if len(plain_columns) < len(selected):
                lists = _open_parquet(
                    file, data, _without_arrow_schema(file_metadata), prefetch=prefetch
                ).iter_batches(
                    rows,
                    row_groups=list(groups),
                    columns=[name for name in selected if name not in plain_columns],
                    use_threads=False,
                )
                batches = _join_columns(
                    [batches, lists] if plain_columns else [lists], selected, schema
                )
            if int96_columns := _find_int96_columns(file_metadata, selected):
                micros = _open_parquet(file, data, file_metadata, int96_unit="us").iter_batches(
                    rows, row_groups=list(groups), columns=int96_columns, use_threads=False
                )
                batches = _restore_distant_times(batches, micros, file.name)
            for batch in batches:
                # A text that is stored once but used in many rows makes the batch larger than the
                # footer says.
                fitting_rows = max(1, batch.num_rows * batch_bytes // max(batch.nbytes, 1))
                yield from (
                    batch.slice(start, fitting_rows)
                    for start in range(0, batch.num_rows, fitting_rows)
                )
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"damaged: {str(error).splitlines()[0]}",
                source=file.name,
                place=f"row groups {groups.start} to {groups.stop - 1}",
            ) from None

    def media_remedies(self, schema: pa.Schema) -> dict[str, str]:
        """Returns the remedy for images without bytes, by name. See `conform_chunk`."""
        paths = {name: f"{name}.path" for name in media_names(schema) if name in self.schema}
        return {
            name: Message(
                "store its bytes, or give {file_columns}",
                file_columns=option("file_columns", f"{path}=image"),
            )
            for name, path in paths.items()
            if path not in self.file_columns
        }


def plan_parquet(
    files: Sequence[InputFile], options: TableOptions, common: PlanOptions
) -> ParquetSource:
    """Plans Parquet files from their footers. See `plan_row_groups`."""
    file_columns = frozenset(item.rpartition("=")[0] or item for item in options.file_columns)
    return plan_row_groups(
        ParquetSource, _read_footer, files, options, common, file_columns=file_columns
    )


def _read_footer(file: InputFile, options: TableOptions, common: PlanOptions) -> RowGroupFile:
    with _open_parquet(file, open_arrow_file(file.path)) as parquet:
        schema, file_metadata = parquet.schema_arrow, parquet.metadata
    columns, flat = select_flat_schema(schema, file, options, common)
    groups = [file_metadata.row_group(index) for index in range(file_metadata.num_row_groups)]
    # for a column that is missing in a row group, Arrow reads the memory after its columns
    for group in groups:
        if group.num_columns != file_metadata.num_columns or group.num_rows < 0:
            raise DataError(
                "is damaged: a row group does not have the columns or rows of the file",
                source=file.name,
            )
    sizes = [(group.num_rows, _group_bytes(group, parquet.schema_arrow)) for group in groups]
    null_counts = _null_counts(file_metadata, schema)
    return RowGroupFile(
        names=tuple(schema.names),
        columns=columns,
        flat_schema=flat,
        null_counts={field.name: null_counts.get(field.name, -1) for field in flat},
        groups=sizes,
    )


def _open_parquet(
    file: InputFile,
    data: pa.NativeFile,
    metadata: pq.FileMetaData | None = None,
    *,
    prefetch: bool = False,
    int96_unit: str | None = None,
) -> pq.ParquetFile:
    """Opens a Parquet file and checks its footer.

    Args:
        file: The file, for messages.
        data: The open file.
        metadata: The footer, if the caller has already read and checked it. If None, it is read
            here.
        prefetch: True reads all requested row groups at once, and keeps their undecoded bytes in
            memory. False reads each column in small blocks.
        int96_unit: Unit of the timestamps that are stored as INT96. None is nanoseconds.

    Raises:
        DataError: The file is damaged, or is not Parquet.
    """
    read_bytes = _STORE_READ_BYTES if is_remote(file.path) else _DISK_READ_BYTES
    in_memory = isinstance(data, pa.BufferReader)
    try:
        parquet = pq.ParquetFile(
            data,
            metadata=metadata,
            pre_buffer=prefetch,
            buffer_size=0 if in_memory or prefetch else read_bytes,
            coerce_int96_timestamp_unit=int96_unit,
        )
        if metadata is None:
            check_footer(parquet.metadata, data.size())
        return parquet
    except (
        pa.ArrowException,
        OSError,
        UnicodeDecodeError,
    ) as error:  # UnicodeDecodeError: the name of a column is not UTF-8
        raise DataError(
            f"is not a Parquet file, or it is damaged: {str(error).splitlines()[0]}",
            source=file.name,
        ) from None


def _group_bytes(group: pq.RowGroupMetaData, schema: pa.Schema) -> int:
    """Estimates the bytes of a row group in memory.

    The estimate is the uncompressed size from the footer. Since repeated numbers may be stored in
    few bytes, the estimate is at least the size of a plain array of all numbers.
    """
    widths = (kind.bit_width // 8 if pa.types.is_primitive(kind) else 8 for kind in schema.types)
    return int(max(group.total_byte_size, group.num_rows * sum(widths)))


def _has_fixed_lists(kind: pa.DataType) -> bool:
    """Returns whether a type is or contains a list of a fixed size."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return pa.types.is_fixed_size_list(kind) or any(
        _has_fixed_lists(kind.field(index).type) for index in range(kind.num_fields)
    )


def _without_arrow_schema(metadata: pq.FileMetaData) -> pq.FileMetaData:
    """Returns a footer without the types of Arrow.

    All lists are then read with variable sizes. Arrow fails to read lists of a fixed size if one of
    them is null (pyarrow 25). Parquet itself has no such type: Arrow takes it from a schema that it
    stores as a text of the footer.
    """
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    before, key, after = sink.getvalue().to_pybytes().rpartition(_ARROW_SCHEMA_KEY)
    # A key of the same size leaves the footer valid. The texts come after the row groups.
    return pq.read_metadata(pa.BufferReader(before + key.lower() + after))


def _join_columns(
    readers: Iterable[Iterable[pa.RecordBatch]], names: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yields batches with the columns of several readers of the same rows.

    Args:
        readers: The readers. Together they contain each column of `names` once. Lists of a fixed
            size may be variable lists, because `conform_chunk` checks the sizes. Tensors are
            converted to their type, because it contains their shape.
        names: The names of the columns, in order.
        schema: The schema of the file.
    """
    for batches in _align_batches(readers):
        columns = {
            name: column
            for batch in batches
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        for name in names:
            kind = schema.field(name).type
            if isinstance(kind, pa.FixedShapeTensorType):
                storage = columns[name].cast(kind.storage_type)
                columns[name] = pa.ExtensionArray.from_storage(kind, storage)
        fields = [schema.field(name).with_type(columns[name].type) for name in names]
        yield pa.RecordBatch.from_arrays(
            [columns[name] for name in names], schema=pa.schema(fields, metadata=schema.metadata)
        )


def _align_batches(
    readers: Iterable[Iterable[pa.RecordBatch]],
) -> Iterator[list[pa.RecordBatch]]:
    """Yields batches of the same rows, one of each reader.

    Readers of different columns may end their batches at different rows.

    Raises:
        ArrowInvalid: The readers have different numbers of rows.
    """
    iterators = [iter(batches) for batches in readers]
    heads = [batch for batches in iterators for batch in islice(batches, 1)]
    while heads and len(heads) == len(iterators):
        rows = min(head.num_rows for head in heads)
        yield [head.slice(0, rows) for head in heads]
        heads = [
            batch
            for head, batches in zip(heads, iterators, strict=True)
            for batch in ([head.slice(rows)] if head.num_rows > rows else islice(batches, 1))
        ]
    if heads:
        raise pa.ArrowInvalid("the columns have different numbers of rows")


def _find_int96_columns(metadata: pq.FileMetaData, columns: Sequence[str]) -> list[str]:
    """Returns the names of the top-level columns that contain INT96 timestamps."""
    leaves = (metadata.schema.column(index) for index in range(metadata.num_columns))
    names = {leaf.path.split(".")[0] for leaf in leaves if leaf.physical_type == "INT96"}
    return [name for name in columns if name in names]


def _restore_distant_times(
    batches: Iterable[pa.RecordBatch], micros: Iterable[pa.RecordBatch], source: str
) -> Iterator[pa.RecordBatch]:
    """Corrects INT96 timestamps outside of the years 1677 to 2262.

    Arrow reads INT96 as nanoseconds, and silently turns times outside of these years into other
    times. So the caller also reads these columns in microseconds. Rows with such a time are yielded
    with microseconds, all other rows with nanoseconds.

    Args:
        batches: The rows, with nanoseconds.
        micros: The INT96 columns of the same rows, with microseconds.
        source: Name of the file, for messages.

    Yields:
        All rows in order. A batch may be divided, because its rows share one unit.

    Raises:
        DataError: Such a time is inside a list or struct.
    """
    for batch, micro_batch in _align_batches([batches, micros]):
        is_distant = np.zeros(batch.num_rows, np.bool_)
        has_nanos = False  # some time needs a finer unit than microseconds
        for name in micro_batch.schema.names:
            column, micro_column = batch.column(name), micro_batch.column(name)
            if not pa.types.is_timestamp(column.type):
                _check_nested_times(micro_column, column.type, name, source)
                continue
            nanos, micro_values = (
                pc.fill_null(c.cast(pa.int64()), 0).to_numpy() for c in (column, micro_column)
            )
            is_other = nanos // 1000 != micro_values
            is_distant |= is_other
            has_nanos |= bool((nanos[~is_other] % 1000).any())
        if not is_distant.any():
            yield batch
            continue
        with_micros = batch
        for name in micro_batch.schema.names:
            index = batch.schema.get_field_index(name)
            column = micro_batch.column(name)
            if pa.types.is_timestamp(column.type):
                with_micros = with_micros.set_column(index, name, column)
        # The unit of a column is that of the batch. So if other rows need nanoseconds, the batch is
        # divided between the two kinds of rows.
        edges = np.flatnonzero(np.diff(is_distant)) + 1 if has_nanos else np.empty(0, np.int64)
        for begin, end in pairwise([0, *edges.tolist(), batch.num_rows]):
            yield (with_micros if is_distant[begin:end].any() else batch).slice(begin, end - begin)


def _check_nested_times(micros: pa.Array, nano_type: pa.DataType, name: str, source: str) -> None:
    """Raises DataError if a nested time does not fit into nanoseconds."""
    try:
        micros.cast(nano_type)
    except pa.ArrowInvalid:
        raise DataError(
            f"column {name!r}: a list or struct contains a time outside of the years 1678 to 2261, "
            "stored as INT96; write the column with another Parquet type",
            source=source,
        ) from None


def _null_counts(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, int]:
    """Returns the number of nulls of each column after `flatten`, by name.

    The number is 0 if the column is not nullable, and -1 if the footer does not contain it. The
    footer counts null items of lists, but not null lists. So the number is -1 for nullable lists.

    Args:
        metadata: The footer, which `check_footer` has accepted.
        schema: All columns of the file.
    """
    leaves = list(leaf_names(schema))
    if len(leaves) != metadata.num_columns:
        return {}
    groups = _read_column_metadata(metadata)
    counts = _count_nulls(groups, range(len(leaves)))
    classes = hugging_face_classes(schema.metadata or {})
    complete = {field.name for field in schema if not field.nullable}
    result: dict[str, int] = {}
    for index, (name, is_item) in enumerate(leaves):
        count = 0 if name in complete else -1 if is_item else counts[index]
        # Hugging Face writes class -1 for a missing value
        may_be_null = name in classes and not _is_never_negative(groups, index)
        result[name] = -1 if may_be_null else count
    return result


def _is_never_negative(groups: _ColumnMetadata, column: int) -> bool:
    """Returns whether the footer proves that a column of integers has no negative values."""
    for columns in groups:
        chunk = columns[column]
        minimum = chunk.get(_FIELD_STATISTICS, {}).get(_FIELD_MIN_VALUE)
        if chunk.get(_FIELD_NUM_VALUES) and (
            chunk.get(_FIELD_PHYSICAL_TYPE) not in _INTEGER_TYPES
            or not minimum
            or int.from_bytes(minimum, "little", signed=True) < 0
        ):
            return False
    return True


# A footer may contradict itself. Then the accessors of pyarrow end the process, because an
# exception of the C++ library is not caught (pyarrow 25: `_parquet.pxd` declares them without
# `except +`). These accessors are `FileMetaData.row_group(i).column(j)` and its `.statistics`.
# The accessors also fail for encrypted columns.
#
# A reader that prefetches row groups inspects their columns in the same way, but catches
# exceptions. So `check_footer` uses such a reader. Statistics are parsed from the footer itself,
# which is a struct in Thrift's compact protocol. Sources: parquet.thrift of
# github.com/apache/parquet-format, and thrift-compact-protocol.md of github.com/apache/thrift.


class _EmptyFile(SizedFile):
    """A file that reports a size but has no data.

    Attributes:
        was_read: Whether `read` was called.
    """

    was_read = False

    def read(self, size: int = -1) -> bytes:
        self.was_read = True
        return b""


def check_footer(metadata: pq.FileMetaData, file_bytes: int) -> None:
    """Checks all columns of all row groups for contradictions.

    Call it before the accessors of pyarrow, which would end the process for such a footer. It takes
    about 0.5 ms per file, and 1 µs per column of a row group.

    Args:
        metadata: The footer.
        file_bytes: Size of the file.

    Raises:
        OSError: The footer is not usable. Some contradictions raise pyarrow.ArrowException instead.
    """
    groups = [index for index in range(metadata.num_row_groups) if metadata.num_columns]
    if not groups:
        return
    file = _EmptyFile(file_bytes)
    with pa.PythonFile(file, "r") as arrow_file:
        parquet = pq.ParquetFile(arrow_file, metadata=metadata, pre_buffer=True)
        try:
            next(parquet.iter_batches(1, row_groups=groups, use_threads=False), None)
        # an error before the first read comes from the footer; later ones only show that the file
        # is empty
        except (pa.ArrowException, OSError):
            if not file.was_read:
                raise


def read_null_counts(metadata: pq.FileMetaData, columns: Collection[int]) -> dict[int, int]:
    """Returns the number of nulls of some columns in the complete file.

    Args:
        metadata: The footer, which `check_footer` has accepted.
        columns: Numbers of the columns, counted over the leaves of the schema.

    Returns:
        The nulls by column number. -1 if some row group does not specify them.
    """
    return _count_nulls(_read_column_metadata(metadata), columns) if columns else {}


def _read_column_metadata(metadata: pq.FileMetaData) -> _ColumnMetadata:
    """Returns the metadata of each column of each row group, as Thrift structs."""
    sink = pa.BufferOutputStream()
    metadata.write_metadata_file(sink)
    footer = _ThriftReader(sink.getvalue().to_pybytes(), _MAGIC_BYTES).read_struct()
    return [
        [column.get(_FIELD_META_DATA, {}) for column in group[_FIELD_COLUMNS]]
        for group in footer.get(_FIELD_ROW_GROUPS, ())
    ]


def _count_nulls(groups: _ColumnMetadata, columns: Collection[int]) -> dict[int, int]:
    counts = dict.fromkeys(columns, 0)
    for group in groups:
        for index in counts:
            nulls = group[index].get(_FIELD_STATISTICS, {}).get(_FIELD_NULL_COUNT, -1)
            # one row group without statistics makes the total unknown
            counts[index] = -1 if nulls < 0 or counts[index] < 0 else counts[index] + nulls
    return counts


class _ThriftReader:
    """Reads structs in Thrift's compact protocol, as pyarrow writes them.

    A struct becomes a dict of values by field number. Texts are bytes, and float64 values are
    skipped.
    """

    def __init__(self, data: bytes, position: int) -> None:
        self._data, self._position = data, position

    def read_struct(self) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        field = 0
        while head := self._read_byte():
            # a field number is stored as the difference to the field before, or in full after 0
            field = field + (head >> 4) if head >> 4 else self._read_integer()
            fields[field] = (
                head & 15 == _TYPE_TRUE
                if head & 15 in (_TYPE_TRUE, _TYPE_FALSE)
                else self._read_value(head & 15)
            )
        return fields

    def _read_value(self, kind: int) -> Any:
        if kind == _TYPE_STRUCT:
            return self.read_struct()
        if kind in (_TYPE_LIST, _TYPE_SET):
            head = self._read_byte()
            count = head >> 4 if head >> 4 < 15 else self._read_varint()
            return [self._read_value(head & 15) for _ in range(count)]
        if kind in (_TYPE_TRUE, _TYPE_FALSE, _TYPE_BYTE):  # in lists, booleans are bytes
            return self._read_byte()
        if kind in (_TYPE_BINARY, _TYPE_DOUBLE):
            size = self._read_varint() if kind == _TYPE_BINARY else 8
            begin, self._position = self._position, self._position + size
            return self._data[begin : self._position] if kind == _TYPE_BINARY else None
        return self._read_integer()

    def _read_byte(self) -> int:
        self._position += 1
        return self._data[self._position - 1]

    def _read_integer(self) -> int:
        value = self._read_varint()
        # zigzag encoding: 0, -1, 1, -2, ...
        return value >> 1 ^ -(value & 1)

    def _read_varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._read_byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
