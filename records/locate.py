"""The first pass of the decoder, record by record: where each feature's values stand, and the value itself where there is one number.

Only the plain form is read here (see `records.exact`): what else protobuf allows is reported as UNUSUAL and costs a second, exact look.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from recordmill.records.exact import check_feature, check_feature_list
from recordmill.records.names import Names, add_name, predicted
from recordmill.records.wire import Bytes, Ints, is_utf8, short_extent, short_varint, varint
from recordmill.schemas.kernels import kernel

# What a column of the Example holds in every record: one value, or a list that the second pass reads.
ONE_INT, ONE_FLOAT, ONE_BYTES, INTS, FLOATS, BYTESES, STEPS = range(7)

# Why a record is not good; 1..9 are the reasons of records.wire.
UNUSUAL, WRONG_KIND, WRONG_COUNT, MISSING, OUT_OF_RANGE, NOT_UTF8, WRONG_SIZE, RAGGED = range(20, 28)

_LEN1, _LEN2, _LEN3 = 0x0A, 0x12, 0x1A  # tags of fields 1, 2, 3 with wire type LEN


class Cells(NamedTuple):
    """What the first pass finds out about `rows` records and `columns` entries of their maps.

    ints: int64 [ints, rows] and floats: uint32 (the bits) [floats, rows]: the values of ONE_INT and ONE_FLOAT columns.
    at, size: int64 [spans, rows]: position and bytes of the others' values; 0, 0 where there are none.
    valid: uint8 [columns, ceil(rows / 8)]: bitmaps as Arrow has them. nulls: int64 [columns].
    status: uint8 [rows]: 0 or the reason why not. culprit: int64 [rows, 2]: the column (-1 unknown) and position it refers to.
    """

    ints: Ints
    floats: npt.NDArray[np.uint32]
    at: Ints
    size: Ints
    valid: npt.NDArray[np.uint8]
    nulls: Ints
    status: npt.NDArray[np.uint8]
    culprit: Ints


def new_cells(modes: Ints, rows: int) -> Cells:
    """Room for the cells of that many rows; only what has a defined value before the first pass is filled."""
    spans = int(np.count_nonzero(modes >= ONE_BYTES))
    return Cells(
        np.empty((np.count_nonzero(modes == ONE_INT), rows), np.int64), np.empty((np.count_nonzero(modes == ONE_FLOAT), rows), np.uint32),
        np.empty((spans, rows), np.int64), np.empty((spans, rows), np.int64), np.full((len(modes), (rows + 7) // 8), 255, np.uint8),
        np.zeros(len(modes), np.int64), np.zeros(rows, np.uint8), np.full((rows, 2), -1, np.int64),
    )  # fmt: skip


@kernel
def plain_bytes_list(data: Bytes, at: int, end: int) -> bool:
    """Whether [at, end) holds nothing but field 1 of wire type LEN, again and again."""
    while at < end:
        if data[at] != _LEN1:
            return False
        _, at = short_extent(data, at + 1, end)
        if at < 0:
            return False
    return True


@kernel
def plain_list(data: Bytes, at: int, end: int, tag: int) -> tuple[int, int]:
    """(position, end) of the values inside a Feature's list: framed bytes, or one packed run's content; (-1, -1) is unusual."""
    if tag == _LEN1:
        return (at, end) if plain_bytes_list(data, at, end) else (-1, -1)
    if at == end:
        return at, at
    if data[at] != _LEN1:
        return -1, -1
    start, stop = short_extent(data, at + 1, end)
    if stop != end or (tag == _LEN2 and (end - start) & 3):
        return -1, -1
    return start, end


@kernel
def plain_steps(data: Bytes, at: int, end: int) -> bool:
    """Whether [at, end) is a FeatureList of plain Features."""
    while at < end:
        if data[at] != _LEN1:
            return False
        start, at = short_extent(data, at + 1, end)
        if at < 0:
            return False
        if start < at:
            tag = np.int64(data[start])
            begin, stop = short_extent(data, start + 1, at)
            if (tag != _LEN1 and tag != _LEN2 and tag != _LEN3) or stop != at or plain_list(data, begin, stop, tag)[0] < 0:
                return False
    return True


@kernel
def read_cell(data: Bytes, at: int, end: int, mode: int, place: int, row: int, cells: Cells, fault: Ints) -> int:
    """Read the Feature or FeatureList [at, end), which is not empty, into its cell; gives 0 or a status."""
    if mode == STEPS:
        cells.at[place, row], cells.size[place, row] = at, end - at
        return 0 if plain_steps(data, at, end) else UNUSUAL
    tag = np.int64(data[at])
    start, stop = short_extent(data, at + 1, end)
    if stop != end or start < 0:
        return UNUSUAL
    if mode == ONE_FLOAT:
        if tag != _LEN2:
            return WRONG_KIND
        if end - start != 6 or data[start] != _LEN1 or data[start + 1] != 4:
            start, stop = plain_list(data, start, end, tag)
            if stop - start != 4:
                return WRONG_COUNT
            end = stop
        cells.floats[place, row] = (
            np.uint32(data[end - 4])
            | np.uint32(data[end - 3]) << np.uint32(8)
            | np.uint32(data[end - 2]) << np.uint32(16)
            | np.uint32(data[end - 1]) << np.uint32(24)
        )
        return 0
    if mode in (ONE_INT, INTS):
        if tag != _LEN3:
            return WRONG_KIND
    elif tag != (_LEN2 if mode == FLOATS else _LEN1):
        return WRONG_KIND
    if mode == ONE_BYTES:
        if start == end:
            return WRONG_COUNT
        if data[start] != _LEN1:
            return UNUSUAL
        start, stop = short_extent(data, start + 1, end)
        if stop != end:
            return UNUSUAL if stop < 0 else WRONG_COUNT
        cells.at[place, row], cells.size[place, row] = start, end - start
        return 0
    start, stop = plain_list(data, start, end, tag)
    if start < 0:
        return UNUSUAL
    if mode == ONE_INT:
        value, stop = short_varint(data, start, end)
        if stop < 0:
            value, stop = varint(data, start, end, fault)
        cells.ints[place, row] = np.int64(value)
        return 0 if stop == end else WRONG_COUNT
    cells.at[place, row], cells.size[place, row] = start, stop - start
    return 0


@kernel
def clear_cell(mode: int, place: int, row: int, column: int, cells: Cells) -> None:
    """Make the cell a null."""
    cells.valid[column, row >> 3] &= np.uint8(255 ^ (1 << (row & 7)))
    cells.nulls[column] += 1
    if mode == ONE_INT:
        cells.ints[place, row] = 0
    elif mode == ONE_FLOAT:
        cells.floats[place, row] = np.uint32(0)
    else:
        cells.at[place, row], cells.size[place, row] = 0, 0


@kernel
def read_map(
    data: Bytes, at: int, end: int, part: int, row: int, whole: bool, names: Names, columns: Ints, seen: Ints, cells: Cells, scratch: Ints
) -> tuple[int, int, int]:
    """Read the entries of a Features (part 1) or FeatureLists (part 2) message; gives (status, columns found, culprit).

    columns: int64 [3, columns]: mode, place among its kind, required. seen: int64 [columns]: the last row that had the column.
    scratch: int64: `fault` in the first 3 places, then room for the groups of unknown fields.
    """
    found, previous, wanted = 0, 0, columns.shape[1]
    while at < end:
        if data[at] != _LEN1:
            return UNUSUAL, found, -1
        at, stop = short_extent(data, at + 1, end)
        if stop <= at or data[at] != _LEN1:
            return UNUSUAL, found, -1
        key, at = short_extent(data, at + 1, stop)
        if at < 0:
            return UNUSUAL, found, -1
        slot = predicted(names, previous, data, key, at - key, part)
        if slot < 0:
            if not is_utf8(data, key, at):
                return UNUSUAL, found, -1
            slot = add_name(names, data, key, at - key, part)
            names.slots[previous, 3] = max(slot, 0)
        previous = max(slot, 0)
        if at < stop:  # else a key without a value: a Feature without a kind
            if data[at] != _LEN2:
                return UNUSUAL, found, -1
            at, value_end = short_extent(data, at + 1, stop)
            if value_end != stop:
                return UNUSUAL, found, -1
        column = slot - 1
        if 0 <= column < wanted:
            if seen[column] == row:
                return UNUSUAL, found, column
            seen[column] = row
            status = 0
            if at < stop or columns[0, column] == STEPS:
                found += 1
                status = read_cell(data, at, stop, columns[0, column], columns[1, column], row, cells, scratch)
            else:
                clear_cell(columns[0, column], columns[1, column], row, column, cells)
                status = MISSING if columns[2, column] else 0
            if status != 0:
                return status, found, column
        elif whole and at < stop:
            checked = check_feature(data, at, stop, 3, scratch[3:], scratch) if part == 1 else check_feature_list(data, at, stop, 3, scratch[3:], scratch)
            if checked < 0:
                return UNUSUAL, found, -1
        at = stop
    return 0, found, -1


@kernel
def read_message(
    data: Bytes, at: int, end: int, parts: int, row: int, whole: bool, names: Names, columns: Ints, seen: Ints, cells: Cells, scratch: Ints
) -> tuple[int, int, int]:
    """Read an Example (parts 1) or SequenceExample (parts 2) whose parts stand once each and in order; gives (status, columns found, culprit)."""
    last, total = 0, 0
    while at < end:
        part = 1 if data[at] == _LEN1 else 2 if data[at] == _LEN2 else 3
        if part <= last or part > parts:
            return UNUSUAL, total, -1
        last = part
        start, at = short_extent(data, at + 1, end)
        if at < 0:
            return UNUSUAL, total, -1
        status, found, culprit = read_map(data, start, at, part, row, whole, names, columns, seen, cells, scratch)
        total += found
        if status != 0:
            return status, total, culprit
    return 0, total, -1


@kernel
def locate(data: Bytes, starts: Ints, lengths: Ints, parts: int, whole: bool, names: Names, columns: Ints, cells: Cells) -> int:
    """Fill cells from the records; gives how many records have a status. names: the columns' in slots 1 ..; more are added.

    whole: also check the features that are no columns (else they are skipped unread).
    """
    seen = np.full(columns.shape[1], -1, np.int64)
    scratch = np.zeros(3 + 101, np.int64)
    bad = 0
    for row in range(len(starts)):
        start = starts[row]
        status, found, culprit = read_message(data, start, start + lengths[row], parts, row, whole, names, columns, seen, cells, scratch)
        if status == 0 and found < columns.shape[1]:
            for column in range(columns.shape[1]):
                if seen[column] != row:
                    clear_cell(columns[0, column], columns[1, column], row, column, cells)
                    if columns[2, column]:
                        status, culprit = MISSING, column
        if status != 0:
            cells.status[row], cells.culprit[row, 0], cells.culprit[row, 1] = status, culprit, start
            bad += 1
    return bad


@kernel
def locate_steps(data: Bytes, at: Ints, size: Ints, columns: Ints, cells: Cells) -> int:
    """Fill cells of one column from Features that stand alone, such as the steps of a FeatureList; gives how many have a status."""
    scratch = np.zeros(3, np.int64)
    bad = 0
    for row in range(len(at)):
        if size[row] == 0:
            clear_cell(columns[0, 0], 0, row, 0, cells)
            continue
        status = read_cell(data, at[row], at[row] + size[row], columns[0, 0], 0, row, cells, scratch)
        if status != 0:
            clear_cell(columns[0, 0], 0, row, 0, cells)
            cells.status[row] = status
            bad += 1
    return bad
