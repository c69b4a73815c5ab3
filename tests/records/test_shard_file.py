"""Whole TFRecord files in batches of any size, in every compression, cut and damaged everywhere; ranges;
and files of other systems.
"""

from __future__ import annotations

import gzip
import json
import struct
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from recordmill.base import native
from recordmill.base.errors import DataError
from recordmill.records.tfrecord.frames import frame
from recordmill.records.tfrecord.stream import FrameBatch, detect_tfrecord, read_frames

SIZES = [5, 0, 100, 17, 1000, 1, 1, 1, 400, 64, 0, 0, 30]
PAYLOADS = [bytes([i]) * size for i, size in enumerate(SIZES)]
FRAMES = frame(np.frombuffer(b"".join(PAYLOADS), np.uint8), np.cumsum([0, *SIZES]))
SHARD = FRAMES.data.tobytes()
STARTS = FRAMES.starts.tolist()
PACK = {
    "none": bytes, "zlib": zlib.compress, "gzip": lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:]),
    "zstd": lambda data: bytes(pa.compress(data, codec="zstd", asbytes=True)),
}  # fmt: skip


def write(tmp_path: Path, data: bytes) -> str:
    (tmp_path / "f.tfrecord").write_bytes(data)
    return str(tmp_path / "f.tfrecord")


def check(batches: Iterator[FrameBatch], first: int = 0, last: int | None = None) -> list[FrameBatch]:
    """The batches, after it was seen that they hold exactly the records first to last, numbered and placed rightly."""
    got = list(batches)
    payloads, place = [], first
    for batch in got:
        assert (batch.first_record, batch.first_offset + int(batch.starts[0])) == (place, STARTS[place])
        np.testing.assert_array_equal(batch.crcs, FRAMES.crcs[place : place + len(batch)])
        payloads += [batch.payload(i).tobytes() for i in range(len(batch))]
        place += len(batch)
    assert payloads == PAYLOADS[first:last]
    return got


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("batch_bytes", [1, 12, 16, 17, 100, 1016, 1017, 10_000])
def test_any_batch_size(tmp_path: Path, kind: str, batch_bytes: int) -> None:
    path = write(tmp_path, PACK[kind](SHARD))
    assert detect_tfrecord(PACK[kind](SHARD)[:4096]) == kind
    batches = check(read_frames(path, batch_bytes=batch_bytes))
    assert all(len(batch.data) <= max(batch_bytes, 2 * 1016) for batch in batches)
    check(read_frames(path, batch_bytes=batch_bytes, compression=kind))


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    assert list(read_frames(write(tmp_path, b""))) == []
    assert list(read_frames(write(tmp_path, gzip.compress(b"")))) == []


def drain(batches: Iterator[FrameBatch]) -> tuple[int, str]:
    """(records given, the error's text) of a file that is damaged."""
    count = 0
    try:
        for batch in batches:
            count += len(batch)
    except DataError as error:
        return count, str(error)[:300]
    pytest.fail(f"no error, and {count} records")


@pytest.mark.parametrize("batch_bytes", [64, 1 << 20])
def test_every_cut_is_an_error_at_its_record(tmp_path: Path, batch_bytes: int) -> None:
    for cut in range(1, len(SHARD)):
        path = write(tmp_path, SHARD[:cut])
        number = sum(start < cut for start in STARTS) - 1
        if cut in STARTS:
            check(read_frames(path, batch_bytes=batch_bytes), 0, STARTS.index(cut))
            continue
        count, message = drain(read_frames(path, batch_bytes=batch_bytes, source="s", compression="none"))
        assert count == number
        assert message.startswith(f"s: record {number}, byte {STARTS[number]}: truncated")


@pytest.mark.parametrize("batch_bytes", [64, 1 << 20])
def test_every_damaged_byte_is_an_error_at_its_record(tmp_path: Path, batch_bytes: int) -> None:
    for at in range(len(SHARD)):
        damaged = bytearray(SHARD)
        damaged[at] ^= 1 << at % 8
        number = sum(start <= at for start in STARTS) - 1
        count, message = drain(
            read_frames(write(tmp_path, bytes(damaged)), batch_bytes=batch_bytes, source="s", compression="none")
        )
        assert count == number
        assert message.startswith(f"s: record {number}, byte {STARTS[number]}: CRC of the ")


