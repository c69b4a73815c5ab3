"""`kernel`: the one way in which recordmill compiles a function with Numba, and calls it.

Compiled code is kept on disk (`compiled/`) beside the source or, where that is read-only, in the user's cache folder;
where neither can be written, it is compiled anew in each process, which costs seconds and nothing else. Numba, which
takes a third of a second to import, is imported only where there is no machine code yet for what a kernel is called
with.
"""

from __future__ import annotations

import functools
import itertools
import platform
from collections.abc import Callable
from typing import Any, TypeVar

import llvmlite.binding

from recordmill.base.compilation.digest import Later
from recordmill.base.compilation.machine_code import ArgumentKind, CodeFiles, is_usual, kinds_of, linked
from recordmill.base.progress import compiling
from recordmill.base.threads import ProcessLock

_Function = TypeVar("_Function", bound=Callable[..., Any])

types = Later("numba.types")  # for intrinsics, which are written in Numba's terms
cgutils = Later("numba.core.cgutils")

_MANY_CALLS = 50_000  # a call of machine code takes 10 us more than Numba's: after these, its import is paid for
_calls = itertools.count()  # of machine code, in this process
_lock = ProcessLock()


def kernel(function: _Function) -> _Function:
    """Compiles in nopython mode, without the GIL, wrapping integers and IEEE floats as NumPy has them.

    The kernel makes no array and gives none back: Numba counts references to arrays only in `allocating` ones. Counting
    is an atomic step at every call that passes an array on, and took most of the time of kernels of many small calls.
    """
    return Kernel(function, {"_nrt": False})  # type: ignore[return-value]


def allocating(function: _Function) -> _Function:
    """Compiles a kernel that makes arrays, gives some back, or copies one slice to another."""
    return Kernel(function, {})  # type: ignore[return-value]


def inlined(function: _Function) -> _Function:
    """A kernel whose body is compiled into every kernel that calls it: for the innermost steps, where a call costs as
    much as the work.
    """
    return Kernel(function, {"forceinline": True, "_nrt": False})  # type: ignore[return-value]


def intrinsic(definition: Callable[..., Any]) -> Any:
    """LLVM code as a function that kernels call: `numba.extending.intrinsic`."""
    return Intrinsic(definition)


def compiles_for(*features: str) -> bool:
    """Whether kernels are compiled for a processor of the x86 family with these features: what Numba is told to compile
    for counts, not the host.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    told = None if is_usual() else _numba_config().CPU_FEATURES
    if told is not None:
        return {f"+{feature}" for feature in features} <= set(told.split(","))
    host = llvmlite.binding.get_host_cpu_features()
    return all(host.get(feature, False) for feature in features)


class Kernel:
    """A compiled function, called from Python, or from kernels as any function of Numba."""

    def __init__(self, function: Callable[..., Any], options: dict[str, bool]) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self.files = CodeFiles(function, options)
        self.options = options
        self._numba: Any = None  # its form of the kernel, once that is needed
        self._by_kinds: dict[tuple[ArgumentKind, ...], Callable[..., Any]] = {}  # machine code that was linked

    def __call__(self, *args: Any) -> Any:
        if self._numba is not None:
            return self._numba(*args)
        kinds = kinds_of(args)
        call = self._by_kinds.get(kinds) if kinds is not None else None
        if call is None or next(_calls) > _MANY_CALLS:
            call = self._found(kinds)
        return call(*args)

    def _found(self, kinds: tuple[ArgumentKind, ...] | None) -> Callable[..., Any]:
        """Machine code for these arguments, if there is some and it pays, else Numba."""
        code = None if kinds is None or next(_calls) > _MANY_CALLS else self.files.find(kinds)
        if kinds is None or code is None or not code.symbol:
            return self.dispatcher  # type: ignore[no-any-return]
        return self._by_kinds.setdefault(kinds, linked(code, kinds))

    @property
    def dispatcher(self) -> Any:
        """Numba's form of the kernel."""
        with _lock:
            if self._numba is None:
                from recordmill.base.compilation.numba_kernels import dispatcher_of

                _tell()
                self._numba = dispatcher_of(self.py_func, self.options, self.files, _not_kept)
            return self._numba

    @property
    def _numba_type_(self) -> Any:
        """By which Numba knows it in a kernel that calls it."""
        return self.dispatcher._numba_type_

    def __reduce__(self) -> str:
        return self.py_func.__qualname__  # by name, from its module


class Intrinsic:
    """LLVM code that kernels call; Python can't."""

    def __init__(self, definition: Callable[..., Any]) -> None:
        self.__doc__ = definition.__doc__
        self._defn = definition
        self._made: Any = None

    @property
    def _numba_type_(self) -> Any:
        with _lock:
            if self._made is None:
                from recordmill.base.compilation.numba_kernels import type_of_intrinsic

                self._made = type_of_intrinsic(self._defn)
            return self._made[1]


@functools.cache
def _tell() -> None:
    from recordmill.base.compilation.numba_kernels import tell_of_compiling

    tell_of_compiling(compiling.begin, compiling.end)


def _not_kept() -> None:
    compiling.is_kept = False


def _numba_config() -> Any:
    import numba

    return numba.config
