"""Other programs read the `.npy`, Parquet, Arrow and CSV files, and what a format can't hold is
refused.
"""

import json
import os.path
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kit.batches import plain, table_of
from kit.data_sets import MIXED, mixed_rows, plain_columns

from recordmill.base.errors import DataError
from recordmill.records.columns.numpy_arrays import gather_columns
from recordmill.records.writers.arrow import ArrowWriter
from recordmill.records.writers.csv import CsvWriter
from recordmill.records.writers.files import (
    MAX_COMPONENT_BYTES,
    MAX_NAME_BYTES,
    add_extension,
    detect_extension,
    make_alternative_name,
    to_safe_name,
)
from recordmill.records.writers.npy import (
    COLUMNS_NAME,
    NpyWriter,
    column_file_names,
    open_columns,
    to_file_stem,
)
from recordmill.records.writers.npy_file import NpyFile, make_npy_header
from recordmill.records.writers.parquet import ParquetWriteOptions, ParquetWriter, to_parquet_schema
from recordmill.schemas.arrow import arrow_type, from_arrow, to_arrow, value_type
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
        loaded = np.load(tmp_path / "a.npy")
        assert (loaded.dtype, loaded.shape) == (dtype, shape)


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
def test_open_columns_refuses_an_array_of_another_type_or_length(
    tmp_path: Path, name: str, array: Any, both: tuple[str, str], mmap: bool
) -> None:
    write(tmp_path, (5,))
    np.save(tmp_path / name, array)
    with pytest.raises(DataError) as caught:
        open_columns(tmp_path, mmap)
    assert caught.value.source == str(tmp_path / name)
    assert all(figure in str(caught.value) for figure in both)


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
            pa.Array.from_buffers(arrow_type(f), 4, [None], children=[pa.array([], value_type(f))])
            for f in features
        ],
        schema=to_arrow(schema),
    )
    writer = NpyWriter(tmp_path, schema)
    for _ in range(2):
        writer.write(batch)
    writer.close()
    wanted = {"x": (8, 5, 0), "s": (8, 0), "y": (8, 0)}
    assert {name: np.shape(column) for name, column in open_columns(tmp_path).items()} == wanted
    gathered = gather_columns([batch, batch], schema, 8)
    assert {name: np.shape(column) for name, column in gathered.items()} == wanted


# Batches to Parquet and Arrow files
ODD = Schema(
    (
        Feature("tensor", "float32", (2, 2)),
        Feature("none", "float32", (0,)),
        Feature("s", "timestamp[s]"),
        Feature("h", "float16"),
        Feature("b", "bfloat16", (3,)),
        Feature("text", "string", (2,)),
        Feature("u", "uint64"),
        Feature("list", "int64", (None, 3, 2)),
        Feature("a.b/c", "int64", (), True),
    ),
    message="Example",
)
ODD_ROWS = {
    "tensor": [[1.0, 2, 3, 4], None],
    "none": [[], None],
    "s": [1, None],
    "h": [np.float16(1.5), None],
    "b": [[1.0, 2, 3], None],
    "text": [["a", "b"], None],
    "u": [2**64 - 1, None],
    "list": [[[1] * 6], None],
    "a.b/c": [1, 2],
}


def odd_table() -> pa.Table:
    return table_of(ODD_ROWS, ODD)


@pytest.mark.parametrize(
    ("schema", "table"), [(MIXED, mixed_rows(40)), (ODD, odd_table())], ids=["mixed", "odd"]
)
def test_parquet_and_arrow_files_keep_values_and_schema(
    tmp_path: Path, schema: Schema, table: pa.Table
) -> None:
    for writer in (
        ParquetWriter(tmp_path / "x.parquet", schema),
        ArrowWriter(tmp_path / "x.arrow", schema),
    ):
        for batch in table.combine_chunks().to_batches():
            writer.write(batch)
            writer.write(batch.slice(1, 1))
        writer.close()
        assert writer.rows == table.num_rows + 1
    expected = pa.concat_tables([table, table.slice(1, 1)])
    found = pq.read_table(tmp_path / "x.parquet")
    for name in schema.names:
        assert found[name].to_pylist() == expected[name].to_pylist(), name
    assert from_arrow(found.schema) == schema
    assert pa.ipc.open_file(tmp_path / "x.arrow").read_all().equals(expected)
    assert from_arrow(pa.ipc.open_file(tmp_path / "x.arrow").schema) == schema


