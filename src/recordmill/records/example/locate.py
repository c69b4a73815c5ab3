"""The first pass of the decoder, record by record: where each feature's values stand, and the value itself where there
is one number; and the pass's status numbers in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recordmill.base.arrays import Bytes, Int64s
from recordmill.base.buffers import filled, room
from recordmill.base.kernels import inlined, kernel
from recordmill.base.pointers import address, address_of, load8, load32, load64, prefetch, store8, store32, store64
from recordmill.records.protobuf import wire
from recordmill.records.protobuf.name_table import find_slot, predicted
from recordmill.records.protobuf.wire import short_extent, short_varint
from recordmill.schemas.feature import Feature

# What a column of the Example holds in every record: one value, or a list that the second pass reads.
ONE_INT, ONE_FLOAT, ONE_BYTES, INTS, FLOATS, BYTESES, STEP_KIND = range(7)

# Why a record is not good; 1 and 2 are the reasons of records.protobuf.wire.
UNUSUAL, WRONG_KIND, WRONG_COUNT, MISSING_VALUE, OUT_OF_RANGE, VALUE_NOT_UTF8, WRONG_SIZE, RAGGED_VALUE = range(20, 28)
UNREAD = 255

SKIP_CELL, CHECK, REFUSE = range(3)  # what is done about features that are no columns

_LEN1, _LEN2, _LEN3 = 0x0A, 0x12, 0x1A  # tags of fields 1, 2, 3 with wire type LEN
_FLOAT_HEAD = 0x0A | 4 << 8  # LEN field 1 of four bytes, as two bytes in one word
COLUMN_INTS = 8  # a column's description is 64 bytes, one cache line: the fields below and a spare one
# Addresses of its first cell, of its first size, of its bitmap; 1 if required; the last row that had it;
# how many cells were made nulls.
_MODE, _CELLS, _SIZES, _BITMAP, _REQUIRED, _LAST_ROW, NULLS = range(7)


_CELL_BYTES = np.array([8, 4, 8])  # by family


@dataclass(frozen=True)
class Cells:
    """What the first pass finds out about `rows` records and `columns` entries of their maps.

    ints: int64 [ints, rows] and floats: uint32 (the bits) [floats, rows]: the values of ONE_INT and ONE_FLOAT columns.
    at, size: int64 [spans, rows]: address and bytes of the others' values; 0, 0 where there are none.
    valid: uint8 [columns, ceil(rows / 8)]: bitmaps as Arrow has them.
    status: uint8 [rows]: UNREAD, 0 or the reason why not. culprit: int64 [rows, 2]: the column (-1 unknown) and
    position it refers to. columns: int64 [columns, COLUMN_INTS], each described for the kernels.
    """

    ints: Int64s
    floats: npt.NDArray[np.uint32]
    at: Int64s
    size: Int64s
    valid: npt.NDArray[np.uint8]
    status: npt.NDArray[np.uint8]
    culprit: Int64s
    columns: npt.NDArray[np.int64]


@dataclass(frozen=True)
class LocatedColumns:
    """What is known of the columns before there are rows: int64 [columns] each.

    modes: ONE_INT ... STEPS. families: 0 for one int, 1 for one float, 2 for spans. places: each one's line among its
    family.
    """

    modes: npt.NDArray[np.int64]
    families: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    required: npt.NDArray[np.int64]
    counts: tuple[int, int, int]

    @classmethod
    def of(cls, modes: Sequence[int], required: Sequence[bool]) -> LocatedColumns:
        """From modes and whether each record must have the column."""
        families = np.minimum(np.array(modes, np.int64), ONE_BYTES)
        places = np.zeros(len(modes), np.int64)
        for family in range(3):
            places[families == family] = np.arange(np.count_nonzero(families == family))
        counts = tuple(int(np.count_nonzero(families == family)) for family in range(3))
        return cls(np.array(modes, np.int64), families, places, np.array(required, np.int64), counts)  # type: ignore[arg-type]

    def cells(self, rows: int) -> Cells:
        """Room for the cells of that many rows; only what must have a value before the first pass is filled."""
        ints, floats = room((self.counts[0], rows), np.int64), room((self.counts[1], rows), np.uint32)
        at, size = room((self.counts[2], rows), np.int64), room((self.counts[2], rows), np.int64)
        valid = filled((len(self.modes), (rows + 7) // 8), 255, np.uint8)
        columns = np.zeros((len(self.modes), COLUMN_INTS), np.int64)
        columns[:, _MODE], columns[:, _REQUIRED], columns[:, _LAST_ROW] = self.modes, self.required, -1
        columns[:, _CELLS] = (
            np.array([address_of(ints), address_of(floats), address_of(at)])[self.families]
            + self.places * rows * _CELL_BYTES[self.families]
        )
        columns[:, _SIZES] = self.places * (8 * rows) + address_of(size)
        columns[:, _BITMAP] = np.arange(len(columns)) * valid.shape[1] + address_of(valid)
        return Cells(
            ints, floats, at, size, valid, filled(rows, UNREAD, np.uint8), filled((rows, 2), -1, np.int64), columns
        )


@inlined
def plain_list(at: int, end: int, tag: int) -> tuple[int, int]:
    """(address, end) of the values inside a Feature's list: framed bytes, or one packed run's content;
    (-1, -1) is unusual.
    """
    if tag == _LEN1:
        start = at
        while at < end:
            if load8(at) != _LEN1:
                return -1, -1
            _, at = short_extent(at + 1, end)
            if at < 0:
                return -1, -1
        return start, end
    if at == end:
        return at, at
    if load8(at) != _LEN1:
        return -1, -1
    start, stop = short_extent(at + 1, end)
    if stop != end or (tag == _LEN2 and (end - start) & 3):
        return -1, -1
    return start, end


@kernel
def plain_varints(at: int, end: int) -> bool:
    """Whether [at, end) is a whole number of varints, none too long."""
    run = 0
    while at < end:
        run = run + 1 if load8(at) >= 0x80 else 0
        if run >= 10:
            return False
        at += 1
    return run == 0


@kernel
def plain_feature(at: int, end: int, thorough: bool) -> bool:
    """Whether [at, end) is a plain Feature; its varints are looked at only if thorough, else the second pass will."""
    if at == end:
        return True
    tag = load8(at)
    start, stop = short_extent(at + 1, end)
    if stop != end or (tag != _LEN1 and tag != _LEN2 and tag != _LEN3):
        return False
    start, stop = plain_list(start, end, tag)
    return start >= 0 and (tag != _LEN3 or not thorough or plain_varints(start, stop))


@kernel
def plain_steps(at: int, end: int, thorough: bool) -> bool:
    """Whether [at, end) is a FeatureList of plain Features."""
    while at < end:
        if load8(at) != _LEN1:
            return False
        start, at = short_extent(at + 1, end)
        if at < 0 or not plain_feature(start, at, thorough):
            return False
    return True


@inlined
def put_span(column: int, row: int, at: int, size: int) -> int:
    """Note where a cell's values stand; gives 0."""
    store64(load64(column + 8 * _CELLS) + 8 * row, at)
    store64(load64(column + 8 * _SIZES) + 8 * row, size)
    return 0


