"""Located cells of one feature to its Arrow array; rows whose values do not fit the schema are marked, not raised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s, allocate
from recordmill.records.example import locate
from recordmill.records.example.locate import Cells, LocatedColumns
from recordmill.schemas.arrow import value_type
from recordmill.schemas.feature import BYTES_LIST, FLOAT_LIST, INT64_LIST, ITEM_BYTES, Feature

_ONE = {
    INT64_LIST: native.CellMode.ONE_INT64,
    FLOAT_LIST: native.CellMode.ONE_FLOAT,
    BYTES_LIST: native.CellMode.ONE_BYTES,
}
_MANY = {
    INT64_LIST: native.CellMode.INT64_LIST,
    FLOAT_LIST: native.CellMode.FLOAT_LIST,
    BYTES_LIST: native.CellMode.BYTES_LIST,
}
_EMPTY = np.empty(0, np.int64)
_TEXTS_AT_ONCE = 1 << 16  # whose faults are an array
_NARROW = (
    "int8",
    "int16",
    "int32",
    "uint8",
    "uint16",
    "uint32",
)  # in an int64_list, and not all of int64 fits

# where each row's values are: int64 [rows + 1] as Arrow's offsets, or the number that every row has
RowSplits = Int64s | int


def assembly_mode(kind: str, raw: bool, length: int | None) -> int:
    """Returns how a map entry (or a step) is read: one value straight away, or a list in the second pass."""
    if raw:
        return native.CellMode.ONE_BYTES
    return (_ONE if length == 1 else _MANY)[kind]


@dataclass(frozen=True)
class ColumnLayout:
    """Feature with everything worked out that its arrays need.

    Attributes:
        modes: of its storages, in order.
        value: the Arrow type of a value.
        fixed: the Arrow type of the fixed dimensions around it; None: there are none.
        step: of a feature list, the layout of one step.
    """

    feature: Feature
    modes: tuple[int, ...]
    ragged_rank: int
    size: int
    raw: bool
    value: pa.DataType
    fixed: pa.DataType | None
    step: ColumnLayout | None = None

    @classmethod
    def of(cls, feature: Feature) -> ColumnLayout:
        """Raises ValueError for a feature list with more variable dimensions than it can hold."""
        storages = feature.storage()
        if not feature.per_step:
            return cls._of(
                feature,
                storages[0].raw,
                tuple(assembly_mode(one.kind, one.raw, one.length) for one in storages),
            )
        if feature.ragged_rank > 2:
            raise ValueError(
                f"feature {feature.name!r}: {feature.describe()} has more variable dimensions than a feature "
                "list can hold: 2"
            )
        # which may call itself raw where the list's storage is not
        step = Feature(feature.name, feature.dtype, feature.shape[1:])
        mode = assembly_mode(
            storages[0].kind, storages[0].raw, None if step.ragged_rank else step.inner_size
        )
        return replace(
            cls._of(feature, storages[0].raw, (native.CellMode.STEPS,)),
            step=cls._of(step, storages[0].raw, (mode,)),
        )

    @classmethod
    def _of(cls, feature: Feature, raw: bool, modes: tuple[int, ...]) -> ColumnLayout:
        value, size = value_type(feature), feature.inner_size
        return cls(
            feature,
            modes,
            feature.ragged_rank,
            size,
            raw,
            value,
            pa.list_(value, size) if feature.inner_shape else None,
        )


@dataclass
class AssembledColumn:
    """One located column.

    Attributes:
        rows: cells.
        data: the bytes that the cells refer to.
        mode: ONE_INT64 ... STEPS of the native library.
        at: where the values stand; empty if it holds one number per row.
        size: their bytes.
        one: the numbers.
        valid: Arrow bitmap, if there may be nulls.
        bad: what is wrong with rows, if anything is.
    """

    rows: int
    data: Bytes
    mode: int
    at: Int64s
    size: Int64s
    one: npt.NDArray[np.int64] | npt.NDArray[np.uint32]
    valid: npt.NDArray[np.uint8] | None = None
    bad: npt.NDArray[np.uint8] | None = None

    def bitmap(self) -> pa.Buffer | None:
        return None if self.valid is None else pa.py_buffer(self.valid)

    def present(self) -> npt.NDArray[np.bool_]:
        return (
            np.ones(self.rows, np.bool_)
            if self.valid is None
            else np.unpackbits(self.valid, count=self.rows, bitorder="little").view(np.bool_)
        )

    def blame(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp], reason: int) -> None:
        """Marks rows (a mask or indices) as bad; a row keeps its first reason."""
        chosen = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        if len(chosen):
            if self.bad is None:
                self.bad = np.zeros(self.rows, np.uint8)
            self.bad[chosen[self.bad[chosen] == 0]] = reason

    def blame_values(self, values: npt.NDArray[np.intp], splits: RowSplits, reason: int) -> None:
        """Marks the rows to which these values (indices) belong."""
        rows = (
            values // max(splits, 1)
            if isinstance(splits, int)
            else np.searchsorted(splits, values, side="right") - 1
        )
        self.blame(np.unique(rows), reason)


def column_of(cells: Cells, known: LocatedColumns, column: int, data: Bytes) -> AssembledColumn:
    """Returns one of the cells' columns, with the bytes that it refers to."""
    rows, mode, place = len(cells.status), int(known.modes[column]), int(known.places[column])
    valid = cells.valid[column] if cells.has_nulls(column) else None
    if mode >= native.CellMode.ONE_BYTES:
        return AssembledColumn(rows, data, mode, cells.at[place], cells.sizes[place], _EMPTY, valid)
    one = cells.floats[place] if mode == native.CellMode.ONE_FLOAT else cells.ints[place]
    return AssembledColumn(rows, data, mode, _EMPTY, _EMPTY, one, valid)


