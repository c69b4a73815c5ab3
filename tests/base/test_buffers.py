"""A buffer is reused only after its last view is gone, for a size that fits, and idle buffers
are bounded.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from kit.runs import run_in_threads

from recordmill.base import buffers as at
from recordmill.base.buffers import allocate_reusable, drop_reusable

MIB = 1 << 20


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    drop_reusable()
    yield
    drop_reusable()


def test_buffer_is_reused_only_after_its_last_view_is_gone() -> None:
    first = allocate_reusable((2, MIB), np.int64)
    address, part = first.ctypes.data, first[1, 5:9]
    del first
    assert allocate_reusable((2, MIB), np.int64).ctypes.data != address  # the view is still there
    drop_reusable()
    part[:] = 7
    del part
    smaller = allocate_reusable(3 * MIB, np.float32)
    assert smaller.ctypes.data == address
    assert smaller.shape == (3 * MIB,)
    assert smaller.flags.writeable
    assert smaller.flags.c_contiguous


def test_buffer_is_reused_only_for_a_size_that_fits() -> None:
    large = allocate_reusable(8 * MIB, np.uint8)
    address = large.ctypes.data
    del large
    assert (
        allocate_reusable(3 * MIB, np.uint8).ctypes.data != address
    )  # it would waste more than half
    assert allocate_reusable(9 * MIB, np.uint8).ctypes.data != address
    assert allocate_reusable(8 * MIB, np.uint8).ctypes.data == address


def test_idle_buffers_are_kept_up_to_a_limit() -> None:
    held = [allocate_reusable(16 * MIB, np.uint8) for _ in range(20)]
    held.clear()
    kept = sum(one.size for one in at._idle_buffers.values())
    assert 0 < kept <= 128 * MIB
    larger = allocate_reusable(200 * MIB, np.uint8)
    address = larger.ctypes.data
    del larger
    assert list(at._idle_buffers) == [
        address
    ]  # alone, since batches that are as large come after it
    assert allocate_reusable(200 * MIB, np.uint8).ctypes.data == address
    drop_reusable()
    assert not at._idle_buffers


def test_threads_never_share_a_buffer() -> None:
    wrong = []

    def use(mark: int) -> None:
        for _ in range(300):
            mine = allocate_reusable(MIB + mark, np.uint8)
            mine[::4096] = mark
            wrong.extend([mark] * int((mine[::4096] != mark).any()))

    run_in_threads(use, *range(1, 9))
    assert not wrong
