"""CSV read slowly: `_csv.c`'s states byte by byte, what a text is by regular expressions and
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
    """The class of a text in the lattice of types."""
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
    """(the class of a text that is a time, the time to the microsecond, in UTC where it has no
    zone).
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
    beyond = (
        0
        if -9_223_372_036 <= (moment - EPOCH) // timedelta(seconds=1) < 9_223_372_036
        else BEYOND_NANOS_CLASS
    )
    return unit | (AWARE_CLASS if zone else NAIVE_CLASS) | beyond, moment.replace(
        microsecond=int(digits.ljust(6, "0")[:6])
    )


@dataclass(frozen=True)
class Row:
    """start: first byte. line: from 1. fields: None if endless, too long or stray. quoted: which
    fields were.
    """

    start: int
    line: int
    fields: tuple[bytes, ...] | None
    quoted: tuple[bool, ...] = ()
    stray: bool = False


def oracle_rows(
    data: bytes, options: CsvOptions, delimiter: str = ",", columns: int | None = None
) -> list[Row]:
    """All rows of the file; a quote that is to be told is the double one. columns: of one, a blank
    line is a row.
    """
    options = replace(options, quote='"') if options.quote == AUTO_QUOTE else options
    return list(_rows(data, options, delimiter, columns == 1))


def _rows(data: bytes, options: CsvOptions, delimiter: str, blank_rows: bool) -> Iterator[Row]:
    at, line, counted = 0, 1, 0
    while at < len(data):
        if data[at] in _LINE_ENDS:
            if blank_rows:
                line, counted = line + physical_lines(data[counted:at]), at
                yield Row(at, line, (b"",), (False,))
            at = _next_line_start(data, at)
        elif options.comment is not None and data[at] == ord(options.comment):
            at = _next_line_start(data, _line_end(data, at))
        else:
            line, counted = (
                line + physical_lines(data[counted:at]),
                at,
            )  # a row starts behind a whole CRLF
            end, fields, quoted, stray = _read_row(data, at, options, delimiter)
            if fields is None or end - at > options.max_line_bytes:
                yield Row(at, line, None)
                at = _next_line_start(data, _line_end(data, at))
            else:
                bad = stray and not options.lenient_quotes
                yield Row(at, line, None, stray=True) if bad else Row(at, line, fields, quoted)
                at = _next_line_start(data, end)


def physical_lines(data: bytes) -> int:
    """How many CR, LF and CRLF there are; a CR at the end counts, which is right before anything
    but an LF.
    """
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")


def _line_end(data: bytes, at: int) -> int:
    while at < len(data) and data[at] not in _LINE_ENDS:
        at += 1
    return at


def _next_line_start(data: bytes, at: int) -> int:
    """Where the line behind the CR, LF or CRLF at `at` starts."""
    return at + 2 if data[at : at + 2] == b"\r\n" else at + 1


def _read_row(
    data: bytes, at: int, options: CsvOptions, delimiter: str
) -> tuple[int, tuple[bytes, ...] | None, tuple[bool, ...], bool]:
    """(the offset of what ends it, its fields or None if it never ends, which are quoted, whether
    one is stray).
    """
    comma, quote, escape = (
        ord(c) if c is not None else 256 for c in (delimiter, options.quote, options.escape)
    )
    fields: list[bytes] = []
    quoted: list[bool] = []
    field = bytearray()
    state, was_quoted = "START", False
    kept = 0  # trim must not cut below: quoted or escaped bytes
    closed = 0  # bytes of the field when its quote was closed
    stray = False

    def save() -> None:
        nonlocal field, was_quoted, kept, stray
        text = bytes(field)
        if options.trim:
            blanks = b" " if delimiter == "\t" else b" \t"
            text = text[:kept] + text[kept:].rstrip(blanks)
        stray |= was_quoted and len(text) > closed
        fields.append(text)
        quoted.append(was_quoted)
        field, was_quoted, kept = bytearray(), False, 0

    while at < len(data):
        byte = data[at]
        if state == "START":
            if byte in _LINE_ENDS:
                save()
                return at, tuple(fields), tuple(quoted), stray
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
            kept, state = len(field), "FIELD"
        elif state == "FIELD":
            if byte in _LINE_ENDS:
                save()
                return at, tuple(fields), tuple(quoted), stray
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
                kept = closed = len(field)
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
                return at, tuple(fields), tuple(quoted), stray
            else:
                field.append(byte)
                state = "FIELD"
        at += 1
    if state in ("INSIDE", "ESCAPED", "ESCAPED INSIDE"):
        return at, None, (), stray
    save()
    return at, tuple(fields), tuple(quoted), stray
