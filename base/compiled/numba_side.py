"""Kernels by Numba: its dispatchers and intrinsics, made where machine code of an earlier process does not do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numba
from numba.core import event
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from recordmill.base.compiled.extracting import machine_code
from recordmill.base.compiled.kinds import kinds_of
from recordmill.base.compiled.machine_code import CodeFiles, is_usual
from recordmill.base.compiled.numba_cache import KernelCache

_ATTEMPTS = 5  # at compiling one function, see _retrying


def dispatcher_of(
    function: Callable[..., Any], options: dict[str, bool], files: CodeFiles, not_kept: Callable[[], None]
) -> Any:
    """Numba's form of a kernel: compiled when it is called, or when another kernel that calls it is."""
    made = numba.njit(nogil=True, error_model="numpy", **options)(function)
    made._cache = KernelCache(function, options, not_kept)
    # Numba's dispatcher looks these up on itself when a call finds no compiled code.
    made._compile_for_args = _keeping(made, _retrying(made._compile_for_args), files)
    made.get_call_template = _of_values(made.get_call_template)
    return made


def type_of_intrinsic(definition: Callable[..., Any]) -> Any:
    """The type by which Numba knows an intrinsic in a kernel that it compiles."""
    made = intrinsic(definition)
    context = cpu_target.typing_context
    context.refresh()  # it was registered just now, perhaps while that kernel's types are inferred
    return made, context.resolve_value_type(made)


def tell_of_compiling(begin: Callable[[], None], end: Callable[[], None]) -> None:
    """Have functions called when Numba compiles, which it does not when it finds compiled code in the cache."""

    class Told(event.Listener):  # type: ignore[misc]
        def on_start(self, event: object) -> None:
            begin()

        def on_end(self, event: object) -> None:
            end()

    event.register("numba:compile", Told())


def _keeping(made: Any, compile_for: Callable[..., Any], files: CodeFiles) -> Callable[..., Any]:
    """Keep machine code of what Python calls. What Numba kept before is compiled once more, since it can't be taken
    apart any longer.
    """

    def compile_and_keep(*args: Any, **kws: Any) -> Any:
        kinds = kinds_of(args)
        wanted = kinds if kinds is not None and is_usual() and files.find(kinds) is None else None
        made._cache.is_asked = wanted is None
        try:
            result = compile_for(*args, **kws)
        finally:
            made._cache.is_asked = True
        compiled = None if wanted is None else made.overloads.get(tuple(map(made.typeof_pyval, args)))
        if compiled is not None and wanted is not None and (code := machine_code(compiled, wanted)) is not None:
            files.keep(wanted, code)
        return result

    return compile_and_keep


def _of_values(template: Callable[..., Any]) -> Callable[..., Any]:
    """Take a constant that another kernel passes for a value like any other. Numba compiles a kernel anew for each of
    them (a sixth of what a small read compiles); where that makes faster code, LLVM inlines the kernel and finds out.
    """

    def template_of(args: Sequence[Any], kws: Mapping[str, Any]) -> Any:
        plain = {name: numba.types.unliteral(kind) for name, kind in kws.items()}
        return template(tuple(map(numba.types.unliteral, args)), plain)

    return template_of


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
