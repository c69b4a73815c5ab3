"""The tokenizer of CSV as Numba kernels: `tokenize` notes where each field of each row lies. `fields.Tokenizer` is
how it is called.

Masks of 64 bytes find the delimiters, line ends, quotes and escapes; only those are looked at. A row that ends inside
the buffer is committed: its fields are unescaped *in place* (the text never grows), so that what comes after sees plain
text. The states and their names are those of Python's `_csv.c`; `automaton` holds the same as a table.
"""

# mypy: disable-error-code="arg-type,assignment,return-value,no-any-return"
# In compiled code NumPy's scalars and Python's are the same.

from __future__ import annotations

import numpy as np

from recordmill.base import native
from recordmill.base.arrays import Bytes, Int32s, Int64s
from recordmill.base.byte_masks import LANES, byte_mask, first_bit
from recordmill.base.kernels import inlined, kernel

LENGTH_COLUMN, QUOTED = native.FIELD_LENGTH, native.FIELD_QUOTED
FIELD_TOO_LONG = -1  # the width of a bad row that exceeds max_row_bytes or whose quote is never closed
STRAY_QUOTE = -2  # the width of a bad row with a field that goes on behind its closing quote

_DIRTY = 1 << 30  # bit in an info before the row is committed: it has to be unescaped
_STRAY = 1 << 28  # and: the field goes on behind its closing quote
_CR, _LF = 13, 10

# What `dialect` holds.
_DELIMITER, _QUOTE, _DOUBLED, _ESCAPE, _COMMENT, _TRIM, _MAX_ROW, _COLUMNS, _RAGGED, _LENIENT = range(10)
# What `scan` holds: where the tokenizer stands, what its row holds (OPENED: fields in quotes, INNER: delimiters in
# them), and what those before it hold: QUOTED_FIELDS; rows that NEEDED the quotes, since their lines would be no rows
# without; rows ACROSS lines of which each would be one, and the first of their lines.
(
    MODE,
    ROW_START,
    FIELD_START,
    COLUMN,
    ROW_COUNT,
    BAD,
    ORDINAL,
    LINE_COUNT,
    ROW_LINE,
    LITERAL,
    CLOSED_AT,
    DIRTY_ROW,
    DIRTY_FIELD,
    STOP,
    FINAL,
    MOST_FIELD_BYTES,
    NEXT_ROW,
    BLANKS,
    OPENED,
    INNER,
    QUOTED_FIELDS,
    NEEDED,
    ACROSS,
    FIRST_ACROSS,
) = range(24)
SCAN_SIZE = 24
# Values of MODE. PLAIN: an unquoted field. INSIDE: quotes are open. CLOSED: behind what may be the closing quote. REST:
# unquoted text behind it. SKIP: a comment, or what remains of the line of a row that was too long.
PLAIN_FIELD, INSIDE_QUOTES, AFTER_QUOTES, REST, SKIP_LINE = range(5)
_GO_ON, _RESCAN, _FULL = range(3)


@kernel
def tokenize(
    data: Bytes, dialect: Int64s, scan: Int64s, starts: Int32s, infos: Int32s, rows: Int64s, bad: Int64s
) -> None:
    """Go on from where `scan` stands until the arrays are full, a row starts at LIMIT or later, or the data ends."""
    size = len(data)
    scan[NEXT_ROW] = scan[STOP]
    if scan[NEXT_ROW] >= scan[MOST_FIELD_BYTES]:
        return
    while True:
        while scan[NEXT_ROW] < size:
            if _usual(scan, dialect) and _usual_blocks(data, dialect, scan, starts, infos, rows, bad) == _FULL:
                return
            if scan[NEXT_ROW] < size and _any_blocks(data, dialect, scan, starts, infos, rows, bad) == _FULL:
                return
        if _at_end(data, dialect, scan, starts, infos, rows, bad) != _RESCAN:
            return


@kernel
def _usual(scan: Int64s, dialect: Int64s) -> bool:
    """Whether the next block, if no escape and no comment sign stands in it, can go the usual way."""
    return scan[MODE] != SKIP_LINE and scan[LITERAL] < scan[NEXT_ROW] and dialect[_TRIM] == 0


