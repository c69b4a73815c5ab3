"""Plain HTML of results, data sets and tables for notebooks, in which every text is escaped.

It has no styles, scripts or links: a name or a value that a file holds can't become any.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as _escape
from unicodedata import category

_HIDDEN = (
    "Cc",
    "Cf",
    "Cs",
    "Zl",
    "Zp",
)  # categories of characters: control, format, line separators
_KEPT = "\n\t\u200c\u200d"  # the last two join letters and emoji
_LONGEST = 200  # characters of a cell: a page of text in one cell hides the others


def escape(text: str) -> str:
    r"""Text as HTML, in which nothing is invisible or turns what follows around.

    >>> print(escape("<\u202e\a>"))
    &lt;\u202e\x07&gt;
    """
    shown = [
        char.encode("unicode_escape").decode()
        if category(char) in _HIDDEN and char not in _KEPT
        else char
        for char in text
    ]
    return _escape("".join(shown))


def cell_text(value: object) -> str:
    """The text of a value, cut where it is long.

    >>> cell_text(b"a<b"), cell_text(None), cell_text("x" * 300)[-3:]
    ("b'a<b'", '', '...')
    """
    text = "" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


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
