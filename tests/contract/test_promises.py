"""Each test that docs/promises.md names exists, and each promise names one."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

import pytest
from rooms import ROOT

PAGE = ROOT / "docs" / "promises.md"
_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
ROWS = [row for row in PAGE.read_text(encoding="utf-8").splitlines() if row.startswith("| ") and "shown by" not in row]


@lru_cache
def names_in(path: str) -> frozenset[str]:
    """The names of the tests in a file, those of its classes too."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_a_promise_names_tests_that_exist(row: str) -> None:
    named = _NAMED.findall(row)
    assert named, "no test is named"
    assert re.sub(_NAMED, "", row.split("|")[2]).strip(" ,") == "", "a name that is no tests/file.py::test"
    for path, name in named:
        assert (ROOT / path).is_file(), path
        assert name.startswith("test_"), name
        assert name in names_in(path), f"{path} has no {name}"


def test_there_are_promises() -> None:
    assert len(ROWS) > 30
