"""The data set itself, by number, for loaders of PyTorch that have a sampler of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_data_set import mixed_rows, write_data_set

from recordmill.reader.dataset import open

torch = pytest.importorskip("torch", reason="needs PyTorch: `.ci/torch` runs it")
from torch.utils.data import DataLoader  # noqa: E402

ROWS = 100


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_s_sampler_chooses(tmp_path: Path, workers: int) -> None:
    ds = open(write_data_set(tmp_path / "out", {"train": mixed_rows(ROWS)}, shards=3), threads=2)
    some = ds.filter("id % 2 = 0")[["id", "name", "matrix"]]
    seen = []
    for batch in DataLoader(some, batch_size=16, shuffle=True, num_workers=workers):
        ids = batch["id"].tolist()
        assert batch["name"] == [f"row {i} ü" for i in ids]
        assert batch["matrix"].tolist() == [ds[i]["matrix"].tolist() for i in ids]
        seen += ids
    assert sorted(seen) == list(range(0, ROWS, 2)) != seen
