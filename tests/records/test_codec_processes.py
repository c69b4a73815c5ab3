"""The kernels return the same results in threads and in child processes.

This holds after fork and spawn, and for buffers beyond 2 GiB.
"""

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from kit.child_processes import encoded_digest

from recordmill.base.errors import DataError
from recordmill.records.example.encode import encode
from recordmill.records.tfrecord.frames import scan_frames
from recordmill.schemas.feature import Feature, Schema

BYTES_SCHEMA = Schema((Feature("x", "bytes"),))


def test_kernels_in_many_threads_return_the_same_as_in_one() -> None:
    expected = [encoded_digest(seed) for seed in range(24)]
    assert len(set(expected)) == 24
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(encoded_digest, range(24))) == expected


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_kernels_in_child_processes_return_the_same(method: str) -> None:
    expected = encoded_digest(1)  # the parent loads the library before it forks
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(encoded_digest, (1,)) == expected


def test_column_with_offsets_beyond_2_gib_is_encoded() -> None:
    data = np.zeros((5 << 29) + 100, np.uint8)  # 2.5 GiB, but only its end is ever accessed
    data[-7:] = np.frombuffer(b"abcdefg", np.uint8)
    end = len(data)
    offsets = np.array([0, end - 7, end - 3, end], np.int64)
    column = pa.Array.from_buffers(
        pa.large_binary(), 3, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    frames = encode(pa.RecordBatch.from_arrays([column.slice(1)], names=["x"]), BYTES_SCHEMA)
    assert [frames.payload(i).tobytes()[-4:] for i in range(2)] == [b"abcd", b"\x03efg"]


def test_record_of_2_gib_is_refused_before_memory_is_allocated() -> None:
    data = np.zeros(1 << 31, np.uint8)
    for size in ((1 << 31) - 20, 1 << 31):
        offsets = np.array([0, 0, size], np.int64)
        column = pa.Array.from_buffers(
            pa.large_binary(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )
        with pytest.raises(
            DataError, match=r"row 1: the record has \d+ bytes and protobuf's limit is 2 GiB"
        ):
            encode(pa.RecordBatch.from_arrays([column], names=["x"]), BYTES_SCHEMA)


@pytest.mark.sweep
def test_batch_beyond_2_gib_is_encoded_and_scanned() -> None:
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if available < 6 << 30:
        pytest.skip("needs 6 GiB of free memory")
    size = 750 << 20
    data = np.zeros(3 * size, np.uint8)
    data[-1] = 7
    column = pa.Array.from_buffers(
        pa.large_binary(), 3, [None, pa.py_buffer(np.arange(4) * size), pa.py_buffer(data)]
    )
    frames = encode(pa.RecordBatch.from_arrays([column], names=["x"]), BYTES_SCHEMA)
    assert int(frames.starts[-1]) > 1 << 30
    assert len(frames.data) > 1 << 31
    scanned_frames, consumed = scan_frames(frames.data, source="x", is_final=True)
    assert consumed == len(frames.data)
    assert frames.payload(2)[-1] == 7
    np.testing.assert_array_equal(scanned_frames.crcs, frames.crcs)
