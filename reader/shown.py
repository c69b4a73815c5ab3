"""How a `Dataset` is shown, as text and as HTML; nothing is read for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recordmill.base.people import html
from recordmill.schemas.feature import Schema
from recordmill.shards.catalog import Catalog

_LATER = "its schema is inferred when it is needed"


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
