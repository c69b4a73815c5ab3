"""Located cells of one feature to its Arrow array; rows whose values do not fit the schema are marked, not raised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.records import lists, locate
from recordmill.records.locate import Cells
from recordmill.records.room import filled, room
from recordmill.records.wire import Bytes, Ints
from recordmill.schemas.arrow import value_type
from recordmill.schemas.feature import BYTES, FLOAT, INT64, ITEM_BYTES, Feature

_ONE = {INT64: locate.ONE_INT, FLOAT: locate.ONE_FLOAT, BYTES: locate.ONE_BYTES}
_MANY = {INT64: locate.INTS, FLOAT: locate.FLOATS, BYTES: locate.BYTESES}
_EMPTY = np.empty(0, np.int64)

Splits = Ints | int  # where each row's values are: int64 [rows + 1] as Arrow's offsets, or the number that every row has


def mode_of(kind: str, raw: bool, length: int | None) -> int:
    """How a map entry (or a step) is read: one value straight away, or a list in the second pass."""
    if raw:
        return locate.ONE_BYTES
    return (_ONE if length == 1 else _MANY)[kind]


def all_valid(rows: int) -> npt.NDArray[np.uint8]:
    """A bitmap without a null."""
    return filled((rows + 7) // 8, 255, np.uint8)


@dataclass
class Column:
    """One located column. at, size: where the values stand (empty arrays if it holds one number per row). one: those numbers.

    limit: the address where the records' buffer ends. valid: Arrow bitmap. bad: uint8 [rows], where reasons are noted; a row keeps its first.
    """

    limit: int
    mode: int
    at: Ints
    size: Ints
    one: npt.NDArray[np.int64] | npt.NDArray[np.uint32]
    valid: npt.NDArray[np.uint8]
    bad: npt.NDArray[np.uint8]
    nulls: int = 0

    @property
    def rows(self) -> int:
        return len(self.bad)

    def __post_init__(self) -> None:
        self.nulls = self.rows - lists.count_bits(self.valid, self.rows)

    def bitmap(self) -> pa.Buffer | None:
        return pa.py_buffer(self.valid) if self.nulls else None

    def present(self) -> npt.NDArray[np.bool_]:
        return np.unpackbits(self.valid, count=self.rows, bitorder="little").view(np.bool_)

    def blame(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp], reason: int) -> None:
        """Mark rows (a mask or indices) as bad."""
        chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        self.bad[chosen[self.bad[chosen] == 0]] = reason

    def blame_values(self, values: npt.NDArray[np.intp], splits: Splits, reason: int) -> None:
        """Mark the rows to which these values (indices) belong."""
        rows = values // max(splits, 1) if isinstance(splits, int) else np.searchsorted(splits, values, side="right") - 1
        self.blame(np.unique(rows), reason)


def column_of(cells: Cells, column: int, limit: int, bad: npt.NDArray[np.uint8]) -> Column:
    """The cells' column as a Column."""
    mode, place = int(cells.columns[column, 0]), int(cells.places[column])
    spans = mode >= locate.ONE_BYTES
    one = cells.floats[place] if mode == locate.ONE_FLOAT else cells.ints[place] if mode == locate.ONE_INT else _EMPTY
    at, size = (cells.at[place], cells.size[place]) if spans else (_EMPTY, _EMPTY)
    return Column(limit, mode, at, size, one, cells.valid[column], bad)


def assemble(feature: Feature, columns: Sequence[Column]) -> pa.Array:
    """The Arrow array of a feature from the columns of its storages."""
    if feature.per_step:
        return _steps(feature, columns[0])
    return _array(feature, feature.storage()[0].raw, columns)


def _array(feature: Feature, raw: bool, columns: Sequence[Column]) -> pa.Array:
    column = columns[0]
    if not feature.ragged_rank:
        values, _ = _values(feature, raw, column, feature.inner_size)
        if not feature.shape:
            return values
        values_only = pa.Array.from_buffers(values.type, len(values), [None, *values.buffers()[1:]])
        return pa.Array.from_buffers(pa.list_(values.type, feature.inner_size), column.rows, [column.bitmap()], children=[values_only])
    values, offsets = _values(feature, raw, column, None)
    assert not isinstance(offsets, int)
    size = feature.inner_size
    if feature.inner_shape:
        rows = len(values) // size if size else 0
        column.blame(np.diff(offsets) % max(size, 1) != 0, locate.WRONG_COUNT)
        values = pa.Array.from_buffers(pa.list_(values.type, size), rows, [None], children=[values])
        offsets = offsets // max(size, 1)
    if feature.ragged_rank == 1:
        return _list(values, offsets, column)
    return _nested(values, offsets, column, columns[1:])


