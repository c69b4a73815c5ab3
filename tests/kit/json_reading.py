"""JSON files, and plans of them."""

import json
from pathlib import Path
from typing import Any

from kit.source_reading import input_files
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.jsonl.options import JsonlOptions
from recordmill.sources.jsonl.source import JsonlSource, plan_jsonl


def write(path: Path, *rows: Any) -> Path:
    """Writes rows as lines of JSON. Text and bytes are written unchanged."""
    path.write_bytes(
        b"".join(
            (
                row
                if isinstance(row, bytes)
                else row.encode()
                if isinstance(row, str)
                else json.dumps(row).encode()
            )
            + b"\n"
            for row in rows
        )
    )
    return path


def plan(*paths: Path, options: JsonlOptions | None = None, **common: Any) -> JsonlSource:
    return plan_jsonl(input_files(*paths), options or JsonlOptions(), PlanOptions(**common))
