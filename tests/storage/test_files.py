"""Files are read in bulk and created exactly once, and errors name their file."""

import errno
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from recordmill.base.errors import DataError
from recordmill.storage.file_table import InputFile, read_files
from recordmill.storage.files import (
    Stat,
    atomic_write,
    put_if_absent,
    stat,
    sync_file,
    sync_folder,
)

FileList = list[tuple[str, Stat, str]]


def make_files(folder: Path) -> FileList:
    """Creates files of several sizes.

    One is empty, and the name of one is not UTF-8.
    """
    names = [f"{size}".encode() for size in (1, 100, 4096, 70_001)] + [b"caf\xe9", b"empty"]
    files = []
    for number, name in enumerate(names):
        path = os.path.join(os.fsencode(folder), name)
        with open(path, "wb") as file:
            file.write(os.urandom(0 if name == b"empty" else int(name) if name.isdigit() else 5))
        text = os.fsdecode(path)
        files.append((text, stat(text), f"name {number}"))
    return files


def read_or_fail(files: FileList) -> bytes | str:
    target = np.zeros(sum(state.size_bytes for _, state, _ in files), np.uint8)
    try:
        inputs = [InputFile(0, name, path, state) for path, state, name in files]
        for _ in read_files(inputs, target):
            pass
    except DataError as error:
        return str(error)
    return target.tobytes()


def open_files_below(folder: Path) -> list[str]:
    """Returns the files below a folder that this process has open."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return [
        path
        for link in links
        if os.path.islink(link) and (path := os.readlink(link)).startswith(str(folder))
    ]


def test_read_files_returns_the_bytes_of_all_files(tmp_path: Path) -> None:
    files = make_files(tmp_path)
    for selection in (files, files[::-1], files[:1], [], files * 3):
        assert read_or_fail(selection) == b"".join(
            Path(path).read_bytes() for path, _, _ in selection
        )
    assert not open_files_below(tmp_path)


def truncate(path: str) -> None:
    state = os.stat(path)
    os.truncate(path, 50)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def append_byte(path: str) -> None:
    with open(path, "ab") as file:
        file.write(b"x")


def replace_by_folder(path: str) -> None:
    os.unlink(path)
    os.mkdir(path)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (os.unlink, "can't be read: No such file or directory"),
        (replace_by_folder, "can't be read: Is a directory"),
        (truncate, r"changed while it was read \(100 bytes before, 50 now\)"),
        (append_byte, r"changed while it was read \(100 bytes before, 101 now\)"),
        (
            lambda path: os.utime(path, ns=(1, 1_234_567_890_123_456_789)),
            r"changed .* \(100 bytes before, 100 now\)",
        ),
    ],
)
def test_missing_changed_or_unreadable_file_is_an_error_with_its_name(
    tmp_path: Path, fault: Callable[[str], None], message: str
) -> None:
    files = make_files(tmp_path)
    fault(files[1][0])
    result = read_or_fail(files)
    assert isinstance(result, str)
    assert re.search(message, result)
    assert "name 1" in result
    assert not open_files_below(tmp_path)


def refuse_link(*args: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_put_if_absent_lets_exactly_one_writer_create_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", refuse_link)
    path = tmp_path / "1.json"
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: put_if_absent(path, b"%d" % n * 10_000), range(8)))
    assert sum(results) == 1
    assert path.read_bytes() == b"%d" % results.index(True) * 10_000
    assert os.listdir(tmp_path) == ["1.json"]
    assert not put_if_absent(path, b"late")


def test_put_if_absent_recognizes_its_own_link_after_a_lost_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def twice(source: str, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    assert put_if_absent(tmp_path / "1.json", b"x")


def test_put_if_absent_raises_other_errors_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(OSError, match="No space left"):
        put_if_absent(tmp_path / "1.json", b"x")
    assert os.listdir(tmp_path) == []


def test_failed_sync_is_reported_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def write(path: Path) -> None:
        with atomic_write(path) as file:
            file.write(b"x")

    (path := tmp_path / "there").write_bytes(b"x")
    monkeypatch.setattr(os, "fsync", fail)
    for call, expected_path in (
        (lambda: sync_file(path), path),
        (lambda: sync_folder(tmp_path), tmp_path),
        (lambda: write(tmp_path / "new"), tmp_path / "new"),
        (lambda: put_if_absent(tmp_path / "other", b"x"), tmp_path / "other"),
    ):
        with pytest.raises(OSError, match="Input/output error") as error:
            call()
        assert error.value.filename == str(expected_path)
