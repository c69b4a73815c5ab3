"""The documentation site lists every public name and page, and loads nothing from other sites."""

from __future__ import annotations

import importlib
import re

import pytest
from rooms import ROOT

import recordmill

DOCS = ROOT / "docs"
API = (DOCS / "api.md").read_text(encoding="utf-8")
PICTURES = sorted((DOCS / "pictures").glob("*.svg"))


def test_each_public_name_is_a_heading_of_the_python_page() -> None:
    headings = re.findall(r"^      heading: (.+)$", API, re.MULTILINE)
    assert len(headings) == len(re.findall("^::: ", API, re.MULTILINE)) == len(set(headings))
    assert not [name for name in recordmill.__all__ if f"recordmill.{name}" not in headings]


def test_each_name_of_the_python_page_exists() -> None:
    for path in re.findall(r"^::: (.+)$", API, re.MULTILINE):
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path
    (members,) = re.findall(r"members: \[(\w[^]]*)\]", API)
    for member in re.split(r",\s*", members):
        assert hasattr(recordmill.Dataset, member), member


def test_each_page_is_in_the_menu_and_in_readme_or_index() -> None:
    menu = (ROOT / ".ci" / "mkdocs.yml").read_text(encoding="utf-8")
    lists = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "README.md", DOCS / "index.md")
    )
    for page in sorted(DOCS.glob("*.md")):
        assert re.search(rf"[ -]{page.name}$", menu, re.MULTILINE), page.name
        assert page.name == "index.md" or page.name in lists, page.name


def test_no_page_shows_a_backslash_before_a_bar_in_code() -> None:
    for page in (*DOCS.glob("*.md"), ROOT / "README.md"):
        text = page.read_text(encoding="utf-8")
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert not [row for row in rows if re.search(r"`[^`]*\\\|[^`]*`", row)], page.name


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_picture_is_shown_by_a_page_and_loads_nothing(picture) -> None:
    assert len(PICTURES) == 2
    texts = [page.read_text(encoding="utf-8") for page in DOCS.glob("*.md")]
    assert sum(f"](pictures/{picture.name})" in text for text in texts) == 1
    references = re.findall(r"(?:href|src)=|url\((?!#)|<script|<image", picture.read_text())
    assert not references
