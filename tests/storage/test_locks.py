"""Only one process at a time has a lock.

A lock on a replaced folder does not lock the new folder.
"""

import os
import threading
from pathlib import Path

import pytest

from recordmill.storage.locks import LockFile, lock_folder


def test_locked_file_is_refused_until_it_is_closed(tmp_path: Path) -> None:
    first = LockFile.open(tmp_path / "lock", create=True)
    second = LockFile.open(tmp_path / "lock")
    first.acquire()
    with pytest.raises(BlockingIOError):
        second.acquire()
    first.close()
    second.acquire()
    second.close()


def test_lock_file_is_never_a_link_and_is_created_only_on_request(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LockFile.open(tmp_path / "lock")
    (tmp_path / "target").touch()
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="lock"):
        LockFile.open(tmp_path / "lock", create=True)


def test_lock_file_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    LockFile.open(tmp_path / "pipe").close()


def test_shorter_text_replaces_a_longer_one(tmp_path: Path) -> None:
    lock = LockFile.open(tmp_path / "lock", create=True)
    lock.write(b"a long text")
    lock.write(b"short")
    assert lock.read(100) == b"short      "
    assert lock.read(3) == b"sho"
    lock.close()


def test_refresh_sets_the_time_of_the_file_to_now(tmp_path: Path) -> None:
    lock = LockFile.open(tmp_path / "lock", create=True)
    os.utime(tmp_path / "lock", (1000, 1000))
    assert lock.modified_sec == 1000
    (tmp_path / "now").touch()
    lock.refresh()
    assert lock.modified_sec >= (tmp_path / "now").stat().st_mtime - 1
    lock.close()


def test_lock_file_detects_that_its_path_is_another_file(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = LockFile.open(path, create=True)
    assert lock.is_at(path)
    path.rename(tmp_path / "moved")
    assert not lock.is_at(path)
    path.touch()
    assert not lock.is_at(path)
    assert lock.is_at(tmp_path / "moved")
    assert not lock.is_at(tmp_path / "moved" / "below")
    lock.close()


def test_locked_folder_is_refused_and_released_after_an_error(tmp_path: Path) -> None:
    def lock_twice() -> None:
        with lock_folder(tmp_path), lock_folder(tmp_path, wait=False):
            pass

    with pytest.raises(BlockingIOError):
        lock_twice()
    with lock_folder(tmp_path, wait=False):
        pass


def test_folder_that_is_replaced_while_waiting_is_locked_itself(tmp_path: Path) -> None:
    folder, entered, may_leave = tmp_path / "folder", threading.Event(), threading.Event()
    folder.mkdir()

    def lock_in_turn() -> None:
        with lock_folder(folder):
            entered.set()
            may_leave.wait(30)

    thread = threading.Thread(target=lock_in_turn)
    with lock_folder(folder):
        thread.start()
        thread.join(0.1)  # the thread waits for the lock, or has not opened the folder yet
        assert not entered.is_set()
        folder.rename(tmp_path / "old")
        folder.mkdir()
    assert entered.wait(30)
    with lock_folder(tmp_path / "old", wait=False):  # only the new folder is locked
        pass
    with pytest.raises(BlockingIOError), lock_folder(folder, wait=False):
        pass
    may_leave.set()
    thread.join()
