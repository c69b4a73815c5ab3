"""Columns that folders called `NAME=VALUE` make, as Hive, Spark and Arrow write tables: `dt=2024-01-01/country=JP/`.

They are kept as columns of the files, and a `PartitionedSource` adds them to what a kind reads; a column of the files'
own stands before what a folder says.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from recordmill.base.errors import Reject
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.sources.common.contract import Chunk, PlanOptions, RecordLocator, Source, Unit
from recordmill.sources.common.layout import partitions
from recordmill.sources.values.conform import conform
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


@dataclass(frozen=True)
class PartitionedSource:
    """A Source with the columns that folders make. own: the source that reads the files, without its tables. made: the
    features that folders make. named: the label, if it is one of them and its classes are texts of its values.
    """

    schema: Schema
    files: FileTable
    units: Sequence[Unit]
    own: Source
    made: Schema
    named: str | None = None
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()

    @property
    def kind(self) -> str:
        return self.own.kind

    @functools.cached_property
    def _reader(self) -> Source:
        reader: Source = replace(self.own, files=self.files, units=self.units)  # type: ignore[type-var]
        return reader

    @functools.cached_property
    def _fields(self) -> dict[str, pa.Field]:
        return {name: field for name, field in partition_fields(self.files).items() if name in self.made}

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields what the kind reads, each record with what the folders of its file say."""
        return map(self._with_partitions, self._reader.read(unit))

    def locate(self, file: int, positions: Sequence[int]) -> list[str]:
        """Returns where people find these records: see RecordLocator."""
        if isinstance(self._reader, RecordLocator):
            return self._reader.locate(file, positions)
        return [f"record {position}" for position in positions]

    def _with_partitions(self, chunk: Chunk) -> Chunk:
        assert isinstance(chunk.records, pa.RecordBatch)
        ordinals, of_row = np.unique(chunk.file, return_inverse=True)
        found = conform(partition_values(self.files, ordinals.tolist(), self._fields), self.made, self.named)
        rows, rejects = np.arange(chunk.rows), list(chunk.rejects)
        for at, reason, message in found.bad:
            lost = rows[of_row == at]
            places = self.locate(int(ordinals[at]), chunk.position[lost].tolist()) if len(lost) else []
            rejects += (Reject(self.files[int(ordinals[at])].name, place, reason, message) for place in places)
        if found.bad:
            rows = rows[np.isin(of_row, found.good)]
        made = found.batch.take(pa.array(np.searchsorted(found.good, of_row[rows])))
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
    notes = tuple(note for note in own.notes if not any(note.startswith(f"{name}: not in ") for name in given))
    unifier = Unifier(declared_columns(common))
    values = partition_values(files, range(len(files)), {name: fields[name] for name in given})
    unifier.add(values.schema, "the names of folders", {column: values.column(column).null_count for column in given})
    made, more, named = finish_parts(unifier, [values], common, "the names of folders")
    notes = (*notes, *more, *sorted(twice))
    if not len(made):
        same: Source = replace(own, notes=notes)  # type: ignore[type-var]
        return same
    features = {feature.name: feature for feature in (*own.schema, *made)}
    names = features if schema is None else [name for name in schema.names if name in features]
    merged = replace(own.schema, features=tuple(features[name] for name in names), label=made.label or own.schema.label)
    no_files = files.filter(np.zeros(len(files), np.bool_))
    bare: Source = replace(own, files=no_files, units=(), plan_rejects=())  # type: ignore[type-var]
    return PartitionedSource(merged, own.files, own.units, bare, made, named, notes, tuple(own.plan_rejects))


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
