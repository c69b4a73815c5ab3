"""Compressed shards of record-aligned members: the same bytes however the frames arrive,
and each member can be read alone.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from recordmill.records.tfrecord.frames import Frames, frame, scan
from recordmill.records.tfrecord.members import MemberCutter, MemberWriter
from recordmill.records.tfrecord.stream import read_frames
from recordmill.storage.codecs import CODECS, find_codec

UNPACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.decompress}
SIZES = [10, 0, 500, 30, 5000, 0, 0, 1, 200, 200, 200, 900, 3, 4, 5]
FRAMES = frame(np.random.default_rng(0).integers(0, 5, sum(SIZES), dtype=np.uint8), np.cumsum([0, *SIZES]))


def parts(*cuts: int) -> list[Frames]:
    edges = [0, *cuts, len(FRAMES)]
    pieces = []
    for first, last in itertools.pairwise(edges):
        pieces.append(
            Frames(FRAMES.data, FRAMES.starts[first:last], FRAMES.lengths[first:last], FRAMES.crcs[first:last])
        )
    return pieces


def written(pieces: list[Frames], member_bytes: int = 1000, *, codec: str) -> tuple[bytes, list[int], list[int]]:
    out: list[bytes] = []
    writer = MemberWriter(out.append, find_codec(codec), member_bytes=member_bytes)
    for piece in pieces:
        writer.write(piece)
    writer.close()
    return b"".join(out), *(column.tolist() for column in writer.table)


@pytest.mark.parametrize("cuts", [(), (1,), (2, 2, 3), tuple(range(1, len(SIZES))), (5, 9)])
@pytest.mark.parametrize("codec", UNPACK)
def test_members_depend_on_the_records_alone(cuts: tuple[int, ...], codec: str) -> None:
    assert written(parts(*cuts), codec=codec) == written(parts(), codec=codec)


@pytest.mark.parametrize("member_bytes", [1, 100, 1000, 1 << 20])
@pytest.mark.parametrize("codec", UNPACK)
def test_members_are_whole_records_and_stand_alone(tmp_path: Path, member_bytes: int, codec: str) -> None:
    data, compressed, uncompressed = written(parts(4), member_bytes, codec=codec)
    assert UNPACK[codec](data) == FRAMES.data.tobytes()
    assert set(uncompressed) <= set(FRAMES.starts.tolist())
    ends = [*compressed[1:], len(data)], [*uncompressed[1:], len(FRAMES.data)]
    for start, stop, first, last in zip(compressed, ends[0], uncompressed, ends[1], strict=True):
        member = UNPACK[codec](data[start:stop])
        assert find_codec(codec).members.unpack(memoryview(data)[start:stop], last - first) == member
        assert data[start:stop].startswith(find_codec(codec).magic)
        assert member == FRAMES.data[first:last].tobytes()
        frames, _ = scan(np.frombuffer(member, np.uint8), source="member", final=True)
        assert len(member) <= member_bytes or len(frames) == 1
    (tmp_path / "f").write_bytes(data)
    assert np.concatenate([batch.lengths for batch in read_frames(str(tmp_path / "f"))]).tolist() == SIZES


def test_a_member_is_filled_before_the_next_begins() -> None:
    made = frame(np.zeros(8400, np.uint8), np.arange(0, 8401, 84))  # 100 frames of 100 bytes
    cutter = MemberCutter(1000)
    assert [len(member) for member in (*cutter.add(made), *cutter.finish())] == [1000] * 10
    assert list(cutter.finish()) == []


@pytest.mark.parametrize(("codec", "size"), [("gzip", 20)])
def test_no_records_are_one_empty_member(codec: str, size: int) -> None:
    data, compressed, _ = written([], codec=codec)
    assert (UNPACK[codec](data), compressed) == (b"", [])
    assert len(data) == size


@pytest.mark.parametrize("codec", UNPACK)
def test_a_member_that_is_cut_flipped_or_of_another_size_is_refused(codec: str) -> None:
    members, content = find_codec(codec).members, b"some text, some text, other text" * 20
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


def test_every_codec_that_shards_are_written_with_is_here() -> None:
    assert set(UNPACK) == {codec.name for codec in CODECS if codec.shard_suffix is not None and not codec.is_plain}


@pytest.mark.parametrize(("codec", "library", "digest"), [("gzip", "zlib 1.2.13", "3702ab155dc9946c")])
def test_the_bytes_are_pinned(codec: str, library: str, digest: str) -> None:
    """By the same library, on any system; another one may make others, which workers of one build are held to."""
    if find_codec(codec).library != library:
        pytest.skip(f"{find_codec(codec).library} packs here")
    assert hashlib.sha256(written(parts(), codec=codec)[0]).hexdigest()[:16] == digest


@pytest.mark.parametrize("codec", UNPACK)
def test_a_member_gives_no_more_bytes_than_are_said(codec: str) -> None:
    members = find_codec(codec).members
    bomb = members.pack(bytes(32 << 20), 3)
    tracemalloc.start()
    with pytest.raises(ValueError, match="does not end where the member table says"):
        members.unpack(memoryview(bomb), 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("codec", UNPACK)
def test_no_member_holds_more_than_its_codec_can(codec: str) -> None:
    found = find_codec(codec)
    for size in (0, 1, 100, 1 << 20, 40 << 20):
        assert size <= found.most_bytes(len(found.pack(bytes(size))))
