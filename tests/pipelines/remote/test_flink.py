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
        timer = threading.Timer(0.5, server.jobs.update, [{JOB: ("j", "CANCELED")}])
        timer.start()
        with pytest.raises(
            EngineError, match="j was cancelled by another user or program; nothing was written"
        ):
            engine.wait(Progress())
        timer.join()


class Interrupted:
    """A pipeline. Its submission is interrupted after the job server has received it."""

    def run(self) -> object:
        raise KeyboardInterrupt


PORTABLE = ("PortableRunner", "--job_endpoint=localhost:9")


def submit_interrupted(runner: str, *flags: str) -> submission._EngineJob:
    """Returns a job after its submission was interrupted.

    The state of the job is still unknown.
    """
    engine = submission._EngineJob(
        submission.Submission(runner, (), "j"), pipeline_options(runner, flags)
    )
    with pytest.raises(KeyboardInterrupt):
        engine.submit(Interrupted())
    return engine


@pytest.mark.parametrize(
    "runner", [PORTABLE, ("FlinkRunner", "--flink_submit_uber_jar"), ("FlinkRunner",)], ids=str
)
def test_late_job_of_a_stopped_driver_is_cancelled(runner: tuple[str, ...]) -> None:
    with flink_server() as server:
        engine = submit_interrupted(*runner, f"--flink_master={server.url}")
        timer = threading.Timer(1.5, server.jobs.update, [{JOB: ("j", "RUNNING")}])
        timer.start()
        engine.end("stopped")
        timer.join()
        assert server.cancelled == [JOB]


@pytest.mark.sweep
def test_job_that_may_still_start_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "_SUBMISSION_SEC", 0.1)
    with flink_server() as server:
        master = f"--flink_master={server.url}"
        for runner in (
            (*PORTABLE, master),
            PORTABLE,
            ("FlinkRunner", "--flink_submit_uber_jar", master),
            ("SparkRunner", "--spark_submit_uber_jar"),
            ("DataflowRunner",),
        ):
            with pytest.raises(
                submission.MayBeRunning,
                match=r"the job j may still be running \(the job was being sent to",
            ):
                submit_interrupted(*runner).end("stopped")
        # This job has its own job server, which has ended, too.
        submit_interrupted("FlinkRunner", master).end("stopped")
        submit_interrupted("SparkRunner").end("stopped")


def test_job_without_its_driver_stays_alive_for_one_lease(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = orphan(out, JobNote("FlinkRunner", "j", "http://127.0.0.1:9", JOB, time.time()))
    RunFolder.create(out).close()  # another build begins
    assert recordmill.clean(out, remove=True) == {}
    assert run.exists()
    long_ago = time.time() - LEASE_SEC - 60
    for name in ("lock", "data", "runs", "rejects"):
        os.utime(run / name, (long_ago, long_ago))
    assert list(recordmill.clean(out, remove=True)) == [run.name]
