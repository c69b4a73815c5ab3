"""What is read of many files at once is what they hold, and a fault names the file."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recordmill.base.errors import DataError
from recordmill.storage.file_table import FileTable, InputFile, coded_of, counted
from recordmill.storage.files import Stat, read_files, stat

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
        for _ in read_files(files, into):
            pass
    except DataError as error:
        return str(error)
    return into.tobytes()


def open_below(folder: Path) -> list[str]:
    """The files below it that this process has open."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return [path for link in links if os.path.islink(link) and (path := os.readlink(link)).startswith(str(folder))]


def test_the_bytes(tmp_path: Path) -> None:
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
        (lambda path: os.utime(path, ns=(1, 1_234_567_890_123_456_789)), r"changed .* \(100 bytes before, 100 now\)"),
    ],
)
def test_faults(tmp_path: Path, fault: Callable[[str], None], said: str) -> None:
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
        InputFile(at // 20, f"{at:03d}\udcff", f"/in/{at:03d}\udcff", Stat(at, -at, f"{at}")) for at in range(count)
    ]
    return [InputFile(0, "a/link", "/elsewhere/\udcfe", Stat(1, 1)), *found[1:]]


def test_a_table_is_read_at_any_place_and_travels() -> None:
    files = listed_of_listed(50)
    held = FileTable.of(iter(files))
    for one in (held, pickle.loads(pickle.dumps(held))):
        assert (len(one), list(one)) == (50, files)
        assert [one[at] for at in (49, 0, 17, 16, -2)] == [files[at] for at in (49, 0, 17, 16, 48)]
        assert list(one.some([31, 2, 2, 48])) == [files[at] for at in (31, 2, 2, 48)]
        assert one[3:40] == tuple(files[3:40])
        assert (one.size_bytes, one.sizes.tolist()) == (sum(range(50)) + 1, [1, *range(1, 50)])
        assert [(file.root, file.name) for file in files] == list(one.named())
    assert list(FileTable.of([])) == []


@settings(deadline=None)
@given(data=st.data(), words=st.lists(st.sampled_from(["a", "b", None, "c"]), max_size=30))
def test_chosen_files_and_their_columns_are_those_of_lists(data: Any, words: list[str | None]) -> None:
    files = [InputFile(0, f"{at}", f"/in/{at}", Stat(at, at)) for at in range(len(words))]
    numbers = list(range(len(words)))
    one = FileTable.of(files).with_column("number", pa.array(numbers)).with_splits(coded_of(words, len(words)))
    for _ in range(3):
        keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(files), max_size=len(files))), np.bool_)
        one = one.filter(keep)
        files, words, numbers = (
            [v for v, kept in zip(some, keep, strict=True) if kept] for some in (files, words, numbers)
        )
        split = [InputFile(f.root, f.name, f.path, f.stat, word) for f, word in zip(files, words, strict=True)]
        assert list(one) == split == [one[at] for at in range(len(files))] == list(one[:])
        assert one.splits.to_pylist() == words
        assert one.words("split").to_pylist() == [w for w in one.words("split").to_pylist() if w in words]
        assert counted(one.splits) == {word: words.count(word) for word in dict.fromkeys(words)}
        asked = data.draw(st.lists(st.integers(0, len(files) - 1), max_size=9)) if files else []
        taken = one.take(asked, ("number", "split"))
        assert taken["number"].to_pylist() == [numbers[at] for at in asked]
        assert taken["split"].to_pylist() == [words[at] for at in asked]
        if files:
            assert one != one.with_column("number", pa.array([-1] * len(files)))
