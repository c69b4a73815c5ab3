"""Reads of sources, and checks of the rules that every source follows."""

import math
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.base.errors import Reject
from recordmill.schemas.arrow import to_arrow
from recordmill.sources.common.contract import BATCH_ROWS, Chunk, Source
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import stat

Row = tuple[int, int, dict[str, Any]]  # (file, position, values)


def input_files(*paths: Path) -> list[InputFile]:
    return [InputFile(0, path.name, str(path), stat(str(path))) for path in paths]


def features(source: Any) -> dict[str, str]:
    """Returns the description of each feature, with `!` if it is required."""
    return {f.name: f.describe() + ("!" if f.required else "") for f in source.schema}


def read_all(source: Any) -> tuple[list[Row], list[Reject]]:
    """Returns all rows and rejects of a source.

    Checks the rules of `sources.common.contract`, and that a pickled copy reads the same rows.
    """
    assert isinstance(source, Source)
    rows, rejects = _read(source, source.units)
    copied_rows, _ = _read(pickle.loads(pickle.dumps(source)), tuple(reversed(source.units)))
    # Compares texts, because NaN does not equal itself.
    assert repr(sorted(copied_rows, key=_place)) == repr(rows)
    assert [_place(row) for row in rows] == sorted({_place(row) for row in rows})
    return rows, rejects


def _read(source: Any, units: Iterable[Any]) -> tuple[list[Row], list[Reject]]:
    rows: list[Row] = []
    rejects: list[Reject] = []
    for unit in units:
        start = len(rows) + len(rejects)
        for chunk in source.read(unit):
            check_chunk(chunk, source)
            rows += zip(
                chunk.file_ids.tolist(),
                chunk.positions.tolist(),
                chunk.records.to_pylist(),
                strict=True,
            )
            rejects += chunk.rejects
        assert unit.rows is None or unit.rows == len(rows) + len(rejects) - start
    return rows, rejects


def check_chunk(chunk: Chunk, source: Any) -> None:
    assert isinstance(chunk.records, pa.RecordBatch)
    chunk.records.validate(full=True)
    assert chunk.records.schema.equals(to_arrow(source.schema), check_metadata=True)
    assert chunk.records.num_rows == len(chunk.file_ids) == len(chunk.positions) <= BATCH_ROWS
    assert chunk.file_ids.dtype == np.uint32
    assert chunk.positions.dtype == np.int64
    for reject in chunk.rejects:
        assert len(reject.message) < 500  # the advice contains complete column names


def are_equal(first: Any, second: Any) -> bool:
    """Returns whether two values are equal, if NaN equals NaN."""
    if isinstance(first, float) and isinstance(second, float):
        return (math.isnan(first) and math.isnan(second)) or first == second
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(are_equal, first, second))
    return bool(first == second)


def values(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return [row[2] for row in rows]


def _place(row: Row) -> tuple[int, int]:
    return row[:2]
