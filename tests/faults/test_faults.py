"""Builds and reads that are killed, or whose disk fails, at their n-th change of the file system: the old result whole
or the new one, and the same command succeeds. A sample here; `.ci/faults` takes every n.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sweep

pytest.importorskip("apache_beam", reason="builds need Apache Beam")

HERE = Path(__file__).parent
# job, how it is stopped, every so many changes of some 60 (reads) and 115 (builds)
SAMPLE = [
    ("reread-parquet", "kill", 9), ("reread-npy", "EIO", 17), ("read-jsonl", "ENOSPC", 11),
    ("rebuild", "kill", 31), ("files-build", "EIO", 19),
]  # fmt: skip
WHOLE = [
    (job, how, 1)
    for job in (
        "build",
        "files-build",
        "rebuild",
        *(f"{read}-{to}" for read in ("read", "reread") for to in ("parquet", "npy", "npz")),
    )
    for how in ("kill", "EIO", "ENOSPC")
]
CASES = WHOLE if os.environ.get("RECORDMILL_FAULTS") == "all" else SAMPLE


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library that counts and fails, compiled."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("the library that lets system calls fail is compiled by gcc, on Linux")
    target = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", target, HERE / "shim.c", "-ldl"], check=True)
    return str(target)


@pytest.mark.faults
@pytest.mark.parametrize(("job", "how", "step"), CASES)
def test_a_stop_at_any_change_of_the_file_system(shim: str, tmp_path: Path, job: str, how: str, step: int) -> None:
    command = [sys.executable, str(HERE / "sweep.py"), job, how, str(tmp_path / "sweep"), str(step)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LD_PRELOAD": shim})
    assert done.returncode == 0, done.stderr[-2000:]
    *problems, last = map(json.loads, done.stdout.splitlines())
    assert not problems, "\n".join(map(str, problems[:5]))
    assert last["changes"] > 30
    assert last["cases"] > last["changes"] // step


@pytest.mark.faults
def test_a_crowd_at_one_data_set(tmp_path: Path) -> None:
    rounds = "200" if CASES is WHOLE else "3"
    command = [sys.executable, str(HERE / "crowd.py"), str(tmp_path / "crowd"), rounds]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    *problems, _ = map(json.loads, done.stdout.splitlines())
    assert not problems, "\n".join(map(str, problems[:5]))
