"""Files are read in bulk, listed in tables, and created exactly once, never outside their
folder.
"""

import errno
import os
import pickle
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.files import tree

from recordmill.base.errors import DataError
from recordmill.sources.common.small_files import read_files
from recordmill.storage import disk_files
from recordmill.storage.disk_files import FILE_CREATED, NAME_TAKEN, NAME_UNFIT, NewFiles
from recordmill.storage.file_table import FileTable, InputFile, count_column_values, encode_column
from recordmill.storage.files import (
    Stat,
    atomic_write,
    put_if_absent,
    stat,
    sync_file,
    sync_folder,
)

Listed = list[tuple[str, Stat, str]]


def listed(folder: Path) -> Listed:
    """Files of several sizes, one empty and one whose name is no UTF-8."""
    names = [f"{size}".encode() for size in (1, 100, 4096, 70_001)] + [b"caf\xe9", b"empty"]
    found = []
    for number, name in enumerate(names):
        path = os.path.join(os.fsencode(folder), name)
        with open(path, "wb") as file:
            file.write(os.urandom(0 if name == b"empty" else int(name) if name.isdigit() else 5))
        text = os.fsdecode(path)
        found.append((text, stat(text), f"name {number}"))
    return found


def outcome(files: Listed) -> bytes | str:
    into = np.zeros(sum(about.size_bytes for _, about, _ in files), np.uint8)
    try:
        inputs = [InputFile(0, name, path, about) for path, about, name in files]
        for _ in read_files(inputs, into):
            pass
    except DataError as error:
        return str(error)
    return into.tobytes()


def open_below(folder: Path) -> list[str]:
    """The files below it that this process has open."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return [
        path
        for link in links
        if os.path.islink(link) and (path := os.readlink(link)).startswith(str(folder))
    ]


def test_read_files_returns_the_bytes_of_all_files(tmp_path: Path) -> None:
    files = listed(tmp_path)
    for some in (files, files[::-1], files[:1], [], files * 3):
        assert outcome(some) == b"".join(Path(path).read_bytes() for path, _, _ in some)
    assert not open_below(tmp_path)


def _shorter(path: str) -> None:
    about = os.stat(path)
    os.truncate(path, 50)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def _longer(path: str) -> None:
    with open(path, "ab") as file:
        file.write(b"x")


def _folder(path: str) -> None:
    os.unlink(path)
    os.mkdir(path)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (os.unlink, "can't be read: No such file or directory"),
        (_folder, "can't be read: Is a directory"),
        (_shorter, r"changed while it was read \(100 bytes before, 50 now\)"),
        (_longer, r"changed while it was read \(100 bytes before, 101 now\)"),
        (
            lambda path: os.utime(path, ns=(1, 1_234_567_890_123_456_789)),
            r"changed .* \(100 bytes before, 100 now\)",
        ),
    ],
)
def test_missing_changed_or_unreadable_file_is_an_error_with_its_name(
    tmp_path: Path, fault: Callable[[str], None], said: str
) -> None:
    files = listed(tmp_path)
    fault(files[1][0])
    found = outcome(files)
    assert isinstance(found, str)
    assert re.search(said, found)
    assert "name 1" in found
    assert not open_below(tmp_path)


# Tables of input files against lists of them
def listed_of_listed(count: int) -> list[InputFile]:
    """Files of which one name is not UTF-8, and one path does not end with its name."""
    found = [
        InputFile(at // 20, f"{at:03d}\udcff", f"/in/{at:03d}\udcff", Stat(at, -at, f"{at}"))
        for at in range(count)
    ]
    return [InputFile(0, "a/link", "/elsewhere/\udcfe", Stat(1, 1)), *found[1:]]


def test_file_table_equals_the_list_of_files_also_when_pickled() -> None:
    files = listed_of_listed(50)
    held = FileTable.from_files(iter(files))
    for one in (held, pickle.loads(pickle.dumps(held))):
        assert (len(one), list(one)) == (50, files)
        assert [one[at] for at in (49, 0, 17, 16, -2)] == [files[at] for at in (49, 0, 17, 16, 48)]
        assert list(one.items_at([31, 2, 2, 48])) == [files[at] for at in (31, 2, 2, 48)]
        assert one[3:40] == tuple(files[3:40])
        assert (one.size_bytes, one.sizes.tolist()) == (sum(range(50)) + 1, [1, *range(1, 50)])
        assert [(file.root, file.name) for file in files] == list(one.roots_and_names())
    assert list(FileTable.from_files([])) == []


@settings(deadline=None)
@given(data=st.data(), words=st.lists(st.sampled_from(["a", "b", None, "c"]), max_size=30))
def test_selected_rows_and_columns_of_a_file_table_equal_those_of_lists(
    data: Any, words: list[str | None]
) -> None:
    files = [InputFile(0, f"{at}", f"/in/{at}", Stat(at, at)) for at in range(len(words))]
    numbers = list(range(len(words)))
    one = (
        FileTable.from_files(files)
        .with_column("number", pa.array(numbers))
        .with_splits(encode_column(words, len(words)))
    )
    for _ in range(3):
        keep = np.array(
            data.draw(st.lists(st.booleans(), min_size=len(files), max_size=len(files))), np.bool_
        )
        one = one.filter(keep)
        files, words, numbers = (
            [v for v, kept in zip(some, keep, strict=True) if kept]
            for some in (files, words, numbers)
        )
        split = [
            InputFile(f.root, f.name, f.path, f.stat, word)
            for f, word in zip(files, words, strict=True)
        ]
        assert list(one) == split == [one[at] for at in range(len(files))] == list(one[:])
        assert one.splits.to_pylist() == words
        assert one.dictionary_values("split").to_pylist() == [
            w for w in one.dictionary_values("split").to_pylist() if w in words
        ]
        assert count_column_values(one.splits) == {
            word: words.count(word) for word in dict.fromkeys(words)
        }
        asked = data.draw(st.lists(st.integers(0, len(files) - 1), max_size=9)) if files else []
        taken = one.take_columns(asked, ("number", "split"))
        assert taken["number"].to_pylist() == [numbers[at] for at in asked]
        assert taken["split"].to_pylist() == [words[at] for at in asked]
        if files:
            assert one != one.with_column("number", pa.array([-1] * len(files)))


# `NewFiles`
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
    with pytest.raises(ValueError, match="no name of a file"):
        files.create(name, b"x")
    assert [path.name for path in tmp_path.rglob("*")] == ["new"]


def test_new_files_raise_other_errors_of_the_system(files: NewFiles, tmp_path: Path) -> None:
    files.close()
    with pytest.raises(OSError, match="descriptor"):
        files.create("a", b"x")


def test_new_files_sync_everything_if_there_is_no_syncfs(
    files: NewFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []
    monkeypatch.setattr(disk_files.ctypes, "CDLL", lambda *args, **kwargs: object())
    monkeypatch.setattr(disk_files.os, "sync", lambda: called.append(1))
    files.sync()
    assert called == [1]


# Creating a file exactly once, on file systems with hard links and on those without
def _refuse(*args: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_put_if_absent_lets_exactly_one_writer_create_the_file(
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
    for call, named in (
        (lambda: sync_file(path), path),
        (lambda: sync_folder(tmp_path), tmp_path),
        (lambda: write(tmp_path / "new"), tmp_path / "new"),
        (lambda: put_if_absent(tmp_path / "other", b"x"), tmp_path / "other"),
    ):
        with pytest.raises(OSError, match="Input/output error") as error:
            call()
        assert error.value.filename == str(named)
