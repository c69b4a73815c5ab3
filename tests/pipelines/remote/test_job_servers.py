"""Beam prints nothing while a job runs, and job servers end with their parent."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from recordmill.pipelines.remote.job_error import (
    silence_engine_logs,
)
from recordmill.pipelines.remote.submission import end_with_parent


def test_beam_prints_nothing_during_a_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import apache_beam

    root, hook = logging.getLogger(), threading.excepthook
    monkeypatch.setattr(root, "handlers", [])
    file_name = os.path.join(os.path.dirname(apache_beam.__file__), "utils", "subprocess_server.py")
    log_call = compile("import logging; logging.warning('of no logger')", file_name, "exec")
    with silence_engine_logs():
        exec(log_call)
        logging.getLogger("apache_beam.runners").error("of its logger")
        logging.getLogger("FlinkJarJobServer").error("of its server")
        logging.getLogger("mine").warning("mine")
    assert capsys.readouterr().err == "mine\n"
    assert (root.handlers, root.filters, threading.excepthook) == ([], [], hook)
    exec(log_call)
    assert "of no logger" in capsys.readouterr().err


STARTS = """
import subprocess, sys
from recordmill.pipelines.remote.submission import end_with_parent
with subprocess.Popen(end_with_parent(sys.argv[1:]), stdout=subprocess.PIPE) as program:
    print(program.pid, program.stdout.readline().decode().strip(), flush=True)
    sys.stdin.read()
    program.kill()
"""
SLEEPS = "import time; print('began', flush=True); time.sleep(60)"


def is_alive(pid: int) -> bool:
    """Returns whether a process runs. A zombie doesn't."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="asks /proc whether a process is alive"
)
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_started_program_ends_with_its_parent(signum: int) -> None:
    command = [sys.executable, "-c", STARTS, sys.executable, "-c", SLEEPS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        number, output = starter.stdout.readline().split()
        assert output == "began"
        assert is_alive(int(number))
        os.kill(starter.pid, signum)
    before = time.monotonic()
    while is_alive(int(number)):
        assert time.monotonic() - before < 60
        time.sleep(0.05)


def test_program_that_ends_by_itself_returns_its_code_and_output() -> None:
    command = end_with_parent([sys.executable, "-c", "print('said'); raise SystemExit(7)"])
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (process.stdout, process.returncode) == ("said\n", 7)
