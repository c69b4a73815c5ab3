"""Output to JSON Lines files, for small data sets.

Each record is an object. Tensors are nested lists, missing values are null, times are ISO 8601
texts, and bytes are base64. NaN and Infinity are written as Python's `json` does.
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

# Number of rows that are Python objects at once, which bounds the memory.
JSON_BATCH_ROWS = 1024


class JsonLineEncoder:
    """Encoder of batches to JSON lines.

    Args:
        schema: The features of the batches.
        names: The key in the JSON object for each feature to write, by feature name. If None, all
            features are written under their own names.
    """

    def __init__(self, schema: Schema, names: Mapping[str, str] | None = None) -> None:
        self._fields = [
            (
                index,
                feature.name if names is None else names[feature.name],
                _make_json_converter(feature),
            )
            for index, feature in enumerate(schema)
            if names is None or feature.name in names
        ]

    def encode(self, batch: pa.RecordBatch, **leading_columns: Sequence[Any]) -> bytes:
        """Encodes the rows of a batch to JSON lines in UTF-8.

        All values of the batch become Python objects at once.

        Args:
            batch: Columns of the schema.
            leading_columns: Columns that precede the features in each object, by key. A column has
                one JSON value per row.
        """
        columns = [
            *leading_columns.values(),
            *(
                [to_json(value) for value in _to_python(batch.column(index))]
                for index, _, to_json in self._fields
            ),
        ]
        names = [*leading_columns, *(name for _, name, _ in self._fields)]
        lines = (
            json.dumps(
                {name: column[row] for name, column in zip(names, columns, strict=True)},
                ensure_ascii=False,
            )
            for row in range(batch.num_rows)
        )
        return "".join(f"{line}\n" for line in lines).encode()


class JsonWriter(OutputWriter):
    """Writer of one file of JSON lines."""

    def __init__(
        self, path: str | Path, schema: Schema, settings: WriterSettings | None = None
    ) -> None:
        self.rows = 0
        self._lines = JsonLineEncoder(schema)
        self._file = create_file(path)

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, JSON_BATCH_ROWS):
            write_all(self._file, self._lines.encode(batch.slice(start, JSON_BATCH_ROWS)))
        self.rows += batch.num_rows

    def close(self) -> None:
        self._file.close()

    def abort(self) -> None:
        self._file.close()


def _to_python(column: pa.Array) -> list[Any]:
    """Converts a column to Python values.

    Times become ISO 8601 texts with all digits of their unit, so that the unit remains visible.
    """
    inner = column.type
    while pa.types.is_nested(inner):
        inner = inner.value_type
    return _format_times(column) if pa.types.is_timestamp(inner) else column.to_pylist()


def _format_times(column: pa.Array) -> list[Any]:
    time_type = column.type
    if pa.types.is_nested(time_type):
        items = iter(_format_times(column.flatten()))
        sizes = pc.list_value_length(column).to_pylist()
        return [None if size is None else list(islice(items, size)) for size in sizes]
    # Times with a time zone are stored as UTC.
    suffix = "Z" if time_type.tz else ""
    text = np.datetime_as_string(
        column.cast(pa.int64()).fill_null(0).to_numpy().astype(f"datetime64[{time_type.unit}]")
    )
    is_present = column.is_valid().to_pylist()
    return [
        f"{value}{suffix}" if is_valid else None
        for value, is_valid in zip(text.tolist(), is_present, strict=True)
    ]


def _make_json_converter(feature: Feature) -> Callable[[Any], Any]:
    """Returns a function that converts a Python value of a feature to JSON.

    Bytes become base64. A tensor with several dimensions, which Arrow returns as one flat list,
    becomes nested lists of its shape. None stays None.
    """
    inner = feature.inner_shape

    def scalar_to_json(value: Any) -> Any:
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        return float(value) if isinstance(value, np.floating) else value

    def to_json(value: Any) -> Any:
        if value is None:
            return None
        return (
            [to_json(item) for item in value] if isinstance(value, list) else scalar_to_json(value)
        )

    def tensor_to_json(value: Any, depth: int) -> Any:
        if value is None:
            return None
        return (
            [tensor_to_json(item, depth - 1) for item in value]
            if depth
            else _nest_values(to_json(value), inner)
        )

    return (lambda value: tensor_to_json(value, feature.ragged_rank)) if len(inner) > 1 else to_json


def _nest_values(values: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """Converts a flat list of values in row-major order to nested lists.

    Args:
        values: The values.
        shape: The shape. The result has one level of lists per dimension.
    """
    # The innermost lists are built first. The list of a whole tensor is the outermost one, so the
    # first dimension needs no step.
    for size in reversed(shape[1:]):
        values = (
            [values[start : start + size] for start in range(0, len(values), size)]
            if size
            else [[] for _ in range(shape[0])]
        )
    return values
