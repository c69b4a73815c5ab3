"""Each promise of docs/promises.md names files that hold tests."""

from __future__ import annotations

import re

import pytest
from rooms import ROOT

PAGE = ROOT / "docs" / "promises.md"
ROWS = re.findall(r"(?m)^\| (.+?) \| (.+) \|$", PAGE.read_text(encoding="utf-8"))
PROMISES = [(promise, tests) for promise, tests in ROWS if tests != "tests"]


@pytest.mark.parametrize(("promise", "tests"), PROMISES, ids=lambda cell: cell[:40])
def test_a_promise_names_files_of_tests(promise: str, tests: str) -> None:
    assert re.fullmatch(r"`[\w/]+\.py`(, `[\w/]+\.py`)*", tests)
    for name in re.findall(r"`(.+?)`", tests):
        assert "def test_" in (ROOT / "tests" / name).read_text(encoding="utf-8"), name


def test_there_are_promises() -> None:
    assert len(PROMISES) > 50
