"""Positions of the fields of CSV rows.

`native/csv.cpp` finds the start and the length of each field in one pass, and stores them by
column. A file that can't be divided into ranges is read block by block with `read_rows`. Such files
are compressed, or have another encoding than UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int32s, Int64s, allocate
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.sniff_dialect import MAX_SNIFFED_COLUMNS, Cell, DialectTrial
from recordmill.sources.values.text_columns import text_at

# Bad rows per call. The limit keeps the memory for them independent of the size of the input.
MAX_BAD_ROWS = 4096


@dataclass(frozen=True)
class TokenizedRows:
    """The fields of consecutive rows in a buffer.

    The arrays are views that the next call of the tokenizer overwrites. Bad rows have no entry in
    `starts` to `lines`, only in `bad_rows`.

    Attributes:
        starts: [columns, rows] offset of each field in the buffer.
        infos: [columns, rows] length of each field in bytes. The bit FIELD_QUOTED_BIT is set if it
            was in quotes.
        widths: [rows] number of fields. Only rows that are allowed to be ragged have another number
            than there are columns.
        ordinals: [rows] number of the row among all rows of the call, including bad ones.
        lines: [rows] line number where the row starts.
        bad_rows: [bad rows, 6] ordinal, line, offset of the row, number of fields or CsvRowFault,
            offset of the bad field, and 1 if each line of the row would be a row if quotes were
            ordinary text.
        stop: Offset of the next row, or the end of the data.
        stop_line: Line number at `stop`.
        num_rows: Number of rows, including bad ones.
        is_skipping: Whether the buffer ends inside a line that is skipped.
        blank_lines: Number of blank lines that are not rows.
        quote_counts: (quoted fields, rows that would be bad without quotes, rows with several lines
            that would each be a row without quotes, line number of the first of these). Bad rows do
            not count.
    """

    starts: Int32s
    infos: Int32s
    widths: Int64s
    ordinals: Int64s
    lines: Int64s
    bad_rows: Int64s
    stop: int
    stop_line: int
    num_rows: int
    is_skipping: bool
    blank_lines: int
    quote_counts: tuple[int, int, int, int]


class Tokenizer:
    """Finds the fields of rows that have a fixed number of columns.

    The results of a tokenizer are views of arrays that its next call overwrites. So only one thread
    may use it at a time.

    Args:
        dialect: Options with a delimiter, and a quote or None.
        num_columns: Number of columns.
        max_rows: Maximum number of rows per call.
        allows_ragged_rows: Whether rows with fewer fields are returned instead of listed as bad.
            Their missing fields have undefined values in the arrays.
    """

    def __init__(
        self,
        dialect: CsvOptions,
        num_columns: int,
        max_rows: int,
        *,
        allows_ragged_rows: bool = False,
    ) -> None:
        self._dialect = _native_dialect(dialect, num_columns, allows_ragged_rows)
        self._starts = allocate((num_columns, max_rows), np.int32)
        self._infos = allocate((num_columns, max_rows), np.int32)
        self._rows = np.empty((3, max_rows), np.int64)
        self._bad = np.empty((MAX_BAD_ROWS, 6), np.int64)

    def read(
        self,
        data: Bytes,
        offset: int,
        limit: int,
        *,
        is_final: bool,
        line: int = 1,
        is_skipping: bool = False,
    ) -> TokenizedRows:
        """Returns the rows that start in `data[offset:limit]`, but at most `max_rows`.

        Args:
            data: The buffer. Fields with escapes are changed in place.
            offset: Start of a row. If `is_skipping` is set, any offset inside a line to skip.
            limit: Rows that start at or after this offset are left for the next call.
            is_final: Whether the data ends at the end of a row, or of the file. If so, its last row
                is complete, and a quote that is still open is never closed. If not, an incomplete
                row at the end is left for the next call.
            line: Line number at `offset`.
            is_skipping: Whether `offset` is inside a line to skip.
        """
        scan = native.CsvScan(
            position=offset, line=line, limit=limit, is_final=is_final, is_skipping=is_skipping
        )
        native.scan_csv(data, self._dialect, scan, self._starts, self._infos, self._rows, self._bad)
        rows = scan.rows
        widths, ordinals, lines = self._rows[:, :rows]
        return TokenizedRows(
            starts=self._starts[:, :rows],
            infos=self._infos[:, :rows],
            widths=widths,
            ordinals=ordinals,
            lines=lines,
            bad_rows=self._bad[: scan.bad_rows],
            stop=scan.position,
            stop_line=scan.line,
            num_rows=rows + scan.bad_rows,
            is_skipping=bool(scan.is_skipping),
            blank_lines=scan.blank_lines,
            quote_counts=(
                scan.quoted_fields,
                scan.rows_needing_quotes,
                scan.rows_across_lines,
                scan.first_across_line,
            ),
        )


class RowEnd(NamedTuple):
    """Result of `find_row_end`.

    Attributes:
        stop: Offset after the last complete row or comment.
        is_skipping: Whether the data ends inside a comment, or inside a line that is skipped
            because its row is too long.
        has_too_long_row: Whether a row before `stop` is too long, or has a quote that is never
            closed.
    """

    stop: int
    is_skipping: bool
    has_too_long_row: bool


def find_row_end(
    data: Bytes,
    dialect: CsvOptions,
    offset: int,
    limit: int,
    *,
    is_final: bool,
    is_skipping: bool = False,
) -> RowEnd:
    """Returns the end of the last row that starts in `data[offset:limit]`.

    The search is several times as fast as `Tokenizer.read`, because it does not find the fields.
    The data is not changed. The search ends after a row that is too long, so the caller may have to
    continue there.

    `Tokenizer.read` describes the other arguments.

    Args:
        data: The buffer.
        dialect: Options with a delimiter, and a quote or None.
    """
    scan = native.CsvScan(position=offset, limit=limit, is_final=is_final, is_skipping=is_skipping)
    native.scan_csv(data, _native_dialect(dialect), scan, None, None, None, np.empty(6, np.int64))
    return RowEnd(scan.position, bool(scan.is_skipping), scan.bad_rows > 0)


def _native_dialect(
    dialect: CsvOptions, num_columns: int = 0, allows_ragged_rows: bool = False
) -> native.CsvDialect:
    assert dialect.delimiter is not None
    quote, escape, comment = (
        # 256 is not a byte, so it never matches.
        256 if character is None else ord(character)
        for character in (dialect.quote, dialect.escape, dialect.comment)
    )
    return native.CsvDialect(
        delimiter=ord(dialect.delimiter),
        quote=quote,
        is_doubled=dialect.doubled_quote,
        escape=escape,
        comment=comment,
        trims=dialect.trim,
        max_row_bytes=dialect.max_line_bytes,
        columns=num_columns,
        is_ragged=allows_ragged_rows,
        is_lenient=dialect.lenient_quotes,
    )


def split_sample(sample: Bytes, dialect: CsvOptions, max_rows: int, is_final: bool) -> DialectTrial:
    """Splits the first rows of a sample with one delimiter and one quote.

    Args:
        sample: Bytes that start with a row. They are not changed.
        dialect: Options with the delimiter and the quote to try.
        max_rows: Maximum number of rows.
        is_final: Whether the sample ends with the file.
    """
    widths = _count_fields(sample, dialect, max_rows, is_final)
    trial = DialectTrial(
        delimiter=dialect.delimiter or "", quote=dialect.quote, widths=tuple(widths), rows=()
    )
    if not widths or max(trial.width, widths[0]) == native.CsvRowFault.TOO_LONG:
        return trial
    # The tokenizer unescapes in place.
    data = sample.copy()
    rows = Tokenizer(dialect, max(trial.width, widths[0]), max_rows, allows_ragged_rows=True).read(
        data, 0, len(data), is_final=is_final
    )
    # With one column, blank lines are rows, too. Those before the first text are not.
    is_blank = (rows.widths == 1) & (rows.infos[0] == 0)
    first = int(np.argmin(is_blank)) if len(is_blank) and not is_blank.all() else 0
    first_row = (
        _extract_cells(data, rows, first)
        if len(rows.ordinals) and rows.ordinals[first] == first
        else ()
    )
    matching_rows = (
        # Without a width that half of the rows have, no row is typical.
        (first + np.flatnonzero(rows.widths[first:] == trial.width)).tolist()
        if 2 * widths.count(trial.width) >= len(widths)
        else []
    )
    return DialectTrial(
        delimiter=trial.delimiter,
        quote=trial.quote,
        widths=trial.widths,
        rows=tuple(_extract_cells(data, rows, row) for row in matching_rows),
        first_row=first_row,
    )


def _count_fields(
    sample: Bytes, dialect: CsvOptions, max_rows: int, is_final: bool
) -> Sequence[int]:
    """Returns the number of fields of each of the first rows.

    For a row with a quote that is never closed it is CsvRowFault.TOO_LONG. Blank lines have no
    entry, because they are rows only in files with one column.
    """
    # With one column, all rows with more fields are listed as bad, together with their number of
    # fields.
    rows = Tokenizer(dialect, 1, max_rows).read(sample.copy(), 0, len(sample), is_final=is_final)
    nonblank_ordinals = (
        rows.ordinals[rows.infos[0, : len(rows.ordinals)] != 0]
        if len(rows.ordinals)
        else rows.ordinals
    )
    width_by_ordinal: dict[int, int] = {
        **dict.fromkeys(nonblank_ordinals.tolist(), 1),
        **dict(rows.bad_rows[:, (0, 3)].tolist()),
    }
    return [width_by_ordinal[ordinal] for ordinal in sorted(width_by_ordinal)[:max_rows]]


def _extract_cells(data: Bytes, rows: TokenizedRows, row: int) -> tuple[Cell, ...]:
    width = min(int(rows.widths[row]), MAX_SNIFFED_COLUMNS)
    starts, infos = rows.starts[:width, row], rows.infos[:width, row]
    return tuple(
        Cell(
            text_at(data, starts, infos, column).decode("utf-8", "replace"),
            bool(infos[column] & native.FIELD_QUOTED_BIT),
        )
        for column in range(width)
    )


def read_rows(
    tokenizer: Tokenizer, blocks: Iterator[Bytes], offset: int, line: int, chunk_bytes: int
) -> Iterator[tuple[Bytes, TokenizedRows]]:
    """Yields the rows of a file that is read block by block.

    Args:
        tokenizer: Finds the fields.
        blocks: The content of the file.
        offset: Offset of the first row in the content.
        line: Line number at `offset`.
        chunk_bytes: Maximum size of the rows that are yielded together.

    Yields:
        (buffer, rows in it). A buffer with only blank lines has no rows. The buffer is at most one
        row larger than a block. It is valid until the next one is requested.
    """
    data: Bytes | None = np.empty(0, np.uint8)
    # The offset may be after the first block.
    while data is not None and len(data) <= offset:
        offset -= len(data)
        data = next(blocks, None)
    if data is None:
        return
    # One block ahead, to know which block is the last one.
    next_block = next(blocks, None)
    is_skipping = False
    while True:
        rows = tokenizer.read(
            data,
            offset,
            min(offset + chunk_bytes, len(data)),
            is_final=next_block is None,
            line=line,
            is_skipping=is_skipping,
        )
        if rows.num_rows or rows.blank_lines:
            yield data, rows
        # A call without progress has an incomplete row. It needs the next block.
        needs_more_data = rows.stop == offset or rows.stop >= len(data)
        offset, line, is_skipping = rows.stop, rows.stop_line, rows.is_skipping
        if not needs_more_data:
            continue
        if next_block is None:
            return
        # The incomplete row becomes the start of a new buffer.
        data, offset = np.concatenate([data[offset:], next_block]), 0
        next_block = next(blocks, None)
