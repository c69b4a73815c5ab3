"""Frames against the format's definition written out in Python, and against every possible damage of a small shard."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from recordmill.base import native
from recordmill.base.errors import DataError
from recordmill.records.tfrecord.frames import FRAME_BYTES, Frames, frame, pack_spans, scan, try_scan

PAYLOADS = [b"first", b"", b"x" * 30, bytes(range(256)) * 2, b"last one"]


def masked(crc: int) -> int:
    """TFRecord's form of a CRC (TensorFlow, lib/hash/crc32c.h)."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def framed(payload: bytes) -> bytes:
    def mask(data: bytes) -> bytes:
        return struct.pack("<I", masked(native.crc32c(np.frombuffer(data, np.uint8), 0)))

    length = struct.pack("<Q", len(payload))
    return length + mask(length) + payload + mask(payload)


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def offsets(payloads: list[bytes], first: int = 0) -> np.ndarray:
    return first + np.cumsum([0, *map(len, payloads)])


SHARD = b"".join(map(framed, PAYLOADS))
STARTS = [sum(len(p) + FRAME_BYTES for p in PAYLOADS[:i]) for i in range(len(PAYLOADS) + 1)]


def test_bytes_are_pinned() -> None:
    # As tf.io.TFRecordWriter writes them; every reader of TFRecord files relies on it.
    made = frame(array(b"abc"), np.array([0, 3, 3]))
    assert made.data.tobytes().hex() == "0300000000000000b099490e6162636e57f121000000000000000029039807d8ea82a2"


def test_frame_is_the_definition() -> None:
    made = frame(array(b"before" + b"".join(PAYLOADS) + b"behind"), offsets(PAYLOADS, 6))
    assert made.data.tobytes() == SHARD
    assert made.starts.tolist() == STARTS[:-1]
    assert made.lengths.tolist() == list(map(len, PAYLOADS))
    assert made.crcs.tolist() == [native.crc32c(array(payload), 0) for payload in PAYLOADS]
    assert [made.payload(i).tobytes() for i in range(len(made))] == PAYLOADS


def test_frame_refuses_offsets_outside() -> None:
    for wrong in ([], [0, 4], [-1, 2], [0, 3, 2]):
        with pytest.raises(ValueError, match="payload offsets"):
            frame(array(b"abc"), np.array(wrong, np.int64))


def test_scan_gives_back_what_was_framed_from_any_cut() -> None:
    for cut in range(len(SHARD) + 1):
        frames, consumed = scan(array(SHARD[:cut]), source="s", final=False)
        assert consumed == max(start for start in STARTS if start <= cut)
        assert frames.starts.tolist() == [start for start in STARTS[:-1] if start < consumed]
        assert [frames.payload(i).tobytes() for i in range(len(frames))] == PAYLOADS[: len(frames)]


def test_every_truncation_is_found_at_its_frame() -> None:
    for cut in range(len(SHARD)):
        if cut in STARTS:
            assert scan(array(SHARD[:cut]), source="s", final=True)[1] == cut
            continue
        number = sum(start < cut for start in STARTS) - 1
        with pytest.raises(DataError, match=f"^s: record {10 + number}, byte {1000 + STARTS[number]}: truncated"):
            scan(array(SHARD[:cut]), source="s", first_record=10, first_offset=1000, final=True)


def test_every_flipped_bit_is_found_at_its_frame() -> None:
    for bit in range(8 * len(SHARD)):
        damaged = bytearray(SHARD)
        damaged[bit // 8] ^= 1 << bit % 8
        number = sum(start <= bit // 8 for start in STARTS) - 1
        with pytest.raises(
            DataError, match=f"^s: record {number}, byte {STARTS[number]}: CRC of the (length|data)"
        ) as caught:
            scan(array(bytes(damaged)), source="s", final=True)
        assert ("length is wrong" in str(caught.value)) == (bit // 8 - STARTS[number] < 12)
        assert len(str(caught.value)) < 300
        frames, consumed, error = try_scan(array(bytes(damaged)), source="s", final=True)
        assert (len(frames), consumed, str(error)) == (number, STARTS[number], str(caught.value))


@pytest.mark.parametrize("length", [2**30 + 1, 2**40, 2**63, 2**64 - 1, 2**64 - 16])
def test_a_mad_length_with_a_right_crc_is_refused_before_it_is_used(length: int) -> None:
    # Twelve such bytes kill TensorFlow 2.21's process.
    header = struct.pack("<Q", length)
    data = header + struct.pack("<I", masked(native.crc32c(array(header), 0)))
    for final in (True, False):
        with pytest.raises(
            DataError, match=r"^s: record 0, byte 0: a length of -?\d+ bytes is above the limit of 1073741824 bytes"
        ):
            scan(array(data), source="s", final=final)


def test_the_limit_of_a_record() -> None:
    assert len(scan(array(SHARD), source="s", max_record_bytes=512, final=True)[0]) == len(PAYLOADS)
    with pytest.raises(DataError, match=f"record 3, byte {STARTS[3]}: a length of 512 bytes is above the limit of 511"):
        scan(array(SHARD), source="s", max_record_bytes=511, final=True)


def test_unchecked_payloads() -> None:
    damaged = bytearray(SHARD)
    damaged[14] ^= 1
    frames, _ = scan(array(bytes(damaged)), source="s", final=True, check=False)
    assert len(frames) == len(PAYLOADS)
    assert not frames.crcs.any()


def test_more_frames_than_the_first_guess() -> None:
    made = frame(np.empty(0, np.uint8), np.zeros(50_001, np.int64))
    frames, consumed = scan(made.data, source="s", final=True)
    np.testing.assert_array_equal(frames.starts, np.arange(50_000) * 16)
    assert consumed == 800_000


def test_spans_of_several_blocks_are_copied() -> None:
    random = np.random.default_rng(3)
    sizes = random.integers(0, 3000, 500)
    starts = np.cumsum(sizes) - sizes
    data = random.integers(0, 256, int(sizes.sum()), dtype=np.uint8)
    data.flags.writeable = False
    blocks = [data, data[::-1].copy(), np.empty(0, np.int64)]
    for order in (random.permutation(500), np.array([3, 3, 3]), np.empty(0, np.int64)):
        for which in (None, random.integers(0, 2, len(order)).astype(np.int32)):
            of = [0] * len(order) if which is None else which.tolist()
            wanted = b"".join(
                blocks[block][starts[i] : starts[i] + sizes[i]].tobytes() for block, i in zip(of, order, strict=True)
            )
            out = np.full(len(wanted) + 40, 7, np.uint8)
            given = blocks[:1] if which is None else blocks
            assert pack_spans(given, starts[order], sizes[order], out, which) == len(wanted)
            assert out.tobytes() == wanted + b"\x07" * 40
    room = np.empty(int(sizes.sum()), np.uint8)
    for given in (
        ([data], starts, sizes, room[1:]),
        ([data[:-1]], starts, sizes, room),
        ([data], -starts, sizes, room),
        ([data], starts, -sizes, room),
        ([data, data], starts, sizes, room),
        (blocks, starts, sizes, room, np.full(500, 3, np.int32)),
        (blocks, starts, sizes, room, np.full(500, -1, np.int32)),
        (blocks, starts, sizes, room, np.full(500, 2, np.int32)),
    ):
        with pytest.raises(IndexError):
            pack_spans(*given)


def test_frames_knows_its_length() -> None:
    frames = Frames(array(SHARD), np.array(STARTS[:-1]), np.array([len(p) for p in PAYLOADS]), np.zeros(5, np.uint32))
    assert len(frames) == 5
