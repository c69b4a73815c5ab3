"""All bytes of a range are from one content of the object.

This holds even if requests fail or the object is replaced.
"""

import datetime
import os
from concurrent.futures import Future

import numpy as np
import pytest
from kit.web_files import CUT, FAIL, SLOW, WebFiles

from recordmill.base.errors import DataError
from recordmill.storage.file_table import InputFile, read_files
from recordmill.storage.files import (
    Bytes,
    Stat,
    check_unchanged,
    read_range,
    stat,
)
from recordmill.storage.stores import downloads
from recordmill.storage.stores.address import Address
from recordmill.storage.stores.downloads import Downloader, ReplacedError, wait_for_all


@pytest.mark.parametrize("fault", [FAIL, CUT, SLOW])
@pytest.mark.parametrize("number", range(12))
def test_fault_at_any_request_does_not_change_the_bytes(
    web: WebFiles, fault: str, number: int
) -> None:
    web.faults = {number: fault}
    web.slow.set()
    data = (web.folder / "a").read_bytes()
    assert read_range(f"{web.url}/a", 100, 9_000).tobytes() == data[100:9_000]
    assert read_range(f"{web.url}/a", 50_000, 50_010).tobytes() == data[50_000:50_010]


def test_truncated_answer_is_resumed_where_it_ended(web: WebFiles) -> None:
    stat(f"{web.url}/a")
    web.requests.clear()
    web.faults = {0: CUT}
    read_range(f"{web.url}/a", 0, 1000)
    assert web.requests == ["GET /a bytes=0-999", "GET /a bytes=500-999"]


@pytest.mark.sweep
def test_answers_that_are_always_truncated_end_in_an_error(web: WebFiles) -> None:
    stat(f"{web.url}/a")
    web.faults = dict.fromkeys(range(1, 1000), CUT)
    with pytest.raises(OSError, match="the store failed"):
        read_range(f"{web.url}/a", 0, 1000)
    web.faults = {}
    assert read_range(f"{web.url}/a", 0, 1000).tobytes() == (web.folder / "a").read_bytes()[:1000]


def test_object_that_changed_since_the_plan_is_an_error(web: WebFiles) -> None:
    url, path = f"{web.url}/a", web.folder / "a"
    planned_state = stat(url)
    assert planned_state == Stat(60_000, 0, planned_state.etag)
    read_range(url, 0, 10)
    path.write_bytes(path.read_bytes()[::-1])
    check_unchanged(url, planned_state, "a")  # all reads so far returned the planned content
    assert read_range(url, 30_000, 30_010).tobytes() == path.read_bytes()[30_000:30_010]
    with pytest.raises(DataError, match="a: changed while it was read"):
        check_unchanged(url, planned_state, "a")
    with pytest.raises(DataError, match="changed while it was read"):
        list(read_files([InputFile(0, "a", url, planned_state)], np.empty(60_000, np.uint8)))


def test_range_is_never_mixed_of_two_contents(
    web: WebFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, path = f"{web.url}/a", web.folder / "a"
    stat(url)
    fetch, old = Downloader.fetch_range, path.read_bytes()

    def fetch_and_replace(
        self: Downloader, address: Address, state: Stat, start: int, target: Bytes
    ) -> None:
        fetch(self, address, state, start, target)
        if start == 0:
            # A rename, because the server may still send the old content.
            new = web.folder / "new"
            new.write_bytes(old[::-1])
            new.replace(path)

    monkeypatch.setattr(Downloader, "fetch_range", fetch_and_replace)
    assert read_range(url, 0, 20_000).tobytes() in (old[:20_000], old[::-1][:20_000])


@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_forked_process_refuses_to_read_a_store(web: WebFiles) -> None:
    url = f"{web.url}/a"
    read_range(url, 0, 20_000)
    if (child := os.fork()) == 0:
        messages = []
        for start, stop in (30_000, 30_010), (0, 20_000):  # by one request and by several
            try:
                read_range(url, start, stop)
            except OSError as error:
                messages.append(error.strerror)
        os._exit(
            0 if len(messages) == 2 and all("start it by spawn" in text for text in messages) else 1
        )
    assert os.waitpid(child, 0)[1] == 0


def test_ranges_are_read_by_requests_of_at_most_one_part(web: WebFiles) -> None:
    data, address = (web.folder / "a").read_bytes(), Address(web.url, "a")
    downloader = Downloader()
    state = downloader.stat(address)
    web.requests.clear()
    ranges = [(10, np.empty(7000, np.uint8)), (59_990, np.empty(10, np.uint8))]
    downloader.read_parts(address, state, ranges)
    assert [array.tobytes() for _, array in ranges] == [data[10:7010], data[59_990:]]
    assert sorted(web.requests) == [
        "GET /a bytes=10-3009",
        "GET /a bytes=3010-6009",
        "GET /a bytes=59990-59999",
        "GET /a bytes=6010-7009",
    ]


def test_range_of_a_replaced_object_does_not_change_the_array(web: WebFiles) -> None:
    address, downloader = Address(web.url, "a"), Downloader()
    planned_state = downloader.stat(address)
    (web.folder / "a").write_bytes(b"new" * 20_000)
    array = np.zeros(100, np.uint8)
    with pytest.raises(ReplacedError):
        downloader.fetch_range(address, planned_state, 0, array)
    assert not array.any()
    assert downloader.last_known_stat(address) == downloader.stat(address) != planned_state


def test_object_that_is_replaced_in_each_attempt_is_an_error(web: WebFiles) -> None:
    address, downloader, states = Address(web.url, "a"), Downloader(), []

    def read(state: Stat) -> None:
        states.append(state)
        (web.folder / "a").write_bytes(bytes([len(states)]) * 10)
        raise ReplacedError

    with pytest.raises(DataError, match="is replaced repeatedly while it is read"):
        downloader.retry_if_replaced(address, read)
    assert len(set(states)) == len(states) == 4


def test_assumed_state_does_not_replace_a_known_one(web: WebFiles) -> None:
    address, downloader = Address(web.url, "a"), Downloader()
    assert downloader.last_known_stat(address) is None
    first, second = Stat(1, 0, "x"), Stat(2, 0, "y")
    downloader.assume_stat(address, first)
    downloader.assume_stat(address, second)
    assert downloader.last_known_stat(address) == first
    assert downloader.stat(address) == downloader.last_known_stat(address) != first


def test_oldest_states_of_objects_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "_MAX_KNOWN_OBJECTS", 2)
    downloader = Downloader()
    addresses = [Address("s3://b", name) for name in "abc"]
    time = datetime.datetime(2020, 1, 1, 0, 0, 1, 999_999, datetime.timezone.utc)
    for address in (*addresses[:2], addresses[0], addresses[2]):
        downloader.record_stat(address, {"e_tag": None, "last_modified": time, "size": 5})
    rounded = Stat(5, 1_577_836_801 * 10**9)
    assert [downloader.last_known_stat(key) for key in addresses] == [
        rounded,
        None,
        rounded,
    ]
    etag = downloader.record_stat(
        addresses[0], {"e_tag": '"tag"', "last_modified": time, "size": 5}
    )
    assert etag == Stat(5, 0, "tag")


def test_first_error_of_several_requests_is_raised_and_the_others_are_cancelled() -> None:
    failed_request, pending_request = Future[None](), Future[None]()
    failed_request.set_exception(OSError("first"))
    with pytest.raises(OSError, match="first"):
        wait_for_all([failed_request, pending_request])
    assert pending_request.cancelled()
