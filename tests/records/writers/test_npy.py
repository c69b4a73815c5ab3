"""NumPy opens every written `.npy` file with the rows of the batches.

Wrong and unfinished files are refused.
"""

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pytest
from kit.batches import plain
from kit.data_sets import MIXED, mixed_rows, plain_columns

from recordmill.base.errors import DataError
from recordmill.records.columns.numpy_arrays import gather_columns
from recordmill.records.writers.npy import (
    COLUMNS_NAME,
    NpyWriter,
    column_file_names,
    open_columns,
    to_file_stem,
)
from recordmill.records.writers.npy_file import NpyFile, make_npy_header
from recordmill.schemas.arrow import arrow_type, to_arrow, value_type
from recordmill.schemas.feature import Feature, Schema


def write(folder: Path, sizes: tuple[int, ...]) -> None:
    writer = NpyWriter(folder, MIXED)
    begin = 0
    for size in sizes:
        for batch in mixed_rows(size, begin).combine_chunks().to_batches():
            writer.write(batch)
        begin += size
    writer.close()


@pytest.mark.parametrize("sizes", [(57,), (1, 0, 30, 26), ()])
@pytest.mark.parametrize("mmap", [True, False])
def test_npy_columns_equal_the_rows_for_any_batch_sizes(
    tmp_path: Path, sizes: tuple[int, ...], mmap: bool
) -> None:
    write(tmp_path, sizes)
    columns = open_columns(tmp_path, mmap)
    assert list(columns) == list(MIXED.names)
    expected = plain_columns(mixed_rows(sum(sizes)))
    assert {name: [plain(row) for row in column] for name, column in columns.items()} == expected
    assert columns["matrix"].shape == (sum(sizes), 2, 3)
    dtypes = {name: columns[name].dtype for name in ("small", "exact", "when")}
    assert dtypes == {"small": np.uint8, "exact": np.float64, "when": "datetime64[us]"}


def test_plain_numpy_opens_every_npy_file(tmp_path: Path) -> None:
    write(tmp_path, (20, 20))
    description = json.loads((tmp_path / COLUMNS_NAME).read_text())
    assert description["rows"] == 40
    names = {
        name for column in description["columns"].values() for name in column["files"].values()
    }
    assert names == {path.name for path in tmp_path.glob("*.npy")}
    for name in names:
        assert np.load(tmp_path / name, mmap_mode="r").flags.c_contiguous
    splits = np.load(tmp_path / "tokens.row_splits.npy")
    assert splits[0] == 0
    assert np.load(tmp_path / "tokens.values.npy").shape == (splits[-1],)
    assert np.load(tmp_path / "maybe.valid.npy").tolist() == [
        value is not None for value in mixed_rows(40)["maybe"].to_pylist()
    ]


def test_npy_file_names_are_safe_distinct_and_reversible() -> None:
    names = [
        "a/b",
        "a%2Fb",
        "a.b",
        "a",
        "../up",
        "ü",
        "x" * 300,
        "x" * 299 + "y",
        "",
        " ",
        "~",
        "a.values",
    ]
    features = [Feature(name, "string", (None,)) for name in names]
    files = [name for feature in features for name in column_file_names(feature).values()]
    assert len(set(files)) == len(files)
    assert all(
        "/" not in name and not name.startswith(".") and len(name.encode()) < 250 for name in files
    )
    for name in names:
        assert not name or len(name) > 200 or unquote(to_file_stem(name)) == name


def test_aborted_npy_file_is_refused_by_numpy(tmp_path: Path) -> None:
    file = NpyFile(tmp_path / "x.npy", np.dtype(np.int32), (3,))
    file.append(np.zeros((2, 3), np.int32))
    file.abort()
    with pytest.raises(ValueError, match=r"pickle|magic"):
        np.load(tmp_path / "x.npy", mmap_mode="r")


def test_npy_header_is_read_by_numpy(tmp_path: Path) -> None:
    for dtype, shape in (
        (np.dtype("<f4"), (7, 2)),
        (np.dtype("datetime64[us]"), (0,)),
        (np.dtype(bool), (3,)),
    ):
        (tmp_path / "a.npy").write_bytes(
            make_npy_header(dtype, shape, 192) + bytes(int(np.prod(shape)) * dtype.itemsize)
        )
        array = np.load(tmp_path / "a.npy")
        assert (array.dtype, array.shape) == (dtype, shape)


def test_npy_rows_of_another_shape_are_refused(tmp_path: Path) -> None:
    file = NpyFile(tmp_path / "x.npy", np.dtype(np.int32), (3,))
    with pytest.raises(ValueError, match="do not fit"):
        file.append(np.zeros((2, 4), np.int32))
    file.abort()


def test_open_columns_of_a_folder_without_columns_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=str(tmp_path)):
        open_columns(tmp_path)


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY\x01\x00\xff\xff{", b"PK\x03\x04", b"\x80\x04N."])
def test_open_columns_refuses_a_file_that_is_not_npy(tmp_path: Path, data: bytes) -> None:
    write(tmp_path, (5,))
    (tmp_path / "id.npy").write_bytes(data)
    with pytest.raises(DataError, match=str(tmp_path)):
        open_columns(tmp_path)


@pytest.mark.parametrize(
    ("name", "array", "types"),
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
def test_open_columns_refuses_an_array_of_another_type_or_length(
    tmp_path: Path, name: str, array: Any, types: tuple[str, str], mmap: bool
) -> None:
    write(tmp_path, (5,))
    np.save(tmp_path / name, array)
    with pytest.raises(DataError) as error:
        open_columns(tmp_path, mmap)
    assert error.value.source == str(tmp_path / name)
    assert all(text in str(error.value) for text in types)


def test_schema_without_features_writes_no_npy_columns(tmp_path: Path) -> None:
    NpyWriter(tmp_path, Schema(())).close()
    assert open_columns(tmp_path) == {}


def test_dimensions_of_0_keep_their_shape(tmp_path: Path) -> None:
    features = (
        Feature("x", "float32", (5, 0)),
        Feature("s", "string", (0,), required=True),
        Feature("y", "int8", (0,)),
    )
    schema = Schema(features)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.Array.from_buffers(
                arrow_type(feature), 4, [None], children=[pa.array([], value_type(feature))]
            )
            for feature in features
        ],
        schema=to_arrow(schema),
    )
    writer = NpyWriter(tmp_path, schema)
    for _ in range(2):
        writer.write(batch)
    writer.close()
    expected = {"x": (8, 5, 0), "s": (8, 0), "y": (8, 0)}
    assert {name: np.shape(column) for name, column in open_columns(tmp_path).items()} == expected
    columns = gather_columns([batch, batch], schema, 8)
    assert {name: np.shape(column) for name, column in columns.items()} == expected
