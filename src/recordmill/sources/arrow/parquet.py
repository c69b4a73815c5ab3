"""Parquet files in, a `ParquetSource` out: columns and lists to features, row groups to units, structs by dotted path.

The footers tell types, rows and nulls, so the plan reads no data but the label's column, and the bytes of large files
for their digests; these are kept for the units as far as there is room. A file of one unit is read whole by that, which
digests it. A record's position is its row number in the file. Files of one input may lack columns (null there) or, with
`strict`, must agree. What folders called `NAME=VALUE` say is a column of int64 or text, unless a file has one of that
name.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recordmill.base.errors import BEYOND_MEMORY, DataError, Reject, UsageError
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.option_names import option
from recordmill.base.suggestions import there_are
from recordmill.base.threads import thread_map
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema, check_feature_count
from recordmill.sources.arrow.footer import check_footer, null_counts
from recordmill.sources.arrow.page_sizes import PageSizes, page_sizes
from recordmill.sources.arrow.partitions import partition_fields, partition_values, with_partitions
from recordmill.sources.common.contract import BATCH_BYTES, BATCH_ROWS, UNIT_BYTES, Chunk, PlanOptions, Unit, packed
from recordmill.sources.common.scan_cache import CachedRecords, ScanCache
from recordmill.sources.values.conform import conform
from recordmill.sources.values.flatten import check_names, flatten, flatten_schema, map_as_list, nest_tensors
from recordmill.sources.values.overrides import declared_columns, finish_parts
from recordmill.sources.values.unify import Unifier
from recordmill.storage.arrow_files import range_file
from recordmill.storage.digest import chunk_digests, combine, digest_file
from recordmill.storage.file_table import FileTable, InputFile, coded
from recordmill.storage.files import Bytes, check_unchanged, is_remote, read_range

ALL_COLUMNS, SAME_COLUMNS = "union", "strict"
COLUMNS = "columns"
_HELD_SHARE = 4  # a fourth of the memory, at most, for files that are held whole
_ROW_SHARE = 8  # an eighth of it for one row, which stands there read, fitted, encoded and in a run
_PAGE_SHARE = 4  # a fourth of it for one page, which stands there decompressed, and its values
_DISK_READ_BYTES = 64 << 10  # 64 KiB of a column at once: what is larger makes nothing quicker
_STORE_READ_BYTES = 1 << 20  # 1 MiB: there each read waits for a request
_AHEAD_BATCHES = 4  # what may be read ahead of a store, in the size of batches: a unit, with enough memory
# of the memory, for a batch of each thread: it stands there decoded, fitted, as frames of three times its size, and so
# once more in a run
_BATCH_SHARE = 64
_LEAST_BATCH_BYTES = 1 << 20  # 1 MiB: smaller ones save no memory, since pages of columns take as much
_UNLOOKED_BYTES = 4 * BATCH_BYTES  # what texts may become at worst, and are read without a look at how long they are
# of a value in memory, by how Parquet stores it; of texts their offset, of others the length that the schema says
_VALUE_BYTES = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8, "BYTE_ARRAY": 8}


@dataclass(frozen=True)
class ParquetOptions:
    """How the files are read.

    differing_columns: `union`: files may lack columns (null there) and have them in any order; `strict`: all have the
    same ones in the same order. columns: only these, by the files' own top-level names; None is all.
    """

    differing_columns: str = ALL_COLUMNS
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.differing_columns not in (ALL_COLUMNS, SAME_COLUMNS):
            raise UsageError(
                f"{option('differing_columns', self.differing_columns)}: one of {ALL_COLUMNS}, {SAME_COLUMNS}"
            )
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(self.columns))


@dataclass(frozen=True)
class WholeFile:
    """A file's bytes, which all units of it share."""

    data: Bytes

    @property
    def size_bytes(self) -> int:
        """What it takes of the memory."""
        return int(self.data.nbytes)


