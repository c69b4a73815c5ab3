"""Every example in a docstring gives what it says."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
from rooms import all_modules, dotted


def documented() -> list[str]:
    """The modules that hold examples."""
    return [dotted(path) for path in all_modules() if _has_example(path)]


def _has_example(path: Path) -> bool:
    return ">>> " in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", documented())
def test_the_examples_of_a_module_hold(name: str) -> None:
    module = importlib.import_module(name)
    result = doctest.testmod(module)
    assert result.attempted, f"{name} shows >>> outside of docstrings"
    assert not result.failed, f"{result.failed} of {result.attempted} examples in {name} fail; see above"
