"""One of several concurrent runs in a store commits.

A later run removes a dead run.
"""

import threading
from pathlib import Path
from typing import Any

import pytest
from kit.runs import run_in_threads
from kit.store_builds import ROWS, build
from kit.store_server import BUCKET, Store, azure_server, s3_server

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import RecordmillError
from recordmill.building.commit import CommitConflict
from recordmill.pipelines import build_source
from recordmill.shards import store_run
from recordmill.shards.manifest import load_manifest
from recordmill.shards.store_run import StoreRun
from recordmill.storage import files
from recordmill.storage.stores import uploads

STORES = (s3_server, azure_server)


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
    results: list[Any] = []
    barrier = threading.Barrier(2)
    put = store_run.put_if_absent

    def run(_: int) -> None:
        try:
            results.append(build(out) if work == "build" else recordmill.read(source, out))
        except conflict as error:
            results.append(error)

    monkeypatch.setattr(
        store_run, "put_if_absent", lambda uri, data: (barrier.wait(60), put(uri, data))[1]
    )
    run_in_threads(run, 1, 2)
    (winner,) = [result for result in results if not isinstance(result, conflict)]
    folders = {name.split("/")[0] for name in store.objects(out)}
    if work == "build":
        assert load_manifest(out) == winner.manifest
        assert {name for name in folders if name.startswith(("data-", "_run-"))} == {
            winner.manifest.parts[0].folder
        }
    else:
        assert folders == {
            "_read.json",
            "_reads",
            str(winner.paths[0]).removeprefix(f"{out}/").split("/")[0],
        }


@pytest.mark.parametrize("command", ["build", "read", "doctor"])
def test_store_without_put_if_absent_is_refused(
    store: Store, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The store ignores the condition of a put, and replaces the existing object."""
    (tmp_path / "in.csv").write_text("x\n1\n")

    def replace(store: Any, key: str, data: bytes) -> bool:
        store.put(key, data, use_multipart=False)
        return True

    recordmill.build(ROWS, tmp_path / "set")
    monkeypatch.setattr(uploads, "_create", replace)
    monkeypatch.setattr("recordmill.pipelines.remote.preflight.check_cluster", lambda *_: [])
    monkeypatch.setattr("recordmill.pipelines.remote.preflight.ask_workers", lambda *_: [])
    monkeypatch.setattr(build_source, "list_inputs", None)  # the build stops before this
    out = f"{out}-{command}"
    if command == "doctor":
        (result,) = recordmill.doctor(out=out, runner="PortableRunner")
        assert (result.what, result.ok) == ("OUT", False)
        assert "ignores If-None-Match" in str(result)
    else:
        arguments = [command, str(tmp_path / ("set" if command == "read" else "in.csv"))]
        assert main([*arguments, "--out", out]) == 2
    assert store.objects(out) == {}


def test_run_without_its_lease_declares_no_other_run_dead(
    store: Store, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(out)
    with StoreRun(out, "0123456789ab"), StoreRun(out, "ba9876543210") as run:
        monkeypatch.setattr(store_run, "LEASE_SEC", -1)
        assert [*run.find_dead_objects()] == ["_run-0123456789ab"]
        files.remove_objects(out, ["_run-ba9876543210/lease.json"])
        assert run.find_dead_objects() == {}


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
    remains = {key for key in store.objects(out) if "0123456789ab" in key}
    assert len(remains) == 3
    build(out, overwrite=True)
    assert remains <= set(store.objects(out))  # the run may be alive
    assert recordmill.verify(out) == []
    monkeypatch.setattr(store_run, "LEASE_SEC", -1)
    new = build(out, overwrite=True)
    assert not remains & set(store.objects(out))
    assert load_manifest(out) == new.manifest
    assert load_manifest(out, 2).parts[0].folder != old.manifest.parts[0].folder
