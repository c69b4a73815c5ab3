"""Memory for arrays of a batch's size, from Arrow's pool, which hands freed pages out again;
NumPy gives them back to the system.

A page that is new to the process costs about a microsecond, more than decoding what goes into it: with `numpy.empty`
half of the decoder's time went there. What is taken here is counted by `pyarrow.total_allocated_bytes()`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_POOL_BYTES = 64 << 10  # 64 KiB: below it the C library hands freed memory out again by itself, and quicker


def room(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An uninitialised, writable, C-contiguous array,
    which goes back to the pool when nothing refers to it any more.
    """
    kind = np.dtype(dtype)
    size = (shape if isinstance(shape, int) else math.prod(shape)) * kind.itemsize
    if size < _POOL_BYTES:
        return np.empty(shape, kind)
    return np.frombuffer(pa.allocate_buffer(size), kind).reshape(shape)


def filled(shape: int | tuple[int, ...], value: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Like room, all of one value."""
    array = room(shape, dtype)
    array.fill(value)
    return array


def give_back() -> None:
    """Let the system have what the pool holds and nobody uses:
    at the end of a stage, whose sizes the next one won't ask for again.
    """
    pa.default_memory_pool().release_unused()