def located_size(column: AssembledColumn) -> tuple[int, int]:
    """Returns (bytes, values) that the column becomes at most."""
    size, offsets = int(column.size.sum()), np.empty(column.rows + 1, np.int64)
    if column.mode in (
        native.CellMode.ONE_INT64,
        native.CellMode.ONE_FLOAT,
        native.CellMode.ONE_BYTES,
    ):
        return 8 * column.rows + size, column.rows
    if column.mode == native.CellMode.FLOAT_LIST:
        return size, size // 4
    if column.mode == native.CellMode.INT64_LIST:
        bad = np.zeros(column.rows, np.uint8)
        count = native.read_varints(column.data, column.at, column.size, offsets, None, bad)
        return 8 * count, count
    count = native.find_fields(column.data, column.at, column.size, offsets, None, None)
    if column.mode == native.CellMode.BYTES_LIST:
        return size + 24 * count, count
    return 8 * size + 64 * count, size


def assemble(layout: ColumnLayout, columns: Sequence[AssembledColumn]) -> pa.Array:
    """Returns a feature's array of the columns of its storages; what does not fit is noted in the first one's bad."""
    column = columns[0]
    if layout.step is not None:
        return _steps(layout.step, column)
    if not layout.ragged_rank:
        values, _ = _values(layout, column, layout.size)
        if layout.fixed is None:
            return values
        return pa.Array.from_buffers(
            layout.fixed, column.rows, [column.bitmap()], children=[values]
        )
    values, offsets = _values(layout, column, None)
    assert not isinstance(offsets, int)
    if layout.fixed is not None:
        size = max(layout.size, 1)
        column.blame(np.diff(offsets) % size != 0, native.RecordStatus.WRONG_COUNT)
        values = pa.Array.from_buffers(
            layout.fixed, len(values) // size if layout.size else 0, [None], children=[values]
        )
        offsets = offsets // size
    if layout.ragged_rank == 1:
        return _list(values, offsets, column)
    return _nested(values, offsets, column, columns[1:])


def _list(values: pa.Array, offsets: Int64s, column: AssembledColumn) -> pa.Array:
    return pa.Array.from_buffers(
        pa.large_list(values.type),
        column.rows,
        [column.bitmap(), pa.py_buffer(offsets)],
        children=[values],
    )


def _nested(
    values: pa.Array, offsets: Int64s, column: AssembledColumn, lengths: Sequence[AssembledColumn]
) -> pa.Array:
    """Lists of lists from the flat values and, outermost first, the lengths of the lists at each level."""
    levels = []
    for level in lengths:
        if level.valid is not None or column.valid is not None:
            column.blame(level.present() != column.present(), locate.RAGGED_VALUE)
        counts, level_offsets = _int_lists(level)
        if level.bad is not None:
            column.blame(level.bad != 0, locate.RAGGED_VALUE)
        levels.append((counts, level_offsets))
    for depth, (counts, level_offsets) in enumerate(levels):
        inner = levels[depth + 1][1] if depth + 1 < len(levels) else offsets
        wrong = (
            np.add.reduceat(np.append(counts, 0), level_offsets[:-1])
            if len(counts)
            else np.zeros(column.rows, np.int64)
        )
        wrong[np.diff(level_offsets) == 0] = 0
        column.blame(wrong != np.diff(inner), locate.RAGGED_VALUE)
        column.blame_values(
            np.flatnonzero((counts < 0) | (counts > inner[-1])), level_offsets, locate.RAGGED_VALUE
        )
    if column.bad is not None:
        return pa.nulls(column.rows)
    result = values
    for counts, _ in reversed(levels):
        inner_offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=inner_offsets[1:])
        result = pa.LargeListArray.from_arrays(pa.array(inner_offsets), result)
    return _list(result, levels[0][1], column)


