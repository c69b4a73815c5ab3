"""Detection of encoding, delimiter, quote and column names of a CSV file.

Only the head of the file is read.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field, replace

import numpy as np

from recordmill.base import native
from recordmill.base.buffers import Bytes
from recordmill.base.errors import DataError
from recordmill.base.messages import Message, join_messages
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
from recordmill.sources.csv.fields import TokenizedRows, Tokenizer, split_sample
from recordmill.sources.csv.messages import (
    STRAY_QUOTE_PROBLEM,
    STRAY_QUOTE_REMEDIES,
    quote_bytes,
    quote_first_line,
)
from recordmill.sources.csv.options import AUTO_QUOTE, CsvOptions
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
# Largest share of NUL bytes in a sample. Text in UTF-16 has more, and a damaged text file has
# fewer.
_MAX_NUL_SHARE = 0.25
# Control characters besides white space, SUB and ESC.
_BINARY_CONTROLS = [byte for byte in range(1, 32) if byte not in b"\t\n\v\f\r\x1a\x1b"]
# Position of the column without a name, if the header has one field less than the rows.
_FIRST_COLUMN, _LAST_COLUMN = "first", "last"
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
        generated_names: The names in `names` that replace a missing name, such as column_3.
        trailing_name: The generated name of the last column if the header has no name for it.
        quote: One character, or None for no quoting.
        blanks_note: A note on blanks around most fields of a column. "" if there are none.
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
    trailing_name: str = ""
    quote: str | None = '"'
    blanks_note: str = field(default="", compare=False)
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
    """Reads the beginning of a file, until it finds the header or one row.

    The sample, the beginning of the file as UTF-8, grows until it is large enough.
    """

    def __init__(self, file: InputFile, options: CsvOptions) -> None:
        self._file, self._source, self._options = file, file.name, options
        if file.stat.size_bytes == 0:
            raise DataError("the file is empty (0 bytes): not even a header", source=file.name)
        raw_head = read_range(file.path, 0, COMPRESSED_HEAD_BYTES).tobytes()
        self._compression = resolve_compression(raw_head)
        if description := describe_non_text(raw_head):
            raise DataError(f"this is not CSV but {description}", source=file.name)
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
        """Reads more of the file.

        Afterwards the sample is at least twice as large, or complete.
        """
        blocks, added_bytes = [self._sample], 0
        while self._next is not None and added_bytes <= len(self._sample):
            blocks.append(self._next)
            added_bytes += len(self._next)
            self._next = next(self._blocks, None)
        self._sample = np.concatenate(blocks)

    def read(self) -> CsvHead:
        # A stray NUL is part of its field. Many are another encoding, or the file is not text.
        num_nuls = int(np.count_nonzero(self._sample == 0))
        controls = np.isin(self._sample, _BINARY_CONTROLS) if num_nuls else self._sample[:0]
        if num_nuls > _MAX_NUL_SHARE * len(self._sample) or 100 * controls.sum() > len(
            self._sample
        ):
            raise self._nul_error()
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
                dialect_reason = "quotes are text: the first row continues after a closing quote"
                rows, data = self._read_first_row(start, line, trial)
        if len(rows.bad_rows):
            raise self._first_row_error(data, rows)
        unnamed = "" if self._options.header is False else _find_unnamed_column(trial)
        first_row = None
        if self._options.header is None:
            first_row = replace(
                self._guess_header(trial, unnamed),
                width=int(rows.widths[0]) + bool(unnamed),
                start=start + self._mark_bytes,
                line=line,
            )
        try:
            names, generated_names = self._column_names(data, rows, trial, unnamed)
        except DataError as error:
            if first_row is None or first_row.guess.verdict != DATA_ROW:
                raise
            # The row may be data that continues the table of another file. Two of its fields may
            # then be equal.
            names, generated_names = _number_names(first_row.width), ()
            first_row = replace(first_row, name_error=error)
        descriptions = [dialect_reason, sniff_dialect.describe_thousands(trial)]
        if unnamed:
            descriptions.append(
                f"the header has one field fewer than the rows, so the {unnamed} column has no name"
            )
        dialect_reason = join_messages("; ", filter(None, descriptions))
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
            trailing_name=names[-1] if names[-1] in generated_names else "",
            quote=trial.quote,
            blanks_note="" if self._options.trim else _note_blanks(trial),
            dialect_reason=dialect_reason,
            first_row=first_row,
            blank_lines=num_blank_lines,
        )

    def _nul_error(self) -> DataError:
        """Returns the error for a sample with many NUL bytes."""
        # In ASCII text as UTF-16, the high byte of each character is 0.
        even, odd = (int(np.count_nonzero(self._sample[first::2])) for first in (0, 1))
        encoding = "utf-16-be" if even < odd else "utf-16-le"
        is_utf16 = self._encoding == UTF8_ENCODING and 4 * min(even, odd) < max(even, odd)
        remedy = (
            Message(
                "UTF-16 without a byte order mark needs {encoding}",
                encoding=option("encoding", encoding),
            )
            if is_utf16
            else "the file is damaged, or it is not text"
        )
        return DataError(
            "it contains NUL bytes, so it is not CSV in this encoding; {remedy}",
            remedy=remedy,
            source=self._source,
            place=f"byte {int(np.argmin(self._sample != 0))}",
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
            options.delimiter or sniff_dialect.STRONG_DELIMITERS[0],
            '"' if options.quote == AUTO_QUOTE else options.quote,
        )
        # A header alone is not sufficient to detect the dialect, so the row after it is read even
        # if it is long.
        while not self._is_complete and (
            (len(trial.widths) < _MIN_SAMPLE_ROWS and len(self._sample) < _MAX_SAMPLE_BYTES)
            or (
                sum(width != native.CsvRowFault.TOO_LONG for width in trial.widths) < 2
                and len(self._sample) < _MAX_SAMPLE_BYTES + 2 * options.max_line_bytes
            )
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
        doubt = choice.doubt or self._find_blank_runs_doubt(start, choice.trial)
        if doubt:
            raise DataError(doubt, source=self._source)
        self._check_escapes(start, choice.trial)
        descriptions = (
            [sniff_dialect.describe_delimiter(choice.trial)]
            if options.delimiter is None and choice.trial.width > 1
            else []
        )
        return choice.trial, "; ".join([*descriptions, *filter(None, (choice.reason,))])

    def _find_blank_runs_doubt(self, start: int, trial: sniff_dialect.DialectTrial) -> str:
        """Returns why a file with one column may have more, or ""."""
        options = self._options
        used_marks = (options.quote, options.escape, options.comment)
        if options.delimiter is not None or trial.width > 1 or " " in used_marks:
            return ""
        dialect = replace(options.with_dialect(" ", trial.quote), trim=True, lenient_quotes=True)
        sample = self._sample[start : start + SAMPLE_BYTES]
        runs_trial = split_sample(
            sample, dialect, MAX_SAMPLE_ROWS, self._is_complete and len(sample) < SAMPLE_BYTES
        )
        return sniff_dialect.find_blank_runs_doubt(runs_trial, sample.tobytes())

    def _is_candidate(self, mark: str) -> bool:
        """Returns whether a character can be the delimiter of this file."""
        used_marks = (self._options.quote, self._options.escape, self._options.comment)
        if mark in used_marks:
            return False
        return (
            mark in (self._options.delimiter, sniff_dialect.STRONG_DELIMITERS[0])
            or ord(mark) in self._sample
        )

    def _choose_quote(self, start: int, delimiter: str) -> sniff_dialect.DialectChoice:
        """Chooses the quote for a delimiter.

        Returns:
            The choice. Its `trial` contains the rows of the sample, split with the delimiter and
            the quote.
        """
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
        # Stray quotes are allowed here, so that rows with them have a width, too.
        dialect = replace(self._options.with_dialect(delimiter, quote), lenient_quotes=True)
        return split_sample(self._sample[start:], dialect, MAX_SAMPLE_ROWS, self._is_complete)

    def _check_escapes(self, start: int, trial: sniff_dialect.DialectTrial) -> None:
        """Raises DataError if quotes seem to be escaped with a backslash.

        Without a declared escape they would close the field, so the user must decide.
        """
        options = self._options
        if trial.quote is None or options.quote != AUTO_QUOTE or options.escape is not None:
            return
        # A backslash and a quote, not followed by a delimiter, a quote or a line end. Such a quote
        # does not close the field.
        escaped_quote = rb"(?<!\\)\\%b[^%b\r\n]" % (
            trial.quote.encode(),
            re.escape(trial.delimiter + trial.quote).encode(),
        )
        if any(cell.is_quoted for row in trial.rows for cell in row) and (
            match := re.search(escaped_quote, self._sample[start:].tobytes())
        ):
            backslash = "\\"
            raise DataError(
                "{quote_bytes} is in a quoted field: use {escape} if a backslash "
                "makes {quote} literal, or {quote2} if quotes are text",
                quote_bytes=quote_bytes(match[0]),
                escape=option("escape", backslash),
                quote=trial.quote,
                quote2=option("quote", trial.quote),
                source=self._source,
            )

    def _guess_header(self, trial: sniff_dialect.DialectTrial, unnamed: str) -> FirstRow:
        texts = tuple(cell.text for cell in trial.first_row)
        is_usual_width = trial.widths[:1] == (trial.width,)
        names = (*[""] * (unnamed == _FIRST_COLUMN), *texts, *[""] * (unnamed == _LAST_COLUMN))
        other_rows = [
            _pad_row([cell.text for cell in row], len(names)) for row in trial.rows[is_usual_width:]
        ]
        guess = guess_header(names, other_rows)
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
                Message(
                    "{field_count} and most rows have {width} (is it a title: {skip_lines}, "
                    "{comment}?)",
                    field_count=field_count,
                    width=trial.width,
                    skip_lines=option("skip_lines"),
                    comment=option("comment"),
                ),
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
            problem: str = Message(
                "{problem} {line}; use {remedies}",
                problem=STRAY_QUOTE_PROBLEM,
                line=quote_first_line(data[field_start:]),
                remedies=STRAY_QUOTE_REMEDIES,
            )
        elif width == native.CsvRowFault.TOO_LONG:
            max_line_bytes = self._options.max_line_bytes
            problem = Message(
                (
                    "the first row is longer than {size} bytes, or a quote in it is never closed; fix "
                    "the quote, or use {quote} if quotes are text, or a larger {max_line_bytes} if "
                    "the row is longer"
                ),
                size=f"{max_line_bytes:,}",
                quote=option("quote", "none"),
                max_line_bytes=option("max_line_bytes"),
            )
        else:
            problem = (
                f"the first row has {width:,} fields, and at most {MAX_FEATURES:,} are allowed"
            )
        return DataError(problem, source=self._source, place=f"line {line}")

    def _column_names(
        self,
        data: Bytes,
        rows: TokenizedRows,
        trial: sniff_dialect.DialectTrial,
        unnamed: str,
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Determines the names of the columns from the options and the first row.

        Returns:
            (names of all columns, the generated names of columns without a name).

        Raises:
            DataError: The names don't fit the first row, two are equal, or one is not UTF-8.
        """
        width, place = int(rows.widths[0]), f"line {int(rows.lines[0])}"
        user_names = self._options.names
        if user_names is not None:
            # One more name than the header has is right if all other rows have the additional
            # column.
            if len(user_names) != width and not (
                self._options.header is not False
                and len(user_names) == trial.width == width + 1
                and trial.has_short_header
            ):
                raise DataError(
                    f"{len(user_names)} names are given, but the first row has {width} fields",
                    source=self._source,
                    place=place,
                )
            return user_names, ()
        if self._options.header is False:
            return _number_names(width), ()
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
                "the column name {quote_bytes} is not UTF-8; declare the file's "
                "{encoding}{suggest_encodings}",
                quote_bytes=quote_bytes(error.object),
                encoding=option("encoding"),
                suggest_encodings=suggest_encodings(self._file),
                source=self._source,
                place=place,
            ) from None
        names = (*[""] * (unnamed == _FIRST_COLUMN), *names, *[""] * (unnamed == _LAST_COLUMN))
        numbered_names = _number_names(len(names))
        filled_names = tuple(
            name or number for name, number in zip(names, numbered_names, strict=True)
        )
        if len(set(filled_names)) < len(names):
            duplicate = next(name for name in filled_names if filled_names.count(name) > 1)
            columns = [index + 1 for index, name in enumerate(filled_names) if name == duplicate]
            raise DataError(
                "columns {columns} and {columns2} are both named {quote_bytes}: if "
                "this row is data, use {header}; if it names the columns, use "
                "{header2}, and give other names with {names}",
                columns=columns[0],
                columns2=columns[1],
                quote_bytes=quote_bytes(duplicate.encode()),
                header=option("header", False),
                header2=option("header", True),
                names=option("names"),
                source=self._source,
                place=place,
            )
        return filled_names, tuple(
            number for name, number in zip(names, numbered_names, strict=True) if not name
        )


