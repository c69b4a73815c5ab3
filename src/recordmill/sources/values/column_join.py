"""Columns that are joined to the records of a source.

Folders called `NAME=VALUE` define such columns, as Hive, Spark and Arrow write tables:
`dt=2024-01-01/country=JP/`. A `ColumnJoiner` can also add other columns, such as parsed texts.

The values of folders are stored as columns of the file table. If the files have a column of the
same name, the column of the files is used.
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

from recordmill.base.errors import Fault, Reject, UsageError
from recordmill.base.option_names import option
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.sources.common.contract import (
    Chunk,
    PlanOptions,
    RecordLocator,
    Source,
    Unit,
)
from recordmill.sources.common.layout import read_partitions
from recordmill.sources.common.options import TableOptions
from recordmill.sources.values.conform import conform
from recordmill.sources.values.flatten import nest_tensors
from recordmill.sources.values.schema_unifier import (
    SchemaUnifier,
    check_columns,
    declared_dtypes,
    finish_unified_schema,
)
from recordmill.storage.file_table import FileTable

# The name of a file table column with the values of NAME=VALUE folders is this prefix and NAME.
_FOLDER_PREFIX = "partition/"
_INTEGER_PATTERN = re.compile(r"0|-?[1-9]\d{0,17}")
PlanFunction = Callable[[FileTable, PlanOptions], Source]


class JoinedRows(NamedTuple):
    """Some records of a source, and the columns to join to them.

    Attributes:
        chunk: The records.
        columns: The columns to join, with one row for each record of `chunk`.
        faults: The faults of records without values to join, by row of `chunk`. They become
            rejects.
    """

    chunk: Chunk
    columns: pa.RecordBatch
    faults: dict[int, Fault]


class ColumnJoiner(Protocol):
    """Produces columns for the records of a source.

    These columns are added to the columns of the source. A column of the source with the same name
    is replaced.
    """

    def join(self, files: FileTable, chunk: Chunk) -> Iterator[JoinedRows]:
        """Yields consecutive slices of a chunk, each with the columns to join.

        Args:
            files: The files of the source.
            chunk: Records of these files.
        """


@dataclass(frozen=True)
class _FolderColumns:
    """Joins the values of folders.

    Attributes:
        fields: Arrow field of each folder column, by its name.
    """

    fields: Mapping[str, pa.Field]

    def join(self, files: FileTable, chunk: Chunk) -> Iterator[JoinedRows]:
        ordinals, row_ordinals = np.unique(chunk.file_ids, return_inverse=True)
        yield JoinedRows(
            chunk, self.values(files, ordinals.tolist()).take(pa.array(row_ordinals)), {}
        )

    def values(self, files: FileTable, ordinals: Sequence[int]) -> pa.RecordBatch:
        """Returns the folder values of some files, with one row per file."""
        columns = files.take_columns(
            ordinals, [_FOLDER_PREFIX + name for name in self.fields]
        ).values()
        words = (pa.array(column.to_pylist(), pa.string()) for column in columns)
        arrays = [
            column.cast(field.type)
            for column, field in zip(words, self.fields.values(), strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(self.fields.values()))


@dataclass(frozen=True)
class JoinedSource:
    """A source that reads the records of another source, and joins columns to them.

    Attributes:
        files: The files.
        units: The units of the other source.
        base: The other source, without its files and units. Otherwise a pickled JoinedSource would
            contain them twice.
        joiner: Produces the joined columns.
        joined_schema: The features of the joined columns.
        kind: Name of the kind of input.
        text_label: Name of the label if it is a joined column and its class names are the distinct
            texts in this column, else None.
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
        return replace(self.base, files=self.files, units=self.units)  # type: ignore[type-var]

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields the chunks of a unit, with joined columns.

        Records become rejects if they have no values to join, or if the joined values don't fit
        their features.
        """
        for chunk in self._reader.read(unit):
            yield from map(self._join_chunk, self.joiner.join(self.files, chunk))

    def locate(self, file: int, positions: Sequence[int]) -> list[str]:
        """Returns where the records are in their file, such as `row 7`, for messages.

        See `RecordLocator`.
        """
        if isinstance(self._reader, RecordLocator):
            return self._reader.locate(file, positions)
        return [f"row {position}" for position in positions]

    def _join_chunk(self, joined_rows: JoinedRows) -> Chunk:
        chunk, columns, faults = joined_rows
        assert isinstance(chunk.records, pa.RecordBatch)
        keep = np.setdiff1d(np.arange(chunk.rows), list(faults))
        fitted = conform(
            nest_tensors(
                columns if not faults else columns.take(pa.array(keep)), self.joined_schema
            ),
            self.joined_schema,
            self.text_label,
        )
        faults = faults | {int(keep[row]): fault for row, fault in fitted.faults.items()}
        rejects = list(chunk.rejects)
        for file, group in groupby(sorted(faults), key=lambda row: int(chunk.file_ids[row])):
            rows, name = list(group), self.files[file].name
            places = self.locate(file, chunk.positions[rows].tolist())  # one call per file
            rejects += [
                faults[row].at(name, place) for place, row in zip(places, rows, strict=True)
            ]
        if faults:
            chunk = chunk.take(keep[fitted.good_rows])
        arrays = {
            **_columns_by_name(self.base.schema, chunk.records),
            **_columns_by_name(self.joined_schema, fitted.batch),
        }
        batch = pa.RecordBatch.from_arrays(
            [arrays[f.name] for f in self.schema], schema=to_arrow(self.schema)
        )
        return replace(chunk, records=batch, rejects=tuple(rejects))


def _columns_by_name(schema: Schema, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(schema.names, batch.columns, strict=True))


def join_folder_columns(
    plan: PlanFunction, files: FileTable, common: PlanOptions, *, options: TableOptions
) -> Source:
    """Plans files, with the columns that their `NAME=VALUE` folders define.

    If the files themselves have a column of that name, the folders do not define it.

    Args:
        plan: The function that plans the files themselves.
        files: The files.
        common: Options that all kinds of input share.
        options: Options of tables, with the columns to use.

    Raises:
        UsageError: `plan` or `join_columns` raised it.
        DataError: `plan` or `join_columns` raised it.
    """
    for name, column in read_partitions(files).items():
        files = files.with_column(_FOLDER_PREFIX + name, column)
    fields = {
        name: field
        for name, field in _partition_fields(files).items()
        if options.columns is None or name in options.columns
    }
    if not fields:
        return plan(files, common)
    source = plan(files, _exclude_columns(common, fields, fields))
    file_columns = {name for name in fields if name in source.schema}
    duplicate_notes = tuple(
        f"{name}: the files have a column of this name, so the names of folders are ignored"
        for name in file_columns
    )
    # the files have a column of this name after all, so its dtype and label options apply to it
    if file_columns & {*common.dtypes, common.label}:
        source = plan(files, _exclude_columns(common, fields, fields.keys() - file_columns))
    names = [name for name in fields if name not in file_columns]
    # drop notes that call a column of the folders missing
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
    """Returns an Arrow field for each folder column, by its name.

    The type of a column is int64 if all its values are integers without leading zeros. Otherwise
    the type is string, so that `007` is kept.
    """
    fields = {}
    for column in (name for name in files.extra_columns if name.startswith(_FOLDER_PREFIX)):
        values = files.dictionary_values(column).to_pylist()
        are_integers = all(value is None or _INTEGER_PATTERN.fullmatch(value) for value in values)
        name = column.removeprefix(_FOLDER_PREFIX)
        fields[name] = pa.field(
            name, pa.int64() if are_integers else pa.string(), nullable=None in values
        )
    return fields


def options_for_columns(common: PlanOptions, keep: Callable[[str], bool]) -> PlanOptions:
    """Restricts the options of a plan to some columns.

    Schema, dtypes, label and droppable features of other columns are removed.

    Args:
        common: The options.
        keep: Returns whether a column, given by its name, is one of them.
    """
    schema = common.schema
    return replace(
        common,
        schema=None if schema is None else schema.select(filter(keep, schema.names)),
        dtypes={name: dtype for name, dtype in common.dtypes.items() if keep(name)},
        label=None if common.label is None or not keep(common.label) else common.label,
        droppable_features=frozenset(filter(keep, common.droppable_features)),
    )


def plan_text_columns(
    files: FileTable, common: PlanOptions, plan: PlanFunction, names: Sequence[str], keyword: str
) -> Source:
    """Plans files so that some columns are read as single texts.

    The caller replaces these texts by something else, as an option requires.

    Args:
        files: The files.
        common: Options that all kinds of input share.
        plan: The function that plans the files themselves.
        names: Names of the columns to read as text.
        keyword: Name of the option, for messages.

    Raises:
        UsageError: A name is not a column, its column contains lists, or `plan` raised it.
        DataError: `plan` raised it.
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
    except UsageError:  # may be about dtypes that the user did not declare
        dtypes = {name: dtype for name, dtype in common.dtypes.items() if name not in names}
        check_columns(
            names, plan(files, replace(common, dtypes=dtypes, label=label)).schema.names, keyword
        )
        raise
    check_columns(names, source.schema.names, keyword)
    if lists := [name for name in names if source.schema[name].shape]:
        raise UsageError(
            "{option}: column {lists} holds lists, and single texts are needed",
            option=option(keyword),
            lists=repr(lists[0]),
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
    """Returns a source that joins columns to the records of another source.

    If no joined column is a feature, the result is `source` with additional notes.

    Args:
        source: The source of the files.
        joiner: Produces the columns.
        unifier: The types of the columns.
        batches: The values of the columns. They are only read if the label is one of the columns
            and is text.
        common: Options for the joined columns only.
        declared_schema: The schema of all features that the user has declared, or None.
        description: Phrase for the columns, for messages.
        kind: Kind of the result. "" means the kind of `source`.

    Raises:
        UsageError: An option names a column that does not exist.
        DataError: The columns don't fit the declared schema, their types don't fit each other, or a
            text label has no values or too many.
    """
    joined_schema, notes, text_label = finish_unified_schema(unifier, batches, common, description)
    if not len(joined_schema):
        return replace(source, notes=(*source.notes, *notes))  # type: ignore[type-var]
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
    # the file table would be stored twice, since JoinedSource passes its own to the reader
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
    optional_columns: Mapping[str, pa.Field],
    excluded: Mapping[str, pa.Field] | set[str],
) -> PlanOptions:
    """Returns options for planning files that lack some columns.

    Args:
        common: The options.
        optional_columns: Columns that the files need not contain, even if the schema does.
        excluded: Names of the columns to remove from the dtypes and the label.
    """
    return replace(
        common,
        dtypes={name: dtype for name, dtype in common.dtypes.items() if name not in excluded},
        label=None if common.label in excluded else common.label,
        droppable_features=common.droppable_features.union(optional_columns),
    )
