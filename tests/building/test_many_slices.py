"""A build of 10,000 shards stays within its memory limit."""

import subprocess
import sys
from pathlib import Path

import pytest

MEMORY = 128 << 20
SCRIPT = """
import ctypes, shutil, sys
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
    process = subprocess.run(words, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) <= MEMORY * 5 // 4, (
        f"{int(process.stdout) / MEMORY:.0%} of the memory"
    )
