"""`kernel`: the one way in which recordmill compiles a function with Numba.

Compiled code is cached on disk (`kernel_cache`) beside the source or, where that is read-only, in the user's cache
folder; where neither can be written, it is compiled anew in each process, which costs seconds and nothing else.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import llvmlite.binding
import numba
from numba.core import event

from recordmill.base.kernel_cache import KernelCache
from recordmill.base.progress import compiling

Function = TypeVar("Function", bound=Callable[..., Any])

_ATTEMPTS = 5  # at compiling one function, see _retrying


def kernel(function: Function) -> Function:
    """Compile in nopython mode, without the GIL, wrapping integers and IEEE floats as NumPy has them.

    The kernel makes no array and gives none back: Numba counts references to arrays only in `allocating` ones. Counting
    is an atomic step at every call that passes an array on, and took most of the time of kernels of many small calls.
    """
    return _compiled(function, {"_nrt": False})


def allocating(function: Function) -> Function:
    """Compile a kernel that makes arrays, gives some back, or copies one slice to another."""
    return _compiled(function, {})


def inlined(function: Function) -> Function:
    """A kernel whose body is compiled into every kernel that calls it: for the innermost steps, where a call costs as
    much as the work.
    """
    return _compiled(function, {"forceinline": True, "_nrt": False})


def compiles_for(*features: str) -> bool:
    """Whether kernels are compiled for a processor of the x86 family with these features: what Numba is told to compile
    for counts, not the host.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    if numba.config.CPU_FEATURES is not None:
        return {f"+{feature}" for feature in features} <= set(numba.config.CPU_FEATURES.split(","))
    host = llvmlite.binding.get_host_cpu_features()
    return all(host.get(feature, False) for feature in features)


def _compiled(function: Function, options: dict[str, bool]) -> Function:
    dispatcher = numba.njit(nogil=True, error_model="numpy", **options)(function)
    dispatcher._cache = KernelCache(function, options)
    # Numba's dispatcher looks this method up on itself when a call finds no compiled code.
    dispatcher._compile_for_args = _retrying(dispatcher._compile_for_args)
    dispatcher.get_call_template = _of_values(dispatcher.get_call_template)
    return dispatcher  # type: ignore[no-any-return]


def _of_values(template: Callable[..., Any]) -> Callable[..., Any]:
    """Take a constant that another kernel passes for a value like any other. Numba compiles a kernel anew for each of
    them (a sixth of what a small read compiles); where that makes faster code, LLVM inlines the kernel and finds out.
    """

    def template_of(args: Sequence[Any], kws: Mapping[str, Any]) -> Any:
        plain = {name: numba.types.unliteral(kind) for name, kind in kws.items()}
        return template(tuple(map(numba.types.unliteral, args)), plain)

    return template_of


class _Told(event.Listener):  # type: ignore[misc]
    """Numba says when it compiles, which it does not when it finds compiled code in the cache."""

    def on_start(self, event: object) -> None:
        compiling.begin()

    def on_end(self, event: object) -> None:
        compiling.end()


event.register("numba:compile", _Told())


def _retrying(compile_for: Callable[..., Any]) -> Callable[..., Any]:
    """Compile again where CPython stumbled over itself.

    Numba parses the function's source with `ast.parse`, whose recursion check CPython 3.11 keeps in one place for all
    threads: a thread that parses at the same moment makes it raise `SystemError: AST constructor recursion depth
    mismatch`. Nothing is wrong with the function then.
    """

    def compile_again(*args: Any, **kws: Any) -> Any:
        for _ in range(_ATTEMPTS - 1):
            try:
                return compile_for(*args, **kws)
            except SystemError as error:
                if "recursion depth mismatch" not in str(error):
                    raise
        return compile_for(*args, **kws)

    return compile_again
