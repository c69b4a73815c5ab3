"""A commit to a store survives a failed request.

If the build dies, the store contains the old or the new data set.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.fault_proxy import DEAD, DROP, FAIL, Proxy, fault_proxy
from kit.store_server import Store, s3_settings, use_settings

from recordmill.base.errors import RecordmillError
from recordmill.base.threads import run_both
from recordmill.building.commit import commit as commit_run
from recordmill.building.commit import upload_files
from recordmill.shards import store_run
from recordmill.shards.manifest import Manifest, Part, ShardInfo, list_generations, load_manifest
from recordmill.shards.run import RunFolder
from recordmill.shards.store_run import StoreRun
from recordmill.storage.stores import client

SHARD = "train-00000-of-00001.tfrecord"
COPIES = {"manifest.json", "schema.pbtxt"}


@pytest.fixture
def proxy(store: Store) -> Iterator[Proxy]:
    with fault_proxy(store.endpoint) as store_proxy, use_settings(**s3_settings(store_proxy.url)):
        yield store_proxy


def commit(home: Path, out: str, content: bytes, base: int) -> Manifest:
    folder = RunFolder.create(home)
    try:
        (folder.data / SHARD).write_bytes(content)
        (folder.rejects / "000000-x.jsonl").write_bytes(b"{}\n")

        info = ShardInfo(SHARD, 1, len(content), len(content), f"blake3:{0:064x}", "0" * 16)
        part = Part(folder.data_name, "test", {"train": (info,)}, {}, 1, 0)
        with StoreRun(out, folder.id) as run:  # `commit_local_build` does the same
            try:
                files = [str(folder.rejects / "000000-x.jsonl")]
                rejects, _ = run_both(
                    lambda: upload_files(run, folder, files, 1 << 30), run.remove_dead_runs
                )
                reject_summary = {"count": 1, "reasons": {}, "files": rejects}
                manifest = Manifest(
                    "test",
                    "none",
                    {},
                    "schema",
                    (part,),
                    reject_summary,
                    "0" * 64,
                    {},
                    {"id": folder.id},
                )
                return commit_run(run, manifest, base)
            except BaseException:
                run.discard()
                raise
    finally:
        folder.close()


def content_of(objects: dict[str, bytes], manifest: Manifest) -> bytes:
    assert set(manifest.rejects["files"]) <= objects.keys()
    return objects[f"{manifest.parts[0].folder}/{SHARD}"]


def expected_names(manifests: list[Manifest]) -> set[str]:
    """Returns the names of all objects of two generations, and of their copies."""
    names = set(COPIES)
    for manifest in manifests:
        names |= {f"{manifest.parts[0].folder}/{SHARD}", *manifest.rejects["files"]}
    return names


@pytest.mark.sweep
@pytest.mark.parametrize("fault", [FAIL, DROP])
def test_failed_request_is_repeated(store: Store, proxy: Proxy, tmp_path: Path, fault: str) -> None:
    for request_number in itertools.count():
        out = f"{store.root}/{'fail' if fault == FAIL else 'drop'}{request_number}"
        proxy.begin()
        first = commit(tmp_path / "home", out, b"the first data set", 0)
        proxy.begin(fault, request_number)
        second = commit(tmp_path / "home", out, b"the second data set", 1)
        num_requests = len(proxy.requests)
        proxy.begin()
        assert list_generations(out) == [1, 2]
        assert (load_manifest(out, 1), load_manifest(out, 2)) == (first, second)
        objects = store.objects(out)
        assert [content_of(objects, manifest) for manifest in (first, second)] == [
            b"the first data set",
            b"the second data set",
        ]
        assert {name for name in objects if not name.startswith("_manifests")} == expected_names(
            [first, second]
        )
        if request_number >= num_requests:
            break
    assert request_number > 10


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_build_that_dies_at_any_request_leaves_the_old_or_new_data_set(
    store: Store, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_run, "LEASE_SEC", -1)
    generations = set()
    for request_number in itertools.count():
        out = f"{store.root}/dead{request_number}"
        proxy.begin()
        commit(tmp_path / "home", out, b"the first data set", 0)
        with monkeypatch.context() as patched:
            patched.setattr(client, "MAX_RETRIES", 0)
            client._connections.clear()
            proxy.begin(DEAD, request_number)
            try:
                commit(tmp_path / "home", out, b"the second data set", 1)
            except (OSError, RecordmillError):
                is_finished = False
            else:
                is_finished = True
            num_requests = len(proxy.requests)
        client._connections.clear()
        proxy.begin()
        number = list_generations(out)[-1]
        assert not is_finished or number == 2
        assert (
            content_of(store.objects(out), load_manifest(out))
            == (b"the first data set", b"the second data set")[number - 1]
        )
        generations.add(number)
        commit(tmp_path / "home", out, b"the third data set", number)
        objects = store.objects(out)
        manifests = [load_manifest(out, generation) for generation in list_generations(out)]
        assert [content_of(objects, manifest) for manifest in manifests] == [
            (b"the first data set", b"the second data set")[number - 1],
            b"the third data set",
        ]
        assert {name for name in objects if not name.startswith("_manifests")} == expected_names(
            manifests
        )
        if request_number >= num_requests:
            break
    assert generations == {1, 2}
    assert request_number > 10
