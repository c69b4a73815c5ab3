"""Compiling is tried again where CPython fails by accident, and only there."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from recordmill.schemas.kernels import kernel

ACCIDENT = "AST constructor recursion depth mismatch (before=42, after=39)"


def call(monkeypatch: pytest.MonkeyPatch, message: str, times: int) -> tuple[object, int]:
    """(what a fresh kernel gives or raises, how often the parser failed) while the parser fails its first `times` calls."""
    compiled = kernel(lambda x: x + 1)
    failures = 0
    parse = ast.parse

    def fails(*args: Any, **kws: Any) -> Any:
        nonlocal failures
        if failures < times:
            failures += 1
            raise SystemError(message)
        return parse(*args, **kws)

    with monkeypatch.context() as patched:
        patched.setattr(compiled._cache, "load_overload", lambda *_: None)  # type: ignore[attr-defined]  # cached code needs no parser
        patched.setattr(ast, "parse", fails)
        try:
            return compiled(1), failures
        except SystemError as error:
            return str(error), failures


def test_a_parser_that_fails_by_accident_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(monkeypatch, ACCIDENT, 2) == (2, 2)


def test_a_parser_that_goes_on_failing_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(monkeypatch, ACCIDENT, 1000) == (ACCIDENT, 5)


def test_another_error_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(monkeypatch, "something else", 1) == ("something else", 1)
