"""Helpers for tests of sources: files to InputFiles, a source to rows, and the laws that every
source keeps.
"""

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
    """The form of each feature, with `!` where every record has it."""
    return {f.name: f.describe() + ("!" if f.required else "") for f in source.schema}


def read_all(source: Any) -> tuple[list[Row], list[Reject]]:
    """All rows and rejects, after checking the laws of `sources.common.contract`, also of a pickled
    copy.
    """
    assert isinstance(source, Source)
    rows, rejects = _read(source, source.units)
    again, _ = _read(pickle.loads(pickle.dumps(source)), tuple(reversed(source.units)))
    assert repr(sorted(again, key=_place)) == repr(rows)  # NaN is not itself, but it is spelled so
    assert [_place(row) for row in rows] == sorted({_place(row) for row in rows})
    return rows, rejects


def _read(source: Any, units: Iterable[Any]) -> tuple[list[Row], list[Reject]]:
    rows: list[Row] = []
    rejects: list[Reject] = []
    for unit in units:
        before = len(rows) + len(rejects)
        for chunk in source.read(unit):
            check_chunk(chunk, source)
            rows += zip(
                chunk.file_ids.tolist(),
                chunk.positions.tolist(),
                chunk.records.to_pylist(),
                strict=True,
            )
            rejects += chunk.rejects
        assert unit.rows is None or unit.rows == len(rows) + len(rejects) - before
    return rows, rejects


def check_chunk(chunk: Chunk, source: Any) -> None:
    assert isinstance(chunk.records, pa.RecordBatch)
    chunk.records.validate(full=True)
    assert chunk.records.schema.equals(to_arrow(source.schema), check_metadata=True)
    assert chunk.records.num_rows == len(chunk.file_ids) == len(chunk.positions) <= BATCH_ROWS
    assert chunk.file_ids.dtype == np.uint32
    assert chunk.positions.dtype == np.int64
    for reject in chunk.rejects:
        assert len(reject.message) < 500  # a remedy names columns whole


def are_equal(one: Any, other: Any) -> bool:
    """Whether two values are equal, where NaN equals NaN."""
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or one == other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_equal, one, other))
    return bool(one == other)


def values(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return [row[2] for row in rows]


def _place(row: Row) -> tuple[int, int]:
    return row[:2]
