"""Finds where each field of each row of a CSV file lies: start and length per column, in one pass of native/csv.cpp;
also for files that can't be cut (compressed, or in another encoding than UTF-8), block by block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int32s, Int64s, allocate
from recordmill.sources.csv.dialect import CsvOptions
from recordmill.sources.csv.sniff_dialect import MAX_SNIFFED_COLUMNS, Cell, DialectTrial
from recordmill.sources.values.text_columns import text_at

MAX_BAD_ROWS = (
    4096  # bad rows per call, so that their places need no memory that grows with the input
)


@dataclass(frozen=True)
class TokenizedRows:
    """Consecutive rows of a buffer; the arrays are views that the next call overwrites.

    Attributes:
        starts, infos: [columns, rows]: where a field starts in the buffer; its length with QUOTED.
        widths: [rows], the number of fields (which is columns, unless ragged).
        ordinals: [rows], the row's number counted from the first row of the call, bad ones included.
        lines: [rows], the physical line where it starts.
        bad_rows: [bad rows, 6]: ordinal, line, start, width (or CSV_TOO_LONG, CSV_STRAY_QUOTE), where the field that is
            wrong starts, and 1 if its lines would be rows without quotes.
        stop: Where the next row starts or the data ends.
        stop_line: Its line.
        num_rows: How many rows there were, bad ones included.
        is_skipping: The buffer ended inside a line to skip.
        blank_lines: How many blank lines were no rows.
        quote_counts: Of the rows that are not bad: how many fields stand in quotes, rows whose lines would be no rows without
            quotes, rows of several lines each of which would be a row, and where the first of these starts.
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
    """Reads rows with so many columns; holds the arrays, so one thread uses it at a time.

    dialect: options with a delimiter and a quote, or none. ragged: rows with fewer fields are given too (their missing
    fields undefined), instead of listed as bad.
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
        """Returns the rows that start in data[at:limit), as many as the arrays hold; data is changed by unescaping.

        at: where a row starts (or skipping: in a line to skip). final: the data ends with a row or with the file, so an
        open row is complete, and an open quote is one that is never closed; else an incomplete row is left for the next
        call, from `stop` on.
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
    """End of the first row (or comment) from some byte on, or where one that is not whole starts. is_skipping: the data
    ended in a comment. has_too_long_row: a row before that is longer than the most, or its quote is never closed.
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
    """Returns where the last row stops that starts in data[at:limit): `Tokenizer.read` without fields, several times as
    fast. Data isn't changed.
    """
    scan = native.CsvScan(position=offset, limit=limit, is_final=is_final, is_skipping=is_skipping)
    native.scan_csv(data, _native_dialect(dialect), scan, None, None, None, np.empty(6, np.int64))
    return RowEnd(scan.position, bool(scan.is_skipping), scan.bad_rows > 0)


def _native_dialect(
    dialect: CsvOptions, num_columns: int = 0, allows_ragged_rows: bool = False
) -> native.CsvDialect:
    assert dialect.delimiter is not None
    quote, escape, comment = (
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
    """Returns the first rows of a sample, which starts with a row, as a dialect cuts them.

    final: the sample ends with the file.
    """
    widths = _count_fields(sample, dialect, max_rows, is_final)
    trial = DialectTrial(
        delimiter=dialect.delimiter or "", quote=dialect.quote, widths=tuple(widths), rows=()
    )
    if not widths or max(trial.width, widths[0]) == native.CsvRowFault.TOO_LONG:
        return trial
    data = sample.copy()
    rows = Tokenizer(dialect, max(trial.width, widths[0]), max_rows, allows_ragged_rows=True).read(
        data, 0, len(data), is_final=is_final
    )
    first_row = (
        _extract_cells(data, rows, 0) if len(rows.ordinals) and rows.ordinals[0] == 0 else ()
    )
    matching_rows = (
        np.flatnonzero(rows.widths == trial.width).tolist()
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
    """Returns how many fields the first rows have; CSV_TOO_LONG for one whose quote is never closed. Blank lines are
    not asked: they are rows only where all others have one field.
    """
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
    """Yields (buffer, rows in it) for all rows of the blocks, which make one file, from byte `at` on, which lies in the
    first `line`.

    At most chunk_bytes of rows at once; none if there are blank lines only. The buffer holds one row more than a block
    at most, and must be used before the next is asked for.
    """
    data: Bytes | None = np.empty(0, np.uint8)
    while data is not None and len(data) <= offset:  # `at` may lie after the first block
        offset -= len(data)
        data = next(blocks, None)
    if data is None:
        return
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
        needs_more_data = rows.stop == offset or rows.stop >= len(data)
        offset, line, is_skipping = rows.stop, rows.stop_line, rows.is_skipping
        if not needs_more_data:
            continue
        if next_block is None:
            return
        data, offset = np.concatenate([data[offset:], next_block]), 0
        next_block = next(blocks, None)
