"""Plain HTML of results, data sets and tables for notebooks, in which every text is escaped.

It has no styles, scripts or links: a name or a value that a file holds can't become any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as _escape
from unicodedata import category

_INVISIBLE_CATEGORIES = (
    "Cc",
    "Cf",
    "Cs",
    "Zl",
    "Zp",
)  # categories of characters: control, format, line separators
_ALLOWED_CHARS = "\n\t\u200c\u200d"  # the last two join letters and emoji
_MAX_CELL_CHARS = 200  # characters of a cell: a page of text in one cell hides the others


def escape(text: str) -> str:
    r"""Text as HTML, in which nothing is invisible or turns what follows around.

    >>> print(escape("<\u202e\a>"))
    &lt;\u202e\x07&gt;
    """
    visible_chars = [
        char.encode("unicode_escape").decode()
        if category(char) in _INVISIBLE_CATEGORIES and char not in _ALLOWED_CHARS
        else char
        for char in text
    ]
    return _escape("".join(visible_chars))


def cell_text(value: object) -> str:
    """The text of a value, cut where it is long.

    >>> cell_text(b"a<b"), cell_text(None), cell_text("x" * 300)[-3:]
    ("b'a<b'", '', '...')
    """
    text = "" if value is None else str(value)
    return text if len(text) <= _MAX_CELL_CHARS else f"{text[: _MAX_CELL_CHARS - 3]}..."


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table; each row has a cell for each name of the header.

    >>> table(["name"], [["<b>"]])
    '<table><thead><tr><th>name</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{escape(cell_text(name))}</th>" for name in header)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell_text(value))}</td>' for value in row)}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def section(title: str, *parts: str, lines: Iterable[str] = ()) -> str:
    """A title, what is HTML already, and lines of text below.

    >>> section("a & b", lines=["note: <i>"])
    '<div><p><b>a &amp; b</b></p><p>note: &lt;i&gt;</p></div>'
    """
    texts = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f"<div><p><b>{escape(title)}</b></p>{''.join(parts)}{texts}</div>"