def _list(values: pa.Array, offsets: Ints, column: Column) -> pa.Array:
    return pa.Array.from_buffers(pa.large_list(values.type), column.rows, [column.bitmap(), pa.py_buffer(offsets)], children=[values])


def _nested(values: pa.Array, offsets: Ints, column: Column, lengths: Sequence[Column]) -> pa.Array:
    """Lists of lists from the flat values and, outermost first, the lengths of the lists at each level."""
    levels = []
    for level in lengths:
        if not np.array_equal(level.valid, column.valid):
            column.blame(level.present() != column.present(), locate.RAGGED)
        counts, level_offsets = _int_lists(level)
        column.blame(level.bad != 0, locate.RAGGED)
        levels.append((counts, level_offsets))
    for depth, (counts, level_offsets) in enumerate(levels):
        inner = levels[depth + 1][1] if depth + 1 < len(levels) else offsets
        wrong = np.add.reduceat(np.append(counts, 0), level_offsets[:-1]) if len(counts) else np.zeros(column.rows, np.int64)
        wrong[np.diff(level_offsets) == 0] = 0
        column.blame(wrong != np.diff(inner), locate.RAGGED)
        column.blame_values(np.flatnonzero((counts < 0) | (counts > inner[-1])), level_offsets, locate.RAGGED)
    if column.bad.any():
        return pa.nulls(column.rows)
    result = values
    for counts, _ in reversed(levels):
        inner_offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=inner_offsets[1:])
        result = pa.LargeListArray.from_arrays(pa.array(inner_offsets), result)
    return _list(result, levels[0][1], column)


def _steps(feature: Feature, column: Column) -> pa.Array:
    """A feature list: the steps are located as if each were a record of one feature, and gathered into lists."""
    offsets = room(column.rows + 1, np.int64)
    steps = lists.count_framed(column.at, column.size, offsets)
    at, size = room(steps, np.int64), room(steps, np.int64)
    lists.find_framed(column.at, column.size, at, size)
    step = Feature(feature.name, feature.dtype, feature.shape[1:])
    raw = feature.storage()[0].raw
    mode = mode_of(feature.kind, raw, None if step.ragged_rank else step.inner_size)
    cells = locate.new_cells(np.array([mode]), np.zeros(1, np.int64), steps)
    locate.locate_steps(at, size, column.limit, cells.columns, cells.status)
    inner = column_of(cells, 0, column.limit, cells.status)
    values = _array(step, raw, [inner])
    wrong = np.flatnonzero(inner.bad)
    if len(wrong):
        rows, first = np.unique(np.searchsorted(offsets, wrong, side="right") - 1, return_index=True)
        for reason in np.unique(inner.bad[wrong[first]]):
            column.blame(rows[inner.bad[wrong[first]] == reason], int(reason))
    return _list(values, offsets, column)


def _values(feature: Feature, raw: bool, column: Column, length: int | None) -> tuple[pa.Array, Splits]:
    """The flat values and their splits; with a length, that many per row, nulls as zeros (and marked, if length is 1)."""
    if raw:
        return _raw(feature, column, length)
    if column.mode == locate.ONE_BYTES:  # by the mode: a step's own Feature may call itself raw where its list is not
        values, ends = _packed_spans(column)
        return _texts(feature, values, ends, 1, column, column.bitmap()), 1
    if column.mode == locate.BYTESES:
        return _byte_lists(feature, column, length)
    numbers, splits = _numbers(column, length)
    array = _typed(feature, numbers, splits, column)
    if length == 1 and column.nulls:
        array = pa.Array.from_buffers(array.type, len(array), [column.bitmap(), *array.buffers()[1:]])
    return array, splits


def _numbers(column: Column, length: int | None) -> tuple[npt.NDArray[Any], Splits]:
    """int64 or float32 values and their splits."""
    if column.mode == locate.ONE_INT:
        return column.one, 1
    if column.mode == locate.ONE_FLOAT:
        return column.one.view(np.float32), 1
    if column.mode == locate.INTS:
        values, offsets = _int_lists(column)
        return (values, offsets) if length is None else (_spread(column, values, offsets, length), length)
    if length is not None:
        return _spread_spans(column, 4 * length, locate.WRONG_COUNT).view(np.float32), length
    spans, offsets = _packed_spans(column)
    return spans.view(np.float32), offsets >> 2


def _int_lists(column: Column) -> tuple[Ints, Ints]:
    """The varints of all rows and their offsets."""
    offsets = room(column.rows + 1, np.int64)
    values = room(lists.count_varints(column.at, column.size, column.bad, offsets), np.int64)
    lists.read_varints(column.at, column.size, column.limit, column.bad, offsets, values)
    return values, offsets


