"""Columns joined to the records of a source: those that folders called `NAME=VALUE` make, as Hive, Spark and Arrow
write tables (`dt=2024-01-01/country=JP/`), and those of any other `ColumnJoiner`.

What folders say is kept as columns of the files; a column of the files' own stands before it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from recordmill.base.errors import Reject, UsageError
from recordmill.base.option_names import option
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.sources.common.contract import Chunk, PlanOptions, RecordLocator, Source, Unit
from recordmill.sources.common.layout import read_partitions
from recordmill.sources.values.conform import conform
from recordmill.sources.values.flatten import nest_tensors
from recordmill.sources.values.schema_unifier import (
    SchemaUnifier,
    check_columns,
    declared_dtypes,
    finish_unified_schema,
)
from recordmill.storage.file_table import FileTable

_FOLDER_PREFIX = (
    "partition/"  # before the names of the columns of files that say what their folders say
)
_INTEGER_PATTERN = re.compile(r"0|-?[1-9]\d{0,17}")
PlanFunction = Callable[[FileTable, PlanOptions], Source]


class JoinedRows(NamedTuple):
    """rows: records of a source. values: the columns to join, of as many rows. bad: the reasons and messages of rows
    that have none, by row.
    """

    chunk: Chunk
    columns: pa.RecordBatch
    bad_rows: dict[int, tuple[str, str]]


class ColumnJoiner(Protocol):
    """Columns that records get beside, or in place of, their own."""

    def join(self, files: FileTable, chunk: Chunk) -> Iterator[JoinedRows]:
        """Yields the columns of a chunk of these files, for consecutive parts of it."""


@dataclass(frozen=True)
class _FolderColumns:
    fields: Mapping[str, pa.Field]

    def join(self, files: FileTable, chunk: Chunk) -> Iterator[JoinedRows]:
        ordinals, row_ordinals = np.unique(chunk.file, return_inverse=True)
        yield JoinedRows(
            chunk, self.values(files, ordinals.tolist()).take(pa.array(row_ordinals)), {}
        )

    def values(self, files: FileTable, ordinals: Sequence[int]) -> pa.RecordBatch:
        """Returns what the folders of these files say, a row each."""
        columns = files.take(ordinals, [_FOLDER_PREFIX + name for name in self.fields]).values()
        words = (pa.array(column.to_pylist(), pa.string()) for column in columns)
        arrays = [
            column.cast(field.type)
            for column, field in zip(words, self.fields.values(), strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(self.fields.values()))


@dataclass(frozen=True)
class JoinedSource:
    """A Source with joined columns.

    Attributes:
        base: The source that reads the files, without its tables.
        joined_schema: The features of the joined columns.
        text_label: The label, if it is one of them and its classes are texts of its values.
    """

    schema: Schema
    files: FileTable
    units: Sequence[Unit]
    base: Source
    joiner: ColumnJoiner
    joined_schema: Schema
    kind: str
    text_label: str | None = None
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()

    @functools.cached_property
    def _reader(self) -> Source:
        reader: Source = replace(self.base, files=self.files, units=self.units)  # type: ignore[type-var]
        return reader

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields what the kind reads, each record with its joined columns."""
        for chunk in self._reader.read(unit):
            yield from map(self._join_chunk, self.joiner.join(self.files, chunk))

    def locate(self, file: int, positions: Sequence[int]) -> list[str]:
        """Returns where people find these records: see RecordLocator."""
        if isinstance(self._reader, RecordLocator):
            return self._reader.locate(file, positions)
        return [f"row {position}" for position in positions]

    def _join_chunk(self, joined: JoinedRows) -> Chunk:
        chunk, columns, bad_rows = joined
        assert isinstance(chunk.records, pa.RecordBatch)
        keep = np.setdiff1d(np.arange(chunk.rows), list(bad_rows))
        fitted = conform(
            nest_tensors(
                columns if not bad_rows else columns.take(pa.array(keep)), self.joined_schema
            ),
            self.joined_schema,
            self.text_label,
        )
        bad_rows = bad_rows | {
            int(keep[index]): (reason, message) for index, reason, message in fitted.bad_rows
        }
        rejects = list(chunk.rejects)
        for file, group in groupby(sorted(bad_rows), key=lambda row: int(chunk.file[row])):
            rows, name = list(group), self.files[file].name
            places = self.locate(file, chunk.position[rows].tolist())  # all of a file at once
            rejects += [
                Reject(name, place, *bad_rows[row]) for place, row in zip(places, rows, strict=True)
            ]
        if bad_rows:
            chunk = chunk.take(keep[fitted.good_rows])
        arrays = {
            **_by_name(self.base.schema, chunk.records),
            **_by_name(self.joined_schema, fitted.batch),
        }
        batch = pa.RecordBatch.from_arrays(
            [arrays[f.name] for f in self.schema], schema=to_arrow(self.schema)
        )
        return replace(chunk, records=batch, rejects=tuple(rejects))


