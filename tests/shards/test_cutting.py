"""Pieces cover a file completely, and no piece is larger than requested."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.data_sets import mixed_rows, plain_file, write_data_set
from kit.files import flip, tfrecord_bytes

from recordmill.base.errors import DataError
from recordmill.records.tfrecord.frames import FRAME_OVERHEAD_BYTES
from recordmill.shards.catalog import ShardFile, catalog_files, catalog_inputs
from recordmill.shards.cutting import cut, cut_by_headers, cut_files, resolve
from recordmill.shards.pieces import Piece


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cutting")


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=40),
    st.integers(FRAME_OVERHEAD_BYTES, 1000),
)
def test_pieces_of_a_file_without_an_index_are_as_large_as_fits(
    folder: Path, sizes: list[int], piece_bytes: int
) -> None:
    (folder / "a.tfrecord").write_bytes(tfrecord_bytes(bytes(size) for size in sizes))
    (file,) = catalog_files([str(folder / "a.tfrecord")]).files
    pieces = list(cut_by_headers(file, 7, piece_bytes))
    # The expected pieces are a greedy division of the records in their order.
    expected, start, record = [], 0, 0
    while record < len(sizes):
        count, stop = 0, start
        while record + count < len(sizes):
            frame_bytes = sizes[record + count] + FRAME_OVERHEAD_BYTES
            if count and stop + frame_bytes > start + piece_bytes:
                break
            count, stop = count + 1, stop + frame_bytes
        expected.append(Piece(7, start, stop, record, count))
        start, record = stop, record + count
    assert pieces == expected


@pytest.fixture(scope="module", params=["none", "gzip"])
def shard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ShardFile:
    rows = {"train": mixed_rows(300)}
    folder = tmp_path_factory.mktemp("shard")
    out = write_data_set(folder / "out", rows, shards=1, compression=request.param)
    return catalog_inputs(out).files[0]


def test_pieces_of_an_indexed_shard_have_each_record_once(shard: ShardFile) -> None:
    pieces = list(cut(shard, 0, 3000))
    assert len(pieces) > 5
    assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])]
    records = [
        record
        for piece in pieces
        for record in range(
            piece.first_record or 0, (piece.first_record or 0) + (piece.records or 0)
        )
    ]
    assert records == list(range(300))
    assert shard.info is not None
    assert pieces[-1].stop == shard.info.framed_bytes


def test_range_of_bytes_is_resolved_to_the_records_that_begin_in_it(shard: ShardFile) -> None:
    assert shard.info is not None
    third = shard.info.framed_bytes // 3
    unresolved = [
        Piece(0, 0, third, None),
        Piece(0, third, 2 * third, None),
        Piece(0, 2 * third, shard.info.framed_bytes, None),
    ]
    pieces = list(resolve([shard], unresolved))
    assert pieces[0].first_record == 0
    assert sum(piece.records or 0 for piece in pieces) == 300
    assert [piece.start for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
    resolved = Piece(0, 0, 10, 0, 1)
    assert list(resolve([shard], [resolved])) == [resolved]


def test_damage_of_a_file_without_an_index_is_a_separate_piece(tmp_path: Path) -> None:
    path = plain_file(tmp_path / "a.tfrecord")
    (file,) = catalog_files([str(path)]).files
    intact_pieces = list(cut(file, 0, 1))  # a piece for each record
    assert len(intact_pieces) == 50
    flip(path, intact_pieces[20].start)
    (file,) = catalog_files([str(path)]).files
    with pytest.raises(DataError, match="record 20, byte"):
        list(cut(file, 0, 1))
    pieces = list(cut(file, 0, 1, lenient=True))
    assert pieces[:20] == intact_pieces[:20]
    assert pieces[21:] == intact_pieces[21:]
    assert (pieces[20].start, pieces[20].stop) == (intact_pieces[20].start, intact_pieces[20].stop)
    assert pieces[20].damage is not None
    assert pieces[20].damage.record == 20


def test_files_are_cut_in_their_order_and_empty_ones_have_no_piece(tmp_path: Path) -> None:
    for number, rows in enumerate((3, 0, 5)):
        plain_file(tmp_path / f"{number}.tfrecord", rows) if rows else (
            tmp_path / f"{number}.tfrecord"
        ).write_bytes(b"")
    files = catalog_files([str(tmp_path)]).files
    result = [(piece.file, piece.records) for piece in cut_files(enumerate(files))]
    assert result == [(0, 3), (2, 5)]
