"""A commit is atomic, whatever kills or conflicts happen."""

import errno
import gc
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kit.commits import SHARD, build, publish

import recordmill
from recordmill.base.errors import RecordmillError
from recordmill.building.commit import CommitConflict, finish_output, publish_files
from recordmill.shards import manifest as manifest_files
from recordmill.shards.dead_runs import remove_dead_runs
from recordmill.shards.manifest import (
    Manifest,
    is_data_set,
    list_generations,
    load_manifest,
    manifest_path,
)
from recordmill.shards.run import RunFolder


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
    slow_run = RunFolder.create(tmp_path)
    quick_manifest = build(tmp_path, b"quick", 0)
    with pytest.raises(CommitConflict, match="another build committed generation 1"):
        publish(slow_run, b"slow", 0)
    slow_run.close()
    assert shard(tmp_path, load_manifest(tmp_path)) == b"quick"
    assert [name for name in os.listdir(tmp_path) if name.startswith(("data-", "_run-"))] == [
        quick_manifest.parts[0].folder
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
    folder, earlier_threads = RunFolder.create(tmp_path / "out"), set(threading.enumerate())
    lease_context = folder.keep_alive()
    lease_context.__enter__()
    (lease_thread,) = set(threading.enumerate()) - earlier_threads
    joined_threads = list[threading.Thread]()  # unrelated threads may end, too
    monkeypatch.setattr(threading.Thread, "join", lambda thread, *_: joined_threads.append(thread))
    del lease_context
    gc.collect()
    monkeypatch.undo()
    assert lease_thread not in joined_threads
    lease_thread.join(10)
    assert not lease_thread.is_alive()
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
    assert publish_files(folder, rejects) == names  # an engine repeats an attempt that died
    manifest = publish(folder, b"x", 0)
    assert publish(folder, b"x", 0) == manifest
    assert publish(RunFolder.attach(folder.path), b"x", 0) == manifest
    folder.close()
    assert list_generations(tmp_path) == [1]
    assert load_manifest(tmp_path) == manifest


def test_worker_of_a_run_removed_as_dead_commits_nothing(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    worker_folder = RunFolder.attach(folder.path)
    (worker_folder.data / SHARD).write_bytes(b"x")
    worker_folder.publish_data_folder()
    folder.close()
    (tmp_path / worker_folder.data_name).mkdir()
    worker_folder.path.joinpath("rejects").mkdir(parents=True)
    with pytest.raises(CommitConflict, match="treated this one as dead"):
        publish(worker_folder, b"x", 0)
    assert list_generations(tmp_path) == []


_KILLED = """
import os, sys
from recordmill.shards.run import RunFolder
folder = RunFolder.create(sys.argv[1])
if sys.argv[2] == "renamed":
    folder.publish_data_folder()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("state", ["working", "renamed"])
def test_dead_run_is_removed_by_the_next_and_a_live_one_is_not(tmp_path: Path, state: str) -> None:
    live_folder = RunFolder.create(tmp_path)
    process = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path), state], check=False)
    assert process.returncode == -9
    assert len(list(tmp_path.glob("_run-*"))) == 2
    assert len(list(tmp_path.glob("data-*"))) == (state == "renamed")
    assert not is_data_set(tmp_path)
    assert len(remove_dead_runs(tmp_path)) == 1
    assert os.listdir(tmp_path) == [live_folder.path.name]
    live_folder.close()


_STEPS = ("rename", "replace", "link", "mkdir", "unlink", "rmdir", "fsync")


def _publish_and_die(out: Path, content: bytes, base: int, step: int) -> None:
    """Commits in this process, which is killed before a change of the file system.

    Args:
        step: The number of that change, counted from the start of the commit.
    """
    folder = RunFolder.create(out)
    (folder.rejects / "000000-x.jsonl").write_bytes(content)
    counter = itertools.count(-step)

    def kill_at_step(call: Callable[..., Any]) -> Callable[..., Any]:
        def change(*args: Any, **keywords: Any) -> Any:
            if next(counter) == 0:
                os.kill(os.getpid(), 9)
            return call(*args, **keywords)

        return change

    for name in _STEPS:
        setattr(os, name, kill_at_step(getattr(os, name)))
    publish(folder, content, base)
    folder.close()
    os._exit(0)


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
@pytest.mark.parametrize("interval", [4, pytest.param(1, marks=pytest.mark.sweep)])
def test_kill_at_any_step_leaves_the_old_or_new_data_set_and_is_cleaned(
    tmp_path: Path, interval: int
) -> None:
    contents = [b"one", b"two", b"three", b"four"]
    generations = set()
    for step in itertools.count(step=interval):
        out = tmp_path / str(step)
        for base, content in enumerate(contents[:2]):
            build(out, content, base)
        if (child := os.fork()) == 0:
            _publish_and_die(out, contents[2], 2, step)
        _, status = os.waitpid(child, 0)
        number = list_generations(out)[-1]
        assert shard(out, load_manifest(out)) == contents[number - 1]
        generations.add(number)
        build(out, contents[3], number)
        manifests = [load_manifest(out, generation) for generation in list_generations(out)]
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
    assert generations == {2, 3}
    assert step > 20


def test_removal_of_a_dead_run_takes_only_files_with_its_id(tmp_path: Path) -> None:
    assert (
        subprocess.run(
            [sys.executable, "-c", _KILLED, str(tmp_path), "renamed"], check=False
        ).returncode
        == -9
    )
    (dead_id,) = (path.name.removeprefix("_run-") for path in tmp_path.glob("_run-*"))
    (tmp_path / "rejects").mkdir()
    for name in (f"{dead_id}.00000.jsonl", f"{dead_id}0.00000.jsonl", "other.00000.jsonl"):
        (tmp_path / "rejects" / name).write_bytes(b"{}")
    (tmp_path / f"data-{dead_id}0").mkdir()
    assert len(remove_dead_runs(tmp_path)) == 1
    assert sorted(os.listdir(tmp_path)) == [f"data-{dead_id}0", "rejects"]
    assert sorted(os.listdir(tmp_path / "rejects")) == sorted(
        [f"{dead_id}0.00000.jsonl", "other.00000.jsonl"]
    )


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


def test_read_error_of_a_manifest_reports_whether_data_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_range, outcomes = manifest_files.read_range, set()
    for number in range(30):
        out, counter = tmp_path / str(number), itertools.count(-number)
        for rows in (1, 2):
            recordmill.build({"x": [0] * rows}, out, overwrite=True)

        def fail_to_read(path: str, counter: Any = counter, **options: Any) -> Any:
            if next(counter) >= 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return read_range(path, **options)

        with monkeypatch.context() as patched:
            patched.setattr(manifest_files, "read_range", fail_to_read)
            message = ""
            try:
                recordmill.build({"x": [0] * 3}, out, overwrite=True)
            except (OSError, RecordmillError) as error:
                message = str(error)
                assert "_manifests/0000000" in message
        records = len(recordmill.open(out))
        assert records in (2, 3)
        assert records == 2 or "nothing was written" not in message
        outcomes.add((records, bool(message)))
        if next(counter) < 0:
            break
    assert outcomes == {(2, True), (3, True), (3, False)}


def test_derived_files_of_an_earlier_generation_are_found_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = {
        "url": "https://example.org/x",
        "description": "d",
        "license": "MIT",
        "creator": "c",
    }
    out = tmp_path / "out"
    recordmill.build({"x": [1, 2, 3], "label": ["a", "b", "a"]}, out, label="label", **metadata)
    with monkeypatch.context() as patched:
        patched.setattr("recordmill.building.commit.finish_output", lambda *arguments: None)
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
    assert {Path(problem.file).name for problem in recordmill.verify(out)} == stale
    assert all(problem.mended for problem in recordmill.verify(out, mend=True))
    assert recordmill.verify(out) == []
    assert "4" in (out / "dataset_info.json").read_text()
    recordmill.build({"x": [1], "label": ["a"]}, out, label="label", overwrite=True, **metadata)
    names = stale
    contents = {name: (out / name).read_bytes() for name in names}
    for name in names:
        (out / name).write_bytes(b"garbage")
        assert [Path(problem.file).name for problem in recordmill.verify(out, mend=True)] == [name]
        assert {name: (out / name).read_bytes() for name in names} == contents


def test_slow_run_does_not_overwrite_derived_files_of_a_later_generation(tmp_path: Path) -> None:
    first = build(tmp_path, b"one", 0)
    second = build(tmp_path, b"two", 1)
    finish_output(tmp_path, first, 1)
    assert (tmp_path / "manifest.json").read_text() == second.to_json()
