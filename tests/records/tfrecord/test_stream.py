"""TFRecord files are read in batches of any size and compression.

Damage is an error at its record.
"""

import gzip
import struct
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from kit.files import pack_members, zstd

from recordmill.base import native
from recordmill.base.errors import DataError
from recordmill.records.tfrecord.frames import (
    FRAME_DAMAGE,
    PAYLOAD_DAMAGE,
    FileFrames,
    frame_payloads,
    stop_at_damage,
)
from recordmill.records.tfrecord.stream import (
    detect_tfrecord_compression,
    find_resume_offset,
    read_frames,
)

SIZES = [5, 0, 100, 17, 1000, 1, 1, 1, 400, 64, 0, 0, 30]
PAYLOADS = [bytes([i]) * size for i, size in enumerate(SIZES)]
FRAMES = frame_payloads(np.frombuffer(b"".join(PAYLOADS), np.uint8), np.cumsum([0, *SIZES]))
SHARD = FRAMES.data.tobytes()
STARTS = FRAMES.starts.tolist()
PACK = {
    "none": bytes,
    "zlib": zlib.compress,
    "gzip": lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:]),
    "zstd": zstd,
}


def write(tmp_path: Path, data: bytes) -> str:
    (tmp_path / "f.tfrecord").write_bytes(data)
    return str(tmp_path / "f.tfrecord")


def check(
    batches: Iterator[FileFrames], first: int = 0, last: int | None = None
) -> list[FileFrames]:
    """Checks that batches have exactly the records from `first` up to `last`.

    Also checks their numbers and positions.

    Returns:
        The batches.
    """
    results = list(stop_at_damage(batches))
    payloads, number = [], first
    for batch in results:
        assert batch.location(0)[1] == f"record {number}, byte {STARTS[number]}"
        np.testing.assert_array_equal(batch.crcs, FRAMES.crcs[number : number + len(batch)])
        payloads += [batch.payload(i).tobytes() for i in range(len(batch))]
        number += len(batch)
    assert payloads == PAYLOADS[first:last]
    return results


@pytest.mark.parametrize("kind", PACK)
@pytest.mark.parametrize("batch_bytes", [1, 12, 16, 17, 100, 1016, 1017, 10_000])
def test_shard_is_read_in_batches_of_any_size_and_compression(
    tmp_path: Path, kind: str, batch_bytes: int
) -> None:
    path = write(tmp_path, PACK[kind](SHARD))
    assert detect_tfrecord_compression(PACK[kind](SHARD)[:4096]) == kind
    batches = check(read_frames(path, batch_bytes=batch_bytes))
    assert all(len(batch.data) <= max(batch_bytes, 2 * 1016) for batch in batches)
    check(read_frames(path, batch_bytes=batch_bytes, compression=kind))


def test_empty_file_has_no_records(tmp_path: Path) -> None:
    assert list(read_frames(write(tmp_path, b""))) == []
    assert list(read_frames(write(tmp_path, gzip.compress(b"")))) == []


def drain(batches: Iterator[FileFrames]) -> tuple[int, str]:
    """Reads a damaged file up to its error.

    Returns:
        (number of records before the error, message of the error).
    """
    count = 0
    try:
        for batch in stop_at_damage(batches):
            count += len(batch)
    except DataError as error:
        return count, str(error)[:300]
    pytest.fail(f"no error, and {count} records")


@pytest.mark.parametrize("batch_bytes", [64, 1 << 20])
def test_truncated_shard_is_an_error_at_its_record(tmp_path: Path, batch_bytes: int) -> None:
    for size in range(1, len(SHARD)):
        path = write(tmp_path, SHARD[:size])
        number = sum(start < size for start in STARTS) - 1
        if size in STARTS:
            check(read_frames(path, batch_bytes=batch_bytes), 0, STARTS.index(size))
            continue
        count, message = drain(read_frames(path, batch_bytes=batch_bytes, compression="none"))
        assert count == number
        assert message.startswith(f"{path}: record {number}, byte {STARTS[number]}: truncated")


def test_damage_in_a_compressed_shard_is_placed_in_the_uncompressed_data(tmp_path: Path) -> None:
    damaged = bytearray(SHARD)
    damaged[STARTS[4] + 50] ^= 1
    count, message = drain(read_frames(write(tmp_path, gzip.compress(bytes(damaged)))))
    assert (count, message.split(": ")[1]) == (
        4,
        f"record 4, byte {STARTS[4]} of the uncompressed data",
    )


