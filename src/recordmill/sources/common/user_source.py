"""A `Source` of the user's own: what it must have, said by name, and what its chunks must be, looked at as they come.

The sources of this package are trusted to keep the contract; one from elsewhere is held to it, since a wrong chunk
would become wrong records.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.schemas.arrow import classes_in_metadata, to_arrow
from recordmill.schemas.feature import Schema
from recordmill.sources.common.contract import Chunk, Payloads, Source, Unit
from recordmill.storage.file_table import FileTable, InputFile

_PARTS: Mapping[str, tuple[type | tuple[type, ...], str]] = {  # what a Source must have: its type, and how to say it
    "kind": (str, "a text: what manifests call this kind"),
    "schema": (Schema, "a recordmill.Schema: the features of every record"),
    "files": ((tuple, FileTable), "a tuple of recordmill.storage.listing.InputFile, or such a FileTable"),
    "units": (tuple, "a tuple of recordmill.sources.common.contract.Unit, in order of file and position"),
    "notes": (tuple, "a tuple of texts, or ()"),
    "plan_rejects": (tuple, "a tuple of recordmill.base.errors.Reject, or ()"),
}
_ITEMS: Mapping[str, type] = {"files": InputFile, "units": Unit, "notes": str, "plan_rejects": Reject}


def is_meant_as_source(value: object) -> bool:
    """Returns whether a value given to `build` is meant as a Source, if perhaps an incomplete one: it has the method
    `read` and two parts of a Source at least.
    """
    return callable(getattr(type(value), "read", None)) and sum(hasattr(value, name) for name in _PARTS) >= 2


def check_source(value: object) -> Source:
    """Returns the Source, whose chunks are looked at from then on.

    Raises:
        UsageError: it lacks a part, a part is of another type, a unit names files that are not there, or it can't be
            pickled.
    """
    name = type(value).__name__
    if lacking := [f"{part} ({what})" for part, (_, what) in _PARTS.items() if not hasattr(value, part)]:
        raise UsageError(f"{name} is no Source: it lacks {'; '.join(lacking)}")
    for part, (expected, what) in _PARTS.items():
        if not isinstance(getattr(value, part), expected):
            raise UsageError(f"{name}.{part} is a {type(getattr(value, part)).__name__}; it must be {what}")
    for part, item_type in _ITEMS.items():
        if wrong := [item for item in getattr(value, part) if not isinstance(item, item_type)]:
            raise UsageError(f"{name}.{part} holds a {type(wrong[0]).__name__}; it must be {_PARTS[part][1]}")
    source: Any = value
    for number, unit in enumerate(source.units):
        if not 0 <= unit.first_file < unit.last_file <= len(source.files):
            raise UsageError(
                f"{name}.units[{number}] is of the files {unit.first_file} to {unit.last_file - 1}; "
                f"there are {len(source.files)}, numbered from 0"
            )
    try:
        pickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UsageError(f"{name} can't be pickled, which workers need: {error}") from None
    return CheckedSource(source)


@dataclass(frozen=True)
class CheckedSource:
    """A user's Source, of which a chunk that breaks the contract is a DataError."""

    own: Source

    @functools.cached_property
    def files(self) -> FileTable:
        return FileTable.of(self.own.files)

    @property
    def kind(self) -> str:
        return self.own.kind

    @property
    def schema(self) -> Schema:
        return self.own.schema

    @property
    def units(self) -> Sequence[Unit]:
        return self.own.units

    @property
    def notes(self) -> tuple[str, ...]:
        return self.own.notes

    @property
    def plan_rejects(self) -> Sequence[Reject]:
        return self.own.plan_rejects

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields the unit's chunks.

        Raises:
            DataError: a chunk is of another schema or has other numbers of rows than it says, or the unit gives another
                number of records than it promised.
        """
        expected = to_arrow(self.schema)
        rows = 0
        for chunk in self.own.read(unit):
            if (fault := _fault(chunk, expected, unit)) is not None:
                raise DataError(fault, source=f"{type(self.own).__name__}.read({unit})")
            rows += chunk.rows + len(chunk.rejects)
            yield chunk
        if unit.rows is not None and rows != unit.rows:
            raise DataError(
                f"gave {rows} records and rejects where the unit says {unit.rows}",
                source=f"{type(self.own).__name__}.read({unit})",
            )


def _class_fault(field: pa.Field, column: pa.Array, classes: tuple[str, ...] | None) -> str | None:
    """Returns what is wrong with a column of classes: its own field names others, or a number is none of them."""
    own = classes_in_metadata(field)
    if classes is None or (own is not None and own != classes):
        return None if own is None else f"gave {field.name!r} of the classes {own!r:.200}, not {classes!r:.200}"
    while pa.types.is_nested(column.type):
        column = column.flatten()
    least, most = pc.min_max(column).as_py().values()
    wrong = most if most is not None and most >= len(classes) else least
    if wrong is None or 0 <= wrong < len(classes):
        return None
    return f"gave {wrong} in {field.name!r}, which has the classes {classes!r:.200}"


def _fault(chunk: object, expected: pa.Schema, unit: Unit) -> str | None:
    """Returns what is wrong with a chunk, or None."""
    if not isinstance(chunk, Chunk):
        return f"gave a {type(chunk).__name__}, not a Chunk"
    if isinstance(chunk.records, Payloads):
        rows = len(chunk.records.offsets) - 1
    elif chunk.records.schema.equals(expected):
        rows = chunk.records.num_rows
        for field, column in zip(chunk.records.schema, chunk.records.columns, strict=True):
            if (fault := _class_fault(field, column, classes_in_metadata(expected.field(field.name)))) is not None:
                return fault
    else:
        return f"gave columns {chunk.records.schema.to_string()}, not schemas.arrow.to_arrow(schema): {expected}"
    for name, array, dtype in (("file", chunk.file, np.uint32), ("position", chunk.position, np.int64)):
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != (rows,):
            return f"gave {rows} records whose {name} is no array of {rows} {np.dtype(dtype)}"
    if rows and not (unit.first_file <= int(chunk.file.min()) and int(chunk.file.max()) < unit.last_file):
        return "gave records of files that the unit does not name"
    return None
