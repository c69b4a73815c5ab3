"""Conversion of Python objects with rows to Arrow batches.

`to_batches` accepts Arrow tables, pandas data frames, dicts of arrays, lists of dicts, iterators
and generators.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import Bools, to_offsets
from recordmill.base.errors import DataError, UsageError
from recordmill.schemas.arrow import METADATA_KEY, to_arrow_field
from recordmill.schemas.feature import ITEM_BYTES, Feature
from recordmill.sources.common.contract import BATCH_BYTES, BATCH_ROWS
from recordmill.sources.values.conform import quote_value
from recordmill.sources.values.flatten import check_column_names

# 16,384 rows: Python objects take about ten times the memory of their Arrow form, and all objects
# of a batch are in memory at once
_MAX_BATCH_ROWS = 1 << 14
# The most frequent types of values. A set finds them faster than `isinstance`.
_NUMBERS = frozenset({bool, int, float, np.float32, np.float64, np.int64, type(None)})
_TEXTS, _LISTS = (str, bytes), (list, tuple)
# Units of NumPy's times that Arrow does not have. Such times are converted to seconds.
_COARSE_TIME_UNITS = (
    "h",
    "m",
    "W",
    "M",
    "Y",
    "generic",
)


def rows_to_batches(rows: Iterable[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    """Converts dicts to batches of at most 16,384 rows and about BATCH_BYTES.

    The columns of a batch are in the order in which its rows first use them. A key that a row lacks
    is null there. Arrays and lists are copied, so a generator may use them again for its next row.

    Args:
        rows: Dicts of column names to values.

    Raises:
        DataError: A row is not a mapping, or a value does not fit the type of its column. The
            message names the row, the column and the type.
        Exception: Any error that iterating over `rows` raises.
    """
    first_row, num_rows, size = 0, 0, 0
    columns: dict[str, list[Any]] = {}
    for row in rows:
        # the check of the exact type is first, because a check against an abstract class is slow
        if type(row) is not dict and not isinstance(row, Mapping):
            raise DataError(
                f"is of type {type(row).__name__}, not a dict of column names to values",
                source="memory",
                place=f"row {first_row + num_rows}",
            )
        for name, value in row.items():
            kind = type(value)
            if kind in _NUMBERS:
                size += 8
            elif kind in _TEXTS:
                size += len(value)
            elif kind is np.ndarray:
                value = value.copy()
                size += value.nbytes
            else:
                value = _copy_value(value)
                size += _estimated_bytes(value)
            if name in columns:
                columns[name].append(value)
            else:
                columns[name] = [None] * num_rows + [value]
        num_rows += 1
        if len(row) < len(columns):
            for values in columns.values():
                if len(values) < num_rows:
                    values.append(None)
        if num_rows >= _MAX_BATCH_ROWS or size >= BATCH_BYTES:
            yield _columns_to_batch(columns, first_row, num_rows)
            first_row, num_rows, size, columns = first_row + num_rows, 0, 0, {}
    if num_rows:
        yield _columns_to_batch(columns, first_row, num_rows)


def _copy_value(value: Any) -> Any:
    """Copies the containers of a value, at any depth. Other values are returned as they are."""
    if isinstance(value, _LISTS):
        if not value or type(value[0]) in _NUMBERS or type(value[0]) in _TEXTS:
            return value[:]
        return [*map(_copy_value, value)]
    if isinstance(value, Mapping):
        return {key: _copy_value(item) for key, item in value.items()}
    return value.copy() if isinstance(value, np.ndarray | bytearray) else value


def _estimated_bytes(value: object) -> int:
    if isinstance(value, _LISTS):
        # a list of numbers can be long, so its items are not counted one by one
        if not value or type(value[0]) in _NUMBERS:
            return 8 * len(value)
        return sum(map(_estimated_bytes, value))
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, _TEXTS):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_estimated_bytes, value.values()))
    return 8


def _columns_to_batch(
    columns: Mapping[str, Sequence[Any]], first_row: int, num_rows: int
) -> pa.RecordBatch:
    fields, arrays = [], []
    for name in columns:
        if not isinstance(name, str):
            raise DataError(f"column names are text, but one is {name!r}", source="memory")
    check_column_names([*columns], "memory")
    for name, values in columns.items():
        field, array = objects_to_column(name, values, first_row)
        fields.append(field)
        arrays.append(array)
    if not arrays:  # only a struct keeps the number of rows without columns
        return pa.RecordBatch.from_struct_array(pa.array([{}] * num_rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def objects_to_column(
    name: str, values: Sequence[Any], first_row: int = 0
) -> tuple[pa.Field, pa.Array]:
    """Converts Python values to (field, column).

    Args:
        name: Name of the column.
        values: One value per row. None is a null.
        first_row: Row number of the first value, for messages.

    Raises:
        DataError: The values have different types, or a type that Arrow can't convert.
    """
    values = _unmask_all(name, values, first_row)
    kinds = {type(value) for value in values} - {type(None)}
    if any(issubclass(kind, np.ndarray) for kind in kinds):
        return _arrays_to_column(name, values, first_row)
    if len({_type_family(kind) for kind in kinds}) > 1:
        description = _describe_first_rows(
            (None if value is None else type(value).__name__ for value in values), first_row
        )
        raise DataError(f"{name!r} is {description}; give it one type", source="memory")
    try:
        column = (
            _scalars_to_array(values)
            if any(issubclass(kind, np.generic) for kind in kinds)
            else _objects_to_array(values)
        )
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        OverflowError,
        UnicodeEncodeError,
    ) as error:
        raise _located_error(name, values, first_row, error) from None
    _check_time_zones(name, column.type, values, first_row)
    return pa.field(name, column.type), column


def _unmask_all(name: str, values: Any, first_row: int = 0) -> Any:
    """Converts NumPy's masked arrays in a column or list to plain ones.

    If all items of an array are masked, it becomes None. Values without masked arrays are returned
    as they are.

    Raises:
        DataError: Only some items of an array are masked.
    """
    return (
        [_unmask(name, value, row) for row, value in enumerate(values, first_row)]
        if _has_masks(values)
        else values
    )


def _has_masks(values: Iterable[Any]) -> bool:
    """Returns whether a value is a masked array, or contains one at any depth.

    Args:
        values: Values that can be iterated repeatedly.
    """
    kinds = set(map(type, values))
    if any(issubclass(kind, np.ma.MaskedArray) for kind in kinds):
        return True
    dicts = tuple(kind for kind in kinds if issubclass(kind, Mapping))
    lists = tuple(kind for kind in kinds if issubclass(kind, list | tuple))
    inner: list[Iterable[Any]] = (
        [value.values() for value in values if isinstance(value, dicts)] if dicts else []
    )
    inner += [value for value in values if isinstance(value, lists)] if lists else []
    # all values of a level at once, which is faster
    return bool(inner) and _has_masks(list(chain.from_iterable(inner)))


def _unmask(name: str, value: Any, row: int) -> Any:
    """Converts masked arrays in one value. An array becomes None if all of its items are masked.

    Raises:
        DataError: Only some items of an array are masked.
    """
    if isinstance(value, Mapping):
        return {key: _unmask(name, item, row) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_unmask(name, item, row) for item in value]
    if not isinstance(value, np.ma.MaskedArray):
        return value
    mask = np.ma.getmaskarray(value)
    if mask.any() and not mask.all():
        raise DataError(
            f"{name!r} is an array of which some items are masked, and a tensor can't "
            "have missing items; fill them, or mask all of it, which is then missing",
            source="memory",
            place=f"row {row}",
        )
    return None if mask.any() else value.data[()]


def _check_time_zones(name: str, kind: pa.DataType, values: Iterable[Any], first_row: int) -> None:
    """Raises DataError if a column has times with a zone and times without one.

    Arrow would treat each of them as the other.
    """
    rows_by_awareness: dict[bool, int] = {}
    for row, value in enumerate(values, first_row) if _has_times(kind) else ():
        for time in _iter_datetimes(value):
            rows_by_awareness.setdefault(time.tzinfo is not None, row)
    if len(rows_by_awareness) > 1:
        raise DataError(
            f"{name!r} is a time with a time zone in row {rows_by_awareness[True]} and one without in row {rows_by_awareness[False]}; give all "
            "of them one, as in value.replace(tzinfo=datetime.timezone.utc)",
            source="memory",
        )


def _has_times(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_times(field.type) for field in kind)
    return bool(pa.types.is_timestamp(kind)) or (
        hasattr(kind, "value_type") and _has_times(kind.value_type)
    )


def _iter_datetimes(value: Any) -> Iterator[datetime.datetime]:
    if isinstance(value, datetime.datetime):
        yield value
    elif isinstance(value, Mapping):
        yield from chain.from_iterable(map(_iter_datetimes, value.values()))
    elif isinstance(value, list | tuple):
        yield from chain.from_iterable(map(_iter_datetimes, value))


def _objects_to_array(values: Sequence[Any]) -> pa.Array:
    try:
        column = pa.array(values)
    except OverflowError:
        column = pa.array(values, pa.uint64())
    return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column


def _scalars_to_array(values: Sequence[Any]) -> pa.Array:
    """Converts NumPy scalars of one family, such as numbers.

    The result has the smallest dtype that holds all of their dtypes. None is a null.
    """
    dtypes = {
        value.dtype if isinstance(value, np.generic) else np.asarray(value).dtype
        for value in values
        if value is not None
    }
    joined = np.result_type(*dtypes)
    missing = np.array([value is None for value in values])
    if joined.kind not in "biufM":
        return pa.array([None if value is None else value.item() for value in values])
    dense = np.zeros(len(values), joined)
    dense[~missing] = [value for value in values if value is not None]
    return _to_nullable_array(dense, missing)


def _to_nullable_array(
    values: np.ndarray[Any, Any], missing: np.ndarray[Any, Any] | None
) -> pa.Array:
    """Converts a one-dimensional array. NaT is null, as are the values that `missing` marks."""
    # with a mask, Arrow would read NaT as a time
    if missing is not None and values.dtype.kind == "M":
        missing = missing | np.isnat(values)
    return pa.array(values, mask=missing)


_FAMILIES: dict[str, tuple[type, ...]] = {
    "bool": (bool, np.bool_),
    "number": (int, np.integer, float, np.floating),
    "list": (list, tuple),
    "dict": (Mapping,),
    "text": (str,),
    "bytes": (bytes,),
}


def _type_family(kind: type) -> str:
    return next(
        (name for name, kinds in _FAMILIES.items() if issubclass(kind, kinds)), kind.__name__
    )


def _arrays_to_column(
    name: str, values: Sequence[Any], first_row: int
) -> tuple[pa.Field, pa.Array]:
    arrays = [None if value is None else np.asarray(value) for value in values]
    present = [array for array in arrays if array is not None]
    dtypes = {array.dtype for array in present}
    shapes = {array.shape for array in present}
    if len(set(map(_dtype_family, dtypes))) > 1 or len(set(map(len, shapes))) > 1:
        description = _describe_first_rows(
            (array if array is None else f"{array.dtype} of rank {array.ndim}" for array in arrays),
            first_row,
        )
        raise DataError(
            f"{name!r} holds arrays of {description}; give it one dtype and rank", source="memory"
        )
    dtype = np.result_type(*dtypes)
    if present[0].ndim == 0:
        return objects_to_column(
            name, [None if array is None else array[()] for array in arrays], first_row
        )
    feature_dtype = _feature_dtype(dtype, name)
    if len(shapes) == 1:
        # a concatenation is several times as fast as np.stack for many small arrays
        shape = present[0].shape
        stacked = np.concatenate(present, dtype=dtype).reshape(len(present), *shape)
        if len(present) == len(values):
            return tensors_to_column(name, stacked, None)
        missing = np.array([array is None for array in arrays])
        dense = np.zeros((len(values), *shape), dtype)
        dense[~missing] = stacked
        return tensors_to_column(name, dense, missing)
    # Not only the first dimension varies, so the arrays become nested lists of their dtype.
    if len({shape[1:] for shape in shapes}) > 1:
        column = pa.array([None if array is None else array.tolist() for array in arrays])
        if pa.types.is_floating(_leaf_type(column.type)) or pa.types.is_integer(
            _leaf_type(column.type)
        ):
            column = column.cast(_with_leaf_type(column.type, pa.from_numpy_dtype(dtype)))
        return pa.field(name, column.type), column
    # Only the first dimension varies, so one array of all items is divided into lists.
    field, items = tensors_to_column(name, np.concatenate(present).astype(dtype, copy=False), None)
    lengths = np.array([0 if array is None else len(array) for array in arrays], np.int64)
    mask = pa.array([array is None for array in arrays]) if len(present) < len(arrays) else None
    column = pa.LargeListArray.from_arrays(pa.array(to_offsets(lengths)), items, mask=mask)
    metadata = field.metadata
    if metadata is not None:
        kind = items.type.value_type if pa.types.is_nested(items.type) else items.type
        feature_dtype = "bytes" if pa.types.is_binary(kind) else feature_dtype
        return to_arrow_field(Feature(name, feature_dtype, (None, *present[0].shape[1:]))), column
    return pa.field(name, column.type), column


def tensors_to_column(
    name: str, dense: np.ndarray[Any, Any], missing: np.ndarray[Any, Any] | None = None
) -> tuple[pa.Field, pa.Array]:
    """Converts an array to a column with one tensor per row.

    Args:
        name: Name of the column.
        dense: [rows, ...] The tensors. The dimensions after the first are the shape of each tensor.
        missing: [rows] True for rows that are null. None means that no row is.

    Returns:
        (field, column). The metadata of the field contains the shape and dtype if the Arrow type
        does not show them.

    Raises:
        DataError: No feature can have this dtype, such as complex.
    """
    dtype = _feature_dtype(dense.dtype, name)
    rows, shape = len(dense), tuple(dense.shape[1:])
    if dtype == "bfloat16":
        dense = dense.astype(np.float32)
    # Arrow has fewer units than NumPy, and reads a multiple of a unit as the unit itself
    if dense.dtype.kind == "M":
        unit = np.datetime_data(dense.dtype)[0]
        dense = dense.astype(
            f"datetime64[{'s' if unit in _COARSE_TIME_UNITS else unit}]", copy=False
        )
    flat = np.ascontiguousarray(dense.reshape(-1)).astype(dense.dtype.newbyteorder("="), copy=False)
    values = pa.array(flat.tolist() if dense.dtype.kind in "OSU" else flat)
    if not shape:
        column = values if missing is None else _to_nullable_array(flat, missing)
    elif values.type == pa.null() or not np.prod(shape):
        column = pa.FixedSizeListArray.from_buffers(
            pa.list_(values.type, int(np.prod(shape))), rows, [None], children=[values]
        )
    else:
        column = pa.FixedSizeListArray.from_arrays(
            values, int(np.prod(shape)), mask=None if missing is None else pa.array(missing)
        )
    dtype = "bytes" if pa.types.is_binary(values.type) else dtype
    metadata = to_arrow_field(Feature(name, dtype, shape)).metadata
    return pa.field(
        name, column.type, metadata=metadata if METADATA_KEY in metadata else None
    ), column


def _feature_dtype(dtype: np.dtype[Any], name: str) -> str:
    if dtype.name in ITEM_BYTES:
        return str(dtype.name)
    if dtype.kind == "M":
        unit = np.datetime_data(dtype)[0]
        if unit in (*_COARSE_TIME_UNITS, "D", "s", "ms", "us", "ns"):
            return f"timestamp[{unit if unit in ('s', 'ms', 'us', 'ns') else 's'}]"
    if dtype.kind in "OU":
        return "string"
    if dtype.kind == "S":
        return "bytes"
    raise DataError(f"column {name!r}: no feature can hold NumPy's {dtype}", source="memory")


def _dtype_family(dtype: np.dtype[Any]) -> str:
    return "number" if dtype.kind in "iuf" or dtype.name == "bfloat16" else dtype.kind


def _leaf_type(kind: pa.DataType) -> pa.DataType:
    return _leaf_type(kind.value_type) if pa.types.is_list(kind) else kind


def _with_leaf_type(kind: pa.DataType, leaf: pa.DataType) -> pa.DataType:
    return pa.list_(_with_leaf_type(kind.value_type, leaf)) if pa.types.is_list(kind) else leaf


def _describe_first_rows(kinds: Iterable[str | None], first_row: int) -> str:
    rows: dict[str, int] = {}
    for row, kind in enumerate(kinds, first_row):
        if kind is not None:
            rows.setdefault(kind, row)
    return " and ".join(f"{kind} in row {row}" for kind, row in rows.items())


def _located_error(name: str, values: Sequence[Any], first_row: int, error: Exception) -> DataError:
    """Returns a conversion error that names the first value that does not fit.

    A binary search finds this value.
    """
    low, high = 0, len(values)  # values[:low] can be converted, values[:high] can't
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _objects_to_array(values[:middle])
            low = middle
        except Exception:
            high = middle
    text = str(error).split("\n")[0][:200]
    return DataError(
        f"{name!r} is {quote_value(values[high - 1])}, which does not fit the rows "
        f"before it: {text}",
        source="memory",
        place=f"row {first_row + high - 1}",
    )


def to_batches(source: Any) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a Python object as Arrow batches.

    A batch has at most BATCH_ROWS rows and about BATCH_BYTES.

    Args:
        source: A pyarrow Table, RecordBatch or reader, a pandas DataFrame, an object with
            `__arrow_c_stream__`, a dict of column names to arrays or lists, or an iterable of
            dicts, tables or batches.

    Raises:
        UsageError: The object is not supported.
        DataError: Columns can't be features, or have different lengths.
    """
    for batch in _iter_batches(source):
        rows = max(1, min(BATCH_ROWS, BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1)))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _iter_batches(source: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(source, pa.RecordBatch):
        return iter([source])
    if isinstance(source, pa.Table | pa.RecordBatchReader):
        return iter(source.to_batches() if isinstance(source, pa.Table) else source)
    if type(source).__module__.split(".")[0] == "pandas" and hasattr(source, "columns"):
        return _mapping_batches(_frame_columns(source))
    if hasattr(source, "__arrow_c_stream__"):
        try:
            return iter(pa.RecordBatchReader.from_stream(source))
        except pa.ArrowInvalid:
            # a stream of a single column, as a Series has
            raise UsageError(
                f"can't build from an object of type {type(source).__name__}, because it has no column names: give a dict such as "
                '{"value": data}'
            ) from None
    if isinstance(source, Mapping):
        return _mapping_batches(source)
    if isinstance(source, Iterable) and not isinstance(source, str | bytes | np.ndarray):
        return _iterable_batches(source)
    raise UsageError(
        f"can't build from an object of type {type(source).__name__}: give paths, a pyarrow Table or reader, a pandas DataFrame, "
        "a dict of column names to arrays, or an iterable of dicts"
    )


def _frame_columns(frame: Any) -> dict[str, Any]:
    """Returns the columns of a DataFrame, and the named levels of its index."""
    levels = [name for name in frame.index.names if name is not None]
    check_column_names([str(name) for name in (*frame.columns, *levels)], "DataFrame")
    columns = {str(name): frame[name] for name in frame.columns}
    return columns | {str(name): frame.index.get_level_values(name) for name in levels}


def _iterable_batches(source: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    rows = iter(source)
    for first_item in rows:
        items = chain([first_item], rows)
        # The first item decides if all items are treated as batches or as rows.
        if isinstance(first_item, pa.RecordBatch | pa.Table):
            return (batch for item in items for batch in _iter_batches(item))
        return rows_to_batches(items)
    return iter([])


def _mapping_batches(source: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """Yields all columns of a dict as one batch.

    Arrays are converted without a loop over their elements. Only Python lists and arrays of objects
    need one.

    Raises:
        UsageError: A column is not an array or list.
        DataError: The columns have different lengths, or can't be features.
    """
    if not source:
        return
    lengths = {}
    for name, column in source.items():
        if (
            isinstance(column, str | bytes)
            or not hasattr(column, "__len__")
            or (isinstance(column, np.ndarray) and column.ndim == 0)
        ):
            raise UsageError(
                f"column {name!r} is of type {type(column).__name__}; a dict of columns holds arrays or lists of "
                "one value per record"
            )
        lengths[name] = len(column)
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"columns of different length: {', '.join(f'{name!r} {length}' for name, length in lengths.items())}",
            source="memory",
        )
    check_column_names([str(name) for name in source], "memory")
    fields, arrays = zip(
        *(_to_column(str(name), column) for name, column in source.items()), strict=True
    )
    yield pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))


def _to_column(name: str, column: Any) -> tuple[pa.Field, pa.Array]:
    if isinstance(column, pa.ChunkedArray | pa.Array):
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
        return pa.field(name, array.type), array
    if isinstance(column, np.ma.MaskedArray):
        masks = np.ma.getmaskarray(column).reshape(len(column), -1)
        missing: Bools = np.asarray(masks.any(axis=1))
        for row in np.flatnonzero(missing & ~masks.all(axis=1))[:1].tolist():
            _unmask(name, column[row], row)
        return tensors_to_column(name, np.asarray(column.data), missing if missing.any() else None)
    if type(column).__module__.split(".")[0] == "pandas":
        try:
            array = pa.Array.from_pandas(_unmask_all(name, column))
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise DataError(
                f"column {name!r}: {error}; give the column one type", source="DataFrame"
            ) from None
        if column.dtype == object:
            _check_time_zones(name, array.type, column, 0)
        return _to_column(name, array)
    if isinstance(column, np.ndarray) and (column.dtype.kind != "O" or column.ndim > 1):
        return tensors_to_column(name, column)
    return objects_to_column(name, list(column))
