"""Casts a batch of any Arrow types to a Schema's Arrow types, and leaves out and explains the rows that don't fit.

Used by JSONL, Parquet and in-memory inputs, whose columns have types of their own. A row that lacks a required feature,
whose list has the wrong length, or whose value the declared dtype can't hold as it is, is a bad row with a message that
names feature, value and remedy. Columns that the schema does not name are dropped; the caller says so.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.buffers import Bools
from recordmill.base.errors import DataError, Reject
from recordmill.base.option_names import option
from recordmill.schemas.arrow import arrow_type, classes_in_metadata, to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.sources.common.contract import Chunk
from recordmill.sources.values.casting import EXAMPLE_LIMIT, INT64_MAX, Cast, is_text_type, plain
from recordmill.sources.values.flatten import flatten, nest_tensors
from recordmill.sources.values.labels import fit_values, show_classes

ConformedRows = npt.NDArray[np.int64]
BadRow = tuple[int, str, str]  # (row in the batch, reason, message)

VALUE_CHARS = 60  # of a value quoted in a message


class Conformed(NamedTuple):
    """batch: of to_arrow(schema); good: the rows of the input that it holds, ascending; bad: the others;
    lost: floats rounded, per feature.
    """

    batch: pa.RecordBatch
    good: ConformedRows
    bad: list[BadRow]
    lost: dict[str, int]


class _Meaning(NamedTuple):
    """Meaning of numbers in a column: of these classes, or texts; see labels.fit_values."""

    given: Sequence[str] | None
    as_text: bool

    def fit(self, values: pa.Array, feature: Feature) -> Cast:
        return fit_values(values, feature, self.given, as_text=self.as_text)


class _Column(NamedTuple):
    array: pa.Array | None  # None if bad rows must go before it can be built
    bad: Bools | None
    reason: str = ""
    lost: int = 0


def conform(batch: pa.RecordBatch, schema: Schema, named: str | None = None) -> Conformed:
    """Returns the batch's rows as the schema has them; numbers of classes that the batch's own fields name go by name.
    named: a feature whose classes are texts of its values: so do its other numbers, by the text that they are.

    Raises:
        DataError: a whole column has another form than its feature (a list for a scalar); it names both.
    """
    good = np.arange(batch.num_rows, dtype=np.int64)
    bad: list[BadRow] = []
    # a column's values are only looked at once its lists have the right lengths, so a row may be found later
    while True:
        columns, found, lost = _fit_all(batch, schema, named)
        if not found:
            return Conformed(
                _batch(columns, to_arrow(schema), batch.num_rows), good, sorted(bad), lost
            )
        keep = np.ones(batch.num_rows, np.bool_)
        keep[list(found)] = False
        bad.extend((int(good[row]), reason, message) for row, (reason, message) in found.items())
        batch, good = batch.filter(pa.array(keep)), good[keep]


def conform_chunk(
    batch: pa.RecordBatch, schema: Schema, named: str | None, file: int, name: str, row: int
) -> Chunk:
    """Returns consecutive rows of a file, of which that is the first one's number, as `conform` has them."""
    fitted = conform(nest_tensors(flatten(batch), schema), schema, named)
    rejects = tuple(
        Reject(name, f"row {row + at}", reason, message) for at, reason, message in fitted.bad
    )
    return Chunk(
        fitted.batch, np.full(len(fitted.good), file, np.uint32), fitted.good + row, rejects
    )


def with_classes(column: pa.Array, feature: Feature) -> pa.Array:
    """Returns a column with its classes, if it was read as their texts before these were known."""
    inner = column.type
    while pa.types.is_nested(inner):
        inner = inner.value_type
    if feature.classes is None or not is_text_type(inner):
        return column
    found = conform(pa.RecordBatch.from_arrays([column], [feature.name]), Schema((feature,)))
    assert not found.bad, "the classes are all that there are"
    return found.batch.column(0)


def _fit_all(
    batch: pa.RecordBatch, schema: Schema, named: str | None
) -> tuple[list[pa.Array], dict[int, tuple[str, str]], dict[str, int]]:
    """Returns (the columns, useful if no row is bad; by bad row the first reason; floats rounded)."""
    columns: list[pa.Array] = []
    bad: dict[int, tuple[str, str]] = {}
    lost: dict[str, int] = {}
    position = {name: i for i, name in enumerate(batch.schema.names)}
    for feature in schema:
        at = position.get(feature.name)
        given = pa.nulls(batch.num_rows) if at is None else batch.column(at)
        classes = None if at is None else classes_in_metadata(batch.schema.field(at))
        column = _fit(given, feature, _Meaning(classes, feature.name == named))
        if column.bad is not None:
            for row in np.flatnonzero(column.bad).tolist():
                if row not in bad:
                    bad[row] = explain_value(given, row, feature, column.reason, classes)
        if column.lost:
            lost[feature.name] = column.lost
        columns.append(column.array)
    return columns, bad, lost


