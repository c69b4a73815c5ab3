"""A buffer is reused only after its last view is gone.

It is reused only for a similar size, and the size of all idle buffers is bounded.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from kit.runs import run_in_threads

from recordmill.base import buffers
from recordmill.base.buffers import allocate_reusable, drop_reusable

MIB = 1 << 20


@pytest.fixture(autouse=True)
def no_idle_buffers() -> Iterator[None]:
    drop_reusable()
    yield
    drop_reusable()


def test_buffer_is_reused_only_after_its_last_view_is_gone() -> None:
    first = allocate_reusable((2, MIB), np.int64)
    address, view = first.ctypes.data, first[1, 5:9]
    del first
    assert allocate_reusable((2, MIB), np.int64).ctypes.data != address  # the view still exists
    drop_reusable()
    view[:] = 7
    del view
    smaller = allocate_reusable(3 * MIB, np.float32)
    assert smaller.ctypes.data == address
    assert smaller.shape == (3 * MIB,)
    assert smaller.flags.writeable
    assert smaller.flags.c_contiguous


def test_buffer_is_reused_only_for_a_size_that_fits() -> None:
    large = allocate_reusable(8 * MIB, np.uint8)
    address = large.ctypes.data
    del large
    # It would waste more than half of the buffer.
    assert allocate_reusable(3 * MIB, np.uint8).ctypes.data != address
    assert allocate_reusable(9 * MIB, np.uint8).ctypes.data != address
    assert allocate_reusable(8 * MIB, np.uint8).ctypes.data == address


def test_idle_buffers_are_kept_up_to_a_limit() -> None:
    arrays = [allocate_reusable(16 * MIB, np.uint8) for _ in range(20)]
    arrays.clear()
    idle_bytes = sum(buffer.size for buffer in buffers._idle_buffers.values())
    assert 0 < idle_bytes <= 128 * MIB
    larger = allocate_reusable(200 * MIB, np.uint8)
    address = larger.ctypes.data
    del larger
    # A buffer above the limit is kept alone, because batches of the same size follow.
    assert list(buffers._idle_buffers) == [address]
    assert allocate_reusable(200 * MIB, np.uint8).ctypes.data == address
    drop_reusable()
    assert not buffers._idle_buffers


def test_threads_never_share_a_buffer() -> None:
    errors = []

    def use(mark: int) -> None:
        for _ in range(300):
            buffer = allocate_reusable(MIB + mark, np.uint8)
            buffer[::4096] = mark
            errors.extend([mark] * int((buffer[::4096] != mark).any()))

    run_in_threads(use, *range(1, 9))
    assert not errors
