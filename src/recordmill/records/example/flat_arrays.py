"""Conversion of Arrow columns to flat arrays, which the kernels of the encoder read.

A feature becomes one `FlatEntry` for each entry of the Example's map (`Feature.storage()`). Nothing
is copied if Arrow's memory already has this form. Slices, dictionaries, views, 32-bit offsets and
narrow integers are converted here, so later modules need not handle them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import Bytes, Int64s
from recordmill.base.errors import DataError
from recordmill.schemas.arrow import arrow_type, value_type
from recordmill.schemas.feature import BYTES_LIST, FLOAT_LIST, Feature, Storage

# Other types have the same name in both libraries. `to_pandas_dtype` is not used, because it may
# import pandas.
_NUMPY_DTYPE_NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}


@dataclass(frozen=True)
class FlatEntry:
    """The values of one entry of the Example's map, for all records.

    If the entry is missing in a record, the arrays may have any values for it.

    Attributes:
        storage: The name and the kind of the entry.
        rows: The number of records.
        values: int64 or float32 [values], C-contiguous. For the kind bytes uint8 [bytes], the bytes
            of all values.
        valid: uint8 [rows], 0 if the record does not have the entry. None if every record has it.
        splits: int64 [rows + 1]. Row r has the values from `splits[r]` to `splits[r + 1]`. None if
            every row has `length` values.
        length: The number of values of each row, if `splits` is None.
        value_splits: For the kind bytes, int64 [values + 1]. Value v is `values[value_splits[v] :
            value_splits[v + 1]]`. None if every value has `width` bytes.
        width: The size of each value in bytes, if `value_splits` is None.
    """

    storage: Storage
    rows: int
    values: npt.NDArray[Any]
    valid: Bytes | None = None
    splits: Int64s | None = None
    length: int = 1
    value_splits: Int64s | None = None
    width: int = 0


def flatten_column(array: pa.Array, feature: Feature) -> list[FlatEntry]:
    """Converts a column to flat arrays.

    There is one entry for each of `feature.storage()`, in this order.

    Args:
        array: The column, of the type `schemas.arrow.arrow_type(feature)`. It may have 32-bit
            offsets, be sliced or dictionary-encoded, and have a view type or a tensor extension
            type. Fixed dimensions may be variable lists.
        feature: The feature of the column.

    Raises:
        DataError: A value can't be stored in an Example. It is a null in a required feature or
            inside a list, a list of the wrong length, or an integer above 2^63 - 1. The error names
            feature, row and value.
        TypeError: The array has another type.
    """
    column_walk = _ColumnWalk(feature, _to_canonical(array, feature))
    storages = feature.storage()
    length_entries = [column_walk.lengths(entry, level) for level, entry in enumerate(storages[1:])]
    return [column_walk.values(storages[0]), *length_entries]


class _ColumnWalk:
    """Walks from the outermost lists of a column to its values.

    Attributes:
        items: The array that was reached.
        splits: Row r owns the items from `splits[r]` to `splits[r + 1]`. None if each row owns
            `per_row` items.
        per_row: The number of items of each row, if `splits` is None.
    """

    def __init__(self, feature: Feature, array: pa.Array) -> None:
        self.feature, self.rows, self.items = feature, len(array), array
        self.valid = _validity_bytes(array)
        self.splits: Int64s | None = None
        self.per_row = 1
        # for each variable dimension: the splits of the rows, and its own splits
        self._level_splits: list[tuple[Int64s, Int64s]] = []
        if self.valid is not None and feature.required:
            raise self._error(int(np.argmin(self.valid)), "null, but the feature is required")
        for _ in range(feature.ragged_rank):
            offsets = self._enter_list()
            assert self.splits is not None
            self._level_splits.append((self.splits, offsets))
        # The fixed dimensions follow, either as fixed-size lists or as variable lists of the right
        # length.
        while pa.types.is_nested(self.items.type):
            if pa.types.is_fixed_size_list(self.items.type):
                self._enter_fixed()
            else:
                self._check_lengths()
                self._enter_list()

    def values(self, storage: Storage) -> FlatEntry:
        feature, items = self.feature, self.items
        if feature.raw:
            return self._raw_values(storage)
        value_splits = None
        if storage.kind == BYTES_LIST:
            values, value_splits = _string_buffers(items)
        elif storage.kind == FLOAT_LIST:
            values = _primitive_numbers(items).astype(np.float32, copy=False)
        else:
            numbers = _primitive_numbers(items)
            if numbers.dtype == np.uint64:
                self._check_uint64(numbers)
            values = numbers.astype(np.int64, copy=False)
        return FlatEntry(
            storage,
            self.rows,
            values=values,
            valid=self.valid,
            splits=self.splits,
            length=self.per_row,
            value_splits=value_splits,
        )

    def _raw_values(self, storage: Storage) -> FlatEntry:
        """Returns an entry with one bytes value per row.

        The value is the little-endian memory of the numbers of the row.
        """
        numbers = _primitive_numbers(self.items)
        data, width = numbers.view(np.uint8), numbers.dtype.itemsize
        if self.splits is None:
            return FlatEntry(
                storage, self.rows, values=data, valid=self.valid, width=self.per_row * width
            )
        return FlatEntry(
            storage, self.rows, values=data, valid=self.valid, value_splits=self.splits * width
        )

    def lengths(self, storage: Storage, level: int) -> FlatEntry:
        """Returns the entry with the lengths of the lists at one level.

        TensorFlow Datasets calls this entry `ragged_row_lengths_<level>`.

        Args:
            storage: The name and the kind of the entry.
            level: The level, from 0 at the outermost lists.
        """
        splits, _ = self._level_splits[level]
        return FlatEntry(
            storage,
            self.rows,
            values=np.diff(self._level_splits[level + 1][1]),
            valid=self.valid,
            splits=splits,
        )

    def _enter_list(self) -> Int64s:
        """Replaces `items`, which are variable lists, by the items of these lists.

        Returns:
            The splits of the lists, from 0. The unused items of a slice are left out.
        """
        offsets = _list_offsets(self.items)
        begin, end = int(offsets[0]), int(offsets[-1])
        if begin != 0:
            offsets = offsets - begin
        self.items = self.items.values.slice(begin, end - begin)
        # The first level can use the offsets as they are. Each deeper level composes them with the
        # splits above.
        self.splits = (
            offsets if self.splits is None and self.per_row == 1 else offsets[self._row_splits()]
        )
        self._check_no_nulls()
        return offsets

    def _enter_fixed(self) -> None:
        size = self.items.type.list_size
        self.items = self.items.values.slice(self.items.offset * size, len(self.items) * size)
        if self.splits is None:
            self.per_row *= size
        else:
            self.splits = self.splits * size
        self._check_no_nulls()

    def _row_splits(self) -> Int64s:
        return (
            np.arange(self.rows + 1, dtype=np.int64) * self.per_row
            if self.splits is None
            else self.splits
        )

    def _find_valid_owner(self, item_indices: Int64s) -> tuple[int, int] | None:
        """Finds the first of some items that belongs to a valid row.

        Returns:
            (row, index of the item). None if all of the items belong to null rows, where any value
            is allowed.
        """
        rows = (
            item_indices // max(self.per_row, 1)
            if self.splits is None
            else np.searchsorted(self.splits, item_indices, side="right") - 1
        )
        if self.valid is not None:
            item_indices, rows = item_indices[self.valid[rows] != 0], rows[self.valid[rows] != 0]
        return (int(rows[0]), int(item_indices[0])) if len(item_indices) else None

    def _check_no_nulls(self) -> None:
        if (valid := _validity_bytes(self.items)) is not None and (
            owner := self._find_valid_owner(np.flatnonzero(valid == 0))
        ) is not None:
            raise self._error(
                owner[0],
                "null inside a list; an Example's list has no nulls, only the whole feature can be missing",
            )

    def _check_lengths(self) -> None:
        """Raises DataError if a list that represents a fixed shape has the wrong length."""
        lengths = np.diff(_list_offsets(self.items))
        if (
            owner := self._find_valid_owner(np.flatnonzero(lengths != self.feature.inner_size))
        ) is not None:
            shape = list(self.feature.inner_shape)
            raise self._error(
                owner[0],
                f"a list of {lengths[owner[1]]} values where the shape {shape} needs {self.feature.inner_size}",
            )

    def _check_uint64(self, numbers: npt.NDArray[np.uint64]) -> None:
        if (
            owner := self._find_valid_owner(np.flatnonzero(numbers > np.uint64(2**63 - 1)))
        ) is not None:
            raise self._error(
                owner[0], f"{numbers[owner[1]]} is above 2^63 - 1, which an int64_list can't hold"
            )

    def _error(self, row: int, reason: str) -> DataError:
        return DataError(reason, place=f"feature {self.feature.name[:60]!r}, row {row}")


def _to_canonical(array: pa.Array, feature: Feature) -> pa.Array:
    """Converts a column to lists of plain values, without encodings and extension types.

    Raises:
        TypeError: The array has another layout than the feature.
    """
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if _needs_cast(array.type):
        try:
            array = array.cast(arrow_type(feature))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise _type_error(array, feature) from error
    item_type = array.type
    for _ in range(feature.ragged_rank):
        if not _is_list(item_type):
            raise _type_error(array, feature)
        item_type = item_type.value_type
    inner_size = 1
    if feature.inner_shape and _is_list(item_type):
        inner_size, item_type = feature.inner_size, item_type.value_type
    while pa.types.is_fixed_size_list(item_type):
        inner_size, item_type = inner_size * item_type.list_size, item_type.value_type
    expected_type = value_type(feature)
    is_match = item_type == expected_type or (item_type, expected_type) in (
        (pa.string(), pa.large_string()),
        (pa.binary(), pa.large_binary()),
    )
    if not is_match or inner_size != feature.inner_size:
        raise _type_error(array, feature)
    return array


def _type_error(array: pa.Array, feature: Feature) -> TypeError:
    return TypeError(
        f"feature {feature.name!r} is {feature.describe()} and needs a column of type {arrow_type(feature)}, "
        f"not {array.type}: cast it first"
    )


def _is_list(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_list(data_type) or pa.types.is_large_list(data_type))


# The same types are tested for each column of each batch.
@functools.lru_cache(256)
def _needs_cast(data_type: pa.DataType) -> bool:
    """Returns whether an Arrow type has an encoding that `_ColumnWalk` can't read."""
    while _is_list(data_type) or pa.types.is_fixed_size_list(data_type):
        data_type = data_type.value_type
    tests = (
        pa.types.is_dictionary,
        pa.types.is_string_view,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
        pa.types.is_date,
        pa.types.is_null,
    )
    return any(test(data_type) for test in tests)


