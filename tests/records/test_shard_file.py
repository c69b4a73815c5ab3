"""TFRecord files are read in batches of any size and compression, and compressed members depend
on the records alone.
"""

import gzip
import hashlib
import itertools
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from kit.files import zstd

from recordmill.base import native
from recordmill.base.errors import DataError
from recordmill.records.tfrecord.frames import (
    FileFrames,
    Frames,
    checked,
    frame_payloads,
    scan_frames,
)
from recordmill.records.tfrecord.members import MemberSplitter, MemberWriter
from recordmill.records.tfrecord.stream import detect_tfrecord_compression, read_frames
from recordmill.storage.codecs import CODECS, find_codec

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
    """The batches, after it was seen that they hold exactly the records first to last, numbered and
    placed rightly.
    """
    got = list(checked(batches))
    payloads, place = [], first
    for batch in got:
        assert batch.location(0)[1] == f"record {place}, byte {STARTS[place]}"
        np.testing.assert_array_equal(batch.crcs, FRAMES.crcs[place : place + len(batch)])
        payloads += [batch.payload(i).tobytes() for i in range(len(batch))]
        place += len(batch)
    assert payloads == PAYLOADS[first:last]
    return got


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
    """(records given, the error's text) of a file that is damaged."""
    count = 0
    try:
        for batch in checked(batches):
            count += len(batch)
    except DataError as error:
        return count, str(error)[:300]
    pytest.fail(f"no error, and {count} records")


@pytest.mark.parametrize("batch_bytes", [64, 1 << 20])
def test_truncated_shard_is_an_error_at_its_record(tmp_path: Path, batch_bytes: int) -> None:
    for cut in range(1, len(SHARD)):
        path = write(tmp_path, SHARD[:cut])
        number = sum(start < cut for start in STARTS) - 1
        if cut in STARTS:
            check(read_frames(path, batch_bytes=batch_bytes), 0, STARTS.index(cut))
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
    # A length of 0x88B1F makes the first bytes 1f 8b 08; the header's CRC says that it is a length.
    made = frame_payloads(np.zeros(0x88B1F, np.uint8), np.array([0, 0x88B1F]))
    assert made.data[:3].tobytes() == b"\x1f\x8b\x08"
    path = write(tmp_path, made.data.tobytes())
    assert [batch.lengths.tolist() for batch in read_frames(path)] == [[0x88B1F]]
    zlib_like = frame_payloads(np.zeros(0x9C78, np.uint8), np.array([0, 0x9C78]))
    assert zlib_like.data[:2].tobytes() == b"\x78\x9c"
    assert [len(batch) for batch in read_frames(write(tmp_path, zlib_like.data.tobytes()))] == [1]


def test_huge_length_costs_no_memory(tmp_path: Path) -> None:
    header = struct.pack("<Q", 900 << 20)
    crc = native.crc32c(np.frombuffer(header, np.uint8), 0, native.CrcMethod.FOLDING)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF  # TensorFlow, lib/hash/crc32c.h
    path = write(tmp_path, SHARD + header + struct.pack("<I", masked) + bytes(5000))
    list_before = drain(read_frames(path, batch_bytes=1024))
    tracemalloc.start()
    count, message = drain(read_frames(path, batch_bytes=1024))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert count == len(SIZES) == list_before[0]
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


# TensorFlow reads our files, and we read its
@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_files_are_exchanged_with_tensorflow(tmp_path: Path, compression: str) -> None:
    tf = pytest.importorskip("tensorflow")
    packed = {"": SHARD, "GZIP": written([FRAMES], codec="gzip")[0], "ZLIB": zlib.compress(SHARD)}[
        compression
    ]
    path = write(tmp_path, packed)
    assert [data.numpy() for data in tf.data.TFRecordDataset(path, compression)] == PAYLOADS
    with tf.io.TFRecordWriter(path, compression) as writer:
        for payload in PAYLOADS:
            writer.write(payload)
    check(read_frames(path, batch_bytes=300))
    unpack = {"": bytes, "GZIP": gzip.decompress, "ZLIB": zlib.decompress}[compression]
    assert unpack(Path(path).read_bytes()) == SHARD


# Compressed shards of record-aligned members
UNPACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress}
SIZES_OF_MEMBERS = [10, 0, 500, 30, 5000, 0, 0, 1, 200, 200, 200, 900, 3, 4, 5]
FRAMES_OF_MEMBERS = frame_payloads(
    np.random.default_rng(0).integers(0, 5, sum(SIZES_OF_MEMBERS), dtype=np.uint8),
    np.cumsum([0, *SIZES_OF_MEMBERS]),
)


def parts(*cuts: int) -> list[Frames]:
    edges = [0, *cuts, len(FRAMES_OF_MEMBERS)]
    pieces = []
    for first, last in itertools.pairwise(edges):
        pieces.append(
            Frames(
                FRAMES_OF_MEMBERS.data,
                FRAMES_OF_MEMBERS.starts[first:last],
                FRAMES_OF_MEMBERS.lengths[first:last],
                FRAMES_OF_MEMBERS.crcs[first:last],
            )
        )
    return pieces


