"""The tokenizer against Python's csv module and against the slow oracle, on every kind of dialect, buffer and block."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import numpy as np
import pytest
from csv_oracle import Row, oracle_rows
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recordmill.base import native
from recordmill.sources.csv.dialect import CsvOptions, Dialect
from recordmill.sources.csv.fields import BAD_ROWS, TokenizedRows, Tokenizer, read_rows

COLUMNS = 5
LONG = b"x" * 61  # pushes what follows across the 64-byte blocks

pieces = st.sampled_from(
    [b"a", b"1", b",", b",", b'"', b'"', b"\n", b"\n", b"\r", b"\r\n", b"\\", b"#", b" ", b"\t", LONG, b"\xc3\xa9"]
)
contents = st.lists(pieces, max_size=40).map(b"".join)
dialects = st.builds(
    CsvOptions,
    quote=st.sampled_from(['"', '"', "'", None]),
    doubled_quote=st.booleans(),
    lenient_quotes=st.booleans(),
    escape=st.sampled_from([None, None, "\\"]),
    comment=st.sampled_from([None, "#"]),
    trim=st.booleans(),
    max_row_bytes=st.sampled_from([1 << 20, 100, 12, 3]),
)


def to_oracle(
    data: np.ndarray, rows: TokenizedRows, first: int, starts_of_rows: dict[int, int]
) -> Iterator[tuple[int, Row]]:
    """(ordinal, row) of what the tokenizer gives;
    its good rows don't know their first byte, so the oracle's stands in.
    """
    for ordinal, line, start, width, _, _ in rows.bad.tolist():
        assert width in (native.CSV_TOO_LONG, native.CSV_STRAY_QUOTE) or width > COLUMNS
        fields = (b"",) * width if width > 0 else None
        yield first + ordinal, Row(start, line, fields, stray=width == native.CSV_STRAY_QUOTE)
    for row, (ordinal, line, width) in enumerate(
        zip(rows.ordinals.tolist(), rows.lines.tolist(), rows.widths.tolist(), strict=True)
    ):
        spans = [(int(rows.starts[c, row]), int(rows.infos[c, row])) for c in range(width)]
        fields = tuple(data[start : start + (info & native.FIELD_LENGTH)].tobytes() for start, info in spans)
        yield (
            first + ordinal,
            Row(
                starts_of_rows.get(first + ordinal, -1),
                line,
                fields,
                tuple(bool(info & native.FIELD_QUOTED) for _, info in spans),
            ),
        )


def without_wide(row: Row, start: bool = True) -> Row:
    """What the tokenizer says about a row of too many fields: how many they are. start: as well as where it starts."""
    row = Row(row.start if start else 0, row.line, row.fields, row.quoted, row.stray)
    return (
        row if row.fields is None or len(row.fields) <= COLUMNS else Row(row.start, row.line, (b"",) * len(row.fields))
    )


def tokenized(content: bytes, options: CsvOptions, most_rows: int = 7, delimiter: str = ",") -> list[Row]:
    tokenizer = Tokenizer(Dialect.of(options, delimiter), COLUMNS, most_rows, ragged=True)
    data = np.frombuffer(bytearray(content), np.uint8)
    expected = dict(enumerate(row.start for row in oracle_rows(content, options, delimiter)))
    found: dict[int, Row] = {}
    at, line, first = 0, 1, 0
    while at < len(data):
        rows = tokenizer.read(data, at, len(data), final=True, line=line)
        assert rows.stop > at
        found.update(to_oracle(data, rows, first, expected))
        first += rows.count
        at, line = rows.stop, rows.line
    assert sorted(found) == list(range(first))
    return [found[ordinal] for ordinal in range(first)]


@settings(max_examples=200, deadline=None)
@given(contents, dialects)
@example(b'"a""b","c\r\nd",5" disk\n', CsvOptions())
@example(b'a\\,"b\n"c\\"d"\n', CsvOptions(escape="\\"))
@example(b'"a"\\b"\n', CsvOptions(escape="\\"))
@example(b'"open\n1,2\n"x",3\n', CsvOptions(max_row_bytes=12))
@example(b"a\\" + LONG + b"a,b\n", CsvOptions(escape="\\"))
@example(b'  "a" , b\t\n', CsvOptions(trim=True))
@example(LONG + b'"\n' + LONG + b',"' + LONG + b"\r\n" + LONG + b'""\r"\r\n', CsvOptions())
def test_tokenizer_equals_oracle(content: bytes, options: CsvOptions) -> None:
    assert tokenized(content, options) == [without_wide(row) for row in oracle_rows(content, options)]


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
def test_oracle_equals_python_csv(content: bytes, options: CsvOptions) -> None:
    rows = oracle_rows(content, options)
    if any(row.fields is None for row in rows):
        return  # a quote that is never closed: Python gives what follows it as one field, recordmill a reject
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
    else:  # Python's reader takes an escaped CR for the end of a line of its input
        assert [row.fields for row in rows] == [fields for _, fields in expected]


@settings(max_examples=100, deadline=None)
@given(contents, dialects, st.sampled_from([1, 2, 3, 5, 16, 64, 100]), st.sampled_from([1, 10, 1000]))
def test_blocks_of_any_size_give_the_same_rows(
    content: bytes, options: CsvOptions, block_bytes: int, chunk_bytes: int
) -> None:
    tokenizer = Tokenizer(Dialect.of(options, ","), COLUMNS, 7, ragged=True)
    blocks = (
        np.frombuffer(bytearray(content[at : at + block_bytes]), np.uint8) for at in range(0, len(content), block_bytes)
    )
    found, first = [], 0
    for data, rows in read_rows(tokenizer, blocks, 0, 1, chunk_bytes):
        found.extend(
            without_start(row) for _, row in sorted(to_oracle(data, rows, first, {}), key=lambda pair: pair[0])
        )
        first += rows.count
    assert found == [without_start(without_wide(row)) for row in oracle_rows(content, options)]


def without_start(row: Row) -> Row:
    return Row(0, row.line, row.fields, row.quoted, row.stray)


def test_rows_beyond_the_limit_wait() -> None:
    data = np.frombuffer(bytearray(b"a,b\nc,d\ne,f\n"), np.uint8)
    tokenizer = Tokenizer(Dialect.of(CsvOptions(), ","), 2, 10)
    assert tokenizer.read(data, 0, 5, final=True).stop == 8
    assert tokenizer.read(data, 0, 4, final=True).count == 1
    assert tokenizer.read(data, 4, 4, final=True).count == 0


def test_many_bad_rows_come_in_several_calls() -> None:
    count = BAD_ROWS + 10
    data = np.frombuffer(bytearray(b"x\n" * count + b"1,2\n"), np.uint8)
    tokenizer = Tokenizer(Dialect.of(CsvOptions(), ","), 2, 10)
    first = tokenizer.read(data, 0, len(data), final=True)
    assert (first.count, first.stop) == (BAD_ROWS, 2 * BAD_ROWS)
    second = tokenizer.read(data, first.stop, len(data), final=True, line=first.line)
    assert second.bad[:, 1].tolist() == list(range(BAD_ROWS + 1, count + 1))
    assert second.lines.tolist() == [count + 1]


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n\r\n", b"\n\n\n"])
def test_no_rows(content: bytes) -> None:
    assert tokenized(content, CsvOptions()) == []
