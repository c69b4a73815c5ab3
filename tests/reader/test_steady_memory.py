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
mode, face = sys.argv[2:]
fed = ds.to_tf(64, shuffle=mode, label=False, ids=True) if face == "to_tf" else None
after = []
for epoch in range(12):
    for batch in ds.batches(64, shuffle=mode, seed=epoch, ids=True) if fed is None else fed:
        pass
    after.append(resident())
print(max(after[6:]) - max(after[:6]))
"""


@pytest.mark.sweep
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is asked of /proc")
@pytest.mark.parametrize("mode", ["window", "global"])
@pytest.mark.parametrize("face", ["batches", "to_tf"])
def test_ten_epochs_hold_no_more_than_the_first_ones(tmp_path: Path, mode: str, face: str) -> None:
    if face == "to_tf":
        pytest.importorskip("tensorflow")
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(20_000)}, shards=4)
    words = [sys.executable, "-c", SCRIPT, str(out), mode, face]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    # of about 60 MiB that an epoch decodes: in six epochs, so a fiftieth of an epoch that is kept is found
    assert int(done.stdout) < 8 << 20
