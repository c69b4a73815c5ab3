"""Builds into a store give the bytes of a local build, generation after generation, and nothing
of failed ones.
"""

import json
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kit.files import tree
from kit.runs import at_once
from kit.store_server import BUCKET, SECRET, Store, azure_server, s3_server

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import RecordmillError, UsageError
from recordmill.building.commit import CommitConflict
from recordmill.pipelines import plan
from recordmill.shards import store_run
from recordmill.shards.manifest import list_generations, load_manifest
from recordmill.shards.store_run import StoreRun
from recordmill.storage import files
from recordmill.storage.stores import uploads

ROWS = {"x": list(range(400)), "y": [f"row {at}" for at in range(400)]}


STORES = (s3_server, azure_server)


def build(out: str | Path, rows: dict[str, Any] = ROWS, **options: Any) -> recordmill.BuildResult:
    return recordmill.build(
        rows, out, name="same", num_shards=2, splits="train=0.8,test=0.2", **options
    )


def test_build_into_a_store_equals_the_local_build(store: Store, out: str, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("a,b\n" + "".join(f"{at},{at}\n" for at in range(500)) + "x\n")
    source = store.put("main/in.csv", (tmp_path / "in.csv").read_bytes())
    options = {"name": "same", "num_shards": 3, "compression": "gzip", "max_rejects": 5}
    near = recordmill.build(str(tmp_path / "in.csv"), tmp_path / "near", **options)
    far = recordmill.build(source, out, **options)
    assert far.out == out
    found, folder = store.objects(out), far.manifest.parts[0].folder
    local = tree(tmp_path / "near" / near.manifest.parts[0].folder)
    there = {
        name.removeprefix(f"{folder}/"): data
        for name, data in found.items()
        if name.startswith(f"{folder}/")
    }
    (listed,) = map(json.loads, there.pop("inputs.jsonl").splitlines())
    assert (listed["name"], listed["bytes"]) == ("in.csv", len((tmp_path / "in.csv").read_bytes()))
    assert listed["etag"]  # on a disk its mtime_ns
    del local["inputs.jsonl"]
    assert local == there
    assert folder == f"data-{far.manifest.run['id']}"
    assert [path.read_bytes() for path in map(Path, near.rejects)] == [
        found[name] for name in far.manifest.rejects["files"]
    ]
    assert not [name for name in found if name.startswith("_run-")]
    assert SECRET.encode() not in b"".join(found.values())
    assert recordmill.open(out).to_table().equals(recordmill.open(near.out).to_table())
    assert recordmill.verify(out) == []
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("recordmill-")]
    assert not [
        path for path in tmp_path.glob("recordmill-*/*/*") if path.is_dir()
    ]  # nothing stays on this machine
    template = json.loads(found["dataset_info.json"])["splits"][0]["filepathTemplate"]
    assert template.startswith(f"{folder}/")


def test_stratified_build_with_a_description_in_a_store_equals_the_local_build(
    store: Store, out: str, tmp_path: Path
) -> None:
    rows = {
        "x": list(range(100)),
        "y": ["rare" if at % 10 == 0 else "frequent" for at in range(100)],
    }
    said = {"url": "https://example.org", "creator": "me", "description": "rows", "license": "MIT"}
    near = build(tmp_path / "near", rows, stratify="y", **said)
    far = build(out, rows, stratify="y", **said)
    assert far.records == {"train": 80, "test": 20}
    found = store.objects(out)
    assert [found[str(path).removeprefix(f"{out}/")] for path in far.shards] == [
        Path(path).read_bytes() for path in near.shards
    ]
    content, local = (
        found["croissant.json"].decode(),
        (tmp_path / "near" / "croissant.json").read_text(),
    )
    assert content.replace(far.manifest.parts[0].folder, "") == local.replace(
        near.manifest.parts[0].folder, ""
    )
    assert recordmill.verify(out) == []
    build(out, rows, overwrite=True)
    assert "croissant.json" not in store.objects(out)


