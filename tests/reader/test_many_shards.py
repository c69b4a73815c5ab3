"""Thousands of files are read with 256 file descriptors.

Reads touch only the files that they need.
"""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.data_sets import FOLDER, write_data_set
from kit.runs import limit_descriptors, run_python

from recordmill.reader.dataset import open
from recordmill.reader.sampling.sampler import RecordSubset
from recordmill.reader.take import iter_range_reads, take_rows
from recordmill.records.columns.conversions import Decoding
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.record_files import RecordFiles

SCHEMA = Schema((Feature("id", "int64", (), True), Feature("words", "string", (None,), True)))
READ = """
import sys
import numpy as np
import recordmill
from recordmill.__main__ import main

whole, foreign, out = sys.argv[1], sys.argv[2].split("|"), sys.argv[3]

def ids_of(batches):
    return sorted(n for batch in batches for n in np.asarray(batch["id"]).tolist())

def read(ds):
    total = len(ds)
    every = list(range(total))
    assert ds.head(3)["id"].to_pylist() == [0, 1, 2]
    for mode in (False, "window", "global"):
        batches = ds.batches(50, shuffle=mode, drop_remainder=False)
        assert ids_of([next(batches), *batches]) == every, mode
    assert ds[total - 1]["id"] == total - 1
    assert ds.take([5, total - 2, 7])["id"].to_pylist() == [5, total - 2, 7]
    assert ds[total // 2 :]["id"].to_pylist() == every[total // 2 :]
    assert [row["id"] for row in ds] == every
    assert ds.to_numpy()["id"].tolist() == ds.to_table()["id"].to_pylist() == every
    assert len(ds.filter("id % 2 = 0")) == (total + 1) // 2
    assert ids_of(ds.to_tf(50)) == every
    try:
        import torch.utils.data
    except ImportError:
        return
    assert ids_of(ds.to_torch(50)) == every
    assert ids_of(torch.utils.data.DataLoader(ds.to_torch(50), batch_size=None, num_workers=2)) == every

ours = recordmill.open(whole, threads=2)
read(ours)
for folder in foreign:
    ds = recordmill.open(folder, threads=2)
    read(ds)
    mixed = recordmill.mixture([(ours, 1), (ds, 2)], stop="all")
    assert len(ids_of(mixed.batches(50, shuffle="window"))) == len(mixed)
for number, folder in enumerate([whole, *foreign]):
    assert recordmill.verify(folder, threads=2) == []
    assert main(["inspect", folder, "--threads", "2"]) == 0
    assert recordmill.read(folder, f"{out}-{number}", to="parquet", threads=2).written == len(ours)
"""


def write_sets(folder: Path, shards: int) -> tuple[Path, list[Path]]:
    """Writes a data set, and folders with copies of its shards.

    Args:
        shards: The number of shards, with two records each.

    Returns:
        The data set, and the folders. They have no manifest.
    """
    rows, arrow = range(2 * shards), to_arrow(SCHEMA)
    words = pa.array([["a"] * (i % 3) for i in rows], arrow.field("words").type)
    out = write_data_set(
        folder / "ours",
        {"train": pa.table([pa.array(rows), words], schema=arrow)},
        SCHEMA,
        shards=shards,
    )
    plain, compressed = folder / "plain", folder / "packed.gz"
    plain.mkdir()
    compressed.mkdir()
    for shard in (out / FOLDER).glob("train-*"):
        (plain / shard.name).write_bytes(shard.read_bytes())
        (compressed / f"{shard.name}.gz").write_bytes(gzip.compress(shard.read_bytes(), 1))
    return out, [plain, compressed]


@pytest.mark.sweep
def test_every_consumer_reads_2_000_files_with_256_descriptors(tmp_path: Path) -> None:
    out, foreign = write_sets(tmp_path, 2_000)
    arguments = [out, "|".join(map(str, foreign)), tmp_path / "read"]
    process = run_python("-c", READ, *arguments, check=False, preexec_fn=limit_descriptors)
    assert process.returncode == 0, process.stderr[-3000:]


class FileListSpy(list[Any]):
    """List of files that collects the numbers of the requested files."""

    def __init__(self, files: list[Any]) -> None:
        super().__init__(files)
        self.numbers: set[int] = set()

    def __getitem__(self, number: Any) -> Any:
        self.numbers.add(number)
        return super().__getitem__(number)

    def __iter__(self) -> Any:
        raise AssertionError("all files are gone through")


def test_reads_open_only_the_files_that_contain_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, (_, compressed) = write_sets(tmp_path, 40)
    dataset, compressed_set = open(out), open(compressed, schema=SCHEMA)
    numbers = np.array([61, 4, 5])  # each file has two records
    for ds in (dataset, compressed_set):
        files: RecordFiles = ds.files
        assert len(files.ends) == 40
        spy = FileListSpy(list(files))
        monkeypatch.setattr(files, "_files", spy)
        assert files.frames(numbers).numbers.tolist() == [61, 4, 5]
        assert take_rows(files, numbers, Decoding(SCHEMA), 1)["id"].to_pylist() == [61, 4, 5]
        assert len(list(iter_range_reads(files, 60, 63))) == 2
        joined = files._joined
        mapped = [] if joined is None else np.flatnonzero(joined._is_mapped).tolist()
        assert spy.numbers | set(mapped) == {2, 30, 31}
        spy.numbers.clear()
        subset = RecordSubset.from_numbers(np.array([61]), 80)
        assert len(list(iter_range_reads(files, 0, 80, subset=subset))) == 1
        assert spy.numbers == {30}