def _number_names(width: int) -> tuple[str, ...]:
    """Returns names for columns without one. They count from 1."""
    return tuple(f"column_{number}" for number in range(1, width + 1))


def _find_unnamed_column(trial: sniff_dialect.DialectTrial) -> str:
    """Finds the column without a name if the header is one field short.

    The last column has no name if all rows end with a delimiter. The first column has no name if it
    contains row names, as in files that R writes.

    Returns:
        _FIRST_COLUMN, _LAST_COLUMN, or "" if it is neither of them.
    """
    if not trial.has_short_header or trial.width > sniff_dialect.MAX_SNIFFED_COLUMNS:
        return ""
    last_cells, row_names = ([row[index] for row in trial.rows] for index in (-1, 0))
    if not any(cell.text or cell.is_quoted for cell in last_cells):
        return _LAST_COLUMN
    texts = [cell.text for cell in row_names]
    if any(row[-1].text[:1] == " " for row in trial.rows) or len(set(texts)) < len(texts):
        return ""  # a value with a delimiter in it also makes rows longer
    # A comma is often part of a value, so here only numbers in order or quotes show names of rows.
    is_named = (
        trial.delimiter != ","
        or all(cell.is_quoted for cell in row_names)
        or texts == [str(number) for number in range(1, len(texts) + 1)]
    )
    return _FIRST_COLUMN if is_named else ""


def _note_blanks(trial: sniff_dialect.DialectTrial) -> str:
    """Returns a note if most fields of a column have blanks around them.

    Returns "" if there is no such column.
    """
    rows = [[cell.text != cell.text.strip(" \t") for cell in row] for row in trial.rows]
    columns = [
        column
        for column in range(min(trial.width, sniff_dialect.MAX_SNIFFED_COLUMNS))
        if 2 * sum(row[column] for row in rows) > len(rows)
    ]
    num_rows = sum(any(row[column] for column in columns) for row in rows)
    if not num_rows:
        return ""
    return Message(
        "{num_rows} of the first {rows_count} rows have blanks around fields, which "
        "are part of the values and of column names: {trim} drops them",
        num_rows=num_rows,
        rows_count=len(rows),
        trim=option("trim", True),
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
