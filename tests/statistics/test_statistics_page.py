"""docs/statistics.md tells the truth: its blocks run, and print what stands below them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import replay

PAGE = Path(__file__).resolve().parents[2] / "docs" / "statistics.md"


def test_every_block_prints_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("apache_beam", reason="building needs Apache Beam")
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("```console") > 1
    assert text.count("\n>>> ") > 4
    monkeypatch.chdir(tmp_path)
    assert replay(text) == text
