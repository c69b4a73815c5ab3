"""`NewFiles`: a file where none was, nowhere but below its folder, and never twice."""

from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recordmill.storage import new_files
from recordmill.storage.disk_files import CREATED, TAKEN, UNFIT, NewFiles
from recordmill.storage.files import atomic_write, put_if_absent, sync_file, sync_folder


@pytest.fixture
def files(tmp_path: Path) -> NewFiles:
    return NewFiles(tmp_path / "new")


def test_files_stand_below_the_folder(files: NewFiles, tmp_path: Path) -> None:
    assert files.create("a.txt", b"one") == CREATED
    assert files.create("b/c/d.txt", memoryview(b"two")) == CREATED
    assert files.create("b/c/e.txt", b"") == CREATED
    files.sync()
    files.close()
    files.close()
    found = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"new/a.txt": b"one", "new/b/c/d.txt": b"two", "new/b/c/e.txt": b""}
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new" / "a.txt").stat().st_mode) == 0o666 & ~mask


def test_what_is_there_stays(files: NewFiles, tmp_path: Path) -> None:
    assert files.create("a/b", b"first") == CREATED
    assert files.create("a/b", b"second") == TAKEN
    assert files.create("a", b"the folder's name") == TAKEN
    assert files.create("a/b/c", b"below a file") == UNFIT
    assert files.create("a/b/c/d", b"further below a file") == UNFIT
    assert files.create("x" * 300, b"too long") == UNFIT
    assert files.create("y/" + "x" * 300 + "/z", b"too long a folder") == UNFIT
    assert (tmp_path / "new" / "a" / "b").read_bytes() == b"first"
    with pytest.raises(FileExistsError):
        NewFiles(tmp_path / "new")


@pytest.mark.parametrize("name", ["", "/a", "../a", "a/../../b", "a//b", "a/", "a\0b", ".."])
def test_no_name_leads_out(files: NewFiles, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no name of a file"):
        files.create(name, b"x")
    assert [path.name for path in tmp_path.rglob("*")] == ["new"]


def test_other_errors_are_not_taken_for_names(files: NewFiles, tmp_path: Path) -> None:
    files.close()
    with pytest.raises(OSError, match="descriptor"):
        files.create("a", b"x")


def test_everything_is_synced_where_there_is_no_syncfs(files: NewFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    called = []
    monkeypatch.setattr(new_files.ctypes, "CDLL", lambda *args, **kwargs: object())
    monkeypatch.setattr(new_files.os, "sync", lambda: called.append(1))
    files.sync()
    assert called == [1]


def test_a_sync_that_fails_is_an_error(files: NewFiles) -> None:
    files.close()
    with pytest.raises(OSError, match="descriptor"):
        new_files._sync_file_system(-1)


# Creating a file exactly once, on file systems with hard links and on those without


def _refuse(*args: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_one_of_many_creates_the_file_and_leaves_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", _refuse)
    path = tmp_path / "1.json"
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda n: put_if_absent(path, b"%d" % n * 10_000), range(8)))
    assert sum(created) == 1
    assert path.read_bytes() == b"%d" % created.index(True) * 10_000
    assert os.listdir(tmp_path) == ["1.json"]
    assert not put_if_absent(path, b"late")


def test_a_link_whose_answer_was_lost_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def twice(source: str, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    assert put_if_absent(tmp_path / "1.json", b"x")


def test_other_errors_pass_and_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(OSError, match="No space left"):
        put_if_absent(tmp_path / "1.json", b"x")
    assert os.listdir(tmp_path) == []


def test_a_disk_that_fails_at_last_is_told_with_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def write(path: Path) -> None:
        with atomic_write(path) as file:
            file.write(b"x")

    (path := tmp_path / "there").write_bytes(b"x")
    monkeypatch.setattr(os, "fsync", fail)
    for call, named in (
        (lambda: sync_file(path), path),
        (lambda: sync_folder(tmp_path), tmp_path),
        (lambda: write(tmp_path / "new"), tmp_path / "new"),
        (lambda: put_if_absent(tmp_path / "other", b"x"), tmp_path / "other"),
    ):
        with pytest.raises(OSError, match="Input/output error") as error:
            call()
        assert error.value.filename == str(named)
