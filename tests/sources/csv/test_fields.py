"""CSV files have the rows of Python's csv module and a slow oracle.

This holds for blocks and ranges of any size.
"""

import csv
import gzip
import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kit.csv_contents import LONG, contents_of_lines, dialects, options, pieces
from kit.csv_oracle import Row, oracle_rows

import recordmill
from recordmill.base import native
from recordmill.sources.csv.fields import (
    MAX_BAD_ROWS,
    TokenizedRows,
    Tokenizer,
    find_row_end,
    read_rows,
)
from recordmill.sources.csv.options import CsvOptions

COLUMNS = 5

contents = st.lists(pieces, max_size=40).map(b"".join)


def to_oracle(
    data: np.ndarray, rows: TokenizedRows, first: int, begins: dict[int, int]
) -> Iterator[tuple[int, Row]]:
    """Converts rows of the tokenizer to rows of the oracle.

    Args:
        data: The tokenized bytes.
        rows: The result of the tokenizer.
        first: Number of the first row.
        begins: First byte of each row, by its number. A good row that is missing begins at -1.

    Yields:
        (number of the row, row).
    """
    for ordinal, line, start, width, _, _ in rows.bad_rows.tolist():
        assert (
            width in (native.CsvRowFault.TOO_LONG, native.CsvRowFault.STRAY_QUOTE)
            or width > COLUMNS
        )
        fields = (b"",) * width if width > 0 else None
        yield (
            first + ordinal,
            Row(start, line, fields, stray=width == native.CsvRowFault.STRAY_QUOTE),
        )
    for row, (ordinal, line, width) in enumerate(
        zip(rows.ordinals.tolist(), rows.lines.tolist(), rows.widths.tolist(), strict=True)
    ):
        spans = [
            (int(rows.starts[column, row]), int(rows.infos[column, row])) for column in range(width)
        ]
        fields = tuple(
            data[start : start + (info & native.FIELD_LENGTH_MASK)].tobytes()
            for start, info in spans
        )
        yield (
            first + ordinal,
            Row(
                begins.get(first + ordinal, -1),
                line,
                fields,
                tuple(bool(info & native.FIELD_QUOTED_BIT) for _, info in spans),
            ),
        )


def hide_extra_fields(row: Row, start: bool = True) -> Row:
    """Returns a row as the tokenizer reports it.

    A row with too many fields keeps only its position, its line and its number of fields.

    Args:
        row: A row of the oracle.
        start: Whether the result keeps the position of the row.
    """
    row = Row(row.start if start else 0, row.line, row.fields, row.quoted, row.stray)
    return (
        row
        if row.fields is None or len(row.fields) <= COLUMNS
        else Row(row.start, row.line, (b"",) * len(row.fields))
    )


def tokenize(
    content: bytes, options: CsvOptions, max_rows: int = 7, delimiter: str = ","
) -> list[Row]:
    tokenizer = Tokenizer(
        options.with_dialect(delimiter), COLUMNS, max_rows, allows_ragged_rows=True
    )
    data = np.frombuffer(bytearray(content), np.uint8)
    expected = dict(enumerate(row.start for row in oracle_rows(content, options, delimiter)))
    result: dict[int, Row] = {}
    position, line, first = 0, 1, 0
    while position < len(data):
        rows = tokenizer.read(data, position, len(data), is_final=True, line=line)
        assert rows.stop > position
        result.update(to_oracle(data, rows, first, expected))
        first += rows.num_rows
        position, line = rows.stop, rows.stop_line
    assert sorted(result) == list(range(first))
    return [result[ordinal] for ordinal in range(first)]


@settings(max_examples=200, deadline=None)
@given(contents, dialects)
@example(b'"a""b","c\r\nd",5" disk\n', CsvOptions())
@example(b'a\\,"b\n"c\\"d"\n', CsvOptions(escape="\\"))
@example(b'"a"\\b"\n', CsvOptions(escape="\\"))
@example(b'"open\n1,2\n"x",3\n', CsvOptions(max_line_bytes=12))
@example(b"a\\" + LONG + b"a,b\n", CsvOptions(escape="\\"))
@example(b'  "a" , b\t\n', CsvOptions(trim=True))
@example(LONG + b'"\n' + LONG + b',"' + LONG + b"\r\n" + LONG + b'""\r"\r\n', CsvOptions())
def test_tokenizer_equals_the_oracle(content: bytes, options: CsvOptions) -> None:
    assert tokenize(content, options) == [
        hide_extra_fields(row) for row in oracle_rows(content, options)
    ]


