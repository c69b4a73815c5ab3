"""Reports, parsed as HTML pages."""

import base64
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import recordmill
from kit.data_sets import write_data_set
from recordmill.schemas.feature import Feature, Schema

VOID = {"meta", "br", "img", "line", "path", "bar"}


class Page(HTMLParser):
    """The parsed content of a page. Checks that all tags are closed.

    Attributes:
        texts: The texts, in order.
        loads: The addresses that a browser would load.
        tags: The names of all tags.
        images: The decoded `data:` images.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.loads: list[str] = []
        self.tags: set[str] = set()
        self.images: list[bytes] = []
        self._open: list[str] = []
        self.feed(html)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name in ("src", "href", "srcset", "data", "action"):
                self.loads.append(value or "")
                if value and value.startswith("data:"):
                    self.images.append(base64.b64decode(value.partition(",")[2]))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self._open[-1] != "style":
            self.texts.append(data.strip())

    def texts_after(self, words: str, count: int = 1) -> list[str]:
        index = self.texts.index(words)
        return self.texts[index + 1 : index + 1 + count]


def page_of(html: str) -> Page:
    page = Page(html)
    assert all(url.startswith(("#", "data:image/jpeg;base64,")) for url in page.loads)
    assert not page.tags & {"script", "link", "iframe", "object", "form", "base"}
    assert "default-src 'none'" in html
    return page


def open_column(folder: Path, dtype: str, x: Sequence[Any]) -> recordmill.Dataset:
    return recordmill.open(
        write_data_set(folder / "set", {"train": {"x": x}}, Schema((Feature("x", dtype),)))
    )