@pytest.mark.parametrize("kind", ["gzip", "zlib", "zstd"])
def test_every_cut_of_a_compressed_shard_is_an_error(tmp_path: Path, kind: str) -> None:
    # TensorFlow passes a gzip shard that lacks its last nine bytes.
    packed = PACK[kind](SHARD)
    member = len(gzip.compress(SHARD[:700])) if kind == "gzip" else 0
    for cut in range(1, len(packed)):
        _, message = drain(read_frames(write(tmp_path, packed[:cut]), source="s", compression=kind, batch_bytes=300))
        assert "truncated" in message
        assert ("uncompressed data" if cut == member else f"s: byte {cut} of the file") in message


def test_damage_in_a_compressed_shard_is_placed_in_the_uncompressed_data(tmp_path: Path) -> None:
    damaged = bytearray(SHARD)
    damaged[STARTS[4] + 50] ^= 1
    count, message = drain(read_frames(write(tmp_path, gzip.compress(bytes(damaged))), source="s"))
    assert (count, message.split(": ")[1]) == (4, f"record 4, byte {STARTS[4]} of the uncompressed data")


def test_a_record_that_begins_as_gzip_does(tmp_path: Path) -> None:
    # A length of 0x88B1F makes the first bytes 1f 8b 08; the header's CRC says that it is a length.
    made = frame(np.zeros(0x88B1F, np.uint8), np.array([0, 0x88B1F]))
    assert made.data[:3].tobytes() == b"\x1f\x8b\x08"
    path = write(tmp_path, made.data.tobytes())
    assert [batch.lengths.tolist() for batch in read_frames(path)] == [[0x88B1F]]
    zlib_like = frame(np.zeros(0x9C78, np.uint8), np.array([0, 0x9C78]))
    assert zlib_like.data[:2].tobytes() == b"\x78\x9c"
    assert [len(batch) for batch in read_frames(write(tmp_path, zlib_like.data.tobytes()))] == [1]


def test_a_mad_length_costs_no_memory(tmp_path: Path) -> None:
    header = struct.pack("<Q", 900 << 20)
    crc = native.crc32c(np.frombuffer(header, np.uint8), 0)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF  # TensorFlow, lib/hash/crc32c.h
    path = write(tmp_path, SHARD + header + struct.pack("<I", masked) + bytes(5000))
    list_before = drain(read_frames(path, batch_bytes=1024))
    tracemalloc.start()
    count, message = drain(read_frames(path, batch_bytes=1024, source="s"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert count == len(SIZES) == list_before[0]
    assert (
        message
        == f"s: record 13, byte {len(SHARD)}: truncated: the record needs {(900 << 20) + 16} bytes and 5012 are left"
    )
    count, message = drain(read_frames(path, max_record_bytes=1 << 20))
    assert "above the limit of 1048576" in message


def test_unchecked(tmp_path: Path) -> None:
    damaged = bytearray(SHARD)
    damaged[STARTS[4] + 50] ^= 1
    assert sum(map(len, read_frames(write(tmp_path, bytes(damaged)), check=False))) == len(SIZES)


def test_files_of_other_systems(shared_data: Path) -> None:
    folder = shared_data / "tfrecord"
    files = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    assert len(files) > 100
    for about in files:
        path = folder / about["path"]
        assert detect_tfrecord(path.read_bytes()[:4096]) == about["compression"].lower(), path
        assert about["err"] is None
        batches = list(read_frames(str(path), batch_bytes=4096))
        assert sum(map(len, batches)) == about["n"], path
        if about["n"]:
            lengths = np.concatenate([batch.lengths for batch in batches])
            assert [lengths.min(), lengths.max()] == about["reclen"]
