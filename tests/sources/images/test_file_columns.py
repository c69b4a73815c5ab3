"""With `--file-column`, records contain the files that a table names."""

import io
import json
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from kit import image_samples
from kit.files import npy

import recordmill
from recordmill.base.errors import RecordmillError, UsageError
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards.rejects import TooManyRejects

PNG, JPEG = image_samples.encode_image("PNG"), image_samples.encode_image("JPEG")
WIDTH, HEIGHT = image_samples.SIZE
ALL = {"photo": "image", "mask": "mask", "emb": "npy", "raw": "bytes", "cap": "text"}


def lay_out(folder: Path, files: dict[str, bytes], rows: list[dict[str, Any]]) -> Path:
    """Writes `files` below `folder`, and `rows` as CSV, Parquet and JSON Lines tables.

    Returns:
        The folder of the tables, which is folder/tables.
    """
    for name in ("files", "tables"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    table, path = pa.Table.from_pylist(rows), folder / "tables"
    pyarrow.csv.write_csv(table, path / "t.csv")
    pq.write_table(table, path / "t.parquet", row_group_size=7)
    (path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return path


def write(folder: Path, count: int, *changes: dict[str, Any], files: Any = ()) -> Path:
    """Writes files and tables of `count` records.

    Args:
        changes: Changed values. The first record is repeated with each of these dicts.
        files: More files by name.
    """
    rows, contents = [], dict(files)
    for number in range(count):
        array, text = npy(np.full((2, 3), number, np.float32)), f"größe {number}".encode()
        record_files = {
            "jpg": JPEG + bytes(number),
            "png": PNG,
            "npy": array,
            "bin": bytes([number] * number),
            "txt": text,
        }
        contents |= {f"files/{number}.{ending}": data for ending, data in record_files.items()}
        paths = (f"../files/{number}.{ending}" for ending in record_files)
        rows.append({"id": number, **dict(zip(ALL, paths, strict=True))})
    return lay_out(folder, contents, rows + [rows[0] | change for change in changes])


def build(inputs: Any, out: Path, *columns: str, **options: Any) -> Any:
    options = {"shuffle": False, "name": "t", "file_columns": columns, **options}
    return recordmill.build(inputs, out, **options)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_records_get_the_content_of_named_files(kind: str, tmp_path: Path) -> None:
    write(tmp_path / "in", 40, {"id": 40, "cap": None})
    shards, columns = [], [f"{name}={form}" for name, form in ALL.items()]
    for options in ({"threads": 1}, {"threads": 4, "memory": "128MiB"}, {"runner": "DirectRunner"}):
        result = build(
            tmp_path / "in", tmp_path / f"out{len(shards)}", *columns, kind=kind, **options
        )
        shards.append([path.read_bytes() for path in result.shards])
    assert shards[1:] == shards[:1] * 2
    assert result.schema["emb"] == Feature("emb", "float32", (2, 3), required=True)
    for index, row in enumerate(recordmill.open(tmp_path / "out0").to_table().to_pylist()):
        number = index % 40
        assert row.pop("emb") == [number] * 6
        assert row == {
            "id": index,
            "photo": JPEG + bytes(number),
            "mask": PNG,
            "raw": bytes([number] * number),
            "cap": None if index == 40 else f"größe {number}",
            "photo/format": "JPEG",
            "photo/height": HEIGHT,
            "photo/width": WIDTH,
            "photo/channels": 3,
            "photo/source": f"files/{number}.jpg",
        }


def test_hostile_and_broken_file_names_are_rejects(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(PNG)
    no_rows, shape = io.BytesIO(), {"descr": "<f4", "fortran_order": False, "shape": (0, 10**19)}
    np.lib.format.write_array_header_1_0(no_rows, shape)
    small_image = image_samples.encode_image("PNG", image_samples.picture(size=(5, 5)))
    files = {
        "files/cut.jpg": JPEG[:50],
        "files/other.png": small_image,
        "files/bad.npy": npy([{}], allow_pickle=True),
        "files/flat.npy": npy(np.zeros(6, np.float32)),
        "files/latin.txt": b"gr\xf6\xdfe",
        "files/point.npy": npy(np.array(["a"])).replace(b"a\0\0\0", b"\xff" * 4),
        "files/zero.npy": no_rows.getvalue(),
        "files/wide.npy": npy(np.full((2, 3), 1e300)),
        "files/long.npy": npy(np.zeros((2, 4), np.float32)),
    }
    cases = {
        "../../secret.png": ("photo", "is not below the INPUT"),
        str(tmp_path / "secret.png"): ("photo", "is not below the INPUT"),
        "../files/link.png": ("photo", "is a link out of the INPUT; follow_links=True allows it"),
        "../files/away/secret.png": ("photo", "is a link out of the INPUT"),
        "../files/odd!/secret.png": ("photo", "is a link out of the INPUT"),
        "../files/away.zip!/secret.png": ("photo", "is not below the INPUT"),
        "../files/pipe": ("photo", "is not a regular file"),
        "../files/none.jpg": ("photo", "no such file"),
        "x" * 300: ("photo", "no such file"),
        "../files/cut.jpg": ("photo", "files/cut.jpg: the segment at byte 20"),
        "../files/other.png": ("mask", "files/other.png: 5 x 5 pixels, and the image 17 x 23"),
        "../files/bad.npy": ("emb", "files/bad.npy: holds Python objects"),
        "../files/flat.npy": (
            "emb",
            "files/flat.npy: an array of float32[6], where float32 [2, 3]",
        ),
        "../files/wide.npy": (
            "emb",
            "files/wide.npy: 1e+300 in an array of float64[2, 3] does not fit float32",
        ),
        "../files/long.npy": ("emb", "does not have the shape of float32 [2, 3]"),
        "../files/point.npy": ("emb", "files/point.npy: an array of <U1[1]"),
        "../files/zero.npy": ("emb", "files/zero.npy: "),
        "../files/latin.txt": ("cap", "files/latin.txt: is not UTF-8"),
    }
    tables = write(
        tmp_path / "in", 1, *({column: value} for value, (column, _) in cases.items()), files=files
    )
    for name, target in (
        ("link.png", "secret.png"),
        ("away", ""),
        ("odd!", ""),
        ("away.zip", "away.zip"),
    ):
        (tmp_path / "in/files" / name).symlink_to(tmp_path / target)
    with zipfile.ZipFile(tmp_path / "away.zip", "w") as archive:
        archive.writestr("secret.png", PNG)
    os.mkfifo(tmp_path / "in/files/pipe")
    columns, dtypes = [f"{name}={form}" for name, form in ALL.items()], {"emb": "float32[2,3]"}
    result = build(
        tables.parent / "*/t.csv",
        tmp_path / "out",
        *columns,
        dtypes=dtypes,
        max_rejects=len(cases),
    )
    assert result.records == {"train": 1}
    rejects = [
        json.loads(line) for path in result.rejects for line in Path(path).read_text().splitlines()
    ]
    for number, (reject, (value, (column, message))) in enumerate(
        zip(rejects, cases.items(), strict=True)
    ):
        assert (reject["source"], reject["place"]) == (
            "tables/t.csv",
            f"line {number + 3}, row {number + 1}",
        )
        assert re.search(f"^{column}: .*{re.escape(message)}", reject["message"]), value
    with pytest.raises(
        TooManyRejects, match=r"line 3, row 1: photo: '../../secret.png': is not below the INPUT"
    ):
        build(tables / "t.csv", tmp_path / "no", "photo")
    (tables / "l.csv").write_text("photo\nfar.png\n")
    (tables / "far.png").symlink_to(tmp_path / "secret.png")
    assert build(tables / "l.csv", tmp_path / "far", "photo", follow_links=True).records == {
        "train": 1
    }


def test_table_in_an_archive_names_members_of_the_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("t/a.csv", "raw,n\n../x.bin,1\n../../x.bin,2\nnone,3\n../large.bin,4\n")
        archive.writestr("x.bin", b"abc")
        archive.writestr("large.bin", bytes(17 << 20))
    result = build(tmp_path / "a.zip", tmp_path / "out", "raw=bytes", kind="csv", max_rejects=3)
    assert recordmill.open(tmp_path / "out").to_table().to_pylist() == [{"raw": b"abc", "n": 1}]
    messages = "".join(Path(path).read_text() for path in result.rejects)
    assert re.search("not below the INPUT.*\n.*not a member.*\n.*unpack the archive", messages)


@pytest.mark.parametrize(
    ("arrays", "expected"),
    [
        ([np.zeros((2, 3)), np.zeros((5, 3), np.float32)], "float64 [?, 3]"),
        ([np.float32(1), np.int8(2)], "float32"),
        (
            [np.array(["a", "\ud800"]), np.array(["d"])],
            "1 of 2 records was rejected (reason: wrong type)",
        ),
        ([np.zeros(2, "datetime64[s]")] * 2, "timestamp[s] [2]"),
        (
            [np.zeros((2, 3)), np.zeros(3)],
            "1.npy: 'x' is float64 [3] here, but float64 [2, 3] in 0.npy",
        ),
        (
            [np.zeros(2), np.array(["a", "b"])],
            "1.npy: 'x' is string [2] here, but float64 [2] in 0.npy",
        ),
    ],
)
def test_arrays_of_files_get_the_dtype_that_holds_all(
    arrays: list[Any], expected: str, tmp_path: Path
) -> None:
    files = {f"tables/{index}.npy": npy(array) for index, array in enumerate(arrays)}
    tables = lay_out(tmp_path, files, [{"x": f"{index}.npy"} for index in range(len(arrays))])
    if len(expected) > 20:
        with pytest.raises(RecordmillError, match=re.escape(expected)):
            build(tables / "t.csv", tmp_path / "out", "x=npy")
        return
    assert build(tables / "t.csv", tmp_path / "out", "x=npy").schema["x"].describe() == expected
    for record, array in zip(recordmill.open(tmp_path / "out"), arrays, strict=True):
        assert np.array_equal(
            np.asarray(record["x"]).reshape(array.shape).astype(array.dtype), array
        )


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (np.array([0.5, 1]), np.array([2**53 + 1, 1]), "9007199254740993 in an array of int64[2]"),
        (np.array([0.5]), np.array([2**64 - 1], np.uint64), "18446744073709551615 in an array"),
        (np.array(0.5), np.array(-(2**53) - 1), "-9007199254740993 in an array of int64[]"),
    ],
)
def test_integers_that_float64_cannot_hold_are_rejects(
    first: Any, second: Any, message: str, tmp_path: Path
) -> None:
    files = {"tables/0.npy": npy(first), "tables/1.npy": npy(second)}
    tables = lay_out(tmp_path, files, [{"x": "0.npy"}, {"x": "1.npy"}])
    build(tables / "t.csv", tmp_path / "out", "x=npy", max_rejects=1)
    assert np.array_equal(recordmill.open(tmp_path / "out")[0]["x"], first)
    (rejects,) = (tmp_path / "out" / "rejects").iterdir()
    assert message in rejects.read_text()
    assert "does not fit float64" in rejects.read_text()


def test_array_of_nat_is_null(tmp_path: Path) -> None:
    times = np.array(["2020-01-01", "NaT"], "M8[D]")
    files = {f"tables/{index}.npy": npy(times[index, ...]) for index in range(2)}
    tables = lay_out(tmp_path, files, [{"x": "0.npy"}, {"x": "1.npy"}])
    build(tables / "t.csv", tmp_path / "out", "x=npy")
    assert [row["x"] for row in recordmill.open(tmp_path / "out")] == [times[0], None]
    schema = Schema((Feature("x", "timestamp[s]", required=True),))
    build(tables / "t.csv", tmp_path / "out2", "x=npy", schema=schema, max_rejects=1)
    (rejects,) = (tmp_path / "out2" / "rejects").iterdir()
    assert "is NaT" in rejects.read_text()


def test_schema_and_options_apply_to_file_columns(tmp_path: Path) -> None:
    tables = write(tmp_path / "in", 3)
    schema = Schema(
        (Feature("photo/width", "int32"), Feature("photo", "bytes"), Feature("id", "int64"))
    )
    result = build(tmp_path / "in", tmp_path / "out", "photo", kind="jsonl", schema=schema)
    assert [*recordmill.open(tmp_path / "out")[1].values()] == [WIDTH, JPEG + b"\0", 1]
    assert result.schema.names == schema.names
    for columns, options, message in (
        (
            "photo=jpeg",
            {},
            "--file-column photo=jpeg: write COLUMN or COLUMN=FORM, where FORM is one of image",
        ),
        ("photo", {"label": "photo"}, "--label photo: a column of files can't be the label"),
        ("q", {}, "--file-column: no column 'q'; there are id"),
        (
            "photo",
            {"names": ["photo", "photo/width", *"abcd"]},
            "the table has a column 'photo/width'",
        ),
        ("photo", {"if_changed": True}, "--if-changed and --file-column exclude each other"),
    ):
        with pytest.raises(UsageError, match=message):
            build(tables / "t.csv", tmp_path / "no", columns, **options)


@pytest.mark.parametrize("option", ["file_columns", "parse", "columns"])
def test_dict_instead_of_a_list_is_refused(option: str, tmp_path: Path) -> None:
    """A dict is a collection of its keys, so its values would be lost."""
    (tmp_path / "in.csv").write_text("a,b\n1,2\n")
    values = {option: {"a": "npy"}}
    with pytest.raises(TypeError, match=f"{option} is text or a list of texts, not {{'a': 'npy'}}"):
        recordmill.build(tmp_path / "in.csv", tmp_path / "out", **values)  # type: ignore[arg-type]
