"""The beginning of a CSV file to its `Head`: compression, encoding, delimiter, the columns' names, and where the first
row of data starts.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from recordmill.base.byte_masks import Bytes
from recordmill.base.errors import DataError
from recordmill.sources.csv.dialect import DELIMITERS, CsvOptions, Dialect
from recordmill.sources.csv.fields import Rows, Tokenizer
from recordmill.sources.csv.messages import quoted_bytes
from recordmill.sources.csv.tokenize import LENGTH, TOO_LONG
from recordmill.sources.inputs.encoding import UTF8, told_compression, told_encoding, utf8_blocks
from recordmill.storage.compression import COMPRESSED_HEAD_BYTES, NONE, open_blocks
from recordmill.storage.files import read_range
from recordmill.storage.listing import InputFile

SAMPLE_BYTES = 64 << 10  # 64 KiB: some hundred rows, from which the delimiter is told
SAMPLE_ROWS = 100
MOST_COLUMNS = 1 << 16  # 65,536: bounds the arrays of one row

# What a file that is no text begins with: a clearer word than "NUL bytes" for what people give by mistake.
_OTHER_KINDS = (
    (b"PAR1", "a Parquet file; use `build parquet`"),
    (b"PK\x03\x04", "a ZIP archive or an Excel workbook; unpack it, or save it as CSV"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook; save it as CSV"),
    (b"BZh", "bzip2; decompress it first, or use gzip or zstd"),
    (b"\xfd7zXZ", "xz; decompress it first, or use gzip or zstd"), (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
)  # fmt: skip


@dataclass(frozen=True)
class Head:
    """What the beginning of one file says.

    compression, encoding: how its content is reached. delimiter: one character. names: of its columns.
    start: where the first row of data, or blank line before it, starts in the UTF-8 content (byte order mark included
    if it is plain UTF-8). line: the physical line there. blanks: the columns that had no name and were given one.
    """

    compression: str
    encoding: str
    delimiter: str
    names: tuple[str, ...]
    start: int
    line: int
    blanks: tuple[str, ...] = ()

    @property
    def streamed(self) -> bool:
        """It can't be cut: it has to be read from its beginning."""
        return self.compression != NONE or self.encoding != UTF8


def read_head(file: InputFile, options: CsvOptions) -> Head:
    """The file's head.

    Raises:
        DataError: the file is empty, is no text, or has no usable header; the message names it.
    """
    if file.stat.size_bytes == 0:
        raise DataError("the file is empty (0 bytes): not even a header", source=file.name)
    raw = read_range(file.path, 0, COMPRESSED_HEAD_BYTES).tobytes()
    compression = told_compression(raw)
    for magic, what in _OTHER_KINDS:
        if raw.startswith(magic):
            raise DataError(f"this is no CSV but {what}", source=file.name)
    first = next(
        open_blocks(file.path, block_bytes=COMPRESSED_HEAD_BYTES, compression=compression, source=file.name),
        np.empty(0, np.uint8),
    ).tobytes()
    encoding = told_encoding(first, options.encoding)
    blocks = utf8_blocks(file, encoding, SAMPLE_BYTES, compression)
    mark_bytes = 3 if compression == NONE and encoding == UTF8 and first.startswith(codecs.BOM_UTF8) else 0
    return _Reader(file.name, options, compression, encoding, blocks, mark_bytes).head()