@settings(max_examples=150, deadline=None)
@given(
    contents,
    st.sampled_from(
        [
            CsvOptions(quote='"', lenient_quotes=True),
            CsvOptions(quote='"', lenient_quotes=True, escape="\\"),
            CsvOptions(quote='"', lenient_quotes=True, doubled_quote=False, escape="\\"),
            CsvOptions(quote=None),
        ]
    ),
)
def test_oracle_equals_the_csv_module(content: bytes, options: CsvOptions) -> None:
    rows = oracle_rows(content, options)
    if any(row.fields is None for row in rows):
        # Python reads an unclosed quote up to the end of the file, and recordmill rejects it
        return
    reader = csv.reader(
        io.StringIO(content.decode(), newline=""),
        quotechar=options.quote,
        quoting=csv.QUOTE_MINIMAL if options.quote else csv.QUOTE_NONE,
        doublequote=options.doubled_quote,
        escapechar=options.escape,
    )
    expected, line = [], 1
    for fields in reader:
        if fields:
            expected.append((line, tuple(field.encode() for field in fields)))
        line = reader.line_num + 1
    if options.escape is None:
        assert [(row.line, row.fields) for row in rows] == expected
    else:  # Python's reader treats an escaped CR as the end of an input line
        assert [row.fields for row in rows] == [fields for _, fields in expected]


@settings(max_examples=100, deadline=None)
@given(
    contents, dialects, st.sampled_from([1, 2, 3, 5, 16, 64, 100]), st.sampled_from([1, 10, 1000])
)
def test_size_of_blocks_does_not_change_the_rows(
    content: bytes, options: CsvOptions, block_bytes: int, chunk_bytes: int
) -> None:
    tokenizer = Tokenizer(options.with_dialect(","), COLUMNS, 7, allows_ragged_rows=True)
    blocks = (
        np.frombuffer(bytearray(content[begin : begin + block_bytes]), np.uint8)
        for begin in range(0, len(content), block_bytes)
    )
    result, first = [], 0
    for data, rows in read_rows(tokenizer, blocks, 0, 1, chunk_bytes):
        result.extend(
            drop_start(row)
            for _, row in sorted(to_oracle(data, rows, first, {}), key=lambda pair: pair[0])
        )
        first += rows.num_rows
    assert result == [drop_start(hide_extra_fields(row)) for row in oracle_rows(content, options)]


def drop_start(row: Row) -> Row:
    return Row(0, row.line, row.fields, row.quoted, row.stray)


def test_tokenizer_stops_at_its_limits() -> None:
    data = np.frombuffer(bytearray(b"a,b\nc,d\ne,f\n"), np.uint8)
    tokenizer = Tokenizer(CsvOptions().with_dialect(","), 2, 10)
    assert tokenizer.read(data, 0, 5, is_final=True).stop == 8
    assert tokenizer.read(data, 0, 4, is_final=True).num_rows == 1
    assert tokenizer.read(data, 4, 4, is_final=True).num_rows == 0


def test_many_bad_rows_are_returned_in_several_calls() -> None:
    count = MAX_BAD_ROWS + 10
    data = np.frombuffer(bytearray(b"x\n" * count + b"1,2\n"), np.uint8)
    tokenizer = Tokenizer(CsvOptions().with_dialect(","), 2, 10)
    first = tokenizer.read(data, 0, len(data), is_final=True)
    assert (first.num_rows, first.stop) == (MAX_BAD_ROWS, 2 * MAX_BAD_ROWS)
    second = tokenizer.read(data, first.stop, len(data), is_final=True, line=first.stop_line)
    assert second.bad_rows[:, 1].tolist() == list(range(MAX_BAD_ROWS + 1, count + 1))
    assert second.lines.tolist() == [count + 1]


delimiters = st.sampled_from([",", ";", "\t", " "])
noisy = st.lists(
    pieces | st.sampled_from([b'"a', b'""', b"\n"]) | st.binary(max_size=2), max_size=40
).map(b"".join)


@settings(max_examples=400, deadline=None)
@given(noisy, dialects, delimiters)
@example(b'"a"\\"b\n",c\n', CsvOptions(escape="\\"), ",")
@example(b'"a""\nb"\n', CsvOptions(doubled_quote=False), ",")
@example(b'"a""\nb"\n', CsvOptions(), ",")
@example(b' "a\nb" \nc\n', CsvOptions(trim=True), ",")
@example(b"a\\\r\nb\r\n", CsvOptions(escape="\\"), ",")
def test_row_ends_equal_those_of_the_tokenizer(
    content: bytes, options: CsvOptions, delimiter: str
) -> None:
    """`find_row_end` divides a file into ranges, which the tokenizer reads."""
    is_trimmed = options.trim and delimiter != " "
    dialect = replace(
        options, max_line_bytes=1 << 20, lenient_quotes=True, trim=is_trimmed
    ).with_dialect(delimiter)
    data = np.frombuffer(bytearray(content), np.uint8)
    tokenizer, position = Tokenizer(dialect, 256, 1, allows_ragged_rows=True), 0
    ends = [0]
    for is_final in (False, True):
        while True:
            row_end = find_row_end(data, dialect, position, position + 1, is_final=is_final)
            rows = tokenizer.read(data.copy(), position, position + 1, is_final=is_final)
            assert (row_end.stop, row_end.is_skipping, row_end.has_too_long_row) == (
                rows.stop,
                rows.is_skipping,
                len(rows.bad_rows) > 0,
            )
            if rows.stop == position or rows.is_skipping or len(rows.bad_rows):
                break
            position = rows.stop
            ends.append(position)
    for limit in range(1, len(data) + 1):
        row_end = find_row_end(data, dialect, 0, limit, is_final=True)
        assert (
            row_end.has_too_long_row
            or row_end.is_skipping
            or row_end.stop == next(end for end in ends if end >= limit)
        )


