"""What is visible, when, and what is left behind: locks, dead runs, conflicts, generations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recordmill.schemas.errors import DataError, UsageError
from recordmill.shards.commit import CommitConflict, commit
from recordmill.shards.manifest import Manifest, Part, ShardInfo, generations, is_data_set, load, manifest_path
from recordmill.shards.run_folder import LOCK_NAME, RunFolder, check_out, clean_dead


def publish(folder: RunFolder, content: bytes, base: int, fingerprint: str = "0123456789abcdef") -> Manifest:
    (folder.data / "train-00000-of-00001.tfrecord").write_bytes(content)

    def describe(name: str, rejects: list[str]) -> tuple[Manifest, dict[str, str]]:
        part = Part(name, "test", {"train": (ShardInfo("train-00000-of-00001.tfrecord", 1, len(content), len(content), "", ""),)}, {}, 1, 0)
        return Manifest("test", "none", {}, "schema", (part,), {"files": rejects}, fingerprint, {}, {"id": folder.id}), {"features.json": "{}"}

    return commit(folder, describe, fingerprint, base)


def build(out: Path, content: bytes, base: int) -> Manifest:
    folder = RunFolder.create(out)
    try:
        return publish(folder, content, base)
    finally:
        folder.close()


def shard(out: Path, manifest: Manifest) -> bytes:
    return (out / manifest.parts[0].folder / "train-00000-of-00001.tfrecord").read_bytes()


def test_a_commit_shows_the_data_set_and_its_copies(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    manifest = build(out, b"one", 0)
    assert load(out) == manifest
    assert shard(out, manifest) == b"one"
    assert (out / "manifest.json").read_text() == manifest_path(out, 1).read_text()
    assert (out / "schema.pbtxt").read_text() == "schema"
    assert sorted(os.listdir(out)) == ["_manifests", "data-0123456789ab", "features.json", "manifest.json", "schema.pbtxt"]


def test_generations_keep_one_predecessor(tmp_path: Path) -> None:
    manifests = [build(tmp_path, content, base) for base, content in enumerate([b"one", b"two", b"three"])]
    assert generations(tmp_path) == [2, 3]
    assert shard(tmp_path, manifests[1]) == b"two"
    assert shard(tmp_path, load(tmp_path)) == b"three"
    assert not (tmp_path / manifests[0].parts[0].folder).exists()


def test_a_run_that_was_overtaken_discards_its_work_and_says_so(tmp_path: Path) -> None:
    slow = RunFolder.create(tmp_path)
    quick = build(tmp_path, b"quick", 0)
    with pytest.raises(CommitConflict, match="another build committed generation 1"):
        publish(slow, b"slow", 0)
    slow.close()
    assert shard(tmp_path, load(tmp_path)) == b"quick"
    assert [name for name in os.listdir(tmp_path) if name.startswith(("data-", "_run-"))] == [quick.parts[0].folder]


def test_rejects_move_with_the_commit_and_go_with_their_generation(tmp_path: Path) -> None:
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


def test_closing_without_a_commit_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    folder = RunFolder.create(out)
    (folder.data / "shard").write_bytes(b"x")
    folder.close()
    assert not out.exists()


def test_a_failing_description_leaves_nothing(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "out")
    with pytest.raises(KeyError):
        commit(folder, lambda name, rejects: (_ for _ in ()).throw(KeyError()), "0123456789abcdef", 0)  # type: ignore[arg-type]
    folder.close()
    assert not (tmp_path / "out").exists()


_KILLED = """
import os, sys
from recordmill.shards.run_folder import RunFolder
folder = RunFolder.create(sys.argv[1])
if sys.argv[2] == "renamed":
    folder.intend("data-dead")
    os.rename(folder.data, folder.out / "data-dead")
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("when", ["working", "renamed"])
def test_a_killed_run_is_cleaned_by_the_next_and_a_live_one_is_not(tmp_path: Path, when: str) -> None:
    live = RunFolder.create(tmp_path)
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path), when], check=False)
    assert killed.returncode == -9
    assert len(list(tmp_path.glob("_run-*"))) == 2
    assert (tmp_path / "data-dead").exists() == (when == "renamed")
    assert not is_data_set(tmp_path)
    assert len(clean_dead(tmp_path)) == 1
    assert os.listdir(tmp_path) == [live.path.name]
    live.close()


def test_a_run_of_another_host_is_left_alone_and_one_before_a_reboot_is_not(tmp_path: Path) -> None:
    live = RunFolder.create(tmp_path)
    owner = json.loads((live.path / LOCK_NAME).read_text())
    for name, about in {"_run-elsewhere": {**owner, "host": "elsewhere"}, "_run-before": {**owner, "boot": "before"}, "_run-unlocked": None}.items():
        (tmp_path / name).mkdir()
        if about is not None:
            (tmp_path / name / LOCK_NAME).write_text(json.dumps(about))
    assert clean_dead(tmp_path) == ["_run-before"]
    live.close()


def test_an_out_that_must_not_be_written_to_is_refused(tmp_path: Path) -> None:
    assert check_out(tmp_path / "new", overwrite=False) == 0
    build(tmp_path / "full", b"x", 0)
    with pytest.raises(UsageError, match="--overwrite"):
        check_out(tmp_path / "full", overwrite=False)
    assert check_out(tmp_path / "full", overwrite=True) == 1
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match=r"thesis\.tex"):
        check_out(tmp_path / "home", overwrite=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        RunFolder.create(tmp_path / "file")


def test_manifests_round_trip_and_later_formats_are_refused(tmp_path: Path) -> None:
    manifest = build(tmp_path, b"x", 0)
    text = manifest.to_json()
    assert Manifest.from_json(text) == manifest
    assert Manifest.from_json(text.replace('"run": {', '"added_by_a_minor": 1, "run": {')) == manifest
    with pytest.raises(DataError, match="format version 2"):
        Manifest.from_json(text.replace('"version": [\n  1,', '"version": [\n  2,'))
    for broken in ("", "[]", "{}", '{"format": "recordmill", "version": [1, 0]}', text.replace('"parts"', '"bits"')):
        with pytest.raises(DataError, match="manifest"):
            Manifest.from_json(broken)
    with pytest.raises(DataError, match="holds no data set"):
        load(tmp_path / "nothing")
