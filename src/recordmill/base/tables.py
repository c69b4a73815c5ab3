"""Tables of text, which fit the width of a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Smallest width of a folded column in characters: enough for most words and numbers.
_MIN_COLUMN_WIDTH = 10
# Longest word, in characters, for which a folded column is made wider.
_MAX_WORD_WIDTH = 24
# Spaces between two columns.
_GAP = 2
# Width of a table in a file or a pipe, which may have lines of any length.
_MAX_WIDTH = 100_000


@dataclass
class _Column:
    """A column of a table.

    Attributes:
        cells: The header and the cell of each row.
        min_width: Smallest width that keeps the column readable.
        full_width: Smallest width that folds no cell.
    """

    cells: list[str]
    min_width: int
    full_width: int


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], unbroken_columns: Sequence[str] = ()
) -> list[str]:
    """Returns the lines of a table, without columns that are empty in all rows.

    On a terminal, cells are folded to fit its width. Columns that still do not fit follow in
    another table below, which repeats the first column. So every character is shown. Files and
    pipes get lines of any length.

    Args:
        header: Names of the columns.
        rows: The cells of each row.
        unbroken_columns: Names of columns that are folded only if one alone exceeds the terminal.

    >>> table_lines(("NAME", "SIZE", "NOTE"), [("a", "1", ""), ("bcd", "20", "")])
    ['NAME  SIZE', 'a     1', 'bcd   20']
    """
    from rich.console import Console

    terminal = Console()
    width = terminal.width if terminal.is_terminal else _MAX_WIDTH
    name, *others = (
        _measure([header[index], *(row[index] for row in rows)], header[index] in unbroken_columns)
        for index in range(len(header))
        if index == 0 or any(row[index] for row in rows)
    )
    if sum(column.full_width + _GAP for column in (name, *others)) - _GAP <= width:
        return _render([name, *others], width)
    # The first column is in every table. At least half of a narrow terminal is left for the other
    # columns.
    name.min_width = min(name.full_width, _MAX_WORD_WIDTH, max(1, (width - _GAP) // 2))
    tables = [
        _render([name, *group], width, leave_out_empty_rows=index > 0)
        for index, group in enumerate(_groups(others, width - name.min_width))
    ]
    return [line for lines in tables for line in ("", *lines)][1:]


def _measure(cells: list[str], is_unbroken: bool) -> _Column:
    from rich.cells import cell_len

    full_width = max(cell_len(line) for cell in cells for line in (cell.splitlines() or [""]))
    longest_word = max(cell_len(word) for cell in cells for word in (cell.split() or [""]))
    min_width = max(_MIN_COLUMN_WIDTH, min(longest_word, _MAX_WORD_WIDTH))
    return _Column(cells, full_width if is_unbroken else min(full_width, min_width), full_width)


def _groups(columns: Sequence[_Column], width: int) -> Iterator[list[_Column]]:
    """Yields groups of consecutive columns that fit side by side into `width`.

    Each column has a gap before it. A single column that is wider than `width` is narrowed. There
    is at least one group. It may be empty.
    """
    group: list[_Column] = []
    used = 0
    for column in columns:
        column.min_width = max(1, min(column.min_width, width - _GAP))
        if group and used + _GAP + column.min_width > width:
            yield group
            group, used = [], 0
        group.append(column)
        used += _GAP + column.min_width
    yield group


def _render(
    columns: Sequence[_Column], width: int, leave_out_empty_rows: bool = False
) -> list[str]:
    """Returns the lines of one table.

    Args:
        columns: The columns. Their smallest widths fit into `width`.
        width: Width of the table in characters.
        leave_out_empty_rows: Whether to leave out a row if all cells after its first one are empty.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="none")
    for column, column_width in zip(columns, _fit_widths(columns, width), strict=True):
        table.add_column(Text(column.cells[0]), overflow="fold", width=column_width)
    for row in list(zip(*(column.cells for column in columns), strict=True))[1:]:
        if any(row[1:]) or not leave_out_empty_rows:
            table.add_row(*map(Text, row))
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def _fit_widths(columns: Sequence[_Column], width: int) -> list[int]:
    """Returns the widths of columns side by side.

    Each column gets its smallest width, and a share of the remaining width.
    """
    widths = [column.min_width for column in columns]
    spare = width - sum(widths) - _GAP * (len(columns) - 1)
    # Columns that need least come first, so that the others share the width that these leave.
    by_need = sorted(
        range(len(columns)), key=lambda index: columns[index].full_width - widths[index]
    )
    for position, index in enumerate(by_need):
        share = max(0, spare) // (len(columns) - position)
        added = min(columns[index].full_width - widths[index], share)
        widths[index] += added
        spare -= added
    return widths
