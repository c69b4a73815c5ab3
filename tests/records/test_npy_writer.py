"""Batches to `.npy` files: np.load opens them, open_columns gives the values that went in, and names can't collide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from made_data_set import MIXED, mixed_rows

from recordmill.base.errors import DataError
from recordmill.records.writers.npy import COLUMNS_NAME, NpyWriter, file_stem, open_columns, part_names
from recordmill.records.writers.npy_file import NpyFile, npy_header
from recordmill.schemas.feature import Feature, Schema


def write(folder: Path, sizes: tuple[int, ...]) -> None:
    writer = NpyWriter(folder, MIXED)
    at = 0
    for size in sizes:
        for batch in mixed_rows(size, at).combine_chunks().to_batches():
            writer.write(batch)
        at += size
    writer.close()


@pytest.mark.parametrize("sizes", [(57,), (1, 0, 30, 26), ()])
@pytest.mark.parametrize("mmap", [True, False])
def test_columns_come_back_whatever_the_batches(tmp_path: Path, sizes: tuple[int, ...], mmap: bool) -> None:
    write(tmp_path, sizes)
    columns = open_columns(tmp_path, mmap)
    rows = sum(sizes)
    expected = mixed_rows(rows)
    assert list(columns) == list(MIXED.names)
    assert columns["id"].tolist() == expected["id"].to_pylist()
    assert columns["matrix"].shape == (rows, 2, 3)
    assert columns["matrix"].reshape(rows, 6).tolist() == expected["matrix"].to_pylist()
    assert columns["small"].dtype == np.uint8
    assert columns["exact"].dtype == np.float64
    assert columns["when"].dtype == "datetime64[us]"
    for text in ("name", "payload"):
        assert columns[text].to_list() == expected[text].to_pylist()
    for name in ("tokens", "words", "boxes"):
        found = [None if row is None else list(row) if name == "words" else row.tolist() for row in columns[name]]
        assert found == expected[name].to_pylist()
    nested = [None if row is None else [inner.tolist() for inner in row] for row in columns["nested"]]
    assert nested == expected["nested"].to_pylist()
    assert columns["maybe"].tolist() == expected["maybe"].to_pylist()
    assert columns["flag"].tolist() == expected["flag"].to_pylist()


def test_plain_numpy_opens_every_file(tmp_path: Path) -> None:
    write(tmp_path, (20, 20))
    about = json.loads((tmp_path / COLUMNS_NAME).read_text())
    assert about["rows"] == 40
    named = {name for column in about["columns"].values() for name in column["files"].values()}
    assert named == {path.name for path in tmp_path.glob("*.npy")}
    for name in named:
        assert np.load(tmp_path / name, mmap_mode="r").flags.c_contiguous
    splits = np.load(tmp_path / "tokens.row_splits.npy")
    assert splits[0] == 0
    assert np.load(tmp_path / "tokens.values.npy").shape == (splits[-1],)
    assert np.load(tmp_path / "maybe.valid.npy").tolist() == [
        value is not None for value in mixed_rows(40)["maybe"].to_pylist()
    ]


def test_same_bytes_for_other_batches(tmp_path: Path) -> None:
    for name, sizes in (("one", (33,)), ("many", (5, 5, 0, 23))):
        (tmp_path / name).mkdir()
        write(tmp_path / name, sizes)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "many" / path.name).read_bytes()


def test_names_are_safe_distinct_and_reversible() -> None:
    names = ["a/b", "a%2Fb", "a.b", "a", "../up", "ü", "x" * 300, "x" * 299 + "y", "", " ", "~", "a.values"]
    features = [Feature(name, "string", (None,)) for name in names]
    files = [name for feature in features for name in part_names(feature).values()]
    assert len(set(files)) == len(files)
    assert all("/" not in name and not name.startswith(".") and len(name.encode()) < 250 for name in files)
    for name in names:
        assert not name or len(name) > 200 or unquote(file_stem(name)) == name


def test_a_file_that_was_not_closed_is_refused_by_numpy(tmp_path: Path) -> None:
    file = NpyFile(tmp_path / "x.npy", np.dtype(np.int32), (3,))
    file.append(np.zeros((2, 3), np.int32))
    file.abort()
    with pytest.raises(ValueError, match=r"pickle|magic"):
        np.load(tmp_path / "x.npy", mmap_mode="r")


def test_header_is_numpys_own(tmp_path: Path) -> None:
    for dtype, shape in ((np.dtype("<f4"), (7, 2)), (np.dtype("datetime64[us]"), (0,)), (np.dtype(bool), (3,))):
        (tmp_path / "a.npy").write_bytes(npy_header(dtype, shape, 192) + bytes(int(np.prod(shape)) * dtype.itemsize))
        loaded = np.load(tmp_path / "a.npy")
        assert (loaded.dtype, loaded.shape) == (dtype, shape)


def test_rows_of_another_shape_are_refused(tmp_path: Path) -> None:
    file = NpyFile(tmp_path / "x.npy", np.dtype(np.int32), (3,))
    with pytest.raises(ValueError, match="do not fit"):
        file.append(np.zeros((2, 4), np.int32))
    file.abort()


def test_a_folder_without_columns_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=str(tmp_path)):
        open_columns(tmp_path)


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY\x01\x00\xff\xff{", b"PK\x03\x04", b"\x80\x04N."])
def test_a_file_that_is_no_npy_is_an_error(tmp_path: Path, data: bytes) -> None:
    write(tmp_path, (5,))
    (tmp_path / "id.npy").write_bytes(data)
    with pytest.raises(DataError, match=str(tmp_path)):
        open_columns(tmp_path)


@pytest.mark.parametrize(
    ("name", "array", "both"),
    [
        ("id.npy", np.zeros(0), ("float64 [0]", "int64 [5]")),
        ("id.npy", np.array(["a"] * 5), ("<U1 [5]", "int64 [5]")),
        ("id.npy", np.zeros(4, np.int64), ("int64 [4]", "int64 [5]")),
        ("matrix.npy", np.zeros((5, 3, 2), np.float32), ("[5, 3, 2]", "[5, 2, 3]")),
        ("maybe.valid.npy", np.ones(5, np.int64), ("int64 [5]", "bool [5]")),
        ("maybe.valid.npy", np.ones(3, np.bool_), ("bool [3]", "bool [5]")),
        ("tokens.row_splits.npy", np.zeros(6), ("float64 [6]", "int64 [6]")),
        ("tokens.row_splits.npy", np.zeros(3, np.int64), ("int64 [3]", "int64 [6]")),
        ("nested.row_splits_1.npy", np.zeros(90, np.int64), ("int64 [90]", "int64 [")),
        ("name.values.npy", np.zeros(9999, np.uint8), ("uint8 [9999]", "uint8 [")),
        ("words.values.npy", np.zeros(9999, np.int8), ("int8 [9999]", "uint8 [")),
    ],
)
@pytest.mark.parametrize("mmap", [True, False])
def test_a_file_of_another_dtype_or_number_of_rows_is_an_error(
    tmp_path: Path, name: str, array: Any, both: tuple[str, str], mmap: bool
) -> None:
    write(tmp_path, (5,))
    np.save(tmp_path / name, array)
    with pytest.raises(DataError) as caught:
        open_columns(tmp_path, mmap)
    assert caught.value.source == str(tmp_path / name)
    assert all(figure in str(caught.value) for figure in both)


def test_no_features(tmp_path: Path) -> None:
    NpyWriter(tmp_path, Schema(())).close()
    assert open_columns(tmp_path) == {}
