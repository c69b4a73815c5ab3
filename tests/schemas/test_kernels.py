"""Compiling is tried again where CPython fails by accident, and only there."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest

from recordmill.schemas.kernels import _retrying, kernel

ACCIDENT = "AST constructor recursion depth mismatch (before=42, after=39)"


def test_a_parser_that_fails_by_accident_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = kernel(lambda x: x + 1)
    failures: list[str] = []
    parse = ast.parse

    def fails(*args: Any, **kws: Any) -> Any:
        if len(failures) < 2:
            failures.append(ACCIDENT)
            raise SystemError(ACCIDENT)
        return parse(*args, **kws)

    with monkeypatch.context() as patched:
        patched.setattr(compiled._cache, "load_overload", lambda *_: None)  # type: ignore[attr-defined]  # cached code needs no parser
        patched.setattr(ast, "parse", fails)
        result = compiled(1)
    assert (result, failures) == (2, [ACCIDENT] * 2)


@pytest.mark.parametrize(("message", "attempts"), [(ACCIDENT, 5), ("something else", 1)])
def test_an_error_that_stays_is_raised(message: str, attempts: int) -> None:
    made = []

    def compile_for(*args: Any) -> None:
        made.append(args)
        raise SystemError(message)

    with pytest.raises(SystemError, match=re.escape(message)):
        _retrying(compile_for)(int)
    assert made == [(int,)] * attempts
