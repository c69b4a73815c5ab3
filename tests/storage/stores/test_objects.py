"""Any range of a remote file is read correctly with few requests, whatever fails."""

import re
from pathlib import Path

import numpy as np
import pytest
from kit.web_files import CUT, FAIL, SLOW, WebFiles

from recordmill.base.errors import DataError, UsageError
from recordmill.storage import files
from recordmill.storage.compression import open_blocks
from recordmill.storage.file_table import InputFile, read_files
from recordmill.storage.files import (
    Stat,
    limit_block_memory,
    map_file,
    read_blocks,
    read_range,
    read_ranges,
    start_range_read,
    stat,
)
from recordmill.storage.listing import list_inputs
from recordmill.storage.stores import client
from recordmill.storage.stores.objects import ObjectStorage

SIZE = 60_000


@pytest.mark.parametrize(
    ("start", "stop"),
    [
        (0, None),
        (60_001, 60_002),
        (0, 1),
        (999, 1001),
        (1000, 2000),
        (59_999, None),
        (60_000, None),
        (70_000, None),
        (5, 40_000),
        (7, 7),
    ],
)
def test_remote_range_equals_the_bytes_of_the_file(
    web: WebFiles, start: int, stop: int | None
) -> None:
    data = np.frombuffer((web.folder / "a").read_bytes(), np.uint8)
    assert np.array_equal(read_range(f"{web.url}/a", start, stop), data[start:stop])


def test_every_read_function_returns_the_remote_bytes(web: WebFiles) -> None:
    data, url = (web.folder / "a").read_bytes(), f"{web.url}/a"
    assert b"".join(block.tobytes() for block in read_blocks(url, 1234, 10)) == data[10:]
    assert b"".join(block.tobytes() for block in open_blocks(url, block_bytes=777)) == data
    assert map_file(url).tobytes() == data
    assert map_file(f"{web.url}/empty").tobytes() == read_range(f"{web.url}/empty").tobytes() == b""
    target = np.empty(100, np.uint8)
    read_ranges(url, [(50, target)])
    assert target.tobytes() == data[50:150]
    with pytest.raises(DataError, match="ends at byte 60000, where 60050 are needed"):
        read_ranges(url, [(SIZE - 50, target)])
    for starts in [0, 100, 160, 5000, 59_000], [160, 5000, 0, 100, 110, 59_000]:
        arrays = np.empty((len(starts), 30), np.uint8)
        read_ranges(url, list(zip(starts, arrays, strict=True)))
        assert [part.tobytes() for part in arrays] == [data[start : start + 30] for start in starts]


def test_small_reads_share_requests(web: WebFiles) -> None:
    url = f"{web.url}/a"
    for begin in range(0, SIZE - 12, 100):
        read_range(url, begin, begin + 12)
    assert len([request for request in web.requests if request.startswith("GET")]) == SIZE // 1000
    assert len(web.requests) == SIZE // 1000 + 1  # the other request asks for the size
    web.requests.clear()
    read_ranges(url, [(start, np.empty(30, np.uint8)) for start in (0, 40, 90, 5000)])
    assert sorted(web.requests) == ["GET /a bytes=0-119", "GET /a bytes=5000-5029"]


def test_small_files_are_requested_at_once(web: WebFiles) -> None:
    for number in range(20):
        (web.folder / f"f{number}").write_bytes(bytes([number]) * 500)
    urls = [f"{web.url}/f{number}" for number in range(20)]
    states = [(url, stat(url)) for url in urls]
    web.requests.clear()
    assert read_complete_files(states) == [bytes([number]) * 500 for number in range(20)]
    assert sorted(web.requests) == sorted(f"GET /f{number} bytes=0-499" for number in range(20))


def read_complete_files(states: list[tuple[str, Stat]]) -> list[bytes]:
    target = np.empty(sum(state.size_bytes for _, state in states), np.uint8)
    return [
        data.tobytes()
        for data in read_files(
            [InputFile(0, f"name of {path}", path, state) for path, state in states], target
        )
    ]


