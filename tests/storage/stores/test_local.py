"""Local files are read by offset.

A path that is not a regular file is an error at once.
"""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.base import native
from recordmill.base.errors import DataError
from recordmill.storage.stores import local
from recordmill.storage.stores.local import (
    LocalReader,
    LocalStorage,
    create_unnamed_file,
    map_open_file,
    open_regular,
    reserve_space,
)

CONTENT = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8)
SEEDS = st.integers(0, 100)
# Spans that are next to each other, repeat, overlap, are far apart, and are larger than a chunk.
SPANS = st.lists(
    st.tuples(st.integers(0, 150_000), st.sampled_from([0, 1, 300, 5_000, 70_000])), max_size=40
)


def test_pipe_and_folder_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, number in ((tmp_path / "pipe", errno.EINVAL), (tmp_path, errno.EISDIR)):
        with pytest.raises(OSError, match=r"\[Errno") as error:
            open_regular(path)
        assert error.value.errno == number
        assert error.value.errno in local.NOT_REGULAR_ERRNOS
        assert error.value.filename == str(path)


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
    with pytest.raises(OSError, match="Bad file descriptor") as error:
        reader.fill(np.empty(1, np.uint8), 0)
    assert error.value.filename == "the path"
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
        mapping = map_open_file(file)
    assert len(mapping) == size_bytes  # the mapping outlives the file
    assert not mapping.any()
    assert not mapping.flags.writeable or size_bytes == 0


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


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Returns three files with the same content."""
    folder = tmp_path_factory.mktemp("local")
    for number in range(3):
        (folder / f"ä {number}").write_bytes(CONTENT.tobytes())
    return [str(folder / f"ä {number}") for number in range(3)]


@given(spans=st.lists(SPANS, min_size=1, max_size=3), seed=SEEDS, is_sorted=st.booleans())
def test_spans_of_files_are_read_to_their_places(
    paths: list[str], spans: list[list[tuple[int, int]]], seed: int, is_sorted: bool
) -> None:
    rows = [
        row for file_spans in spans for row in (sorted(file_spans) if is_sorted else file_spans)
    ]
    starts, sizes = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
    order = np.random.default_rng(seed).permutation(len(rows))
    targets = np.zeros(len(rows), np.int64)
    targets[order] = np.cumsum(sizes[order]) - sizes[order]
    out = np.zeros(int(sizes.sum()), np.uint8)
    edges = np.cumsum([0, *map(len, spans)])
    LocalStorage().read_spans(paths[: len(spans)], edges, starts, sizes, out, targets)
    for start, size, target in zip(starts, sizes, targets, strict=True):
        assert (out[target : target + size] == CONTENT[start : start + size]).all()


@pytest.mark.parametrize("starts", [[0, 100, 299_990], [299_900, 299_990], [299_990], [400_000]])
def test_span_beyond_the_end_is_an_error_with_its_file_and_byte(
    paths: list[str], starts: list[int]
) -> None:
    sizes = np.full(len(starts) + 2, 20)
    end = max(300_000, starts[-1])
    edges = np.array([0, 1, len(starts) + 1, len(starts) + 2])
    message = f"{paths[1]}: ends at byte {end}, where {starts[-1] + 20} are needed"
    with pytest.raises(DataError, match=message):
        LocalStorage().read_spans(
            paths, edges, np.array([5, *starts, 5]), sizes, np.empty(20, np.uint8), 0 * sizes
        )


@pytest.mark.parametrize(
    ("kind", "error"), [("folder", IsADirectoryError), ("missing", FileNotFoundError)]
)
def test_file_that_cannot_be_read_is_an_error_with_its_name(
    tmp_path: Path, paths: list[str], kind: str, error: type[OSError]
) -> None:
    bad = tmp_path / "bad"
    if kind == "folder":
        bad.mkdir()
    ones = np.ones(3, np.int64)
    with pytest.raises(error) as caught:
        LocalStorage().read_spans(
            [paths[0], str(bad), paths[1]], np.arange(4), ones, ones, np.empty(2, np.uint8), ones
        )
    assert caught.value.filename == str(bad)


@pytest.mark.parametrize(
    ("edges", "starts", "sizes", "targets"),
    [
        ([0, 1], [-1], [1], [0]),
        ([0, 1], [0], [-1], [0]),
        ([0, 1], [0], [3], [0]),
        ([0, 1], [0], [1], [2]),
        ([0, 1], [2**62], [2**62], [0]),
        ([0, 1, 1], [0], [1], [0]),  # there is one path
        ([0, 2, 1], [0], [1], [0]),
        ([1, 1], [0], [1], [0]),
        ([0, 0], [0], [1], [0]),
        ([], [0], [1], [0]),
    ],
)
def test_spans_outside_of_the_arrays_are_refused(
    paths: list[str], edges: list[int], starts: list[int], sizes: list[int], targets: list[int]
) -> None:
    path = np.frombuffer(paths[0].encode() + b"\0", np.uint8)
    arrays = [np.array(numbers, np.int64) for numbers in (edges, starts, sizes, targets)]
    with pytest.raises(IndexError):
        native.read_spans(path, *arrays, np.empty(2, np.uint8))
    with pytest.raises(IndexError):
        native.read_spans(path[:-1], *arrays, np.empty(2, np.uint8))
