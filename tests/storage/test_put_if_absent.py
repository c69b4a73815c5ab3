"""Creating a file exactly once, on file systems with hard links and on those without."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from recordmill.storage.files import atomic_write, put_if_absent, sync_file, sync_folder


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
