"""Plain HTML of results, data sets and tables for notebooks.

All text is escaped. The HTML has no styles, scripts or links, so a name or a value from a file
can't add one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as _escape
from unicodedata import category

# Unicode categories: control, format, surrogate, line separator and paragraph separator
_INVISIBLE_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")
# The last two characters join letters and emoji, so text of some scripts needs them.
_ALLOWED_CHARS = "\n\t\u200c\u200d"
# A page of text in one cell would hide the other cells.
_MAX_CELL_CHARS = 200


def escape(text: str) -> str:
    r"""Returns text as HTML, with invisible and bidirectional characters made visible.

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
    """Returns a value as text, shortened to 200 characters.

    >>> cell_text(b"a<b"), cell_text(None), cell_text("x" * 300)[-3:]
    ("b'a<b'", '', '...')
    """
    text = "" if value is None else str(value)
    return text if len(text) <= _MAX_CELL_CHARS else f"{text[: _MAX_CELL_CHARS - 3]}..."


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Returns an HTML table.

    Args:
        header: The names of the columns.
        rows: The rows, each with one value per column.

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
    """Returns an HTML block with a title, other HTML, and lines of text.

    >>> section("a & b", lines=["note: <i>"])
    '<div><p><b>a &amp; b</b></p><p>note: &lt;i&gt;</p></div>'

    Args:
        title: The title, which is shown in bold. It is escaped.
        *parts: HTML to insert after the title, unchanged.
        lines: Texts for the end of the block. They are escaped.
    """
    texts = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return f"<div><p><b>{escape(title)}</b></p>{''.join(parts)}{texts}</div>"
