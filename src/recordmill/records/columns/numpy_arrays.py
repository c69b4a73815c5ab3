"""Turns Arrow columns into NumPy arrays: flat values, row splits and a mask of missing rows (`Parts`), and from them
arrays for people. `gather_columns` makes one set of columns of many batches; fixed shapes are filled into arrays that
are made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.records.columns.ragged import Array, Ragged, Strings, Valid
from recordmill.schemas.feature import Feature, Schema


@dataclass(frozen=True)
class Parts:
    """A column taken apart.

    Attributes:
        values: [items, *inner_shape], or [bytes] uint8 of text and binary.
        splits: Row splits, one per variable dimension, outermost first, and for text and binary the byte offsets last;
            each starts at 0.
        valid: [rows] bool if the feature may be missing, else None.
        items: Tensors or scalars; -1: as many as the values make.
    """

    values: Array
    splits: tuple[Int64s, ...]
    valid: Valid | None
    items: int = -1


def is_bytes(feature: Feature) -> bool:
    """Returns whether the feature's values are text or binary."""
    return feature.dtype in ("string", "bytes")


def numpy_dtype(feature: Feature) -> np.dtype[Any]:
    """Returns the NumPy dtype of one value; object for text and binary."""
    if is_bytes(feature):
        return np.dtype(object)
    if feature.timestamp:
        return np.dtype(f"datetime64[{feature.timestamp[0]}]")
    return np.dtype("float32" if feature.dtype == "bfloat16" else feature.dtype)


def take_apart(column: pa.Array | pa.ChunkedArray, feature: Feature) -> Parts:
    """Returns the flat arrays of a column of the feature's Arrow type, 32-bit offsets and variable lists included."""
    array = _one_array(column)
    valid = None if feature.required else _valid(array)
    splits: list[Int64s] = []
    for _ in range(feature.ragged_rank):
        array, offsets = _unlist(array)
        splits.append(offsets)
    items = len(array)
    if feature.inner_shape:
        array = _untensor(array, feature.inner_size)
    if is_bytes(feature):
        values, offsets = _unstring(array)
        splits.append(offsets)
        return Parts(values, tuple(splits), valid, items)
    flat = _primitive(array, feature)
    return Parts(flat.reshape(items, *feature.inner_shape), tuple(splits), valid, items)


def to_numpy(column: pa.Array | pa.ChunkedArray, feature: Feature) -> Array | Ragged | Strings:
    """Returns the column as an array in memory."""
    if is_bytes(feature) and not feature.shape:
        text: Array = _one_array(column).to_numpy(zero_copy_only=False)
        return text
    parts = take_apart(column, feature)
    return put_together(parts, feature, lazy_text=False)


def put_together(
    parts: Parts, feature: Feature, *, lazy_text: bool = True
) -> Array | Ragged | Strings:
    """Returns the array, Ragged or Strings of the parts; with lazy_text, text stays in its buffer (`Strings`)."""
    values: Array | Ragged | Strings = parts.values
    splits = list(parts.splits)
    plain = not feature.ragged_rank
    if is_bytes(feature):
        text = Strings(
            parts.values,
            splits.pop(),
            feature.dtype == "string",
            parts.valid if plain and not feature.shape else None,
        )
        values = (
            text
            if lazy_text and not feature.inner_shape
            else text.to_numpy().reshape(parts.items, *feature.inner_shape)
        )
        if plain and not feature.shape:
            return values
    if plain:
        return (
            _masked(values, parts.valid)
            if parts.valid is not None and isinstance(values, np.ndarray)
            else values
        )
    for level, offsets in zip(range(len(splits), 0, -1), reversed(splits), strict=True):
        values = Ragged(values, offsets, parts.valid if level == 1 else None)
    return values


def _masked(values: Array, valid: Valid) -> Array:
    # The mask of a tensor is one flag per record seen through a stride of 0, so it costs no memory;
    # it can be read, not set.
    mask = np.broadcast_to(~valid.reshape(-1, *[1] * (values.ndim - 1)), values.shape)
    return np.ma.MaskedArray(values, mask=mask)


def _one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return (
            column.chunk(0)
            if column.num_chunks == 1
            else pa.concat_arrays(column.chunks)
            if column.num_chunks
            else pa.array([], column.type)
        )
    return column


def _valid(array: pa.Array) -> Valid:
    if array.null_count == 0:
        return np.ones(len(array), np.bool_)
    valid: Valid = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def lengths_of(column: pa.Array) -> Int64s:
    """Returns [rows] how many items each row of a list column has; a missing one has none."""
    lengths: Int64s = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64, copy=False)


def _unlist(array: pa.Array) -> tuple[pa.Array, Int64s]:
    """Returns the items of a list column and its splits from 0; a missing list is an empty one here."""
    splits = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths_of(array), out=splits[1:])
    return array.flatten(), splits


def _untensor(array: pa.Array, size: int) -> pa.Array:
    """Returns the values of a tensor column, with zeros (or empty strings) in place of a missing tensor."""
    if array.null_count == 0:
        return array.flatten()
    present = array.drop_null().flatten()
    at = np.cumsum(_valid(array)) - 1
    rows = pa.array(
        np.repeat(at, size) * size + np.tile(np.arange(size), len(array)),
        mask=np.repeat(~_valid(array), size),
    )
    return present.take(rows)


