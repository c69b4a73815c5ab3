"""`code_digest`: what a kernel is compiled of, as 16 digits that name its files on disk; and `Later`, a module that is
imported where something of it is first used.
"""

from __future__ import annotations

import enum
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np


class Later:
    """Stands for a module that takes long to import, where functions name it that are seldom called."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._module), name)

    def __repr__(self) -> str:
        return f"Later({self._module!r})"


DIGEST_CHARS = 16


def code_digest(function: Callable[..., Any], options: Mapping[str, bool] | None = None) -> str:
    """Of all that is compiled into the function, and how, the same in every process with the same code and the same
    Numba.
    """
    found = hashlib.sha256(_version() + f"{sorted((options or {}).items())}".encode())
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
    return found.hexdigest()[:DIGEST_CHARS]


@functools.cache
def _version() -> bytes:
    """What tells one Numba from another; its file, since to import it takes longer than what is done with it."""
    found = find_spec("numba")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("No module named 'numba'", name="numba")
    return Path(found.origin).with_name("_version.py").read_bytes()


def _function(value: Any) -> FunctionType | None:
    """The Python function behind a kernel, or behind an intrinsic of Numba, which writes LLVM code."""
    if not isinstance(value, Later):  # of which every name would be imported
        for name in ("py_func", "_defn"):
            value = getattr(value, name, value)
    return value if isinstance(value, FunctionType) else None


@functools.cache
def _function_parts(function: FunctionType) -> tuple[bytes | FunctionType, ...]:
    """What makes up a function: its code, and all that it names."""
    if function.__module__.startswith(("numba.", "llvmlite.", "numpy.")):  # those have versions
        return (function.__qualname__.encode(),)
    names = sorted(_names(function.__code__))
    named = [(name, function.__globals__[name]) for name in names if name in function.__globals__]
    named += [(name, vars(module)[name]) for module in _own_modules(named) for name in names if name in vars(module)]
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    defaults = [function.__defaults__, function.__kwdefaults__]
    return tuple(_parts([function.__qualname__, function.__code__, defaults, cells, named]))


def _own_modules(named: Iterable[tuple[str, Any]]) -> list[ModuleType]:
    """Those whose functions and constants a kernel may name as attributes, and which have no version of their own."""
    return [value for _, value in named if isinstance(value, ModuleType) and value.__name__.startswith("recordmill.")]


def _parts(value: Any) -> Iterator[bytes | FunctionType]:
    """What makes up a value that compiled code may depend on."""
    if (function := _function(value)) is not None:
        if hasattr(value, "options"):  # a kernel
            yield repr(sorted(value.options.items())).encode()
        yield function
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype.str} {value.shape}".encode() + value.tobytes()
    elif isinstance(value, (tuple, list)):
        yield f"{type(value).__name__} {getattr(value, '_fields', ())} {len(value)}".encode()
        for each in value:
            yield from _parts(each)
    elif isinstance(value, (set, frozenset, dict)):
        yield repr(sorted(map(repr, value.items() if isinstance(value, dict) else value))).encode()
    elif isinstance(value, CodeType):
        yield value.co_code
        yield getattr(value, "co_exceptiontable", b"")  # as of Python 3.11
        yield repr([getattr(value, name) for name in _CODE]).encode()
        yield from _parts(value.co_consts)
    elif isinstance(value, type):
        yield f"{value.__module__}.{value.__qualname__} {getattr(value, '_fields', ())}".encode()
        yield from _parts(list(value) if issubclass(value, enum.Enum) else ())
    elif isinstance(value, enum.Enum):
        yield f"{value!s} {value.value!r}".encode()
    else:
        yield _shown(value)


# of a code object beside its instructions, which say names by their number; where its lines stand decides nothing
_CODE = (
    "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags",
    "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals", "co_stacksize",
)  # fmt: skip


def _names(code: CodeType) -> set[str]:
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*inner)


def _shown(value: Any) -> bytes:
    """A number, a text; of modules the name."""
    if isinstance(value, ModuleType):
        return value.__name__.encode()
    text = repr(value)
    return (type(value).__qualname__ if " at 0x" in text else f"{type(value).__qualname__} {text}").encode()
