"""A job on Flink that somebody else cancels, or that is cancelled while it is on its way there."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from flink_server import FlinkServer, flink_server

import recordmill
from recordmill.__main__ import main
from recordmill.base.progress import Progress
from recordmill.pipelines.remote import submission
from recordmill.pipelines.remote.flink import JobNote
from recordmill.pipelines.remote.job_error import EngineError
from recordmill.pipelines.remote.submission import pipeline_options
from recordmill.shards.dead_runs import JOB_NAME, LEASE_SEC
from recordmill.shards.run import RunFolder

JOB = "0" * 31 + "1"


def test_a_job_that_somebody_else_cancels_is_told_so() -> None:
    """Also where the job server says so before Flink has ended it."""
    with flink_server() as server:
        options = pipeline_options("FlinkRunner", [f"--flink_master={server.url}"])
        engine = submission._Engine(submission.Submission("FlinkRunner", (), "j"), options)
        server.jobs[JOB] = ("j", "CANCELLING")
        engine.id = JOB
        engine._failure.append(RuntimeError("JobCancellationException"))
        engine._ended.set()
        later = threading.Timer(0.5, server.jobs.update, [{JOB: ("j", "CANCELED")}])
        later.start()
        with pytest.raises(EngineError, match="j was cancelled by somebody else; nothing was written"):
            engine.wait(Progress())
        later.join()


class Interrupted:
    """A pipeline whose submission is stopped after the job server has it."""

    def run(self) -> object:
        raise KeyboardInterrupt


STAYING = ("PortableRunner", "--job_endpoint=localhost:9")


def handed_over(runner: str, *flags: str) -> submission._Engine:
    """The job, when this process was stopped while it handed it over, and nobody knows yet what became of it."""
    engine = submission._Engine(submission.Submission(runner, (), "j"), pipeline_options(runner, flags))
    with pytest.raises(KeyboardInterrupt):
        engine.submit(Interrupted())
    return engine


@pytest.mark.parametrize("runner", [STAYING, ("FlinkRunner", "--flink_submit_uber_jar"), ("FlinkRunner",)], ids=str)
def test_a_job_that_comes_late_is_cancelled_when_it_comes(runner: tuple[str, ...]) -> None:
    with flink_server() as server:
        engine = handed_over(*runner, f"--flink_master={server.url}")
        later = threading.Timer(1.5, server.jobs.update, [{JOB: ("j", "RUNNING")}])
        later.start()
        engine.end("stopped")
        later.join()
        assert server.cancelled == [JOB]


@pytest.mark.sweep
def test_a_job_that_may_still_come_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an engine that can be asked and without one; what it writes is then left alone."""
    monkeypatch.setattr(submission, "_COMING_SEC", 0.1)
    with flink_server() as server:
        master = f"--flink_master={server.url}"
        for runner in (
            (*STAYING, master),
            STAYING,
            ("FlinkRunner", "--flink_submit_uber_jar", master),
            ("SparkRunner", "--spark_submit_uber_jar"),
            ("DataflowRunner",),
        ):
            with pytest.raises(submission.MayBeRunning, match=r"the job j may go on \(it was on its way to"):
                handed_over(*runner).end("stopped")
        handed_over("FlinkRunner", master).end("stopped")  # a server of its own, which has ended with it
        handed_over("SparkRunner").end("stopped")


# A run whose driver is gone is alive as long as its job is heard of, and `status` says what works there


def orphan(out: Path, note: JobNote) -> Path:
    """A run folder as a driver leaves it that was killed while its job was at work."""
    folder = RunFolder.create(out)
    (folder.path / JOB_NAME).write_bytes(note.to_json())
    folder.release()
    return folder.path


def note_of(server: FlinkServer, job: str = JOB) -> JobNote:
    return JobNote("FlinkRunner", "recordmill-build-x-1", server.url, job, time.time())


def test_a_job_without_its_driver_is_alive_for_a_lease_after_its_last_word(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = orphan(out, JobNote("FlinkRunner", "j", "http://127.0.0.1:9", JOB, time.time()))
    RunFolder.create(out).close()  # as another build begins
    assert recordmill.clean(out, remove=True) == {}
    assert run.exists()
    long_ago = time.time() - LEASE_SEC - 60
    for name in ("lock", "data", "runs", "rejects"):
        os.utime(run / name, (long_ago, long_ago))
    assert list(recordmill.clean(out, remove=True)) == [run.name]


def test_status_says_what_became_of_a_job(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with flink_server() as server:
        server.jobs[JOB] = ("recordmill-build-x-1", "RUNNING")
        orphan(out, note_of(server))
        assert [found.state for found in recordmill.status(out).runs] == ["running"]
        server.jobs[JOB] = ("recordmill-build-x-1", "FAILED")
        (found,) = recordmill.status(out).runs
        assert (found.state, found.detail) == ("ended", "failed: a.csv: torn")


def test_status_says_what_out_holds_and_what_works_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "a.csv"
    source.write_text("x\n1\n2\n")
    recordmill.build(source, tmp_path / "out", header=True)
    with flink_server() as server:
        server.jobs[JOB] = ("recordmill-build-x-1", "CREATED")
        orphan(tmp_path / "out", note_of(server))
        alive = RunFolder.create(tmp_path / "out")
        assert main(["status", str(tmp_path / "out")]) == 0
        said = capsys.readouterr().out
        assert "generation 1: train 2 records" in said
        assert f"recordmill-build-x-1: running, waits for slots, {server.url}/#/job/running/{JOB}, since" in said
        assert f"{alive.path.name}: at work on this machine" in said
        alive.close()
    assert main(["status", str(tmp_path / "nowhere")]) == 2
