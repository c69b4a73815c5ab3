"""Memory for arrays of a batch's size, from Arrow's pool, which hands freed pages out again; NumPy gives them back to the system.

A page that is new to the process costs about a microsecond, more than decoding what goes into it: with `numpy.empty` half of the decoder's time went
there. What is taken here is counted by `pyarrow.total_allocated_bytes()`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def room(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An uninitialised, writable, C-contiguous array, which goes back to the pool when nothing refers to it any more."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if size == 0:
        return np.empty(shape, kind)
    return np.frombuffer(pa.allocate_buffer(size), kind).reshape(shape)


def filled(shape: int | tuple[int, ...], value: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Like room, all of one value."""
    array = room(shape, dtype)
    array.fill(value)
    return array
