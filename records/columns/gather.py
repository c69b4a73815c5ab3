"""Many batches to one set of NumPy columns in memory:
fixed shapes are filled into arrays made once, the others joined at the end.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from recordmill.records.columns.parts import Parts, is_bytes, numpy_dtype, put_together, take_apart, to_numpy
from recordmill.records.columns.ragged import Array, Ragged, Strings
from recordmill.schemas.feature import Feature, Schema


def gather_columns(batches: Iterable[pa.RecordBatch], schema: Schema, rows: int) -> dict[str, Array | Ragged | Strings]:
    """The columns of all batches, which have that many rows together.

    Raises:
        ValueError: they have another number of rows.
    """
    columns = {feature.name: _Column(feature, rows) for feature in schema}
    at = 0
    for batch in batches:
        if at + batch.num_rows > rows:
            raise ValueError(f"more than the {rows} rows that were announced")
        for column, array in zip(columns.values(), batch.columns, strict=True):
            column.put(at, array)
        at += batch.num_rows
    if at != rows:
        raise ValueError(f"{at} rows where {rows} were announced")
    return {name: column.finish() for name, column in columns.items()}


class _Column:
    def __init__(self, feature: Feature, rows: int) -> None:
        self.feature = feature
        self._fixed = not feature.ragged_rank and not is_bytes(feature)
        self._text = is_bytes(feature) and not feature.shape
        if self._fixed:
            self._values = np.empty((rows, *feature.inner_shape), numpy_dtype(feature))
            self._valid = None if feature.required else np.empty(rows, np.bool_)
        elif self._text:
            self._values = np.empty(rows, object)
        self._parts: list[Parts] = []

    def put(self, at: int, array: pa.Array) -> None:
        if self._text:
            self._values[at : at + len(array)] = to_numpy(array, self.feature)
            return
        parts = take_apart(array, self.feature)
        if not self._fixed:
            self._parts.append(
                Parts(parts.values.copy() if parts.values.base is not None else parts.values, parts.splits, parts.valid)
            )
            return
        self._values[at : at + len(array)] = parts.values
        if self._valid is not None:
            self._valid[at : at + len(array)] = parts.valid

    def finish(self) -> Array | Ragged | Strings:
        if self._text:
            return self._values
        if self._fixed:
            return put_together(Parts(self._values, (), self._valid), self.feature)
        return put_together(joined_columns(self._parts, self.feature), self.feature, lazy_text=False)


def joined_columns(parts: list[Parts], feature: Feature) -> Parts:
    """The parts of consecutive batches as one."""
    if len(parts) == 1:
        return parts[0]
    levels = feature.ragged_rank + is_bytes(feature)
    empty = np.empty(
        (0,) if is_bytes(feature) else (0, *feature.inner_shape),
        np.uint8 if is_bytes(feature) else numpy_dtype(feature),
    )
    splits = []
    for level in range(levels):
        pieces, base = [np.zeros(1, np.int64)], 0
        for part in parts:
            pieces.append(part.splits[level][1:] + base)
            base += int(part.splits[level][-1])
        splits.append(np.concatenate(pieces))
    valid = (
        None
        if feature.required
        else np.concatenate([np.empty(0, np.bool_), *(part.valid for part in parts if part.valid is not None)])
    )
    return Parts(np.concatenate([empty, *(part.values for part in parts)]), tuple(splits), valid)
