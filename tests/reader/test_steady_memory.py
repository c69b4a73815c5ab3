"""Epoch after epoch a run holds no more memory than before.

What a run holds is asked of the system when the allocators have given back what nobody uses: Arrow's pool and the C
library keep freed pages for later, more or fewer of them as threads happen to run, on a busy machine 15 MB one time and
none the next. And it is the floor of some epochs that is held, since memory that is kept for good is in all of them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from made_data_set import mixed_rows, write_data_set

EPOCH_BYTES = 60 << 20  # about what an epoch of the data set decodes
SCRIPT = """
import ctypes, sys
import pyarrow as pa
import recordmill

libc = ctypes.CDLL(None)

def resident():
    pa.default_memory_pool().release_unused()
    getattr(libc, "malloc_trim", int)(0)  # other C libraries than GNU's have none
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * 4096

ds = recordmill.open(sys.argv[1], threads=2)
mode, consumer, leaked = sys.argv[2], sys.argv[3], int(sys.argv[4])
fed = ds.to_tf(64, shuffle=mode, label=False, ids=True) if consumer == "to_tf" else None
after, kept = [], []
for epoch in range(28):
    for batch in ds.batches(64, shuffle=mode, seed=epoch, ids=True) if fed is None else fed:
        pass
    kept.append(b"1" * leaked)
    after.append(resident())
print(min(after[20:]) - min(after[4:12]))
"""


def growth(folder: Path, mode: str, consumer: str, leaked: int = 0) -> int:
    """How many bytes more 16 epochs later, where so many are leaked in each."""
    out = write_data_set(folder / "out", {"train": mixed_rows(20_000)}, shards=4)
    words = [sys.executable, "-c", SCRIPT, str(out), mode, consumer, str(leaked)]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


@pytest.mark.memory
@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["window", "global"])
@pytest.mark.parametrize("consumer", ["batches", "to_tf"])
def test_ten_epochs_hold_no_more_than_the_first_ones(tmp_path: Path, mode: str, consumer: str) -> None:
    if consumer == "to_tf":
        pytest.importorskip("tensorflow")
    assert growth(tmp_path, mode, consumer) < 8 << 20


@pytest.mark.memory
@pytest.mark.sweep
def test_a_fiftieth_of_an_epoch_that_is_kept_is_found(tmp_path: Path) -> None:
    assert growth(tmp_path, "window", "batches", EPOCH_BYTES // 50) > 8 << 20