def test_generations_in_a_store_follow_each_other(store: Store, out: str, tmp_path: Path) -> None:
    first = build(out)
    with pytest.raises(UsageError, match="already holds a data set"):
        build(out)
    second = build(out, overwrite=True)
    assert list_generations(out) == [1, 2]
    assert load_manifest(out, 1) == first.manifest
    assert first.manifest.parts[0].folder != second.manifest.parts[0].folder
    third = build(out, {"z": [1, 2, 3] * 50}, overwrite=True)
    assert list_generations(out) == [2, 3]
    kept = {name.split("/")[0] for name in store.objects(out) if name.startswith("data-")}
    assert kept == {second.manifest.parts[0].folder, third.manifest.parts[0].folder}
    assert recordmill.open(out).schema.names == ("z",) or list(
        recordmill.open(out).schema.names
    ) == ["z"]
    assert recordmill.verify(out) == []


@pytest.mark.parametrize(
    ("work", "conflict"), [("build", CommitConflict), ("read", RecordmillError)]
)
def test_of_two_concurrent_runs_in_a_store_one_commits(
    store: Store,
    out: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    work: str,
    conflict: type[Exception],
) -> None:
    out = f"{out}-{work}"
    source = build(tmp_path / "set").out
    ended: list[Any] = []
    together = threading.Barrier(2)
    put = store_run.put_if_absent

    def run(_: int) -> None:
        try:
            ended.append(build(out) if work == "build" else recordmill.read(source, out))
        except conflict as error:
            ended.append(error)

    monkeypatch.setattr(
        store_run, "put_if_absent", lambda uri, data: (together.wait(60), put(uri, data))[1]
    )
    at_once(run, 1, 2)
    (won,) = [one for one in ended if not isinstance(one, conflict)]
    folders = {name.split("/")[0] for name in store.objects(out)}
    if work == "build":
        assert load_manifest(out) == won.manifest
        assert {name for name in folders if name.startswith(("data-", "_run-"))} == {
            won.manifest.parts[0].folder
        }
    else:
        assert folders == {
            "_read.json",
            "_reads",
            str(won.paths[0]).removeprefix(f"{out}/").split("/")[0],
        }