@kernel
def _special(data: Bytes, base: int, size: int, dialect: Int64s) -> np.uint64:
    """Where in 64 bytes an escape or the sign of a comment stands."""
    return byte_mask(data, base, size, dialect[_ESCAPE]) | byte_mask(data, base, size, dialect[_COMMENT])


@kernel
def _marks(data: Bytes, base: int, size: int, dialect: Int64s) -> np.uint64:
    """Where in 64 bytes a delimiter, a quote or a line end stands."""
    ends = byte_mask(data, base, size, _LF) | byte_mask(data, base, size, _CR)
    return byte_mask(data, base, size, dialect[_DELIMITER]) | byte_mask(data, base, size, dialect[_QUOTE]) | ends


@kernel
def _usual_blocks(
    data: Bytes, dialect: Int64s, scan: Int64s, starts: Int32s, infos: Int32s, rows: Int64s, bad: Int64s
) -> int:
    """Blocks without escape and comment sign, up to one that has any: where nearly all time is spent, so the state is
    local and rows end inline.
    """
    size, base, row, column, start = len(data), scan[NEXT_ROW], scan[ROW_COUNT], scan[COLUMN], scan[FIELD_START]
    row_start, line, row_line = scan[ROW_START], scan[LINE_COUNT], scan[ROW_LINE]
    delimiter, quote, columns, longest = dialect[_DELIMITER], dialect[_QUOTE], dialect[_COLUMNS], dialect[_MAX_ROW]
    last_row, last_start = starts.shape[1] - 1, min(scan[MOST_FIELD_BYTES], size) - 2
    mode, closed_at, dirty, dirty_row = scan[MODE], scan[CLOSED_AT], scan[DIRTY_FIELD], scan[DIRTY_ROW]
    opened, inner, quoted, needed = scan[OPENED], scan[INNER], scan[QUOTED_FIELDS], scan[NEEDED]
    while base < size and _special(data, base, size, dialect) == np.uint64(0):
        events = _marks(data, base, size, dialect)
        while events != np.uint64(0):
            at = base + first_bit(events)
            events &= events - np.uint64(1)
            byte = data[at]
            if byte == quote:
                if mode != PLAIN_FIELD:
                    mode, dirty, closed_at = _at_quote(at, mode, dirty, closed_at, dialect[_DOUBLED])
                elif at == start:
                    mode, opened = INSIDE_QUOTES, opened + 1
            elif mode == INSIDE_QUOTES:
                if byte == delimiter:
                    inner += 1
                else:
                    line += _lines(data, at)
            elif byte == delimiter:
                value_start, info = _span(start, at, mode, dirty, closed_at)
                if column < columns:
                    starts[column, row], infos[column, row] = value_start, info
                dirty_row |= info & (_DIRTY | _STRAY)
                start, column, mode, dirty = at + 1, column + 1, PLAIN_FIELD, 0
            elif at < row_start:
                continue  # the LF of a CRLF
            elif (
                dirty_row | dirty == 0
                and (mode == PLAIN_FIELD or at == closed_at + 1)
                and (line == row_line or (columns > 1 and (inner == 0 or inner % (columns - 1) != 0)))
                and column + 1 == columns
                and row_start < at <= row_start + longest
                and row < last_row
                and at < last_start
            ):
                starts[column, row], infos[column, row] = _span(start, at, mode, dirty, closed_at)
                rows[0, row], rows[1, row], rows[2, row] = columns, scan[ORDINAL], row_line
                scan[ORDINAL] += 1
                # lines that would all be rows have as many delimiters each
                quoted, needed = quoted + opened, needed + (inner > 0 or line > row_line)
                opened = inner = 0
                row, column, mode, line = row + 1, 0, PLAIN_FIELD, line + 1
                row_line, row_start = line, _after_line(data, at)
                start = row_start
            else:
                _stand(scan, base, row, row_line, row_start, line, column, start, mode, closed_at, dirty, dirty_row)
                _count(scan, opened, inner, quoted, needed)
                then = _line_end(data, at, dialect, scan, starts, infos, rows, bad)
                if then != _GO_ON:
                    return then
                start, row_start, row = scan[FIELD_START], scan[ROW_START], scan[ROW_COUNT]
                line, row_line = scan[LINE_COUNT], scan[ROW_LINE]
                column, mode, dirty, dirty_row = 0, PLAIN_FIELD, 0, 0
                opened, inner, quoted, needed = 0, 0, scan[QUOTED_FIELDS], scan[NEEDED]
        base += LANES
    _stand(scan, base, row, row_line, row_start, line, column, start, mode, closed_at, dirty, dirty_row)
    _count(scan, opened, inner, quoted, needed)
    return _GO_ON


