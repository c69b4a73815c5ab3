"""`read_files`: many small files, each whole, by one call in which nobody waits for Python's lock.

To open, read, ask and close takes four calls of the system and, for small files, less time than Python's threads take
to hand their lock on between them: two threads that read files of 100 kB each by Python's own functions were slower
than one.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir

from recordmill.base.arrays import Bytes, Int64s
from recordmill.base.kernels import cgutils, inlined, intrinsic, kernel, types
from recordmill.base.pointers import address_of, load32, load64

_WORD = ir.IntType(64)
_EINTR = 4
_READ_ONLY = getattr(os, "O_CLOEXEC", 0) | os.O_RDONLY
# of statx(2), whose structure is the same on every processor, in bytes
_EMPTY_PATH, _SIZE_AND_TIMES = 0x1000, 0x2C0
_STATX_BYTES, _SIZE_AT, _CTIME_AT, _MTIME_AT = 256, 40, 96, 112


def _call(name: str, bits: Sequence[int], given: Sequence[Any], builder: Any, *, more: bool = False) -> Any:
    """A call of a function of the C library, whose arguments and result (the last of bits) are so wide. more: it is
    declared to take more arguments than these.
    """
    kinds = [ir.IntType(width) for width in bits]
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kinds[-1], kinds[:-1], more), name)
    words = [
        value if kind.width == 64 else builder.trunc(value, kind) for value, kind in zip(given, kinds[:-1], strict=True)
    ]
    result = builder.call(function, words)
    return result if kinds[-1].width == 64 else builder.sext(result, _WORD)


@intrinsic
def _open(typing, path, flags):  # type: ignore[no-untyped-def]
    """(address, flags) -> a descriptor, or -1."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call("open", [64, 32, 32], arguments, builder, more=True)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def _pread(typing, descriptor, into, size, start):  # type: ignore[no-untyped-def]
    """(descriptor, address, bytes, offset) -> bytes read, or -1."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call("pread", [32, 64, 64, 64, 64], arguments, builder)

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def _statx(typing, descriptor, path, flags, mask, into):  # type: ignore[no-untyped-def]
    """(descriptor, address of a path, flags, mask, address) -> 0, or -1."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call("statx", [32, 64, 32, 32, 64, 32], arguments, builder)

    return types.int64(types.int64, types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def _close(typing, descriptor):  # type: ignore[no-untyped-def]
    """(descriptor) -> 0, or -1."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call("close", [32, 32], arguments, builder)

    return types.int64(types.int64), generate


@intrinsic
def _errno_at(typing):  # type: ignore[no-untyped-def]
    """() -> the address of this thread's errno."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call("__errno_location", [64], arguments, builder)

    return types.int64(), generate


@inlined
def _open_file(path: int, flags: int) -> int:
    """A descriptor, or an error's number below 0."""
    while True:
        descriptor = _open(path, flags)
        if descriptor >= 0:
            return int(descriptor)
        error = load32(_errno_at())
        if error != _EINTR:
            return -int(error)


@inlined
def _fill(descriptor: int, into: int, size: int) -> int:
    """How many of the bytes were there, or an error's number below 0."""
    done = 0
    while done < size:
        count = _pread(descriptor, into + done, size - done, done)
        if count == 0:
            break
        if count > 0:
            done += count
        else:
            error = load32(_errno_at())
            if error != _EINTR:
                return -int(error)
    return done


@kernel
def _read(
    paths: int, places: Int64s, flags: int, into: int, sizes: Int64s, found: npt.NDArray[np.int64], about: int
) -> int:
    """Read file after file, each to where the one before it ends; gives how many were read, with what is found of each
    as [bytes read, or an error's number below 0; size; mtime; ctime].
    """
    at = into
    for i in range(len(sizes)):
        descriptor = _open_file(paths + places[i], flags)
        found[i, 0] = descriptor
        if descriptor < 0:
            return i
        found[i, 0] = _fill(descriptor, at, sizes[i])
        empty = paths + places[len(sizes)] - 1  # the zero behind the last path
        if found[i, 0] >= 0 and _statx(descriptor, empty, _EMPTY_PATH, _SIZE_AND_TIMES, about) < 0:
            found[i, 0] = -load32(_errno_at())
        _close(descriptor)
        if found[i, 0] < 0:
            return i
        found[i, 1] = load64(about + _SIZE_AT)
        found[i, 2] = load64(about + _MTIME_AT) * 1_000_000_000 + load32(about + _MTIME_AT + 8)
        found[i, 3] = load64(about + _CTIME_AT) * 1_000_000_000 + load32(about + _CTIME_AT + 8)
        at += sizes[i]
    return len(sizes)


@functools.cache
def has_calls() -> bool:
    """Whether this system has the calls that it takes: Linux with a C library of the last years."""
    library = ctypes.CDLL(None)
    return all(hasattr(library, name) for name in ("statx", "__errno_location", "pread", "open", "close"))


def read_files(paths: Sequence[str], sizes: Int64s, into: Bytes) -> tuple[int, Int64s]:
    """Fill `into` with the files' first bytes, so many of each, one behind the other.

    Gives how many files could be read, up to the first that could not, and [files, 4] int64 of these and that one:
    bytes read, or an error's number below 0; size, mtime and ctime in ns, as they are after it.

    Raises:
        ValueError: there is no room for them.
    """
    if int(sizes.min(initial=0)) < 0 or int(sizes.sum()) > len(into) or len(sizes) != len(paths):
        raise ValueError(f"{len(paths)} files of {int(sizes.sum())} bytes do not go into {len(into)}")
    encoded = [os.fsencode(path) + b"\0" for path in paths]
    places = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    names, about = np.frombuffer(b"".join(encoded), np.uint8), np.empty(_STATX_BYTES, np.uint8)
    found = np.zeros((len(paths), 4), np.int64)
    done = _read(address_of(names), places, _READ_ONLY, address_of(into), sizes, found, address_of(about))
    return int(done), found
