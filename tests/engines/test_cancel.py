"""A job on Flink that somebody else cancels, or that is cancelled while it is on its way there."""

from __future__ import annotations

import threading

import pytest
from flink_server import flink_server

from recordmill.base.progress import Progress
from recordmill.pipelines.remote import submission
from recordmill.pipelines.remote.job_error import EngineError
from recordmill.pipelines.remote.submission import pipeline_options

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
