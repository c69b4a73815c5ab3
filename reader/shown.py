"""How a `Dataset` is shown, as text and as HTML, for which nothing is read; and, where IPython runs, a pyarrow table by
its first rows, since pyarrow shows schema and chunks only. A formatter of the user's own is left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from recordmill.base.people import html
from recordmill.schemas.feature import Schema
from recordmill.shards.catalog import Catalog

_LATER = "its schema is inferred when it is needed"
_ROWS = 10  # of a table are shown


@dataclass(frozen=True)
class Shown:
    """headline: what it is and how many records it has. schema: what is read, None as long as nobody knows."""

    headline: str
    schema: Schema | None

    def text(self) -> str:
        """What `repr` gives."""
        if self.schema is None:
            return f"<{self.headline}; {_LATER}>"
        return "\n".join([f"<{self.headline}", *(f"  {name}: {about}" for name, about in described(self.schema))]) + ">"

    def html(self) -> str:
        """What notebooks show: the same, with the features as a table."""
        if self.schema is None:
            return html.section(self.headline, lines=[_LATER])
        return html.section(self.headline, html.table(["feature", "holds"], described(self.schema)))


def headline(catalog: Catalog, records: int | None, kept: int | None, conditions: Sequence[str]) -> str:
    """records: of all files, kept: those of them for which the conditions hold; None: not known yet."""
    name = catalog.manifest.name if catalog.manifest else _files(len(catalog.files))
    rows = f"{records:,} records" if records is not None else f"{catalog.size_bytes:,} bytes"
    if conditions:
        rows = f"{'' if kept is None else f'{kept:,} '}of {rows} those where {' and '.join(conditions)}"
    return f"Dataset {name}: {rows}, {', '.join(catalog.splits) or 'no split'}"


def described(schema: Schema) -> list[tuple[str, str]]:
    """(name, what it holds) of each feature."""
    label = schema.label
    return [
        (f.name, f"{f.describe()}{'' if f.required else ' or missing'}{' (label)' if f.name == label else ''}")
        for f in schema
    ]


def _files(count: int) -> str:
    return f"{count} file{'s' if count != 1 else ''}"


def table_html(shown: pa.Table) -> str:
    """The first rows of a table, what its columns are, and how many rows there are."""
    header = [f"{field.name}: {field.type}" for field in shown.schema]
    rows = zip(*(map(_brief, _values(column.slice(0, _ROWS))) for column in shown.columns), strict=True)
    more = f" (the first {_ROWS} are shown)" if shown.num_rows > _ROWS else ""
    return html.section(f"{shown.num_rows:,} rows, {shown.num_columns} columns{more}", html.table(header, rows))


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