@inlined
def read_float(start: int, end: int, row: int, column: int) -> int:
    """Read a FloatList of one value into its cell; gives 0 or a status."""
    if end - start != 6 or load32(start) & 0xFFFF != _FLOAT_HEAD:
        start, stop = plain_list(start, end, _LEN2)
        if stop - start != 4:
            return WRONG_COUNT
    store32(load64(column + 8 * _CELLS) + 4 * row, load32(end - 4))
    return 0


@inlined
def read_bytes(start: int, end: int, row: int, column: int) -> int:
    """Note where the value of a BytesList of one value stands; gives 0 or a status."""
    if start == end:
        return WRONG_COUNT
    if load8(start) != _LEN1:
        return UNUSUAL
    start, stop = short_extent(start + 1, end)
    if stop != end:
        return UNUSUAL if stop < 0 else WRONG_COUNT
    return put_span(column, row, start, end - start)


@inlined
def read_int(start: int, end: int, limit: int, row: int, column: int) -> int:
    """Read an Int64List of one value into its cell; gives 0 or a status."""
    start, stop = plain_list(start, end, _LEN3)
    if start < 0:
        return UNUSUAL
    value, stop = short_varint(start, end, limit)
    store64(load64(column + 8 * _CELLS) + 8 * row, value)
    return 0 if stop == end else WRONG_COUNT


@kernel
def read_list(start: int, end: int, tag: int, row: int, column: int) -> int:
    """Note where the values of a list stand; gives 0 or a status."""
    start, stop = plain_list(start, end, tag)
    return put_span(column, row, start, stop - start) if start >= 0 else UNUSUAL


