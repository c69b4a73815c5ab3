"""A field of a CSV file as text to what it looks like, loosely: decimal commas, percent signs and dates of any order
count, since what is asked is how the file is written, not what its values are.
"""

from __future__ import annotations

import re

NULL, NUMBER, MOMENT, TRUTH, TEXT = "nothing", "a number", "a time", "a truth value", "text"

_NULLS = frozenset(
    ("", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "\\n", "?", "-", "--", ".", "*", "missing", "unknown")
)
_TRUTHS = frozenset(("true", "false", "yes", "no"))
_NUMBER = re.compile(
    r"[-+(]?[$€£¥]? ?[-+]?(\d[\d,.'\u00a0]*|\.\d+)([eE][-+]?\d+)?\)? ?[%$€£¥]?|[-+]?inf(inity)?|0x[0-9a-f]+", re.I
)
_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DAY = rf"\d{{1,4}}([-/.])\d{{1,2}}\2\d{{1,4}}|\d{{4}}-\d\d|\d{{1,2}}[-/ .]{_MONTH}[-/ ,]*\d{{2,4}}"
_CLOCK = r"\d{1,2}:\d\d(:\d\d([.,]\d+)?)?( ?[ap]\.?m\.?)?( ?(z|utc|gmt|[-+]\d\d:?(\d\d)?))?"
_MOMENT = re.compile(
    rf"({_DAY}|{_MONTH}[-/ ]\d{{1,2}},?[-/ ]\d{{2,4}}|{_MONTH}[-/ ]\d{{2,4}})([ t,]+{_CLOCK})?|{_CLOCK}", re.I
)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://\S+|\S+@\S+\.\S+|([0-9a-f]{2}:){5}[0-9a-f]{2}", re.I)
_LONGEST = 64  # characters of a number or a moment; longer is text


def cell_class(text: str) -> str:
    """What a field looks like: NULL, NUMBER, MOMENT, TRUTH or TEXT.

    >>> [cell_class(text) for text in ("1.234,5", "12:30", "5-Jan-97", "yes", "?", "x1")]
    ['a number', 'a time', 'a time', 'a truth value', 'nothing', 'text']
    """
    text = text.strip()
    lower = text.lower()
    if lower in _NULLS:
        return NULL
    if len(text) <= _LONGEST:
        if _NUMBER.fullmatch(text):
            return NUMBER
        if text[0].isdigit() or text[0].isalpha():
            if _MOMENT.fullmatch(text):
                return MOMENT
            if lower in _TRUTHS:
                return TRUTH
    return TEXT


def is_whole(text: str) -> bool:
    """Whether a text, uncut, is one value in spite of the marks in it: a time, a date, a number, an address."""
    return cell_class(text) in (NUMBER, MOMENT) or _ADDRESS.fullmatch(text.strip()) is not None
