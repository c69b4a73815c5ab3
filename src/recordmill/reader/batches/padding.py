"""Lists of many steps to padded arrays of each step, all in one buffer: what a call costs is shared by all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from recordmill.base import native
from recordmill.base.arrays import Int64s
from recordmill.base.buffers import again
from recordmill.reader.options.collation import fill_of
from recordmill.records.columns.ragged import Array, Ragged, Strings


def padded_steps(column: Ragged, edges: Int64s, lengths: Int64s, value: Any) -> list[Array]:
    """Rows edges[i] to edges[i + 1] as [rows, lengths[i], ...]: longer ones cut, shorter ones filled up with value."""
    if not isinstance(column.values, np.ndarray) or column.values.dtype.hasobject:
        return [
            part(column, begin, end).to_padded(length, value)
            for begin, end, length in zip(edges[:-1].tolist(), edges[1:].tolist(), lengths.tolist(), strict=True)
        ]
    flat, starts = padded_flat(column, edges, lengths, value)
    inner = column.values.shape[1:]
    return [
        flat[begin:end].reshape(rows, length, *inner)
        for begin, end, length, rows in zip(
            starts[:-1].tolist(), starts[1:].tolist(), lengths.tolist(), np.diff(edges).tolist(), strict=True
        )
    ]


def padded_flat(column: Ragged, edges: Int64s, lengths: Int64s, value: Any) -> tuple[Array, Int64s]:
    """([items, ...] of all steps, [steps + 1] where each step's begin) of a column of numbers."""
    values = np.ascontiguousarray(column.values)
    starts = np.zeros(len(edges), np.int64)
    np.cumsum(np.diff(edges) * lengths, out=starts[1:])
    out = again((int(starts[-1]), *values.shape[1:]), values.dtype)
    out[...] = fill_of(value, values.dtype)
    if out.size:
        item = values.dtype.itemsize * int(np.prod(values.shape[1:]))
        splits, edges, lengths = (np.ascontiguousarray(one, np.int64) for one in (column.row_splits, edges, lengths))
        native.pad_rows([values], splits, edges, lengths, item, out.reshape(-1).view(np.uint8))
    return out, starts


def part(column: Any, begin: int, end: int) -> Any:
    """Rows [begin, end), the splits from 0."""
    if isinstance(column, np.ndarray):
        return column[begin:end]
    splits: Int64s = column.row_splits[begin : end + 1]
    first, last = int(splits[0]), int(splits[-1])
    valid = None if column.valid is None else column.valid[begin:end]
    if isinstance(column, Strings):
        return Strings(column.values[first:last], splits - first, column.text, valid)
    return Ragged(part(column.values, first, last), splits - first, valid)
