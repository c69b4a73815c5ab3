"""Compiled kernels on disk: `KernelCache`, for a function the files in which Numba keeps what it compiled.

Numba takes compiled code for fresh while the file that defines the kernel is the same. But a kernel holds the code of
the kernels that it calls and the values of the constants that it names, which stand in other files. So the name of a
kernel's cache holds a digest of all that: its bytecode, its constants and, through every name that it uses, those of
others. It is taken from the loaded objects and not from their files, which may have been edited since.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache
from numba.core.dispatcher import Dispatcher

from recordmill.base.progress import compiling

_DIGEST_CHARS = 16
_UNUSED_SEC = 14 * 86400  # two weeks: longer than a branch is left alone, short enough that the folder stays small
_TOUCH_SEC = 86400  # a day: use is noted no more often than that
_FILE = re.compile(rf"(.+\.[0-9a-f]{{{_DIGEST_CHARS}}})\.(nbi|[0-9]+\.nbc)")

_pruned: set[str] = set()  # the folders that this process has tidied


class KernelCache:
    """What a Numba dispatcher asks of its cache. The folder is looked for at the first use, not on import; where none
    can be read or written, or no longer, code is compiled in memory.
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, bool] | None = None) -> None:
        self._function, self._options = function, options or {}
        self._made: Any = None

    @property
    def cache_path(self) -> Any:
        """The folder; None without one."""
        return self._cache().cache_path

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled code for these argument types; None if it is not there."""
        try:
            return self._cache().load_overload(sig, target_context)
        except OSError:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep compiled code."""
        try:
            self._cache().save_overload(sig, data)
        except OSError:
            return
        if self.cache_path is not None and self.cache_path not in _pruned:
            _pruned.add(self.cache_path)
            _prune(self.cache_path)

    def flush(self) -> None:
        """Forget what was kept."""
        self._cache().flush()

    def _cache(self) -> Any:
        if self._made is None:
            self._made = _open(self._function, self._options)
        return self._made


def _open(function: Callable[..., Any], options: Mapping[str, bool]) -> Any:
    try:
        cache = FunctionCache(function)
    except RuntimeError:  # numba: "no locator available": no folder for the cache can be written
        compiling.is_kept = False
        return NullCache()
    digest = code_digest(function, options)
    files = IndexDataCacheFile(cache.cache_path, f"{cache._impl.filename_base}.{digest}", digest)
    cache._cache_file = files
    try:  # note that it is still in use
        if time.time() - os.stat(files._index_path).st_mtime > _TOUCH_SEC:
            os.utime(files._index_path)
    except OSError:
        pass
    return cache


def _prune(folder: str) -> None:
    """Remove what no process has used for long: the code of kernels that have changed since, or are gone."""
    now = time.time()
    try:
        found = [(path, match[1]) for path in Path(folder).iterdir() if (match := _FILE.fullmatch(path.name))]
        used = {name for path, name in found if now - path.stat().st_mtime < _UNUSED_SEC}
        for path, name in found:
            if name not in used:
                path.unlink(missing_ok=True)
    except OSError:  # another process tidies the same folder, or it can't be written
        return


def code_digest(function: Callable[..., Any], options: Mapping[str, bool] | None = None) -> str:
    """Of all that is compiled into the function, and how, the same in every process with the same code and the same
    Numba.
    """
    found = hashlib.sha256(f"{numba.__version__} {sorted((options or {}).items())}".encode())
    places: dict[FunctionType, int] = {}
    left: list[bytes | FunctionType] = [_function(function) or b""]
    while left:
        part = left.pop()
        if isinstance(part, FunctionType):
            if part in places:
                part = f"as {places[part]}".encode()
            else:
                places[part] = len(places)
                left.extend(reversed(_function_parts(part)))
                continue
        found.update(f"{len(part)}:".encode() + part)
    return found.hexdigest()[:_DIGEST_CHARS]


def _function(value: Any) -> FunctionType | None:
    """The Python function behind a kernel, or behind an intrinsic of Numba, which writes LLVM code."""
    value = value.py_func if isinstance(value, Dispatcher) else getattr(value, "_defn", value)
    return value if isinstance(value, FunctionType) else None


@functools.cache
def _function_parts(function: FunctionType) -> tuple[bytes | FunctionType, ...]:
    """What makes up a function: its code, and all that it names."""
    if function.__module__.startswith(("numba.", "llvmlite.", "numpy.")):  # those have versions
        return (function.__qualname__.encode(),)
    named = [(name, function.__globals__[name]) for name in sorted(_names(function.__code__) & {*function.__globals__})]
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return tuple(_parts([function.__qualname__, function.__code__, function.__defaults__, cells, named]))


def _parts(value: Any) -> Iterator[bytes | FunctionType]:
    """What makes up a value that compiled code may depend on."""
    if (function := _function(value)) is not None:
        if isinstance(value, Dispatcher):
            yield repr(sorted(value.targetoptions.items())).encode()
        yield function
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype.str} {value.shape}".encode() + value.tobytes()
    elif isinstance(value, (tuple, list)):
        yield f"{type(value).__name__} {len(value)}".encode()
        for each in value:
            yield from _parts(each)
    elif isinstance(value, (set, frozenset, dict)):
        yield repr(sorted(map(repr, value.items() if isinstance(value, dict) else value))).encode()
    elif isinstance(value, CodeType):
        yield value.co_code
        yield from _parts(value.co_consts)
    else:
        yield _shown(value)


def _names(code: CodeType) -> set[str]:
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*inner)


def _shown(value: Any) -> bytes:
    """A number, a text, a type; of modules and classes the name."""
    if isinstance(value, ModuleType):
        return value.__name__.encode()
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}".encode()
    text = repr(value)
    return (type(value).__qualname__ if " at 0x" in text else f"{type(value).__qualname__} {text}").encode()