def _by_name(schema: Schema, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(schema.names, batch.columns, strict=True))


def plan_with_partitions(
    files: FileTable, common: PlanOptions, plan: PlanFunction, columns: Sequence[str] | None = None
) -> Source:
    """Plans the files by `plan`, with the columns that their folders make; of these `columns`, unless that is None.

    Raises:
        UsageError, DataError: as plan does, and as it would of such columns of the files.
    """
    for name, column in read_partitions(files).items():
        files = files.with_column(_FOLDER_PREFIX + name, column)
    fields = {
        name: field
        for name, field in _partition_fields(files).items()
        if columns is None or name in columns
    }
    if not fields:
        return plan(files, common)
    source = plan(files, _exclude_columns(common, fields, fields))
    file_columns = {name for name in fields if name in source.schema}
    duplicate_notes = tuple(
        f"{name}: the files have such a column, which is read; what folders say of it is not"
        for name in file_columns
    )
    if file_columns & {*common.dtypes, common.label}:
        source = plan(files, _exclude_columns(common, fields, fields.keys() - file_columns))
    names = [name for name in fields if name not in file_columns]
    notes = tuple(
        note
        for note in source.notes
        if not any(note.startswith(f"{name}: not in ") for name in names)
    )
    source = replace(source, notes=notes)  # type: ignore[type-var]
    folders = _FolderColumns({name: fields[name] for name in names})
    description = "the names of folders"
    values = folders.values(files, range(len(files)))
    unifier = SchemaUnifier(declared_dtypes(common))
    null_counts = {name: values.column(name).null_count for name in values.schema.names}
    unifier.add(values.schema, description, null_counts)
    joined = join_columns(
        source,
        folders,
        unifier=unifier,
        batches=[values],
        common=options_for_columns(common, names.__contains__),
        declared_schema=common.schema,
        description=description,
    )
    return replace(joined, notes=(*joined.notes, *sorted(duplicate_notes)))  # type: ignore[type-var]


def _partition_fields(files: FileTable) -> dict[str, pa.Field]:
    """Returns the columns that folders make: of whole numbers if all values are, as they are written, else of text."""
    fields = {}
    for column in (name for name in files.columns if name.startswith(_FOLDER_PREFIX)):
        values = files.words(column).to_pylist()
        are_integers = all(value is None or _INTEGER_PATTERN.fullmatch(value) for value in values)
        name = column.removeprefix(_FOLDER_PREFIX)
        fields[name] = pa.field(
            name, pa.int64() if are_integers else pa.string(), nullable=None in values
        )
    return fields


