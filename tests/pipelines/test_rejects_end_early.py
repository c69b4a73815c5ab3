"""`build` and `read` of inputs that are mostly broken: they end when that is known, and rejects don't fill the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from made_data_set import write_data_set

import recordmill
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.rejects import COUNTED_ON, Rejected, RejectWriter, TooManyRejects

pytest.importorskip("apache_beam")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Lines in each file of rejects when its writer closes it."""
    lines: dict[str, int] = {}
    close = RejectWriter.close

    def measured(self: RejectWriter) -> Rejected:
        rejected = close(self)
        path = self._path
        lines[str(path)] = path.read_bytes().count(b"\n") if path.exists() else 0
        return rejected

    monkeypatch.setattr(RejectWriter, "close", measured)
    return lines


@pytest.mark.parametrize(("budget", "most"), [("0", 0), ("2000", 2000), ("1%", 780)])
def test_a_build_of_broken_rows_ends_early(tmp_path: Path, budget: str, most: int, written: dict[str, int]) -> None:
    for number in range(6):
        (tmp_path / f"{number}.csv").write_text("a,b\n" + "1,2\n" * 1000 + "1,2,3,4,5\n" * 12_000)
    with pytest.raises(TooManyRejects, match=rf"at least \d+ records were rejected .* allows {most}, so the rest"):
        recordmill.build(str(tmp_path / "*.csv"), tmp_path / "out", max_rejects=budget, threads=4)
    assert not list(tmp_path.glob("out/*"))
    assert sum(written.values()) <= most + COUNTED_ON


def test_a_share_of_an_unknown_number_is_told_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + "1,2\n" * 3000 + "1,2,3\n" * 2000)
    assert recordmill.build(tmp_path / "a.csv", tmp_path / "out", max_rejects="40%").rejected == 2000
    with pytest.raises(TooManyRejects, match=r"2000 "):
        recordmill.build(tmp_path / "a.csv", tmp_path / "out", max_rejects="39%", overwrite=True)


@pytest.mark.parametrize(
    "options", [{}, {"to": "npy"}, {"runner": "FnApiRunner"}, {"to": "npy", "runner": "FnApiRunner"}]
)
def test_a_read_of_damaged_records_ends_early(tmp_path: Path, options: dict[str, Any], written: dict[str, int]) -> None:
    schema = Schema((Feature("x", "int64", required=True),))
    rows = pa.table({"x": pa.array(range(1 << 20, (1 << 20) + 8000), pa.int64())})
    out = write_data_set(tmp_path / "set", {"train": rows}, schema, shards=4)
    for path in out.glob("data*/train-*"):
        data = np.fromfile(path, np.uint8)
        length = int(data[:8].view("<u8")[0]) + 16  # of every frame
        data[12::length] ^= 1
        data.tofile(path)
    with pytest.raises(TooManyRejects, match=r"at least \d+ records"):
        recordmill.read(out, tmp_path / "to", max_rejects=20, **options)
    assert not (tmp_path / "to").exists() or not list((tmp_path / "to").iterdir())
    assert sum(written.values()) <= COUNTED_ON + 20
