"""First pass of the decoder, which finds the values of each feature.

A single number is read in this pass. For other values only their position is stored, for the second
pass in `assemble`. This module also contains the messages for records that can't be decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s, allocate, allocate_filled
from recordmill.base.messages import Message
from recordmill.schemas.feature import Feature

_CELL_COLUMN_DTYPE = np.dtype(native.CellColumn)


@dataclass(frozen=True)
class LocatedCells:
    """Result of the first pass: a cell for each record and each column.

    A column is an entry of the maps of a record, such as the feature `image`. Its mode determines
    which arrays contain its cells: `ints`, `floats`, or `starts` and `sizes`.

    Attributes:
        ints: int64 [n, rows], the values of the n columns with the mode ONE_INT64.
        floats: uint32 [n, rows], the bits of the values of the n columns with the mode ONE_FLOAT.
        starts: int64 [n, rows], the offsets of the values of the n other columns. 0 for a null.
        sizes: int64 [n, rows], the sizes of these values in bytes. 0 for a null.
        valid: uint8 [columns, ceil(rows / 8)], validity bitmaps of Arrow.
        status: uint8 [rows], a RecordStatus: UNREAD, GOOD, or the fault of the record.
        culprits: int64 [rows], the number of the column that has the fault, or -1.
        columns: CellColumn [columns], the description of each column for the native library.
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
        """Fills the cells of all records with the status UNREAD.

        Args:
            data: uint8 [bytes], a buffer that contains the records.
            starts: int64 [rows], the offset of each record.
            lengths: int64 [rows], the size of each record in bytes.
            map_count: The number of maps of a message: 1 in an Example, 2 in a SequenceExample. 0
                means that each record is a single Feature.
            other_features: What to do with features that have no column. SKIP does not read them,
                CHECK checks that they are in the plain form, and REFUSE sets the status of the
                record to UNUSUAL.
            names: The table of column names. Names of other features are added to it. None if a
                record is a single Feature.

        Returns:
            The number of records that have a status other than GOOD afterwards.
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


@dataclass(frozen=True)
class CellLayout:
    """The columns of the first pass, for any number of records.

    Attributes:
        modes: int64 [columns], the CellMode of each column.
        array_rows: int64 [columns], the row of each column in the array that contains its cells.
        required: int64 [columns], 1 if each record must have the column.
        counts: The number of columns with cells in `ints`, in `floats`, and in `starts` and
            `sizes`.
    """

    modes: Int64s
    array_rows: Int64s
    required: Int64s
    counts: tuple[int, ...]

    @classmethod
    def from_modes(cls, modes: Sequence[int], required: Sequence[bool]) -> CellLayout:
        """Creates the layout.

        Args:
            modes: The CellMode of each column.
            required: For each column, whether each record must have it.
        """
        # ONE_INT64 and ONE_FLOAT columns have arrays of their own. All later modes share `starts`
        # and `sizes`.
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
        """Allocates the cells for a number of records.

        Only the arrays that the first pass reads are filled. The other ones have arbitrary values.
        """
        ints, floats = (
            allocate((self.counts[0], rows), np.int64),
            allocate((self.counts[1], rows), np.uint32),
        )
        starts, sizes = (allocate((self.counts[2], rows), np.int64) for _ in range(2))
        columns = np.zeros(len(self.modes), _CELL_COLUMN_DTYPE)
        # `first` is the index of the first cell of the column in the array of its family.
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


# Error messages by RecordStatus.
_REASONS = {
    native.RecordStatus.PAST_END: "truncated: a field reaches past the end of its message",
    native.RecordStatus.LONG_VARINT: "a varint is longer than 10 bytes",
    native.RecordStatus.UNUSUAL: "not a tf.train.Example: protobuf refuses it, or it names features over 262,144 times",
    native.RecordStatus.WRONG_KIND: "another kind of list than the schema's",
    native.RecordStatus.WRONG_COUNT: "another number of values than the schema's",
    native.RecordStatus.MISSING_VALUE: "missing, but the schema requires it in every record",
    native.RecordStatus.OUT_OF_RANGE: "a value outside the range of its dtype",
    native.RecordStatus.NOT_UTF8: "a value that is not UTF-8",
    native.RecordStatus.WRONG_SIZE: "another number of bytes than its shape and dtype need",
    native.RecordStatus.BAD_ROW_LENGTHS: "row lengths that do not fit each other or the values",
}


@dataclass(frozen=True)
class BadRecord:
    """A record that can't be decoded or converted.

    The caller converts it to a `Fault` or an error. Builds and reads use different reasons for the
    fault.

    Attributes:
        row: The number of the record among all records of the call.
        feature: The feature that has the fault, or "" if the record is not an Example.
        message: The error, without the name of the feature.
    """

    row: int
    feature: str
    message: str

    def describe(self) -> str:
        """Returns the error with the name of the feature."""
        if not self.feature:
            return self.message
        return Message(
            "feature {feature}: {message}", feature=repr(self.feature), message=self.message
        )


def describe_status(status: int, feature: Feature | None = None) -> str:
    """Returns the error message for a RecordStatus.

    If a feature has the fault, the message contains its expected type.
    """
    words = _REASONS[native.RecordStatus(status)]
    if feature is None or status < native.RecordStatus.UNUSUAL:
        return words
    return f"{words}; expected {feature.describe()}, a {feature.kind}_list"
