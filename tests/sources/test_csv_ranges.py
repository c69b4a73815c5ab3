"""Ranges of any size give exactly the rows, positions and lines of a sequential read;
quotes, escapes, CRLF and rows without end included.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from csv_oracle import oracle_rows, physical_lines
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recordmill.base.errors import DataError
from recordmill.sources.csv.dialect import CsvOptions, Dialect
from recordmill.sources.csv.fields import Tokenizer, find_row_end
from recordmill.sources.csv.head import Head
from recordmill.sources.csv.ranges import Scan, ScannedRange, scan_files
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import stat

COLUMNS = 3

pieces = st.sampled_from(
    [
        b"a",
        b"1",
        b",",
        b",",
        b'"',
        b'"',
        b"\n",
        b"\n",
        b"\r",
        b"\r\n",
        b"\\",
        b"#",
        b" ",
        b"a,b,c\n",
        b'"a\n",b,c\n',
        b"x" * 61,
    ]
)
delimiters = st.sampled_from([",", ";", "\t", " "])
contents = st.lists(pieces, min_size=1, max_size=30).map(b"".join)
noisy = st.lists(pieces | st.sampled_from([b'"a', b'""', b"\n"]) | st.binary(max_size=2), max_size=40).map(b"".join)
dialects = st.builds(
    CsvOptions,
    quote=st.sampled_from(['"', '"', None]),
    doubled_quote=st.booleans(),
    lenient_quotes=st.booleans(),
    escape=st.sampled_from([None, None, "\\"]),
    comment=st.sampled_from([None, "#"]),
    trim=st.booleans(),
    max_row_bytes=st.sampled_from([1 << 20, 1 << 20, 70, 12, 3]),
)


def scanned(path: Path, options: CsvOptions, range_bytes: int, tail_bytes: int, threads: int) -> list[ScannedRange]:
    file = InputFile(0, path.name, str(path), stat(str(path)))
    head = Head("none", "utf-8", ",", tuple("abc"), 0, 1)
    scan = Scan(Dialect.of(options, ","), ("", "NA"), frozenset(), None, range_bytes, tail_bytes)
    return list(scan_files([file], [head], scan, threads))


def check_parts(content: bytes, options: CsvOptions, parts: list[ScannedRange], range_bytes: int) -> None:
    """The parts lie one behind the other, and each holds the rows that start in its range."""
    rows = oracle_rows(content, options)
    assert sum(part.rows for part in parts) == len(rows)
    assert parts[0].start == 0
    assert parts[-1].stop == len(content)
    line = 1
    for index, part in enumerate(parts):
        assert part.stop == (parts[index + 1].start if index + 1 < len(parts) else len(content))
        mine = [row for row in rows if part.start <= row.start < part.stop]
        assert part.rows == len(mine)
        assert all(row.start < (index + 1) * range_bytes for row in mine)
        if part.rows:
            assert line == 1 + physical_lines(content[: part.start])
        line += part.lines


@pytest.mark.sweep
@settings(max_examples=150, deadline=None)
@given(contents, dialects, st.data())
@example(b'"a\nb",c\n' * 3, CsvOptions(), None)
@example(b'"open\n' + b"a,b,c\n" * 9 + b'"x",y,z\n', CsvOptions(max_row_bytes=12), None)
@example(b"a,b,c\r\n" * 5 + b'"never\r\nclosed', CsvOptions(), None)
def test_every_split_point_gives_the_same_rows(content: bytes, options: CsvOptions, data: st.DataObject | None) -> None:
    sizes = (
        range(1, len(content) + 1)
        if data is None
        else sorted({data.draw(st.integers(1, len(content))) for _ in range(3)} | {1})
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.csv"
        path.write_bytes(content)
        for range_bytes in sizes:
            for tail_bytes, threads in ((1, 1), (3, 1), (1000, 1)):
                check_parts(content, options, scanned(path, options, range_bytes, tail_bytes, threads), range_bytes)


def test_ranges_are_scanned_at_once(tmp_path: Path) -> None:
    content = b'"a\n""b",c,d\nx,"y\r\n,",z\n' * 2000 + b'"open,1,2\n' + b"a,b,c\n" * 500
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    options = CsvOptions(max_row_bytes=200)
    sequential = scanned(path, options, len(content), 1, 1)
    assert sequential[0].rows == len(oracle_rows(content, options)) == 4501
    for threads in (2, 8):
        parts = scanned(path, options, 1000, 16, threads)
        check_parts(content, options, parts, 1000)
        total = parts[0].seen
        for part in parts[1:]:
            total = tuple(one + other for one, other in zip(total, part.seen, strict=True))
        assert total == sequential[0].seen


def test_a_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"a,b,c\n" * 1000)
    file = InputFile(0, path.name, str(path), stat(str(path)))
    path.write_bytes(b"a,b,c\n" * 10)
    head = Head("none", "utf-8", ",", tuple("abc"), 0, 1)
    scan = Scan(Dialect.of(CsvOptions(), ","), (), frozenset(), None, 500, 10)
    with pytest.raises(DataError, match=r"^in\.csv: changed while it was read"):
        list(scan_files([file], [head], scan, 2))


@settings(max_examples=400, deadline=None)
@given(noisy, dialects, delimiters)
@example(b'"a"\\"b\n",c\n', CsvOptions(escape="\\"), ",")
@example(b'"a""\nb"\n', CsvOptions(doubled_quote=False), ",")
@example(b'"a""\nb"\n', CsvOptions(), ",")
@example(b' "a\nb" \nc\n', CsvOptions(trim=True), ",")
@example(b"a\\\r\nb\r\n", CsvOptions(escape="\\"), ",")
def test_row_ends_are_those_of_the_tokenizer(content: bytes, options: CsvOptions, delimiter: str) -> None:
    """Ranges are cut by the one and read by the other."""
    dialect = Dialect.of(replace(options, max_row_bytes=1 << 20, lenient_quotes=True), delimiter)
    data = np.frombuffer(bytearray(content), np.uint8)
    tokenizer, at = Tokenizer(dialect, 256, 1, ragged=True), 0
    ends = [0]
    for final in (False, True):
        while True:
            found = find_row_end(data, dialect, at, at + 1, final=final)
            rows = tokenizer.read(data.copy(), at, at + 1, final=final)
            assert (found.stop, found.skipping, found.too_long) == (rows.stop, rows.skipping, len(rows.bad) > 0)
            if rows.stop == at or rows.skipping or len(rows.bad):
                break
            at = rows.stop
            ends.append(at)
    for limit in range(1, len(data) + 1):
        found = find_row_end(data, dialect, 0, limit, final=True)
        assert found.too_long or found.skipping or found.stop == next(end for end in ends if end >= limit)


@settings(max_examples=400, deadline=None)
@given(noisy, dialects)
def test_long_blocks_without_quotes_are_passed_over(content: bytes, options: CsvOptions) -> None:
    dialect = Dialect.of(replace(options, lenient_quotes=True), ",")
    data = np.frombuffer(bytearray(content + b"x,y,z\r\n" * 30 + content + b"x" * 200 + b"\n" + content), np.uint8)
    tokenizer, at, starts, skipping = Tokenizer(dialect, 256, 100, ragged=True), 0, [], False
    read = data.copy()
    while at < len(data) and (rows := tokenizer.read(read, at, len(data), final=True, skipping=skipping)):
        if len(rows.bad):
            assert find_row_end(data, dialect, at, len(data), final=True).too_long
            return
        at, skipping = rows.stop, rows.skipping
        starts.append(at)
    for limit in starts:
        assert find_row_end(data, dialect, 0, limit, final=True).stop == limit