def written(
    pieces: list[Frames], member_bytes: int = 1000, *, codec: str
) -> tuple[bytes, list[int], list[int]]:
    out: list[bytes] = []
    writer = MemberWriter(out.append, find_codec(codec), member_bytes=member_bytes)
    for piece in pieces:
        writer.write(piece)
    writer.close()
    return b"".join(out), *(column.tolist() for column in writer.table)


@pytest.mark.parametrize(
    "cuts", [(), (1,), (2, 2, 3), tuple(range(1, len(SIZES_OF_MEMBERS))), (5, 9)]
)
@pytest.mark.parametrize("codec", UNPACK)
def test_members_depend_on_the_records_alone(cuts: tuple[int, ...], codec: str) -> None:
    assert written(parts(*cuts), codec=codec) == written(parts(), codec=codec)


@pytest.mark.parametrize("member_bytes", [1, 100, 1000, 1 << 20])
@pytest.mark.parametrize("codec", UNPACK)
def test_members_hold_complete_records_and_unpack_alone(
    tmp_path: Path, member_bytes: int, codec: str
) -> None:
    data, compressed, uncompressed = written(parts(4), member_bytes, codec=codec)
    assert UNPACK[codec](data) == FRAMES_OF_MEMBERS.data.tobytes()
    assert set(uncompressed) <= set(FRAMES_OF_MEMBERS.starts.tolist())
    ends = [*compressed[1:], len(data)], [*uncompressed[1:], len(FRAMES_OF_MEMBERS.data)]
    for start, stop, first, last in zip(compressed, ends[0], uncompressed, ends[1], strict=True):
        member = UNPACK[codec](data[start:stop])
        assert (
            find_codec(codec).member_algorithm.unpack(memoryview(data)[start:stop], last - first)
            == member
        )
        assert data[start:stop].startswith(find_codec(codec).magic)
        assert member == FRAMES_OF_MEMBERS.data[first:last].tobytes()
        frames, _ = scan_frames(np.frombuffer(member, np.uint8), source="member", is_final=True)
        assert len(member) <= member_bytes or len(frames) == 1
    (tmp_path / "f").write_bytes(data)
    assert (
        np.concatenate([batch.lengths for batch in read_frames(str(tmp_path / "f"))]).tolist()
        == SIZES_OF_MEMBERS
    )


def test_member_is_filled_before_the_next_begins() -> None:
    made = frame_payloads(
        np.zeros(8400, np.uint8), np.arange(0, 8401, 84)
    )  # 100 frames of 100 bytes
    cutter = MemberSplitter(1000)
    assert [len(member) for member in (*cutter.add(made), *cutter.finish())] == [1000] * 10
    assert list(cutter.finish()) == []


@pytest.mark.parametrize(("codec", "size"), [("gzip", 20)])
def test_no_records_are_one_empty_member(codec: str, size: int) -> None:
    data, compressed, _ = written([], codec=codec)
    assert (UNPACK[codec](data), compressed) == (b"", [])
    assert len(data) == size


@pytest.mark.parametrize("codec", UNPACK)
def test_truncated_flipped_or_missized_member_is_refused(codec: str) -> None:
    members, content = find_codec(codec).member_algorithm, b"some text, some text, other text" * 20
    packed = find_codec(codec).pack(content)
    for cut in range(len(packed)):
        with pytest.raises(ValueError, match=r"is damaged|does not end"):
            members.unpack(memoryview(packed)[:cut], len(content))
    for size in (0, len(content) - 1, len(content) + 1):
        with pytest.raises(ValueError, match="does not end where the member table says"):
            members.unpack(memoryview(packed), size)
    with pytest.raises(ValueError, match="does not end where the member table says"):
        members.unpack(memoryview(packed + b"x"), len(content))
    for bit in range(8 * len(packed)):
        damaged = bytearray(packed)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            assert len(members.unpack(memoryview(damaged), len(content))) == len(content)
        except ValueError as error:
            assert "damaged" in str(error) or "does not end" in str(error)  # noqa: PT017


def test_every_codec_of_shards_is_tested() -> None:
    assert set(UNPACK) == {
        codec.name for codec in CODECS if codec.shard_suffix is not None and not codec.is_plain
    }


@pytest.mark.parametrize(
    ("codec", "library", "digest"), [("gzip", "zlib 1.2.13", "3702ab155dc9946c")]
)
def test_compressed_shard_is_the_pinned_bytes(codec: str, library: str, digest: str) -> None:
    """By the same library, on any system; another one may make others, which workers of one build
    are held to.
    """
    if find_codec(codec).library_version != library:
        pytest.skip(f"{find_codec(codec).library_version} packs here")
    assert hashlib.sha256(written(parts(), codec=codec)[0]).hexdigest()[:16] == digest


@pytest.mark.parametrize("codec", UNPACK)
def test_member_that_inflates_beyond_its_stated_size_is_refused_early(codec: str) -> None:
    members = find_codec(codec).member_algorithm
    bomb = members.pack(bytes(32 << 20), 3)
    tracemalloc.start()
    with pytest.raises(ValueError, match="does not end where the member table says"):
        members.unpack(memoryview(bomb), 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("codec", UNPACK)
def test_content_of_a_member_is_within_the_bound_of_its_codec(codec: str) -> None:
    found = find_codec(codec)
    for size in (0, 1, 100, 1 << 20, 40 << 20):
        assert size <= found.max_content_bytes(len(found.pack(bytes(size))))
