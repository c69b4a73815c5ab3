"""Builds of a few rows into a store."""

from pathlib import Path
from typing import Any

import recordmill

ROWS = {"x": list(range(400)), "y": [f"row {number}" for number in range(400)]}


def build(out: str | Path, rows: dict[str, Any] = ROWS, **options: Any) -> recordmill.BuildResult:
    return recordmill.build(
        rows, out, name="same", num_shards=2, splits="train=0.8,test=0.2", **options
    )
