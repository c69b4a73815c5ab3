"""What `read --to jsonl` writes is built again by the schema of the first data set, value for value."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

import recordmill

COLUMNS = {
    **{f"i{bits}": pa.array([1, -2], f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"u{bits}": pa.array([1, 200], f"uint{bits}") for bits in (8, 16, 32)},
    "f16": pa.array(np.array([1, 2.5], np.float16)),
    "f32": pa.array([0.1, 2.5], pa.float32()),
    "f64": pa.array([0.1, 1e300]),
    "bool": pa.array([True, False]),
    "text": pa.array(["a", "é"]),
    "date": pa.array([datetime.date(2020, 1, 1)] * 2),
    **{unit: pa.array([0, 1], pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")},
    "utc": pa.array([0, 1], pa.timestamp("us", tz="UTC")),
    "list": pa.array([[1], [2, 3]]),
    "null": pa.array([None, 1]),
}


def test_every_dtype_comes_back_by_the_schema(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    recordmill.build(pa.table(COLUMNS), first, shuffle=False, splits="all=1")
    recordmill.read(first, tmp_path / "lines", to="jsonl")
    (lines,) = (tmp_path / "lines").rglob("*.jsonl")
    recordmill.build(lines, second, shuffle=False, splits="all=1", schema=first / "schema.pbtxt")
    assert recordmill.open(second).to_table().equals(recordmill.open(first).to_table())