@inlined
def read_cell(at: int, end: int, limit: int, row: int, column: int) -> int:
    """Read the Feature or FeatureList [at, end), which is not empty, into its cell; gives 0 or a status."""
    mode = load64(column + 8 * _MODE)
    if mode == STEP_KIND:
        return put_span(column, row, at, end - at) if plain_steps(at, end, False) else UNUSUAL
    tag = load8(at)
    start, stop = short_extent(at + 1, end)
    if stop != end:
        return UNUSUAL
    if mode == ONE_INT:
        return read_int(start, end, limit, row, column) if tag == _LEN3 else WRONG_KIND
    if mode == ONE_FLOAT:
        return read_float(start, end, row, column) if tag == _LEN2 else WRONG_KIND
    if mode == ONE_BYTES:
        return read_bytes(start, end, row, column) if tag == _LEN1 else WRONG_KIND
    return (
        read_list(start, end, tag, row, column)
        if tag == (_LEN3 if mode == INTS else _LEN2 if mode == FLOATS else _LEN1)
        else WRONG_KIND
    )


@kernel
def clear_cell(row: int, column: int) -> None:
    """Make the cell a null."""
    mode = load64(column + 8 * _MODE)
    store64(column + 8 * NULLS, load64(column + 8 * NULLS) + 1)
    bits = load64(column + 8 * _BITMAP) + (row >> 3)
    store8(bits, load8(bits) & ~(1 << (row & 7)))
    if mode == ONE_INT:
        store64(load64(column + 8 * _CELLS) + 8 * row, 0)
    elif mode == ONE_FLOAT:
        store32(load64(column + 8 * _CELLS) + 4 * row, 0)
    else:
        put_span(column, row, 0, 0)


@inlined
def read_column(column: int, at: int, end: int, limit: int, row: int) -> int:
    """Read a wanted column's value; gives 0, 1 for a null, or a status."""
    # the same key again: the last one counts, but the first is in the cell already
    if load64(column + 8 * _LAST_ROW) == row:
        return UNUSUAL
    store64(column + 8 * _LAST_ROW, row)
    if at < end or load64(column + 8 * _MODE) == STEP_KIND:
        return read_cell(at, end, limit, row, column)
    clear_cell(row, column)
    return MISSING_VALUE if load64(column + 8 * _REQUIRED) else 1


@inlined
def plain_entry(at: int, end: int) -> tuple[int, int, int, int]:
    """(key, its end, value, its end) of the map entry that stands at the address; all -1 if it is unusual."""
    if load8(at) == _LEN1:
        at, stop = short_extent(at + 1, end)
        if at < stop and load8(at) == _LEN1:
            key, at = short_extent(at + 1, stop)
            if at == stop:  # a key without a value: a Feature without a kind
                return key, at, at, at
            if at >= 0 and load8(at) == _LEN2:
                value, value_end = short_extent(at + 1, stop)
                if value_end == stop:
                    return key, at, value, stop
    return -1, -1, -1, -1


@kernel
def read_map(
    at: int, end: int, limit: int, part: int, row: int, others: int, names: int, columns: int, wanted: int
) -> tuple[int, int, int]:
    """Read the entries of a Features (part 1) or FeatureLists (part 2) message;
    gives (status, columns found, culprit).
    """
    found, slot = 0, 0
    while at < end:
        key, key_end, value, at = plain_entry(at, end)
        if at < 0:
            return UNUSUAL, found, -1
        previous = slot
        slot = predicted(names, previous, key, key_end - key, part, limit)
        if slot < 0:
            slot = find_slot(names, previous, key, key_end, part, limit)
            if slot < 0:
                return UNUSUAL, found, -1
        if 0 < slot <= wanted:
            status = read_column(columns + 8 * COLUMN_INTS * (slot - 1), value, at, limit, row)
            if status > 1:
                return status, found, slot - 1
            found += 1 - status
        elif others != SKIP_CELL:
            good = others == CHECK and (plain_feature(value, at, True) if part == 1 else plain_steps(value, at, True))
            if not good:
                return UNUSUAL, found, -1
    return 0, found, -1


