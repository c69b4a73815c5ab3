"""What the scan saw in each column, and what the user declares, to the schema of a CSV input and the notes about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from recordmill.base.errors import DataError, UsageError
from recordmill.schemas.feature import Feature, Schema
from recordmill.schemas.lattice import Seen
from recordmill.sources.csv.dialect import STRICT
from recordmill.sources.csv.head import Head
from recordmill.sources.csv.messages import declare
from recordmill.sources.csv.ranges import ScannedRange
from recordmill.sources.inputs.contract import PlanOptions
from recordmill.sources.values.labels import MAX_CLASSES, ClassNames, check_label, with_label
from recordmill.sources.values.overrides import apply_dtypes, select_given
from recordmill.storage.listing import InputFile

_SHOWN_COLUMNS = 20  # in a note about columns: a table of 3,000 columns is no help


@dataclass(frozen=True)
class ColumnPlan:
    """One column over all files: what was seen, and in how many rows of files that lack it it is missing."""

    name: str
    seen: Seen
    missing: int


def column_names(files: Sequence[InputFile], heads: Sequence[Head], columns: str) -> tuple[str, ...]:
    """The columns of all files, in the order in which they first appear.

    Raises:
        DataError: `columns` is `strict` and a file has others than the first one, or in another order.
    """
    first = heads[0].names
    if columns == STRICT:
        for file, head in zip(files, heads, strict=True):
            if head.names != first:
                raise DataError(
                    f"{_difference(head.names, first)} (as {files[0].name} has it); "
                    "--differing-columns union allows that",
                    source=file.name,
                )
        return first
    names: dict[str, None] = {}
    for head_names in dict.fromkeys(head.names for head in heads):
        names.update(dict.fromkeys(head_names))
    return tuple(names)


def _difference(names: tuple[str, ...], first: tuple[str, ...]) -> str:
    if lacking := [name for name in first if name not in names]:
        return f"column {lacking[0]!r} is missing"
    if more := [name for name in names if name not in first]:
        return f"column {more[0]!r} is one too many"
    place = next(index for index, (one, other) in enumerate(zip(names, first, strict=True)) if one != other)
    return f"column {place + 1} is {names[place]!r} instead of {first[place]!r}"


def same_delimiter(files: Sequence[InputFile], heads: Sequence[Head]) -> str:
    """The delimiter of all files.

    Raises:
        DataError: the content of two files tells different ones.
    """
    several = [(file, head) for file, head in zip(files, heads, strict=True) if len(head.names) > 1]
    for file, head in several:
        if head.delimiter != several[0][1].delimiter:
            what = (
                f"it seems to be delimited by {head.delimiter!r}, but {several[0][0].name} by "
                f"{several[0][1].delimiter!r}; say which with --delimiter"
            )
            raise DataError(what, source=file.name)
    return (several[0][1] if several else heads[0]).delimiter


class Totals:
    """What was seen over all parts: adds them up as they come, so that a part's own findings need not be kept.

    names: the columns of all files. labels: the label's distinct values, up to one more than a label may have.
    """

    def __init__(self, names: Sequence[str], heads: Sequence[Head]) -> None:
        self._heads, self._all = heads, frozenset(names)
        self._seen, self._missing = dict.fromkeys(names, Seen()), dict.fromkeys(names, 0)
        self.labels: set[str] = set()

    def add(self, part: ScannedRange) -> ScannedRange:
        """Take in a part; gives what has to be kept of it."""
        present = self._heads[part.file].names
        for name, seen in zip(present, part.seen, strict=True):
            self._seen[name] += seen
        if len(present) < len(self._all):
            for name in self._all.difference(present):
                self._missing[name] += part.rows
        if len(self.labels) <= MAX_CLASSES:
            self.labels.update(part.labels)
        return replace(part, seen=(), labels=frozenset())

    def columns(self) -> tuple[ColumnPlan, ...]:
        return tuple(ColumnPlan(name, seen, self._missing[name]) for name, seen in self._seen.items())


def make_schema(columns: Sequence[ColumnPlan], labels: Set[str], common: PlanOptions) -> tuple[Schema, tuple[str, ...]]:
    """(the schema, notes about what does not match a given one).

    Raises:
        UsageError: a declared dtype or the label names no column, or a dtype is none for CSV.
        DataError: the label has too many different values, or a column that the given schema requires is missing.
    """
    inferred = apply_dtypes(Schema(tuple(Feature(c.name, c.seen.dtype) for c in columns)), common.dtypes)
    inferred = Schema(tuple(_with_presence(feature, column) for feature, column in zip(inferred, columns, strict=True)))
    schema, notes = inferred, tuple[str, ...]()
    if common.schema is not None:
        given = apply_dtypes(
            common.schema, {name: dtype for name, dtype in common.dtypes.items() if name in common.schema}
        )
        schema, notes = select_given(given, inferred, "the CSV input")
    _check_features(schema)
    label = common.label if common.label is not None else schema.label
    if label is not None:
        feature = check_label(schema, label)
        schema = with_label(schema, label, _classes(label, labels) if feature.dtype == "string" else None)
    return schema, notes


def _with_presence(feature: Feature, column: ColumnPlan) -> Feature:
    return Feature(
        feature.name,
        feature.dtype,
        feature.shape,
        column.seen.null_count(feature.dtype) + column.missing == 0,
        feature.classes,
    )


def _check_features(schema: Schema) -> None:
    for feature in schema:
        if feature.shape:
            raise UsageError(
                f"column {feature.name!r} is to be {feature.describe()}, but a CSV field holds one value; "
                "leave the shape out"
            )


def _classes(label: str, labels: Set[str]) -> tuple[str, ...]:
    if not labels:
        raise DataError(f"label {label!r} has no values, only nulls; choose another column")
    return (ClassNames(label) + ClassNames(label, labels)).sorted()


def untyped_names(names: Sequence[str], common: PlanOptions) -> frozenset[str]:
    """The columns whose dtype need not be told from their values, since the user declares it."""
    return frozenset(names if common.schema is not None else common.dtypes)


def describe_column(
    columns: Sequence[ColumnPlan], schema: Schema, heads: Sequence[Head], delimiter_told: bool
) -> tuple[str, ...]:
    """What a user should know: the delimiter that was told, named blanks, nulls per token, digits lost,
    columns that files lack.
    """
    notes = []
    if delimiter_told:
        notes.append(f"delimiter {heads[0].delimiter!r}, told from the content")
    if blanks := sorted({name for head in heads for name in head.blanks}, key=lambda name: (len(name), name)):
        notes.append(f"columns without a name were named {', '.join(blanks[:_SHOWN_COLUMNS])}")
    told = [note for column in columns if column.name in schema for note in _column_notes(column, schema[column.name])]
    notes.extend(told[: 2 * _SHOWN_COLUMNS])
    if len(told) > 2 * _SHOWN_COLUMNS:
        notes.append(f"and {len(told) - 2 * _SHOWN_COLUMNS} more notes about columns")
    return tuple(notes)


def _column_notes(column: ColumnPlan, feature: Feature) -> list[str]:
    seen, notes = column.seen, []
    nulls: Mapping[str, int] = seen.nulls
    parts = [f"{count:,} {'empty' if token == '' else repr(token)}" for token, count in nulls.items()]
    if seen.soft_nulls and feature.dtype not in ("string", "bytes") and feature.classes is None:
        parts.append(f"{seen.soft_nulls:,} quoted")
    if column.missing:
        parts.append(f"{column.missing:,} in files without the column")
    if parts:
        notes.append(f"column {column.name!r}: nulls: {', '.join(parts)}")
    if feature.dtype == "float32" and seen.inexact_decimals:
        notes.append(
            f"column {column.name!r}: {seen.inexact_decimals:,} of {seen.values:,} values lose digits as "
            f"float32; --dtype {column.name}=float64 keeps them"
        )
    if feature.dtype == "float32" and seen.inexact_integers + seen.overflows:
        notes.append(
            f"column {column.name!r}: {seen.inexact_integers + seen.overflows:,} of {seen.values:,} values "
            "can't be held by float32 and are rejected; "
            f"{declare(column.name, 'float64')} keeps them"
        )
    return notes
