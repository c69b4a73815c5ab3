"""A state identifies the content of a file.

A `ReaderFile` behaves like an open file of Python.
"""

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from recordmill.base.errors import DataError
from recordmill.storage.stores.local import LocalReader, LocalStorage
from recordmill.storage.stores.protocol import ReaderFile, Stat, check_read_limit

CONTENT = bytes(range(256)) * 4


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "f").write_bytes(CONTENT)
    return str(tmp_path / "f")


@pytest.mark.parametrize(
    ("current", "is_changed"),
    [
        (Stat(10, 5, ctime_ns=7), False),
        (Stat(11, 5, ctime_ns=7), True),
        (Stat(10, 6, ctime_ns=7), True),
        (Stat(10, 5, "tag", ctime_ns=7), True),
        (Stat(10, 5, ctime_ns=8), True),  # the modification time was set back
        (Stat(10, 5), False),  # the time of the last change is unknown
    ],
)
def test_state_detects_a_written_file(current: Stat, is_changed: bool) -> None:
    assert Stat(10, 5, ctime_ns=7).is_changed(current) == is_changed
    assert not Stat(10, 5).is_changed(Stat(10, 5, ctime_ns=9))


def test_states_of_copies_are_equal() -> None:
    assert Stat(10, 5, ctime_ns=7) == Stat(10, 5, ctime_ns=8)
    assert hash(Stat(10, 5, ctime_ns=7)) == hash(Stat(10, 5, ctime_ns=8))


def test_file_over_a_reader_reads_and_seeks_as_an_open_file(path: str) -> None:
    with io.BufferedReader(ReaderFile(LocalReader(path)), 16) as file, open(path, "rb") as oracle:
        for offset, whence, size in ((0, 0, 5), (100, 0, 40), (3, 1, 7), (-9, 2, 20), (0, 2, 5)):
            assert file.seek(offset, whence) == oracle.seek(offset, whence)
            assert file.read(size) == oracle.read(size)
            assert file.tell() == oracle.tell()


def test_closing_the_file_closes_its_reader_once(path: str) -> None:
    closed_paths = []
    reader = LocalReader(path)

    class Reader(LocalReader):
        def __init__(self) -> None:
            pass

        fill, stat = reader.fill, reader.stat

        def close(self) -> None:
            closed_paths.append(path)
            reader.close()

    file = ReaderFile(Reader())
    file.close()
    file.close()
    assert closed_paths == [path]


@pytest.mark.parametrize(
    ("start", "stop"), [(0, None), (5, 5), (10, 20), (1000, 5000), (2000, 3000), (20, 10)]
)
def test_range_of_a_file_is_a_slice_of_its_bytes(path: str, start: int, stop: int | None) -> None:
    assert LocalStorage().read_range(path, start, stop).tobytes() == CONTENT[start:stop]


def test_range_is_read_into_an_array_of_the_caller(path: str) -> None:
    target = np.zeros(8, np.uint8)
    assert LocalStorage().read_range(path, 100, 101, target).tobytes() == CONTENT[100:108]
    assert target.tobytes() == CONTENT[100:108]


def test_range_beyond_the_end_is_an_error_with_its_byte(path: str) -> None:
    arrays = [np.empty(4, np.uint8), np.empty(30, np.uint8)]
    LocalStorage().read_ranges(path, [(1000, arrays[0]), (8, arrays[1])])
    assert [array.tobytes() for array in arrays] == [CONTENT[1000:1004], CONTENT[8:38]]
    with pytest.raises(DataError, match="ends at byte 1024, where 1030 are needed"):
        LocalStorage().read_ranges(path, [(1000, arrays[1])])


def test_read_limit_permits_its_own_size() -> None:
    check_read_limit("f", 1000, 1000)
    check_read_limit("f", 1 << 60, None)
    with pytest.raises(DataError, match="f: has 1,001 bytes, above the 1,000 allowed"):
        check_read_limit("f", 1001, 1000)
