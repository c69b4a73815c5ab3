"""A commit is atomic: what is visible when, and what is left after kills, conflicts and new
generations.
"""

import errno
import fcntl
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import recordmill
from recordmill.base.errors import DataError, RecordmillError, UsageError
from recordmill.building.commit import CommitConflict, commit, finish_output, publish_files
from recordmill.shards import dead_runs, run
from recordmill.shards import manifest as manifest_files
from recordmill.shards.dead_runs import LEASE_SEC, LOCK_NAME, remove_dead_runs
from recordmill.shards.manifest import (
    Manifest,
    Part,
    ShardInfo,
    is_data_set,
    list_generations,
    load_manifest,
    manifest_path,
)
from recordmill.shards.run import RunFolder, check_output_folder

SHARD = "train-00000-of-00001.tfrecord"


def publish(folder: RunFolder, content: bytes, base: int) -> Manifest:
    (folder.data / SHARD).write_bytes(content)
    rejects = publish_files(folder, sorted(str(path) for path in folder.rejects.iterdir()))
    info = ShardInfo(
        SHARD, 1, max(len(content), 16), max(len(content), 16), f"blake3:{0:064x}", "0" * 16
    )
    part = Part(folder.data_name, "test", {"train": (info,)}, {}, 1, 0)
    about = {"files": rejects}
    manifest = Manifest(
        "test", "none", {}, "schema", (part,), about, "0" * 64, {}, {"id": folder.id}
    )
    return commit(folder, manifest, base)


def build(out: Path, content: bytes, base: int) -> Manifest:
    folder = RunFolder.create(out)
    try:
        return publish(folder, content, base)
    finally:
        folder.close()


def shard(out: Path, manifest: Manifest) -> bytes:
    return (out / manifest.parts[0].folder / "train-00000-of-00001.tfrecord").read_bytes()


