"""Second pass of the decoder, which gathers located values into Arrow arrays.

The first pass (`locate`) has stored where the values are. Rows with values that do not fit the
schema are marked as bad, and no error is raised for them. The values of such a row in the array are
arbitrary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s, allocate, to_offsets
from recordmill.records.example.locate import CellLayout, LocatedCells
from recordmill.schemas.arrow import value_type
from recordmill.schemas.feature import BYTES_LIST, FLOAT_LIST, INT64_LIST, ITEM_BYTES, Feature

_SINGLE_VALUE_MODES = {
    INT64_LIST: native.CellMode.ONE_INT64,
    FLOAT_LIST: native.CellMode.ONE_FLOAT,
    BYTES_LIST: native.CellMode.ONE_BYTES,
}
_LIST_MODES = {
    INT64_LIST: native.CellMode.INT64_LIST,
    FLOAT_LIST: native.CellMode.FLOAT_LIST,
    BYTES_LIST: native.CellMode.BYTES_LIST,
}
_EMPTY = np.empty(0, np.int64)
# 65,536 texts are checked for UTF-8 at once, because the check needs an int64 for each.
_UTF8_CHECK_TEXTS = 1 << 16
# dtypes that are stored in an int64_list and can't hold every int64
_NARROW_DTYPES = (
    "int8",
    "int16",
    "int32",
    "uint8",
    "uint16",
    "uint32",
)

# Row splits: int64 [rows + 1] like the offsets of Arrow, or the number of values if it is the same
# for all rows.
RowSplits = Int64s | int


def cell_mode(kind: str, is_raw: bool, length: int | None) -> int:
    """Returns the CellMode that the first pass uses for an entry or a step.

    Args:
        kind: The kind of the list in the entry or step.
        is_raw: Whether the list contains the bytes of a tensor.
        length: The number of values in each list. None if lists differ. A single number is read in
            the first pass.
    """
    if is_raw:
        return native.CellMode.ONE_BYTES
    return (_SINGLE_VALUE_MODES if length == 1 else _LIST_MODES)[kind]


@dataclass(frozen=True)
class ColumnLayout:
    """A feature with everything that is needed to build its array.

    Attributes:
        feature: The feature.
        modes: The CellMode of each entry of the maps that stores the feature.
        ragged_rank: The number of variable dimensions.
        inner_size: The number of values in the fixed dimensions.
        is_raw: Whether the feature is stored as the bytes of a tensor.
        value_type: The Arrow type of a value.
        tensor_type: The Arrow type of the fixed dimensions around the values. None if there are
            none.
        step: For a feature list, the layout of a step. Otherwise None.
    """

    feature: Feature
    modes: tuple[int, ...]
    ragged_rank: int
    inner_size: int
    is_raw: bool
    value_type: pa.DataType
    tensor_type: pa.DataType | None
    step: ColumnLayout | None = None

    @classmethod
    def from_feature(cls, feature: Feature) -> ColumnLayout:
        """Creates the layout of a feature.

        Raises:
            ValueError: The feature is in a feature list and has more than two variable dimensions.
        """
        storages = feature.storage()
        if not feature.per_step:
            return cls._build(
                feature,
                storages[0].raw,
                tuple(cell_mode(storage.kind, storage.raw, storage.length) for storage in storages),
            )
        if feature.ragged_rank > 2:
            raise ValueError(
                f"feature {feature.name!r}: {feature.describe()} has more variable dimensions than a feature "
                "list can hold: 2"
            )
        # The feature of a step may be raw on its own, but the storage of a feature list never is.
        step = Feature(feature.name, feature.dtype, feature.shape[1:])
        mode = cell_mode(
            storages[0].kind, storages[0].raw, None if step.ragged_rank else step.inner_size
        )
        return replace(
            cls._build(feature, storages[0].raw, (native.CellMode.STEPS,)),
            step=cls._build(step, storages[0].raw, (mode,)),
        )

    @classmethod
    def _build(cls, feature: Feature, is_raw: bool, modes: tuple[int, ...]) -> ColumnLayout:
        value, size = value_type(feature), feature.inner_size
        return cls(
            feature=feature,
            modes=modes,
            ragged_rank=feature.ragged_rank,
            inner_size=size,
            is_raw=is_raw,
            value_type=value,
            tensor_type=pa.list_(value, size) if feature.inner_shape else None,
        )


@dataclass
class LocatedColumn:
    """The cells of one column: values, or their places in the buffer.

    The first pass fills the cells. The object also collects the rows that turn out to be bad in the
    second pass.

    Attributes:
        rows: The number of cells.
        data: uint8 [bytes], the buffer that contains the values.
        mode: The CellMode of the column.
        starts: int64 [rows], the offsets of the values. Empty if the column has one number per row.
        sizes: int64 [rows], the sizes of the values in bytes. Empty in the same case.
        numbers: The numbers, if the column has one per row. Otherwise empty.
        valid: The Arrow bitmap, or None if there are no nulls.
        bad: uint8 [rows], the RecordStatus of each bad row, and 0 for good ones. None if no row is
            bad.
    """

    rows: int
    data: Bytes
    mode: int
    starts: Int64s
    sizes: Int64s
    numbers: npt.NDArray[np.int64] | npt.NDArray[np.uint32]
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

    def mark_bad(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp], reason: int) -> None:
        """Marks rows as bad. A row that is bad already keeps its reason.

        Args:
            rows: A mask or indices.
            reason: A RecordStatus.
        """
        indices = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        if len(indices):
            if self.bad is None:
                self.bad = np.zeros(self.rows, np.uint8)
            self.bad[indices[self.bad[indices] == 0]] = reason

    def mark_bad_values(self, values: npt.NDArray[np.intp], splits: RowSplits, reason: int) -> None:
        """Marks the rows that contain bad values as bad.

        Args:
            values: The indices of the bad values among all values of the column.
            splits: The row splits of the values.
            reason: A RecordStatus.
        """
        rows = (
            values // max(splits, 1)
            if isinstance(splits, int)
            else np.searchsorted(splits, values, side="right") - 1
        )
        self.mark_bad(np.unique(rows), reason)


def get_column(cells: LocatedCells, layout: CellLayout, column: int, data: Bytes) -> LocatedColumn:
    """Returns one column of the result of the first pass.

    Args:
        cells: The result of the first pass.
        layout: The layout of the cells.
        column: The number of the column.
        data: uint8 [bytes], the buffer that contains the values.
    """
    rows, mode, array_row = (
        len(cells.status),
        int(layout.modes[column]),
        int(layout.array_rows[column]),
    )
    valid = cells.valid[column] if cells.columns["null_count"][column] else None
    if mode >= native.CellMode.ONE_BYTES:
        return LocatedColumn(
            rows=rows,
            data=data,
            mode=mode,
            starts=cells.starts[array_row],
            sizes=cells.sizes[array_row],
            numbers=_EMPTY,
            valid=valid,
        )
    numbers = (
        cells.floats[array_row] if mode == native.CellMode.ONE_FLOAT else cells.ints[array_row]
    )
    return LocatedColumn(
        rows=rows, data=data, mode=mode, starts=_EMPTY, sizes=_EMPTY, numbers=numbers, valid=valid
    )


def max_array_size(column: LocatedColumn) -> tuple[int, int]:
    """Returns the maximum size of the Arrow array of a column, as (bytes, number of values)."""
    value_bytes, offsets = int(column.sizes.sum()), np.empty(column.rows + 1, np.int64)
    if column.mode in (
        native.CellMode.ONE_INT64,
        native.CellMode.ONE_FLOAT,
        native.CellMode.ONE_BYTES,
    ):
        return 8 * column.rows + value_bytes, column.rows
    if column.mode == native.CellMode.FLOAT_LIST:
        return value_bytes, value_bytes // 4
    if column.mode == native.CellMode.INT64_LIST:
        # A varint has 1 to 10 bytes, so the values must be counted. The first of the two native
        # calls only counts.
        bad = np.zeros(column.rows, np.uint8)
        count = native.read_varints(column.data, column.starts, column.sizes, offsets, None, bad)
        return 8 * count, count
    count = native.find_fields(column.data, column.starts, column.sizes, offsets, None, None)
    if column.mode == native.CellMode.BYTES_LIST:
        return value_bytes + 24 * count, count
    return 8 * value_bytes + 64 * count, value_bytes


def assemble_column(layout: ColumnLayout, columns: Sequence[LocatedColumn]) -> pa.Array:
    """Builds the Arrow array of a feature.

    Args:
        layout: The layout of the feature.
        columns: The column of each map entry that stores it. Rows that do not fit are marked as bad
            in the first column.
    """
    column = columns[0]
    if layout.step is not None:
        return _assemble_steps(layout.step, column)
    if not layout.ragged_rank:
        values, _ = _flat_values(layout, column, layout.inner_size)
        if layout.tensor_type is None:
            return values
        return pa.Array.from_buffers(
            layout.tensor_type, column.rows, [column.bitmap()], children=[values]
        )
    values, offsets = _flat_values(layout, column, None)
    assert not isinstance(offsets, int)
    if layout.tensor_type is not None:
        size = max(layout.inner_size, 1)
        column.mark_bad(np.diff(offsets) % size != 0, native.RecordStatus.WRONG_COUNT)
        values = pa.Array.from_buffers(
            layout.tensor_type,
            len(values) // size if layout.inner_size else 0,
            [None],
            children=[values],
        )
        offsets = offsets // size
    if layout.ragged_rank == 1:
        return _make_list(values, offsets, column)
    return _nest_lists(values, offsets, column, columns[1:])


def _make_list(values: pa.Array, offsets: Int64s, column: LocatedColumn) -> pa.Array:
    return pa.Array.from_buffers(
        pa.large_list(values.type),
        column.rows,
        [column.bitmap(), pa.py_buffer(offsets)],
        children=[values],
    )


def _nest_lists(
    values: pa.Array, offsets: Int64s, column: LocatedColumn, lengths: Sequence[LocatedColumn]
) -> pa.Array:
    """Builds an array of lists of lists.

    Args:
        values: The values of all rows.
        offsets: int64 [rows + 1], the offset of the values of each row.
        column: The column of the values, in which rows with inconsistent lengths are marked as bad.
        lengths: The columns with the lengths of the lists at each level, outermost first.
    """
    levels = []
    for level in lengths:
        if level.valid is not None or column.valid is not None:
            column.mark_bad(
                level.present() != column.present(), native.RecordStatus.BAD_ROW_LENGTHS
            )
        counts, level_offsets = _read_int_lists(level)
        if level.bad is not None:
            column.mark_bad(level.bad != 0, native.RecordStatus.BAD_ROW_LENGTHS)
        levels.append((counts, level_offsets))
    for depth, (counts, level_offsets) in enumerate(levels):
        inner = levels[depth + 1][1] if depth + 1 < len(levels) else offsets
        # The lengths at each level must add up to the number of items at the next one. `reduceat`
        # needs the appended 0 for rows without lists at the end. For an empty range it returns a
        # single value, which is replaced by 0 below.
        sums = (
            np.add.reduceat(np.append(counts, 0), level_offsets[:-1])
            if len(counts)
            else np.zeros(column.rows, np.int64)
        )
        sums[np.diff(level_offsets) == 0] = 0
        column.mark_bad(sums != np.diff(inner), native.RecordStatus.BAD_ROW_LENGTHS)
        column.mark_bad_values(
            np.flatnonzero((counts < 0) | (counts > inner[-1])),
            level_offsets,
            native.RecordStatus.BAD_ROW_LENGTHS,
        )
    # Inconsistent lengths would result in an invalid array. The batch is discarded in this case, so
    # an array of nulls is sufficient.
    if column.bad is not None:
        return pa.nulls(column.rows)
    result = values
    for counts, _ in reversed(levels):
        result = pa.LargeListArray.from_arrays(pa.array(to_offsets(counts)), result)
    return _make_list(result, levels[0][1], column)


def _assemble_steps(step: ColumnLayout, column: LocatedColumn) -> pa.Array:
    """Builds the array of a feature list.

    Each step is located like a record with a single feature. The steps are then gathered into
    lists.

    Args:
        step: The layout of a step.
        column: The column of the feature list.
    """
    offsets = allocate(column.rows + 1, np.int64)
    starts, sizes = _find_fields(column, offsets)
    cell_layout = CellLayout.from_modes(step.modes, [False])
    cells = cell_layout.allocate_cells(len(starts))
    cells.locate(
        column.data,
        starts,
        sizes,
        map_count=0,
        other_features=native.OtherFeatures.SKIP,
        names=None,
    )
    step_column = get_column(cells, layout=cell_layout, column=0, data=column.data)
    if cells.status.any():
        step_column.bad = cells.status
    values = assemble_column(step, [step_column])
    if step_column.bad is not None:
        bad_steps = np.flatnonzero(step_column.bad)
        # Only the first bad step of each row decides the reason.
        rows, first_steps = np.unique(
            np.searchsorted(offsets, bad_steps, side="right") - 1, return_index=True
        )
        for reason in np.unique(step_column.bad[bad_steps[first_steps]]):
            column.mark_bad(rows[step_column.bad[bad_steps[first_steps]] == reason], int(reason))
    return _make_list(values, offsets, column)


def _flat_values(
    layout: ColumnLayout, column: LocatedColumn, length: int | None
) -> tuple[pa.Array, RowSplits]:
    """Reads the values of all rows.

    Args:
        layout: The layout of the feature.
        column: The column.
        length: The number of values that each row must have. The values of a null are then zeros.
            None means any number.

    Returns:
        (values, row splits). Only the values of a scalar have a bitmap.
    """
    if layout.is_raw:
        return _raw_numbers(layout, column, length)
    if column.mode == native.CellMode.ONE_BYTES:
        values, ends = _pack_spans(column)
        return _make_texts(layout, values=values, ends=ends, splits=1, column=column), 1
    if column.mode == native.CellMode.BYTES_LIST:
        return _read_byte_lists(layout, column, length)
    numbers, splits = _read_numbers(column, length)
    return _cast_numbers(layout, numbers, splits, column), splits


def _value_bitmap(layout: ColumnLayout, column: LocatedColumn) -> pa.Buffer | None:
    """Returns the bitmap for the array of values, or None.

    Only scalars have one. In lists and tensors the rows have the bitmap.
    """
    return column.bitmap() if layout.tensor_type is None and not layout.ragged_rank else None


def _read_numbers(column: LocatedColumn, length: int | None) -> tuple[npt.NDArray[Any], RowSplits]:
    """Reads the numbers of all rows as int64 or float32.

    Args:
        column: The column.
        length: The number of values that each row must have. None means any number.

    Returns:
        (values, row splits).
    """
    if column.mode == native.CellMode.ONE_INT64:
        return column.numbers, 1
    if column.mode == native.CellMode.ONE_FLOAT:
        return column.numbers.view(np.float32), 1
    if column.mode == native.CellMode.INT64_LIST:
        values, offsets = _read_int_lists(column)
        return (
            (values, offsets)
            if length is None
            else (_to_fixed_length(column, values=values, offsets=offsets, length=length), length)
        )
    if length is not None:
        return _pack_fixed_size(column, 4 * length, native.RecordStatus.WRONG_COUNT).view(
            np.float32
        ), length
    spans, offsets = _pack_spans(column)
    return spans.view(np.float32), offsets >> 2


def _read_int_lists(column: LocatedColumn) -> tuple[Int64s, Int64s]:
    """Reads the lists of integers of all rows, which are stored as varints.

    Returns:
        (values, offset of the values of each row [rows + 1]).
    """
    offsets = allocate(column.rows + 1, np.int64)
    bad = np.zeros(column.rows, np.uint8)
    # The native library counts the values in a first call, and reads them in a second one.
    count = native.read_varints(column.data, column.starts, column.sizes, offsets, None, bad)
    values = allocate(count + native.VARINT_ROOM, np.int64)
    native.read_varints(column.data, column.starts, column.sizes, offsets, values, bad)
    for reason in np.unique(bad[bad != 0]) if bad.any() else ():
        column.mark_bad(bad == reason, int(reason))
    return values[:count], offsets


def _to_fixed_length(
    column: LocatedColumn, values: npt.NDArray[Any], offsets: Int64s, length: int
) -> npt.NDArray[Any]:
    """Returns the values with exactly `length` per row.

    The values of a null are zeros. Other rows with another number of values are marked as bad, and
    their values are zeros.
    """
    counts = np.diff(offsets)
    is_match = counts == length
    if is_match.all():
        return values
    column.mark_bad(~is_match & column.present(), native.RecordStatus.WRONG_COUNT)
    result = np.zeros((column.rows, length), values.dtype)
    result[is_match] = values[np.repeat(is_match, counts)].reshape(
        np.count_nonzero(is_match), length
    )
    return result.reshape(-1)


def _pack_spans(column: LocatedColumn) -> tuple[Bytes, Int64s]:
    """Copies the bytes of all rows into one buffer.

    Returns:
        (buffer, offset of each row in it [rows + 1]).
    """
    offsets, values = (
        allocate(column.rows + 1, np.int64),
        allocate(int(column.sizes.sum()), np.uint8),
    )
    native.copy_values(column.data, column.starts, column.sizes, False, offsets, values)
    return values, offsets


def _pack_fixed_size(column: LocatedColumn, stride: int, reason: int) -> Bytes:
    """Copies the bytes of all rows, exactly `stride` per row.

    The bytes of a null are zeros. Other rows with another number of bytes are marked as bad with
    `reason`.
    """
    is_match = column.sizes == stride
    if is_match.all():
        return _pack_spans(column)[0]
    column.mark_bad(~is_match & column.present(), reason)
    # The bytes of all other rows are left out.
    column.sizes = np.where(is_match, column.sizes, 0)
    result = np.zeros((column.rows, stride), np.uint8)
    result[is_match] = _pack_spans(column)[0].reshape(np.count_nonzero(is_match), stride)
    return result.reshape(-1)


def _raw_numbers(
    layout: ColumnLayout, column: LocatedColumn, length: int | None
) -> tuple[pa.Array, RowSplits]:
    """Reads tensors that are stored as bytes.

    Returns:
        (numbers, row splits).
    """
    item_bytes = ITEM_BYTES[layout.feature.dtype]
    splits: RowSplits
    if length is None:
        column.mark_bad(column.sizes % item_bytes != 0, native.RecordStatus.WRONG_SIZE)
        values, ends = _pack_spans(column)
        values, splits = values[: len(values) // item_bytes * item_bytes], ends // item_bytes
    else:
        values, splits = (
            _pack_fixed_size(column, item_bytes * length, native.RecordStatus.WRONG_SIZE),
            length,
        )
    numbers = values.view(np.dtype(layout.feature.dtype))
    return pa.Array.from_buffers(
        layout.value_type, len(numbers), [_value_bitmap(layout, column), pa.py_buffer(numbers)]
    ), splits


def _find_fields(column: LocatedColumn, offsets: Int64s) -> tuple[Int64s, Int64s]:
    """Finds the fields with a length prefix, such as byte strings, in all rows.

    Args:
        column: The column.
        offsets: int64 [rows + 1] Receives the index of the first field of each row.

    Returns:
        (offset of each field in the buffer, its size in bytes).
    """
    count = native.find_fields(column.data, column.starts, column.sizes, offsets, None, None)
    starts, sizes = allocate(count, np.int64), allocate(count, np.int64)
    native.find_fields(column.data, column.starts, column.sizes, offsets, starts, sizes)
    return starts, sizes


def _read_byte_lists(
    layout: ColumnLayout, column: LocatedColumn, length: int | None
) -> tuple[pa.Array, RowSplits]:
    """Reads the byte strings of all rows.

    Returns:
        (array of texts or binaries, row splits).
    """
    offsets = allocate(column.rows + 1, np.int64)
    if length is None:
        count = native.find_fields(column.data, column.starts, column.sizes, offsets, None, None)
        # Each field has a tag and at least one byte for its length, so the values have at least 2
        # bytes less per field.
        ends, values = (
            allocate(count + 1, np.int64),
            allocate(int(column.sizes.sum()) - 2 * count, np.uint8),
        )
        values = values[
            : native.copy_values(column.data, column.starts, column.sizes, True, ends, values)
        ]
        return _make_texts(layout, values=values, ends=ends, splits=offsets, column=column), offsets
    starts, sizes = _find_fields(column, offsets)
    starts, sizes = (
        _to_fixed_length(column, values=starts, offsets=offsets, length=length),
        _to_fixed_length(column, values=sizes, offsets=offsets, length=length),
    )
    values, ends = _pack_spans(
        LocatedColumn(
            rows=len(starts),
            data=column.data,
            mode=native.CellMode.ONE_BYTES,
            starts=starts,
            sizes=sizes,
            numbers=_EMPTY,
        )
    )
    return _make_texts(layout, values=values, ends=ends, splits=length, column=column), length


def _make_texts(
    layout: ColumnLayout, values: Bytes, ends: Int64s, splits: RowSplits, column: LocatedColumn
) -> pa.Array:
    """Builds an array of texts or binaries.

    For texts, rows with strings that are not UTF-8 are marked as bad.

    Args:
        layout: The layout of the feature.
        values: The bytes of all strings.
        ends: The offset of each string, and the end of the last one.
        splits: The row splits of the strings.
        column: The column, in which rows are marked.
    """
    count = len(ends) - 1
    if layout.feature.dtype == "string":
        for begin in range(0, count, _UTF8_CHECK_TEXTS):
            text_ends = ends[begin : begin + _UTF8_CHECK_TEXTS + 1]
            bad_lines = allocate(len(text_ends) - 1, np.int64)
            if native.find_bad_lines(values, text_ends[:-1], text_ends[1:], bad_lines):
                column.mark_bad_values(
                    begin + np.flatnonzero(bad_lines >= 0), splits, native.RecordStatus.NOT_UTF8
                )
    return pa.Array.from_buffers(
        layout.value_type,
        count,
        [_value_bitmap(layout, column), pa.py_buffer(ends), pa.py_buffer(values)],
    )


def _cast_numbers(
    layout: ColumnLayout, numbers: npt.NDArray[Any], splits: RowSplits, column: LocatedColumn
) -> pa.Array:
    """Casts numbers to the type of the feature, and builds their array.

    Rows with values outside of its range are marked as bad.
    """
    result, bad_values, dtype = numbers, _EMPTY, layout.feature.dtype
    if dtype == "bool":
        # the view as unsigned numbers also makes negative ones greater than 1
        bad_values = np.flatnonzero(numbers.view(np.uint64) > 1)
        result = np.packbits(numbers != 0, bitorder="little")
    elif dtype == "float16":
        with np.errstate(over="ignore"):
            result = numbers.astype(np.float16)
    elif dtype in _NARROW_DTYPES:
        result = allocate(len(numbers), dtype)
        np.copyto(result, numbers, casting="unsafe")
        bad_values = np.flatnonzero(result != numbers)
    if len(bad_values):
        column.mark_bad_values(bad_values, splits, native.RecordStatus.OUT_OF_RANGE)
    return pa.Array.from_buffers(
        layout.value_type, len(numbers), [_value_bitmap(layout, column), pa.py_buffer(result)]
    )
