"""What a build is expected to give is held against its statistics wherever it commits: by an engine, into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from spread_build import Steps
from store_server import Store

import recordmill
from recordmill.checks.expectations import ExpectationError
from recordmill.shards.manifest import generations

RULES: dict[str, Any] = {"features": {"fare": {"present": 0.99, "max": 30}}}


def frame(rows: int) -> pd.DataFrame:
    return pd.DataFrame({"fare": [None if at % 10 == 0 else at / 2 for at in range(rows)], "at": range(rows)})


def test_workers_of_an_engine_hold_them_before_the_commit(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        frame(100).to_csv(tmp_path / "in" / f"{number}.csv", index=False)
    options: dict[str, Any] = {"num_shards": 2}
    steps = Steps.begin([str(tmp_path / "in")], str(tmp_path / "out"), tmp_path / "own", expect=RULES, **options)
    with pytest.raises(ExpectationError, match="2 expectations are not met"):
        steps.all()
    assert generations(tmp_path / "out") == []
    fine = {"features": {"fare": {"present": 0.5}}}
    steps = Steps.begin([str(tmp_path / "in")], str(tmp_path / "fine"), tmp_path / "own", expect=fine, **options)
    assert sum(steps.all().records.values()) == 300


def test_a_build_into_a_store_holds_them_before_it_puts_a_shard(store: Store, tmp_path: Path) -> None:
    out = f"{store.root}/expected"
    with pytest.raises(ExpectationError, match="below 99 %"):
        recordmill.build(frame(200), out, expect=RULES)
    assert store.objects(out) == {}
