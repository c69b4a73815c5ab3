"""Frames follow the definition of TFRecord, and damage is found at its record.

This is tested with every bit of a small shard.
"""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from recordmill.base import native
from recordmill.base.errors import DataError
from recordmill.records.tfrecord import frames as module
from recordmill.records.tfrecord.frames import (
    FRAME_DAMAGE,
    FRAME_OVERHEAD_BYTES,
    PAYLOAD_DAMAGE,
    STREAM_DAMAGE,
    Damage,
    frame_payloads,
    iter_frame_offsets,
    pack_spans,
    scan_frames,
    try_scan_frames,
)
from recordmill.records.tfrecord.stream import read_frames
from recordmill.storage.files import Stat

PAYLOADS = [b"first", b"", b"x" * 30, bytes(range(256)) * 2, b"last one"]


def mask_crc(crc: int) -> int:
    """Returns the stored form of a CRC (TensorFlow, lib/hash/crc32c.h)."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    def mask(data: bytes) -> bytes:
        return struct.pack(
            "<I",
            mask_crc(native.crc32c(np.frombuffer(data, np.uint8), 0, native.CrcMethod.FOLDING)),
        )

    length = struct.pack("<Q", len(payload))
    return length + mask(length) + payload + mask(payload)


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def offsets(payloads: list[bytes], first: int = 0) -> np.ndarray:
    return first + np.cumsum([0, *map(len, payloads)])


SHARD = b"".join(map(frame, PAYLOADS))
STARTS = [
    sum(len(p) + FRAME_OVERHEAD_BYTES for p in PAYLOADS[:i]) for i in range(len(PAYLOADS) + 1)
]


def test_framed_payloads_are_the_pinned_bytes() -> None:
    # tf.io.TFRecordWriter writes these bytes, and every reader of TFRecord files relies on them.
    frames = frame_payloads(array(b"abc"), np.array([0, 3, 3]))
    assert (
        frames.data.tobytes().hex()
        == "0300000000000000b099490e6162636e57f121000000000000000029039807d8ea82a2"
    )


def test_frames_equal_the_definition_of_tfrecord() -> None:
    frames = frame_payloads(array(b"before" + b"".join(PAYLOADS) + b"behind"), offsets(PAYLOADS, 6))
    assert frames.data.tobytes() == SHARD
    assert frames.starts.tolist() == STARTS[:-1]
    assert frames.lengths.tolist() == list(map(len, PAYLOADS))
    assert frames.crcs.tolist() == [
        native.crc32c(array(payload), 0, native.CrcMethod.FOLDING) for payload in PAYLOADS
    ]
    assert [frames.payload(i).tobytes() for i in range(len(frames))] == PAYLOADS


def test_frame_payloads_refuses_offsets_outside_the_data() -> None:
    for bad_offsets in ([], [0, 4], [-1, 2], [0, 3, 2]):
        with pytest.raises(ValueError, match="payload offsets"):
            frame_payloads(array(b"abc"), np.array(bad_offsets, np.int64))


def test_scan_returns_the_complete_frames_of_any_prefix() -> None:
    for size in range(len(SHARD) + 1):
        frames, consumed = scan_frames(array(SHARD[:size]), source="s", is_final=False)
        assert consumed == max(start for start in STARTS if start <= size)
        assert frames.starts.tolist() == [start for start in STARTS[:-1] if start < consumed]
        assert [frames.payload(i).tobytes() for i in range(len(frames))] == PAYLOADS[: len(frames)]


def test_every_flipped_bit_is_found_at_its_frame() -> None:
    for bit in range(8 * len(SHARD)):
        data = bytearray(SHARD)
        data[bit // 8] ^= 1 << bit % 8
        number = sum(start <= bit // 8 for start in STARTS) - 1
        with pytest.raises(
            DataError, match=f"^s: record {number}, byte {STARTS[number]}: CRC of the (length|data)"
        ) as strict_error:
            scan_frames(array(bytes(data)), source="s", is_final=True)
        assert ("length is wrong" in str(strict_error.value)) == (bit // 8 - STARTS[number] < 12)
        assert len(str(strict_error.value)) < 300
        frames, consumed, error = try_scan_frames(array(bytes(data)), source="s", is_final=True)
        assert (len(frames), consumed, str(error)) == (
            number,
            STARTS[number],
            str(strict_error.value),
        )


@pytest.mark.parametrize("length", [2**30 + 1, 2**40, 2**63, 2**64 - 1, 2**64 - 16])
def test_huge_length_with_a_valid_crc_is_refused_before_allocation(length: int) -> None:
    # Twelve such bytes kill a process with TensorFlow 2.21.
    header = struct.pack("<Q", length)
    data = header + struct.pack(
        "<I", mask_crc(native.crc32c(array(header), 0, native.CrcMethod.FOLDING))
    )
    for final in (True, False):
        with pytest.raises(
            DataError,
            match=r"^s: record 0, byte 0: a length of -?\d+ bytes is above the limit of 1073741824 bytes",
        ):
            scan_frames(array(data), source="s", is_final=final)


def test_scan_finds_more_frames_than_its_first_estimate() -> None:
    many_frames = frame_payloads(np.empty(0, np.uint8), np.zeros(50_001, np.int64))
    frames, consumed = scan_frames(many_frames.data, source="s", is_final=True)
    np.testing.assert_array_equal(frames.starts, np.arange(50_000) * 16)
    assert consumed == 800_000


def test_pack_spans_copies_spans_of_several_blocks() -> None:
    random = np.random.default_rng(3)
    sizes = random.integers(0, 3000, 500)
    starts = np.cumsum(sizes) - sizes
    data = random.integers(0, 256, int(sizes.sum()), dtype=np.uint8)
    data.flags.writeable = False
    blocks = [data, data[::-1].copy(), np.empty(0, np.int64)]
    for order in (random.permutation(500), np.array([3, 3, 3]), np.empty(0, np.int64)):
        for block_indices in (None, random.integers(0, 2, len(order)).astype(np.int32)):
            indices = [0] * len(order) if block_indices is None else block_indices.tolist()
            expected = b"".join(
                blocks[block][starts[i] : starts[i] + sizes[i]].tobytes()
                for block, i in zip(indices, order, strict=True)
            )
            out = np.full(len(expected) + 40, 7, np.uint8)
            args = blocks[:1] if block_indices is None else blocks
            assert pack_spans(args, starts[order], sizes[order], out, block_indices) == len(
                expected
            )
            assert out.tobytes() == expected + b"\x07" * 40
    target = np.empty(int(sizes.sum()), np.uint8)
    for args in (
        ([data], starts, sizes, target[1:]),
        ([data[:-1]], starts, sizes, target),
        ([data], -starts, sizes, target),
        ([data], starts, -sizes, target),
        ([data, data], starts, sizes, target),
        (blocks, starts, sizes, target, np.full(500, 3, np.int32)),
        (blocks, starts, sizes, target, np.full(500, -1, np.int32)),
        (blocks, starts, sizes, target, np.full(500, 2, np.int32)),
    ):
        with pytest.raises(IndexError):
            pack_spans(*args)


def shard(sizes: list[int]) -> tuple[bytes, list[int]]:
    frames = frame_payloads(np.zeros(sum(sizes), np.uint8), np.cumsum([0, *sizes]))
    return frames.data.tobytes(), frames.starts.tolist()


SIZES = [*[5, 0, 300, 17, 1, 1, 1, 40] * 8, 200_000, 150_000, 70_000, 3, 3, 100_000]
DATA, STARTS_OF_HOP = shard(SIZES)


@pytest.fixture(params=[16, 100, 4096, 1 << 20])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(module, "_READ_WINDOW_BYTES", request.param)
    return int(request.param)


def walk_headers(path: Path, **options: object) -> list[int]:
    return [start for part in iter_frame_offsets(str(path), **options) for start in part.tolist()]  # type: ignore[arg-type]


def test_header_walk_finds_every_record_from_any_start(tmp_path: Path, window: int) -> None:
    (tmp_path / "f").write_bytes(b"")
    assert walk_headers(tmp_path / "f") == []
    (tmp_path / "f").write_bytes(DATA)
    for first in (0, 1, 30, 64, 65, 69):
        assert (
            walk_headers(tmp_path / "f", start=STARTS_OF_HOP[first], first_record=first)
            == STARTS_OF_HOP[first:]
        )


def test_truncation_at_every_byte_is_an_error_at_its_record(tmp_path: Path, window: int) -> None:
    data, starts = shard([5, 0, 300, 17, 1])
    for size in range(1, len(data)):
        (tmp_path / "f").write_bytes(data[:size])
        if size in starts:
            assert walk_headers(tmp_path / "f") == starts[: starts.index(size)]
            continue
        number = sum(start < size for start in starts) - 1
        with pytest.raises(
            DataError, match=f"/f: record {number}, byte {starts[number]}: truncated"
        ):
            walk_headers(tmp_path / "f")


def test_damaged_header_is_an_error_at_its_record(tmp_path: Path) -> None:
    data, starts = shard([5, 0, 300, 17, 1])
    for number, start in enumerate(starts):
        for bit in range(96):
            damaged_data = bytearray(data)
            damaged_data[start + bit // 8] ^= 1 << bit % 8
            (tmp_path / "f").write_bytes(damaged_data)
            with pytest.raises(
                DataError, match=f"/f: record {7 + number}, byte {start}: CRC of the length"
            ):
                walk_headers(tmp_path / "f", first_record=7)


def test_header_walk_ignores_payloads_and_enforces_the_size_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(DATA[:20] + b"?" + DATA[21:])
    assert len(walk_headers(tmp_path / "f")) == len(SIZES)
    monkeypatch.setattr("recordmill.records.tfrecord.frames.MAX_RECORD_BYTES", 199_999)
    with pytest.raises(
        DataError, match=r"record 64, .* a length of 200000 bytes is above the limit of 199999"
    ):
        walk_headers(tmp_path / "f")


def test_header_walk_skips_the_payloads_of_large_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, starts = shard([300_000] * 20)
    (tmp_path / "f").write_bytes(data)
    read_sizes: list[int] = []
    original = module.read_range

    def read_and_count(path: str, start: int, stop: int) -> np.ndarray:
        result = original(path, start, stop)
        read_sizes.append(len(result))
        return result

    monkeypatch.setattr(module, "read_range", read_and_count)
    assert walk_headers(tmp_path / "f") == starts
    assert sum(read_sizes) < (1 << 20) + 20 * 16


def test_file_that_shrinks_during_the_walk_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """The file is truncated after its size was requested."""
    (tmp_path / "f").write_bytes(DATA)
    monkeypatch.setattr(module, "stat", lambda path: Stat(len(DATA), 0))
    for size in (0, 5, STARTS_OF_HOP[3], STARTS_OF_HOP[-2] + 4):
        (tmp_path / "f").write_bytes(DATA[:size])
        with pytest.raises(DataError, match=r"truncated|ends at byte"):
            walk_headers(tmp_path / "f")


PAYLOADS_OF_LENIENT = [bytes([65 + number]) * (number * 7 % 40) for number in range(12)]
RAW = b"".join(map(frame, PAYLOADS_OF_LENIENT))
ENDS = np.cumsum([len(payload) + 16 for payload in PAYLOADS_OF_LENIENT])


def read_around_damage(
    path: Path, batch_bytes: int, compression: str = "gzip"
) -> tuple[dict[int, bytes], list[Damage]]:
    """Reads the good records and the damage of a file.

    Checks that their ranges have no gaps and do not overlap.

    Returns:
        (payload by record number, damage).
    """
    payloads: dict[int, bytes] = {}
    damage: list[Damage] = []
    sizes: list[tuple[int, int, int]] = []  # number, offset and size of each record
    for part in read_frames(str(path), compression=compression, batch_bytes=batch_bytes):
        damage += part.damage
        sizes += [(gap.record, gap.offset, gap.size_bytes) for gap in part.damage]
        for row, number in enumerate(part.numbers.tolist()):
            payloads[number] = part.payload(row).tobytes()
            offset = int(part.location(row)[1].rpartition(" ")[2])
            sizes.append((number, offset, int(part.lengths[row]) + 16))
    offset = 0
    for record, (number, begin, size) in enumerate(sorted(sizes)):
        assert (number, begin) == (record, offset)
        offset += size
    return payloads, damage


@pytest.mark.parametrize("batch_bytes", [16, 50, 1 << 20])
@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_flipped_bit_costs_only_its_record(
    tmp_path: Path, batch_bytes: int, compression: str
) -> None:
    path = tmp_path / "a"
    for index in range(len(RAW)):
        damaged = bytearray(RAW)
        damaged[index] ^= 1 << index % 8
        path.write_bytes(gzip.compress(bytes(damaged), 1) if compression == "gzip" else damaged)
        payloads, gaps = read_around_damage(path, batch_bytes, compression)
        damaged_record = int(np.searchsorted(ENDS, index, "right"))
        assert payloads == {
            number: payload
            for number, payload in enumerate(PAYLOADS_OF_LENIENT)
            if number != damaged_record
        }
        begin = int(ENDS[damaged_record]) - len(PAYLOADS_OF_LENIENT[damaged_record]) - 16
        kind = FRAME_DAMAGE if index - begin < 12 else PAYLOAD_DAMAGE
        assert [(gap.offset, gap.size_bytes, gap.kind) for gap in gaps] == [
            (begin, len(PAYLOADS_OF_LENIENT[damaged_record]) + 16, kind)
        ]


@pytest.mark.parametrize("batch_bytes", [16, 1 << 20])
def test_truncated_content_ends_with_one_gap(tmp_path: Path, batch_bytes: int) -> None:
    path = tmp_path / "a"
    for size in range(len(RAW)):
        path.write_bytes(gzip.compress(RAW[:size], 1))
        payloads, gaps = read_around_damage(path, batch_bytes)
        num_complete = int(np.searchsorted(ENDS, size, "right"))
        assert list(payloads.values()) == PAYLOADS_OF_LENIENT[:num_complete]
        remaining_bytes = size - (int(ENDS[num_complete - 1]) if num_complete else 0)
        assert [(gap.size_bytes, gap.kind) for gap in gaps] == (
            [(remaining_bytes, FRAME_DAMAGE)] if remaining_bytes else []
        )


def test_consecutive_damaged_headers_and_garbage_are_one_gap_each(tmp_path: Path) -> None:
    damaged = bytearray(RAW[: ENDS[3]] + b"no frame at all" + RAW[ENDS[3] :])
    damaged[int(ENDS[6]) + 15] ^= 1
    damaged[int(ENDS[7]) + 15 + 8] ^= 1
    (tmp_path / "a").write_bytes(gzip.compress(bytes(damaged)))
    payloads, gaps = read_around_damage(tmp_path / "a", 64)
    assert list(payloads.values()) == [*PAYLOADS_OF_LENIENT[:7], *PAYLOADS_OF_LENIENT[9:]]
    assert [gap.size_bytes for gap in gaps] == [
        15,
        len(PAYLOADS_OF_LENIENT[7]) + len(PAYLOADS_OF_LENIENT[8]) + 32,
    ]


@pytest.mark.parametrize("container", ["gzip", "zlib"])
def test_wrong_checksum_of_a_stream_costs_no_record_and_is_reported(
    tmp_path: Path, container: str
) -> None:
    data = bytearray(
        gzip.compress(RAW * 2000, 1) if container == "gzip" else zlib.compress(RAW * 2000, 1)
    )
    data[-6 if container == "gzip" else -1] ^= 1
    (tmp_path / "a").write_bytes(data)
    payloads, gaps = read_around_damage(tmp_path / "a", 1 << 20, container)
    assert list(payloads.values()) == PAYLOADS_OF_LENIENT * 2000
    assert [(gap.offset, gap.size_bytes, gap.kind) for gap in gaps] == [
        (len(RAW) * 2000, 0, STREAM_DAMAGE)
    ]


def test_truncated_compressed_data_keeps_the_records_before_the_cut(tmp_path: Path) -> None:
    # Random bytes can't be compressed, so half of the file has half of the records.
    random = np.random.default_rng(0).bytes(3000)
    raw = frame_payloads(np.frombuffer(random, np.uint8), np.arange(0, 3001, 30)).data.tobytes()
    data = gzip.compress(raw, 1)
    for size in (0, 5, 300, len(data) // 2, len(data) - 9, len(data) - 1):
        (tmp_path / "a").write_bytes(data[:size])
        payloads, gaps = read_around_damage(tmp_path / "a", 1 << 20)
        assert list(payloads.values()) == [
            random[begin : begin + 30] for begin in range(0, 30 * len(payloads), 30)
        ]
        assert len(payloads) >= max(size - 200, 0) * 100 // len(data) - 1
        assert [gap.kind for gap in gaps] == [STREAM_DAMAGE]
        assert "the rest of the file is lost" in gaps[0].message