class _Reader:
    """Holds the sample, which grows until it holds the header, or one row."""

    def __init__(
        self,
        source: str,
        options: CsvOptions,
        compression: str,
        encoding: str,
        blocks: Iterator[Bytes],
        mark_bytes: int,
    ) -> None:
        self._source, self._options, self._blocks = source, options, blocks
        self._compression, self._encoding, self._mark_bytes = compression, encoding, mark_bytes
        self._sample = np.empty(0, np.uint8)
        self._next: Bytes | None = next(blocks, None)
        self._grow()

    @property
    def _complete(self) -> bool:
        return self._next is None

    def _grow(self) -> None:
        parts, size = [self._sample], 0
        while self._next is not None and size <= len(self._sample):
            parts.append(self._next)
            size += len(self._next)
            self._next = next(self._blocks, None)
        self._sample = np.concatenate(parts)

    def head(self) -> Head:
        if 0 in self._sample:
            at = int(np.argmin(self._sample != 0))
            raise DataError(
                "it holds NUL bytes, so it is no CSV in this encoding; UTF-16 without a byte order mark "
                "needs --encoding utf-16-le",
                source=self._source,
                place=f"byte {at}",
            )
        start, line = self._skip_lines()
        delimiter = self._options.delimiter or tell_delimiter(self._sample[start:], self._options, self._complete)
        rows, data = self._first_row(start, line, Dialect.of(self._options, delimiter))
        names, blanks = self._names(data, rows)
        if self._options.header:
            start, line = rows.stop, rows.line
        return Head(self._compression, self._encoding, delimiter, names, start + self._mark_bytes, line, blanks)

    def _skip_lines(self) -> tuple[int, int]:
        at, left = 0, self._options.skip_lines
        while left:
            text = self._sample[at:].tobytes()
            ends = [end for end in (text.find(b"\n"), text.find(b"\r")) if end >= 0]
            if not ends or (text[min(ends)] == 13 and min(ends) + 1 == len(text) and not self._complete):
                if self._complete:
                    raise DataError(
                        f"skip_lines is {self._options.skip_lines}, but the file has only "
                        f"{self._options.skip_lines - left + bool(text)} lines",
                        source=self._source,
                    )
                self._grow()
                continue
            at += min(ends) + (2 if text[min(ends) : min(ends) + 2] == b"\r\n" else 1)
            left -= 1
        return at, 1 + self._options.skip_lines

    def _first_row(self, start: int, line: int, dialect: Dialect) -> tuple[Rows, Bytes]:
        tokenizer = Tokenizer(dialect, MOST_COLUMNS, 1, ragged=True)
        while True:
            data = self._sample.copy()
            rows = tokenizer.read(data, start, len(data), final=self._complete, line=line)
            if len(rows.bad):
                width = int(rows.bad[0, 3])
                what = (
                    f"longer than {dialect.max_row_bytes:,} bytes, or a quote in it is never closed"
                    if width == TOO_LONG
                    else f"of {width:,} fields; the most is {MOST_COLUMNS:,}"
                )
                raise DataError(f"the first row is {what}", source=self._source, place=f"line {int(rows.bad[0, 1])}")
            if rows.count:
                return rows, data
            if self._complete:
                raise DataError("it holds no rows, not even a header", source=self._source)
            self._grow()

    def _names(self, data: Bytes, rows: Rows) -> tuple[tuple[str, ...], tuple[str, ...]]:
        width, place = int(rows.widths[0]), f"line {int(rows.lines[0])}"
        given = self._options.names
        if given is not None:
            if len(given) != width:
                raise DataError(
                    f"{len(given)} names are given, but the first row has {width} fields",
                    source=self._source,
                    place=place,
                )
            return given, ()
        numbered = tuple(f"column_{index}" for index in range(1, width + 1))
        if not self._options.header:
            return numbered, ()
        fields = [
            data[at : at + (info & LENGTH)].tobytes()
            for at, info in zip(rows.starts[:width, 0].tolist(), rows.infos[:width, 0].tolist(), strict=True)
        ]
        try:
            names = tuple(field.decode() for field in fields)
        except UnicodeDecodeError:
            bad = next(field for field in fields if not _is_utf8(field))
            raise DataError(
                f"the column name {quoted_bytes(bad)} is no UTF-8; "
                "declare the file's --encoding (latin-1, cp1252, ...)",
                source=self._source,
                place=place,
            ) from None
        named = tuple(name or number for name, number in zip(names, numbered, strict=True))
        if len(set(named)) < width:
            twice = next(name for name in named if named.count(name) > 1)
            places = [index + 1 for index, name in enumerate(named) if name == twice]
            raise DataError(
                f"columns {places[0]} and {places[1]} are both named {quoted_bytes(twice.encode())}; give each a "
                "name of its own with --names",
                source=self._source,
                place=place,
            )
        return named, tuple(number for name, number in zip(names, numbered, strict=True) if not name)


def _is_utf8(field: bytes) -> bool:
    try:
        field.decode()
    except UnicodeDecodeError:
        return False
    return True


def tell_delimiter(sample: Bytes, options: CsvOptions, complete: bool) -> str:
    """The delimiter of `, ; tab | :` that cuts most of the first rows into as many fields as the first row, which must
    have two or more.

    On a tie the earlier one. If none cuts the first row, the one that cuts two thirds of the others into equally many
    fields (which then are rejects that ask for skip_lines, rather than one column of text); a colon is too common in
    text and times for that. Else `,`.
    """
    best = second = (0.0, DELIMITERS[0])
    for candidate in DELIMITERS:
        if candidate in (options.quote, options.escape, options.comment):
            continue
        widths = _widths(sample, options, candidate, complete)
        if len(widths) and widths[0] > 1:
            best = max(best, (widths.count(widths[0]) / len(widths), candidate), key=lambda pair: pair[0])
        elif len(widths) > 2 and candidate != ":":
            usual = max(set(widths), key=widths.count)
            share = widths.count(usual) / len(widths) if usual > 1 else 0.0
            second = max(second, (share, candidate), key=lambda pair: pair[0])
    if best[0]:
        return best[1]
    return second[1] if second[0] > 2 / 3 else DELIMITERS[0]


def _widths(sample: Bytes, options: CsvOptions, delimiter: str, complete: bool) -> list[int]:
    """How many fields the first rows have if that is the delimiter; rows that are too long left out."""
    tokenizer = Tokenizer(Dialect.of(replace(options, delimiter=delimiter), delimiter), 1, SAMPLE_ROWS)
    rows = tokenizer.read(sample.copy(), 0, len(sample), final=complete)
    widths: dict[int, int] = {**dict.fromkeys(rows.ordinals.tolist(), 1), **dict(rows.bad[:, (0, 3)].tolist())}
    return [widths[ordinal] for ordinal in sorted(widths)[:SAMPLE_ROWS] if widths[ordinal] != TOO_LONG]
