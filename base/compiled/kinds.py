"""What a kernel is called with and gives, as machine code has them: numbers, arrays of numbers, tuples of those.

The convention is that of Numba's compiled functions (numba.core.callconv.CPUCallConv): `status f(result *, error **,
arguments...)`, where an array is its parts (two owners of its memory, items, bytes an item, address, shape, strides),
a tuple its items, and a bool a byte.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Kind = str | tuple[Any, ...]  # of an argument: "i8" (a number), ("<i8", 1, flags) (an array), ("NullTokens", kinds)
CType = Any  # a class of ctypes

_ALIGNED, _FLAGS = 0x100, 0x503  # of an array: NumPy's number for aligned; those and for C, for Fortran, for writeable
_NUMBERS: dict[str, CType] = {
    "b1": ctypes.c_bool, "f4": ctypes.c_float, "f8": ctypes.c_double,
    "i1": ctypes.c_int8, "i2": ctypes.c_int16, "i4": ctypes.c_int32, "i8": ctypes.c_int64,
    "u1": ctypes.c_uint8, "u2": ctypes.c_uint16, "u4": ctypes.c_uint32, "u8": ctypes.c_uint64,
}  # fmt: skip
_KINDS: dict[type, str] = {bool: "b1", float: "f8"} | {np.dtype(name).type: name for name in _NUMBERS}


def kinds_of(values: Sequence[Any]) -> tuple[Kind, ...] | None:
    """Of a call's arguments; None if machine code can't take them."""
    found = tuple(map(_kind_of, values))
    return None if None in found else found  # type: ignore[return-value]


def _kind_of(value: Any) -> Kind | None:
    kind = type(value)
    if kind is np.ndarray:
        return value.dtype.str, value.ndim, value.flags.num & _FLAGS
    if kind is int:
        return "i8" if -1 << 63 <= value < 1 << 63 else None
    if issubclass(kind, tuple):
        inner = kinds_of(value)
        return None if inner is None else (kind.__qualname__, inner)
    return _KINDS.get(kind)


def is_taken(kinds: Sequence[Kind]) -> bool:
    """Whether machine code takes these: aligned arrays of numbers in this machine's order of bytes."""
    return all(_is_taken(kind) for kind in kinds)


def _is_taken(kind: Kind) -> bool:
    if isinstance(kind, str):
        return True
    if len(kind) == 2:
        return is_taken(kind[1])
    return kind[0][0] in "<|" and kind[0][1:] in _NUMBERS and bool(kind[2] & _ALIGNED)


def declared(kinds: Sequence[Kind]) -> list[str]:
    """The arguments as LLVM has them.

    >>> declared(["b1", ("<i8", 1, _FLAGS)])
    ['i8', 'ptr', 'ptr', 'i64', 'i64', 'ptr', 'i64', 'i64']
    """
    names = {ctypes.c_void_p: "ptr", ctypes.c_bool: "i8", ctypes.c_float: "float", ctypes.c_double: "double"}
    return [names.get(each) or f"i{8 * ctypes.sizeof(each)}" for each in c_types(kinds)]


def c_types(kinds: Sequence[Kind]) -> list[CType]:
    """The arguments as C has them."""
    return [each for kind in kinds for each in _c_types(kind)]


def _c_types(kind: Kind) -> list[CType]:
    if isinstance(kind, str):
        return [_NUMBERS[kind]]
    if len(kind) == 2:
        return c_types(kind[1])
    address, number = ctypes.c_void_p, ctypes.c_int64
    return [address, address, number, number, address, *[number] * (2 * kind[1])]


def words(kinds: Sequence[Kind], values: Sequence[Any]) -> Iterator[Any]:
    """The arguments as they are given to a function of `c_types`."""
    for kind, value in zip(kinds, values, strict=True):
        if isinstance(kind, str):
            yield value
        elif len(kind) == 2:
            yield from words(kind[1], value)
        else:
            address = value.__array_interface__["data"][0]
            yield from (None, None, value.size, value.itemsize, address, *value.shape, *value.strides)


def result_class(kinds: Sequence[str]) -> CType:
    """The memory of what is given: of a number, or of several, one behind the other as a C compiler lays them."""
    fields = [(f"item{index}", _NUMBERS[kind]) for index, kind in enumerate(kinds)]
    return type("Result", (ctypes.Structure,), {"_fields_": fields})
