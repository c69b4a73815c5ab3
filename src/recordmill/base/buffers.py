"""Memory for arrays of a batch's size, from Arrow's pool, which hands freed pages out again, where NumPy gives them
back to the system; and the types of arrays that pass between modules and the native library.

A page that is new to the process costs about a microsecond, more than decoding what goes into it: with `numpy.empty`
half of the decoder's time went there. What is taken here is counted by `pyarrow.total_allocated_bytes()`.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

_MIN_POOL_BYTES = (
    64 << 10
)  # 64 KiB: below it the C library hands freed memory out again by itself, and quicker
_MIN_REUSABLE_BYTES = (
    1 << 20
)  # 1 MiB: what is below it the pool hands out again before it gives it back to the system
_MAX_IDLE_BYTES = (
    128 << 20
)  # 128 MiB: some blocks of batches, as many as go and come while a trainer is fed
# glibc keeps blocks of up to 32 MiB once one of that size was freed: 27 MiB after the count of a build's classes
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
_idle_buffers: dict[int, pa.Buffer] = {}  # by address; single operations on it need no lock


def allocate(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Returns an uninitialised, writable, C-contiguous array, which goes back to the pool after its last reference."""
    numpy_dtype = np.dtype(dtype)
    size = (shape if isinstance(shape, int) else math.prod(shape)) * numpy_dtype.itemsize
    if size < _MIN_POOL_BYTES:
        return np.empty(shape, numpy_dtype)
    return np.frombuffer(pa.allocate_buffer(size), numpy_dtype).reshape(shape)


def allocate_reusable(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Returns an array as `allocate` does, for arrays that are given away and come again and again: what is as large and
    nobody refers to any more is handed out anew, whoever let go of it and however late. (The pool gives such memory
    back to the system within milliseconds, and new pages took two fifths of the time in which TensorFlow was fed.)

    Up to 128 MiB are kept for that, or a single one that is larger, until `drop_reusable`; what came back last stays longest.
    """
    numpy_dtype = np.dtype(dtype)
    size = (shape if isinstance(shape, int) else math.prod(shape)) * numpy_dtype.itemsize
    if size < _MIN_REUSABLE_BYTES:
        return allocate(shape, numpy_dtype)
    block = np.frombuffer(
        _take_idle_buffer(size), np.uint8
    )  # all views of it refer to it, so it lives as long as one of them
    weakref.finalize(block, _keep_idle, block.base).atexit = False
    return block[:size].view(numpy_dtype).reshape(shape)


def drop_reusable() -> None:
    """Keeps nothing any more of what was given away by `allocate_reusable`."""
    _idle_buffers.clear()


def _take_idle_buffer(size: int) -> pa.Buffer:
    """Memory of at least this size: the smallest that is idle, if it is no more than twice as large."""
    fitting = sorted(
        (buffer.size, address)
        for address, buffer in list(_idle_buffers.items())
        if size <= buffer.size <= 2 * size
    )
    for _, address in fitting:
        buffer = _idle_buffers.pop(address, None)  # another thread may have been quicker
        if buffer is not None:
            return buffer
    return pa.allocate_buffer(size)


def _keep_idle(buffer: pa.Buffer) -> None:
    """Keeps it, and of the others, the latest first, what there is room for beside it."""
    remaining_bytes = _MAX_IDLE_BYTES - buffer.size
    for address, idle_buffer in reversed(list(_idle_buffers.items())):
        remaining_bytes -= idle_buffer.size
        if remaining_bytes < 0:
            _idle_buffers.pop(address, None)
    _idle_buffers[buffer.address] = buffer


def allocate_filled(
    shape: int | tuple[int, ...], value: int, dtype: npt.DTypeLike
) -> npt.NDArray[Any]:
    """Returns an array as `allocate` does, all of one value."""
    array = allocate(shape, dtype)
    array.fill(value)
    return array


def release_unused(*, heap: bool = False) -> None:
    """Lets the system have what the pool holds and nobody uses: at the end of a stage, whose sizes the next one won't
    ask for again. heap: and what the C library holds, which costs as much as the pages that are asked for anew.
    """
    drop_reusable()
    pa.default_memory_pool().release_unused()
    if heap and _malloc_trim is not None:
        _malloc_trim(0)
