"""A job server ends with the process that started it, and is not disturbed before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recordmill.pipelines.remote.child_process import end_with_parent

STARTS = """
import subprocess, sys
from recordmill.pipelines.remote.child_process import end_with_parent
with subprocess.Popen(end_with_parent(sys.argv[1:]), stdout=subprocess.PIPE) as program:
    print(program.pid, program.stdout.readline().decode().strip(), flush=True)
    sys.stdin.read()
    program.kill()
"""
SLEEPS = "import time; print('began', flush=True); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPS}"


def is_alive(pid: int) -> bool:
    """Whether it runs; nobody may have waited for it."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc whether a process is alive")
@pytest.mark.parametrize("program", [SLEEPS, pytest.param(STUBBORN, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_what_was_started_ends_with_what_started_it(program: str, signum: int) -> None:
    command = [sys.executable, "-c", STARTS, sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        number, said = starter.stdout.readline().split()
        assert said == "began"
        assert is_alive(int(number))
        os.kill(starter.pid, signum)
    before = time.monotonic()
    while is_alive(int(number)):
        assert time.monotonic() - before < 60
        time.sleep(0.05)


def test_a_program_that_ends_by_itself_gives_its_own_code_and_output() -> None:
    command = end_with_parent([sys.executable, "-c", "print('said'); raise SystemExit(7)"])
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == ("said\n", 7)  # at its end nobody holds the pipe, the watcher neither
