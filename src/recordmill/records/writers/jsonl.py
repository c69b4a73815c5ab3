"""Writes a stream of RecordBatches to one file of JSON lines, for people and small tools. Bulk belongs into Parquet.

An object per record; tensors are nested lists, what is missing null, times ISO 8601, bytes base64, and NaN and Infinity
stand as Python's json writes and reads them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.records.writers.outputs import OutputWriter, WriterSettings
from recordmill.schemas.feature import Feature, Schema
from recordmill.storage.files import create_file, write_all

ROWS_AT_ONCE = 1024  # rows that are Python objects at once


class JsonLines:
    """Turns batches of a schema into the text of JSON lines. names: the features to write, with their names in the
    lines; None: all, under their own.
    """

    def __init__(self, schema: Schema, names: Mapping[str, str] | None = None) -> None:
        self._shown = [
            (at, feature.name if names is None else names[feature.name], _shower(feature))
            for at, feature in enumerate(schema)
            if names is None or feature.name in names
        ]

    def encode(self, part: pa.RecordBatch, **first: Sequence[Any]) -> bytes:
        """Returns a line per row, whose values become Python objects all at once. first: columns of JSON's own values
        that come before the features.
        """
        columns = [
            *first.values(),
            *([show(value) for value in _values(part.column(at))] for at, _, show in self._shown),
        ]
        names = [*first, *(name for _, name, _ in self._shown)]
        lines = (
            json.dumps(
                {name: column[row] for name, column in zip(names, columns, strict=True)},
                ensure_ascii=False,
            )
            for row in range(part.num_rows)
        )
        return "".join(f"{line}\n" for line in lines).encode()


class JsonWriter(OutputWriter):
    """Appends batches of the schema's Arrow types to a new file of JSON lines."""

    def __init__(
        self, path: str | Path, schema: Schema, settings: WriterSettings | None = None
    ) -> None:
        self.rows = 0
        self._lines = JsonLines(schema)
        self._file = create_file(path)

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            write_all(self._file, self._lines.encode(batch.slice(start, ROWS_AT_ONCE)))
        self.rows += batch.num_rows

    def close(self) -> None:
        self._file.close()

    def abort(self) -> None:
        self._file.close()


def _values(column: pa.Array) -> list[Any]:
    """Returns Python values; times as ISO text to the unit's last digit, which shows the unit."""
    inner = column.type
    while pa.types.is_nested(inner):
        inner = inner.value_type
    values: list[Any] = _times(column) if pa.types.is_timestamp(inner) else column.to_pylist()
    return values


def _times(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_nested(kind):
        items = iter(_times(column.flatten()))
        sizes = pc.list_value_length(column).to_pylist()
        return [None if size is None else list(islice(items, size)) for size in sizes]
    suffix = "Z" if kind.tz else ""
    text = np.datetime_as_string(
        column.cast(pa.int64()).fill_null(0).to_numpy().astype(f"datetime64[{kind.unit}]")
    )
    there = column.is_valid().to_pylist()
    return [
        f"{value}{suffix}" if valid else None
        for value, valid in zip(text.tolist(), there, strict=True)
    ]


def _shower(feature: Feature) -> Callable[[Any], Any]:
    """Returns a function that turns a Python value of the column into one that JSON can hold."""
    inner = feature.inner_shape

    def leaf(value: Any) -> Any:
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        return float(value) if isinstance(value, np.floating) else value

    def show(value: Any) -> Any:
        if value is None:
            return None
        return [show(item) for item in value] if isinstance(value, list) else leaf(value)

    def tensor(value: Any, depth: int) -> Any:
        if value is None:
            return None
        return [tensor(item, depth - 1) for item in value] if depth else _nested(show(value), inner)

    return (lambda value: tensor(value, feature.ragged_rank)) if len(inner) > 1 else show


def _nested(flat: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """Returns values in row-major order as lists of lists of this shape."""
    for size in reversed(shape[1:]):
        flat = (
            [flat[start : start + size] for start in range(0, len(flat), size)]
            if size
            else [[] for _ in range(shape[0])]
        )
    return flat
