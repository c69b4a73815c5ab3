"""What engines say while a job runs and when it fails, and job servers that end with whoever started them."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from recordmill.pipelines.remote.job_error import error_sentence, quiet, sentence
from recordmill.pipelines.remote.submission import end_with_parent

FLINK = """java.util.concurrent.ExecutionException: org.apache.flink.JobExecutionException: Job execution failed.
	at org.apache.flink.client.program.ContextEnvironment.getJobExecutionResult(ContextEnvironment.java:171)
Caused by: org.apache.beam.sdk.util.UserCodeException: java.lang.RuntimeException: Error received from SDK harness for \
instruction 7: Traceback (most recent call last):
  File "apache_beam/runners/common.py", line 1498, in apache_beam.runners.common.DoFnRunner.process
  File "/srv/recordmill/building/ingest.py", line 90, in ingest
    raise DataError("no number", source=file, place="line 3")
recordmill.base.errors.DataError: a.csv: line 3: no number: 'x' [while running '[1]Ingest']

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "apache_beam/runners/worker/sdk_worker.py", line 334, in _execute
recordmill.base.errors.DataError: a.csv: line 3: no number: 'x' [while running '[1]Ingest']

	at
org.apache.beam.runners.fnexecution.control.FnApiControlClient.onNext(FnApiControlClient.java:179)
Caused by: java.lang.RuntimeException: Error received
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (FLINK, "a.csv: line 3: no number: 'x'"),
        ("Traceback\nModuleNotFoundError: No module named 'recordmill.building'\n at x",
         "no module 'recordmill': install"),
        ("a.b.C: x\nCaused by: java.lang.OutOfMemoryError: Direct buffer memory\n",
         "ran out of memory (Direct buffer memory)"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/x/plan.pickle'", "'/x/plan.pickle'"),
        ("java.util.X: outer\nCaused by: java.lang.IllegalStateException: no slots\n\tat y", "no slots"),
        ("Pipeline recordmill-x_1-2 failed in state FAILED: java.lang.X: requirement failed: a",
         "requirement failed: a"),
        ("Traceback\nMemoryError [while running 'Ingest']\n", "a worker ran out of memory: give less memory="),
        ("Traceback\nnumpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.00 PiB\n\tat x",
         "a worker ran out of memory (Unable to allocate 1.00 PiB): give less memory="),
        ("", "it said nothing"),
        (
            "RuntimeError: recordmill.shards.rejects.TooManyRejects: 1 of 5 were rejected:\n  a.jsonl: line 5: "
            "x\nMend them\n\n\tat z",
            "1 of 5 were rejected: a.jsonl: line 5: x. Mend them",
        ),
    ],
)  # fmt: skip
def test_one_sentence_is_left(text: str, says: str) -> None:
    found = sentence(text)
    assert says in found
    assert "\n" not in found
    assert "Pipeline " not in found
    assert len(found) <= 700


def test_the_whole_text_is_kept_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    error = error_sentence(FLINK, "recordmill-build-x")
    path = Path(str(error).rpartition(": ")[2].rstrip(")"))
    assert path.read_text() == FLINK
    assert path.parent.parent == tmp_path


# While a job runs Beam and its job servers say nothing, everybody else what they say, and nothing stays as it w


def test_beam_says_nothing_meanwhile_and_others_what_they_say(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import apache_beam

    root, hook = logging.getLogger(), threading.excepthook
    monkeypatch.setattr(root, "handlers", [])
    within = os.path.join(os.path.dirname(apache_beam.__file__), "utils", "subprocess_server.py")
    as_beam_does = compile("import logging; logging.warning('of no logger')", within, "exec")
    with quiet():
        exec(as_beam_does)
        logging.getLogger("apache_beam.runners").error("of its logger")
        logging.getLogger("FlinkJarJobServer").error("of its server")
        logging.getLogger("mine").warning("mine")
    assert capsys.readouterr().err == "mine\n"
    assert (root.handlers, root.filters, threading.excepthook) == ([], [], hook)
    exec(as_beam_does)
    assert "of no logger" in capsys.readouterr().err


# A job server ends with the process that started it, and is not disturbed before


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
    """Whether it runs; nobody may have waited for it."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc whether a process is alive")
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_what_was_started_ends_with_what_started_it(signum: int) -> None:
    command = [sys.executable, "-c", STARTS, sys.executable, "-c", SLEEPS]
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
    assert (done.stdout, done.returncode) == ("said\n", 7)