@dataclass(frozen=True)
class ParquetSource:
    """files: with the top-level columns to read of each as a column COLUMNS. digests: of the files that are not read
    whole, by one unit. named: the label, if its classes are texts of its values.
    """

    schema: Schema
    files: FileTable
    units: Sequence[Unit]
    digests: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    named: str | None = None
    kept: ScanCache[WholeFile] = field(default_factory=ScanCache, compare=False, repr=False)
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    batch_bytes: int = BATCH_BYTES
    kind: str = "parquet"

    @functools.cached_property
    def _partition_fields(self) -> dict[str, pa.Field]:
        return partition_fields(self.files)

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """The rows of the unit's row groups, in batches of bounded size however large a row group is."""
        ordinal, row = unit.first_file, unit.first_row
        file = self.files[ordinal]
        check_unchanged(file.path, file.stat, file.name)
        whole, digests = self._whole(unit)
        data = range_file(file.path) if whole is None else pa.BufferReader(pa.py_buffer(whole))
        columns = self.files.take((ordinal,), (COLUMNS,))[COLUMNS][0].as_py()
        said = partition_values(self.files, (ordinal,), self._partition_fields)
        reader = _Rows(file, data, columns, self.memory_bytes, self.batch_bytes, said)
        for part in reader.batches(range(unit.start, unit.stop)):
            if isinstance(part, LargeRows):
                places = (f"row {row + at}" for at in range(part.rows))
                rejects = tuple(Reject(file.name, place, BEYOND_MEMORY, part.reason) for place in places)
                yield Chunk(_no_rows(self.schema), np.empty(0, np.uint32), np.empty(0, np.int64), rejects, digests)
                row += part.rows
                continue
            fitted = conform(nest_tensors(flatten(part), self.schema), self.schema, self.named)
            rejects = tuple(Reject(file.name, f"row {row + at}", reason, message) for at, reason, message in fitted.bad)
            files = np.full(len(fitted.good), ordinal, np.uint32)
            yield Chunk(fitted.batch, files, fitted.good + row, rejects, digests)
            row += part.num_rows
        check_unchanged(file.path, file.stat, file.name)

    def _whole(self, unit: Unit) -> tuple[Bytes | None, Mapping[int, str]]:
        """The file's bytes, if they are in memory or all of them are the unit's; its digest, if the plan has none."""
        ordinal = unit.first_file
        if ordinal in self.digests:
            kept = self.kept.take((ordinal, unit.start))
            return None if kept is None else next(iter(kept)).data, {}
        whole = read_range(self.files[ordinal].path)
        return whole, {ordinal: combine(chunk_digests(whole))}


def plan_parquet(files: Sequence[InputFile], options: ParquetOptions, common: PlanOptions) -> ParquetSource:
    """Read the footers.

    Raises:
        DataError: no Parquet file, a column that can't be a feature, files that don't go together, no rows.
        UsageError: an option names a column that is not there.
    """
    files = with_partitions(FileTable.of(files))
    made = partition_fields(files)
    footers = list(thread_map(lambda file: _footer(file, options, made, common.memory_bytes), files, common.threads))
    chosen = {footer.columns: 0 for footer in footers}
    chosen = {names: number for number, names in enumerate(chosen)}
    numbers = np.array([chosen[footer.columns] for footer in footers], np.uint32)
    columns = coded(numbers, pa.array([list(names) for names in chosen], pa.list_(pa.string())))
    _check_select(options, [footer.names for footer in footers])
    unifier = Unifier(declared_columns(common))
    for file, footer in zip(files, footers, strict=True):
        if options.differing_columns == SAME_COLUMNS:
            _check_same(file, footer.flat, files[0], footers[0].flat)
        if footer.rows:
            unifier.add(footer.flat, file.name, footer.nulls)
    units = _units([footer.groups for footer in footers])
    if not units:
        raise DataError("there are no rows", source=files[0].name if files else "")
    labels = _labels(files, footers, common)
    schema, notes, named = finish_parts(unifier, labels, common, "the files")
    kept = ScanCache[WholeFile](common.cache_bytes)
    digests = _digests(files, units, common, kept)
    kept.settle(lambda _: True)
    for file in files:
        check_unchanged(file.path, file.stat, file.name)
    files = files.with_column(COLUMNS, columns)
    source = ParquetSource(schema, files, units, digests, notes, named=named, kept=kept)
    return replace(source, memory_bytes=common.memory_bytes, batch_bytes=_batch_bytes(common))


