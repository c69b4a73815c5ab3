"""Compiling is tried again where CPython fails by accident, and only there."""

from __future__ import annotations

import re
from typing import Any

import pytest
from numba.core.caching import NullCache

from recordmill.base.compilation.numba_kernels import _retrying
from recordmill.base.kernels import kernel

ACCIDENT = "AST constructor recursion depth mismatch (before=42, after=39)"


def test_a_compilation_that_fails_by_accident_is_tried_again() -> None:
    made = []

    def compile_for(*args: Any) -> str:
        made.append(args)
        if len(made) < 3:
            raise SystemError(ACCIDENT)
        return "compiled"

    assert _retrying(compile_for)(int) == "compiled"
    assert made == [(int,)] * 3


def test_a_kernel_compiles_by_way_of_it() -> None:
    compiled = kernel(lambda x: x + 1).dispatcher  # type: ignore[attr-defined]
    made = []
    compile_for = compiled._compile_for_args
    compiled._compile_for_args = lambda *args, **kws: made.append(args) or compile_for(*args, **kws)
    assert compiled(1) == compiled(1) == 2
    assert made == [(1,)]


@pytest.mark.parametrize(("message", "attempts"), [(ACCIDENT, 5), ("something else", 1)])
def test_an_error_that_stays_is_raised(message: str, attempts: int) -> None:
    made = []

    def compile_for(*args: Any) -> None:
        made.append(args)
        raise SystemError(message)

    with pytest.raises(SystemError, match=re.escape(message)):
        _retrying(compile_for)(int)
    assert made == [(int,)] * attempts


def test_a_constant_does_not_compile_a_kernel_of_its_own() -> None:
    def add(value: int, constant: int) -> int:
        return value + constant

    added = kernel(add)
    adding = kernel(lambda value: added(value, 3) + added(value, constant=5))
    for compiled in (added, adding):
        compiled.dispatcher._cache = NullCache()  # type: ignore[attr-defined]
    assert adding(1) == 10
    assert len(added.dispatcher.signatures) == 1  # type: ignore[attr-defined]
