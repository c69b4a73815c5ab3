"""Workers of an engine count values as one process does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from spread_build import Steps

import recordmill


def test_workers_of_an_engine_give_the_bytes_of_one_process(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    random = np.random.default_rng(4)
    for number in range(3):
        rows = {"fare": random.exponential(20, 400), "name": random.integers(0, 9, 400), "w": random.random(400)}
        pd.DataFrame(rows).to_csv(tmp_path / "in" / f"{number}.csv", index=False)
    recordmill.build(tmp_path / "in", tmp_path / "one")
    Steps.begin([str(tmp_path / "in")], str(tmp_path / "workers"), tmp_path / "own").all()
    stored = [(tmp_path / out / "statistics.pb").read_bytes() for out in ("one", "workers")]
    assert stored[0] == stored[1]
