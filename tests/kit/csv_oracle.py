"""A slow reader of CSV, as the expected result of the fast one.

It follows the states of `_csv.c` byte by byte. It classifies texts with regular expressions and
Python's own types.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

from recordmill.schemas.type_lattice import (
    AWARE_CLASS,
    BEYOND_NANOS_CLASS,
    BOOL_CLASS,
    FLOAT32_CLASS,
    INT64_CLASS,
    MICROS_CLASS,
    MILLIS_CLASS,
    NAIVE_CLASS,
    NANOS_CLASS,
    SECONDS_CLASS,
    TEXT_CLASS,
)
from recordmill.sources.csv.options import AUTO_QUOTE, CsvOptions

_LINE_ENDS = (10, 13)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def expected_class(text: str) -> int:
    """Returns the class of a text in the lattice of types."""
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return BOOL_CLASS
    if re.fullmatch(r"-?(0|[1-9][0-9]*)", text):
        return INT64_CLASS if -(2**63) <= int(text) < 2**63 else TEXT_CLASS
    if re.fullmatch(
        r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?", text
    ) or re.fullmatch(r"(?i)-?(nan|inf|infinity)", text):
        return FLOAT32_CLASS
    return expected_moment(text)[0] or TEXT_CLASS


def expected_moment(text: str) -> tuple[int, datetime | None]:
    """Returns the class of a timestamp, and the time to the microsecond.

    A time without a zone is read as UTC. A text that is not a timestamp returns (0, None).
    """
    match = re.fullmatch(
        r"(\d{4}-\d\d-\d\d)(?:[T ]((?!24)\d\d:\d\d)(:\d\d(?:\.(\d{1,9}))?)?(Z|[+-]\d\d:\d\d)?)?",
        text,
        re.ASCII,
    )
    if match is None:
        return 0, None
    day, minutes, seconds, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(
            f"{day}T{minutes or '00:00'}{(seconds or ':00')[:3]}{(zone or 'Z').replace('Z', '+00:00')}"
        )
    except ValueError:
        return 0, None
    digits = fraction or ""
    unit = (SECONDS_CLASS, MILLIS_CLASS, MICROS_CLASS, NANOS_CLASS)[(len(digits) + 2) // 3]
    range_class = (
        0
        if -9_223_372_036 <= (moment - EPOCH) // timedelta(seconds=1) < 9_223_372_036
        else BEYOND_NANOS_CLASS
    )
    return unit | (AWARE_CLASS if zone else NAIVE_CLASS) | range_class, moment.replace(
        microsecond=int(digits.ljust(6, "0")[:6])
    )


@dataclass(frozen=True)
class Row:
    """A row of a CSV file.

    Attributes:
        start: Offset of its first byte.
        line: Number of its first line, from 1.
        fields: None if the row never ends, is too long, or has a stray character after a quote.
        quoted: Whether each field was quoted.
        stray: Whether a character follows a closing quote.
    """

    start: int
    line: int
    fields: tuple[bytes, ...] | None
    quoted: tuple[bool, ...] = ()
    stray: bool = False


def oracle_rows(
    data: bytes, options: CsvOptions, delimiter: str = ",", columns: int | None = None
) -> list[Row]:
    """Returns all rows of a file.

    Args:
        options: With AUTO_QUOTE, the quote is the double quote.
        columns: If 1, a blank line is a row.
    """
    options = replace(options, quote='"') if options.quote == AUTO_QUOTE else options
    return list(_rows(data, options, delimiter, columns == 1))


def _rows(data: bytes, options: CsvOptions, delimiter: str, has_blank_rows: bool) -> Iterator[Row]:
    position, line, counted_end = 0, 1, 0
    while position < len(data):
        if data[position] in _LINE_ENDS:
            if has_blank_rows:
                line, counted_end = line + physical_lines(data[counted_end:position]), position
                yield Row(position, line, (b"",), (False,))
            position = _next_line_start(data, position)
        elif options.comment is not None and data[position] == ord(options.comment):
            position = _next_line_start(data, _line_end(data, position))
        else:
            # A row never starts between the CR and the LF of a line end.
            line, counted_end = (
                line + physical_lines(data[counted_end:position]),
                position,
            )
            end, fields, quoted, stray = _read_row(data, position, options, delimiter)
            if fields is None or end - position > options.max_line_bytes:
                yield Row(position, line, None)
                position = _next_line_start(data, _line_end(data, position))
            else:
                is_stray = stray and not options.lenient_quotes
                yield (
                    Row(position, line, None, stray=True)
                    if is_stray
                    else Row(position, line, fields, quoted)
                )
                position = _next_line_start(data, end)


def physical_lines(data: bytes) -> int:
    """Returns the number of line ends: CR, LF and CRLF.

    A CR at the end of `data` is counted. That is correct unless an LF follows.
    """
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")


def _line_end(data: bytes, position: int) -> int:
    while position < len(data) and data[position] not in _LINE_ENDS:
        position += 1
    return position


def _next_line_start(data: bytes, line_end: int) -> int:
    """Returns the start of the line after a line end."""
    return line_end + 2 if data[line_end : line_end + 2] == b"\r\n" else line_end + 1


def _read_row(
    data: bytes, position: int, options: CsvOptions, delimiter: str
) -> tuple[int, tuple[bytes, ...] | None, tuple[bool, ...], bool]:
    """Reads the row that starts at `position`.

    Returns:
        (offset of its line end, fields, whether each is quoted, whether a stray character follows a
            quote). An endless row has None as its fields.
    """
    comma, quote, escape = (
        ord(c) if c is not None else 256 for c in (delimiter, options.quote, options.escape)
    )
    fields: list[bytes] = []
    quoted: list[bool] = []
    field = bytearray()
    state, was_quoted = "START", False
    protected_size = 0  # trim keeps this many bytes, which were quoted or escaped
    closed_size = 0  # size of the field when its quote was closed
    stray = False

    def save() -> None:
        nonlocal field, was_quoted, protected_size, stray
        text = bytes(field)
        if options.trim:
            blanks = b" " if delimiter == "\t" else b" \t"
            text = text[:protected_size] + text[protected_size:].rstrip(blanks)
        stray |= was_quoted and len(text) > closed_size
        fields.append(text)
        quoted.append(was_quoted)
        field, was_quoted, protected_size = bytearray(), False, 0

    while position < len(data):
        byte = data[position]
        if state == "START":
            if byte in _LINE_ENDS:
                save()
                return position, tuple(fields), tuple(quoted), stray
            if byte == quote:
                state, was_quoted = "INSIDE", True
            elif byte == escape:
                state = "ESCAPED"
            elif byte == comma:
                save()
            elif options.trim and (byte == 32 or (byte == 9 and delimiter != "\t")):
                pass
            else:
                field.append(byte)
                state = "FIELD"
        elif state == "ESCAPED":
            field.append(byte)
            protected_size, state = len(field), "FIELD"
        elif state == "FIELD":
            if byte in _LINE_ENDS:
                save()
                return position, tuple(fields), tuple(quoted), stray
            if byte == escape:
                state = "ESCAPED"
            elif byte == comma:
                save()
                state = "START"
            else:
                field.append(byte)
        elif state == "INSIDE":
            if byte == escape:
                state = "ESCAPED INSIDE"
            elif byte == quote:
                protected_size = closed_size = len(field)
                state = "CLOSED" if options.doubled_quote else "FIELD"
            else:
                field.append(byte)
        elif state == "ESCAPED INSIDE":
            field.append(byte)
            state = "INSIDE"
        elif state == "CLOSED":
            if byte == quote:
                field.append(byte)
                state = "INSIDE"
            elif byte == comma:
                save()
                state = "START"
            elif byte in _LINE_ENDS:
                save()
                return position, tuple(fields), tuple(quoted), stray
            else:
                field.append(byte)
                state = "FIELD"
        position += 1
    if state in ("INSIDE", "ESCAPED", "ESCAPED INSIDE"):
        return position, None, (), stray
    save()
    return position, tuple(fields), tuple(quoted), stray
