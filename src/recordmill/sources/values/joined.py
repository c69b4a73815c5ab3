"""Columns joined to the records of a source: those that folders called `NAME=VALUE` make, as Hive, Spark and Arrow
write tables (`dt=2024-01-01/country=JP/`), and those of any other `RowColumns`.

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
from recordmill.sources.common.layout import partitions
from recordmill.sources.values.conform import conform
from recordmill.sources.values.flatten import nest_tensors
from recordmill.sources.values.overrides import (
    Unifier,
    check_columns,
    declared_columns,
    finish_parts,
)
from recordmill.storage.file_table import FileTable

_PREFIX = "partition/"  # before the names of the columns of files that say what their folders say
_WHOLE_NUMBER = re.compile(r"0|-?[1-9]\d{0,17}")
Plan = Callable[[FileTable, PlanOptions], Source]


class JoinedRows(NamedTuple):
    """rows: records of a source. values: the columns to join, of as many rows. bad: the reasons and messages of rows
    that have none, by row.
    """

    rows: Chunk
    values: pa.RecordBatch
    bad: dict[int, tuple[str, str]]


class RowColumns(Protocol):
    """Columns that records get beside, or in place of, their own."""

    def join(self, files: FileTable, chunk: Chunk) -> Iterator[JoinedRows]:
        """Yields the columns of a chunk of these files, for consecutive parts of it."""


@dataclass(frozen=True)
class _FolderColumns:
    fields: Mapping[str, pa.Field]

    def join(self, files: FileTable, chunk: Chunk) -> Iterator[JoinedRows]:
        ordinals, of_row = np.unique(chunk.file, return_inverse=True)
        yield JoinedRows(chunk, self.values(files, ordinals.tolist()).take(pa.array(of_row)), {})

    def values(self, files: FileTable, ordinals: Sequence[int]) -> pa.RecordBatch:
        """Returns what the folders of these files say, a row each."""
        columns = files.take(ordinals, [_PREFIX + name for name in self.fields]).values()
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
        own: The source that reads the files, without its tables.
        made: The features of the joined columns.
        named: The label, if it is one of them and its classes are texts of its values.
    """

    schema: Schema
    files: FileTable
    units: Sequence[Unit]
    own: Source
    columns: RowColumns
    made: Schema
    kind: str
    named: str | None = None
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()

    @functools.cached_property
    def _reader(self) -> Source:
        reader: Source = replace(self.own, files=self.files, units=self.units)  # type: ignore[type-var]
        return reader

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields what the kind reads, each record with its joined columns."""
        for chunk in self._reader.read(unit):
            yield from map(self._joined, self.columns.join(self.files, chunk))

    def locate(self, file: int, positions: Sequence[int]) -> list[str]:
        """Returns where people find these records: see RecordLocator."""
        if isinstance(self._reader, RecordLocator):
            return self._reader.locate(file, positions)
        return [f"row {position}" for position in positions]

    def _joined(self, joined: JoinedRows) -> Chunk:
        chunk, values, bad = joined
        assert isinstance(chunk.records, pa.RecordBatch)
        keep = np.setdiff1d(np.arange(chunk.rows), list(bad))
        fitted = conform(
            nest_tensors(values if not bad else values.take(pa.array(keep)), self.made),
            self.made,
            self.named,
        )
        bad = bad | {int(keep[at]): (reason, message) for at, reason, message in fitted.bad}
        rejects = list(chunk.rejects)
        for file, some in groupby(sorted(bad), key=lambda row: int(chunk.file[row])):
            rows, name = list(some), self.files[file].name
            places = self.locate(file, chunk.position[rows].tolist())  # all of a file at once
            rejects += [
                Reject(name, place, *bad[row]) for place, row in zip(places, rows, strict=True)
            ]
        if bad:
            chunk = chunk.take(keep[fitted.good])
        columns = {**_by_name(self.own.schema, chunk.records), **_by_name(self.made, fitted.batch)}
        batch = pa.RecordBatch.from_arrays(
            [columns[f.name] for f in self.schema], schema=to_arrow(self.schema)
        )
        return replace(chunk, records=batch, rejects=tuple(rejects))


def _by_name(schema: Schema, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(schema.names, batch.columns, strict=True))


def plan_with_partitions(
    files: FileTable, common: PlanOptions, plan: Plan, columns: Sequence[str] | None = None
) -> Source:
    """Plans the files by `plan`, with the columns that their folders make; of these `columns`, unless that is None.

    Raises:
        UsageError, DataError: as plan does, and as it would of such columns of the files.
    """
    for name, column in partitions(files).items():
        files = files.with_column(_PREFIX + name, column)
    fields = {
        name: one
        for name, one in _partition_fields(files).items()
        if columns is None or name in columns
    }
    if not fields:
        return plan(files, common)
    own = plan(files, _apart(common, fields, fields))
    theirs = {name for name in fields if name in own.schema}
    twice = tuple(
        f"{name}: the files have such a column, which is read; what folders say of it is not"
        for name in theirs
    )
    if theirs & {*common.dtypes, common.label}:
        own = plan(files, _apart(common, fields, fields.keys() - theirs))
    given = [name for name in fields if name not in theirs]
    own_notes = tuple(
        note for note in own.notes if not any(note.startswith(f"{name}: not in ") for name in given)
    )
    own = replace(own, notes=own_notes)  # type: ignore[type-var]
    folders, what = _FolderColumns({name: fields[name] for name in given}), "the names of folders"
    values, unifier = folders.values(files, range(len(files))), Unifier(declared_columns(common))
    unifier.add(
        values.schema, what, {name: values.column(name).null_count for name in values.schema.names}
    )
    joined = join_columns(
        own, folders, unifier, [values], options_of(common, given.__contains__), common.schema, what
    )
    return replace(joined, notes=(*joined.notes, *sorted(twice)))  # type: ignore[type-var]


def _partition_fields(files: FileTable) -> dict[str, pa.Field]:
    """Returns the columns that folders make: of whole numbers if all values are, as they are written, else of text."""
    fields = {}
    for column in (name for name in files.columns if name.startswith(_PREFIX)):
        values = files.words(column).to_pylist()
        are_whole = all(value is None or _WHOLE_NUMBER.fullmatch(value) for value in values)
        name = column.removeprefix(_PREFIX)
        fields[name] = pa.field(
            name, pa.int64() if are_whole else pa.string(), nullable=None in values
        )
    return fields


def options_of(common: PlanOptions, keep: Callable[[str], bool]) -> PlanOptions:
    """Returns what the options say of those columns alone that are to be kept."""
    schema = common.schema
    return replace(
        common,
        schema=None if schema is None else schema.select(filter(keep, schema.names)),
        dtypes={name: dtype for name, dtype in common.dtypes.items() if keep(name)},
        label=None if common.label is None or not keep(common.label) else common.label,
        may_lack=frozenset(filter(keep, common.may_lack)),
    )


def plan_as_text(
    files: FileTable, common: PlanOptions, plan: Plan, names: Sequence[str], keyword: str
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
        own = plan(files, replace(common, dtypes=dtypes, schema=schema, label=label))
    except UsageError:  # which may be of the dtypes, that the user didn't give
        dtypes = {name: dtype for name, dtype in common.dtypes.items() if name not in names}
        check_columns(
            names, plan(files, replace(common, dtypes=dtypes, label=label)).schema.names, keyword
        )
        raise
    check_columns(names, own.schema.names, keyword)
    if lists := [name for name in names if own.schema[name].shape]:
        raise UsageError(
            f"{option(keyword)}: column {lists[0]!r} holds lists, and single texts are needed"
        )
    return own


def join_columns(
    own: Source,
    columns: RowColumns,
    unifier: Unifier,
    batches: Iterable[pa.RecordBatch],
    common: PlanOptions,
    given: Schema | None,
    what: str,
    kind: str = "",
) -> Source:
    """Returns the source with these columns; the source itself if they have no feature.

    Args:
        own: The source of the files.
        columns: Those to join.
        unifier: Their types.
        batches: Their values, which are only read if one is a label of text.
        common: Of the options what they say of these columns.
        given: The schema of all features, if there is one.
        what: The columns, for messages.
        kind: Of the source; that of its own.

    Raises:
        UsageError, DataError: As `finish_parts`.
    """
    made, more, named = finish_parts(unifier, batches, common, what)
    if not len(made):
        same: Source = replace(own, notes=(*own.notes, *more))  # type: ignore[type-var]
        return same
    features = {feature.name: feature for feature in (*own.schema, *made)}
    names = features if given is None else [name for name in given.names if name in features]
    merged = replace(
        own.schema,
        features=tuple(features[name] for name in names),
        label=made.label or own.schema.label,
    )
    no_files = own.files.filter(np.zeros(len(own.files), np.bool_))
    bare: Source = replace(own, files=no_files, units=(), plan_rejects=())  # type: ignore[type-var]
    return JoinedSource(
        merged,
        own.files,
        own.units,
        bare,
        columns,
        made,
        kind or own.kind,
        named,
        (*own.notes, *more),
        tuple(own.plan_rejects),
    )


def _apart(
    common: PlanOptions, made: Mapping[str, pa.Field], left_out: Mapping[str, pa.Field] | set[str]
) -> PlanOptions:
    """Returns the options without what they say of the columns left_out. made: columns that the files may lack."""
    return replace(
        common,
        dtypes={name: dtype for name, dtype in common.dtypes.items() if name not in left_out},
        label=None if common.label in left_out else common.label,
        may_lack=common.may_lack.union(made),
    )
