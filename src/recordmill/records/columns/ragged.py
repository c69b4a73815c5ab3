"""Columns whose rows differ in length, as NumPy has no type for them: `Ragged` for lists, `Strings` for text and bytes.

Both are values plus row splits (row i is `values[row_splits[i]:row_splits[i + 1]]`, as in tf.RaggedTensor and Arrow),
so a memory map serves as well as an array, and nothing is an object per row before it is asked for. `valid` tells a
missing row from an empty one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import Int64s

if TYPE_CHECKING:
    import tensorflow as tf

Array = npt.NDArray[Any]
ValidMask = npt.NDArray[np.bool_]

_MAX_REPR_ROWS = 3
_MAX_REPR_LENGTH = 40


@dataclass(frozen=True, eq=False, repr=False)
class Strings:
    """Text (`text=True`: rows are `str`) or binary (`bytes`) of any lengths in one buffer.

    values: [bytes] uint8. row_splits: [rows + 1] int64 into values. valid: [rows] bool, None where every row has a
    value.

    >>> words = Strings(np.frombuffer(b"helloyou", np.uint8), np.array([0, 5, 8]), text=True)
    >>> words[1], words.to_list(), len(words)
    ('you', ['hello', 'you'], 2)
    """

    values: Array
    row_splits: Int64s
    text: bool
    valid: ValidMask | None = None

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
        """Returns a `str` or `bytes` per row, None for a missing one."""
        return list(self)

    def to_numpy(self) -> Array:
        """[rows] object array of `str`, `bytes` and None."""
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
    """Rows of different lengths: row i is `values[row_splits[i]:row_splits[i + 1]]`.

    values: [items, ...] array of the items of all rows; `Strings` for lists of text; another `Ragged` for lists of
    lists. row_splits: [rows + 1] int64. valid: [rows] bool, None where every row has a value; a missing row has length
    0 and is given as None.

    >>> boxes = Ragged(np.arange(5), np.array([0, 2, 2, 5]))
    >>> boxes[0], len(boxes[1]), boxes.to_padded(value=-1).tolist()
    (array([0, 1]), 0, [[0, 1, -1], [-1, -1, -1], [2, 3, 4]])
    """

    values: Array | Strings | Ragged
    row_splits: Int64s
    valid: ValidMask | None = None

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """[rows] how many items each row has."""
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
        """Returns a list of arrays (of lists, where rows are nested lists or text), None for a missing row."""
        return [row.to_list() if isinstance(row, (Ragged, Strings)) else row for row in self]

    def to_padded(self, length: int | None = None, value: Any = 0) -> Array:
        """[rows, length, ...] array: longer rows are cut, shorter and missing ones filled up with value.

        length: of the longest row if None. Nested rows are padded at each level to their longest; text gives an object
        array.
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
        result[is_filled] = inner[(starts[:, None] + columns)[is_filled]]
        return result

    def to_tf(self) -> tf.RaggedTensor:
        """Returns a tf.RaggedTensor of the rows; missing rows are empty there."""
        import tensorflow as tf

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
    return splits[start : max(stop, start) + 1], slice(start, stop)
