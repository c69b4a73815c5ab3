"""What is said of a job on Flink, and when: that it gets no slot, that nothing moves, that Flink does not answer."""

from __future__ import annotations

import threading
import types

import pytest
from flink_server import FlinkServer, flink_server

from recordmill.base.progress import Progress
from recordmill.pipelines.remote import submission, watch
from recordmill.pipelines.remote.job_error import EngineError
from recordmill.pipelines.remote.submission import pipeline_options
from recordmill.shards.engine_jobs import Flink

JOB = "0" * 31 + "1"


class Looks:
    """A watch whose clock is set by hand."""

    def __init__(self, server: FlinkServer, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        patch.setattr(watch, "time", types.SimpleNamespace(monotonic=lambda: self.now))
        self._progress = Progress()
        self._watch = watch.Watch(Flink(server.url), "j", self._progress)

    def at(self, now: float) -> list[str]:
        """What is said then."""
        self.now = now
        self._watch.look("")
        return self._progress.take_sayings()


def test_a_job_without_a_slot_is_told_so_after_a_minute_and_then_at_twice_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with flink_server() as server:
        server.free = 0
        looks = Looks(server, monkeypatch)
        assert looks.at(50) == []  # it is on its way there, which does not count
        server.jobs[JOB] = ("j", "CREATED")
        assert looks.at(60) == looks.at(119) == []
        (said,) = looks.at(121)
        assert said.startswith("the job has waited for 61 s for slots, of which 0 of 2 are free")
        assert said.endswith(f"{server.url}/#/job/running/{JOB}")
        assert looks.at(180) == []
        assert "for 2 min" in looks.at(183)[0]
        server.jobs[JOB] = ("j", "RUNNING")
        assert looks.at(500) == looks.at(799) == []
        (said,) = looks.at(801)
        assert said == f"nothing has moved for 5 min; what holds it is told at {server.url}/#/job/running/{JOB}"
        server.jobs[JOB] = ("j", "FINISHED")
        assert looks.at(2000) == []


def test_a_job_that_somebody_else_cancels_is_told_so() -> None:
    """Also where the job server says so before Flink has ended it."""
    with flink_server() as server:
        options = pipeline_options("FlinkRunner", [f"--flink_master={server.url}"])
        engine = submission._Engine(submission.Submission("FlinkRunner", (), "j"), options, [])
        server.jobs[JOB] = ("j", "CANCELLING")
        engine.id = JOB
        engine._failure.append(RuntimeError("JobCancellationException"))
        engine._ended.set()
        later = threading.Timer(0.5, server.jobs.update, [{JOB: ("j", "CANCELED")}])
        later.start()
        with pytest.raises(EngineError, match="j was cancelled by somebody else; nothing was written"):
            engine.wait(Progress())
        later.join()


def test_an_engine_that_does_not_answer_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with flink_server() as server:
        looks = Looks(server, monkeypatch)
        assert looks.at(50) == []
    assert looks.at(109) == []
    (said,) = looks.at(111)
    assert said.startswith(f"{server.url} has not answered for 61 s: ")


class Interrupted:
    """A pipeline whose submission is stopped after the job server has it."""

    def run(self) -> object:
        raise KeyboardInterrupt


STAYING = ("PortableRunner", "--job_endpoint=localhost:9")


def handed_over(runner: str, *flags: str) -> submission._Engine:
    """The job, when this process was stopped while it handed it over, and nobody knows yet what became of it."""
    engine = submission._Engine(submission.Submission(runner, (), "j"), pipeline_options(runner, flags), [])
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
