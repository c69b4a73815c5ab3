"""Memory for large arrays from Arrow's pool, and names for the types of arrays.

NumPy returns the memory of a large array to the system. The first access to each new page then
takes about a microsecond. This is more than decoding the data of the page, and was half of the
decoder's time. Arrow's pool reuses its pages. `pyarrow.total_allocated_bytes()` counts the memory.
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

# 64 KiB. The C library reuses smaller blocks itself, and is faster than the pool.
_MIN_POOL_BYTES = 64 << 10
# 1 MiB. The pool reuses smaller buffers itself, before it returns them to the system.
_MIN_REUSABLE_BYTES = 1 << 20
# 128 MiB. Enough for the few batches that exist at the same time during training.
_MAX_IDLE_BYTES = 128 << 20
# Returns the free memory of the C library to the system. Only glibc has this function. glibc keeps
# freed blocks of up to 32 MiB: 27 MiB, for example, after the classes of a build are counted.
_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
# Idle buffers by address, the newest last. Each operation on a dict is atomic, so no lock is
# needed.
_idle_buffers: dict[int, pa.Buffer] = {}


def allocate(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Returns an uninitialised, writable, C-contiguous array.

    The memory of an array of 64 KiB or more comes from Arrow's pool, and returns to it with the
    last reference.
    """
    numpy_dtype = np.dtype(dtype)
    size = (shape if isinstance(shape, int) else math.prod(shape)) * numpy_dtype.itemsize
    if size < _MIN_POOL_BYTES:
        return np.empty(shape, numpy_dtype)
    return np.frombuffer(pa.allocate_buffer(size), numpy_dtype).reshape(shape)


def allocate_reusable(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Returns an uninitialised array. Its memory is kept for later arrays.

    Use it for arrays that are allocated again and again and are passed to a consumer, such as
    arrays of batches. When the last reference to a large array is gone, in any thread, its memory
    becomes idle. The next array of about this size takes it. Without this, Arrow's pool would
    return the memory to the system within milliseconds. New pages took two fifths of the time while
    TensorFlow was fed.

    At most 128 MiB are idle, or one larger buffer. The oldest memory is dropped first.
    `drop_reusable` drops all of it.
    """
    numpy_dtype = np.dtype(dtype)
    size = (shape if isinstance(shape, int) else math.prod(shape)) * numpy_dtype.itemsize
    if size < _MIN_REUSABLE_BYTES:
        return allocate(shape, numpy_dtype)
    block = np.frombuffer(_take_idle_buffer(size), np.uint8)
    # each view keeps `block` alive, so it is finalized after the last view is gone
    weakref.finalize(block, _keep_idle, block.base).atexit = False
    return block[:size].view(numpy_dtype).reshape(shape)


def drop_reusable() -> None:
    """Drops the idle memory of `allocate_reusable`."""
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
    """Keeps a buffer for later arrays, and drops older buffers above the limit."""
    # The new buffer is always kept. The newest of the others are kept up to the rest of the limit.
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
    """Returns the offsets of consecutive items, and the end of the last one.

    >>> to_offsets([2, 0, 3]).tolist()
    [0, 2, 2, 5]

    Args:
        lengths: [items]. Length of each item.

    Returns:
        int64 [items + 1].
    """
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def release_unused(*, heap: bool = False) -> None:
    """Releases the memory that no array uses.

    The free memory of Arrow's pool and of `allocate_reusable` returns to the system. Call this
    function at the end of a stage, because the next stage needs arrays of other sizes.

    Args:
        heap: Whether the free memory of the C library is returned, too. Returning it takes time,
            and so does getting new pages later.
    """
    drop_reusable()
    pa.default_memory_pool().release_unused()
    if heap and _malloc_trim is not None:
        _malloc_trim(0)
