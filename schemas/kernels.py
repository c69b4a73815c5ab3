"""`kernel`: the one way in which recordmill compiles a function with Numba.

Compiled code is cached on disk beside the source or, where that is read-only, in the user's cache folder; where neither can be
written, it is compiled anew in each process, which costs seconds and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile in nopython mode, without the GIL, wrapping integers and IEEE floats as NumPy has them."""
    try:
        return numba.njit(nogil=True, cache=True, error_model="numpy")(function)  # type: ignore[no-any-return]
    except RuntimeError:  # numba: "no locator available": no folder for the cache can be written
        return numba.njit(nogil=True, error_model="numpy")(function)  # type: ignore[no-any-return]


def inlined(function: Function) -> Function:
    """A kernel whose body is compiled into every kernel that calls it: for the innermost steps, where a call costs as much as the work."""
    try:
        return numba.njit(nogil=True, cache=True, error_model="numpy", forceinline=True)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # as in kernel
        return numba.njit(nogil=True, error_model="numpy", forceinline=True)(function)  # type: ignore[no-any-return]
