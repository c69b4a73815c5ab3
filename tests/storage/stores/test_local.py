"""Local files are read by offset, and anything but a regular file is an error at once."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from recordmill.storage.stores import local
from recordmill.storage.stores.local import (
    LocalReader,
    LocalStorage,
    create_unnamed_file,
    map_open_file,
    open_regular,
    reserve_space,
)


def test_pipe_and_folder_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, number in ((tmp_path / "pipe", errno.EINVAL), (tmp_path, errno.EISDIR)):
        with pytest.raises(OSError, match=r"\[Errno") as caught:
            open_regular(path)
        assert caught.value.errno == number
        assert caught.value.errno in local.NOT_REGULAR_ERRNOS
        assert caught.value.filename == str(path)


@pytest.mark.parametrize("max_read_bytes", [1, 7, 1 << 30])
def test_reader_fills_a_buffer_up_to_the_end_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_read_bytes: int
) -> None:
    monkeypatch.setattr(local, "MAX_READ_BYTES", max_read_bytes)
    (tmp_path / "f").write_bytes(bytes(range(100)))
    reader = LocalReader(str(tmp_path / "f"))
    assert reader.fill(np.empty(30, np.uint8), 50).tobytes() == bytes(range(50, 80))
    assert reader.fill(np.empty(30, np.uint8), 90).tobytes() == bytes(range(90, 100))
    assert len(reader.fill(np.empty(30, np.uint8), 200)) == 0
    assert reader.stat().size_bytes == 100
    reader.close()


def test_failed_read_is_an_error_with_the_path(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "f", os.O_WRONLY | os.O_CREAT)
    reader = LocalReader("the path", descriptor)
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        reader.fill(np.empty(1, np.uint8), 0)
    assert caught.value.filename == "the path"
    reader.close()


@pytest.mark.parametrize("size_bytes", [0, 1, 4096, 3_000_001])
@pytest.mark.parametrize("allocates", [True, False])
def test_reserved_space_has_the_size_and_reads_as_zeros(
    monkeypatch: pytest.MonkeyPatch, size_bytes: int, allocates: bool
) -> None:
    if not allocates:
        monkeypatch.delattr(os, "posix_fallocate", raising=False)
    with create_unnamed_file() as file:
        reserve_space(file, size_bytes)
        mapped = map_open_file(file)
    assert len(mapped) == size_bytes  # also after the file was closed
    assert not mapped.any()
    assert not mapped.flags.writeable or size_bytes == 0


def test_storage_maps_and_lists_files(tmp_path: Path) -> None:
    storage = LocalStorage()
    for name in ("b", "a", ".c"):
        (tmp_path / name).write_bytes(name.encode())
    assert storage.list_names(str(tmp_path)) == [".c", "a", "b"]
    assert storage.map(str(tmp_path / "b")).tobytes() == b"b"
    assert storage.is_folder(str(tmp_path))
    assert not storage.is_file(str(tmp_path))
    assert not storage.exists(str(tmp_path / "none"))
    assert storage.stat(str(tmp_path / "a")) == storage.last_known_stat(str(tmp_path / "a"))
