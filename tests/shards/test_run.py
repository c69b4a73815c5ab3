"""A run keeps its lease, and takes only a permitted output folder.

A run without a sign of life is dead.
"""

import errno
import fcntl
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from kit.commits import build

import recordmill
from recordmill.base.errors import UsageError
from recordmill.shards import dead_runs, run
from recordmill.shards.dead_runs import LEASE_SEC, LOCK_NAME, remove_dead_runs
from recordmill.shards.run import RunFolder, check_output_folder
from recordmill.storage.walk import MANIFESTS_FOLDER


def _full_disk(*args: object, **options: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_half_removed_run_folder_is_still_found_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(tmp_path)
    remove = dead_runs.remove

    def remove_until_spool(path: Path) -> None:
        if path.name == "spool":
            raise KeyboardInterrupt
        remove(path)

    with monkeypatch.context() as context:
        context.setattr(dead_runs, "remove", remove_until_spool)
        with pytest.raises(KeyboardInterrupt):
            folder.close()
    assert (folder.path / LOCK_NAME).exists()
    folder._lock.close()
    assert remove_dead_runs(tmp_path) == [folder.path.name]


def test_parent_folders_made_for_out_are_removed_if_empty(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "a" / "b" / "out").close()
    assert os.listdir(tmp_path) == []
    folder = RunFolder.create(tmp_path / "a" / "b" / "out")
    (tmp_path / "a" / "mine").write_text("x")
    folder.close()
    assert os.listdir(tmp_path / "a") == ["mine"]


def test_out_that_cannot_be_made_or_locked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    with pytest.raises(UsageError, match="is not a folder"):
        RunFolder.create(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="File name too long"):
        RunFolder.create(tmp_path / ("x" * 300))
    monkeypatch.setattr(fcntl, "flock", _full_disk)
    with pytest.raises(UsageError, match=r"out\W: can't be written to: No space left"):
        RunFolder.create(tmp_path / "out")
    assert os.listdir(tmp_path) == ["nowhere"]


def test_run_is_dead_if_its_lock_is_free_and_it_is_local_or_silent(
    tmp_path: Path,
) -> None:
    live = RunFolder.create(tmp_path)
    owner = json.loads((live.path / LOCK_NAME).read_text())
    assert len(owner["machine"]) == 36  # the boot id
    other_owner = {**owner, "host": "elsewhere", "machine": "another boot id"}
    for name, lock_content in {
        "_run-elsewhere": other_owner,
        "_run-long-silent": other_owner,
        "_run-of-a-killed-container": {**owner, "host": "another name"},
        "_run-on-an-engine": {**owner, "machine": None},
        "_run-on-an-engine-long-silent": {**owner, "machine": None},
        "_run-unlocked": None,
    }.items():
        (tmp_path / name / "data").mkdir(parents=True)
        if lock_content is not None:
            (tmp_path / name / LOCK_NAME).write_text(json.dumps(lock_content))
    long_ago = time.time() - LEASE_SEC - 60
    for name in ("_run-long-silent", "_run-on-an-engine-long-silent"):
        os.utime(tmp_path / name / LOCK_NAME, (long_ago, long_ago))
    # A process that holds the lock is alive, even if it could not renew its lease.
    os.utime(live.path / LOCK_NAME, (long_ago, long_ago))
    dead = ["_run-long-silent", "_run-of-a-killed-container", "_run-on-an-engine-long-silent"]
    states = {run.run: run.state for run in recordmill.status(tmp_path).runs}
    assert [name for name, state in states.items() if state == "dead"] == dead
    assert states["_run-elsewhere"] == "running or killed, on host 'elsewhere'"
    assert states[live.path.name] == "running on this machine"
    assert [*recordmill.clean(tmp_path)] == dead
    assert remove_dead_runs(tmp_path) == dead
    live.close()


def test_lease_of_a_live_run_is_renewed_even_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run writes nothing for a long time, and one renewal fails."""
    monkeypatch.setattr(run, "LEASE_RENEWAL_SEC", 0.01)
    old_threads = {*threading.enumerate()}
    renewal, failures = threading.Event(), [RuntimeError("once")]
    write_lease = RunFolder._write_lease

    def fail_once_or_write(folder: RunFolder) -> None:
        if failures and threading.current_thread().name == "recordmill-lease":
            raise failures.pop()
        write_lease(folder)
        if folder.path.joinpath(LOCK_NAME).stat().st_mtime > 1:
            renewal.set()

    live = RunFolder.create(tmp_path)
    monkeypatch.setattr(RunFolder, "_write_lease", fail_once_or_write)
    os.utime(live.path / LOCK_NAME, (1, 1))
    assert renewal.wait(30)
    assert not failures
    live.close()
    assert {*threading.enumerate()} <= old_threads


def test_out_with_other_content_is_refused(tmp_path: Path) -> None:
    assert check_output_folder(tmp_path / "new", overwrite=False) == 0
    build(tmp_path / "full", b"x", 0)
    with pytest.raises(UsageError, match="overwrite=True"):
        check_output_folder(tmp_path / "full", overwrite=False)
    assert check_output_folder(tmp_path / "full", overwrite=True) == 1
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match=r"thesis\.tex"):
        check_output_folder(tmp_path / "home", overwrite=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        RunFolder.create(tmp_path / "file")


@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        "schema.pbtxt",
        "features.json",
        "statistics.pb",
        "dataset_info.json",
        "croissant.json",
        "label_map.pbtxt",
        "animal.labels.txt",
        "data-2024.csv",
    ],
)
def test_out_with_a_file_named_like_ours_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=rf"is not empty \({name}\)"):
            check_output_folder(tmp_path, overwrite=overwrite)


def test_out_of_a_killed_first_build_is_accepted(tmp_path: Path) -> None:
    for name in ("_run-0123456789ab", "data-0123456789ab", "rejects", MANIFESTS_FOLDER):
        (tmp_path / name).mkdir()
    assert check_output_folder(tmp_path, overwrite=False) == 0


def test_signal_during_close_still_removes_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, remove = RunFolder.create(tmp_path / "out"), dead_runs.remove_run_folder

    def stop(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        remove(*arguments)

    monkeypatch.setattr(dead_runs, "remove_run_folder", stop)
    with pytest.raises(KeyboardInterrupt):
        folder.close()
    assert not (tmp_path / "out").exists()