@inlined
def _stand(
    scan: Int64s,
    base: int,
    row: int,
    row_line: int,
    row_start: int,
    line: int,
    column: int,
    start: int,
    mode: int,
    closed_at: int,
    dirty: int,
    dirty_row: int,
) -> None:
    """Note in `scan` where the tokenizer stands."""
    scan[NEXT_ROW], scan[ROW_COUNT], scan[ROW_LINE], scan[ROW_START], scan[STOP] = (
        base,
        row,
        row_line,
        row_start,
        row_start,
    )
    scan[LINE_COUNT], scan[COLUMN], scan[FIELD_START], scan[MODE] = line, column, start, mode
    scan[CLOSED_AT], scan[DIRTY_FIELD], scan[DIRTY_ROW] = closed_at, dirty, dirty_row


@inlined
def _count(scan: Int64s, opened: int, inner: int, quoted: int, needed: int) -> None:
    """Note in `scan` what the quotes of this row and of those before it hold."""
    scan[OPENED], scan[INNER], scan[QUOTED_FIELDS], scan[NEEDED] = opened, inner, quoted, needed


@kernel
def _at_quote(at: int, mode: int, dirty: int, closed_at: int, doubled: int) -> tuple[int, int, int]:
    """(mode, dirty, closed_at) behind a quote, in a field that began with one."""
    if mode == INSIDE_QUOTES:
        return (AFTER_QUOTES if doubled else REST), dirty, at
    if mode == AFTER_QUOTES:
        return (INSIDE_QUOTES if at == closed_at + 1 else REST), _DIRTY, closed_at
    return mode, dirty, closed_at


@kernel
def _span(start: int, stop: int, mode: int, dirty: int, closed_at: int) -> tuple[int, int]:
    """(start, info) of the field that ends before `stop`: without its quotes, unless it has to be unescaped."""
    if mode == PLAIN_FIELD:
        return start, (stop - start) | dirty
    if stop != closed_at + 1:
        return start, (stop - start) | QUOTED | _DIRTY | _STRAY
    if dirty:
        return start, (stop - start) | QUOTED | _DIRTY
    return start + 1, (stop - start - 2) | QUOTED


@kernel
def _any_blocks(
    data: Bytes, dialect: Int64s, scan: Int64s, starts: Int32s, infos: Int32s, rows: Int64s, bad: Int64s
) -> int:
    """Blocks in any state, up to one that can go the usual way."""
    size = len(data)
    while True:
        base = scan[NEXT_ROW]
        events = _marks(data, base, size, dialect) | _special(data, base, size, dialect)
        while events != np.uint64(0):
            at = base + first_bit(events)
            events &= events - np.uint64(1)
            then = _event(data, at, dialect, scan, starts, infos, rows, bad)
            if then != _GO_ON:
                return then
        base += LANES
        scan[NEXT_ROW] = base
        if base >= size or (_usual(scan, dialect) and _special(data, base, size, dialect) == np.uint64(0)):
            return _GO_ON


@kernel
def _event(
    data: Bytes, at: int, dialect: Int64s, scan: Int64s, starts: Int32s, infos: Int32s, rows: Int64s, bad: Int64s
) -> int:
    """One delimiter, line end, quote, escape or comment sign."""
    byte, mode = data[at], scan[MODE]
    newline = byte in (_LF, _CR)
    if at == scan[LITERAL] or (mode == INSIDE_QUOTES and newline):
        if newline:
            scan[LINE_COUNT] += _lines(data, at)
    elif mode == SKIP_LINE:
        if newline:
            if _half_crlf(data, at, scan):
                scan[STOP] = at
                return _FULL
            scan[LINE_COUNT] += _lines(data, at)
            scan[MODE] = PLAIN_FIELD
            if _new_row(_after_line(data, at), scan, starts, bad):
                return _FULL
    elif mode == INSIDE_QUOTES:
        _inside(byte, at, dialect, scan)
    elif byte == dialect[_DELIMITER]:
        _end_field(data, at, dialect, scan, starts, infos)
    elif newline:
        return _line_end(data, at, dialect, scan, starts, infos, rows, bad)
    else:
        _outside(data, byte, at, dialect, scan)
    return _GO_ON