def options_for_columns(common: PlanOptions, keep: Callable[[str], bool]) -> PlanOptions:
    """Returns what the options say of those columns alone that are to be kept."""
    schema = common.schema
    return replace(
        common,
        schema=None if schema is None else schema.select(filter(keep, schema.names)),
        dtypes={name: dtype for name, dtype in common.dtypes.items() if keep(name)},
        label=None if common.label is None or not keep(common.label) else common.label,
        may_lack=frozenset(filter(keep, common.may_lack)),
    )


def plan_text_columns(
    files: FileTable, common: PlanOptions, plan: PlanFunction, names: Sequence[str], keyword: str
) -> Source:
    """Plans the files with these columns as single texts, of which something else is to be made for an option.

    Raises:
        UsageError, DataError: as plan does; one of these is no column, or holds lists.
    """
    dtypes = {**common.dtypes, **dict.fromkeys(names, "string")}
    schema = common.schema
    if schema is not None:
        features = (
            replace(f, dtype="string", shape=(), classes=None) if f.name in names else f
            for f in schema
        )
        schema = replace(
            schema, features=tuple(features), label=None if schema.label in names else schema.label
        )
    label = None if common.label in names else common.label
    try:
        source = plan(files, replace(common, dtypes=dtypes, schema=schema, label=label))
    except UsageError:  # which may be of the dtypes, that the user didn't give
        dtypes = {name: dtype for name, dtype in common.dtypes.items() if name not in names}
        check_columns(
            names, plan(files, replace(common, dtypes=dtypes, label=label)).schema.names, keyword
        )
        raise
    check_columns(names, source.schema.names, keyword)
    if lists := [name for name in names if source.schema[name].shape]:
        raise UsageError(
            f"{option(keyword)}: column {lists[0]!r} holds lists, and single texts are needed"
        )
    return source


def join_columns(
    source: Source,
    joiner: ColumnJoiner,
    unifier: SchemaUnifier,
    batches: Iterable[pa.RecordBatch],
    common: PlanOptions,
    declared_schema: Schema | None,
    description: str,
    kind: str = "",
) -> Source:
    """Returns the source with these columns; the source itself if they have no feature.

    Args:
        source: The source of the files.
        joiner: The columns to join.
        unifier: Their types.
        batches: Their values, which are only read if one is a label of text.
        common: Of the options what they say of these columns.
        declared_schema: The schema of all features, if there is one.
        description: The columns, for messages.
        kind: Of the source; that of its own.

    Raises:
        UsageError, DataError: As `finish_unified_schema`.
    """
    joined_schema, notes, text_label = finish_unified_schema(unifier, batches, common, description)
    if not len(joined_schema):
        unchanged: Source = replace(source, notes=(*source.notes, *notes))  # type: ignore[type-var]
        return unchanged
    features = {feature.name: feature for feature in (*source.schema, *joined_schema)}
    names = (
        features
        if declared_schema is None
        else [name for name in declared_schema.names if name in features]
    )
    merged = replace(
        source.schema,
        features=tuple(features[name] for name in names),
        label=joined_schema.label or source.schema.label,
    )
    no_files = source.files.filter(np.zeros(len(source.files), np.bool_))
    base_source: Source = replace(source, files=no_files, units=(), plan_rejects=())  # type: ignore[type-var]
    return JoinedSource(
        schema=merged,
        files=source.files,
        units=source.units,
        base=base_source,
        joiner=joiner,
        joined_schema=joined_schema,
        kind=kind or source.kind,
        text_label=text_label,
        notes=(*source.notes, *notes),
        plan_rejects=tuple(source.plan_rejects),
    )


def _exclude_columns(
    common: PlanOptions,
    may_lack: Mapping[str, pa.Field],
    excluded: Mapping[str, pa.Field] | set[str],
) -> PlanOptions:
    """Returns the options without what they say of the columns left_out. made: columns that the files may lack."""
    return replace(
        common,
        dtypes={name: dtype for name, dtype in common.dtypes.items() if name not in excluded},
        label=None if common.label in excluded else common.label,
        may_lack=common.may_lack.union(may_lack),
    )