def test_commit_shows_the_data_set_and_its_derived_files(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    manifest = build(out, b"one", 0)
    assert load_manifest(out) == manifest
    assert shard(out, manifest) == b"one"
    assert (out / "manifest.json").read_text() == manifest_path(out, 1).read_text()
    assert (out / "schema.pbtxt").read_text() == "schema"
    assert sorted(os.listdir(out)) == [
        "_manifests",
        f"data-{manifest.run['id']}",
        "manifest.json",
        "schema.pbtxt",
    ]


def test_run_that_was_overtaken_raises_commit_conflict_and_is_removed(tmp_path: Path) -> None:
    slow = RunFolder.create(tmp_path)
    quick = build(tmp_path, b"quick", 0)
    with pytest.raises(CommitConflict, match="another build committed generation 1"):
        publish(slow, b"slow", 0)
    slow.close()
    assert shard(tmp_path, load_manifest(tmp_path)) == b"quick"
    assert [name for name in os.listdir(tmp_path) if name.startswith(("data-", "_run-"))] == [
        quick.parts[0].folder
    ]


def test_rejects_are_published_and_removed_with_their_generation(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    (folder.rejects / "000000-x.jsonl").write_text('{"reason": "truncated"}\n')
    manifest = publish(folder, b"x", 0)
    folder.close()
    (name,) = manifest.rejects["files"]
    assert (tmp_path / name).read_text() == '{"reason": "truncated"}\n'
    build(tmp_path, b"y", 1)
    assert (tmp_path / name).exists()
    build(tmp_path, b"z", 2)
    assert not (tmp_path / name).exists()


def test_abandoned_lease_ends_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, before = RunFolder.create(tmp_path / "out"), set(threading.enumerate())
    leased = folder.keep_alive()
    leased.__enter__()
    (lease,) = set(threading.enumerate()) - before
    waited = list[threading.Thread]()  # others may end here, too
    monkeypatch.setattr(threading.Thread, "join", lambda thread, *_: waited.append(thread))
    del leased
    gc.collect()
    monkeypatch.undo()
    assert lease not in waited
    lease.join(10)
    assert not lease.is_alive()
    folder.close()


def test_files_placed_without_commit_are_removed_with_the_run(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "out")
    (folder.rejects / "000000-x.jsonl").write_text("{}\n")
    publish_files(folder, [str(folder.rejects / "000000-x.jsonl")])
    assert folder.data == folder.out / folder.data_name
    folder.close()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_repeated_commit_returns_the_same_manifest(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    (folder.rejects / "000000-x.jsonl").write_text("{}\n")
    rejects = [str(folder.rejects / "000000-x.jsonl")]
    names = publish_files(folder, rejects)
    assert publish_files(folder, rejects) == names  # as an attempt that died
    manifest = publish(folder, b"x", 0)
    assert publish(folder, b"x", 0) == manifest
    assert publish(RunFolder.attach(folder.path), b"x", 0) == manifest
    folder.close()
    assert list_generations(tmp_path) == [1]
    assert load_manifest(tmp_path) == manifest


def test_worker_of_a_run_removed_as_dead_commits_nothing(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    late = RunFolder.attach(folder.path)
    (late.data / SHARD).write_bytes(b"x")
    late.publish_data_folder()
    folder.close()
    (tmp_path / late.data_name).mkdir()
    late.path.joinpath("rejects").mkdir(parents=True)
    with pytest.raises(CommitConflict, match="treated this one as dead"):
        publish(late, b"x", 0)
    assert list_generations(tmp_path) == []


_KILLED = """
import os, sys
from recordmill.shards.run import RunFolder
folder = RunFolder.create(sys.argv[1])
if sys.argv[2] == "renamed":
    folder.publish_data_folder()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("when", ["working", "renamed"])
def test_dead_run_is_removed_by_the_next_and_a_live_one_is_not(tmp_path: Path, when: str) -> None:
    live = RunFolder.create(tmp_path)
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path), when], check=False)
    assert killed.returncode == -9
    assert len(list(tmp_path.glob("_run-*"))) == 2
    assert len(list(tmp_path.glob("data-*"))) == (when == "renamed")
    assert not is_data_set(tmp_path)
    assert len(remove_dead_runs(tmp_path)) == 1
    assert os.listdir(tmp_path) == [live.path.name]
    live.close()


_STEPS = ("rename", "replace", "link", "mkdir", "unlink", "rmdir", "fsync")


def _publish_and_die(out: Path, content: bytes, base: int, step: int) -> None:
    """In this process: commit, but be killed before the step-th change of the file system from the
    commit on.
    """
    folder = RunFolder.create(out)
    (folder.rejects / "000000-x.jsonl").write_bytes(content)
    left = itertools.count(-step)

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def change(*args: Any, **named: Any) -> Any:
            if next(left) == 0:
                os.kill(os.getpid(), 9)
            return call(*args, **named)

        return change

    for name in _STEPS:
        setattr(os, name, dying(getattr(os, name)))
    publish(folder, content, base)
    folder.close()
    os._exit(0)


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.sweep)])
def test_kill_at_any_step_leaves_the_old_or_new_data_set_and_is_cleaned(
    tmp_path: Path, every: int
) -> None:
    contents = [b"one", b"two", b"three", b"four"]
    seen = set()
    for step in itertools.count(step=every):
        out = tmp_path / str(step)
        for base, content in enumerate(contents[:2]):
            build(out, content, base)
        if (child := os.fork()) == 0:
            _publish_and_die(out, contents[2], 2, step)
        _, status = os.waitpid(child, 0)
        number = list_generations(out)[-1]
        assert shard(out, load_manifest(out)) == contents[number - 1]
        seen.add(number)
        build(out, contents[3], number)
        manifests = [load_manifest(out, one) for one in list_generations(out)]
        assert list_generations(out) == [number, number + 1]
        assert [shard(out, manifest) for manifest in manifests] == [
            contents[number - 1],
            contents[3],
        ]
        folders = {manifest.parts[0].folder for manifest in manifests}
        assert {path.name for path in out.iterdir() if path.is_dir()} - {
            "_manifests",
            "rejects",
        } == folders
        assert {path.name.split(".")[0] for path in out.glob("rejects/*")} <= {
            folder.removeprefix("data-") for folder in folders
        }
        if status == 0:
            break
    assert seen == {2, 3}
    assert step > 20


def test_removal_of_a_dead_run_takes_only_files_with_its_id(tmp_path: Path) -> None:
    assert (
        subprocess.run(
            [sys.executable, "-c", _KILLED, str(tmp_path), "renamed"], check=False
        ).returncode
        == -9
    )
    (dead,) = (path.name.removeprefix("_run-") for path in tmp_path.glob("_run-*"))
    (tmp_path / "rejects").mkdir()
    for name in (f"{dead}.00000.jsonl", f"{dead}0.00000.jsonl", "other.00000.jsonl"):
        (tmp_path / "rejects" / name).write_bytes(b"{}")
    (tmp_path / f"data-{dead}0").mkdir()
    assert len(remove_dead_runs(tmp_path)) == 1
    assert sorted(os.listdir(tmp_path)) == [f"data-{dead}0", "rejects"]
    assert sorted(os.listdir(tmp_path / "rejects")) == sorted(
        [f"{dead}0.00000.jsonl", "other.00000.jsonl"]
    )


def _full_disk(*args: object, **named: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_failure_after_the_commit_is_logged_and_the_data_set_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    build(tmp_path, b"old", 0)
    (tmp_path / "schema.pbtxt").unlink()
    (tmp_path / "schema.pbtxt").mkdir()  # so that its copy can't be written
    manifest = build(tmp_path, b"new", 1)
    assert load_manifest(tmp_path) == manifest
    assert shard(tmp_path, manifest) == b"new"
    assert "the data set is complete" in caplog.text


def test_read_error_of_a_manifest_is_reported_and_says_whether_data_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, seen = manifest_files.read_range, set()
    for number in range(30):
        out, left = tmp_path / str(number), itertools.count(-number)
        for rows in (1, 2):
            recordmill.build({"x": [0] * rows}, out, overwrite=True)

        def failing(path: str, left: Any = left, **options: Any) -> Any:
            if next(left) >= 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return read(path, **options)

        with monkeypatch.context() as patched:
            patched.setattr(manifest_files, "read_range", failing)
            said = ""
            try:
                recordmill.build({"x": [0] * 3}, out, overwrite=True)
            except (OSError, RecordmillError) as error:
                said = str(error)
                assert "_manifests/0000000" in said
        records = len(recordmill.open(out))
        assert records in (2, 3)
        assert records == 2 or "nothing was written" not in said
        seen.add((records, bool(said)))
        if next(left) < 0:
            break
    assert seen == {(2, True), (3, True), (3, False)}


def test_derived_files_of_an_earlier_generation_are_found_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = {"url": "https://example.org/x", "description": "d", "license": "MIT", "creator": "c"}
    out = tmp_path / "out"
    recordmill.build({"x": [1, 2, 3], "label": ["a", "b", "a"]}, out, label="label", **about)
    with monkeypatch.context() as patched:
        patched.setattr("recordmill.building.commit.finish_output", lambda *given: None)
        recordmill.build({"x": [1, 2, 3, 4]}, out, overwrite=True)
    strays = {"label.labels.txt", "croissant.json"}
    stale = {
        "manifest.json",
        "schema.pbtxt",
        "dataset_info.json",
        "features.json",
        "statistics.pb",
        *strays,
    }
    assert {Path(one.file).name for one in recordmill.verify(out)} == stale
    assert all(one.mended for one in recordmill.verify(out, mend=True))
    assert recordmill.verify(out) == []
    assert "4" in (out / "dataset_info.json").read_text()
    recordmill.build({"x": [1], "label": ["a"]}, out, label="label", overwrite=True, **about)
    names = stale
    before = {name: (out / name).read_bytes() for name in names}
    for name in names:
        (out / name).write_bytes(b"garbage")
        assert [Path(one.file).name for one in recordmill.verify(out, mend=True)] == [name]
        assert {name: (out / name).read_bytes() for name in names} == before


def test_slow_run_does_not_overwrite_derived_files_of_a_later_generation(tmp_path: Path) -> None:
    first = build(tmp_path, b"one", 0)
    second = build(tmp_path, b"two", 1)
    finish_output(tmp_path, first, 1)
    assert (tmp_path / "manifest.json").read_text() == second.to_json()


def test_half_removed_run_folder_is_still_found_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(tmp_path)
    inner = dead_runs.remove

    def stopped(path: Path) -> None:
        if path.name == "spool":
            raise KeyboardInterrupt
        inner(path)

    with monkeypatch.context() as patched:
        patched.setattr(dead_runs, "remove", stopped)
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
    elsewhere = {**owner, "host": "elsewhere", "machine": "another boot id"}
    for name, about in {
        "_run-elsewhere": elsewhere,
        "_run-long-silent": elsewhere,
        "_run-of-a-killed-container": {**owner, "host": "another name"},
        "_run-on-an-engine": {**owner, "machine": None},
        "_run-on-an-engine-long-silent": {**owner, "machine": None},
        "_run-unlocked": None,
    }.items():
        (tmp_path / name / "data").mkdir(parents=True)
        if about is not None:
            (tmp_path / name / LOCK_NAME).write_text(json.dumps(about))
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
    """Also one that writes nothing for long, and whose lease could not be renewed once."""
    monkeypatch.setattr(run, "LEASE_RENEWAL_SEC", 0.01)
    before = {*threading.enumerate()}
    renewed, failures = threading.Event(), [RuntimeError("once")]
    sign = RunFolder._write_lease

    def signed(folder: RunFolder) -> None:
        if failures and threading.current_thread().name == "recordmill-lease":
            raise failures.pop()
        sign(folder)
        if folder.path.joinpath(LOCK_NAME).stat().st_mtime > 1:
            renewed.set()

    live = RunFolder.create(tmp_path)
    monkeypatch.setattr(RunFolder, "_write_lease", signed)
    os.utime(live.path / LOCK_NAME, (1, 1))
    assert renewed.wait(30)
    assert not failures
    live.close()
    assert {*threading.enumerate()} <= before


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


def test_manifest_survives_a_round_trip_and_later_formats_are_refused(tmp_path: Path) -> None:
    manifest = build(tmp_path, b"x", 0)
    text = manifest.to_json()
    assert Manifest.from_json(text) == manifest
    assert (
        Manifest.from_json(text.replace('"run": {', '"added_by_a_minor": 1, "run": {')) == manifest
    )
    with pytest.raises(DataError, match="format version 4"):
        Manifest.from_json(text.replace('"version": [\n  2,', '"version": [\n  4,'))
    for broken in (
        "",
        "[]",
        "{}",
        '{"format": "recordmill", "version": [2, 0]}',
        text.replace('"parts"', '"bits"'),
    ):
        with pytest.raises(DataError, match=r"^manifest: "):
            Manifest.from_json(broken)
    with pytest.raises(DataError, match="holds no data set"):
        load_manifest(tmp_path / "nothing")


def test_signal_during_close_still_removes_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, remove = RunFolder.create(tmp_path / "out"), dead_runs.remove_run_folder

    def stop(*given: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        remove(*given)

    monkeypatch.setattr(dead_runs, "remove_run_folder", stop)
    with pytest.raises(KeyboardInterrupt):
        folder.close()
    assert not (tmp_path / "out").exists()
