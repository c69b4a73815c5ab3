"""Members of a compressed shard depend on its records alone.

Each member is unpacked alone, and damaged members are refused.
"""

import gzip
import hashlib
import itertools
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kit.files import pack_members

from recordmill.records.tfrecord.frames import (
    Frames,
    frame_payloads,
    scan_frames,
)
from recordmill.records.tfrecord.members import MemberSplitter
from recordmill.records.tfrecord.stream import read_frames
from recordmill.storage.codecs import CODECS, find_codec

UNPACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress}
SIZES_OF_MEMBERS = [10, 0, 500, 30, 5000, 0, 0, 1, 200, 200, 200, 900, 3, 4, 5]
FRAMES_OF_MEMBERS = frame_payloads(
    np.random.default_rng(0).integers(0, 5, sum(SIZES_OF_MEMBERS), dtype=np.uint8),
    np.cumsum([0, *SIZES_OF_MEMBERS]),
)


def split_frames(*cuts: int) -> list[Frames]:
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


@pytest.mark.parametrize(
    "cuts", [(), (1,), (2, 2, 3), tuple(range(1, len(SIZES_OF_MEMBERS))), (5, 9)]
)
@pytest.mark.parametrize("codec", UNPACK)
def test_members_depend_on_the_records_alone(cuts: tuple[int, ...], codec: str) -> None:
    assert pack_members(split_frames(*cuts), codec=codec) == pack_members(
        split_frames(), codec=codec
    )


@pytest.mark.parametrize("member_bytes", [1, 100, 1000, 1 << 20])
@pytest.mark.parametrize("codec", UNPACK)
def test_members_hold_complete_records_and_unpack_alone(
    tmp_path: Path, member_bytes: int, codec: str
) -> None:
    data, compressed, uncompressed = pack_members(split_frames(4), member_bytes, codec=codec)
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
    # 100 frames of 100 bytes
    frames = frame_payloads(np.zeros(8400, np.uint8), np.arange(0, 8401, 84))
    cutter = MemberSplitter(1000)
    assert [len(member) for member in (*cutter.add(frames), *cutter.finish())] == [1000] * 10
    assert list(cutter.finish()) == []


@pytest.mark.parametrize(("codec", "size"), [("gzip", 20)])
def test_no_records_are_one_empty_member(codec: str, size: int) -> None:
    data, compressed, _ = pack_members([], codec=codec)
    assert (UNPACK[codec](data), compressed) == (b"", [])
    assert len(data) == size


@pytest.mark.parametrize("codec", UNPACK)
def test_truncated_flipped_or_missized_member_is_refused(codec: str) -> None:
    members, content = find_codec(codec).member_algorithm, b"some text, some text, other text" * 20
    packed = find_codec(codec).pack(content)
    for end in range(len(packed)):
        with pytest.raises(ValueError, match=r"is damaged|does not end"):
            members.unpack(memoryview(packed)[:end], len(content))
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
    """One version of the library writes the same bytes on any system.

    Another version may write other bytes, so the workers of a build must have the same version.
    """
    if find_codec(codec).library_version != library:
        pytest.skip(f"{find_codec(codec).library_version} packs here")
    assert hashlib.sha256(pack_members(split_frames(), codec=codec)[0]).hexdigest()[:16] == digest


@pytest.mark.parametrize("codec", UNPACK)
def test_member_that_inflates_beyond_its_size_in_the_table_is_refused_early(codec: str) -> None:
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
    algorithm = find_codec(codec)
    for size in (0, 1, 100, 1 << 20, 40 << 20):
        assert size <= algorithm.max_content_bytes(len(algorithm.pack(bytes(size))))
