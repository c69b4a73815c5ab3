"""The block of docs/training.md that needs PyTorch runs, on the data set of the page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from made_data_set import write_data_set

import recordmill
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema

pytest.importorskip("torch", reason="needs PyTorch: `.ci/torch` runs it")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "training.md"


def test_the_block_of_the_page_runs(tmp_path: Path) -> None:
    schema = Schema((Feature("words", "int64", (None,), True), Feature("y", "int64", (), True)), "y")
    columns = {"words": [list(range(i % 9)) for i in range(300)], "y": np.arange(300) % 2}
    arrow = to_arrow(schema)
    table = pa.table([pa.array(columns[field.name], field.type) for field in arrow], schema=arrow)
    ds = recordmill.open(write_data_set(tmp_path / "out", {"train": table}, schema))
    (block,) = re.findall(r"(?ms)^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"))
    names = {"ds": ds, "recordmill": recordmill}
    exec(compile(block, "page", "exec"), names)
    assert names["epoch"] == 2
