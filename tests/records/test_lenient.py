"""The good frames around damage in a stream: every good record is given, every byte is in a frame or in a gap."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import pytest

from recordmill.records.tfrecord.frames import frame
from recordmill.records.tfrecord.recovery import DATA_GAP, FRAME, STREAM, Gap
from recordmill.records.tfrecord.stream import read_good_frames

PAYLOADS = [bytes([65 + number]) * (number * 7 % 40) for number in range(12)]
RAW = frame(np.frombuffer(b"".join(PAYLOADS), np.uint8), np.cumsum([0, *map(len, PAYLOADS)])).data.tobytes()
ENDS = np.cumsum([len(payload) + 16 for payload in PAYLOADS])


def around(path: Path, batch_bytes: int, compression: str = "gzip") -> tuple[dict[int, bytes], list[Gap]]:
    """(record number to payload, gaps), after a check that they follow each other without a hole."""
    payloads: dict[int, bytes] = {}
    gaps: list[Gap] = []
    record = offset = 0
    for part in read_good_frames(str(path), compression=compression, batch_bytes=batch_bytes):
        assert (part.first_record, part.first_offset) == (record, offset)
        if isinstance(part, Gap):
            gaps.append(part)
            record, offset = record + 1, offset + part.size_bytes
            continue
        for start, length in zip(part.starts.tolist(), part.lengths.tolist(), strict=True):
            payloads[record] = part.data[start + 12 : start + 12 + length].tobytes()
            record, offset = record + 1, offset + length + 16
    return payloads, gaps


@pytest.mark.parametrize("batch_bytes", [16, 50, 1 << 20])
@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_one_bit_flipped_at_every_byte_costs_that_record_only(
    tmp_path: Path, batch_bytes: int, compression: str
) -> None:
    path = tmp_path / "a"
    for at in range(len(RAW)):
        damaged = bytearray(RAW)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(gzip.compress(bytes(damaged), 1) if compression == "gzip" else damaged)
        payloads, gaps = around(path, batch_bytes, compression)
        hit = int(np.searchsorted(ENDS, at, "right"))
        assert payloads == {number: payload for number, payload in enumerate(PAYLOADS) if number != hit}
        begin = int(ENDS[hit]) - len(PAYLOADS[hit]) - 16
        kind = FRAME if at - begin < 12 else DATA_GAP
        assert [(gap.first_offset, gap.size_bytes, gap.kind) for gap in gaps] == [
            (begin, len(PAYLOADS[hit]) + 16, kind)
        ]


@pytest.mark.parametrize("batch_bytes", [16, 1 << 20])
def test_content_cut_at_every_byte_ends_with_one_gap(tmp_path: Path, batch_bytes: int) -> None:
    path = tmp_path / "a"
    for size in range(len(RAW)):
        path.write_bytes(gzip.compress(RAW[:size], 1))
        payloads, gaps = around(path, batch_bytes)
        whole = int(np.searchsorted(ENDS, size, "right"))
        assert list(payloads.values()) == PAYLOADS[:whole]
        rest = size - (int(ENDS[whole - 1]) if whole else 0)
        assert [(gap.size_bytes, gap.kind) for gap in gaps] == ([(rest, FRAME)] if rest else [])


def test_two_damaged_headers_in_a_row_and_garbage_between_frames(tmp_path: Path) -> None:
    damaged = bytearray(RAW[: ENDS[3]] + b"no frame at all" + RAW[ENDS[3] :])
    damaged[int(ENDS[6]) + 15] ^= 1
    damaged[int(ENDS[7]) + 15 + 8] ^= 1
    (tmp_path / "a").write_bytes(gzip.compress(bytes(damaged)))
    payloads, gaps = around(tmp_path / "a", 64)
    assert list(payloads.values()) == [*PAYLOADS[:7], *PAYLOADS[9:]]
    assert [gap.size_bytes for gap in gaps] == [15, len(PAYLOADS[7]) + len(PAYLOADS[8]) + 32]


@pytest.mark.parametrize("container", ["gzip", "zlib"])
def test_a_wrong_check_at_the_end_costs_no_record_but_is_said(tmp_path: Path, container: str) -> None:
    data = bytearray(gzip.compress(RAW * 2000, 1) if container == "gzip" else zlib.compress(RAW * 2000, 1))
    data[-6 if container == "gzip" else -1] ^= 1
    (tmp_path / "a").write_bytes(data)
    payloads, gaps = around(tmp_path / "a", 1 << 20, container)
    assert list(payloads.values()) == PAYLOADS * 2000
    assert [(gap.first_offset, gap.size_bytes, gap.kind) for gap in gaps] == [(len(RAW) * 2000, 0, STREAM)]


def test_a_cut_in_compressed_data_keeps_what_is_before_it(tmp_path: Path) -> None:
    # which nothing compresses, so that half of the file is half of the records
    random = np.random.default_rng(0).bytes(3000)
    raw = frame(np.frombuffer(random, np.uint8), np.arange(0, 3001, 30)).data.tobytes()
    data = gzip.compress(raw, 1)
    for size in (0, 5, 300, len(data) // 2, len(data) - 9, len(data) - 1):
        (tmp_path / "a").write_bytes(data[:size])
        payloads, gaps = around(tmp_path / "a", 1 << 20)
        assert list(payloads.values()) == [random[at : at + 30] for at in range(0, 30 * len(payloads), 30)]
        assert len(payloads) >= max(size - 200, 0) * 100 // len(data) - 1
        assert [gap.kind for gap in gaps] == [STREAM]
        assert "what is behind it is lost" in gaps[0].reason
