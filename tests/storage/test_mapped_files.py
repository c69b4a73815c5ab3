"""Many files are mapped into one array without a file descriptor for each."""

import gc
from pathlib import Path

import numpy as np
import pytest

from recordmill.base.errors import DataError
from recordmill.storage import mapped_files
from recordmill.storage.mapped_files import MappedFiles, release_all_pages

_SIZES = (1, 4096, 0, 70_001)


def _write_files(folder: Path) -> list[Path]:
    paths = [folder / f"file {number}" for number in range(len(_SIZES))]
    for number, (path, size) in enumerate(zip(paths, _SIZES, strict=True)):
        path.write_bytes(bytes([number + 1]) * size)
    return paths


def test_each_file_is_at_its_place_after_it_is_mapped(tmp_path: Path) -> None:
    paths = _write_files(tmp_path)
    files = MappedFiles(np.array([10_000, 4096, 100, 70_001]))
    assert len(files) == 4
    assert not files.data.any()
    for number in (3, 0, 2, 1):
        view = files.map(number, str(paths[number]))
        assert view.tobytes() == paths[number].read_bytes()
        begin = int(files.begins[number])
        assert files.data[begin : begin + len(view)].tobytes() == view.tobytes()
    assert int(files.data.sum()) == sum((number + 1) * size for number, size in enumerate(_SIZES))
    assert not files.data.flags.writeable


def test_view_outlives_the_object(tmp_path: Path) -> None:
    path = _write_files(tmp_path)[3]
    view = MappedFiles(np.array([70_001])).map(0, str(path))
    path.unlink()
    gc.collect()
    release_all_pages()
    assert view.tobytes() == bytes([4]) * 70_001


def test_released_pages_are_read_again(tmp_path: Path) -> None:
    path = _write_files(tmp_path)[3]
    files = MappedFiles(np.array([100, 70_001]))
    view = files.map(1, str(path))
    release_all_pages()
    assert view.tobytes() == bytes([4]) * 70_001


def test_missing_and_larger_files_are_errors(tmp_path: Path) -> None:
    files = MappedFiles(np.array([4096, 4096]))
    with pytest.raises(FileNotFoundError, match="missing"):
        files.map(0, str(tmp_path / "missing"))
    with pytest.raises(IsADirectoryError):
        files.map(0, str(tmp_path))
    path = tmp_path / "large"
    path.write_bytes(b"x" * 5000)
    with pytest.raises(DataError, match="has 5000 bytes, which is more than expected"):
        files.map(0, str(path))
    assert not files.data.any()


def test_room_is_limited_and_free_again_after_use(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    num_used = sum(len(files) for files in mapped_files._all_mapped_files)
    monkeypatch.setattr(mapped_files, "MAX_MAPPED_TOGETHER", num_used + 5)
    sizes = np.full(3, 4096)
    files = MappedFiles.reserve(sizes)
    assert files is not None
    assert MappedFiles.reserve(sizes) is None
    del files
    assert MappedFiles.reserve(sizes) is not None
    assert MappedFiles.reserve(np.array([1 << 60])) is None


def test_objects_in_stores_and_members_of_archives_are_not_mapped() -> None:
    assert MappedFiles.is_mappable("/data/a.tfrecord")
    assert not MappedFiles.is_mappable("s3://bucket/a.tfrecord")
    assert not MappedFiles.is_mappable("/data/a.tar!/a.tfrecord")