@kernel
def _inside(byte: int, at: int, dialect: Int64s, scan: Int64s) -> None:
    """A quote, an escape or anything else inside quotes."""
    if byte == dialect[_QUOTE]:
        scan[MODE], scan[DIRTY_FIELD], scan[CLOSED_AT] = _at_quote(
            at, INSIDE_QUOTES, scan[DIRTY_FIELD], scan[CLOSED_AT], dialect[_DOUBLED]
        )
    elif byte == dialect[_ESCAPE]:
        scan[LITERAL] = at + 1
        scan[DIRTY_FIELD] = _DIRTY
    elif byte == dialect[_DELIMITER]:
        scan[INNER] += 1


@kernel
def _outside(data: Bytes, byte: int, at: int, dialect: Int64s, scan: Int64s) -> None:
    """A quote, an escape or a comment outside quotes or behind them."""
    if scan[MODE] == AFTER_QUOTES:
        if at == scan[CLOSED_AT] + 1:  # _csv.c looks for a quote here, not for an escape
            scan[MODE] = INSIDE_QUOTES if byte == dialect[_QUOTE] else REST
            scan[DIRTY_FIELD] = _DIRTY
            return
        scan[MODE] = REST
    if byte == dialect[_ESCAPE]:
        scan[LITERAL] = at + 1
        scan[DIRTY_FIELD] = _DIRTY
    elif byte == dialect[_QUOTE]:
        if scan[MODE] == PLAIN_FIELD and _only_blanks(data, scan[FIELD_START], at, dialect):
            scan[FIELD_START] = at
            scan[MODE] = INSIDE_QUOTES
            scan[OPENED] += 1
    elif at == scan[ROW_START]:
        scan[MODE] = SKIP_LINE


@kernel
def _blank(byte: int, dialect: Int64s) -> bool:
    return byte == 32 or (byte == 9 and dialect[_DELIMITER] != 9)


@kernel
def _only_blanks(data: Bytes, start: int, stop: int, dialect: Int64s) -> bool:
    """Whether nothing, or with trim nothing but blanks, stands in [start, stop)."""
    if start == stop:
        return True
    if not dialect[_TRIM]:
        return False
    while start < stop and _blank(data[start], dialect):
        start += 1
    return start == stop


@kernel
def _end_field(data: Bytes, at: int, dialect: Int64s, scan: Int64s, starts: Int32s, infos: Int32s) -> None:
    """The field ends before `at`: note where it lies."""
    start, stop, mode = scan[FIELD_START], at, scan[MODE]
    if dialect[_TRIM]:
        while stop > start and stop - 1 != scan[LITERAL] and _blank(data[stop - 1], dialect):
            stop -= 1
        while mode == PLAIN_FIELD and start < stop and _blank(data[start], dialect):
            start += 1
    start, info = _span(start, stop, mode, scan[DIRTY_FIELD], scan[CLOSED_AT])
    if scan[COLUMN] < dialect[_COLUMNS]:
        starts[scan[COLUMN], scan[ROW_COUNT]], infos[scan[COLUMN], scan[ROW_COUNT]] = start, info
    scan[DIRTY_ROW] |= info & (_DIRTY | _STRAY)
    scan[DIRTY_FIELD] = 0
    scan[COLUMN] += 1
    scan[FIELD_START] = at + 1
    scan[MODE] = PLAIN_FIELD


@kernel
def _lines(data: Bytes, at: int) -> int:
    """1 if the CR or LF at `at` ends a physical line that was not counted yet: not the LF of a CRLF."""
    return 0 if data[at] == _LF and at > 0 and data[at - 1] == _CR else 1


@kernel
def _half_crlf(data: Bytes, at: int, scan: Int64s) -> bool:
    """Whether a CR ends the buffer, so that only the bytes that follow tell whether an LF belongs to it."""
    return data[at] == _CR and at + 1 == len(data) and not scan[FINAL]


