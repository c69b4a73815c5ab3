"""Users see what an engine reports while a job runs and when it fails, and job servers end with
their parent.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from kit.flink_server import FlinkServer, flink_server

import recordmill
from recordmill.__main__ import main
from recordmill.base.progress import Progress
from recordmill.pipelines.remote import submission
from recordmill.pipelines.remote.flink import JobNote
from recordmill.pipelines.remote.job_error import (
    EngineError,
    make_engine_error,
    silence_engine_logs,
    summarize_error,
)
from recordmill.pipelines.remote.submission import end_with_parent, pipeline_options
from recordmill.shards.dead_runs import JOB_NOTE_NAME, LEASE_SEC
from recordmill.shards.run import RunFolder

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
        (
            "Traceback\nModuleNotFoundError: No module named 'recordmill.building'\n at x",
            "no module 'recordmill': install",
        ),
        (
            "a.b.C: x\nCaused by: java.lang.OutOfMemoryError: Direct buffer memory\n",
            "ran out of memory (Direct buffer memory)",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/x/plan.pickle'",
            "'/x/plan.pickle'",
        ),
        (
            "java.util.X: outer\nCaused by: java.lang.IllegalStateException: no slots\n\tat y",
            "no slots",
        ),
        (
            "Pipeline recordmill-x_1-2 failed in state FAILED: java.lang.X: requirement failed: a",
            "requirement failed: a",
        ),
        (
            "Traceback\nMemoryError [while running 'Ingest']\n",
            "a worker ran out of memory: use less memory=",
        ),
        (
            "Traceback\nnumpy._core._exceptions._ArrayMemoryError: Unable to allocate 1.00 PiB\n\tat x",
            "a worker ran out of memory (Unable to allocate 1.00 PiB): use less memory=",
        ),
        ("", "the engine gave no reason"),
        (
            "RuntimeError: recordmill.shards.rejects.TooManyRejects: 1 of 5 were rejected:\n  a.jsonl: line 5: "
            "x\nMend them\n\n\tat z",
            "1 of 5 were rejected: a.jsonl: line 5: x. Mend them",
        ),
    ],
)
def test_error_text_of_an_engine_becomes_one_sentence(text: str, says: str) -> None:
    found = summarize_error(text)
    assert says in found
    assert "\n" not in found
    assert "Pipeline " not in found
    assert len(found) <= 700


def test_complete_error_text_is_kept_in_a_named_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    error = make_engine_error(FLINK, "recordmill-build-x")
    path = Path(str(error).rpartition(": ")[2].rstrip(")"))
    assert path.read_text() == FLINK
    assert path.parent.parent == tmp_path


def test_beam_prints_nothing_during_a_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import apache_beam

    root, hook = logging.getLogger(), threading.excepthook
    monkeypatch.setattr(root, "handlers", [])
    within = os.path.join(os.path.dirname(apache_beam.__file__), "utils", "subprocess_server.py")
    as_beam_does = compile("import logging; logging.warning('of no logger')", within, "exec")
    with silence_engine_logs():
        exec(as_beam_does)
        logging.getLogger("apache_beam.runners").error("of its logger")
        logging.getLogger("FlinkJarJobServer").error("of its server")
        logging.getLogger("mine").warning("mine")
    assert capsys.readouterr().err == "mine\n"
    assert (root.handlers, root.filters, threading.excepthook) == ([], [], hook)
    exec(as_beam_does)
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
    """Whether it runs; nobody may have waited for it."""
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
        number, said = starter.stdout.readline().split()
        assert said == "began"
        assert is_alive(int(number))
        os.kill(starter.pid, signum)
    before = time.monotonic()
    while is_alive(int(number)):
        assert time.monotonic() - before < 60
        time.sleep(0.05)


def test_program_that_ends_by_itself_returns_its_code_and_output() -> None:
    command = end_with_parent([sys.executable, "-c", "print('said'); raise SystemExit(7)"])
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == ("said\n", 7)


JOB = "0" * 31 + "1"


def test_job_cancelled_by_another_user_is_reported() -> None:
    with flink_server() as server:
        options = pipeline_options("FlinkRunner", [f"--flink_master={server.url}"])
        engine = submission._EngineJob(submission.Submission("FlinkRunner", (), "j"), options)
        server.jobs[JOB] = ("j", "CANCELLING")
        engine.id = JOB
        engine._failure.append(RuntimeError("JobCancellationException"))
        engine._ended.set()
        later = threading.Timer(0.5, server.jobs.update, [{JOB: ("j", "CANCELED")}])
        later.start()
        with pytest.raises(
            EngineError, match="j was cancelled by another user or program; nothing was written"
        ):
            engine.wait(Progress())
        later.join()


class Interrupted:
    """A pipeline whose submission is stopped after the job server has it."""

    def run(self) -> object:
        raise KeyboardInterrupt


STAYING = ("PortableRunner", "--job_endpoint=localhost:9")


def handed_over(runner: str, *flags: str) -> submission._EngineJob:
    """The job, when this process was stopped while it handed it over, and nobody knows yet what
    became of it.
    """
    engine = submission._EngineJob(
        submission.Submission(runner, (), "j"), pipeline_options(runner, flags)
    )
    with pytest.raises(KeyboardInterrupt):
        engine.submit(Interrupted())
    return engine


@pytest.mark.parametrize(
    "runner", [STAYING, ("FlinkRunner", "--flink_submit_uber_jar"), ("FlinkRunner",)], ids=str
)
def test_late_job_of_a_stopped_driver_is_cancelled(runner: tuple[str, ...]) -> None:
    with flink_server() as server:
        engine = handed_over(*runner, f"--flink_master={server.url}")
        later = threading.Timer(1.5, server.jobs.update, [{JOB: ("j", "RUNNING")}])
        later.start()
        engine.end("stopped")
        later.join()
        assert server.cancelled == [JOB]


@pytest.mark.sweep
def test_job_that_may_still_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "_SUBMISSION_SEC", 0.1)
    with flink_server() as server:
        master = f"--flink_master={server.url}"
        for runner in (
            (*STAYING, master),
            STAYING,
            ("FlinkRunner", "--flink_submit_uber_jar", master),
            ("SparkRunner", "--spark_submit_uber_jar"),
            ("DataflowRunner",),
        ):
            with pytest.raises(
                submission.MayBeRunning,
                match=r"the job j may still be running \(the job was being sent to",
            ):
                handed_over(*runner).end("stopped")
        handed_over("FlinkRunner", master).end(
            "stopped"
        )  # a server of its own, which has ended with it
        handed_over("SparkRunner").end("stopped")


def orphan(out: Path, note: JobNote) -> Path:
    """A run folder as a driver leaves it that was killed while its job was at work."""
    folder = RunFolder.create(out, uses_engine=True)
    (folder.path / JOB_NOTE_NAME).write_bytes(note.to_json())
    folder.release()
    return folder.path


def note_of(server: FlinkServer, job: str = JOB) -> JobNote:
    return JobNote("FlinkRunner", "recordmill-build-x-1", server.url, job, time.time())


def test_job_without_its_driver_stays_alive_for_one_lease(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = orphan(out, JobNote("FlinkRunner", "j", "http://127.0.0.1:9", JOB, time.time()))
    RunFolder.create(out).close()  # as another build begins
    assert recordmill.clean(out, remove=True) == {}
    assert run.exists()
    long_ago = time.time() - LEASE_SEC - 60
    for name in ("lock", "data", "runs", "rejects"):
        os.utime(run / name, (long_ago, long_ago))
    assert list(recordmill.clean(out, remove=True)) == [run.name]


def test_status_reports_the_state_of_a_job(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with flink_server() as server:
        server.jobs[JOB] = ("recordmill-build-x-1", "RUNNING")
        orphan(out, note_of(server))
        assert [found.state for found in recordmill.status(out).runs] == ["running"]
        server.jobs[JOB] = ("recordmill-build-x-1", "FAILED")
        (found,) = recordmill.status(out).runs
        assert (found.state, found.detail) == ("ended", "failed: a.csv: torn")


def test_status_names_the_option_in_a_failure_as_a_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with flink_server() as server:
        server.failure = "java.lang.X: Traceback\nMemoryError: 8 GiB\n at y"
        server.jobs[JOB] = ("recordmill-build-x-1", "FAILED")
        orphan(tmp_path / "out", note_of(server))
        (run,) = recordmill.status(tmp_path / "out").runs
        assert "use less memory=, fewer workers" in str(run)
        for flags in ([], ["--json"]):
            assert main(["status", str(tmp_path / "out"), *flags]) == 0
            assert "use less --memory, fewer workers" in capsys.readouterr().out


def test_status_reports_the_data_set_and_the_runs_in_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "a.csv"
    source.write_text("x\n1\n2\n")
    recordmill.build(source, tmp_path / "out", header=True)
    with flink_server() as server:
        server.jobs[JOB] = ("recordmill-build-x-1", "CREATED")
        orphan(tmp_path / "out", note_of(server))
        alive = RunFolder.create(tmp_path / "out")
        assert main(["status", str(tmp_path / "out")]) == 0
        said = capsys.readouterr().out
        assert ": train 2 records" in said
        assert (
            f"recordmill-build-x-1: running, waits for slots, {server.url}/#/job/running/{JOB}, since"
            in said
        )
        assert f"{alive.path.name}: running on this machine" in said
        alive.close()
    assert main(["status", str(tmp_path / "nowhere")]) == 2