@pytest.mark.parametrize("fault", ["", FAIL, CUT, SLOW])
def test_read_files_returns_remote_and_local_files_in_order_despite_faults(
    web: WebFiles, tmp_path: Path, fault: str
) -> None:
    sizes = [5, 0, 700, 1000, 40_000, 1]
    for number, size in enumerate(sizes):
        (web.folder / f"f{number}").write_bytes(bytes([number]) * size)
    (tmp_path / "near").write_bytes(b"near")
    states = [(url, stat(url)) for url in (f"{web.url}/f{number}" for number in range(6))]
    states.insert(3, (str(tmp_path / "near"), stat(str(tmp_path / "near"))))
    expected = [bytes([number]) * size for number, size in enumerate(sizes)]
    expected.insert(3, b"near")
    web.requests.clear()
    web.faults = {2: fault}
    web.slow.set()
    assert read_complete_files(states) == expected
    if not fault:
        # one request for each small file
        small = [request for request in web.requests if "/f4" not in request]
        assert sorted(small) == [
            f"GET /f{number} bytes=0-{sizes[number] - 1}" for number in (0, 2, 3, 5)
        ]
    (web.folder / "f4").write_bytes(b"x" * 40_000)
    with pytest.raises(DataError, match=r"name of .*f4: changed while it was read"):
        read_complete_files(states)
    (web.folder / "f4").unlink()
    with pytest.raises(DataError, match=r"name of .*f4: can't be read: no such object"):
        read_complete_files(states)


def test_started_range_reads_return_the_bytes_of_the_file(web: WebFiles) -> None:
    data, url = (web.folder / "a").read_bytes(), f"{web.url}/a"
    for start, stop in (0, 10), (100, 20_000), (SIZE - 5, SIZE + 5), (SIZE + 1, SIZE + 2):
        assert start_range_read(url, start, stop)().tobytes() == data[start:stop]
    (web.folder / "a").write_bytes(data[::-1])
    assert start_range_read(url, 100, 20_000)().tobytes() == data[::-1][100:20_000]
    reads = [start_range_read(url, 0, 20_000), start_range_read(url, 30_000, 30_010)]
    assert [read().tobytes() for read in reads] == [data[::-1][:20_000], data[::-1][30_000:30_010]]


def test_unreachable_object_is_reported_in_a_sentence(
    web: WebFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError, match="no such object") as missing:
        read_range(f"{web.url}/nothing")
    assert missing.value.filename == f"{web.url}/nothing"
    monkeypatch.setattr(client, "MAX_RETRIES", 0)
    with pytest.raises(OSError, match="can't be reached"):
        read_range("http://127.0.0.1:9/a")
    with pytest.raises(UsageError, match="a web server lists no folders"):
        list_inputs([f"{web.url}/nothing/"])


def test_remote_files_are_listed_as_on_a_disk(web: WebFiles) -> None:
    (web.folder / "b c.csv").write_text("x\n1\n")
    listing = list_inputs([f"{web.url}/b%20c.csv", f"{web.url}/a"])
    assert [(file.root, file.name, file.stat.size_bytes) for file in listing.files] == [
        (0, "b c.csv", 4),
        (1, "a", SIZE),
    ]
    assert all(map(listing.is_explicit, listing.files))
    assert [root.is_folder for root in listing.roots] == [False, False]
    (web.folder / "list.txt").write_text("b%20c.csv\na\n")
    names = [file.name for file in list_inputs([f"@{web.url}/list.txt"]).files]
    assert names == ["a", "b c.csv"]
    (web.folder / "list.txt").write_text("/etc/passwd\n")
    files._OBJECT_STORAGE.stat(f"{web.url}/list.txt")
    with pytest.raises(UsageError, match=re.escape("'/etc/passwd' leads out of its folder there")):
        list_inputs([f"@{web.url}/list.txt"])


def test_block_cache_stays_within_the_memory_of_each_call(web: WebFiles) -> None:
    storage = files._OBJECT_STORAGE
    assert isinstance(storage, ObjectStorage)
    blocks = storage._blocks

    def read() -> None:
        for start in range(0, SIZE, 1000):
            read_range(f"{web.url}/a", start, start + 1000)

    read()
    assert blocks._cached_bytes == SIZE
    max_bytes = blocks.max_bytes
    with limit_block_memory(8 * 10_000):
        assert blocks._cached_bytes <= 10_000 == blocks.max_bytes
        with limit_block_memory(8 * 50_000):  # as another thread would
            read()
            assert blocks._cached_bytes <= 10_000
        assert blocks.max_bytes == 10_000
    assert blocks.max_bytes == max_bytes
    read()
    assert blocks._cached_bytes == SIZE