def _batch_bytes(common: PlanOptions) -> int:
    """Of a batch: all batches are the smaller, the less memory each thread has."""
    return min(BATCH_BYTES, max(common.memory_bytes // (_BATCH_SHARE * common.threads), _LEAST_BATCH_BYTES))


def _digests(
    files: Sequence[InputFile], units: Sequence[Unit], common: PlanOptions, kept: ScanCache[WholeFile]
) -> dict[int, str]:
    """The digests of files that no unit reads whole: those of no unit or of several, and those too large to be held."""
    held = min(UNIT_BYTES, common.memory_bytes // (_HELD_SHARE * common.threads))
    parts: dict[int, list[Unit]] = defaultdict(list)
    for unit in units:
        parts[unit.first_file].append(unit)
    apart = [at for at, file in enumerate(files) if len(parts[at]) != 1 or file.stat.size_bytes > held]
    found = thread_map(lambda at: _digest(files[at], parts[at], kept), apart, common.threads)
    return dict(zip(apart, found, strict=True))


def _digest(file: InputFile, units: Sequence[Unit], kept: ScanCache[WholeFile]) -> str:
    """The file's digest; its bytes are kept for its units if there is room for them."""
    size = file.stat.size_bytes
    if not units or not kept.memory.take(size):
        return digest_file(file.path)
    whole = WholeFile(read_range(file.path, 0, size))
    for unit in units:
        kept.put((unit.first_file, unit.start), CachedRecords(None, [whole]))
    return combine(chunk_digests(whole.data))


@dataclass(frozen=True)
class _Footer:
    """What the plan needs of one file's footer, so that no file stays open.

    names: of its top-level columns. columns: those that are read. flat: their flattened schema. nulls: see _nulls.
    groups: by row group (rows, bytes as it is stored, or decoded if that is more).
    """

    names: tuple[str, ...]
    columns: tuple[str, ...]
    flat: pa.Schema
    nulls: Mapping[str, int]
    groups: Sequence[tuple[int, int]]

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.groups)


def _footer(file: InputFile, options: ParquetOptions, made: Mapping[str, pa.Field], memory_bytes: int) -> _Footer:
    with _open(file, range_file(file.path)) as parquet:
        whole, about = parquet.schema_arrow, parquet.metadata
    check_names(whole.names, file.name)
    for name, said in made.items():
        whole = whole if name in whole.names else whole.append(said)
    columns = _chosen(file, whole.names, options)
    flat = flatten_schema(pa.schema([whole.field(name) for name in columns], metadata=whole.metadata))
    check_feature_count(len(flat), memory_bytes, file.name)
    groups = [about.row_group(at) for at in range(about.num_row_groups)]
    for group in groups:  # of a column that is not there Arrow reads what lies behind
        if group.num_columns != about.num_columns or group.num_rows < 0:
            raise DataError("is damaged: a row group has not the columns or rows of the file", source=file.name)
    leaves = _Leaves(about)
    sizes = [(group.num_rows, max(group.total_byte_size, leaves.decoded_bytes(group))) for group in groups]
    return _Footer(tuple(whole.names), columns, flat, _nulls(about, flat), sizes)


def _open(
    file: InputFile,
    data: pa.NativeFile,
    about: pq.FileMetaData | None = None,
    coded: Sequence[str] = (),
    *,
    ahead: bool = False,
) -> pq.ParquetFile:
    """about: its footer, if that was read. coded: columns, by their paths, that are given as Arrow's dictionaries.

    Each column is read by pieces; ahead: all row groups that are asked for at once, and held as they are stored.
    """
    at_once = _STORE_READ_BYTES if is_remote(file.path) else _DISK_READ_BYTES
    in_memory = isinstance(data, pa.BufferReader)
    try:
        parquet = pq.ParquetFile(
            data,
            metadata=about,
            read_dictionary=list(coded) or None,
            pre_buffer=ahead,
            buffer_size=0 if in_memory or ahead else at_once,
        )
        if about is None:
            check_footer(parquet.metadata, data.size())
        return parquet
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last of a column's name
        raise DataError(f"is no Parquet file, or damaged: {str(error).splitlines()[0]}", source=file.name) from None


def _with_said(batch: pa.RecordBatch, columns: Sequence[str], said: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with a column for each value that folders say."""
    for at, name in enumerate(columns):
        if name not in batch.schema.names:
            batch = batch.add_column(at, name, pa.repeat(said.column(name)[0], batch.num_rows))
    return batch


@dataclass(frozen=True)
class LargeRows:
    """So many rows that take more memory than there is for one."""

    rows: int
    reason: str


class _Leaves:
    """What the columns of a file, nested ones each by itself, become in memory."""

    def __init__(self, about: pq.FileMetaData) -> None:
        columns = [about.schema.column(at) for at in range(about.num_columns)]
        widths = [_VALUE_BYTES.get(one.physical_type, one.length) for one in columns]
        self.paths = [str(one.path) for one in columns]
        self._row_bytes = sum(width for width, one in zip(widths, columns, strict=True) if not one.max_repetition_level)
        self._lists = [(at, widths[at]) for at, one in enumerate(columns) if one.max_repetition_level]
        self._texts = [at for at, one in enumerate(columns) if one.physical_type == "BYTE_ARRAY"]

    def decoded_bytes(self, group: pq.RowGroupMetaData) -> int:
        """Of a row group at least: its numbers, however few bytes they are stored in, and where its texts are."""
        lists = sum(int(group.column(at).num_values) * width for at, width in self._lists)
        return int(group.num_rows * self._row_bytes + lists)

    def repeated(self, group: pq.RowGroupMetaData) -> list[tuple[str, int]]:
        """(path, values) of texts that may become more than they are stored in, since each stands there once; no more
        than what they might become at worst counts.
        """
        found = []
        for at in self._texts:
            column = group.column(at)
            values = min(int(column.num_values), BATCH_ROWS * max(int(column.num_values) // max(group.num_rows, 1), 1))
            if column.has_dictionary_page and values * int(column.total_uncompressed_size) > _UNLOOKED_BYTES:
                found.append((self.paths[at], values))
        return found


class _Rows:
    """The rows of a file's row groups, in batches that are bounded by what they become in memory: a text that is stored
    once may be that of each row, and a number that is repeated takes no room in the file.

    Groups with texts that might become too much are read as dictionaries, whose codes tell the size of each row before
    it is made.
    """

    def __init__(
        self,
        file: InputFile,
        data: pa.NativeFile,
        columns: Sequence[str],
        memory_bytes: int,
        batch_bytes: int,
        said: pa.RecordBatch,
    ) -> None:
        """said: what the file's folders say, of columns that it lacks."""
        self._file, self._data, self._asked, self._said = file, data, list(columns), said
        self._parquet = _open(file, data)
        own = set(self._parquet.schema_arrow.names)
        self._columns = [name for name in columns if name in own]
        self._about, self._leaves = self._parquet.metadata, _Leaves(self._parquet.metadata)
        self._most_bytes, self._memory_bytes = memory_bytes // _ROW_SHARE, memory_bytes
        self._most_page_bytes = memory_bytes // _PAGE_SHARE
        self._batch_bytes = batch_bytes

    def batches(self, groups: range) -> Iterator[pa.RecordBatch | LargeRows]:
        """The rows of these groups, in order.

        Raises:
            DataError: the file is damaged.
        """
        whole = len(self._asked) == len(self._columns)
        for part in self._parts(groups):
            yield part if whole or isinstance(part, LargeRows) else _with_said(part, self._asked, self._said)

    def _parts(self, groups: range) -> Iterator[pa.RecordBatch | LargeRows]:
        try:
            held: list[int] = []  # groups that are read together
            row_bytes = 1
            for group in groups:
                stored = self._stored(group)
                if stored.largest > self._most_page_bytes:
                    yield from self._read(held, row_bytes)
                    held, row_bytes = [], 1
                    yield from self._without(group, stored)
                    continue
                size = self._row_bytes(group, stored)
                coded = self._coded(group) if size <= self._most_bytes else []  # else none of its rows is read
                if coded or size > self._most_bytes:
                    yield from self._read(held, row_bytes)
                    held, row_bytes = [], 1
                    yield from self._read_apart(group, coded, size)
                else:
                    held, row_bytes = [*held, group], max(row_bytes, size)
            yield from self._read(held, row_bytes)
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"damaged: {str(error).splitlines()[0]}",
                source=self._file.name,
                place=f"row groups {groups.start} to {groups.stop - 1}",
            ) from None

    def _stored(self, group: int) -> PageSizes:
        """What the pages of the columns that are read become. Those of a store are looked at in columns that one
        request reads, others are taken at the footer's word.
        """
        about = self._about.row_group(group)
        paths = enumerate(self._leaves.paths)
        wanted = [about.column(at) for at, path in paths if path.partition(".")[0] in self._columns]
        if is_remote(self._file.path) and not isinstance(self._data, pa.BufferReader):
            wanted = [one for one in wanted if one.total_compressed_size <= _STORE_READ_BYTES]
        sizes = [page_sizes(self._data, one) for one in wanted]
        return PageSizes(sum(one.total for one in sizes), max((one.largest for one in sizes), default=0))

    def _row_bytes(self, group: int, stored: PageSizes) -> int:
        """The mean of a group's rows."""
        about = self._about.row_group(group)
        size = max(int(about.total_byte_size), stored.total, self._leaves.decoded_bytes(about))
        return max(1, size // max(int(about.num_rows), 1))

    def _coded(self, group: int) -> list[str]:
        """The paths of texts that might become too much."""
        repeated = self._leaves.repeated(self._about.row_group(group))
        paths = [path for path, _ in repeated]
        if not paths:
            return []
        parquet = _open(self._file, self._data, self._about, paths)
        whole = [name for name in self._columns if any(f"{path}.".startswith(f"{name}.") for path in paths)]
        first = next(parquet.iter_batches(1, row_groups=[group], columns=whole, use_threads=False), None)
        longest = {} if first is None else dict(_longest(first))
        return [path for path, values in repeated if longest.get(path, 0) * values > _UNLOOKED_BYTES]

    def _read(self, groups: list[int], row_bytes: int) -> Iterator[pa.RecordBatch | LargeRows]:
        rows = max(1, min(BATCH_ROWS, self._batch_bytes // row_bytes))
        size = sum(int(self._about.row_group(group).total_byte_size) for group in groups)
        ahead = is_remote(self._file.path) and size <= _AHEAD_BATCHES * self._batch_bytes
        parquet = _open(self._file, self._data, self._about, ahead=True) if ahead else self._parquet
        for batch in self._iter(parquet, groups, rows) if groups else ():
            yield from self._bounded(batch, batch.nbytes * np.ones(1, np.int64) // max(batch.num_rows, 1))

    def _read_apart(self, group: int, coded: list[str], row_bytes: int) -> Iterator[pa.RecordBatch | LargeRows]:
        if row_bytes > self._most_bytes:
            yield self._too_large(int(self._about.row_group(group).num_rows), row_bytes)
            return
        rows = max(1, min(BATCH_ROWS, self._batch_bytes // row_bytes))
        schema = pa.schema([self._parquet.schema_arrow.field(name) for name in self._columns])
        for batch in self._iter(_open(self._file, self._data, self._about, coded), [group], rows):
            sizes = batch.nbytes // max(batch.num_rows, 1) + sum(map(_text_bytes, batch.columns))
            for part in self._bounded(batch, np.broadcast_to(sizes, batch.num_rows)):
                if isinstance(part, LargeRows):
                    yield part
                else:  # copied, since a cast makes the values of a whole list, not those of a slice of it
                    rows_of_part = part.take(pa.array(np.arange(part.num_rows)))
                    yield rows_of_part.cast(schema.with_metadata(part.schema.metadata))

    def _iter(self, parquet: pq.ParquetFile, groups: list[int], rows: int) -> Iterator[pa.RecordBatch]:
        return iter(parquet.iter_batches(rows, row_groups=groups, columns=self._columns, use_threads=False))

    def _bounded(self, batch: pa.RecordBatch, sizes: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch | LargeRows]:
        """Slices of about batch_bytes; sizes: [rows], or [1] of each. A row beyond the memory is none."""
        rows = batch.num_rows
        ends = np.cumsum(np.broadcast_to(sizes, rows))
        start = 0
        while start < rows:
            before = int(ends[start - 1]) if start else 0
            if (size := int(ends[start]) - before) > self._most_bytes:
                yield self._too_large(1, size)
                start += 1
                continue
            stop = max(int(np.searchsorted(ends, before + self._batch_bytes, "right")), start + 1)
            yield batch.slice(start, stop - start)
            start = stop

    def _without(self, group: int, stored: PageSizes) -> Iterator[LargeRows]:
        """The rows of a group with a page that the memory can't hold."""
        rows = int(self._about.row_group(group).num_rows)
        enough = max(_PAGE_SHARE * stored.largest, _ROW_SHARE * self._row_bytes(group, stored))
        reason = self._beyond(f"is stored in a page of {(stored.largest >> 20) + 1} MiB", "a page", enough)
        for first in range(0, rows, BATCH_ROWS):
            yield LargeRows(min(BATCH_ROWS, rows - first), reason)

    def _too_large(self, rows: int, size: int) -> LargeRows:
        return LargeRows(rows, self._beyond(f"takes {(size >> 20) + 1} MiB", "one row", _ROW_SHARE * size))

    def _beyond(self, takes: str, one: str, enough_bytes: int) -> str:
        memory = option("memory", f"{self._memory_bytes >> 20}MiB")
        enough = option("memory", f"{(9 * enough_bytes // 8 >> 20) + 1}MiB")  # with what lies beside the values
        return f"{takes}, more than {memory} leaves for {one}; {enough} is enough"


def _no_rows(schema: Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=to_arrow(schema))


def _longest(batch: pa.RecordBatch) -> Iterator[tuple[str, int]]:
    """(path, bytes of the longest text of its dictionary) of each column that has one."""

    def of(path: str, kind: pa.DataType, column: pa.Array) -> Iterator[tuple[str, int]]:
        if pa.types.is_dictionary(kind):
            yield path, int(pc.max(pc.binary_length(column.dictionary)).as_py() or 0)
        elif pa.types.is_struct(kind):
            for at in range(kind.num_fields):
                yield from of(f"{path}.{kind.field(at).name}", kind.field(at).type, column.field(at))
        elif pa.types.is_map(kind):
            yield from of(f"{path}.key_value.key", kind.key_type, column.keys)
            yield from of(f"{path}.key_value.value", kind.item_type, column.items)
        elif pa.types.is_nested(kind):
            yield from of(f"{path}.list.{kind.value_field.name}", kind.value_type, column.values)

    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        yield from of(name, column.type, column)


def _text_bytes(column: pa.Array) -> npt.NDArray[np.int64]:
    """[rows] the bytes of texts that stand in dictionaries, as they are in each row."""
    column = map_as_list(column)
    kind = column.type
    found: npt.NDArray[np.int64] = np.zeros(len(column), np.int64)
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(column.dictionary).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        codes = column.indices.fill_null(len(lengths)).to_numpy(zero_copy_only=False)
        return np.asarray(found + np.append(lengths, 0)[codes], np.int64)
    if pa.types.is_struct(kind):
        return sum((_text_bytes(part) for part in column.flatten()), found)
    if not pa.types.is_nested(kind):
        return found
    counts = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(counts)])
    inner = np.concatenate([[0], np.cumsum(_text_bytes(column.flatten()))])
    return np.asarray(found + np.diff(inner[ends]), np.int64)


def _chosen(file: InputFile, names: Sequence[str], options: ParquetOptions) -> tuple[str, ...]:
    if options.columns is None:
        return tuple(names)
    absent = [name for name in options.columns if name not in names]
    if absent and options.differing_columns == SAME_COLUMNS:
        raise UsageError(f"{file.name} has no column {absent[0]!r}; {there_are(absent[0], names)}")
    return tuple(name for name in options.columns if name in names)


def _check_select(options: ParquetOptions, names: Sequence[Sequence[str]]) -> None:
    known = list(dict.fromkeys(name for some in names for name in some))
    for name in options.columns or ():
        if name not in known:
            raise UsageError(f"no file has a column {name!r}; their columns are {', '.join(known)}")


def _check_same(file: InputFile, schema: pa.Schema, first: InputFile, wanted: pa.Schema) -> None:
    if [(f.name, f.type) for f in schema] != [(f.name, f.type) for f in wanted]:
        differ = next(
            (name for name in (*wanted.names, *schema.names) if name not in schema.names or name not in wanted.names),
            None,
        )
        what = f"column {differ!r} is only in one of them" if differ else "columns differ in type or order"
        raise DataError(
            f"has not the columns of {first.name}: {what} ({option('differing_columns', 'union')} takes files that "
            "differ)",
            source=file.name,
        )


def _nulls(about: pq.FileMetaData, flat: pa.Schema) -> dict[str, int]:
    """How many nulls each top-level scalar column has, by the footer's statistics; -1 where they don't say."""
    leaves = {about.schema.column(at).path: at for at in range(about.num_columns)}
    said = null_counts(about, {leaves[field.name] for field in flat if field.nullable and field.name in leaves})
    return {field.name: said.get(leaves.get(field.name, -1), -1) if field.nullable else 0 for field in flat}


def _units(files: Sequence[Sequence[tuple[int, int]]]) -> tuple[Unit, ...]:
    """Consecutive row groups of about UNIT_BYTES, uncompressed."""
    units: list[Unit] = []
    for ordinal, groups in enumerate(files):
        first_row = 0
        for group, (rows, size) in enumerate(groups):
            if rows:
                units.append(Unit(ordinal, ordinal + 1, group, group + 1, first_row, rows, size))
            first_row += rows
    return packed(units, UNIT_BYTES, parts=True)


def _labels(files: FileTable, footers: Sequence[_Footer], common: PlanOptions) -> Iterator[pa.RecordBatch]:
    """The rows of all files with the label's column alone, or the struct in which it stands."""
    fields, label = partition_fields(files), common.label
    for at, (file, footer) in enumerate(zip(files, footers, strict=True)):
        tops = [name for name in footer.columns if label == name or (label or "").startswith(f"{name}.")]
        if tops:
            said = partition_values(files, (at,), fields)
            reader = _Rows(file, range_file(file.path), tops, common.memory_bytes, _batch_bytes(common), said)
            for part in reader.batches(range(len(footer.groups))):
                if not isinstance(part, LargeRows):
                    yield flatten(part)