@pytest.mark.parametrize("command", ["build", "read", "doctor"])
def test_store_without_put_if_absent_is_refused(
    store: Store, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """It takes the put of an object that is to be made only where there is none, and replaces what
    is there.
    """
    (tmp_path / "in.csv").write_text("x\n1\n")

    def replace(store: Any, key: str, data: bytes) -> bool:
        store.put(key, data, use_multipart=False)
        return True

    recordmill.build(ROWS, tmp_path / "set")
    monkeypatch.setattr(uploads, "_create", replace)
    monkeypatch.setattr("recordmill.pipelines.remote.preflight.check_cluster", lambda *_: [])
    monkeypatch.setattr("recordmill.pipelines.remote.preflight.ask_workers", lambda *_: [])
    monkeypatch.setattr(plan, "list_inputs", None)  # it was not come so far
    out = f"{out}-{command}"
    if command == "doctor":
        (found,) = recordmill.doctor(out=out, runner="PortableRunner")
        assert (found.what, found.ok) == ("OUT", False)
        assert "ignores If-None-Match" in str(found)
    else:
        words = [command, str(tmp_path / ("set" if command == "read" else "in.csv"))]
        assert main([*words, "--out", out]) == 2
    assert store.objects(out) == {}


def clean(out: str) -> None:
    """Removes what dead runs left, and takes every other one for dead."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store_run, "LEASE_SEC", -1)
        recordmill.clean(out, remove=True)


@pytest.mark.parametrize("work", ["build", "read"])
@pytest.mark.parametrize("cleaned", ["before the put", "behind the put"])
def test_commit_delayed_while_others_clean_is_refused_or_complete(
    store: Store, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, cleaned: str
) -> None:
    out = f"{out}-{work}-{cleaned[:6].strip()}"
    recordmill.build(ROWS, tmp_path / "set")
    put = store_run.put_if_absent

    def run(limit: int) -> object:
        if work == "build":
            return build(
                out, {name: values[:limit] for name, values in ROWS.items()}, overwrite=True
            )
        return recordmill.read(tmp_path / "set", out, overwrite=True, limit=limit)

    def rows() -> int:
        return (
            len(recordmill.open(out))
            if work == "build"
            else recordmill.build(out, tmp_path / f"{uuid4()}").read
        )

    run(100)
    before = store.objects(out)

    def held_back(uri: str, data: bytes) -> bool:
        monkeypatch.setattr(store_run, "put_if_absent", put)
        if cleaned == "behind the put":
            assert put(uri, data)
            clean(out)
            return True
        clean(out)
        return put(uri, data)

    monkeypatch.setattr(store_run, "put_if_absent", held_back)
    if cleaned == "behind the put":
        run(50)
        assert rows() == 50
    else:
        with pytest.raises(
            RecordmillError,
            match="another run treated this one as dead, because it gave no sign of life",
        ):
            run(50)
        assert rows() == 100
        clean(out)
        assert store.objects(out) == before
    run(40)
    assert rows() == 40


def test_run_without_its_lease_declares_no_other_run_dead(
    store: Store, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(out)
    with StoreRun(out, "0123456789ab"), StoreRun(out, "ba9876543210") as run:
        monkeypatch.setattr(store_run, "LEASE_SEC", -1)
        assert [*run.find_dead_objects()] == ["_run-0123456789ab"]
        files.remove_objects(out, ["_run-ba9876543210/lease.json"])
        assert run.find_dead_objects() == {}


def test_repeated_put_of_the_same_content_succeeds(store: Store, out: str) -> None:
    assert uploads.put_object_if_absent(f"{out}/m", b"one")
    assert uploads.put_object_if_absent(f"{out}/m", b"one")
    assert not uploads.put_object_if_absent(f"{out}/m", b"other")
    assert store.objects(out) == {"m": b"one"}


def test_remains_of_a_killed_build_in_a_store_are_removed_later(
    store: Store, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = build(out)
    name = out.partition(f"{BUCKET}/")[2]
    for key in (
        "_run-0123456789ab/lease.json",
        "data-0123456789ab/train-00000-of-00001.tfrecord",
        "rejects/0123456789ab.00000.jsonl",
    ):
        store.put(f"{name}/{key}", b"{}")
    left = {key for key in store.objects(out) if "0123456789ab" in key}
    assert len(left) == 3
    build(out, overwrite=True)
    assert left <= set(store.objects(out))  # it may be alive
    assert recordmill.verify(out) == []
    monkeypatch.setattr(store_run, "LEASE_SEC", -1)
    new = build(out, overwrite=True)
    assert not left & set(store.objects(out))
    assert load_manifest(out) == new.manifest
    assert load_manifest(out, 2).parts[0].folder != old.manifest.parts[0].folder


def test_prefix_with_other_objects_is_refused_as_out(
    store: Store, out: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store.put(f"{out.partition(f'{BUCKET}/')[2]}/photo.jpg", b"x")
    (tmp_path / "a.csv").write_text("a\n1\n2\n")
    assert main(["build", str(tmp_path / "a.csv"), "--out", out]) == 2
    assert "is not empty (photo.jpg)" in capsys.readouterr().err
    assert main(["build", str(tmp_path / "a.csv"), "--out", store.root]) == 2
    assert "name a folder in the bucket" in capsys.readouterr().err
    assert main(["build", f"{store.root}/some", "--out", f"{store.root}/some/out"]) == 2
    assert set(store.objects(out)) == {"photo.jpg"}


def test_object_too_large_to_copy_is_an_error(
    store: Store, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(f"{out.partition(f'{BUCKET}/')[2]}/old", b"x" * 1001)
    monkeypatch.setattr(uploads, "MAX_COPY_BYTES", 1000)
    with pytest.raises(OSError, match="make smaller shards"):
        uploads.copy_object(f"{out}/old", f"{out}/new", 1001)
