"""Epoch after epoch a run holds no more memory than before."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from made_data_set import mixed_rows, write_data_set

SCRIPT = """
import sys
import recordmill

def resident():
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * 4096

ds = recordmill.open(sys.argv[1], threads=2)
after = []
for epoch in range(12):
    for batch in ds.batches(64, shuffle=sys.argv[2], seed=epoch, ids=True):
        pass
    after.append(resident())
print(max(after[6:]) - max(after[:6]))
"""


@pytest.mark.sweep
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is asked of /proc")
@pytest.mark.parametrize("mode", ["window", "global"])
def test_ten_epochs_hold_no_more_than_the_first_ones(tmp_path: Path, mode: str) -> None:
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(20_000)}, shards=4)
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(out), mode], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 8 << 20  # of about 60 MiB that an epoch decodes