@kernel
def read_message(
    at: int, end: int, limit: int, parts: int, row: int, others: int, names: int, columns: int, wanted: int
) -> tuple[int, int, int]:
    """Read an Example (parts 1) or SequenceExample (parts 2) whose parts stand once each and in order;
    gives (status, columns found, culprit).
    """
    last, total = 0, 0
    while at < end:
        tag = load8(at)
        part = 1 if tag == _LEN1 else 2 if tag == _LEN2 else 3
        if part <= last or part > parts:
            return UNUSUAL, total, -1
        last = part
        start, at = short_extent(at + 1, end)
        if at < 0:
            return UNUSUAL, total, -1
        status, found, culprit = read_map(start, at, limit, part, row, others, names, columns, wanted)
        total += found
        if status != 0:
            return status, total, culprit
    return 0, total, -1


@kernel
def clear_absent(row: int, columns: int, wanted: int) -> tuple[int, int]:
    """Make nulls of the columns that the record did not have;
    gives (MISSING or 0, the required column that is absent).
    """
    status, culprit = 0, -1
    for i in range(wanted):
        column = columns + 8 * COLUMN_INTS * i
        if load64(column + 8 * _LAST_ROW) != row:
            clear_cell(row, column)
            if load64(column + 8 * _REQUIRED) and status == 0:
                status, culprit = MISSING_VALUE, i
    return status, culprit


@kernel
def locate(
    data: Bytes,
    starts: Int64s,
    lengths: Int64s,
    parts: int,
    others: int,
    names: int,
    columns: Int64s,
    status: npt.NDArray[np.uint8],
    culprit: Int64s,
) -> int:
    """Fill the cells of the rows that are UNREAD; gives how many rows have a status other than 0 then.

    names: the columns' in slots 1 ..; others are added. others: features that are no columns are skipped unread (SKIP),
    checked (CHECK), or a reason to refuse the record (REFUSE).
    """
    base, described, wanted = address(data), address(columns), columns.shape[0]
    bad = 0
    for row in range(len(starts)):
        prefetch(base + starts[min(row + 4, len(starts) - 1)])
        if status[row] == UNREAD:
            start = base + starts[row]
            reason, found, column = read_message(
                start, start + lengths[row], base + len(data), parts, row, others, names, described, wanted
            )
            if reason == 0 and found < wanted:
                reason, column = clear_absent(row, described, wanted)
            status[row] = reason
            culprit[row, 0], culprit[row, 1] = column, starts[row]
        bad += status[row] != 0
    return bad


@kernel
def locate_steps(at: Int64s, size: Int64s, limit: int, columns: Int64s, status: npt.NDArray[np.uint8]) -> None:
    """Fill the cells of one column from Features that stand alone, such as the steps of a FeatureList;
    addresses and bytes.
    """
    column = address(columns)
    for row in range(len(at)):
        reason = read_cell(at[row], at[row] + size[row], limit, row, column) if size[row] else 0
        if size[row] == 0 or reason != 0:
            clear_cell(row, column)
        status[row] = reason


@kernel
def forget(rows: Int64s, status: npt.NDArray[np.uint8], columns: Int64s) -> None:
    """Make rows UNREAD again, with every bit of theirs valid."""
    columns[:, _LAST_ROW] = -1
    for row in rows:
        status[row] = UNREAD
        for i in range(columns.shape[0]):
            bits = columns[i, _BITMAP] + (row >> 3)
            store8(bits, load8(bits) | 1 << (row & 7))


_REASONS = {
    wire.PAST_END: "truncated: a field reaches past the end of its message",
    wire.LONG_VARINT: "a varint is longer than 10 bytes",
    UNUSUAL: "not a tf.train.Example: protobuf refuses it, or it names features over 262,144 times",
    WRONG_KIND: "another kind of list than the schema's",
    WRONG_COUNT: "another number of values than the schema's",
    MISSING_VALUE: "missing, though the schema says that every record has it",
    OUT_OF_RANGE: "a value outside the range of its dtype",
    VALUE_NOT_UTF8: "a value that is not UTF-8",
    WRONG_SIZE: "another number of bytes than its shape and dtype need",
    RAGGED_VALUE: "row lengths that do not fit each other or the values",
}


@dataclass(frozen=True)
class BadRecord:
    """A record that can't be decoded: its row in the call,
    the feature it fails on ("" if it is no Example at all), and the reason.
    """

    row: int
    feature: str
    reason: str


def reason_of(status: int, feature: Feature | None = None) -> str:
    """The words for a status, with the schema's expectation where there is one."""
    words = _REASONS[status]
    if feature is None or status < UNUSUAL:
        return words
    return f"{words}; expected {feature.describe()}, a {feature.kind}_list"
