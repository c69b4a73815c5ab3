"""Blank lines: nulls of a table of one column, no rows of any other, however the file is cut."""

from __future__ import annotations

import csv
import gzip
import tempfile
from pathlib import Path

import numpy as np
import pytest
from csv_oracle import oracle_rows
from hypothesis import given, settings
from hypothesis import strategies as st

import recordmill
from recordmill.sources.csv.dialect import CsvOptions, Dialect
from recordmill.sources.csv.fields import Tokenizer, read_rows
from recordmill.sources.csv.head import Head
from recordmill.sources.csv.ranges import Scan, scan_files
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import stat

pieces = st.sampled_from([b"\n", b"\n", b"\r\n", b"\r\n", b"\r", b"1", b"ab", b'"a\r\n"', b'""', b"#c", b"x" * 61])
contents = st.lists(pieces, min_size=1, max_size=30).map(b"".join)
options = st.builds(
    CsvOptions,
    comment=st.sampled_from([None, "#"]),
    trim=st.booleans(),
    escape=st.sampled_from([None, "\\"]),
    max_row_bytes=st.sampled_from([1 << 20, 12]),
)


@settings(max_examples=100, deadline=None)
@given(contents, options, st.integers(1, 70), st.sampled_from([1, 10, 1000]))
def test_blocks_of_any_size_give_the_oracle_s_rows(
    content: bytes, options: CsvOptions, block_bytes: int, chunk_bytes: int
) -> None:
    tokenizer = Tokenizer(Dialect.of(options, ","), 1, 7, ragged=True)
    blocks = (
        np.frombuffer(bytearray(content[at : at + block_bytes]), np.uint8) for at in range(0, len(content), block_bytes)
    )
    found = sorted(
        int(line)
        for _, rows in read_rows(tokenizer, blocks, 0, 1, chunk_bytes)
        for line in [*rows.lines.tolist(), *(bad[1] for bad in rows.bad.tolist())]
    )
    assert found == sorted(row.line for row in oracle_rows(content, options, columns=1))


@settings(max_examples=100, deadline=None)
@given(contents, options, st.integers(1, 40), st.sampled_from([1, 3, 1000]))
def test_ranges_of_any_size_give_the_oracle_s_rows(
    content: bytes, options: CsvOptions, range_bytes: int, tail_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.csv"
        path.write_bytes(content)
        file = InputFile(0, path.name, str(path), stat(str(path)))
        scan = Scan(Dialect.of(options, ","), ("",), frozenset(), None, range_bytes, tail_bytes)
        parts = list(scan_files([file], [Head("none", "utf-8", ",", ("a",), 0, 1)], scan, 1))
    rows = oracle_rows(content, options, columns=1)
    assert [part.rows for part in parts] == [sum(part.start <= row.start < part.stop for row in rows) for part in parts]
    assert sum(part.rows for part in parts) == len(rows)


@settings(max_examples=100, deadline=None)
@given(contents, st.integers(1, 40), st.sampled_from([1, 3, 1000]))
def test_blank_lines_are_counted_once_however_the_file_is_cut(
    content: bytes, range_bytes: int, tail_bytes: int
) -> None:
    options = CsvOptions()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.csv"
        path.write_bytes(content)
        file = InputFile(0, path.name, str(path), stat(str(path)))
        head = Head("none", "utf-8", ",", ("a", "b"), 0, 1)
        scans = (
            Scan(Dialect.of(options, ","), ("",), frozenset(), None, *sizes)
            for sizes in ((range_bytes, tail_bytes), (1000, 1000))
        )
        found = [sum(part.blank_lines for part in scan_files([file], [head], scan, 1)) for scan in scans]
    of_one, of_two = (len(oracle_rows(content, options, columns=columns)) for columns in (1, 2))
    assert found == [of_one - of_two] * 2


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_nulls_of_one_column_come_back(tmp_path: Path, newline: str) -> None:
    values = [None, "1", None, None, "2", None]
    with open(tmp_path / "in.csv", "w", newline="") as file:
        csv.writer(file, lineterminator=newline).writerows([["x"], *([value] for value in values)])
    text = (tmp_path / "in.csv").read_text().replace('""', "")
    (tmp_path / "blank.csv").write_bytes(text.replace("\n", newline).encode())
    for name in ("in", "blank"):
        recordmill.build(tmp_path / f"{name}.csv", tmp_path / name, shuffle=False, splits="all=1", header=True)
        dataset = recordmill.open(tmp_path / name)
        assert dataset.to_table()["x"].to_pylist() == [None if value is None else int(value) for value in values]


def test_blank_lines_of_two_columns_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(b"x,y\n1,2\n\n3,4\n\n\n")
    recordmill.build(tmp_path / "in.csv", tmp_path / "out", shuffle=False, splits="all=1", header=True)
    assert len(recordmill.open(tmp_path / "out")) == 2


@pytest.mark.parametrize("compressed", [False, True])
def test_blank_lines_that_are_no_records_are_said(tmp_path: Path, compressed: bool) -> None:
    """Of every kind that has lines; before a header, too."""
    blank = {
        "a.csv": b"\n\nx,y\n1,2\n\n3,4\n\n\n",
        "a.jsonl": b'\n{"x": 1}\n  \n{"x": 2}\n\n\n\n',
        "a.txt": b"\n" * 5 + b"a\nb\n",
    }
    for name, content in blank.items():
        path = tmp_path / (f"{name}.gz" if compressed else name)
        path.write_bytes(gzip.compress(content) if compressed else content)
        options = {"header": True} if name == "a.csv" else {"blank_lines": False} if name == "a.txt" else {}
        built = recordmill.build(path, tmp_path / f"of-{name}", **options)
        assert sum(built.records.values()) == 2
        said = f"blank lines, which are no records (5): {path.name}"
        assert said in built.notes
        assert said in built.manifest.statistics["notes"]
