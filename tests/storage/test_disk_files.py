"""New files are created below their folder and never replace others."""

import errno
import os
from pathlib import Path

import pytest
from kit.files import tree

from recordmill.storage import disk_files
from recordmill.storage.disk_files import FILE_CREATED, NAME_TAKEN, NAME_UNFIT, NewFiles


@pytest.fixture
def files(tmp_path: Path) -> NewFiles:
    return NewFiles(tmp_path / "new")


def test_new_files_are_created_below_their_folder(files: NewFiles, tmp_path: Path) -> None:
    assert files.create("a.txt", b"one") == FILE_CREATED
    assert files.create("b/c/d.txt", memoryview(b"two")) == FILE_CREATED
    assert files.create("b/c/e.txt", b"") == FILE_CREATED
    files.sync()
    files.close()
    files.close()
    assert tree(tmp_path) == {"new/a.txt": b"one", "new/b/c/d.txt": b"two", "new/b/c/e.txt": b""}
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "new" / "a.txt").stat().st_mode & 0o777 == 0o666 & ~mask


def test_new_files_never_replace_existing_files(files: NewFiles, tmp_path: Path) -> None:
    assert files.create("a/b", b"first") == FILE_CREATED
    assert files.create("a/b", b"second") == NAME_TAKEN
    assert files.create("a", b"the folder's name") == NAME_TAKEN
    assert files.create("a/b/c", b"below a file") == NAME_UNFIT
    assert files.create("a/b/c/d", b"further below a file") == NAME_UNFIT
    assert files.create("x" * 300, b"too long") == NAME_UNFIT
    assert files.create("y/" + "x" * 300 + "/z", b"too long a folder") == NAME_UNFIT
    assert (tmp_path / "new" / "a" / "b").read_bytes() == b"first"
    with pytest.raises(FileExistsError):
        NewFiles(tmp_path / "new")


@pytest.mark.parametrize("name", ["", "/a", "../a", "a/../../b", "a//b", "a/", "a\0b", ".."])
def test_new_files_refuse_names_outside_the_folder(
    files: NewFiles, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ValueError, match="not a safe file name"):
        files.create(name, b"x")
    assert [path.name for path in tmp_path.rglob("*")] == ["new"]


def test_new_files_raise_other_errors_of_the_system(files: NewFiles, tmp_path: Path) -> None:
    files.close()
    with pytest.raises(OSError, match="descriptor"):
        files.create("a", b"x")


def test_new_files_sync_everything_if_there_is_no_syncfs(
    files: NewFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(disk_files.ctypes, "CDLL", lambda *args, **kwargs: object())
    monkeypatch.setattr(disk_files.os, "sync", lambda: calls.append(1))
    files.sync()
    assert calls == [1]


def test_second_name_is_a_copy_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "no links here")

    (tmp_path / "a").write_text("content")
    disk_files.link_or_copy(str(tmp_path / "a"), str(tmp_path / "link"))
    monkeypatch.setattr(os, "link", refuse)
    disk_files.link_or_copy(str(tmp_path / "a"), str(tmp_path / "copy"))
    assert (tmp_path / "link").samefile(tmp_path / "a")
    assert not (tmp_path / "copy").samefile(tmp_path / "a")
    assert (tmp_path / "copy").read_text() == (tmp_path / "link").read_text() == "content"
