"""The status shows a job, the data set and the runs in OUT."""

import time
from pathlib import Path

import pytest
from kit.flink_jobs import JOB, orphan
from kit.flink_server import FlinkServer, flink_server

import recordmill
from recordmill.__main__ import main
from recordmill.pipelines.remote.flink import JobNote
from recordmill.shards.run import RunFolder


def note_of(server: FlinkServer, job: str = JOB) -> JobNote:
    return JobNote("FlinkRunner", "recordmill-build-x-1", server.url, job, time.time())


def test_status_reports_the_state_of_a_job(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with flink_server() as server:
        server.jobs[JOB] = ("recordmill-build-x-1", "RUNNING")
        orphan(out, note_of(server))
        assert [run.state for run in recordmill.status(out).runs] == ["running"]
        server.jobs[JOB] = ("recordmill-build-x-1", "FAILED")
        (run,) = recordmill.status(out).runs
        assert (run.state, run.detail) == ("ended", "failed: a.csv: torn")


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
        live_run = RunFolder.create(tmp_path / "out")
        assert main(["status", str(tmp_path / "out")]) == 0
        output = capsys.readouterr().out
        assert ": train 2 records" in output
        assert (
            f"recordmill-build-x-1: running, waits for slots, {server.url}/#/job/running/{JOB}, since"
            in output
        )
        assert f"{live_run.path.name}: running on this machine" in output
        live_run.close()
    assert main(["status", str(tmp_path / "nowhere")]) == 2