def _steps(step: ColumnLayout, column: AssembledColumn) -> pa.Array:
    """A feature list: the steps are located as if each were a record of one feature, and gathered into lists."""
    offsets = allocate(column.rows + 1, np.int64)
    at, size = _fields(column, offsets)
    known = LocatedColumns.of(step.modes, [False])
    cells = known.cells(len(at))
    cells.locate(column.data, at, size, 0, native.OtherFeatures.SKIP, None)
    inner = column_of(cells, known, 0, column.data)
    if cells.status.any():
        inner.bad = cells.status
    values = assemble(step, [inner])
    if inner.bad is not None:
        wrong = np.flatnonzero(inner.bad)
        rows, first = np.unique(
            np.searchsorted(offsets, wrong, side="right") - 1, return_index=True
        )
        for reason in np.unique(inner.bad[wrong[first]]):
            column.blame(rows[inner.bad[wrong[first]] == reason], int(reason))
    return _list(values, offsets, column)


def _values(
    layout: ColumnLayout, column: AssembledColumn, length: int | None
) -> tuple[pa.Array, RowSplits]:
    """Returns flat values and splits; with a length so many per row, zeros for a null (marked in a scalar's)."""
    if layout.raw:
        return _raw(layout, column, length)
    if column.mode == native.CellMode.ONE_BYTES:
        values, ends = _packed_spans(column)
        return _texts(layout, values, ends, 1, column), 1
    if column.mode == native.CellMode.BYTES_LIST:
        return _byte_lists(layout, column, length)
    numbers, splits = _numbers(column, length)
    return _typed(layout, numbers, splits, column), splits


def _marks(layout: ColumnLayout, column: AssembledColumn) -> pa.Buffer | None:
    """The bitmap of a scalar's values; those of lists and tensors have none, their rows have."""
    return column.bitmap() if layout.fixed is None and not layout.ragged_rank else None


def _numbers(column: AssembledColumn, length: int | None) -> tuple[npt.NDArray[Any], RowSplits]:
    """Returns int64 or float32 values and their splits."""
    if column.mode == native.CellMode.ONE_INT64:
        return column.one, 1
    if column.mode == native.CellMode.ONE_FLOAT:
        return column.one.view(np.float32), 1
    if column.mode == native.CellMode.INT64_LIST:
        values, offsets = _int_lists(column)
        return (
            (values, offsets)
            if length is None
            else (_spread(column, values, offsets, length), length)
        )
    if length is not None:
        return _spread_spans(column, 4 * length, native.RecordStatus.WRONG_COUNT).view(
            np.float32
        ), length
    spans, offsets = _packed_spans(column)
    return spans.view(np.float32), offsets >> 2


def _int_lists(column: AssembledColumn) -> tuple[Int64s, Int64s]:
    """The varints of all rows and their offsets."""
    offsets = allocate(column.rows + 1, np.int64)
    bad = np.zeros(column.rows, np.uint8)
    count = native.read_varints(column.data, column.at, column.size, offsets, None, bad)
    values = allocate(count + native.VARINT_ROOM, np.int64)
    native.read_varints(column.data, column.at, column.size, offsets, values, bad)
    for reason in np.unique(bad[bad != 0]) if bad.any() else ():
        column.blame(bad == reason, int(reason))
    return values[:count], offsets


def _spread(
    column: AssembledColumn, values: npt.NDArray[Any], offsets: Int64s, length: int
) -> npt.NDArray[Any]:
    """The values as exactly length per row, zeros for a null; rows that are none and have another number are marked."""
    counts = np.diff(offsets)
    right = counts == length
    if right.all():
        return values
    column.blame(~right & column.present(), native.RecordStatus.WRONG_COUNT)
    full = np.zeros((column.rows, length), values.dtype)
    full[right] = values[np.repeat(right, counts)].reshape(np.count_nonzero(right), length)
    return full.reshape(-1)


def _packed_spans(column: AssembledColumn) -> tuple[Bytes, Int64s]:
    """The rows' bytes one after the other, and their offsets."""
    offsets, values = (
        allocate(column.rows + 1, np.int64),
        allocate(int(column.size.sum()), np.uint8),
    )
    native.copy_values(column.data, column.at, column.size, False, offsets, values)
    return values, offsets


