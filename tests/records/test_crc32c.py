"""CRC32C in both ways against google-crc32c and against the known answers of RFC 3720."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from recordmill.records.tfrecord import crc32c

LENGTHS = [
    *range(260),
    383,
    384,
    385,
    *range(760, 776),
    *range(1016, 1032),
    1279,
    1280,
    1281,
    4095,
    6143,
    6144,
    6145,
    6149,
    20_000,
    100_003,
]


def data(length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (b"\0" * 32, 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_known_answers(given: bytes, wanted: int) -> None:
    array = np.frombuffer(given, np.uint8)
    assert crc32c.crc32c(array) == wanted
    assert crc32c.extend_table(0, array.ctypes.data, len(array)) == wanted


def test_both_ways_and_the_library_agree_at_every_alignment() -> None:
    google = pytest.importorskip("google_crc32c", reason="the oracle is google-crc32c")
    for length in LENGTHS:
        array = data(length + 8)
        for start in (0, length % 8):
            part = array[start : start + length]
            wanted = google.value(part.tobytes())
            assert crc32c.crc32c(part) == wanted
            assert crc32c.extend_table(0, part.ctypes.data, length) == wanted


def test_a_crc_can_be_extended() -> None:
    whole = data(50_000)
    for cut in (0, 1, 7, 8, 6144, 49_999, 50_000):
        first = crc32c.crc32c(whole[:cut])
        assert crc32c.extend(first, whole.ctypes.data + cut, 50_000 - cut) == crc32c.crc32c(whole)
        assert crc32c.extend_table(first, whole.ctypes.data + cut, 50_000 - cut) == crc32c.crc32c(whole)


def test_word_and_mask() -> None:
    for value in (0, 1, 2**31, 2**62 + 12345, -1, -(2**63)):
        assert crc32c.of_word(value) == crc32c.crc32c(np.array([value]).view(np.uint8))
        assert crc32c.step_table(0xFFFFFFFF, value) ^ 0xFFFFFFFF == crc32c.of_word(value)
    for crc in (0, 1, 0xFFFFFFFF, 0xE3069283, 0x80000000):
        masked = crc32c.masked(crc)
        assert masked == (((crc >> 15 | crc << 17) & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF  # tsl/lib/hash/crc32c.h
        assert crc32c.unmasked(masked) == crc


PROGRAM = """
import hashlib, numpy as np, pyarrow as pa
from recordmill.records.tfrecord import crc32c
from recordmill.records.example.decode import decode
from recordmill.records.example.encode import encode
from recordmill.records.tfrecord.frames import scan
from recordmill.schemas.feature import Feature, Schema
schema = Schema((Feature("a", "int64"), Feature("b", "string"), Feature("c", "int64", (None,))))
numbers = [[(i * 7919) ** (j % 5) % 2**40 for j in range(i % 50)] for i in range(500)]
strings = pa.array([str(i) * i for i in range(500)], pa.large_string())
batch = pa.RecordBatch.from_pydict({"a": range(500), "b": strings, "c": pa.array(numbers, pa.large_list(pa.int64()))})
frames = encode(batch, schema)
assert scan(frames.data, source="x", final=True)[1] == len(frames.data)
assert decode(frames.data, frames.starts + 12, frames.lengths, schema).to_pydict() == batch.to_pydict()
print(crc32c.HARDWARE, crc32c.FOLDS, hashlib.sha256(frames.data).hexdigest())
"""


def run_compiled_for(cpu: dict[str, str]) -> list[str]:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **cpu}, check=True, capture_output=True, text=True
    )
    return found.stdout.split()


@pytest.mark.sweep
def test_processors_without_the_instructions_write_and_read_the_same_bytes() -> None:
    here = run_compiled_for({})
    assert here[:2] == [str(crc32c.HARDWARE), str(crc32c.FOLDS)]
    # NUMBA_CPU_NAME=generic compiles for the first x86-64, which has no SSE4.2: the tables, through and through.
    assert run_compiled_for({"NUMBA_CPU_NAME": "generic"}) == ["False", "False", here[2]]
    if crc32c.HARDWARE:
        # the CRC instruction, but nothing wider
        nehalem = {"NUMBA_CPU_NAME": "nehalem", "NUMBA_CPU_FEATURES": "+sse4.2,+ssse3,+popcnt"}
        assert run_compiled_for(nehalem) == ["True", "False", here[2]]
