"""docs/training.md tells the truth: its blocks run, and print what stands below them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import replay

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training.md"


def test_every_block_of_the_page_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("keras", "tensorflow", "apache_beam"):
        pytest.importorskip(module, reason=f"the page uses {module}")
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("\n>>> ") > 15
    monkeypatch.chdir(tmp_path)
    assert replay(text) == text