@kernel
def _after_line(data: Bytes, at: int) -> int:
    """Where the line behind the CR, LF or CRLF at `at` starts."""
    return at + 2 if data[at] == _CR and at + 1 < len(data) and data[at + 1] == _LF else at + 1


@kernel
def _line_end(
    data: Bytes, at: int, dialect: Int64s, scan: Int64s, starts: Int32s, infos: Int32s, rows: Int64s, bad: Int64s
) -> int:
    """A CR or LF at `at` outside quotes: the row ends. A blank line is a row of one empty field where rows have one
    column, as `csv.writer` writes a null there, and elsewhere no row, which is counted.
    """
    if _half_crlf(data, at, scan):
        return _FULL
    blank = at == scan[ROW_START] and _lines(data, at) == 1
    blank_row = blank and dialect[_COLUMNS] == 1
    if blank and not blank_row:
        scan[BLANKS] += 1
    if (at > scan[ROW_START] or blank_row) and _end_row(data, at, dialect, scan, starts, infos, rows, bad):
        return _RESCAN
    scan[LINE_COUNT] += _lines(data, at)
    return _FULL if _new_row(_after_line(data, at), scan, starts, bad) else _GO_ON


@kernel
def _new_row(start: int, scan: Int64s, starts: Int32s, bad: Int64s) -> bool:
    """A row may start here; says whether it has to wait for the next call."""
    scan[ROW_START] = scan[FIELD_START] = scan[STOP] = start
    scan[ROW_LINE] = scan[LINE_COUNT]
    return start >= scan[MOST_FIELD_BYTES] or scan[ROW_COUNT] == starts.shape[1] or scan[BAD] == len(bad)


@kernel
def _end_row(
    data: Bytes, at: int, dialect: Int64s, scan: Int64s, starts: Int32s, infos: Int32s, rows: Int64s, bad: Int64s
) -> bool:
    """The row ends before `at`: commit it, or list it as bad;
    says whether it was too long, so that its lines are to be read anew.
    """
    if at - scan[ROW_START] > dialect[_MAX_ROW]:
        _read_anew(data, dialect, scan, bad)
        return True
    _end_field(data, at, dialect, scan, starts, infos)
    row, width = scan[ROW_COUNT], scan[COLUMN]
    if scan[DIRTY_ROW] & _STRAY and not dialect[_LENIENT]:
        stray = _stray_field(starts, infos, row, min(width, dialect[_COLUMNS]), scan[ROW_START])
        _refuse(STRAY_QUOTE, stray, _are_rows(data, scan[ROW_START], at, dialect), scan, bad)
    elif width == dialect[_COLUMNS] or (dialect[_RAGGED] and width < dialect[_COLUMNS]):
        _count_row(data, at, dialect, scan)
        if scan[DIRTY_ROW]:
            for column in range(width):
                if infos[column, row] & _DIRTY:
                    infos[column, row] = _clean(data, starts[column, row], infos[column, row], dialect)
        rows[0, row], rows[1, row], rows[2, row] = width, scan[ORDINAL], scan[ROW_LINE]
        scan[ROW_COUNT] += 1
        scan[ORDINAL] += 1
    else:
        _refuse(width, scan[ROW_START], _are_rows(data, scan[ROW_START], at, dialect), scan, bad)
    scan[COLUMN] = scan[DIRTY_ROW] = scan[OPENED] = scan[INNER] = 0
    return False


@kernel
def _stray_field(starts: Int32s, infos: Int32s, row: int, columns: int, row_start: int) -> int:
    """Where the first field that goes on behind its closing quote starts; the row, if it is none of these columns."""
    for column in range(columns):
        if infos[column, row] & _STRAY:
            return np.int64(starts[column, row])
    return row_start


@kernel
def _count_row(data: Bytes, stop: int, dialect: Int64s, scan: Int64s) -> None:
    """Count what the quotes of a row that can be used hold, before it is unescaped."""
    scan[QUOTED_FIELDS] += scan[OPENED]
    if scan[LINE_COUNT] == scan[ROW_LINE]:
        scan[NEEDED] += scan[INNER] > 0
    elif not _are_rows(data, scan[ROW_START], stop, dialect):
        scan[NEEDED] += 1
    else:
        scan[FIRST_ACROSS] = scan[FIRST_ACROSS] if scan[ACROSS] else scan[ROW_LINE]
        scan[ACROSS] += 1


