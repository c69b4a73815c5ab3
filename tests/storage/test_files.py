"""What is read of many files at once is what they hold, and a fault names the file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from recordmill.base.errors import DataError
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


def test_the_bytes(tmp_path: Path) -> None:
    files = listed(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for some in (files, files[::-1], files[:1], [], files * 3):
        assert outcome(some) == b"".join(Path(path).read_bytes() for path, _, _ in some)
    assert len(os.listdir("/proc/self/fd")) == before


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
    before = len(os.listdir("/proc/self/fd"))
    found = outcome(files)
    assert isinstance(found, str)
    assert re.search(said, found)
    assert "name 1" in found
    assert len(os.listdir("/proc/self/fd")) == before
