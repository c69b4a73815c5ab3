"""A run whose driver is gone lives as long as its job does: nobody removes its folder, and `status` says what works
there.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from flink_server import FlinkServer, flink_server
from store_server import s3_server

import recordmill
from recordmill.__main__ import main
from recordmill.shards import dead_runs, store_run
from recordmill.shards.engine_jobs import JOB_NAME, UNHEARD_SEC, JobNote
from recordmill.shards.run import RunFolder

JOB = "0" * 31 + "1"


def orphan(out: Path, note: JobNote) -> Path:
    """A run folder as a driver leaves it that was killed while its job was at work."""
    folder = RunFolder.create(out)
    (folder.path / JOB_NAME).write_bytes(note.to_json())
    folder.release()
    return folder.path


def note_of(server: FlinkServer, job: str = JOB) -> JobNote:
    return JobNote("FlinkRunner", "recordmill-build-x-1", server.url, job, time.time())


@pytest.mark.parametrize("state", ["CREATED", "RUNNING", "RESTARTING", "CANCELLING"])
def test_the_folder_of_a_job_at_work_stays_and_that_of_one_that_ended_goes(tmp_path: Path, state: str) -> None:
    out = tmp_path / "out"
    with flink_server() as server:
        server.jobs[JOB] = ("recordmill-build-x-1", state)
        run = orphan(out, note_of(server))
        assert recordmill.clean(out, remove=True) == {}
        RunFolder.create(out).close()  # as another build begins
        assert run.exists()
        assert [found.state for found in recordmill.status(out).runs] == ["running"]
        server.jobs[JOB] = ("recordmill-build-x-1", "FAILED")
        (found,) = recordmill.status(out).runs
        assert (found.state, found.detail) == ("ended", "failed: a.csv: torn")
        assert list(recordmill.clean(out, remove=True)) == [run.name]
        assert not run.exists()


def test_a_job_that_is_known_by_its_name_alone_lives_too(tmp_path: Path) -> None:
    with flink_server() as server:
        server.jobs[JOB] = ("recordmill-build-x-1", "RUNNING")
        run = orphan(tmp_path / "out", note_of(server, job=""))
        assert recordmill.clean(tmp_path / "out", remove=True) == {}
        assert run.exists()


def test_where_the_engine_does_not_answer_a_day_without_a_word_decides(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = orphan(out, JobNote("FlinkRunner", "j", "http://127.0.0.1:9", JOB, time.time()))
    assert recordmill.clean(out, remove=True) == {}
    long_ago = time.time() - UNHEARD_SEC - 60
    for name in ("lock", "data", "runs", "rejects"):
        os.utime(run / name, (long_ago, long_ago))
    assert list(recordmill.clean(out, remove=True)) == [run.name]


def test_a_job_in_a_store_may_wait_for_slots_for_longer_than_a_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A detached build has nobody who would renew it until its workers begin."""
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    run = "_run-0123456789ab"
    with s3_server(tmp_path / "s3") as store, flink_server() as server:
        server.jobs[JOB] = ("recordmill-build-x-1", "CREATED")
        left = {f"out/{run}/plan.pickle", f"out/{run}/{JOB_NAME}", "out/data-0123456789ab/a.tfrecord"}
        for key in left:
            store.put(key, note_of(server).to_json() if key.endswith(JOB_NAME) else b"x")
        monkeypatch.setattr(store_run, "LEASE_SEC", -1)
        out = f"{store.root}/out"
        recordmill.build(tmp_path / "a.csv", out, header=True)
        assert recordmill.clean(out, remove=True) == {}
        assert left <= set(store.keys())
        server.jobs[JOB] = ("recordmill-build-x-1", "FAILED")
        recordmill.build(tmp_path / "a.csv", out, header=True, overwrite=True)
        assert left <= set(store.keys())  # a build asks nobody whom a stranger may have named
        monkeypatch.setattr(dead_runs, "UNHEARD_SEC", -1)
        assert recordmill.clean(out) != {}
        monkeypatch.undo()
        monkeypatch.setattr(store_run, "LEASE_SEC", -1)
        assert list(recordmill.clean(out, remove=True)) == [run]
        assert not left & set(store.keys())


def test_nobody_is_asked_because_of_a_link_or_of_what_is_no_note(tmp_path: Path) -> None:
    with flink_server() as server:
        server.jobs[JOB] = ("recordmill-build-x-1", "RUNNING")
        elsewhere = tmp_path / "note"
        elsewhere.write_bytes(note_of(server).to_json())
        run = orphan(tmp_path / "out", note_of(server))
        (run / JOB_NAME).unlink()
        (run / JOB_NAME).symlink_to(elsewhere)
        assert list(recordmill.clean(tmp_path / "out")) == [run.name]
        (run / JOB_NAME).unlink()
        (run / JOB_NAME).write_text(json.dumps({"runner": 5}))
        assert list(recordmill.clean(tmp_path / "out", remove=True)) == [run.name]


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