@settings(max_examples=400, deadline=None)
@given(noisy, dialects)
def test_row_ends_after_long_blocks_without_quotes_are_right(
    content: bytes, options: CsvOptions
) -> None:
    dialect = replace(options, lenient_quotes=True).with_dialect(",")
    data = np.frombuffer(
        bytearray(content + b"x,y,z\r\n" * 30 + content + b"x" * 200 + b"\n" + content), np.uint8
    )
    tokenizer, position, starts, is_skipping = (
        Tokenizer(dialect, 256, 100, allows_ragged_rows=True),
        0,
        [],
        False,
    )
    tokenizer_data = data.copy()
    while position < len(data) and (
        rows := tokenizer.read(
            tokenizer_data, position, len(data), is_final=True, is_skipping=is_skipping
        )
    ):
        if len(rows.bad_rows):
            assert find_row_end(data, dialect, position, len(data), is_final=True).has_too_long_row
            return
        position, is_skipping = rows.stop, rows.is_skipping
        starts.append(position)
    for limit in starts:
        assert find_row_end(data, dialect, 0, limit, is_final=True).stop == limit


@settings(max_examples=100, deadline=None)
@given(contents_of_lines, options, st.integers(1, 70), st.sampled_from([1, 10, 1000]))
def test_single_column_lines_are_the_same_in_blocks_of_any_size(
    content: bytes, options: CsvOptions, block_bytes: int, chunk_bytes: int
) -> None:
    tokenizer = Tokenizer(options.with_dialect(","), 1, 7, allows_ragged_rows=True)
    blocks = (
        np.frombuffer(bytearray(content[begin : begin + block_bytes]), np.uint8)
        for begin in range(0, len(content), block_bytes)
    )
    result = sorted(
        int(line)
        for _, rows in read_rows(tokenizer, blocks, 0, 1, chunk_bytes)
        for line in [*rows.lines.tolist(), *(bad_row[1] for bad_row in rows.bad_rows.tolist())]
    )
    assert result == sorted(row.line for row in oracle_rows(content, options, columns=1))


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_nulls_of_a_single_column_survive_a_round_trip(tmp_path: Path, newline: str) -> None:
    values = [None, "1", None, None, "2", None]
    with open(tmp_path / "in.csv", "w", newline="") as file:
        csv.writer(file, lineterminator=newline).writerows([["x"], *([value] for value in values)])
    text = (tmp_path / "in.csv").read_text().replace('""', "")
    (tmp_path / "blank.csv").write_bytes(text.replace("\n", newline).encode())
    for name in ("in", "blank"):
        recordmill.build(
            tmp_path / f"{name}.csv", tmp_path / name, shuffle=False, splits="all=1", header=True
        )
        dataset = recordmill.open(tmp_path / name)
        assert dataset.to_table()["x"].to_pylist() == [
            None if value is None else int(value) for value in values
        ]


@pytest.mark.parametrize("is_compressed", [False, True])
def test_skipped_blank_lines_are_noted(tmp_path: Path, is_compressed: bool) -> None:
    contents = {
        "a.csv": b"\n\nx,y\n1,2\n\n3,4\n\n\n",
        "a.jsonl": b'\n{"x": 1}\n  \n{"x": 2}\n\n\n\n',
        "a.txt": b"\n" * 5 + b"a\nb\n",
    }
    for name, content in contents.items():
        path = tmp_path / (f"{name}.gz" if is_compressed else name)
        path.write_bytes(gzip.compress(content) if is_compressed else content)
        options = (
            {"header": True}
            if name == "a.csv"
            else {"blank_lines": False}
            if name == "a.txt"
            else {}
        )
        result = recordmill.build(path, tmp_path / f"of-{name}", **options)
        assert sum(result.records.values()) == 2
        note = f"blank lines, which are not records (5): {path.name}"
        assert note in result.notes
        assert note in result.manifest.statistics["notes"]
