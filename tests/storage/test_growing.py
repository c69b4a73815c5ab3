"""Files that become objects while they are written, on real servers: parts go up before the end, and the object is
there whole or not at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fault_proxy import DROP, FAIL, Proxy, fault_proxy
from store_server import Store, of_s3, s3_server, settings

from recordmill.storage.stores import uploads
from recordmill.storage.stores.client import REQUEST_LIMIT
from recordmill.storage.stores.uploads import GrowingFile

STORES = (s3_server,)
PART = 5 << 20  # 5 MiB: the least that S3 takes
DATA = np.random.default_rng(0).bytes(2 * PART + 12345)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "UPLOAD_PART_BYTES", PART)


@pytest.fixture
def proxy(store: Store) -> Iterator[Proxy]:
    with fault_proxy(store.endpoint) as between, settings(**of_s3(between.url)):
        yield between


def put_while_written(path: Path, uri: str, proxy: Proxy, *, whole: bool = True, data: bytes = DATA) -> bool:
    """What `put` gives of a file whose end is written when its first part was asked for."""
    path.write_bytes(b"")
    growing = GrowingFile(str(path))
    try:
        with ThreadPoolExecutor(1) as pool, path.open("ab", buffering=0) as file:
            putting = pool.submit(growing.put, uri)
            file.write(data[: PART + 7])
            if len(data) > PART:
                until = time.monotonic() + 60
                while not any("partNumber=1" in said for said in proxy.requests):
                    assert time.monotonic() < until, "no part went up"
                    threading.Event().wait(0.01)
            file.write(data[PART + 7 :])
            growing.end(whole)
            return putting.result(60)
    finally:
        growing.close()


def test_parts_go_up_while_the_file_grows(store: Store, proxy: Proxy, tmp_path: Path) -> None:
    proxy.begin()
    assert put_while_written(tmp_path / "a", f"{store.root}/grown/a", proxy)
    assert store.objects(f"{store.root}/grown") == {"a": DATA}
    first = next(said for said in proxy.requests if said.startswith("PUT"))
    assert first.endswith(f"partNumber=1&uploadId={upload(proxy)}")
    exact = DATA[: 2 * PART]
    proxy.begin()
    assert put_while_written(tmp_path / "b", f"{store.root}/grown/b", proxy, data=exact)
    assert store.objects(f"{store.root}/grown")["b"] == exact


def upload(proxy: Proxy) -> str:
    return next(said.rpartition("uploadId=")[2] for said in proxy.requests if "uploadId=" in said)


def test_what_is_dropped_is_no_object(store: Store, proxy: Proxy, tmp_path: Path) -> None:
    proxy.begin()
    assert not put_while_written(tmp_path / "a", f"{store.root}/dropped/a", proxy, whole=False)
    assert store.objects(f"{store.root}/dropped") == {}
    assert [said for said in proxy.requests if said.startswith("DELETE") and upload(proxy) in said]


def test_what_is_small_or_without_spare_requests_is_left_to_others(store: Store, proxy: Proxy, tmp_path: Path) -> None:
    proxy.begin()
    uri = f"{store.root}/small/a"
    assert not put_while_written(tmp_path / "a", uri, proxy, data=DATA[:PART])
    REQUEST_LIMIT.set(1)
    (tmp_path / "b").write_bytes(DATA)
    growing = GrowingFile(str(tmp_path / "b"))
    growing.end(whole=True)
    assert not growing.put(uri)
    REQUEST_LIMIT.set(2)
    assert growing.put(uri)
    growing.close()
    assert store.objects(f"{store.root}/small") == {"a": DATA}


def test_what_holds_spared_requests_leaves_half_to_others() -> None:
    limit = type(REQUEST_LIMIT)(5)
    with limit.spared(2) as first, ThreadPoolExecutor(1) as pool:
        assert first == 2

        def rest() -> int:
            with limit.spared(2) as given:
                return given

        assert pool.submit(rest).result(60) == 0
        with limit.slots(3) as there:  # of this thread, which has its own
            assert there == 2
    with limit.spared(9) as given:
        assert given == 2


@pytest.mark.parametrize("fault", [FAIL, DROP])
def test_a_part_that_fails_is_repeated(store: Store, proxy: Proxy, tmp_path: Path, fault: str) -> None:
    for at in range(4):  # begin, and three parts
        uri = f"{store.root}/again{fault.partition(' ')[0]}/{at}"
        proxy.begin(fault, at)
        assert put_while_written(tmp_path / "a", uri, proxy)
        assert set(store.objects(uri.rpartition("/")[0]).values()) == {DATA}
