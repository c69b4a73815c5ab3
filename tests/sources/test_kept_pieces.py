"""What is kept of a range is all of it, as it was parsed, wherever its pieces wait; or it is nothing of it, and the
room that it had is there for others again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recordmill.sources.common import scan_cache
from recordmill.sources.common.scan_cache import CachedPiece, CachedReject, RecordKeeper, ScanCache
from recordmill.storage.arrow_files import BatchWriter

LARGE, SMALL = 1 << 16, 20  # rows


def a_piece(rows: int, absent: bool = False) -> CachedPiece:
    texts = pa.array([str(rows)] * rows, pa.string())
    batch = pa.record_batch({"whole": pa.array(range(rows), pa.int64()), "text": texts})
    if not absent:
        return CachedPiece(batch, None, (), rows)
    reject = CachedReject(0, 7, "parse", "as it is")
    return CachedPiece(batch, np.arange(1, rows + 1), (reject,), rows + 1)


def are_same(some: list[CachedPiece], others: list[CachedPiece]) -> bool:
    return len(some) == len(others) and all(
        one.batch.equals(other.batch)
        and one.positions(3).tolist() == other.positions(3).tolist()
        and (one.rejects, one.count) == (other.rejects, other.count)
        for one, other in zip(some, others, strict=True)
    )


@pytest.fixture(autouse=True)
def _files_of_a_kibibyte(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(scan_cache, "_LEAST_FILE_BYTES", 1 << 10)
        yield


pieces = st.builds(a_piece, st.sampled_from([0, 1, SMALL, 200, 1000]), st.booleans())


@given(st.lists(st.lists(pieces, max_size=5), max_size=4), st.sampled_from([1, 5000, 40_000, 1 << 20]), st.booleans())
def test_all_of_a_range_or_nothing(ranges: list[list[CachedPiece]], most_bytes: int, in_files: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        room: ScanCache[CachedPiece] = ScanCache(most_bytes, folder if in_files else "")
        for number, range_ in enumerate(ranges):
            keeping = RecordKeeper(room)
            for piece in range_:
                if keeping.goes_on:
                    keeping.add(piece)
            keeping.put((0, number))
            assert not keeping.goes_on or room.has((0, number)) == bool(range_)
        for number, range_ in enumerate(ranges):
            found = room.take((0, number))
            assert found is None or are_same(list(found), range_)
            assert room.take((0, number)) is None
        assert not list(Path(folder).iterdir())


def test_little_behind_much_is_kept_with_it_in_its_file(tmp_path: Path) -> None:
    room: ScanCache[CachedPiece] = ScanCache(1 << 20, str(tmp_path))
    range_ = [a_piece(LARGE), a_piece(1), a_piece(LARGE, absent=True), a_piece(SMALL, absent=True)]
    keeping = RecordKeeper(room)
    for piece in range_:
        keeping.add(piece)
    keeping.put((0, 0))
    assert len(list(tmp_path.iterdir())) == 1
    found = room.take((0, 0))
    assert found is not None
    assert are_same(list(found), range_)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fails_at", [0, 1])
def test_a_full_disk_gives_the_range_up_and_its_room_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    room: ScanCache[CachedPiece] = ScanCache(1 << 20, str(tmp_path))
    before = room.memory._left, room.beside._left
    write = BatchWriter.write

    def full(writer: BatchWriter, batch: pa.RecordBatch) -> int:
        if writer.batches == fails_at:
            raise OSError(28, "No space left on device")
        return write(writer, batch)

    monkeypatch.setattr(BatchWriter, "write", full)
    keeping = RecordKeeper(room)
    keeping.add(a_piece(1))
    for _ in range(2):
        if keeping.goes_on:
            keeping.add(a_piece(LARGE))
    assert not keeping.goes_on
    keeping.put((0, 0))
    assert room.take((0, 0)) is None
    assert not list(tmp_path.iterdir())
    assert (room.memory._left, room.beside._left) == before


def test_what_another_schema_parsed_is_forgotten(tmp_path: Path) -> None:
    room: ScanCache[CachedPiece] = ScanCache(1 << 20, str(tmp_path))
    for number, schema in enumerate(["first", "last"]):
        keeping = RecordKeeper(room)
        keeping.add(a_piece(LARGE), schema)
        keeping.add(a_piece(1), schema)
        keeping.put((0, number))
    changed = RecordKeeper(room)
    changed.add(a_piece(LARGE), "first")
    changed.add(a_piece(LARGE), "last")
    changed.put((0, 2))
    room.settle(lambda schema: schema == "last")
    assert [room.has((0, number)) for number in range(3)] == [False, True, False]
    assert len(list(tmp_path.iterdir())) == 1