def test_parquet_columns_have_real_types() -> None:
    fields = to_parquet_schema(MIXED)
    assert fields.field("id").type == pa.int64()
    assert fields.field("matrix").type == pa.list_(pa.float32(), 6)
    assert fields.field("boxes").type == pa.large_list(pa.list_(pa.float32(), 4))
    assert to_parquet_schema(ODD).field("tensor").type == pa.large_list(pa.float32())


def test_parquet_row_groups_follow_group_bytes(tmp_path: Path) -> None:
    writer = ParquetWriter(tmp_path / "x.parquet", MIXED, ParquetWriteOptions(group_bytes=4000))
    (batch,) = mixed_rows(100).combine_chunks().to_batches()
    for at in range(0, 100, 10):
        writer.write(batch.slice(at, 10))
    writer.close()
    about = pq.ParquetFile(tmp_path / "x.parquet").metadata
    assert 2 <= about.num_row_groups < 10
    assert about.num_rows == 100
    assert about.row_group(0).column(0).statistics.min == 0


def test_aborted_parquet_file_cannot_be_opened(tmp_path: Path) -> None:
    writer = ParquetWriter(tmp_path / "x.parquet", MIXED)
    for batch in mixed_rows(10).combine_chunks().to_batches():
        writer.write(batch)
    writer.abort()
    with pytest.raises(pa.ArrowInvalid):
        pq.read_table(tmp_path / "x.parquet")


def test_parquet_file_without_rows_is_valid(tmp_path: Path) -> None:
    ParquetWriter(tmp_path / "x.parquet", MIXED).close()
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 0


# Times that CSV can't hold end a read to it
SCHEMA = Schema((Feature("n", "int64"), Feature("t", "timestamp[s]", required=False)))
FIRST, LAST = (
    int(np.datetime64(text, "s").astype(int))
    for text in ("0001-01-01T00:00:00", "9999-12-31T23:59:59")
)


def test_csv_writes_times_of_years_1_to_9999_and_refuses_others(tmp_path: Path) -> None:
    for name, beyond in (("before", FIRST - 1), ("after", LAST + 1)):
        writer = CsvWriter(tmp_path / f"{name}.csv", SCHEMA)
        for times in ([FIRST, None, LAST], [0, beyond]):
            batch = pa.record_batch(
                [list(range(len(times))), pa.array(times, pa.timestamp("s"))], to_arrow(SCHEMA)
            )
            if beyond not in times:
                writer.write(batch)
                continue
            with pytest.raises(
                DataError, match=r"feature 't': the time of row 4 is outside of the years 1 to 9999"
            ):
                writer.write(batch)
        writer.close()
        lines = (tmp_path / f"{name}.csv").read_text().splitlines()
        assert lines == ['"n","t"', "0,0001-01-01 00:00:00", "1,", "2,9999-12-31 23:59:59"]


# Names of files that come from data
PARTS = st.one_of(
    st.sampled_from(["..", ".", "", "a", "train", "val", "C:", "x" * 254, "ü" * 130]),
    st.text(max_size=6),
)
NAMES = st.one_of(st.text(max_size=12), st.lists(PARTS, min_size=1, max_size=5).map("/".join))


@given(name=NAMES, split=st.sampled_from([None, "train", "validation", "fold1"]))
@example(name="..", split=None)
@example(name="train/..", split="train")
@example(name="./C:x", split=None)
@example(name="train/C:x", split="train")
def test_safe_name_stays_below_its_folder(name: str, split: str | None) -> None:
    safe = to_safe_name(name, split)
    if safe is None:
        return
    assert os.path.normpath(safe) == safe
    assert not os.path.isabs(safe)
    assert safe not in ("", ".")
    parts = safe.split("/")
    assert ".." not in parts
    assert not set(safe) & set("\0\n\\")
    assert max(len(part.encode()) for part in parts) <= MAX_COMPONENT_BYTES
    assert len(safe.encode()) <= MAX_NAME_BYTES
    assert to_safe_name(safe) == safe
    if split is None:
        assert safe == os.path.normpath(name)