@kernel
def _are_rows(data: Bytes, start: int, stop: int, dialect: Int64s) -> bool:
    """Whether each line in data[start:stop) would be a row if there were no quotes."""
    at, line, fields = start, start, 1
    while at <= stop:
        byte = _LF if at == stop else data[at]
        if byte in (_LF, _CR):
            if at > line and data[line] != dialect[_COMMENT] and fields != dialect[_COLUMNS]:
                return False
            line, fields = at + 1, 1
        elif byte == dialect[_DELIMITER]:
            fields += 1
        elif byte == dialect[_ESCAPE]:
            at += 1
        at += 1
    return at == stop + 1  # no escape makes the line end a part of a field


@kernel
def _refuse(width: int, field: int, are_rows: bool, scan: Int64s, bad: Int64s) -> None:
    """List the row as bad. field: where what is wrong starts; are_rows: its lines would be rows without quotes."""
    index = scan[BAD]
    bad[index, 0], bad[index, 1], bad[index, 2], bad[index, 3] = scan[ORDINAL], scan[ROW_LINE], scan[ROW_START], width
    bad[index, 4], bad[index, 5] = field, are_rows
    scan[BAD] += 1
    scan[ORDINAL] += 1
    scan[COLUMN] = scan[DIRTY_ROW] = scan[DIRTY_FIELD] = scan[OPENED] = scan[INNER] = 0


@kernel
def _read_anew(data: Bytes, dialect: Int64s, scan: Int64s, bad: Int64s) -> None:
    """The row is too long: list it as bad, and go on at its second physical line."""
    start, end = scan[ROW_START], scan[ROW_START]
    last = min(start + dialect[_MAX_ROW], len(data))
    while end < last and data[end] not in (_LF, _CR):
        end += 1
    is_row = (end < last or (scan[FINAL] and end == len(data))) and _are_rows(data, start, end, dialect)
    _refuse(FIELD_TOO_LONG, start, is_row, scan, bad)
    scan[MODE], scan[LITERAL], scan[LINE_COUNT], scan[NEXT_ROW] = SKIP_LINE, -1, scan[ROW_LINE], scan[ROW_START]


@kernel
def _at_end(
    data: Bytes, dialect: Int64s, scan: Int64s, starts: Int32s, infos: Int32s, rows: Int64s, bad: Int64s
) -> int:
    """The data ends: take the last row if it is complete or can't be completed."""
    size, start, mode = len(data), scan[ROW_START], scan[MODE]
    if mode == SKIP_LINE:
        scan[STOP] = size
        return _FULL
    if start >= size:
        return _FULL
    never_closed = scan[FINAL] and (mode == INSIDE_QUOTES or scan[LITERAL] == size)
    if never_closed or (not scan[FINAL] and size - start > dialect[_MAX_ROW]):
        _read_anew(data, dialect, scan, bad)
        return _RESCAN
    if scan[FINAL]:
        if _end_row(data, size, dialect, scan, starts, infos, rows, bad):
            return _RESCAN
        scan[ROW_START] = scan[STOP] = size
    return _FULL


@kernel
def _clean(data: Bytes, start: int, info: int, dialect: Int64s) -> int:
    """Unescape a field in place; gives its new info."""
    return _unescape(data, start, info & LENGTH_COLUMN, dialect) | (info & QUOTED)


@kernel
def _unescape(data: Bytes, start: int, size: int, dialect: Int64s) -> int:
    """Write the text that the raw field data[start:start + size] stands for over it; gives its length."""
    quote, escape = dialect[_QUOTE], dialect[_ESCAPE]
    into, at, stop = start, start, start + size
    mode = PLAIN_FIELD
    if at < stop and data[at] == quote:
        mode = INSIDE_QUOTES
        at += 1
    while at < stop:
        byte = data[at]
        at += 1
        if mode == AFTER_QUOTES:
            mode = INSIDE_QUOTES if byte == quote else REST
        elif byte == escape:
            if at == stop:
                break
            byte = data[at]
            at += 1
        elif mode == INSIDE_QUOTES and byte == quote:
            mode = AFTER_QUOTES if dialect[_DOUBLED] else REST
            continue
        data[into] = byte
        into += 1
    return into - start
