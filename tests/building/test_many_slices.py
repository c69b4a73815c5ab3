"""The memory of a build does not grow with sorted runs times shards, up to 10,000 shards and 1
TB.
"""

import itertools
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.building.run_slices import iter_shard_slices
from recordmill.building.shard_boundaries import ShardOptions, add_key_bounds, compute_boundaries
from recordmill.building.sorted_run import Histogram, KeyBuckets, SortedRun, SortedRunIndex

MEMORY = 128 << 20
SCRIPT = """
import ctypes, shutil, sys
import apache_beam
import pyarrow as pa
import recordmill

def held(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) << 10

source, out, shards, memory = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
recordmill.build({"warm": ["x"], "up": [1.5]}, out + "-warm", num_shards=1)
pa.default_memory_pool().release_unused()
getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
open("/proc/self/clear_refs", "w").write("5")
base = held("VmRSS")
result = recordmill.build(source, out, kind="csv", num_shards=shards, memory=memory, threads=2)
assert sum(result.records.values()) == int(sys.argv[5])
print(held("VmHWM") - base)
"""


@pytest.mark.memory
@pytest.mark.sweep
def test_build_of_ten_thousand_shards_stays_within_memory(tmp_path: Path) -> None:
    pytest.importorskip("apache_beam", reason="building needs Apache Beam")
    rows = 1_600_000
    with (tmp_path / "rows.csv").open("w") as file:
        file.write("id,text,x\n")
        for first in range(0, rows, 10_000):
            file.write(
                "".join(
                    f"{row},{row * 7919 % 1_000_003:090d},{row % 97}.5\n"
                    for row in range(first, first + 10_000)
                )
            )
    assert (tmp_path / "rows.csv").stat().st_size > MEMORY
    words = [
        sys.executable,
        "-c",
        SCRIPT,
        tmp_path / "rows.csv",
        tmp_path / "out",
        "10000",
        str(MEMORY),
        str(rows),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= MEMORY * 5 // 4, f"{int(done.stdout) / MEMORY:.0%} of the memory"


NUM_RUNS, RUN_RECORDS, RECORD_BYTES = (
    3726,
    268_384,
    1_000,
)  # 1 TB at the defaults, as `spread.scale` counts it


def traced(work: Callable[[], Any]) -> tuple[Any, int]:
    """What work gives, and the most that was held meanwhile."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def runs_of_a_terabyte(last: int) -> list[SortedRun]:
    size = RUN_RECORDS * RECORD_BYTES
    return [
        SortedRun(f"/out/_run-0123456789ab/runs/run-{at:032x}", RUN_RECORDS, size, 0, last)
        for at in range(NUM_RUNS)
    ]


def test_slices_of_a_terabyte_are_found_within_a_part_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buckets = KeyBuckets.for_shards(1, 2**64, NUM_RUNS * RUN_RECORDS * RECORD_BYTES // (128 << 20))

    def count_before(self: SortedRun, wanted: np.ndarray) -> np.ndarray:
        records = wanted * RUN_RECORDS // buckets.num_buckets
        return np.stack([records, records * RECORD_BYTES], 1)

    monkeypatch.setattr(SortedRun, "count_before", count_before)

    def some() -> tuple[int, int]:
        """(slices, records) of the first shards."""
        total = Histogram.zeros(1, buckets.num_buckets)
        total.records[0] = (
            np.diff(np.arange(buckets.num_buckets + 1) * RUN_RECORDS // buckets.num_buckets)
            * NUM_RUNS
        )
        total.bytes[0] = total.records[0] * RECORD_BYTES
        runs = runs_of_a_terabyte(buckets.num_buckets)
        cuts = add_key_bounds(compute_boundaries(total, ShardOptions(), ["train"]), total, runs)
        assert len(cuts) == 7451
        assert not (
            cuts.table["lower_key"] != b""
        ).any()  # no bucket is larger than a shard: nothing was read for that
        found = itertools.islice(iter_shard_slices(runs, cuts, 1, DEFAULT_MEMORY_BYTES // 64), 20)
        return tuple(
            map(
                sum,
                zip(
                    *((len(pieces), sum(one.records for one in pieces)) for _, pieces in found),
                    strict=True,
                ),
            )
        )

    (slices, records), most = traced(some)
    assert slices == 20 * NUM_RUNS
    assert records * RECORD_BYTES == pytest.approx(
        20 * (128 << 20), rel=0.15
    )  # whole buckets: 1.11
    assert most < DEFAULT_MEMORY_BYTES // 16


def test_marks_of_a_sorted_run_are_every_64th_record_in_order(tmp_path: Path) -> None:
    from recordmill.building.sorted_run import ENTRY_DTYPE

    entries = np.zeros(1000, ENTRY_DTYPE)
    entries["key"], entries["size"] = np.arange(1000) * 3 + 5, np.arange(1000) % 7 + 16
    entries["position"], entries["file"] = np.arange(1000)[::-1], 2**32 - 1
    buckets = KeyBuckets(3, 16, 256)
    written = []
    for step in (1, 63, 64, 1000):
        index = SortedRunIndex(buckets)
        for at in range(0, 1000, step):
            index.add(1, entries[at : at + step])
        path = tmp_path / f"{step}"
        with path.open("wb") as file:
            first, last = index.write(file)
        written.append(path.read_bytes())
    assert len(set(written)) == 1
    run = SortedRun(str(path), 0, 0, first, last)
    assert (first, last) == (16, 28)
    ends = np.cumsum(entries["size"])
    for bucket in range(48):
        count = int((entries["key"] < (bucket - 16) * 256).sum()) if bucket > 16 else 0
        assert run.count_before(np.array([bucket])).tolist() == [
            [count, int(ends[count - 1]) if count else 0]
        ]
    number, marks = run.read_sparse_index(100, 300)
    assert number == 128
    assert marks["bytes"].tolist() == [int(ends[at - 1]) for at in (128, 192, 256)]
    keys = [
        int.from_bytes(bytes(place).ljust(20, b"\0")[:8], "big")
        for place in marks["sort_key"].tolist()
    ]
    assert keys == [128 * 3 + 5, 192 * 3 + 5, 256 * 3 + 5]