def _batch(columns: list[pa.Array], target: pa.Schema, rows: int) -> pa.RecordBatch:
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=target)
    return pa.RecordBatch.from_struct_array(
        pa.StructArray.from_arrays([], fields=[], mask=pa.array(np.zeros(rows, np.bool_)))
    ).replace_schema_metadata(target.metadata)


def _fit(given: pa.Array, feature: Feature, meaning: _Meaning) -> _Column:
    given = plain(given)
    if feature.required and given.null_count:
        return _Column(None, _nulls(given), "null")
    if pa.types.is_null(given.type):
        return _Column(pa.nulls(len(given), arrow_type(feature)), None)
    if feature.shape:
        return _fit_list(given, feature, meaning)
    if pa.types.is_nested(given.type):
        raise DataError(
            f"column {feature.name!r} is a {given.type}, but the schema has {feature.describe()}"
        )
    values, bad, lost = meaning.fit(given, feature)
    return _Column(values, bad, _reason(given.type, feature, bad), lost)


def _reason(kind: pa.DataType, feature: Feature, bad: Bools | None) -> str:
    if bad is None:
        return ""
    if feature.classes is not None:
        return "class"
    return "range" if pa.types.is_integer(kind) or pa.types.is_floating(kind) else "type"


def _fit_list(given: pa.Array, feature: Feature, meaning: _Meaning) -> _Column:
    """Takes the lists apart level by level, cast the values, and put the feature's own lists around them."""
    wraps: list[Callable[[pa.Array], pa.Array]] = []
    parents: list[ConformedRows] = []  # per level: of each value, its place one level up
    inner = given
    for level in range(feature.ragged_rank):
        if level and inner.null_count:
            return _Column(None, _marked(_nulls(inner), parents, len(given)), "null-inside")
        inner = _as_lists(inner)
        lengths = _lengths(inner, feature)
        wraps.append(_ragged_wrap(lengths, inner))
        parents.append(np.repeat(np.arange(len(inner)), lengths))
        inner = plain(inner.flatten())
    if feature.inner_shape:
        tensors = _as_lists(inner)
        inner, bad, reason = _take_apart_fixed(tensors, feature, first=not feature.ragged_rank)
        if bad is not None:
            return _Column(None, _marked(bad, parents, len(given)), reason)
        wraps.append(lambda values: _fixed_wrap(values, feature, tensors))
        parents.append(np.repeat(np.flatnonzero(~_nulls(tensors)), feature.inner_size))
    if pa.types.is_nested(inner.type):
        raise DataError(
            f"column {feature.name!r} is a {given.type}, but the schema has {feature.describe()}"
        )
    if inner.null_count:
        return _Column(None, _marked(_nulls(inner), parents, len(given)), "null-inside")
    values, bad, lost = meaning.fit(inner, feature)
    if bad is not None:
        return _Column(None, _marked(bad, parents, len(given)), _reason(inner.type, feature, bad))
    for wrap in reversed(wraps):
        values = wrap(values)
    return _Column(values, None, "", lost)


def _nulls(values: pa.Array) -> Bools:
    mask: Bools = values.is_null().to_numpy(zero_copy_only=False)
    return mask


def _as_lists(values: pa.Array) -> pa.Array:
    """Nulls that don't know that they would be lists, as what is left of lists that are all empty, as lists."""
    return (
        pa.nulls(len(values), pa.large_list(pa.null())) if pa.types.is_null(values.type) else values
    )


def _lengths(lists: pa.Array, feature: Feature) -> ConformedRows:
    if not _is_list(lists.type):
        raise DataError(
            f"column {feature.name!r} holds {lists.type} where the schema has a list, {feature.describe()}"
        )
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    result: ConformedRows = pc.cast(lengths, pa.int64()).to_numpy(zero_copy_only=False)
    return result


def _marked(bad: Bools, parents: list[ConformedRows], rows: int) -> Bools:
    """Returns the rows in which the marked values stand."""
    at = np.flatnonzero(bad)
    for level in reversed(parents):
        at = level[at]
    mask = np.zeros(rows, np.bool_)
    mask[at] = True
    return mask


def _ragged_wrap(lengths: ConformedRows, like: pa.Array) -> Callable[[pa.Array], pa.Array]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    mask = like.is_null() if like.null_count else None
    return lambda values: pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=mask)