def _primitive(array: pa.Array, feature: Feature) -> npt.NDArray[Any]:
    dtype = numpy_dtype(feature)
    if array.null_count:
        if feature.timestamp:
            array = array.cast(pa.int64())
        array = array.fill_null(
            pa.scalar(0, pa.int64()).cast(array.type)
            if not pa.types.is_float16(array.type)
            else pa.scalar(np.float16(0))
        )
    flat: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return flat.view(dtype) if flat.dtype.kind == "i" and dtype.kind == "M" else flat


def _unstring(array: pa.Array) -> tuple[Array, Int64s]:
    """Returns the bytes of a text or binary column and its offsets from 0; a missing value is empty here."""
    if not (pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)):
        array = array.cast(pa.large_binary())
    if array.null_count:
        array = array.cast(pa.large_binary()).fill_null(b"")
    if len(array) == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    _, offset_buffer, data = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
    values = (
        np.empty(0, np.uint8)
        if data is None
        else np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    )
    return values, offsets - offsets[0]


def gather_columns(
    batches: Iterable[pa.RecordBatch], schema: Schema, rows: int
) -> dict[str, Array | Ragged | Strings]:
    """Returns the columns of all batches, which have that many rows together; ValueError where they have not."""
    columns = {feature.name: _Column(feature, rows) for feature in schema}
    at = 0
    for batch in batches:
        if at + batch.num_rows > rows:
            raise ValueError(f"more than the {rows} rows that were announced")
        for column, array in zip(columns.values(), batch.columns, strict=True):
            column.put(at, array)
        at += batch.num_rows
    if at != rows:
        raise ValueError(f"{at} rows where {rows} were announced")
    return {name: column.finish() for name, column in columns.items()}


class _Column:
    def __init__(self, feature: Feature, rows: int) -> None:
        self.feature = feature
        self._fixed = not feature.ragged_rank and not is_bytes(feature)
        self._text = is_bytes(feature) and not feature.shape
        if self._fixed:
            self._values = np.empty((rows, *feature.inner_shape), numpy_dtype(feature))
            self._valid = None if feature.required else np.empty(rows, np.bool_)
        elif self._text:
            self._values = np.empty(rows, object)
        self._parts: list[Parts] = []

    def put(self, at: int, array: pa.Array) -> None:
        if self._text:
            self._values[at : at + len(array)] = to_numpy(array, self.feature)
            return
        parts = take_apart(array, self.feature)
        if not self._fixed:
            self._parts.append(
                replace(parts, values=parts.values.copy())
                if parts.values.base is not None
                else parts
            )
            return
        self._values[at : at + len(array)] = parts.values
        if self._valid is not None:
            self._valid[at : at + len(array)] = parts.valid

    def finish(self) -> Array | Ragged | Strings:
        if self._text:
            return self._values
        if self._fixed:
            return put_together(Parts(self._values, (), self._valid), self.feature)
        return put_together(
            joined_columns(self._parts, self.feature), self.feature, lazy_text=False
        )


def joined_columns(parts: list[Parts], feature: Feature) -> Parts:
    """Joins the parts of consecutive batches."""
    if len(parts) == 1:
        return parts[0]
    levels = feature.ragged_rank + is_bytes(feature)
    empty = np.empty(
        (0,) if is_bytes(feature) else (0, *feature.inner_shape),
        np.uint8 if is_bytes(feature) else numpy_dtype(feature),
    )
    splits = []
    for level in range(levels):
        pieces, base = [np.zeros(1, np.int64)], 0
        for part in parts:
            pieces.append(part.splits[level][1:] + base)
            base += int(part.splits[level][-1])
        splits.append(np.concatenate(pieces))
    valid = (
        None
        if feature.required
        else np.concatenate(
            [np.empty(0, np.bool_), *(part.valid for part in parts if part.valid is not None)]
        )
    )
    values = np.concatenate([empty, *(part.values for part in parts)])
    return Parts(values, tuple(splits), valid, sum(part.items for part in parts))


def rows_of(batch: pa.RecordBatch, schema: Schema) -> Iterator[dict[str, Any]]:
    """Yields every row of a batch with the columns of the schema, in its order."""
    for row in range(batch.num_rows):
        yield {
            feature.name: value_of(column.slice(row, 1), feature)
            for feature, column in zip(schema, batch.columns, strict=True)
        }


def value_of(column: pa.Array, feature: Feature) -> Any:
    """The value of a column of one row."""
    if column.null_count:
        return None
    if not feature.shape:
        return (
            to_numpy(column, replace(feature, required=True))[0]
            if feature.timestamp or feature.dtype == "float16"
            else column[0].as_py()
        )
    if (
        feature.per_step and column.flatten().null_count
    ):  # a step of a SequenceExample may be missing
        return column[0].as_py()
    value = to_numpy(column, replace(feature, required=True))[0]
    return value.to_list() if isinstance(value, Ragged) else value
