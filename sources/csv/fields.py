"""Bytes of a CSV file in; where each field of each row lies out:
start and length per column, in one pass (the work is done by csv_tokenize).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from recordmill.base.byte_masks import Bytes
from recordmill.base.room import room
from recordmill.sources.csv.dialect import Dialect
from recordmill.sources.csv.sniff.dialects import MOST_COLUMNS, Cell, Cut
from recordmill.sources.csv.tokenize import (
    BAD,
    BLANKS,
    FIELD_START,
    FINAL,
    LIMIT,
    LINE,
    LITERAL,
    MODE,
    ORDINAL,
    PLAIN,
    ROW_LINE,
    ROW_START,
    ROWS,
    SCAN_SIZE,
    SKIP,
    STOP,
    TOO_LONG,
    Ints,
    Spans,
    tokenize,
)
from recordmill.sources.values.field_kernels import LENGTH, QUOTED

BAD_ROWS = 4096  # bad rows per call, so that their places need no memory that grows with the input


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a buffer; the arrays are views that the next call overwrites.

    starts, infos: [columns, rows]: where a field starts in the buffer; its length with QUOTED. widths: [rows], the
    number of fields (which is columns, unless ragged). ordinals: [rows], the row's number counted from the first row of
    the call, bad ones included. lines: [rows], the physical line where it starts. bad: [bad rows, 4]: ordinal, line,
    start, width or TOO_LONG. stop: where the next row starts or the data ends. line: its line. count: how many rows
    there were, bad ones included. skipping: the buffer ended inside a line to skip. blanks: how many
    blank lines were no rows.
    """

    starts: Spans
    infos: Spans
    widths: Ints
    ordinals: Ints
    lines: Ints
    bad: Ints
    stop: int
    line: int
    count: int
    skipping: bool
    blanks: int


class Tokenizer:
    """Reads rows of a dialect with so many columns; holds the arrays, so one thread uses it at a time.

    ragged: rows with fewer fields are given too (their missing fields undefined), instead of listed as bad.
    """

    def __init__(self, dialect: Dialect, columns: int, most_rows: int, *, ragged: bool = False) -> None:
        self._dialect = np.array(
            [
                dialect.delimiter,
                dialect.quote,
                dialect.doubled_quote,
                dialect.escape,
                dialect.comment,
                dialect.trim,
                dialect.max_row_bytes,
                columns,
                ragged,
            ],
            np.int64,
        )
        self._starts, self._infos = room((columns, most_rows), np.int32), room((columns, most_rows), np.int32)
        self._rows = np.empty((3, most_rows), np.int64)
        self._bad = np.empty((BAD_ROWS, 4), np.int64)

    def read(self, data: Bytes, at: int, limit: int, *, final: bool, line: int = 1, skipping: bool = False) -> Rows:
        """The rows that start in data[at:limit), as many as the arrays hold; data is changed by unescaping.

        at: where a row starts (or skipping: in a line to skip). final: the data ends with a row or with the file, so an
        open row is complete, and an open quote is one that is never closed; else an incomplete row is left for the next
        call, from `stop` on.
        """
        scan = np.zeros(SCAN_SIZE, np.int64)
        scan[MODE] = SKIP if skipping else PLAIN
        scan[ROW_START] = scan[FIELD_START] = scan[STOP] = at
        scan[LINE] = scan[ROW_LINE] = line
        scan[LITERAL], scan[FINAL], scan[LIMIT] = -1, final, limit
        tokenize(data, self._dialect, scan, self._starts, self._infos, self._rows, self._bad)
        rows, bad = int(scan[ROWS]), int(scan[BAD])
        widths, ordinals, lines = self._rows[:, :rows]
        return Rows(
            *(self._starts[:, :rows], self._infos[:, :rows], widths, ordinals, lines, self._bad[:bad]),
            *(int(scan[STOP]), int(scan[ROW_LINE]), int(scan[ORDINAL]), bool(scan[MODE] == SKIP)),
            int(scan[BLANKS]),
        )


def cut_sample(sample: Bytes, dialect: Dialect, most_rows: int, final: bool) -> Cut:
    """The first rows of a sample, which starts with a row, as a dialect cuts them.

    final: the sample ends with the file.
    """
    widths = _widths(sample, dialect, most_rows, final)
    cut = Cut(chr(dialect.delimiter), _character(dialect.quote), tuple(widths), ())
    if not widths or max(cut.width, widths[0]) == TOO_LONG:
        return cut
    data = sample.copy()
    rows = Tokenizer(dialect, max(cut.width, widths[0]), most_rows, ragged=True).read(data, 0, len(data), final=final)
    first = _cells(data, rows, 0) if len(rows.ordinals) and rows.ordinals[0] == 0 else ()
    even = np.flatnonzero(rows.widths == cut.width).tolist() if 2 * widths.count(cut.width) >= len(widths) else []
    return Cut(cut.delimiter, cut.quote, cut.widths, tuple(_cells(data, rows, row) for row in even), first)


def _character(byte: int) -> str | None:
    return chr(byte) if byte < 256 else None


def _widths(sample: Bytes, dialect: Dialect, most_rows: int, final: bool) -> Sequence[int]:
    """How many fields the first rows have; TOO_LONG for one whose quote is never closed. Blank lines are not asked:
    they are rows only where all others have one field.
    """
    rows = Tokenizer(dialect, 1, most_rows).read(sample.copy(), 0, len(sample), final=final)
    filled = rows.ordinals[rows.infos[0, : len(rows.ordinals)] != 0] if len(rows.ordinals) else rows.ordinals
    widths: dict[int, int] = {**dict.fromkeys(filled.tolist(), 1), **dict(rows.bad[:, (0, 3)].tolist())}
    return [widths[ordinal] for ordinal in sorted(widths)[:most_rows]]


def _cells(data: Bytes, rows: Rows, row: int) -> tuple[Cell, ...]:
    width = min(int(rows.widths[row]), MOST_COLUMNS)
    return tuple(
        Cell(data[at : at + (info & LENGTH)].tobytes().decode("utf-8", "replace"), bool(info & QUOTED))
        for at, info in zip(rows.starts[:width, row].tolist(), rows.infos[:width, row].tolist(), strict=True)
    )
