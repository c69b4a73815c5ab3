"""Detection of encoding, delimiter, quote and column names from the head of a CSV file."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field, replace

import numpy as np

from recordmill.base import native
from recordmill.base.buffers import Bytes
from recordmill.base.errors import DataError
from recordmill.base.option_names import option
from recordmill.schemas.feature import MAX_FEATURES
from recordmill.sources.common.encoding import (
    UTF8_ENCODING,
    describe_non_text,
    read_utf8_blocks,
    resolve_compression,
    resolve_encoding,
    suggest_encodings,
)
from recordmill.sources.csv import sniff_dialect
from recordmill.sources.csv.dialect import AUTO_QUOTE, DELIMITERS, CsvOptions
from recordmill.sources.csv.fields import TokenizedRows, Tokenizer, split_sample
from recordmill.sources.csv.messages import (
    STRAY_QUOTE_PROBLEM,
    STRAY_QUOTE_REMEDIES,
    quote_bytes,
    quote_first_line,
)
from recordmill.sources.csv.sniff_header import (
    DATA_ROW,
    UNSURE_ROW,
    FirstRow,
    HeaderGuess,
    guess_header,
)
from recordmill.storage.codecs import UNCOMPRESSED
from recordmill.storage.compression import COMPRESSED_HEAD_BYTES, open_blocks
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import read_range

# 64 KiB: some hundred rows, enough to detect the delimiter.
SAMPLE_BYTES = 64 << 10
MAX_SAMPLE_ROWS = 100
# 1 MiB, for files with such long rows that a sample has fewer than _MIN_SAMPLE_ROWS.
_MAX_SAMPLE_BYTES = 1 << 20
_MIN_SAMPLE_ROWS = 4
_LINE_END = re.compile(rb"\r\n?|\n")


@dataclass(frozen=True)
class CsvHead:
    """Properties of a CSV file that were read from its first rows.

    Attributes:
        compression: Compression of the file.
        encoding: Encoding of the decompressed content.
        delimiter: The delimiter, one character.
        names: Column names.
        start: Offset of the first data row, or of blank lines before it. It counts bytes of the
            content as uncompressed UTF-8. In a plain UTF-8 file the byte order mark counts, too.
        line: Line number at `start`, from 1.
        generated_names: Those of `names` that replace a missing name, such as column_3.
        quote: One character, or None for no quoting.
        dialect_reason: How delimiter and quote were detected, for a note. "" if the user has
            declared them.
        first_row: The first row and a guess if it is a header. None if the user has declared this.
        blank_lines: Number of blank lines before the header.
    """

    compression: str
    encoding: str
    delimiter: str
    names: tuple[str, ...]
    start: int
    line: int
    generated_names: tuple[str, ...] = ()
    quote: str | None = '"'
    dialect_reason: str = field(default="", compare=False)
    first_row: FirstRow | None = field(default=None, compare=False)
    blank_lines: int = field(default=0, compare=False)

    @property
    def is_streamed(self) -> bool:
        """Whether the file can only be read from its beginning."""
        return self.compression != UNCOMPRESSED or self.encoding != UTF8_ENCODING


def read_head(file: InputFile, options: CsvOptions) -> CsvHead:
    """Reads the head of a file.

    Raises:
        DataError: The file is empty, is not text, or has no usable header. The message names the
            problem.
    """
    return _HeadReader(file, options).read()


class _HeadReader:
    """Reads as much of a file as is needed to find its header, or its first row.

    The sample, the beginning of the file as UTF-8, grows until it is large enough.
    """

    def __init__(self, file: InputFile, options: CsvOptions) -> None:
        self._file, self._source, self._options = file, file.name, options
        if file.stat.size_bytes == 0:
            raise DataError("the file is empty (0 bytes): not even a header", source=file.name)
        raw_head = read_range(file.path, 0, COMPRESSED_HEAD_BYTES).tobytes()
        self._compression = resolve_compression(raw_head)
        if description := describe_non_text(raw_head):
            raise DataError(f"this is no CSV but {description}", source=file.name)
        blocks = open_blocks(
            file.path,
            block_bytes=COMPRESSED_HEAD_BYTES,
            compression=self._compression,
            source=file.name,
        )
        # The byte order mark is inside the compressed data.
        first_block = next(blocks, np.empty(0, np.uint8)).tobytes()
        self._encoding = resolve_encoding(first_block, options.encoding)
        is_plain = self._compression == UNCOMPRESSED and self._encoding == UTF8_ENCODING
        # Ranges of plain files count from the start of the file, so their offsets include the mark.
        self._mark_bytes = 3 if is_plain and first_block.startswith(codecs.BOM_UTF8) else 0
        self._blocks = read_utf8_blocks(file, self._encoding, SAMPLE_BYTES, self._compression)
        self._sample = np.empty(0, np.uint8)
        self._next: Bytes | None = next(self._blocks, None)
        self._grow()

    @property
    def _is_complete(self) -> bool:
        return self._next is None

    def _grow(self) -> None:
        """Reads more of the file, so that the sample at least doubles or is complete."""
        blocks, added_bytes = [self._sample], 0
        while self._next is not None and added_bytes <= len(self._sample):
            blocks.append(self._next)
            added_bytes += len(self._next)
            self._next = next(self._blocks, None)
        self._sample = np.concatenate(blocks)

    def read(self) -> CsvHead:
        if 0 in self._sample:
            offset = int(np.argmin(self._sample != 0))
            # In ASCII text, the high byte of each character is 0.
            is_big_endian = np.count_nonzero(self._sample[0::2]) < np.count_nonzero(
                self._sample[1::2]
            )
            raise DataError(
                "it holds NUL bytes, so it is no CSV in this encoding; UTF-16 without a byte order mark "
                f"needs {option('encoding', 'utf-16-be' if is_big_endian else 'utf-16-le')}",
                source=self._source,
                place=f"byte {offset}",
            )
        start, line = self._skip_lines()
        trial, dialect_reason = self._detect_dialect(start)
        rows, data = self._read_first_row(start, line, trial)
        # A stray quote in the first row may mean that quotes are text. This is certain if all rows
        # have the same width without quotes.
        if self._options.quote == AUTO_QUOTE and any(
            width == native.CsvRowFault.STRAY_QUOTE for width in rows.bad_rows[:1, 3]
        ):
            unquoted_trial = self._split_rows(start, trial.delimiter, None)
            if unquoted_trial.share == 1.0:
                trial = unquoted_trial
                dialect_reason = "quotes are text: the first row goes on behind its closing quote"
                rows, data = self._read_first_row(start, line, trial)
        if len(rows.bad_rows):
            raise self._first_row_error(data, rows)
        names, generated_names = self._column_names(data, rows)
        dialect_reason = "; ".join(
            filter(None, (dialect_reason, sniff_dialect.describe_thousands(trial)))
        )
        first_row = self._guess_header(trial) if self._options.header is None else None
        num_blank_lines = 0
        if self._options.header is not False:
            start, line, num_blank_lines = rows.stop, rows.stop_line, rows.blank_lines
        # The sample has no byte order mark.
        start += self._mark_bytes
        return CsvHead(
            compression=self._compression,
            encoding=self._encoding,
            delimiter=trial.delimiter,
            names=names,
            start=start,
            line=line,
            generated_names=generated_names,
            quote=trial.quote,
            dialect_reason=dialect_reason,
            first_row=first_row,
            blank_lines=num_blank_lines,
        )

    def _detect_dialect(self, start: int) -> tuple[sniff_dialect.DialectTrial, str]:
        """Detects the delimiter and the quote.

        Args:
            start: Offset in the sample after the lines to skip.

        Returns:
            (the sample, split with them; the reason for the notes).

        Raises:
            DataError: It is unclear which delimiter or quote is right.
        """
        options = self._options
        trial = self._split_rows(
            start,
            options.delimiter or DELIMITERS[0],
            '"' if options.quote == AUTO_QUOTE else options.quote,
        )
        while (
            len(trial.widths) < _MIN_SAMPLE_ROWS
            and not self._is_complete
            and len(self._sample) < _MAX_SAMPLE_BYTES
        ):
            self._grow()
            trial = self._split_rows(start, trial.delimiter, trial.quote)
        if options.delimiter is not None and options.quote != AUTO_QUOTE:
            return trial, ""
        delimiters = (
            sniff_dialect.STRONG_DELIMITERS if options.delimiter is None else (options.delimiter,)
        )
        choices = [
            self._choose_quote(start, mark) for mark in delimiters if self._is_candidate(mark)
        ]
        # Weak delimiters occur in ordinary text, so they are tried only if no strong one splits the
        # rows.
        if options.delimiter is None and all(choice.trial.width < 2 for choice in choices):
            choices += [
                self._choose_quote(start, mark)
                for mark in sniff_dialect.WEAK_DELIMITERS
                if self._is_candidate(mark)
            ]
        choice = (
            choices[0]
            if options.delimiter
            else sniff_dialect.choose_delimiter(choices, _data_extension(self._source))
        )
        if choice.doubt:
            raise DataError(choice.doubt, source=self._source)
        self._check_escapes(start, choice.trial)
        descriptions = (
            [sniff_dialect.describe_delimiter(choice.trial)]
            if options.delimiter is None and choice.trial.width > 1
            else []
        )
        return choice.trial, "; ".join([*descriptions, *filter(None, (choice.reason,))])

    def _is_candidate(self, mark: str) -> bool:
        """Returns whether a character can be the delimiter of this file."""
        used_marks = (self._options.quote, self._options.escape, self._options.comment)
        if mark in used_marks or (mark == " " and self._options.trim):
            return False
        return mark in (self._options.delimiter, DELIMITERS[0]) or ord(mark) in self._sample

    def _choose_quote(self, start: int, delimiter: str) -> sniff_dialect.DialectChoice:
        """Chooses the quote for a delimiter, and returns the sample split with both."""
        if self._options.quote != AUTO_QUOTE:
            return sniff_dialect.DialectChoice(
                self._split_rows(start, delimiter, self._options.quote)
            )
        quotes: list[str | None] = ['"']
        used_marks = (self._options.escape, self._options.comment)
        if ord("'") in self._sample and "'" not in used_marks:
            quotes.append("'")
        if ord('"') in self._sample:
            quotes.append(None)
        return sniff_dialect.choose_quote(
            [self._split_rows(start, delimiter, quote) for quote in quotes]
        )

    def _split_rows(
        self, start: int, delimiter: str, quote: str | None
    ) -> sniff_dialect.DialectTrial:
        # Lenient, so that rows with stray quotes have a width, too.
        dialect = replace(self._options.with_dialect(delimiter, quote), lenient_quotes=True)
        return split_sample(self._sample[start:], dialect, MAX_SAMPLE_ROWS, self._is_complete)

    def _check_escapes(self, start: int, trial: sniff_dialect.DialectTrial) -> None:
        """Raises DataError if quotes seem to be escaped with a backslash.

        Without a declared escape they would close the field, so the user must decide.
        """
        options = self._options
        if trial.quote is None or options.quote != AUTO_QUOTE or options.escape is not None:
            return
        # A backslash and a quote, in front of neither a delimiter, nor a quote, nor a line end.
        # Such a quote does not close the field.
        escaped_quote = rb"(?<!\\)\\%b[^%b\r\n]" % (
            trial.quote.encode(),
            re.escape(trial.delimiter + trial.quote).encode(),
        )
        if any(cell.is_quoted for row in trial.rows for cell in row) and (
            match := re.search(escaped_quote, self._sample[start:].tobytes())
        ):
            backslash = "\\"
            raise DataError(
                f"{quote_bytes(match[0])} stands in a quoted field: say {option('escape', backslash)} if a "
                "backslash makes "
                f"{trial.quote} literal, or {option('quote', trial.quote)} if it is text",
                source=self._source,
            )

    def _guess_header(self, trial: sniff_dialect.DialectTrial) -> FirstRow:
        texts = tuple(cell.text for cell in trial.first_row)
        is_usual_width = trial.widths[:1] == (trial.width,)
        other_rows = [
            _pad_row([cell.text for cell in row], len(texts)) for row in trial.rows[is_usual_width:]
        ]
        guess = guess_header(texts, other_rows)
        # The second row may be the header, below a title.
        looks_like_names = trial.rows and all(
            sniff_dialect.classify_cell(cell.text) == sniff_dialect.TEXT_CELL
            for cell in trial.rows[0]
        )
        is_doubtful = (
            guess.verdict == UNSURE_ROW
            or len(texts) == 1
            or (looks_like_names and len(texts) < trial.width)
        )
        if (
            not is_usual_width
            and guess.verdict != DATA_ROW
            and is_doubtful
            and trial.rows
            and not guess.reason.startswith("begins")
        ):
            field_count = f"has {len(texts)} field{'s' * (len(texts) != 1)}"
            guess = HeaderGuess(
                UNSURE_ROW,
                f"{field_count} and most rows have {trial.width} (is it a title: {option('skip_lines')}, {option('comment')}?)",
            )
        return FirstRow(self._source, texts, guess, is_only_row=len(trial.widths) < 2)

    def _skip_lines(self) -> tuple[int, int]:
        """Returns (offset, line number) of the first line that is not skipped."""
        offset, num_remaining, text = 0, self._options.skip_lines, self._sample.tobytes()
        while num_remaining:
            end = _LINE_END.search(text, offset)
            # A CR at the end of the sample may be the first half of a CRLF.
            if end is None or (
                end[0] == b"\r" and end.end() == len(text) and not self._is_complete
            ):
                if self._is_complete:
                    raise DataError(
                        f"skip_lines is {self._options.skip_lines}, but the file has only "
                        f"{self._options.skip_lines - num_remaining + (offset < len(text))} lines",
                        source=self._source,
                    )
                self._grow()
                text = self._sample.tobytes()
                continue
            offset, num_remaining = end.end(), num_remaining - 1
        return offset, 1 + self._options.skip_lines

    def _read_first_row(
        self, start: int, line: int, trial: sniff_dialect.DialectTrial
    ) -> tuple[TokenizedRows, Bytes]:
        """Reads the first row.

        If the first row is data and not a header, stray quotes in it are allowed here, because the
        scan reports them later.

        Returns:
            (the row, the buffer of its fields). The row may be a bad one.

        Raises:
            DataError: The file has no rows.
        """
        dialect = self._options.with_dialect(trial.delimiter, trial.quote)
        # Only the width of a data row matters here, so its quotes may be wrong.
        is_lenient = dialect.lenient_quotes or self._options.header is False
        tokenizer = Tokenizer(
            replace(dialect, lenient_quotes=is_lenient), MAX_FEATURES, 1, allows_ragged_rows=True
        )
        while True:
            data = self._sample.copy()
            rows = tokenizer.read(data, start, len(data), is_final=self._is_complete, line=line)
            if rows.num_rows:
                return rows, data
            if self._is_complete:
                raise DataError("it holds no rows, not even a header", source=self._source)
            self._grow()

    def _first_row_error(self, data: Bytes, rows: TokenizedRows) -> DataError:
        """Returns the error for a bad first row."""
        _, line, _, width, field_start, _ = rows.bad_rows[0].tolist()
        if width == native.CsvRowFault.STRAY_QUOTE:
            problem = f"{STRAY_QUOTE_PROBLEM} {quote_first_line(data[field_start:])}; say {STRAY_QUOTE_REMEDIES}"
        elif width == native.CsvRowFault.TOO_LONG:
            max_line_bytes = self._options.max_line_bytes
            problem = f"the first row is longer than {max_line_bytes:,} bytes, or a quote in it is never closed"
        else:
            problem = f"the first row is of {width:,} fields; the most is {MAX_FEATURES:,}"
        return DataError(problem, source=self._source, place=f"line {line}")

    def _column_names(
        self, data: Bytes, rows: TokenizedRows
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Determines the names of the columns from the options and the first row.

        Returns:
            (names of all columns, those of them that were generated for columns without a name).

        Raises:
            DataError: The names don't fit the first row, two are equal, or one is not UTF-8.
        """
        width, place = int(rows.widths[0]), f"line {int(rows.lines[0])}"
        user_names = self._options.names
        if user_names is not None:
            if len(user_names) != width:
                raise DataError(
                    f"{len(user_names)} names are given, but the first row has {width} fields",
                    source=self._source,
                    place=place,
                )
            return user_names, ()
        # Columns without a name are numbered from 1.
        numbered_names = tuple(f"column_{index}" for index in range(1, width + 1))
        if self._options.header is False:
            return numbered_names, ()
        fields = [
            data[start : start + (info & native.FIELD_LENGTH_MASK)].tobytes()
            for start, info in zip(
                rows.starts[:width, 0].tolist(), rows.infos[:width, 0].tolist(), strict=True
            )
        ]
        try:
            names = tuple(field.decode() for field in fields)
        except UnicodeDecodeError as error:
            raise DataError(
                f"the column name {quote_bytes(error.object)} is no UTF-8; "
                f"declare the file's {option('encoding')}{suggest_encodings(self._file)}",
                source=self._source,
                place=place,
            ) from None
        filled_names = tuple(
            name or number for name, number in zip(names, numbered_names, strict=True)
        )
        if len(set(filled_names)) < width:
            duplicate = next(name for name in filled_names if filled_names.count(name) > 1)
            columns = [index + 1 for index, name in enumerate(filled_names) if name == duplicate]
            raise DataError(
                f"columns {columns[0]} and {columns[1]} are both named {quote_bytes(duplicate.encode())}: if this row is "
                f"data, say {option('header', False)}; if it names the columns, say {option('header', True)}, and "
                "give each a name of its own with "
                f"{option('names')}",
                source=self._source,
                place=place,
            )
        return filled_names, tuple(
            number for name, number in zip(names, numbered_names, strict=True) if not name
        )


def _pad_row(row: list[str], width: int) -> list[str]:
    return (row + [""] * width)[:width]


def _data_extension(name: str) -> str:
    """Returns the lower-case extension. An extension of a compression is skipped."""
    parts = name.lower().split(".")
    return (
        parts[-2]
        if len(parts) > 2 and parts[-1] in ("gz", "zst", "zstd", "bz2", "xz")
        else parts[-1]
    )