@pytest.mark.parametrize(
    "name",
    [
        "3/0217.png",
        "a b/ü.JPG",
        ".hidden",
        "a.b.c",
        "ab:c.jpg",
        "x" * 255,
        "-",
        "..a",
        "a..",
        "metadata.jsonl",
        "~",
    ],
)
def test_usual_file_name_is_not_changed(name: str) -> None:
    assert to_safe_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "./",
        "/",
        "/etc/passwd",
        "..",
        "a/..",
        "../a",
        "a/../b",
        "a\\b",
        "C:\\a",
        "c:a",
        "D:/a",
        "a/",
        "a\0",
        "a\nb",
        "\x7f",
        "x" * 256,
        "ü" * 128,
    ],
)
def test_unsafe_file_name_is_none(name: str) -> None:
    assert to_safe_name(name) is None
    assert to_safe_name("/".join(["x" * 200] * 6)) is None


@pytest.mark.parametrize(
    ("name", "split", "expected"),
    [
        ("train/cat/1.jpg", "train", "cat/1.jpg"),
        ("val/cat/1.jpg", "validation", "cat/1.jpg"),
        ("images/Test/cat/1.jpg", "test", "images/cat/1.jpg"),
        ("train2017/1.jpg", "train", "1.jpg"),
        (
            "my-test.set/train/1.jpg",
            "train",
            "my-test.set/1.jpg",
        ),  # whole names count before words in names
        ("train/val/1.jpg", "validation", "train/val/1.jpg"),  # the outermost one said the split
        ("test/1.jpg", "train", "test/1.jpg"),
        ("fold1/1.jpg", "fold1", "1.jpg"),
        ("train", "train", "train"),  # a file
        ("cat/train.jpg", "train", "cat/train.jpg"),
    ],
)
def test_folder_of_the_split_is_left_out_of_a_file_name(
    name: str, split: str, expected: str
) -> None:
    assert to_safe_name(name, split) == expected
    assert to_safe_name(name) == name


@given(name=NAMES, number=st.integers(0, 10**12), attempt=st.integers(0, 3))
def test_alternative_name_is_different_and_safe(name: str, number: int, attempt: int) -> None:
    safe = to_safe_name(name)
    other = None if safe is None else make_alternative_name(safe, number, attempt)
    if safe is None or other is None:
        return
    assert other != safe
    assert to_safe_name(other) == other
    assert os.path.dirname(other) == os.path.dirname(safe)
    assert str(number) in other
    assert other != make_alternative_name(safe, number, attempt + 1)
    assert other != make_alternative_name(safe, number + 1, attempt)


def test_alternative_name_keeps_the_extension() -> None:
    assert make_alternative_name("a.b/c.tar.gz", 5, 0) == "a.b/c.tar-5.gz"
    assert make_alternative_name("a.b/c", 5, 0) == "a.b/c-5"
    assert make_alternative_name(".hidden", 5, 0) == ".hidden-5"
    assert make_alternative_name("x" * 254, 5, 0) is None


def test_extension_follows_the_content() -> None:
    heads = {
        b"\xff\xd8\xff\xe0": "jpg",
        b"\x89PNG\r\n\x1a\n": "png",
        b"GIF89a": "gif",
        b"RIFF\0\0\0\0WEBPVP8 ": "webp",
        b"II*\0": "tif",
        b"BM\0": "bin",
        b"": "bin",
    }
    assert {head: detect_extension(head, False) for head in heads} == heads
    assert detect_extension(b"text", True) == "txt"
    assert [
        add_extension(name, "jpg") for name in ("a/b.c/d", "d.jpeg", "d.JPG", "d.txt", ".jpg")
    ] == [
        "a/b.c/d.jpg",
        "d.jpeg",
        "d.JPG",
        "d.txt.jpg",
        ".jpg.jpg",
    ]
    assert [add_extension(name, "txt") for name in ("a", "a.md", "a.")] == [
        "a.txt",
        "a.md",
        "a..txt",
    ]
