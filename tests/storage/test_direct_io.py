"""Files written around the page cache hold the same bytes, whatever the file system refuses."""

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


def write(folder: Path, seed: int) -> None:
    """A file of each size, one after the other, in pieces of any length; then what they hold is
    looked at.
    """
    dice = random.Random(seed)
    contents = {folder / f"{size}": dice.randbytes(size) for size in SIZES}
    with DirectFiles() as cache:
        files = []
        for path, data in contents.items():
            file = cache.create(path)
            at = 0
            while at < len(data):
                at += file.write(data[at : at + dice.choice([1, 700, 4096, 40_000])])
            file.close()
            files.append(file)
        for file in files:
            file.wait()
    for path, data in contents.items():
        assert path.read_bytes() == data, path
        path.unlink()


@pytest.mark.parametrize("seed", range(5))
def test_direct_files_hold_the_written_bytes(tmp_path: Path, seed: int) -> None:
    write(tmp_path, seed)


def test_direct_files_work_if_the_file_system_refuses_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control, refused = fcntl.fcntl, []

    def refusing(descriptor: int, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & direct_io._DIRECT_FLAG:
            refused.append(descriptor)
            raise OSError(errno.EINVAL, "no")
        return int(control(descriptor, command, flags))

    monkeypatch.setattr(direct_io.fcntl, "fcntl", refusing)
    write(tmp_path, 0)
    assert len(refused) == sum(size >= 4 * 4096 for size in SIZES)


def test_direct_files_work_if_the_file_system_refuses_direct_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, refused = os.write, []

    def refusing(descriptor: int, data: bytes) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & direct_io._DIRECT_FLAG:
            refused.append(descriptor)
            raise OSError(errno.EINVAL, "no")
        return put(descriptor, data)

    monkeypatch.setattr(direct_io.os, "write", refusing)
    write(tmp_path, 0)
    assert len(refused) == sum(size >= 4 * 4096 for size in SIZES)


def test_direct_files_complete_short_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = os.write
    monkeypatch.setattr(
        direct_io.os, "write", lambda descriptor, data: put(descriptor, bytes(data[:3000]))
    )
    write(tmp_path, 0)


def test_full_disk_is_an_error_of_direct_files_and_nothing_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(direct_io.os, "write", full)

    def fill(file: DirectFile) -> None:
        for _ in range(100):
            file.write(bytes(10_000))

    before = len(os.listdir("/proc/self/fd"))
    with DirectFiles() as cache:
        for name in ("one", "left"):
            file = cache.create(tmp_path / name)
            with pytest.raises(OSError, match="full"):
                fill(file)
            if name == "one":
                file.abort()
    assert len(os.listdir("/proc/self/fd")) == before
    with DirectFiles() as cache:
        file = cache.create(tmp_path / "two")
        file.write(b"few")
        file.close()
        with pytest.raises(OSError, match="full"):
            file.wait()
        with pytest.raises(FileExistsError):
            cache.create(tmp_path / "two")
