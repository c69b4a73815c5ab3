"""Columns that folders called `NAME=VALUE` make, as Hive, Spark and Arrow write tables: `dt=2024-01-01/country=JP/`.

They are kept as columns of the files, and a `JoinedSource` adds them, or other columns with a value a file, to what a
kind reads; a column of the files' own stands before what a folder says.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from recordmill.base.errors import Reject
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema, check_feature_count
from recordmill.sources.common.contract import Chunk, PlanOptions, RecordLocator, Source, Unit
from recordmill.sources.common.layout import partitions
from recordmill.sources.values.conform import conform
from recordmill.sources.values.flatten import nest_tensors
from recordmill.sources.values.overrides import Unifier, declared_columns, finish_parts
from recordmill.storage.file_table import FileTable

_PREFIX = "partition/"  # before the names of the columns of files that say what their folders say
_WHOLE_NUMBER = re.compile(r"0|-?[1-9]\d{0,17}")


def with_partitions(files: FileTable) -> FileTable:
    """Returns the files, with what their folders say."""
    for name, column in partitions(files).items():
        files = files.with_column(_PREFIX + name, column)
    return files


def partition_fields(files: FileTable) -> dict[str, pa.Field]:
    """Returns the columns that folders make: of whole numbers if all values are, as they are written, else of text."""
    fields = {}
    for column in (name for name in files.columns if name.startswith(_PREFIX)):
        values = files.words(column).to_pylist()
        are_whole = all(value is None or _WHOLE_NUMBER.fullmatch(value) for value in values)
        name = column.removeprefix(_PREFIX)
        fields[name] = pa.field(name, pa.int64() if are_whole else pa.string(), nullable=None in values)
    return fields


def partition_values(files: FileTable, ordinals: Sequence[int], fields: Mapping[str, pa.Field]) -> pa.RecordBatch:
    """Returns what the folders of these files say, a row each."""
    columns = files.take(ordinals, [_PREFIX + name for name in fields]).values()
    words = (pa.array(column.to_pylist(), pa.string()) for column in columns)
    arrays = [column.cast(field.type) for column, field in zip(words, fields.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields.values()))


class FileColumns(Protocol):
    """Columns that a file has one value of, beside its records."""

    def values(self, files: FileTable, ordinals: Sequence[int]) -> tuple[pa.RecordBatch, dict[int, tuple[str, str]]]:
        """Returns (a row for each of these files, the reasons why rows are bad)."""


@dataclass(frozen=True)
class _FolderColumns:
    fields: Mapping[str, pa.Field]

    def values(self, files: FileTable, ordinals: Sequence[int]) -> tuple[pa.RecordBatch, dict[int, tuple[str, str]]]:
        return partition_values(files, ordinals, self.fields), {}


@dataclass(frozen=True)
class JoinedSource:
    """A Source with columns of its files.

    Attributes:
        own: The source that reads the files, without its tables.
        made: The features of these columns.
        named: The label, if it is one of them and its classes are texts of its values.
    """

    schema: Schema
    files: FileTable
    units: Sequence[Unit]
    own: Source
    columns: FileColumns
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
        """Yields what the kind reads, each record with the values of its file."""
        return map(self._joined, self._reader.read(unit))

    def locate(self, file: int, positions: Sequence[int]) -> list[str]:
        """Returns where people find these records: see RecordLocator."""
        if isinstance(self._reader, RecordLocator):
            return self._reader.locate(file, positions)
        return [f"record {position}" for position in positions]

    def _joined(self, chunk: Chunk) -> Chunk:
        assert isinstance(chunk.records, pa.RecordBatch)
        ordinals, of_row = np.unique(chunk.file, return_inverse=True)
        values, bad = self.columns.values(self.files, ordinals.tolist())
        keep = np.setdiff1d(np.arange(len(ordinals)), list(bad))
        fitted = conform(nest_tensors(values.take(pa.array(keep)), self.made), self.made, self.named)
        bad |= {int(keep[at]): (reason, message) for at, reason, message in fitted.bad}
        good, rows, rejects = keep[fitted.good], np.arange(chunk.rows), list(chunk.rejects)
        for at, (reason, message) in sorted(bad.items()):
            lost = rows[of_row == at]
            places = self.locate(int(ordinals[at]), chunk.position[lost].tolist()) if len(lost) else []
            rejects += (Reject(self.files[int(ordinals[at])].name, place, reason, message) for place in places)
        if bad:
            rows = rows[np.isin(of_row, good)]
        made = fitted.batch.take(pa.array(np.searchsorted(good, of_row[rows])))
        records = chunk.records if len(rows) == chunk.rows else chunk.records.take(pa.array(rows))
        columns = {**_by_name(self.own.schema, records), **_by_name(self.made, made)}
        batch = pa.RecordBatch.from_arrays([columns[f.name] for f in self.schema], schema=to_arrow(self.schema))
        file, position = chunk.file[rows], chunk.position[rows]
        return replace(chunk, records=batch, file=file, position=position, rejects=tuple(rejects))


def _by_name(schema: Schema, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(schema.names, batch.columns, strict=True))


def plan_with_partitions(
    files: FileTable,
    common: PlanOptions,
    plan: Callable[[FileTable, PlanOptions], Source],
    columns: Sequence[str] | None = None,
) -> Source:
    """Plans the files by `plan`, with the columns that their folders make; of these `columns`, unless that is None.

    Raises:
        UsageError, DataError: as plan does, and as it would of such columns of the files.
    """
    files = with_partitions(files)
    fields = {name: one for name, one in partition_fields(files).items() if columns is None or name in columns}
    if not fields:
        return plan(files, common)
    own = plan(files, _apart(common, fields, fields))
    theirs = {name for name in fields if name in own.schema}
    twice = tuple(
        f"{name}: the files have such a column, which is read; what folders say of it is not" for name in theirs
    )
    if theirs & {*common.dtypes, common.label}:
        own = plan(files, _apart(common, fields, fields.keys() - theirs))
    schema, given = common.schema, [name for name in fields if name not in theirs]
    common = replace(
        common,
        schema=None if schema is None else schema.select(name for name in schema.names if name in given),
        dtypes={name: dtype for name, dtype in common.dtypes.items() if name in given},
        label=common.label if common.label in given else None,
        may_lack=frozenset(),
    )
    own_notes = tuple(note for note in own.notes if not any(note.startswith(f"{name}: not in ") for name in given))
    own = replace(own, notes=own_notes)  # type: ignore[type-var]
    folders = _FolderColumns({name: fields[name] for name in given})
    values, what = folders.values(files, range(len(files)))[0], "the names of folders"
    joined = join_columns(own, folders, lambda: iter([(what, values)]), common, schema, what)
    return replace(joined, notes=(*joined.notes, *sorted(twice)))  # type: ignore[type-var]


def join_columns(
    own: Source,
    columns: FileColumns,
    parts: Callable[[], Iterator[tuple[str, pa.RecordBatch]]],
    common: PlanOptions,
    given: Schema | None,
    what: str,
    kind: str = "",
) -> Source:
    """Returns the source with these columns; the source itself if they have no feature.

    Args:
        own: The source of the files.
        columns: Those to add.
        parts: Gives their values, with where they stand, for the types.
        common: Of the options what they say of these columns.
        given: The schema of all features, if there is one.
        what: The columns, for messages.
        kind: Of the source; that of its own.

    Raises:
        UsageError, DataError: As `finish_parts`.
    """
    unifier = Unifier(declared_columns(common))
    for where, batch in parts():
        check_feature_count(batch.num_columns, common.memory_bytes, where)
        unifier.add(batch.schema, where, {name: batch.column(name).null_count for name in batch.schema.names})
    made, more, named = finish_parts(unifier, (batch for _, batch in parts()), common, what)
    if not len(made):
        same: Source = replace(own, notes=(*own.notes, *more))  # type: ignore[type-var]
        return same
    features = {feature.name: feature for feature in (*own.schema, *made)}
    names = features if given is None else [name for name in given.names if name in features]
    merged = replace(own.schema, features=tuple(features[name] for name in names), label=made.label or own.schema.label)
    no_files = own.files.filter(np.zeros(len(own.files), np.bool_))
    bare: Source = replace(own, files=no_files, units=(), plan_rejects=())  # type: ignore[type-var]
    return JoinedSource(
        *(merged, own.files, own.units, bare, columns, made, kind or own.kind, named),
        *((*own.notes, *more), tuple(own.plan_rejects)),
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
