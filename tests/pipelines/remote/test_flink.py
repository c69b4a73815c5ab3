"""Jobs of Flink are found, cancelled and reported."""

import os
import threading
import time
from pathlib import Path

import pytest
from kit.flink_jobs import JOB, orphan
from kit.flink_server import flink_server

import recordmill
from recordmill.base.progress import Progress
from recordmill.pipelines.remote import submission
from recordmill.pipelines.remote.flink import JobNote
from recordmill.pipelines.remote.job_error import (
    EngineError,
)
from recordmill.pipelines.remote.submission import pipeline_options
from recordmill.shards.dead_runs import LEASE_SEC
from recordmill.shards.run import RunFolder


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
