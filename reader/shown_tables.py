"""pyarrow tables in notebooks: where IPython runs, a table as HTML with its first rows, since pyarrow shows schema and
chunks only. A formatter of the user's own is left alone.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.base.people.html import section, table

_ROWS = 10  # of a table are shown


def table_html(shown: pa.Table) -> str:
    """The first rows of a table, what its columns are, and how many rows there are."""
    header = [f"{field.name}: {field.type}" for field in shown.schema]
    rows = zip(*(map(_brief, _values(column.slice(0, _ROWS))) for column in shown.columns), strict=True)
    more = f" (the first {_ROWS} are shown)" if shown.num_rows > _ROWS else ""
    return section(f"{shown.num_rows:,} rows, {shown.num_columns} columns{more}", table(header, rows))


def show_tables() -> None:
    """Let IPython show pyarrow tables so, if it runs in this process and has no other way."""
    if "IPython" not in sys.modules or (shell := sys.modules["IPython"].get_ipython()) is None:
        return
    formatter = shell.display_formatter.formatters["text/html"]
    try:
        formatter.lookup_by_type(pa.Table)
    except KeyError:
        formatter.for_type(pa.Table, table_html)


def _values(column: pa.ChunkedArray) -> list[Any]:
    """The values; those of float32 as such, which have fewer digits than Python's."""
    values = column.to_pylist()
    return [None if v is None else np.float32(v) for v in values] if pa.types.is_float32(column.type) else values


def _brief(value: Any) -> object:
    """Bytes and long lists by their beginning and their length."""
    if isinstance(value, bytes):
        return value if len(value) <= 16 else f"{value[:16]!r}... ({len(value):,} bytes)"
    if isinstance(value, list):
        return value if len(value) <= 8 else f"[{', '.join(map(str, value[:8]))}, ... ({len(value):,} values)]"
    return value
