"""Cached blocks of a data set in a store need no second request.

Damaged blocks are fetched again, and the cache stays within its limit.
"""

import multiprocessing
import pickle
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kit.child_processes import cached_blocks, fill_cache, read_all_ways, read_pickled
from kit.data_sets import mixed_rows, write_data_set
from kit.fault_proxy import Proxy, fault_proxy
from kit.store_server import Store, s3_settings, use_settings

import recordmill
from recordmill.__main__ import main
from recordmill.base.errors import UsageError
from recordmill.shards import tfrecord_file
from recordmill.storage import files
from recordmill.storage.files import MAPPED_FILES
from recordmill.storage.stores import cache as block_cache
from recordmill.storage.stores import downloads, objects
from recordmill.storage.stores.cache import BlockCache, DiskCache
from recordmill.storage.stores.client import REQUEST_LIMIT

ROWS = 600


@pytest.fixture(scope="module")
def store(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Store:
    for name, compression in (("plain", "none"), ("packed", "gzip")):
        folder = write_data_set(
            tmp_path_factory.mktemp(name) / "set",
            {"train": mixed_rows(ROWS)},
            shards=3,
            compression=compression,
        )
        store.put_folder(folder, name)
    return store


@pytest.fixture
def proxy(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    monkeypatch.setattr(objects, "STORE_BLOCK_BYTES", 10_000)
    monkeypatch.setattr(downloads, "DOWNLOAD_PART_BYTES", 20_000)
    with fault_proxy(store.endpoint) as proxy, use_settings(**s3_settings(proxy.url)):
        yield proxy


def forget() -> None:
    """Replaces the memory cache of this process by an empty one.

    Reads in progress end in the old cache.
    """
    files._OBJECT_STORAGE._blocks = BlockCache()


@pytest.mark.parametrize("name", ["plain", "packed"])
def test_second_epoch_makes_no_request(
    store: Store, proxy: Proxy, tmp_path: Path, name: str
) -> None:
    dataset = recordmill.open(
        f"{store.root}/{name}", cache=tmp_path / "cache", cache_bytes="100MiB"
    )
    expected = read_all_ways(dataset)
    forget()
    proxy.begin()
    assert read_all_ways(dataset) == expected
    assert proxy.requests == []
    reopened = recordmill.open(f"{store.root}/{name}", cache=tmp_path / "cache")
    assert [
        request for request in proxy.requests if ".tfrecord" in request
    ] == []  # opening requests no shard
    forget()
    proxy.begin()
    assert read_all_ways(reopened) == expected
    assert proxy.requests == []
    local = recordmill.open(
        str(write_data_set(tmp_path / "near", {"train": mixed_rows(ROWS)}, shards=3))
    )
    assert read_all_ways(local)[:3] == expected[:3]


@pytest.mark.parametrize("name", ["plain", "packed"])
def test_partial_index_of_a_store_is_enough(
    store: Store, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    expected = read_all_ways(recordmill.open(f"{store.root}/{name}"))
    monkeypatch.setattr(MAPPED_FILES, "max_slots", 0)
    monkeypatch.setattr(tfrecord_file, "_FAR_INDEX_BYTES", 0)
    assert read_all_ways(recordmill.open(f"{store.root}/{name}")) == expected


def test_unpickled_data_set_makes_no_request(store: Store, proxy: Proxy, tmp_path: Path) -> None:
    dataset = recordmill.open(f"{store.root}/plain", cache=tmp_path / "cache")
    expected = read_all_ways(dataset)
    text = pickle.dumps(dataset)
    proxy.begin()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        result = pool.submit(
            read_pickled, text, objects.STORE_BLOCK_BYTES, downloads.DOWNLOAD_PART_BYTES
        )
        assert result.result() == expected
    assert proxy.requests == []


def test_damaged_block_is_fetched_again(store: Store, proxy: Proxy, tmp_path: Path) -> None:
    dataset = recordmill.open(f"{store.root}/plain", cache=tmp_path)
    expected = read_all_ways(dataset)
    block_paths = cached_blocks(tmp_path)
    damages: list[Callable[[bytes], bytes]] = [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data + b"x",
        lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
    ]
    for path, damage in zip(block_paths, damages, strict=False):
        path.write_bytes(damage(path.read_bytes()))
    (tmp_path / "mine.txt").write_text("mine")
    dataset = recordmill.open(f"{store.root}/plain", cache=tmp_path)
    forget()
    proxy.begin()
    assert read_all_ways(dataset) == expected
    assert len(proxy.requests) == 4
    assert cached_blocks(tmp_path) == block_paths
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_cache_stays_within_cache_bytes(store: Store, proxy: Proxy, tmp_path: Path) -> None:
    dataset = recordmill.open(f"{store.root}/plain", cache=tmp_path, cache_bytes=60_000)
    expected = read_all_ways(recordmill.open(f"{store.root}/packed"))
    for _ in range(2):
        forget()
        assert read_all_ways(dataset) == expected
        assert 0 < sum(path.stat().st_size for path in cached_blocks(tmp_path)) <= 60_000
    forget()
    proxy.begin()
    list(dataset.batches(50, shuffle=False))
    assert len([request for request in proxy.requests if request.startswith("GET")]) > 0


def test_cache_limit_is_shared_by_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    children = [
        context.Process(target=fill_cache, args=(str(tmp_path), number)) for number in range(3)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert 50_000 < sum(path.stat().st_size for path in cached_blocks(tmp_path)) <= 100_000
    blocks = [
        DiskCache(str(tmp_path), 100_000).get((number, index), 1000)
        for number in range(3)
        for index in range(100)
    ]
    assert sum(block is not None for block in blocks) == len(cached_blocks(tmp_path))


@pytest.mark.parametrize("mount_option", ["size=64k", "nr_inodes=1"])
def test_full_disk_of_the_cache_is_reported_once_and_reads_continue(
    store: Store, proxy: Proxy, tmp_path: Path, caplog: pytest.LogCaptureFixture, mount_option: str
) -> None:
    expected = recordmill.open(f"{store.root}/plain").to_numpy()["id"]
    with small_disk(tmp_path / "disk", mount_option) as folder:
        dataset = recordmill.open(f"{store.root}/plain", cache=folder / "cache")
        forget()
        for _ in range(2):
            assert np.array_equal(dataset.to_numpy()["id"], expected)
            batches = dataset.batches(50, shuffle="global", seed=1)
            assert sorted(np.concatenate([batch["id"] for batch in batches])) == sorted(expected)
            forget()
        (message,) = {
            record.getMessage()
            for record in caplog.records
            if "nothing more is kept" in record.getMessage()
        }
        assert message == f"{folder / 'cache'}: nothing more is kept there: No space left on device"
        contents = {path: path.read_bytes() for path in cached_blocks(folder / "cache")}
        assert all(data.startswith(b"RMBLOCK2") for data in contents.values())
        assert bool(contents) == (mount_option == "size=64k")
    assert caplog.text.count("nothing more is kept") == 1


@contextmanager
def small_disk(folder: Path, mount_option: str) -> Iterator[Path]:
    folder.mkdir()
    result = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", mount_option, "tmpfs", str(folder)],
        capture_output=True,
        text=True,
    )
    if result.returncode:
        pytest.skip(f"a small disk can't be mounted here: {result.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_forked_child_reads_only_cached_blocks(store: Store, proxy: Proxy, tmp_path: Path) -> None:
    uri = f"{store.root}/plain"
    cached_set, uncached_set = (
        recordmill.open(uri, cache=tmp_path),
        recordmill.open(f"{store.root}/packed"),
    )
    expected = cached_set.to_numpy()["id"].tolist()
    forget()
    blocks = files._OBJECT_STORAGE._blocks
    blocks.get(("there", 0), lambda: np.zeros(3, np.uint8))
    # This read is in progress, in a thread that the child does not have.
    blocks.start_read(("coming", 1), lambda: np.zeros(3, np.uint8), lambda *work: Future())
    receiver, sender = multiprocessing.Pipe(False)
    context = multiprocessing.get_context("fork")
    child = context.Process(target=lambda: sender.send(read_in_child(cached_set, uncached_set)))
    try:
        with blocks._lock, REQUEST_LIMIT.acquire(REQUEST_LIMIT.max_requests):
            child.start()
        assert receiver.poll(60), "the child waits"
        message = "a forked process can't use connections to stores: start it by spawn"
        assert receiver.recv() == [[0, 0, 0], [7], expected, message]
    finally:
        child.kill()
        child.join()
        forget()


def read_in_child(cached_set: recordmill.Dataset, uncached_set: recordmill.Dataset) -> list[Any]:
    blocks = files._OBJECT_STORAGE._blocks
    cached_block = blocks.get(("there", 0), lambda: np.ones(1, np.uint8)).tolist()
    pending_block = blocks.get(("coming", 1), lambda: np.full(1, 7, np.uint8)).tolist()
    results = [cached_block, pending_block, cached_set.to_numpy()["id"].tolist()]
    try:
        uncached_set.to_numpy()
    except OSError as error:
        return [*results, error.strerror]
    return results


def test_full_temporary_disk_is_an_error_of_map_file(
    store: Store, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = store.put("large/x.bin", bytes(200_000))
    with small_disk(tmp_path / "disk", "size=64k") as folder:
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        with pytest.raises(
            OSError, match=rf"No space left on device: '{folder} \(where TMPDIR has {uri} mapped\)'"
        ):
            files.map_file(uri)
        assert not list(folder.iterdir())
    assert files.map_file(uri).tolist() == [0] * 200_000


def test_replaced_object_is_not_read_from_the_cache(
    store: Store, proxy: Proxy, tmp_path: Path
) -> None:
    shard = next(
        (write_data_set(tmp_path / "a", {"train": mixed_rows(50)}, shards=1)).rglob("*.tfrecord")
    )
    new_shard = next(
        (write_data_set(tmp_path / "b", {"train": mixed_rows(50, 50)}, shards=1)).rglob(
            "*.tfrecord"
        )
    )
    uri = store.put("changing/x.tfrecord", shard.read_bytes())
    assert recordmill.open(uri, cache=tmp_path).to_numpy()["id"].tolist() == list(range(50))
    store.put("changing/x.tfrecord", new_shard.read_bytes())
    assert recordmill.open(uri, cache=tmp_path).to_numpy()["id"].tolist() == list(range(50, 100))


def test_unwritable_cache_is_reported_and_bad_options_are_refused(
    store: Store, proxy: Proxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / block_cache.CACHE_FOLDER_NAME).write_text("a file")
    dataset = recordmill.open(f"{store.root}/plain", cache=tmp_path)
    assert len(dataset.to_table()) == ROWS
    assert "nothing more is kept there" in caplog.text
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cache"):
        recordmill.open(f"{store.root}/plain", cache=tmp_path / "file")
    with pytest.raises(UsageError, match="cache_bytes"):
        recordmill.open(f"{store.root}/plain", cache=tmp_path, cache_bytes="many")


@pytest.mark.parametrize("max_requests", [3, pytest.param(1, marks=pytest.mark.sweep)])
def test_requests_in_flight_stay_within_storage_requests(
    store: Store,
    proxy: Proxy,
    tmp_path: Path,
    max_requests: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "a.csv").write_text(
        "a,b\n" + "".join(f"{row},{'x' * 200}\n" for row in range(3000))
    )
    local, out = (
        write_data_set(tmp_path / "set", {"train": mixed_rows(ROWS)}, shards=6),
        f"{store.root}/limited{max_requests}",
    )
    uri = store.put("limited/a.csv", (tmp_path / "a.csv").read_bytes())
    proxy.delay_sec = 0.01
    flag = ["--storage-requests", str(max_requests)]
    for command in (
        ["build", uri, "--out", out, "--num-shards", "5"],
        ["read", str(local), "--out", f"{out}-read", "--file-size", "20KB"],
        ["read", f"{store.root}/plain", "--out", str(tmp_path / "table")],
        ["head", f"{store.root}/plain"],
        ["inspect", f"{store.root}/packed"],
        ["verify", f"{store.root}/plain"],
        ["status", out],
        ["clean", out],
        ["bench", f"{store.root}/plain", "--seconds", "0.2", "--shuffle", "global"],
    ):
        proxy.begin()
        assert main([*command, *flag]) == 0, capsys.readouterr().err
        assert 0 < proxy.max_concurrent <= max_requests, command
    REQUEST_LIMIT.set_max(64)
    dataset = recordmill.open(f"{store.root}/plain", storage_requests=max_requests)
    REQUEST_LIMIT.set_max(64)
    dataset = pickle.loads(pickle.dumps(dataset))  # the limit is part of the pickled data set
    proxy.begin()
    assert len(list(dataset.batches(50, shuffle="global"))) == ROWS // 50
    assert 0 < proxy.max_concurrent <= max_requests
    with pytest.raises(UsageError, match="storage_requests=0: must be 1 or more"):
        recordmill.open(f"{store.root}/plain", storage_requests=0)
