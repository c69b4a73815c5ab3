"""Conversion of Arrow columns to NumPy arrays.

A column is first converted to flat values, row splits and a mask of missing rows (`ColumnArrays`),
and then to the arrays that users get. `gather_columns` joins the columns of many batches. For a
column of a fixed shape it allocates the array once and fills it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import Bools, Int64s, to_offsets
from recordmill.records.columns.ragged import Array, Ragged, Strings
from recordmill.schemas.feature import Feature, Schema


@dataclass(frozen=True)
class ColumnArrays:
    """Flat arrays of a column.

    Attributes:
        values: [items, *inner_shape]. For text and binary uint8 [bytes].
        splits: The row splits of each variable dimension, outermost first. For text and binary the
            byte offsets are the last item. All splits start at 0.
        valid: bool [rows], False for a missing row. None if the feature is required.
        num_items: The number of tensors or scalars. If -1, it follows from the number of values.
    """

    values: Array
    splits: tuple[Int64s, ...]
    valid: Bools | None
    num_items: int = -1


def is_bytes(feature: Feature) -> bool:
    """Returns whether the values of a feature are text or binary."""
    return feature.dtype in ("string", "bytes")


def numpy_dtype(feature: Feature) -> np.dtype[Any]:
    """Returns the NumPy dtype for the values of a feature. It is object for text and binary."""
    if is_bytes(feature):
        return np.dtype(object)
    if feature.timestamp:
        return np.dtype(f"datetime64[{feature.timestamp[0]}]")
    return np.dtype("float32" if feature.dtype == "bfloat16" else feature.dtype)


# A Python object has exactly the same value. PyTorch can't convert NumPy scalars of uint64 to a
# tensor.
_PYTHON_TYPES: dict[str, Callable[[Any], Any]] = {
    "int64": int,
    "uint64": int,
    "float64": float,
    "bool": bool,
    "string": bytes.decode,
    "bytes": bytes,
}


def scalar_converter(feature: Feature) -> Callable[[Any], Any]:
    """Returns a function that converts stored values of a scalar feature for users.

    64-bit numbers, bools, texts and bytes become Python objects. Values of other dtypes become
    NumPy scalars, so that collate functions of PyTorch and Grain keep the dtype.

    >>> scalar_converter(Feature("size", "float32", (), True))(0.5).dtype
    dtype('float32')
    """
    if feature.timestamp:
        unit: Any = feature.timestamp[0]
        return lambda value: np.datetime64(value, unit)
    return _PYTHON_TYPES.get(feature.dtype) or numpy_dtype(feature).type


def extract_arrays(column: pa.Array | pa.ChunkedArray, feature: Feature) -> ColumnArrays:
    """Converts a column to flat arrays.

    Args:
        column: The column, with the Arrow type of the feature. It may also have 32-bit offsets, or
            variable lists for tensors.
        feature: The feature.
    """
    array = _combine_chunks(column)
    valid = None if feature.required else valid_mask(array)
    splits: list[Int64s] = []
    for _ in range(feature.ragged_rank):
        array, offsets = _flatten_list(array)
        splits.append(offsets)
    items = len(array)
    if feature.inner_shape:
        array = _flatten_tensors(array, feature.inner_size)
    if is_bytes(feature):
        values, offsets = _string_bytes(array)
        splits.append(offsets)
        return ColumnArrays(values=values, splits=tuple(splits), valid=valid, num_items=items)
    flat = _primitive_values(array, feature)
    return ColumnArrays(
        values=flat.reshape(items, *feature.inner_shape),
        splits=tuple(splits),
        valid=valid,
        num_items=items,
    )


def to_numpy(column: pa.Array | pa.ChunkedArray, feature: Feature) -> Array | Ragged | Strings:
    """Converts a column to the array that users get.

    Args:
        column: The column, with the Arrow type of the feature.
        feature: The feature.

    Returns:
        An array of objects for text and bytes, with None for missing values. A `Ragged` for lists.
        An array for other features, or a MaskedArray if the feature may be missing.
    """
    if is_bytes(feature) and not feature.shape:
        return _combine_chunks(column).to_numpy(zero_copy_only=False)
    arrays = extract_arrays(column, feature)
    return assemble_array(arrays, feature, lazy_text=False)


def assemble_array(
    arrays: ColumnArrays, feature: Feature, *, lazy_text: bool = True
) -> Array | Ragged | Strings:
    """Combines flat arrays to an array, a `Ragged` or a `Strings`.

    Args:
        arrays: The flat arrays.
        feature: The feature of the column.
        lazy_text: Whether text stays in its buffer and is returned as `Strings`. Otherwise it
            becomes an array of objects.
    """
    values: Array | Ragged | Strings = arrays.values
    splits = list(arrays.splits)
    is_plain = not feature.ragged_rank
    if is_bytes(feature):
        strings = Strings(
            arrays.values,
            splits.pop(),
            feature.dtype == "string",
            arrays.valid if is_plain and not feature.shape else None,
        )
        values = (
            strings
            if lazy_text and not feature.inner_shape
            else strings.to_numpy().reshape(arrays.num_items, *feature.inner_shape)
        )
        if is_plain and not feature.shape:
            return values
    if is_plain:
        return (
            _mask_rows(values, arrays.valid)
            if arrays.valid is not None and isinstance(values, np.ndarray)
            else values
        )
    # Lists are nested from the inside out. Only the outermost level has missing rows.
    for level, offsets in zip(range(len(splits), 0, -1), reversed(splits), strict=True):
        values = Ragged(values, offsets, arrays.valid if level == 1 else None)
    return values


def _mask_rows(values: Array, valid: Bools) -> Array:
    # The flag of each record is broadcast to all its values with a stride of 0. So the mask takes
    # no memory, but it is read-only.
    mask = np.broadcast_to(~valid.reshape(-1, *[1] * (values.ndim - 1)), values.shape)
    return np.ma.MaskedArray(values, mask=mask)


def _combine_chunks(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return (
            column.chunk(0)
            if column.num_chunks == 1
            else pa.concat_arrays(column.chunks)
            if column.num_chunks
            else pa.array([], column.type)
        )
    return column


def valid_mask(array: pa.Array) -> Bools:
    """Returns which rows are not missing, bool [rows]."""
    return array.is_valid().to_numpy(zero_copy_only=False)


def list_lengths(column: pa.Array) -> Int64s:
    """Returns the number of items in each row of a list column, int64 [rows].

    A missing row has 0 items.
    """
    lengths: Int64s = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64, copy=False)


def _flatten_list(array: pa.Array) -> tuple[pa.Array, Int64s]:
    """Returns (items, splits) of a list column. The splits start at 0.

    A missing list becomes an empty one.
    """
    return array.flatten(), to_offsets(list_lengths(array))


def _flatten_tensors(array: pa.Array, size: int) -> pa.Array:
    """Returns the values of a tensor column. The values of a missing tensor are nulls."""
    if array.null_count == 0:
        return array.flatten()
    present = array.drop_null().flatten()
    # `present` contains only the tensors that are not missing, so each row needs the index of its
    # tensor there.
    tensor_index = np.cumsum(valid_mask(array)) - 1
    indices = pa.array(
        np.repeat(tensor_index, size) * size + np.tile(np.arange(size), len(array)),
        mask=np.repeat(~valid_mask(array), size),
    )
    return present.take(indices)


def _primitive_values(array: pa.Array, feature: Feature) -> npt.NDArray[Any]:
    dtype = numpy_dtype(feature)
    # Missing values become 0. `ColumnArrays.valid` marks them.
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


def _string_bytes(array: pa.Array) -> tuple[Array, Int64s]:
    """Returns (bytes, offsets) of a text or binary column. The offsets start at 0.

    A missing value becomes an empty one.
    """
    # Views and 32-bit offsets become 64-bit offsets here.
    if not (pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)):
        array = array.cast(pa.large_binary())
    if array.null_count:
        array = array.cast(pa.large_binary()).fill_null(b"")
    if len(array) == 0:
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    # A slice of an Arrow array shares the buffers of the complete array.
    _, offset_buffer, data = array.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
    values = (
        np.empty(0, np.uint8)
        if data is None
        else np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    )
    return values, offsets - offsets[0]


def gather_columns(
    batches: Iterable[pa.RecordBatch], schema: Schema, total_rows: int
) -> dict[str, Array | Ragged | Strings]:
    """Joins the columns of all batches to arrays, by feature name.

    Args:
        batches: Batches of the schema.
        schema: The features.
        total_rows: The number of rows of all batches together.

    Raises:
        ValueError: The batches have another number of rows.
    """
    columns = {feature.name: _ColumnCollector(feature, total_rows) for feature in schema}
    row = 0
    for batch in batches:
        if row + batch.num_rows > total_rows:
            raise ValueError(f"more than the {total_rows} rows that were announced")
        for column, array in zip(columns.values(), batch.columns, strict=True):
            column.put(row, array)
        row += batch.num_rows
    if row != total_rows:
        raise ValueError(f"{row} rows where {total_rows} were announced")
    return {name: column.finish() for name, column in columns.items()}


class _ColumnCollector:
    def __init__(self, feature: Feature, total_rows: int) -> None:
        self.feature = feature
        self._is_fixed = not feature.ragged_rank and not is_bytes(feature)
        self._is_text = is_bytes(feature) and not feature.shape
        if self._is_fixed:
            self._values = np.empty((total_rows, *feature.inner_shape), numpy_dtype(feature))
            self._valid = None if feature.required else np.empty(total_rows, np.bool_)
        elif self._is_text:
            self._values = np.empty(total_rows, object)
        self._arrays: list[ColumnArrays] = []

    def put(self, row: int, array: pa.Array) -> None:
        if self._is_text:
            self._values[row : row + len(array)] = to_numpy(array, self.feature)
            return
        arrays = extract_arrays(array, self.feature)
        # A view would keep the memory of the complete batch alive.
        if not self._is_fixed:
            self._arrays.append(
                replace(arrays, values=arrays.values.copy())
                if arrays.values.base is not None
                else arrays
            )
            return
        self._values[row : row + len(array)] = arrays.values
        if self._valid is not None:
            self._valid[row : row + len(array)] = arrays.valid

    def finish(self) -> Array | Ragged | Strings:
        if self._is_text:
            return self._values
        if self._is_fixed:
            return assemble_array(ColumnArrays(self._values, (), self._valid), self.feature)
        return assemble_array(
            concatenate_arrays(self._arrays, self.feature), self.feature, lazy_text=False
        )


def concatenate_arrays(column_arrays: list[ColumnArrays], feature: Feature) -> ColumnArrays:
    """Joins the flat arrays of consecutive batches."""
    if len(column_arrays) == 1:
        return column_arrays[0]
    levels = feature.ragged_rank + is_bytes(feature)
    empty = np.empty(
        (0,) if is_bytes(feature) else (0, *feature.inner_shape),
        np.uint8 if is_bytes(feature) else numpy_dtype(feature),
    )
    splits = []
    for level in range(levels):
        # Splits of each batch start at 0, so they are shifted to the end of the batches before.
        level_splits, offset = [np.zeros(1, np.int64)], 0
        for arrays in column_arrays:
            level_splits.append(arrays.splits[level][1:] + offset)
            offset += int(arrays.splits[level][-1])
        splits.append(np.concatenate(level_splits))
    # The empty arrays are for the case of no batches, in which NumPy has nothing to join.
    valid = (
        None
        if feature.required
        else np.concatenate(
            [
                np.empty(0, np.bool_),
                *(arrays.valid for arrays in column_arrays if arrays.valid is not None),
            ]
        )
    )
    values = np.concatenate([empty, *(arrays.values for arrays in column_arrays)])
    return ColumnArrays(
        values=values,
        splits=tuple(splits),
        valid=valid,
        num_items=sum(arrays.num_items for arrays in column_arrays),
    )


def iter_rows(batch: pa.RecordBatch, schema: Schema) -> Iterator[dict[str, Any]]:
    """Yields each row of a batch as a dict of values by feature name.

    The features are in schema order. A missing value is None.
    """
    for row in range(batch.num_rows):
        yield {
            feature.name: _extract_value(column.slice(row, 1), feature)
            for feature, column in zip(schema, batch.columns, strict=True)
        }


def _extract_value(column: pa.Array, feature: Feature) -> Any:
    """Returns the value of a column with one row, or None if missing."""
    if column.null_count:
        return None
    if not feature.shape:
        return (
            column[0].as_py()
            if feature.dtype in _PYTHON_TYPES
            else to_numpy(column, replace(feature, required=True))[0]
        )
    # A step of a SequenceExample may be missing, and NumPy has no null for it.
    if feature.per_step and column.flatten().null_count:
        return column[0].as_py()
    value = to_numpy(column, replace(feature, required=True))[0]
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        return value.copy()  # Arrow's memory is read-only, and PyTorch warns of it
    return value.to_list() if isinstance(value, Ragged) else value
