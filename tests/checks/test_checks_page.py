"""docs/checks.md tells the truth: its blocks run, and print what stands below them; its rules are rules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import replay

from recordmill.checks.rules import Rules, read_rules

PAGE = Path(__file__).resolve().parents[2] / "docs" / "checks.md"


@pytest.mark.sweep
def test_every_block_prints_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("apache_beam", reason="building needs Apache Beam")
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("```console") > 1
    monkeypatch.chdir(tmp_path)
    assert replay(text) == text


def test_the_rules_of_the_page_are_rules(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "rules.yaml").write_text(block)
    rules = read_rules(tmp_path / "rules.yaml")
    untouched = {"source", "histogram"}
    for name, default in vars(Rules()).items():
        assert name in untouched or getattr(rules, name) != default or name == "drift", name