def _validity_bytes(array: pa.Array) -> Bytes | None:
    """Returns uint8 [rows], 1 for each value that is not null.

    The result is None if there are no nulls.
    """
    if array.null_count == 0:
        return None
    if (bits := array.buffers()[0]) is None:
        return np.zeros(len(array), np.uint8)
    return _unpack_bits(bits, array.offset, len(array))


def _unpack_bits(buffer: pa.Buffer, offset: int, count: int) -> Bytes:
    packed = np.frombuffer(buffer, np.uint8)[offset // 8 : (offset + count + 7) // 8]
    return np.unpackbits(packed, bitorder="little")[offset % 8 : offset % 8 + count]


def _list_offsets(array: pa.Array) -> Int64s:
    """Returns the offsets of a list, string or binary array, int64 [items + 1].

    The offsets need not start at 0.
    """
    wide = (
        pa.types.is_large_list(array.type)
        or pa.types.is_large_string(array.type)
        or pa.types.is_large_binary(array.type)
    )
    buffer = array.buffers()[1]
    # Arrow allows this for an empty array.
    if buffer is None or buffer.size == 0:
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(buffer, np.int64 if wide else np.int32)[
        array.offset : array.offset + len(array) + 1
    ]
    return offsets.astype(np.int64, copy=False)


def _string_buffers(array: pa.Array) -> tuple[Bytes, Int64s]:
    data = array.buffers()[2]
    return (
        np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    ), _list_offsets(array)


def _primitive_numbers(array: pa.Array) -> npt.NDArray[Any]:
    """Returns the values of an array of numbers. The values of nulls are arbitrary."""
    data_type, buffer = array.type, array.buffers()[1]
    name = (
        "int64"
        if pa.types.is_timestamp(data_type)
        else _NUMPY_DTYPE_NAMES.get(str(data_type), str(data_type))
    )
    if buffer is None:
        return np.zeros(len(array), name)
    if name == "bool":
        return _unpack_bits(buffer, array.offset, len(array))
    dtype = np.dtype(name)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)
