"""Tables of text, which fit the width of a terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence

# Smallest width of a column in characters, enough for a date.
_MIN_COLUMN_WIDTH = 10
# Smallest width of the first column, which contains the names.
_MIN_NAME_WIDTH = 24
# Width of a table in a file or a pipe, which may have lines of any length.
_MAX_WIDTH = 100_000


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], unbroken_columns: Sequence[str] = ()
) -> list[str]:
    """Returns the lines of a table, without columns that are empty in all rows.

    On a terminal, cells are folded to fit its width. Files and pipes get lines of any length.

    Args:
        header: Names of the columns.
        rows: The cells of each row.
        unbroken_columns: Names of the columns that are never folded.

    >>> table_lines(("NAME", "SIZE", "NOTE"), [("a", "1", ""), ("bcd", "20", "")])
    ['NAME  SIZE', 'a     1', 'bcd   20']
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = Console()
    width = terminal.width if terminal.is_terminal else _MAX_WIDTH
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="none")
    shown_columns = [column for column in range(len(header)) if any(row[column] for row in rows)]
    for column in shown_columns:
        min_width = min(
            max(len(row[column]) for row in (header, *rows)),
            _MIN_COLUMN_WIDTH if column else _MIN_NAME_WIDTH,
        )
        table.add_column(
            header[column],
            overflow="fold",
            no_wrap=header[column] in unbroken_columns,
            min_width=min_width,
        )
    for row in rows:
        table.add_row(*(Text(row[column]) for column in shown_columns))
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]
