"""Very many files are read with few descriptors, by every consumer, in a child process that may open 256 at once;
`pytest -m sweep` reads 33,000 of ours, and more files of others.
"""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from made_data_set import FOLDER, write_data_set

from recordmill.base.lru import LruLimit, LruSlot
from recordmill.reader.dataset import open
from recordmill.reader.prefetch.frames import Streams, ordered_frames
from recordmill.reader.take import range_loads, take_rows
from recordmill.records.columns.conversions import Decoding
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.access import FileAccess

SCHEMA = Schema((Feature("id", "int64", (), True), Feature("words", "string", (None,), True)))
READ = """
import sys
import numpy as np
import recordmill
from recordmill.__main__ import main

whole, foreign, extras, out = sys.argv[1], sys.argv[2].split("|"), sys.argv[3] == "extras", sys.argv[4]

def ids_of(batches):
    return sorted(n for batch in batches for n in np.asarray(batch["id"]).tolist())

def read(ds, streamed):
    total = len(ds)
    every = list(range(total))
    assert ds.head(3)["id"].to_pylist() == [0, 1, 2]
    for mode in (False, "window") if streamed else (False, "window", "global"):
        batches = ds.batches(50, shuffle=mode, drop_remainder=False)
        assert ids_of([next(batches), *batches]) == every, mode
    assert ds[total - 1]["id"] == total - 1
    assert ds.take([5, total - 2, 7])["id"].to_pylist() == [5, total - 2, 7]
    assert ds[total // 2 :]["id"].to_pylist() == every[total // 2 :]
    assert [row["id"] for row in ds] == every
    assert ds.to_numpy()["id"].tolist() == ds.to_table()["id"].to_pylist() == every
    assert len(ds.filter("id % 2 = 0")) == (total + 1) // 2
    if extras:
        assert ids_of(ds.to_tf(50)) == every
        try:
            import torch.utils.data
        except ImportError:
            return
        assert ids_of(ds.to_torch(50)) == every
        assert ids_of(torch.utils.data.DataLoader(ds.to_torch(50), batch_size=None, num_workers=2)) == every
        assert len(ds.to_torch_map(columns=["id"])[[3, total - 1]]["id"]) == 2

ours = recordmill.open(whole, threads=2)
read(ours, False)
for folder in foreign:
    streamed = folder.endswith("gz")
    ds = recordmill.open(folder, threads=2)
    read(ds, streamed)
    mixed = recordmill.mixture([(ours, 1), (ds, 2)], stop="all")
    assert len(ids_of(mixed.batches(50, shuffle="window"))) == len(mixed)
for number, folder in enumerate([whole, *foreign]):
    assert recordmill.verify(folder, threads=2) == []
    assert main(["inspect", folder, "--threads", "2"]) == 0
    assert recordmill.read(folder, f"{out}-{number}", to="parquet", threads=2).written == len(ours)
"""

READ_OURS = """
import sys
import numpy as np
import recordmill

ds = recordmill.open(sys.argv[1], threads=2)
total = len(ds)
assert ds.head(3)["id"].to_pylist() == [0, 1, 2]
for mode in (False, "window", "global"):
    batches = ds.batches(50, shuffle=mode)
    found = [n for batch, _ in zip(batches, range(40)) for n in np.asarray(batch["id"]).tolist()]
    assert len({*found}) == 2000, mode
assert ds[total - 1]["id"] == total - 1
assert ds.take(list(range(0, total, 100)))["id"].to_pylist() == list(range(0, total, 100))
assert ds.to_numpy()["id"].tolist() == list(range(total))
"""


def make(folder: Path, shards: int) -> tuple[Path, list[Path]]:
    """(a data set of so many shards, folders of the same shards as files that nothing describes)."""
    rows, arrow = range(2 * shards), to_arrow(SCHEMA)
    words = pa.array([["a"] * (i % 3) for i in rows], arrow.field("words").type)
    out = write_data_set(
        folder / "ours", {"train": pa.table([pa.array(rows), words], schema=arrow)}, SCHEMA, shards=shards
    )
    plain, packed = folder / "plain", folder / "packed.gz"
    plain.mkdir()
    packed.mkdir()
    for shard in (out / FOLDER).glob("train-*"):
        (plain / shard.name).write_bytes(shard.read_bytes())
        (packed / f"{shard.name}.gz").write_bytes(gzip.compress(shard.read_bytes(), 1))
    return out, [plain, packed]


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


def run(folder: Path, shards: int, extras: bool) -> None:
    out, foreign = make(folder, shards)
    given = [str(out), "|".join(map(str, foreign)), "extras" if extras else "", str(folder / "read")]
    limited_run(READ, *given)


def limited_run(source: str, *words: str) -> None:
    done = subprocess.run([sys.executable, "-c", source, *words], capture_output=True, text=True, preexec_fn=limited)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.sweep
def test_every_face_reads_more_files_than_it_may_open(tmp_path: Path) -> None:
    run(tmp_path, 300, extras=False)


@pytest.mark.sweep
def test_every_face_reads_2_000_files(tmp_path: Path) -> None:
    run(tmp_path, 2_000, extras=True)


@pytest.mark.sweep
def test_33_000_shards_are_read_with_256_descriptors(tmp_path: Path) -> None:
    rows = range(66_000)
    words = pa.array([["a"]] * len(rows), to_arrow(SCHEMA).field("words").type)
    table = pa.table([pa.array(rows), words], schema=to_arrow(SCHEMA))
    limited_run(READ_OURS, str(write_data_set(tmp_path / "ours", {"train": table}, SCHEMA, shards=33_000)))


class Asked(list[Any]):
    """Files, and which of them were asked for."""

    def __init__(self, files: list[FileAccess]) -> None:
        super().__init__(files)
        self.numbers: set[int] = set()

    def __getitem__(self, at: Any) -> Any:
        self.numbers.add(at)
        return super().__getitem__(at)

    def __iter__(self) -> Any:
        raise AssertionError("all files are gone through")


def test_what_is_read_asks_only_the_files_that_have_it(tmp_path: Path) -> None:
    out, (_, packed) = make(tmp_path, 40)
    ours, streamed = open(out), open(packed, schema=SCHEMA)
    numbers = np.array([61, 4, 5])  # two of each file
    for ds in (ours, streamed):
        ends, files = ds.ends, Asked(ds.files)
        held = Streams(files, ends).hold(numbers, np.zeros(3, np.int64))
        assert set(held) == (set() if ds is ours else {2, 30})
        assert len(ordered_frames(files, ends, numbers, held)) == 3
        assert take_rows(files, ends, numbers, Decoding(SCHEMA), 1)["id"].to_pylist() == [61, 4, 5]
        loads = list(range_loads(files, ends, 60, 63, 1 << 20, None))
        assert len(loads) == 2
        assert files.numbers == {2, 30, 31}


def test_a_value_is_held_while_it_is_among_the_last_that_were_used() -> None:
    limit, made = LruLimit(2), []
    slots: list[LruSlot[int]] = [LruSlot(limit) for _ in range(3)]

    def get(number: int) -> int:
        return slots[number].get(lambda: made.append(number) or number)  # type: ignore[func-returns-value]

    assert [get(0), get(1), get(0), get(2), get(0), get(1)] == [0, 1, 0, 2, 0, 1]
    assert made == [0, 1, 2, 1]
    assert sorted(limit.values()) == [0, 1]
    assert not limit.has_room()
    slots.clear()  # what nobody has any more is not held
    assert limit.values() == []
    assert limit.has_room()
