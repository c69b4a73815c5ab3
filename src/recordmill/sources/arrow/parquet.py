"""Parquet files in, a `ParquetSource` out: columns and lists to features, row groups to units, structs by dotted path.

The footers tell types, rows and nulls, so the plan reads no data but the label's column, and the bytes of large files
for their digests; these are kept for the units as far as there is room. A file of one unit is read whole by that, which
digests it. A record's position is its row number in the file. Files of one input may lack columns (null there) or, with
`strict`, must agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.base.option_names import option
from recordmill.base.suggestions import there_are
from recordmill.base.threads import thread_map
from recordmill.schemas.feature import Schema
from recordmill.sources.common.contract import BATCH_BYTES, BATCH_ROWS, UNIT_BYTES, Chunk, PlanOptions, Unit, packed
from recordmill.sources.common.scan_cache import CachedRecords, ScanCache
from recordmill.sources.values.casting import is_text_type, plain
from recordmill.sources.values.conform import conform
from recordmill.sources.values.flatten import flatten, flatten_schema, nest_tensors
from recordmill.sources.values.labels import ClassNames
from recordmill.sources.values.overrides import finish_schema
from recordmill.sources.values.unify import Unifier
from recordmill.storage.arrow_files import mapped_file
from recordmill.storage.digest import chunk_digests, combine, digest_file
from recordmill.storage.file_table import FileTable, InputFile, coded
from recordmill.storage.files import Bytes, check_unchanged, is_remote, read_range

ALL_COLUMNS, SAME_COLUMNS = "union", "strict"
COLUMNS = "columns"
_HELD_SHARE = 4  # a fourth of the memory, at most, for files that are held whole


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
    whole, by one unit.
    """

    schema: Schema
    files: FileTable
    units: Sequence[Unit]
    digests: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    kept: ScanCache[WholeFile] = field(default_factory=ScanCache, compare=False, repr=False)
    kind: str = "parquet"

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """The rows of the unit's row groups, in batches of bounded size however large a row group is."""
        ordinal, row = unit.first_file, unit.first_row
        file = self.files[ordinal]
        check_unchanged(file.path, file.stat, file.name)
        whole, digests = self._whole(unit)
        parquet = _open(file, mapped_file(file.path) if whole is None else pa.BufferReader(pa.py_buffer(whole)))
        row_bytes = max(1, unit.size_bytes // max(unit.rows or 1, 1))
        columns = self.files.take((ordinal,), (COLUMNS,))[COLUMNS][0].as_py()
        for batch in _batches(file, parquet, range(unit.start, unit.stop), columns, row_bytes):
            fitted = conform(nest_tensors(flatten(batch), self.schema), self.schema)
            rejects = tuple(Reject(file.name, f"row {row + at}", reason, message) for at, reason, message in fitted.bad)
            files = np.full(len(fitted.good), ordinal, np.uint32)
            yield Chunk(fitted.batch, files, fitted.good + row, rejects, digests)
            row += batch.num_rows
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
    files = FileTable.of(files)
    footers = [_footer(file, options) for file in files]
    chosen = {footer.columns: 0 for footer in footers}
    chosen = {names: number for number, names in enumerate(chosen)}
    numbers = np.array([chosen[footer.columns] for footer in footers], np.uint32)
    columns = coded(numbers, pa.array([list(names) for names in chosen], pa.list_(pa.string())))
    _check_select(options, [footer.names for footer in footers])
    unifier = Unifier(_declared(common))
    for file, footer in zip(files, footers, strict=True):
        if options.differing_columns == SAME_COLUMNS:
            _check_same(file, footer.flat, files[0], footers[0].flat)
        if footer.rows:
            unifier.add(footer.flat, file.name, footer.nulls)
    units = _units([footer.groups for footer in footers])
    if not units:
        raise DataError("there are no rows", source=files[0].name if files else "")
    inferred = unifier.schema()
    classes = _classes(files, footers, common, inferred)
    schema, notes = finish_schema(inferred, unifier.untold(), classes, common, "the files")
    kept = ScanCache[WholeFile](common.kept_bytes)
    digests = _digests(files, units, common, kept)
    kept.settle(lambda _: True)
    for file in files:
        check_unchanged(file.path, file.stat, file.name)
    return ParquetSource(schema, files.with_column(COLUMNS, columns), units, digests, notes, kept=kept)


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
    groups: by row group (rows, uncompressed bytes).
    """

    names: tuple[str, ...]
    columns: tuple[str, ...]
    flat: pa.Schema
    nulls: Mapping[str, int]
    groups: Sequence[tuple[int, int]]

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.groups)


def _footer(file: InputFile, options: ParquetOptions) -> _Footer:
    with _open(file, mapped_file(file.path)) as parquet:
        whole, about = parquet.schema_arrow, parquet.metadata
    columns = _chosen(file, whole.names, options)
    flat = flatten_schema(pa.schema([whole.field(name) for name in columns], metadata=whole.metadata))
    groups = [about.row_group(at) for at in range(about.num_row_groups)]
    sizes = [(group.num_rows, group.total_byte_size) for group in groups]
    return _Footer(tuple(whole.names), columns, flat, _nulls(about, flat), sizes)


def _open(file: InputFile, data: pa.NativeFile) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(data, pre_buffer=is_remote(file.path))
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"is no Parquet file, or damaged: {str(error).splitlines()[0]}", source=file.name) from None


def _batches(
    file: InputFile, parquet: pq.ParquetFile, groups: range, columns: Sequence[str], row_bytes: int
) -> Iterator[pa.RecordBatch]:
    rows = max(1, min(BATCH_ROWS, BATCH_BYTES // row_bytes))
    try:
        for batch in parquet.iter_batches(
            batch_size=rows, row_groups=list(groups), columns=list(columns), use_threads=False
        ):
            yield from _bounded(batch)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            f"damaged: {str(error).splitlines()[0]}",
            source=file.name,
            place=f"row groups {groups.start} to {groups.stop - 1}",
        ) from None


def _bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Rows may weigh more than the file's mean: slices of about BATCH_BYTES."""
    rows = max(1, BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


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


def _declared(common: PlanOptions) -> dict[str, str]:
    given = {} if common.schema is None else {f.name: f"{f.dtype}[]" for f in common.schema}
    return {**given, **common.dtypes}


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
    found = dict.fromkeys(flat.names, -1)
    leaves = {about.schema.column(at).path: at for at in range(about.num_columns)}
    for name in flat.names:
        at = leaves.get(name)
        if at is None:
            continue
        statistics = [about.row_group(group).column(at).statistics for group in range(about.num_row_groups)]
        if all(s is not None and s.has_null_count for s in statistics):
            found[name] = sum(s.null_count for s in statistics)
    return {name: 0 if not flat.field(name).nullable else count for name, count in found.items()}


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


def _classes(
    files: Sequence[InputFile], footers: Sequence[_Footer], common: PlanOptions, inferred: Schema
) -> ClassNames | None:
    """The label's texts, by reading that one column."""
    label = common.label
    if label is None or common.schema is not None or label not in inferred or inferred[label].dtype != "string":
        return None
    classes = ClassNames(label)
    for file, footer in zip(files, footers, strict=True):
        top = label if label in footer.columns else label.split(".")[0]
        if top in footer.columns:
            parquet = _open(file, mapped_file(file.path))
            for batch in _batches(file, parquet, range(len(footer.groups)), [top], 64):
                flat = flatten(batch)
                if label in flat.schema.names and is_text_type(plain(flat.column(label)).type):
                    classes.add(plain(flat.column(label)))
    return classes
