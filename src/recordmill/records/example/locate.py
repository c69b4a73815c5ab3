"""The first pass of the decoder, record by record: where each feature's values stand, and the value itself where there
is one number; and the pass's status numbers in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s, allocate, allocate_filled
from recordmill.schemas.feature import Feature

_CELL_COLUMN_DTYPE = np.dtype(native.CellColumn)


@dataclass(frozen=True)
class LocatedCells:
    """The results of the first pass over `rows` records and `columns` entries of their maps.

    Attributes:
        ints: int64 [ints, rows], the values of ONE_INT64 columns.
        floats: uint32 [floats, rows], the bits of the values of ONE_FLOAT columns.
        at: int64 [spans, rows], where the others' values stand; 0 where there are none.
        sizes: int64 [spans, rows], their bytes.
        valid: uint8 [columns, ceil(rows / 8)], bitmaps as Arrow has them.
        status: uint8 [rows], UNREAD, 0 or the reason why not.
        culprits: int64 [rows], the column that a record fails on, or -1.
        columns: CellColumn [columns], each described for the native library.
    """

    ints: Int64s
    floats: npt.NDArray[np.uint32]
    starts: Int64s
    sizes: Int64s
    valid: npt.NDArray[np.uint8]
    status: npt.NDArray[np.uint8]
    culprits: Int64s
    columns: npt.NDArray[np.void]

    def locate(
        self,
        data: Bytes,
        starts: Int64s,
        lengths: Int64s,
        map_count: int,
        other_features: int,
        names: Int64s | None,
    ) -> int:
        """Fills the cells of the rows that are UNREAD; returns how many have a status other than 0 then.

        Args:
            data: the bytes in which the records stand.
            starts: int64 [rows].
            lengths: int64 [rows].
            parts: maps of a message: 1 in an Example, 2 in a SequenceExample; 0 where each record is a lone Feature.
            others: features that are no columns are skipped unread (SKIP_OTHERS), checked (CHECK_OTHERS), or a reason
                to refuse the record (REFUSE_OTHERS).
            names: the table of the columns' names; others are added.
        """
        cells = native.RecordCells(
            columns=self.columns,
            ints=self.ints,
            floats=self.floats,
            starts=self.starts,
            sizes=self.sizes,
            valid=self.valid,
            status=self.status,
            culprits=self.culprits,
        )
        return native.locate_features(
            data, starts, lengths, map_count, other_features, names, cells
        )

    def has_nulls(self, column: int) -> bool:
        """Returns whether one of the column's cells is a null."""
        return bool(self.columns["null_count"][column])


@dataclass(frozen=True)
class CellLayout:
    """The columns before there are rows: int64 [columns] each.

    Attributes:
        modes: ONE_INT64 ... STEPS of the native library.
        places: each one's line among its family: one int, one float, spans.
        required: 1 where each record must have the column.
        counts: columns of each family.
    """

    modes: Int64s
    array_rows: Int64s
    required: Int64s
    counts: tuple[int, ...]

    @classmethod
    def from_modes(cls, modes: Sequence[int], required: Sequence[bool]) -> CellLayout:
        """Creates the columns from modes and whether each record must have the column."""
        cell_families = np.minimum(np.array(modes, np.int64), native.CellMode.ONE_BYTES)
        array_rows = np.zeros(len(modes), np.int64)
        for family in range(3):
            array_rows[cell_families == family] = np.arange(
                np.count_nonzero(cell_families == family)
            )
        counts = tuple(int(np.count_nonzero(cell_families == family)) for family in range(3))
        return cls(
            modes=np.array(modes, np.int64),
            array_rows=array_rows,
            required=np.array(required, np.int64),
            counts=counts,
        )

    def allocate_cells(self, rows: int) -> LocatedCells:
        """Room for the cells of that many rows; only what must have a value before the first pass is filled."""
        ints, floats = (
            allocate((self.counts[0], rows), np.int64),
            allocate((self.counts[1], rows), np.uint32),
        )
        starts, sizes = (allocate((self.counts[2], rows), np.int64) for _ in range(2))
        columns = np.zeros(len(self.modes), _CELL_COLUMN_DTYPE)
        columns["mode"], columns["first"] = self.modes, self.array_rows * rows
        columns["is_required"], columns["last_row"] = self.required, -1
        validity = allocate_filled((len(self.modes), (rows + 7) // 8), 255, np.uint8)
        status, culprits = (
            allocate_filled(rows, native.RecordStatus.UNREAD, np.uint8),
            allocate_filled(rows, -1, np.int64),
        )
        return LocatedCells(
            ints=ints,
            floats=floats,
            starts=starts,
            sizes=sizes,
            valid=validity,
            status=status,
            culprits=culprits,
            columns=columns,
        )


_REASONS = {
    native.RecordStatus.PAST_END: "truncated: a field reaches past the end of its message",
    native.RecordStatus.LONG_VARINT: "a varint is longer than 10 bytes",
    native.RecordStatus.UNUSUAL: "not a tf.train.Example: protobuf refuses it, or it names features over 262,144 times",
    native.RecordStatus.WRONG_KIND: "another kind of list than the schema's",
    native.RecordStatus.WRONG_COUNT: "another number of values than the schema's",
    native.RecordStatus.MISSING_VALUE: "missing, though the schema says that every record has it",
    native.RecordStatus.OUT_OF_RANGE: "a value outside the range of its dtype",
    native.RecordStatus.NOT_UTF8: "a value that is not UTF-8",
    native.RecordStatus.WRONG_SIZE: "another number of bytes than its shape and dtype need",
    native.RecordStatus.BAD_ROW_LENGTHS: "row lengths that do not fit each other or the values",
}


@dataclass(frozen=True)
class BadRecord:
    """A record that can't be decoded: its row in the call, the feature ("": it is no Example) and the reason."""

    row: int
    feature: str
    reason: str


def describe_status(status: int, feature: Feature | None = None) -> str:
    """The words for a status, with the schema's expectation where there is one."""
    words = _REASONS[native.RecordStatus(status)]
    if feature is None or status < native.RecordStatus.UNUSUAL:
        return words
    return f"{words}; expected {feature.describe()}, a {feature.kind}_list"
