"""Columns of rows that differ in length.

`Ragged` is for lists, and `Strings` for text and bytes, because NumPy has no type for such columns.
Both consist of values and row splits, as in tf.RaggedTensor and Arrow: row i is
`values[row_splits[i]:row_splits[i + 1]]`. The arrays may be memory maps, and a row becomes an
object only when it is accessed. The mask `valid` distinguishes a missing row from an empty one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import Bools, Int64s

if TYPE_CHECKING:
    import tensorflow as tf

Array = npt.NDArray[Any]

_MAX_REPR_ROWS = 3
_MAX_REPR_LENGTH = 40


@dataclass(frozen=True, eq=False, repr=False)
class Strings:
    """Text or bytes of any length in one buffer.

    >>> words = Strings(np.frombuffer(b"helloyou", np.uint8), np.array([0, 5, 8]), text=True)
    >>> words[1], words.to_list(), len(words)
    ('you', ['hello', 'you'], 2)

    Attributes:
        values: uint8 [bytes].
        row_splits: int64 [rows + 1], offsets in `values`.
        text: Whether the rows are `str`. Otherwise they are `bytes`.
        valid: bool [rows], False for a missing row. None if no row is missing.
    """

    values: Array
    row_splits: Int64s
    text: bool
    valid: Bools | None = None

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    @property
    def shape(self) -> tuple[int]:
        return (len(self),)

    @overload
    def __getitem__(self, index: int) -> str | bytes | None: ...
    @overload
    def __getitem__(self, index: slice) -> Strings: ...
    def __getitem__(self, index: int | slice) -> str | bytes | Strings | None:
        if isinstance(index, slice):
            splits, rows = _slice_splits(self.row_splits, index)
            return Strings(
                self.values, splits, self.text, None if self.valid is None else self.valid[rows]
            )
        row = _row_index(index, len(self))
        if self.valid is not None and not self.valid[row]:
            return None
        data = self.values[self.row_splits[row] : self.row_splits[row + 1]].tobytes()
        return data.decode() if self.text else data

    def __iter__(self) -> Iterator[str | bytes | None]:
        return (self[row] for row in range(len(self)))

    def to_list(self) -> list[str | bytes | None]:
        """Returns the rows as `str` or `bytes`. A missing one is None."""
        return list(self)

    def to_numpy(self) -> Array:
        """Returns an object array of `str`, `bytes` and None."""
        result = np.empty(len(self), object)
        result[:] = self.to_list()
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.to_numpy() if dtype is None else self.to_numpy().astype(dtype)

    def __repr__(self) -> str:
        rows = ", ".join(_short(value) for value in self[:_MAX_REPR_ROWS])
        return f"Strings({len(self)} rows: {rows}{', ...' if len(self) > _MAX_REPR_ROWS else ''})"


@dataclass(frozen=True, eq=False, repr=False)
class Ragged:
    """Lists of different lengths. Row i is `values[row_splits[i]:row_splits[i + 1]]`.

    >>> boxes = Ragged(np.arange(5), np.array([0, 2, 2, 5]))
    >>> boxes[0], len(boxes[1]), boxes.to_padded(value=-1).tolist()
    (array([0, 1]), 0, [[0, 1, -1], [-1, -1, -1], [2, 3, 4]])

    Attributes:
        values: [items, ...], the items of all rows. It is a `Strings` for lists of text, and a
            `Ragged` for lists of lists.
        row_splits: int64 [rows + 1].
        valid: bool [rows], False for a missing row. Such a row has length 0 and is returned as
            None. `valid` is None if no row is missing.
    """

    values: Array | Strings | Ragged
    row_splits: Int64s
    valid: Bools | None = None

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of items of each row, int64 [rows]."""
        return np.diff(self.row_splits)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            splits, rows = _slice_splits(self.row_splits, index)
            return Ragged(self.values, splits, None if self.valid is None else self.valid[rows])
        row = _row_index(index, len(self))
        if self.valid is not None and not self.valid[row]:
            return None
        return self.values[int(self.row_splits[row]) : int(self.row_splits[row + 1])]

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def to_list(self) -> list[Any]:
        """Returns the rows as a list.

        A row is an array, or a list if it contains lists or text. A missing one is None.
        """
        return [row.to_list() if isinstance(row, (Ragged, Strings)) else row for row in self]

    def to_padded(self, length: int | None = None, value: Any = 0) -> Array:
        """Returns an array [rows, length, ...]. Short rows are filled up with `value`.

        Longer rows are cut at their end. A missing row consists of `value` only. Nested rows are
        padded at each level to the longest one. Text becomes an array of objects.

        Args:
            length: The new length. None means the length of the longest row.
            value: The padding value.
        """
        starts, lengths = self.row_splits[:-1], self.lengths
        length = int(lengths.max(initial=0)) if length is None else length
        inner: Array
        if isinstance(self.values, Ragged):
            inner = self.values.to_padded(value=value)
        elif isinstance(self.values, Strings):
            inner = self.values.to_numpy()
        else:
            inner = self.values
        result = np.full((len(self), length, *inner.shape[1:]), value, inner.dtype)
        columns = np.arange(length)
        is_filled = columns < lengths[:, None]
        # Both masks select the items in row-major order, so one indexing operation copies all rows.
        result[is_filled] = inner[(starts[:, None] + columns)[is_filled]]
        return result

    def to_tf(self) -> tf.RaggedTensor:
        """Returns a tf.RaggedTensor. Missing rows become empty."""
        import tensorflow as tf

        # A slice of rows keeps all values, so only the part in use is passed on.
        begin, end = int(self.row_splits[0]), int(self.row_splits[-1])
        values = self.values[begin:end]
        if isinstance(values, Ragged):
            values = values.to_tf()
        elif isinstance(values, Strings):
            values = values.to_list()
        return tf.RaggedTensor.from_row_splits(values, self.row_splits - begin)

    def __repr__(self) -> str:
        lengths = self.lengths
        lengths_text = f"{lengths.min()} to {lengths.max()}" if len(lengths) else "no"
        values = (
            repr(self.values)
            if isinstance(self.values, (Ragged, Strings))
            else f"{self.values.dtype} {list(self.values.shape)}"
        )
        missing = "" if self.valid is None else f", {int((~self.valid).sum())} missing"
        return f"Ragged({len(self)} rows of {lengths_text} items{missing}, values {values})"


def _short(value: str | bytes | None) -> str:
    return (
        repr(value)
        if value is None or len(value) <= _MAX_REPR_LENGTH
        else f"{value[:_MAX_REPR_LENGTH]!r}..."
    )


def _row_index(index: int, num_rows: int) -> int:
    row = int(index)
    if not -num_rows <= row < num_rows:
        raise IndexError(f"row {row} of {num_rows}")
    return row % num_rows


def _slice_splits(splits: Int64s, index: slice) -> tuple[Int64s, slice]:
    start, stop, step = index.indices(len(splits) - 1)
    if step != 1:
        raise IndexError(f"step {step}: only consecutive rows can be sliced")
    # The values stay shared, so slices copy nothing.
    return splits[start : max(stop, start) + 1], slice(start, stop)