def test_uncompressed_record_that_begins_like_gzip_is_not_inflated(tmp_path: Path) -> None:
    # The length 0x88B1F makes the first bytes 1f 8b 08. The CRC proves that they are a length.
    gzip_like = frame_payloads(np.zeros(0x88B1F, np.uint8), np.array([0, 0x88B1F]))
    assert gzip_like.data[:3].tobytes() == b"\x1f\x8b\x08"
    path = write(tmp_path, gzip_like.data.tobytes())
    assert [batch.lengths.tolist() for batch in read_frames(path)] == [[0x88B1F]]
    zlib_like = frame_payloads(np.zeros(0x9C78, np.uint8), np.array([0, 0x9C78]))
    assert zlib_like.data[:2].tobytes() == b"\x78\x9c"
    assert [len(batch) for batch in read_frames(write(tmp_path, zlib_like.data.tobytes()))] == [1]


def test_huge_length_costs_no_memory(tmp_path: Path) -> None:
    header = struct.pack("<Q", 900 << 20)
    crc = native.crc32c(np.frombuffer(header, np.uint8), 0, native.CrcMethod.FOLDING)
    # see TensorFlow, lib/hash/crc32c.h
    masked_crc = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    path = write(tmp_path, SHARD + header + struct.pack("<I", masked_crc) + bytes(5000))
    first_result = drain(read_frames(path, batch_bytes=1024))
    tracemalloc.start()
    count, message = drain(read_frames(path, batch_bytes=1024))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert count == len(SIZES) == first_result[0]
    assert message == (
        f"{path}: record 13, byte {len(SHARD)}: truncated: the record needs {(900 << 20) + 16} bytes and 5012 are left"
    )
    count, message = drain(read_frames(path, max_record_bytes=1 << 20))
    assert "above the limit of 1048576" in message


def test_unchecked_read_ignores_the_crc_of_payloads(tmp_path: Path) -> None:
    damaged = bytearray(SHARD)
    damaged[STARTS[4] + 50] ^= 1
    assert sum(
        map(len, read_frames(write(tmp_path, bytes(damaged)), checks_payloads=False))
    ) == len(SIZES)


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_files_are_exchanged_with_tensorflow(tmp_path: Path, compression: str) -> None:
    tf = pytest.importorskip("tensorflow")
    packed = {
        "": SHARD,
        "GZIP": pack_members([FRAMES], codec="gzip")[0],
        "ZLIB": zlib.compress(SHARD),
    }[compression]
    path = write(tmp_path, packed)
    assert [data.numpy() for data in tf.data.TFRecordDataset(path, compression)] == PAYLOADS
    with tf.io.TFRecordWriter(path, compression) as writer:
        for payload in PAYLOADS:
            writer.write(payload)
    check(read_frames(path, batch_bytes=300))
    unpack = {"": bytes, "GZIP": gzip.decompress, "ZLIB": zlib.decompress}[compression]
    assert unpack(Path(path).read_bytes()) == SHARD


def test_lenient_read_resumes_at_the_end_of_a_damaged_frame_or_at_the_next_frame() -> None:
    framed = frame_payloads(
        np.frombuffer(b"hello, world", np.uint8), np.array([0, 5, 7, 12])
    ).data  # with 21, 18 and 21 bytes
    payload, header = framed.copy(), framed.copy()
    payload[21 + 12] ^= 1
    header[21] ^= 1
    assert find_resume_offset(payload, 21) == (PAYLOAD_DAMAGE, 39)
    assert find_resume_offset(header, 21) == (FRAME_DAMAGE, 39)
    assert find_resume_offset(header[:50], 21) == (FRAME_DAMAGE, 50)
    assert find_resume_offset(header[:55], 21, is_final=False) == (FRAME_DAMAGE, 39)
    assert find_resume_offset(framed[:30], 21) == (FRAME_DAMAGE, 30)
    assert find_resume_offset(framed, 21, max_record_bytes=1) == (FRAME_DAMAGE, 60)
    assert find_resume_offset(header, 21, next_offset=45) == (FRAME_DAMAGE, 45)
    assert find_resume_offset(payload, 21, next_offset=45) == (PAYLOAD_DAMAGE, 45)