def _spread_spans(column: AssembledColumn, stride: int, reason: int) -> Bytes:
    """The rows' bytes, exactly stride each, zeros for a null; rows that are none and have another number are marked."""
    right = column.size == stride
    if right.all():
        return _packed_spans(column)[0]
    column.blame(~right & column.present(), reason)
    column.size = np.where(right, column.size, 0)
    full = np.zeros((column.rows, stride), np.uint8)
    full[right] = _packed_spans(column)[0].reshape(np.count_nonzero(right), stride)
    return full.reshape(-1)


def _raw(
    layout: ColumnLayout, column: AssembledColumn, length: int | None
) -> tuple[pa.Array, RowSplits]:
    """The numbers of tensors that are stored as their own bytes."""
    item = ITEM_BYTES[layout.feature.dtype]
    splits: RowSplits
    if length is None:
        column.blame(column.size % item != 0, locate.WRONG_SIZE)
        values, ends = _packed_spans(column)
        values, splits = values[: len(values) // item * item], ends // item
    else:
        values, splits = _spread_spans(column, item * length, locate.WRONG_SIZE), length
    typed = values.view(np.dtype(layout.feature.dtype))
    return pa.Array.from_buffers(
        layout.value, len(typed), [_marks(layout, column), pa.py_buffer(typed)]
    ), splits


def _fields(column: AssembledColumn, offsets: Int64s) -> tuple[Int64s, Int64s]:
    """Returns where the length-delimited fields in all rows stand, and their bytes; fills offsets [rows + 1]."""
    count = native.find_fields(column.data, column.at, column.size, offsets, None, None)
    at, size = allocate(count, np.int64), allocate(count, np.int64)
    native.find_fields(column.data, column.at, column.size, offsets, at, size)
    return at, size


def _byte_lists(
    layout: ColumnLayout, column: AssembledColumn, length: int | None
) -> tuple[pa.Array, RowSplits]:
    """The byte strings of all rows."""
    offsets = allocate(column.rows + 1, np.int64)
    if length is None:
        count = native.find_fields(column.data, column.at, column.size, offsets, None, None)
        ends, values = (
            allocate(count + 1, np.int64),
            allocate(int(column.size.sum()) - 2 * count, np.uint8),
        )
        values = values[
            : native.copy_values(column.data, column.at, column.size, True, ends, values)
        ]
        return _texts(layout, values, ends, offsets, column), offsets
    at, size = _fields(column, offsets)
    at, size = _spread(column, at, offsets, length), _spread(column, size, offsets, length)
    values, ends = _packed_spans(
        AssembledColumn(len(at), column.data, native.CellMode.ONE_BYTES, at, size, _EMPTY)
    )
    return _texts(layout, values, ends, length, column), length


def _texts(
    layout: ColumnLayout, values: Bytes, ends: Int64s, splits: RowSplits, column: AssembledColumn
) -> pa.Array:
    """Returns large_string or large_binary of the values; strings that are not UTF-8 mark their rows."""
    count = len(ends) - 1
    if layout.feature.dtype == "string":
        for first in range(0, count, _TEXTS_AT_ONCE):
            some = ends[first : first + _TEXTS_AT_ONCE + 1]
            wrong = allocate(len(some) - 1, np.int64)
            if native.find_bad_lines(values, some[:-1], some[1:], wrong):
                column.blame_values(
                    first + np.flatnonzero(wrong >= 0), splits, locate.VALUE_NOT_UTF8
                )
    return pa.Array.from_buffers(
        layout.value, count, [_marks(layout, column), pa.py_buffer(ends), pa.py_buffer(values)]
    )


def _typed(
    layout: ColumnLayout, numbers: npt.NDArray[Any], splits: RowSplits, column: AssembledColumn
) -> pa.Array:
    """The numbers in the feature's own type; values outside it mark their rows."""
    typed, wrong, dtype = numbers, _EMPTY, layout.feature.dtype
    if dtype == "bool":
        wrong = np.flatnonzero(numbers.view(np.uint64) > 1)
        typed = np.packbits(numbers != 0, bitorder="little")
    elif dtype == "float16":
        with np.errstate(over="ignore"):
            typed = numbers.astype(np.float16)
    elif dtype in _NARROW:
        typed = allocate(len(numbers), dtype)
        np.copyto(typed, numbers, casting="unsafe")
        wrong = np.flatnonzero(typed != numbers)
    if len(wrong):
        column.blame_values(wrong, splits, locate.OUT_OF_RANGE)
    return pa.Array.from_buffers(
        layout.value, len(numbers), [_marks(layout, column), pa.py_buffer(typed)]
    )
