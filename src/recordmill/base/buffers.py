"""Memory for large arrays from Arrow's pool, and names for the types of arrays.

`numpy.empty` returns freed memory to the system, and the first access to a new page costs about a
microsecond. This is more than decoding the data of that page takes: it was half of the decoder's
time. Arrow's pool reuses its pages. `pyarrow.total_allocated_bytes()` counts this memory.
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

# 64 KiB: the C library reuses smaller blocks by itself, and faster than the pool.
_MIN_POOL_BYTES = 64 << 10
# 1 MiB: the pool reuses smaller buffers before it returns them to the system.
_MIN_REUSABLE_BYTES = 1 << 20
# 128 MiB: enough for the few batches that are in flight while a trainer is fed.
_MAX_IDLE_BYTES = 128 << 20
# Returns the free memory of the C library to the system. Only glibc has this function. After a
# block of up to 32 MiB was freed, glibc keeps free blocks of that size, for example 27 MiB after
# the classes of a build were counted.
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
# Idle buffers by address, the latest last. Each single operation on a dict is atomic, so no lock.
_idle_buffers: dict[int, pa.Buffer] = {}


def allocate(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Returns an uninitialised, writable, C-contiguous array.

    An array of 64 KiB or more comes from Arrow's pool. Its memory returns to the pool after the
    last reference is gone.
    """
    numpy_dtype = np.dtype(dtype)
    size = (shape if isinstance(shape, int) else math.prod(shape)) * numpy_dtype.itemsize
    if size < _MIN_POOL_BYTES:
        return np.empty(shape, numpy_dtype)
    return np.frombuffer(pa.allocate_buffer(size), numpy_dtype).reshape(shape)


def allocate_reusable(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Returns an uninitialised array and keeps its memory for later arrays.

    Use it for arrays that the caller passes on and allocates again and again, such as the arrays of
    batches. After the last reference to a large array is gone, in any thread, its memory is kept
    for the next array of about this size. Arrow's pool would return it to the system within
    milliseconds. New pages took two fifths of the time while TensorFlow was fed.

    At most 128 MiB are kept, or a single larger array, until `drop_reusable` is called. The oldest
    memory is dropped first.
    """
    numpy_dtype = np.dtype(dtype)
    size = (shape if isinstance(shape, int) else math.prod(shape)) * numpy_dtype.itemsize
    if size < _MIN_REUSABLE_BYTES:
        return allocate(shape, numpy_dtype)
    block = np.frombuffer(_take_idle_buffer(size), np.uint8)
    # Every view keeps `block` alive, so the buffer becomes idle when the last view is gone.
    weakref.finalize(block, _keep_idle, block.base).atexit = False
    return block[:size].view(numpy_dtype).reshape(shape)


def drop_reusable() -> None:
    """Releases the idle memory that `allocate_reusable` keeps."""
    _idle_buffers.clear()


def _take_idle_buffer(size: int) -> pa.Buffer:
    """Returns the smallest idle buffer of `size` to `2 * size` bytes, or a new buffer."""
    fitting = sorted(
        (buffer.size, address)
        for address, buffer in list(_idle_buffers.items())
        if size <= buffer.size <= 2 * size
    )
    for _, address in fitting:
        buffer = _idle_buffers.pop(address, None)  # None if another thread has taken it
        if buffer is not None:
            return buffer
    return pa.allocate_buffer(size)


def _keep_idle(buffer: pa.Buffer) -> None:
    """Keeps an idle buffer for later, and drops older buffers above the limit."""
    # The new buffer always stays. Older ones share the rest of the limit, the latest first.
    remaining_bytes = _MAX_IDLE_BYTES - buffer.size
    for address, idle_buffer in reversed(list(_idle_buffers.items())):
        remaining_bytes -= idle_buffer.size
        if remaining_bytes < 0:
            _idle_buffers.pop(address, None)
    _idle_buffers[buffer.address] = buffer


def allocate_filled(
    shape: int | tuple[int, ...], value: int, dtype: npt.DTypeLike
) -> npt.NDArray[Any]:
    """Returns an array from `allocate` in which each element is `value`."""
    array = allocate(shape, dtype)
    array.fill(value)
    return array


def to_offsets(lengths: npt.ArrayLike) -> Int64s:
    """Returns the offsets of consecutive items: where each begins, and where the last one ends.

    >>> to_offsets([2, 0, 3]).tolist()
    [0, 2, 2, 5]

    Args:
        lengths: The length of each item, [items].

    Returns:
        int64 [items + 1].
    """
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def release_unused(*, heap: bool = False) -> None:
    """Returns unused memory of this process to the system.

    This is the memory of Arrow's pool and of `allocate_reusable` that no array uses. Call it at the
    end of a stage, because the next stage needs arrays of other sizes.

    Args:
        heap: Also returns the free memory of the C library. To get these pages again costs as much
            time as to return them.
    """
    drop_reusable()
    pa.default_memory_pool().release_unused()
    if heap and _malloc_trim is not None:
        _malloc_trim(0)
