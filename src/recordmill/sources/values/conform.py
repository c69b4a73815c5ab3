"""Conversion of record batches to a schema, with rejects for rows that don't fit.

A row does not fit if a required feature is missing, if a list has the wrong length, or if the dtype
of a feature can't hold a value without loss. Its message names the feature, the value and a remedy.
Columns that the schema does not name are dropped without a note.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base.buffers import Bools, Int64s, to_offsets
from recordmill.base.errors import DataError, Fault
from recordmill.base.messages import Message
from recordmill.base.option_names import option
from recordmill.schemas.arrow import arrow_type, class_names_in_metadata, to_arrow
from recordmill.schemas.feature import Feature, Schema, format_classes
from recordmill.sources.common.contract import Chunk
from recordmill.sources.values.casting import (
    EXAMPLE_LIMIT,
    INT64_MAX,
    CastResult,
    is_text_type,
    to_plain_array,
)
from recordmill.sources.values.flatten import flatten, nest_tensors
from recordmill.sources.values.labels import fit_values

MAX_VALUE_CHARS = 60  # longest quotation of a value in a message


class ConformedBatch(NamedTuple):
    """Result of `conform`.

    Attributes:
        batch: The rows that fit, with the schema `to_arrow(schema)`.
        good_rows: The row number in the input of each of these rows, ascending.
        faults: The fault of each other row, by row number in the input, ascending.
        rounded_counts: Number of rounded floats by feature name. Features without rounded floats
            are left out.
    """

    batch: pa.RecordBatch
    good_rows: Int64s
    faults: dict[int, Fault]
    rounded_counts: dict[str, int]


class _ValueFitter(NamedTuple):
    """How the values of one column are cast to its feature.

    Attributes:
        source_classes: Class names that the numbers in the column refer to, or None.
        as_text: Whether numbers, if there are no `source_classes`, are looked up as class names by
            their text.
    """

    source_classes: Sequence[str] | None
    as_text: bool

    def fit(self, values: pa.Array, feature: Feature) -> CastResult:
        return fit_values(values, feature, self.source_classes, as_text=self.as_text)


class _FittedColumn(NamedTuple):
    array: pa.Array | None  # None if bad rows must be removed before it can be built
    bad_mask: Bools | None
    reason: str = ""
    rounded_count: int = 0


def conform(batch: pa.RecordBatch, schema: Schema, text_label: str | None = None) -> ConformedBatch:
    """Casts a batch to a schema, and removes rows that don't fit.

    A feature without a column is null. If the metadata of a column contains class names, its
    numbers are matched to the classes of the schema by name.

    Args:
        batch: The rows, without structs. See `flatten`.
        schema: The features of the result.
        text_label: Name of the label if its class names are the distinct texts in its column, else
            None. Numbers in this column are looked up by their text, too.

    Raises:
        DataError: A column has another structure than its feature, such as a list for a scalar.
    """
    good = np.arange(batch.num_rows, dtype=np.int64)
    faults: dict[int, Fault] = {}
    # The values of a column are only cast after its lists have the right lengths. So each round may
    # find more bad rows.
    while True:
        columns, failures, rounded_counts = _fit_all(batch, schema, text_label)
        if not failures:
            return ConformedBatch(
                batch=build_batch(columns, to_arrow(schema), batch.num_rows),
                good_rows=good,
                faults=dict(sorted(faults.items())),
                rounded_counts=rounded_counts,
            )
        keep = np.ones(batch.num_rows, np.bool_)
        keep[list(failures)] = False
        faults.update((int(good[row]), fault) for row, fault in failures.items())
        batch, good = batch.filter(pa.array(keep)), good[keep]


def conform_chunk(
    batch: pa.RecordBatch,
    schema: Schema,
    text_label: str | None,
    file_id: int,
    file_name: str,
    first_row: int,
    media_remedies: Mapping[str, str] | None = None,
) -> Chunk:
    """Converts consecutive rows of a file to a chunk.

    Structs are flattened. Rows that don't fit become rejects with the place `row N`.

    Args:
        batch: The rows as they were read.
        schema: The features of the chunk.
        text_label: Name of the label if its class names are the distinct texts in its column, else
            None.
        file_id: Index of the file in `Source.files`.
        file_name: Name of the file, for rejects.
        first_row: Row number in the file of the first row of `batch`.
        media_remedies: What to do about an image or sound of Hugging Face that has a path but no
            bytes, by column name. Such rows are rejects.
    """
    rows = FileRows(file_id, file_name, first_row, batch.num_rows)
    return conform_files(batch, schema, text_label, (rows,), media_remedies)


class FileRows(NamedTuple):
    """Consecutive rows of a file.

    Attributes:
        file_id: Index of the file in `Source.files`.
        name: Name of the file, for rejects.
        first_row: Row number in the file of the first row.
        rows: Number of rows.
    """

    file_id: int
    name: str
    first_row: int
    rows: int


def conform_files(
    batch: pa.RecordBatch,
    schema: Schema,
    text_label: str | None,
    files: Sequence[FileRows],
    media_remedies: Mapping[str, str] | None = None,
) -> Chunk:
    """Converts rows of several files to a chunk. See `conform_chunk`.

    Args:
        batch: The rows of all files, one file after the other.
        schema: The features of the chunk.
        text_label: See `conform_chunk`.
        files: The files of the rows.
        media_remedies: See `conform_chunk`.
    """
    flat = flatten(batch)
    faults = _find_unread_media(flat, media_remedies or {})
    rows = np.arange(flat.num_rows)
    if faults:
        rows = np.delete(rows, list(faults))
        flat = flat.take(pa.array(rows))
    fitted = conform(nest_tensors(flat, schema), schema, text_label)
    faults.update((int(rows[row]), fault) for row, fault in fitted.faults.items())
    # for each row: the index in `files`, and the position in its file
    owners = np.repeat(np.arange(len(files)), [part.rows for part in files])
    positions = np.concatenate(
        [np.arange(part.first_row, part.first_row + part.rows, dtype=np.int64) for part in files]
    )
    good_rows = rows[fitted.good_rows]
    return Chunk(
        records=fitted.batch,
        file_ids=np.array([part.file_id for part in files], np.uint32)[owners[good_rows]],
        positions=positions[good_rows],
        rejects=tuple(
            faults[row].at(files[owners[row]].name, f"row {positions[row]}")
            for row in sorted(faults)
        ),
    )


def _find_unread_media(flat: pa.RecordBatch, media_remedies: Mapping[str, str]) -> dict[int, Fault]:
    """Finds images and sounds that have a path but no bytes.

    Returns:
        The fault of each row that contains one, by row.
    """
    faults: dict[int, Fault] = {}
    for name, remedy in media_remedies.items():
        if not {name, f"{name}.path"} <= {*flat.schema.names}:
            continue
        paths = flat.column(f"{name}.path")
        has_path = pc.fill_null(pc.not_equal(paths, ""), False)
        is_unread = pc.and_(pc.is_null(flat.column(name)), has_path)
        for row in np.flatnonzero(is_unread.to_numpy(zero_copy_only=False)).tolist():
            path = quote_value(paths[row].as_py())
            message = Message(
                "{name}: has no bytes, only the path {path}; {remedy}",
                name=name,
                path=path,
                remedy=remedy,
            )
            faults.setdefault(row, Fault("no bytes", message))
    return faults


def encode_classes(column: pa.Array, feature: Feature) -> pa.Array:
    """Converts a column of class names to the class numbers of a feature.

    Use it for columns that were read as text before the classes were known. Each value must be a
    class. The column is returned as it is if it is not text or the feature has no classes.
    """
    inner = column.type
    while pa.types.is_nested(inner):
        inner = inner.value_type
    if feature.classes is None or not is_text_type(inner):
        return column
    result = conform(pa.RecordBatch.from_arrays([column], [feature.name]), Schema((feature,)))
    assert not result.faults, "the classes are all that there are"
    return result.batch.column(0)


def _fit_all(
    batch: pa.RecordBatch, schema: Schema, text_label: str | None
) -> tuple[list[pa.Array], dict[int, Fault], dict[str, int]]:
    """Casts each column once, and explains why rows don't fit.

    Returns:
        (columns; the fault of each row that does not fit; number of rounded floats by feature
        name). The columns are only valid if all rows fit. Only the first feature that a row does
        not fit is explained.
    """
    columns: list[pa.Array] = []
    faults: dict[int, Fault] = {}
    rounded_counts: dict[str, int] = {}
    index_by_name = {name: i for i, name in enumerate(batch.schema.names)}
    for feature in schema:
        index = index_by_name.get(feature.name)
        column = pa.nulls(batch.num_rows) if index is None else batch.column(index)
        classes = None if index is None else class_names_in_metadata(batch.schema.field(index))
        fitted = _fit(column, feature, _ValueFitter(classes, feature.name == text_label))
        if fitted.bad_mask is not None:
            for row in np.flatnonzero(fitted.bad_mask).tolist():
                if row not in faults:
                    faults[row] = explain_bad_value(
                        column, row, feature, reason=fitted.reason, classes=classes
                    )
        if fitted.rounded_count:
            rounded_counts[feature.name] = fitted.rounded_count
        columns.append(fitted.array)
    return columns, faults, rounded_counts


def build_batch(columns: list[pa.Array], target: pa.Schema, rows: int) -> pa.RecordBatch:
    """Returns a batch that has the given number of rows even without columns."""
    if columns:
        return pa.RecordBatch.from_arrays(columns, schema=target)
    # only a struct keeps the number of rows if there are no columns
    return pa.RecordBatch.from_struct_array(
        pa.StructArray.from_arrays([], fields=[], mask=pa.array(np.zeros(rows, np.bool_)))
    ).replace_schema_metadata(target.metadata)


def _fit(column: pa.Array, feature: Feature, fitter: _ValueFitter) -> _FittedColumn:
    column = to_plain_array(column)
    if feature.required and column.null_count:
        return _FittedColumn(None, _null_mask(column), "null")
    if pa.types.is_null(column.type):
        return _FittedColumn(pa.nulls(len(column), arrow_type(feature)), None)
    if feature.shape:
        return _fit_list(column, feature, fitter)
    if pa.types.is_nested(column.type):
        raise DataError(
            f"column {feature.name!r} is a {column.type}, but the schema has {feature.describe()}"
        )
    values, bad, rounded_count = fitter.fit(column, feature)
    return _FittedColumn(
        values, bad, _reject_reason(column.type, feature, bad), rounded_count=rounded_count
    )


def _reject_reason(kind: pa.DataType, feature: Feature, bad: Bools | None) -> str:
    if bad is None:
        return ""
    if feature.classes is not None:
        return "class"
    return "range" if pa.types.is_integer(kind) or pa.types.is_floating(kind) else "type"


def _fit_list(column: pa.Array, feature: Feature, fitter: _ValueFitter) -> _FittedColumn:
    """Casts the innermost values of lists, and rebuilds the lists."""
    wraps: list[Callable[[pa.Array], pa.Array]] = []
    ends: list[Int64s] = []  # per level, the index of the value after each list
    inner = column
    for level in range(feature.ragged_rank):
        # a null list is a missing feature at the outermost level, but can't be stored inside a list
        if level and inner.null_count:
            return _FittedColumn(
                None, _mark_rows(_null_mask(inner), ends, len(column)), "null-inside"
            )
        inner = _as_lists(inner)
        lengths = _list_lengths(inner, feature)
        wraps.append(_ragged_wrapper(lengths, inner))
        ends.append(np.cumsum(lengths))
        inner = to_plain_array(inner.flatten())
    if feature.inner_shape:
        tensors = _as_lists(inner)
        inner, bad, reason = _unwrap_fixed(tensors, feature, is_outermost=not feature.ragged_rank)
        if bad is not None:
            return _FittedColumn(None, _mark_rows(bad, ends, len(column)), reason)
        wraps.append(lambda values: _wrap_fixed(values, feature, tensors))
        ends.append(np.cumsum(~_null_mask(tensors) * feature.inner_size))
    if pa.types.is_nested(inner.type):
        raise DataError(
            f"column {feature.name!r} is a {column.type}, but the schema has {feature.describe()}"
        )
    if inner.null_count:
        return _FittedColumn(None, _mark_rows(_null_mask(inner), ends, len(column)), "null-inside")
    values, bad, rounded_count = fitter.fit(inner, feature)
    if bad is not None:
        return _FittedColumn(
            None, _mark_rows(bad, ends, len(column)), _reject_reason(inner.type, feature, bad)
        )
    # The innermost lists are rebuilt first.
    for wrap in reversed(wraps):
        values = wrap(values)
    return _FittedColumn(values, None, rounded_count=rounded_count)


def _null_mask(values: pa.Array) -> Bools:
    return values.is_null().to_numpy(zero_copy_only=False)


def _as_lists(values: pa.Array) -> pa.Array:
    """Returns null lists for a column of type null. Other columns are returned as they are."""
    return (
        # if all lists of a column are empty, Arrow infers the type null for their items
        pa.nulls(len(values), pa.large_list(pa.null())) if pa.types.is_null(values.type) else values
    )


def _list_lengths(lists: pa.Array, feature: Feature) -> Int64s:
    if not _is_list(lists.type):
        raise DataError(
            f"column {feature.name!r} holds {lists.type} where the schema has a list, {feature.describe()}"
        )
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    return pc.cast(lengths, pa.int64()).to_numpy(zero_copy_only=False)


def _mark_rows(bad: Bools, ends: list[Int64s], num_rows: int) -> Bools:
    """Returns a mask of the rows that contain a bad inner value.

    Args:
        bad: Mask of the values at the innermost level of the lists.
        ends: The index of the value after each list: one array for each level of the lists,
            outermost first.
        num_rows: Number of rows.
    """
    indices = np.flatnonzero(bad)
    # walk from the values up to the rows
    for level_ends in reversed(ends):
        indices = np.searchsorted(level_ends, indices, "right")
    mask = np.zeros(num_rows, np.bool_)
    mask[indices] = True
    return mask


def _ragged_wrapper(lengths: Int64s, like: pa.Array) -> Callable[[pa.Array], pa.Array]:
    offsets = to_offsets(lengths)
    mask = like.is_null() if like.null_count else None
    return lambda values: pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=mask)


def _unwrap_fixed(
    tensors: pa.Array, feature: Feature, is_outermost: bool
) -> tuple[pa.Array, Bools | None, str]:
    """Checks the lengths of lists with a fixed shape, and removes the lists.

    The lists are the dimensions of tensors.

    Args:
        tensors: One list for each tensor. It is nested, or has all values of the tensor in one
            list.
        feature: The feature. Its `inner_shape` is the shape.
        is_outermost: Whether each row is a tensor, so that it may be null. Otherwise rows are lists
            of tensors.

    Returns:
        (values, None, "") if all tensors fit. Otherwise (`tensors`, mask of the tensors that don't
        fit, reason).
    """
    if not is_outermost and tensors.null_count:
        return tensors, _null_mask(tensors), "null-inside"
    inner, ends = tensors, list[Int64s]()
    for depth, size in enumerate(feature.inner_shape):
        flat_size = int(np.prod(feature.inner_shape[depth:], dtype=np.int64))
        if not _is_list(inner.type) and depth:
            break  # a flat list contains the remaining dimensions
        lengths = _list_lengths(inner, feature)
        # a list of lists has the size of this dimension, a flat list has the remaining dimensions
        # at once
        expected_length = (
            size
            if _is_list(inner.type.value_type) and depth + 1 < len(feature.inner_shape)
            else flat_size
        )
        bad = (
            # a null tensor is a missing feature, but nothing inside a tensor can be null
            (lengths != expected_length) & ~_null_mask(inner)
            if depth == 0
            else (lengths != expected_length) | _null_mask(inner)
        )
        if bad.any():
            return tensors, _mark_rows(bad, ends, len(tensors)), "shape"
        ends.append(np.cumsum(lengths))
        inner = to_plain_array(inner.flatten())
        if expected_length == flat_size and not _is_list(inner.type):
            break
    return inner, None, ""


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _wrap_fixed(values: pa.Array, feature: Feature, like: pa.Array) -> pa.Array:
    if not like.null_count:
        return _fixed_size_lists(values, feature, len(like), None)
    missing = like.is_null()
    # FixedSizeListArray needs values for null lists, too: repeat those of the tensor before
    value_index = np.cumsum(~missing.to_numpy(zero_copy_only=False)) - 1
    if len(values) == 0:
        dense = pa.nulls(len(like) * feature.inner_size, values.type)
    else:
        positions = np.maximum(value_index, 0)[:, None] * feature.inner_size + np.arange(
            feature.inner_size
        )
        dense = values.take(pa.array(positions.reshape(-1)))
    return _fixed_size_lists(dense, feature, len(like), missing)


def _fixed_size_lists(
    values: pa.Array, feature: Feature, length: int, missing: pa.Array | None
) -> pa.Array:
    if feature.inner_size:
        return pa.FixedSizeListArray.from_arrays(values, feature.inner_size, mask=missing)
    # from_arrays can't infer the number of lists that have no values
    validity = None if missing is None else pc.invert(missing).buffers()[1]
    return pa.Array.from_buffers(pa.list_(values.type, 0), length, [validity], children=[values])


def explain_bad_value(
    column: pa.Array, row: int, feature: Feature, reason: str, classes: Sequence[str] | None = None
) -> Fault:
    """Returns the fault of a value that does not fit its feature.

    Args:
        column: The column that contains the value.
        row: The row of the value.
        feature: The feature that it does not fit.
        reason: Reason from the cast. "null-inside" means a null inside a list, and is reported as
            "null".
        classes: Class names that the numbers in the column refer to, or None.
    """
    name, declared = feature.name, feature.describe()
    if reason == "null":
        return Fault("null", f"{name}: missing, but the schema requires it")
    if reason == "null-inside":
        return Fault(
            "null",
            f"{name}: a null inside a list, which an Example can't hold: {quote_value(column[row].as_py())}",
        )
    try:
        value = column[row].as_py()
    except UnicodeDecodeError as error:
        return Fault(
            "encoding",
            Message(
                "{name}: is not UTF-8: {quote_value}; {dtypes} keeps it",
                name=name,
                quote_value=quote_value(error.object),
                dtypes=option("dtypes", {name: "bytes"}),
            ),
        )
    except OverflowError:
        return Fault(
            reason, f"{name}: a time outside of the years 1 to 9999 does not fit {declared}"
        )
    value = value if classes is None else _with_class_names(value, classes)
    if reason == "shape":
        return Fault("shape", f"{name}: {quote_value(value)} does not have the shape of {declared}")
    return Fault(
        reason,
        Message(
            "{name}: {quote_value} does not fit {declared}{suggest_remedy}",
            name=name,
            quote_value=quote_value(value),
            declared=declared,
            suggest_remedy=suggest_remedy(value, feature),
        ),
    )


def _with_class_names(value: object, classes: Sequence[str]) -> object:
    """Returns a value with class names instead of class numbers, also inside lists."""
    if isinstance(value, list):
        return [_with_class_names(item, classes) for item in value]
    return classes[value] if isinstance(value, int) and 0 <= value < len(classes) else value


def quote_value(value: object) -> str:
    """Returns a value for a message, shortened to MAX_VALUE_CHARS characters.

    >>> quote_value(b"ab"), quote_value("x" * 100)[-6:]
    ("b'ab'", 'xxx...')
    """
    if isinstance(value, str | bytes | list):
        value = value[: MAX_VALUE_CHARS + 1]  # a long value is cut before repr spells all of it
    try:
        text = repr(value)
    except ValueError:  # CPython does not print integers of more than 4,300 digits
        return "too long to be shown"
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 3] + "..."


def suggest_remedy(value: object, feature: Feature) -> str:
    """Returns the end of an error message about a misfit.

    This end names the cause, or the option that makes such values fit. For the value 0.5 and the
    int64 feature x, it is '; dtypes={"x": "float64"} keeps it'. It is empty if no option helps.

    Args:
        value: The value, or a list that contains it.
        feature: The feature.
    """
    if feature.classes is not None:
        return (
            f": not one of the {len(feature.classes):,} classes {format_classes(feature.classes)}"
        )
    if isinstance(value, list) and value:
        items = [item for item in value if item is not None]
        are_integers = all(type(item) is int for item in items)
        return suggest_remedy(max(items, default=None) if are_integers else items[0], feature)
    if feature.timestamp and isinstance(value, datetime.date):
        unit, zone = feature.timestamp
        article, dtype = ("no", f"timestamp[{unit}]") if zone else ("a", f"timestamp[{unit}, UTC]")
        if (getattr(value, "tzinfo", None) is None) == (zone is not None):
            return Message(
                ", for it has {article} time zone; {dtypes} keeps it",
                article=article,
                dtypes=option("dtypes", {feature.name: dtype}),
            )
        # Nanoseconds reach from 1677 to 2262 only; a date and microseconds reach all years.
        if unit == "ns":
            dtype = feature.dtype.replace("[ns", "[us")
            return Message("; {dtypes} keeps it", dtypes=option("dtypes", {feature.name: dtype}))
    wider = _wider_dtype(value, feature)
    limit_note = (
        EXAMPLE_LIMIT
        if feature.dtype == "uint64" and isinstance(value, int) and value > INT64_MAX
        else ""
    )
    return (
        Message(
            "{limit_note}; {dtypes} keeps it",
            limit_note=limit_note,
            dtypes=option("dtypes", {feature.name: wider}),
        )
        if wider and wider != feature.dtype
        else ""
    )


def _wider_dtype(value: object, feature: Feature) -> str:
    """Returns a dtype that holds the value, or an empty string."""
    if isinstance(value, str) and feature.dtype not in ("string", "bytes"):
        value = _to_number(value)
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, float):
        return "float64"
    if isinstance(value, int):
        if feature.dtype in ("float16", "bfloat16", "float32") and abs(value) <= 1 << 53:
            return "float64"
        return "int64" if -(1 << 63) <= value < 1 << 63 else "string"
    return "string" if isinstance(value, str) else ""


def _to_number(text: str) -> int | float | str:
    """Converts a text to a number if it is one.

    The result is an int or a finite float. Any other text is returned as it is.
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text
