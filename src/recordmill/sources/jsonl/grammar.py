"""The grammar of JSON's scalars (RFC 8259) as Numba kernels:
where a string or a number in a buffer ends, and what is wrong with it.

Beyond the RFC, NaN, Infinity and -Infinity are numbers, since Python's json module writes them. Strings must be whole:
a control character, an unknown escape or half a surrogate pair is an error, because none of them has a UTF-8 form that
means the same.
"""

from __future__ import annotations

import numpy as np

from recordmill.base.kernels import inlined, kernel
from recordmill.storage.files import Bytes

# Kinds of value; STRING has no backslash, ESCAPED has.
NULL_TOKEN, FALSE, TRUE, INT, FLOAT_TOKEN, STRING, ESCAPED_TEXT, OBJECT, ARRAY = range(9)
VALUE_KINDS = 9

# Why a line is no record; each is the index of its message in WRONG.
(
    OK,
    SYNTAX,
    NOT_OBJECT,
    DEEP,
    DUPLICATE,
    TRAILING,
    CONTROL,
    ESCAPE,
    SURROGATE,
    NOT_UTF8_TEXT,
    NUMBER_TOKEN,
    CUT,
    MANY,
    GROW,
) = range(14)
WRONG = (
    "",
    "is no JSON",
    "is no JSON object",
    "is nested more than 60 levels deep",
    "has a key twice in one object",
    "has more after the end of its object",
    "has a control character inside a string (a newline or tab must be escaped)",
    "has an unknown escape in a string",
    "has half a surrogate pair in a string, which no UTF-8 text can hold",
    "is not UTF-8",
    "has a malformed number",
    "ends inside its object",
    "has more values than",
)

_QUOTE, _BACKSLASH, _MINUS, _DOT = 34, 92, 45, 46
_STOPS = np.zeros(256, np.uint8)  # 1 for the bytes at which reading a string must pause
_STOPS[:32] = 1
_STOPS[[_QUOTE, _BACKSLASH]] = 1
_SIMPLE = np.zeros(256, np.uint8)  # what follows a backslash, and what it stands for
for _letter, _meaning in zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True):
    _SIMPLE[_letter] = _meaning


@inlined
def string_end(data: Bytes, at: int, stop: int) -> tuple[int, int, int]:
    """(place of the closing quote, STRING or ESCAPED, OK or what is wrong) for the string
    whose first byte is at `at`.
    """
    kind = STRING
    while at < stop:
        byte = data[at]
        if _STOPS[byte] == 0:
            at += 1
        elif byte == _QUOTE:
            return at, kind, OK
        elif byte != _BACKSLASH:
            return at, kind, CUT if byte == 10 else CONTROL
        else:
            kind = ESCAPED_TEXT
            length, _, wrong = escape(data, at, stop)
            if wrong != OK:
                return at, kind, wrong
            at += length
    return at, kind, CUT


@kernel
def escape(data: Bytes, at: int, stop: int) -> tuple[int, int, int]:
    """(bytes, code point, OK or what is wrong) of the escape whose backslash is at `at`;
    a surrogate pair is one escape.
    """
    if at + 1 >= stop:
        return 1, 0, CUT
    simple = _SIMPLE[data[at + 1]]
    if simple != 0:
        return 2, int(np.int64(simple)), OK
    if data[at + 1] != 117:  # u
        return 1, 0, ESCAPE
    first = _hex4(data, at + 2, stop)
    if first < 0:
        return 1, 0, ESCAPE
    if first < 0xD800 or first > 0xDFFF:
        return 6, first, OK
    if first > 0xDBFF or at + 7 >= stop or data[at + 6] != _BACKSLASH or data[at + 7] != 117:
        return 1, 0, SURROGATE
    second = _hex4(data, at + 8, stop)
    if second < 0xDC00 or second > 0xDFFF:
        return 1, 0, SURROGATE
    return 12, 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00), OK


@inlined
def _hex4(data: Bytes, at: int, stop: int) -> int:
    if at + 4 > stop:
        return -1
    value = 0
    for byte in data[at : at + 4]:
        if 48 <= byte <= 57:
            value = value * 16 + int(np.int64(byte)) - 48
        elif 97 <= byte <= 102 or 65 <= byte <= 70:
            value = value * 16 + (int(np.int64(byte)) | 32) - 87
        else:
            return -1
    return value


@kernel
def unescape(data: Bytes, start: int, stop: int, into: Bytes, at: int) -> int:
    """Write the text of a checked string as UTF-8 from into[at] on; gives the place behind it.
    It is never longer than its escapes.
    """
    while start < stop:
        byte = data[start]
        if byte != _BACKSLASH:
            into[at] = byte
            at += 1
            start += 1
            continue
        length, point, _ = escape(data, start, stop)
        start += length
        if point < 0x80:
            into[at] = point
            at += 1
            continue
        extra = 1 if point < 0x800 else 2 if point < 0x10000 else 3
        into[at] = (0xC0 if extra == 1 else 0xE0 if extra == 2 else 0xF0) | (point >> (6 * extra))
        for left in range(extra):
            into[at + 1 + left] = 0x80 | ((point >> (6 * (extra - 1 - left))) & 0x3F)
        at += extra + 1
    return at


@inlined
def number_end(data: Bytes, at: int, stop: int) -> tuple[int, int, int]:
    """(place behind the number, INT or FLOAT, OK or what is wrong)."""
    if at < stop and data[at] == _MINUS:
        at += 1
    if at >= stop:
        return at, INT, CUT
    if data[at] == 73:  # I
        end = word_end(data, at, stop, INFINITY)
        return at if end < 0 else end, FLOAT_TOKEN, SYNTAX if end < 0 else OK
    first = at
    at = _digits(data, at, stop)
    if at == first or (data[first] == 48 and at > first + 1):
        return first, INT, NUMBER_TOKEN
    kind = INT
    if at < stop and data[at] == _DOT:
        kind, first = FLOAT_TOKEN, at + 1
        at = _digits(data, first, stop)
        if at == first:
            return at, kind, NUMBER_TOKEN
    if at < stop and (data[at] | 32) == 101:  # e
        at += 1
        if at < stop and (data[at] == 43 or data[at] == _MINUS):
            at += 1
        kind, first = FLOAT_TOKEN, at
        at = _digits(data, at, stop)
        if at == first:
            return at, kind, NUMBER_TOKEN
    return at, kind, OK


INFINITY = np.frombuffer(b"Infinity", np.uint8).copy()


@inlined
def word_end(data: Bytes, at: int, stop: int, word: Bytes) -> int:
    """The place behind the word if it stands at `at`, else -1."""
    if at + len(word) > stop:
        return -1
    for i in range(len(word)):
        if data[at + i] != word[i]:
            return -1
    return at + len(word)


@inlined
def _digits(data: Bytes, at: int, stop: int) -> int:
    while at < stop and 48 <= data[at] <= 57:
        at += 1
    return at
