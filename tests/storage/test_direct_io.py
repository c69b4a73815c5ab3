"""Files written past the page cache are complete.

This holds even if the file system refuses direct writes.
"""

import errno
import fcntl
import os
import random
from pathlib import Path

import pytest

from recordmill.storage import direct_io
from recordmill.storage.direct_io import DirectFile, DirectFiles

SIZES = [0, 1, 4095, 4096, 4097, 3 * 4096, 50_000, 100_001]


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_io, "_BUFFER_BYTES", 4 * 4096)


def write_and_check(folder: Path, seed: int) -> None:
    """Writes a file of each size in pieces of random length.

    Then checks and removes the files.
    """
    random_state = random.Random(seed)
    contents = {folder / f"{size}": random_state.randbytes(size) for size in SIZES}
    with DirectFiles() as cache:
        files = []
        for path, data in contents.items():
            file = cache.create(path)
            position = 0
            while position < len(data):
                position += file.write(
                    data[position : position + random_state.choice([1, 700, 4096, 40_000])]
                )
            file.close()
            files.append(file)
        for file in files:
            file.wait()
    for path, data in contents.items():
        assert path.read_bytes() == data, path
        path.unlink()


@pytest.mark.parametrize("seed", range(5))
def test_direct_files_hold_the_written_bytes(tmp_path: Path, seed: int) -> None:
    write_and_check(tmp_path, seed)


def test_direct_files_work_if_the_file_system_refuses_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control, descriptors = fcntl.fcntl, []

    def refuse(descriptor: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & direct_io._DIRECT_FLAG:
            descriptors.append(descriptor)
            raise OSError(errno.EINVAL, "no")
        return int(control(descriptor, command, flags))

    monkeypatch.setattr(direct_io.fcntl, "fcntl", refuse)
    write_and_check(tmp_path, 0)
    assert len(descriptors) == sum(size >= 4 * 4096 for size in SIZES)


def test_direct_files_work_if_the_file_system_refuses_direct_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original_write, descriptors = os.write, []

    def refuse(descriptor: int, data: bytes) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & direct_io._DIRECT_FLAG:
            descriptors.append(descriptor)
            raise OSError(errno.EINVAL, "no")
        return original_write(descriptor, data)

    monkeypatch.setattr(direct_io.os, "write", refuse)
    write_and_check(tmp_path, 0)
    assert len(descriptors) == sum(size >= 4 * 4096 for size in SIZES)


def test_direct_files_complete_short_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original_write = os.write
    monkeypatch.setattr(
        direct_io.os,
        "write",
        lambda descriptor, data: original_write(descriptor, bytes(data[:3000])),
    )
    write_and_check(tmp_path, 0)


def test_full_disk_is_an_error_of_direct_files_and_nothing_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(direct_io.os, "write", fail)

    def fill(file: DirectFile) -> None:
        for _ in range(100):
            file.write(bytes(10_000))

    num_open = len(os.listdir("/proc/self/fd"))
    with DirectFiles() as cache:
        for name in ("one", "left"):
            file = cache.create(tmp_path / name)
            with pytest.raises(OSError, match="full"):
                fill(file)
            if name == "one":
                file.abort()
    assert len(os.listdir("/proc/self/fd")) == num_open
    with DirectFiles() as cache:
        file = cache.create(tmp_path / "two")
        file.write(b"few")
        file.close()
        with pytest.raises(OSError, match="full"):
            file.wait()
        with pytest.raises(FileExistsError):
            cache.create(tmp_path / "two")