def _take_apart_fixed(
    tensors: pa.Array, feature: Feature, first: bool
) -> tuple[pa.Array, Bools | None, str]:
    """Returns (the values of the tensors that are there, or a mask of the tensors that have another shape)."""
    if not first and tensors.null_count:
        return tensors, _nulls(tensors), "null-inside"
    inner, parents = tensors, [np.arange(len(tensors))]
    for depth, size in enumerate(feature.inner_shape):
        flat = int(np.prod(feature.inner_shape[depth:], dtype=np.int64))
        if not _is_list(inner.type) and depth:
            break  # one flat list holds the dimensions that are left
        lengths = _lengths(inner, feature)
        wanted = (
            size
            if _is_list(inner.type.value_type) and depth + 1 < len(feature.inner_shape)
            else flat
        )
        bad = (
            (lengths != wanted) & ~_nulls(inner)
            if depth == 0
            else (lengths != wanted) | _nulls(inner)
        )
        if bad.any():
            return tensors, _marked(bad, parents, len(tensors)), "shape"
        parents.append(np.repeat(np.arange(len(inner)), lengths))
        inner = plain(inner.flatten())
        if wanted == flat and not _is_list(inner.type):
            break
    return inner, None, ""


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _fixed_wrap(values: pa.Array, feature: Feature, like: pa.Array) -> pa.Array:
    if not like.null_count:
        return _fixed(values, feature, len(like), None)
    missing = like.is_null()
    there = np.cumsum(~missing.to_numpy(zero_copy_only=False)) - 1
    if len(values) == 0:
        spread = pa.nulls(len(like) * feature.inner_size, values.type)
    else:
        places = np.maximum(there, 0)[:, None] * feature.inner_size + np.arange(feature.inner_size)
        spread = values.take(pa.array(places.reshape(-1)))
    return _fixed(spread, feature, len(like), missing)


def _fixed(values: pa.Array, feature: Feature, length: int, missing: pa.Array | None) -> pa.Array:
    if feature.inner_size:
        return pa.FixedSizeListArray.from_arrays(values, feature.inner_size, mask=missing)
    # from_arrays can't tell the length of lists of nothing
    validity = None if missing is None else pc.invert(missing).buffers()[1]
    return pa.Array.from_buffers(pa.list_(values.type, 0), length, [validity], children=[values])


def explain_value(
    given: pa.Array, row: int, feature: Feature, reason: str, classes: Sequence[str] | None = None
) -> tuple[str, str]:
    """Returns (reason, message) for the value at that row; classes: whose number it is."""
    name, declared = feature.name, feature.describe()
    if reason == "null":
        return "null", f"{name}: missing, but the schema requires it"
    if reason == "null-inside":
        return (
            "null",
            f"{name}: a null inside a list, which an Example can't hold: {quoted_value(given[row].as_py())}",
        )
    try:
        value = given[row].as_py()
    except UnicodeDecodeError as error:
        return (
            "encoding",
            f"{name}: is not UTF-8: {quoted_value(error.object)}; {option('dtypes', {name: 'bytes'})} keeps it",
        )
    except OverflowError:
        return reason, f"{name}: a time outside of the years 1 to 9999 does not fit {declared}"
    value = value if classes is None else _named(value, classes)
    if reason == "shape":
        return "shape", f"{name}: {quoted_value(value)} has not the shape of {declared}"
    return reason, f"{name}: {quoted_value(value)} does not fit {declared}{remedy(value, feature)}"


def _named(value: object, classes: Sequence[str]) -> object:
    """Returns the value with the names of the classes in place of their numbers."""
    if isinstance(value, list):
        return [_named(item, classes) for item in value]
    return classes[value] if isinstance(value, int) and 0 <= value < len(classes) else value


def quoted_value(value: object) -> str:
    """Returns the value for a message, cut to VALUE_CHARS."""
    if isinstance(value, str | bytes | list):
        value = value[: VALUE_CHARS + 1]  # a long value is cut before it is spelled out
    try:
        text = repr(value)
    except ValueError:  # CPython writes no whole number of more than 4,300 digits
        return "too long to be shown"
    return text if len(text) <= VALUE_CHARS else text[: VALUE_CHARS - 3] + "..."


def remedy(value: object, feature: Feature) -> str:
    """Returns what such values lack, where that is not plain, and what to type to keep them."""
    if feature.classes is not None:
        return f": none of the {len(feature.classes):,} classes {show_classes(feature.classes)}"
    if isinstance(value, list) and value:
        items = [item for item in value if item is not None]
        whole = all(type(item) is int for item in items)
        return remedy(max(items, default=None) if whole else items[0], feature)
    if feature.timestamp and isinstance(value, datetime.date):
        unit, zone = feature.timestamp
        has, other = ("no", f"timestamp[{unit}]") if zone else ("a", f"timestamp[{unit}, UTC]")
        if (getattr(value, "tzinfo", None) is None) == (zone is not None):
            return (
                f", for it has {has} time zone; {option('dtypes', {feature.name: other})} keeps it"
            )
    wider = _wider(value, feature)
    why = (
        EXAMPLE_LIMIT
        if feature.dtype == "uint64" and isinstance(value, int) and value > INT64_MAX
        else ""
    )
    return (
        f"{why}; {option('dtypes', {feature.name: wider})} keeps it"
        if wider and wider != feature.dtype
        else ""
    )


def _wider(value: object, feature: Feature) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, float):
        return "float64"
    if isinstance(value, int):
        if feature.dtype in ("float16", "bfloat16", "float32") and abs(value) <= 1 << 53:
            return "float64"
        return "int64" if -(1 << 63) <= value < 1 << 63 else "string"
    return "string" if isinstance(value, str) else ""