def _spread(column: Column, values: npt.NDArray[Any], offsets: Ints, length: int) -> npt.NDArray[Any]:
    """The values as exactly length per row, zeros for a null; rows that are none and have another number are marked."""
    counts = np.diff(offsets)
    right = counts == length
    if right.all():
        return values
    column.blame(~right & column.present(), locate.WRONG_COUNT)
    full = np.zeros((column.rows, length), values.dtype)
    full[right] = values[np.repeat(right, counts)].reshape(np.count_nonzero(right), length)
    return full.reshape(-1)


def _packed_spans(column: Column) -> tuple[Bytes, Ints]:
    """The rows' bytes one behind the other, and their offsets."""
    offsets = room(column.rows + 1, np.int64)
    offsets[0] = 0
    np.cumsum(column.size, out=offsets[1:])
    values = room(int(offsets[-1]) + lists.SLACK, np.uint8)
    lists.copy_spans(column.at, column.size, column.limit, offsets, values)
    return values[: offsets[-1]], offsets


def _spread_spans(column: Column, stride: int, reason: int) -> Bytes:
    """The rows' bytes, exactly stride each, zeros for a null; rows that are none and have another number are marked."""
    wrong = column.size != stride
    if wrong.any():
        column.blame(wrong & column.present(), reason)
        column.size = np.where(wrong, 0, column.size)
    values = room(column.rows * stride, np.uint8)
    lists.place_spans(column.at, column.size, stride, values)
    return values


def _raw(feature: Feature, column: Column, length: int | None) -> tuple[pa.Array, Splits]:
    """The numbers of tensors that are stored as their own bytes."""
    item = ITEM_BYTES[feature.dtype]
    splits: Splits
    if length is None:
        column.blame(column.size % item != 0, locate.WRONG_SIZE)
        values, ends = _packed_spans(column)
        values, splits = values[: len(values) // item * item], ends // item
    else:
        values, splits = _spread_spans(column, item * length, locate.WRONG_SIZE), length
    typed = values.view(np.dtype(feature.dtype))
    bitmap = column.bitmap() if length == 1 else None
    return pa.Array.from_buffers(value_type(feature), len(typed), [bitmap, pa.py_buffer(typed)]), splits


def _byte_lists(feature: Feature, column: Column, length: int | None) -> tuple[pa.Array, Splits]:
    """The byte strings of all rows."""
    offsets = room(column.rows + 1, np.int64)
    count = lists.count_framed(column.at, column.size, offsets)
    at, size = room(count, np.int64), room(count, np.int64)
    lists.find_framed(column.at, column.size, at, size)
    splits: Splits = offsets
    if length is not None:
        at, size, splits = _spread(column, at, offsets, length), _spread(column, size, offsets, length), length
    values, ends = _packed_spans(Column(column.limit, locate.ONE_BYTES, at, size, _EMPTY, all_valid(len(at)), np.zeros(len(at), np.uint8)))
    return _texts(feature, values, ends, splits, column, None), splits


def _texts(feature: Feature, values: Bytes, ends: Ints, splits: Splits, column: Column, bitmap: pa.Buffer | None) -> pa.Array:
    """large_string or large_binary of the values; strings that are not UTF-8 mark their rows."""
    count = len(ends) - 1
    if feature.dtype == "string":
        flags = np.zeros(count, np.uint8)
        if lists.check_utf8(values, ends, flags):
            column.blame_values(np.flatnonzero(flags), splits, locate.NOT_UTF8)
    return pa.Array.from_buffers(value_type(feature), count, [bitmap, pa.py_buffer(ends), pa.py_buffer(values)])


def _typed(feature: Feature, numbers: npt.NDArray[Any], splits: Splits, column: Column) -> pa.Array:
    """The numbers in the feature's own type; values outside it mark their rows."""
    typed, wrong = numbers, _EMPTY
    if feature.dtype == "bool":
        wrong = np.flatnonzero(numbers.view(np.uint64) > 1)
        typed = np.packbits(numbers != 0, bitorder="little")
    elif feature.dtype == "float16":
        with np.errstate(over="ignore"):
            typed = numbers.astype(np.float16)
    elif numbers.dtype == np.int64 and not feature.timestamp and feature.dtype not in ("int64", "uint64"):
        typed = room(len(numbers), feature.dtype)
        np.copyto(typed, numbers, casting="unsafe")
        wrong = np.flatnonzero(typed != numbers)
    if len(wrong):
        column.blame_values(wrong, splits, locate.OUT_OF_RANGE)
    return pa.Array.from_buffers(value_type(feature), len(numbers), [None, pa.py_buffer(typed)])
