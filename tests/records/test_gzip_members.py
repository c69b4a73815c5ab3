"""Gzip shards of record-aligned members: the same bytes however the frames arrive,
and each member can be read alone.
"""

from __future__ import annotations

import gzip
import itertools
import zlib
from pathlib import Path

import numpy as np
import pytest

from recordmill.records.tfrecord.frames import Frames, frame, scan
from recordmill.records.tfrecord.gzip_members import GzipWriter, MemberCutter
from recordmill.records.tfrecord.shard_file import read_frames

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


def written(pieces: list[Frames], member_bytes: int = 1000) -> tuple[bytes, list[int], list[int]]:
    out: list[bytes] = []
    writer = GzipWriter(out.append, member_bytes=member_bytes)
    for piece in pieces:
        writer.write(piece)
    writer.close()
    return b"".join(out), *(column.tolist() for column in writer.table)


@pytest.mark.parametrize("cuts", [(), (1,), (2, 2, 3), tuple(range(1, len(SIZES))), (5, 9)])
def test_members_depend_on_the_records_alone(cuts: tuple[int, ...]) -> None:
    assert written(parts(*cuts)) == written(parts())


@pytest.mark.parametrize("member_bytes", [1, 100, 1000, 1 << 20])
def test_members_are_whole_records_and_stand_alone(tmp_path: Path, member_bytes: int) -> None:
    data, compressed, uncompressed = written(parts(4), member_bytes)
    assert gzip.decompress(data) == FRAMES.data.tobytes()
    assert set(uncompressed) <= set(FRAMES.starts.tolist())
    ends = [*compressed[1:], len(data)], [*uncompressed[1:], len(FRAMES.data)]
    for start, stop, first, last in zip(compressed, ends[0], uncompressed, ends[1], strict=True):
        member = zlib.decompress(data[start:stop], 31)
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


def test_no_records_are_one_empty_member() -> None:
    data, compressed, _ = written([])
    assert (gzip.decompress(data), compressed) == (b"", [])
    assert len(data) == 20
