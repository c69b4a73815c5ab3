"""Pieces are read with checked records.

Damaged, changed and truncated files and indexes are reported.
"""

import gzip
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from kit.data_sets import MIXED, flip_record, mixed_rows, plain_file, write_data_set
from kit.files import flip

import recordmill
from recordmill.base.errors import DataError
from recordmill.records.tfrecord.frames import JoinedOrigin
from recordmill.shards.catalog import ShardFile, catalog_files, catalog_inputs
from recordmill.shards.cutting import cut, resolve
from recordmill.shards.pieces import (
    Piece,
    check_range,
    inflate_members,
    iter_joined_reads,
    iter_piece_reads,
    join_reads,
    load_index,
    start_read,
    stream,
)


def make_shard(folder: Path, compression: str) -> ShardFile:
    rows = {"train": mixed_rows(200)}
    out = write_data_set(folder / "out", rows, shards=1, compression=compression)
    return catalog_inputs(out).files[0]


@pytest.fixture(params=["none", "gzip"])
def shard(request: pytest.FixtureRequest, tmp_path: Path) -> ShardFile:
    return make_shard(tmp_path, request.param)


@pytest.fixture
def stream_file(tmp_path: Path) -> ShardFile:
    """A compressed file without an index."""
    path = plain_file(tmp_path / "a.tfrecord", 200)
    compressed = tmp_path / "a.tfrecord.gz"
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return catalog_files([str(compressed)]).files[0]


def test_reads_stop_after_the_piece_that_has_the_limit(shard: ShardFile) -> None:
    pieces = list(cut(shard, 0, 2000))
    assert len(pieces) > 5
    count = pieces[0].records or 0
    assert len(list(iter_piece_reads([shard], pieces, limit=0))) == 0
    assert len(list(iter_piece_reads([shard], pieces, limit=count))) == 1
    assert len(list(iter_piece_reads([shard], pieces, limit=count + 1))) == 2
    assert len(list(iter_piece_reads([shard], pieces))) == len(pieces)


def test_stream_ends_at_exactly_the_limit(stream_file: ShardFile) -> None:
    reads = iter_piece_reads([stream_file], [Piece(0, 0, None)], limit=13)
    assert sum(call().records for call in reads) == 13


def test_too_large_record_becomes_damage_and_is_not_read(shard: ShardFile) -> None:
    pieces = list(cut(shard, 0, 1)) if shard.codec.is_plain else list(cut(shard, 0, 2000))
    largest = max(piece.size_bytes for piece in pieces)
    # A record that is too large is the only one of its piece.
    reads = iter_piece_reads(
        [shard], pieces, refuse=lambda size: "too large" if size >= largest else ""
    )
    frames = [call() for call in reads]
    damage = [damage for part in frames for damage in part.damage]
    assert {item.kind for item in damage} == {"memory"}
    assert {item.size_bytes for item in damage} == {largest}
    assert [len(part) for part, piece in zip(frames, pieces, strict=True)] == [
        0 if piece.size_bytes == largest else piece.records for piece in pieces
    ]


def test_too_large_record_of_a_stream_becomes_damage(stream_file: ShardFile) -> None:
    (frames,) = stream(stream_file)
    largest = int(frames.lengths.max()) + 16
    reads = iter_piece_reads(
        [stream_file], [Piece(0, 0, None)], refuse=lambda size: "no" if size >= largest else ""
    )
    (result,) = [call() for call in reads]
    (damage,) = result.damage
    assert damage.record == int(np.argmax(frames.lengths))
    assert len(result) == 199
    assert damage.record not in result.numbers


def test_index_that_differs_from_the_manifest_is_refused(shard: ShardFile) -> None:
    assert shard.info is not None
    index = load_index(shard)
    assert index is not None
    assert len(index) == 200
    longer_shard = replace(shard, info=replace(shard.info, records=201))
    with pytest.raises(
        DataError, match=r"lists 200 records in \d+ bytes where the manifest says 201"
    ):
        load_index(longer_shard)
    assert load_index(replace(shard, info=None)) is None
    os.truncate(shard.path, 10)
    with pytest.raises(DataError, match="has 10 bytes where the manifest says"):
        load_index(shard)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (6, 5), (0, 101)])
def test_range_outside_of_the_file_is_refused(shard: ShardFile, start: int, stop: int) -> None:
    check_range(shard, 0, 100, 7, end=100)
    with pytest.raises(DataError, match=rf"record 7: says bytes {start} to {stop} of a shard that"):
        check_range(shard, start, stop, 7, end=100)


def test_error_of_a_truncated_file_contains_its_end(tmp_path: Path) -> None:
    path = plain_file(tmp_path / "a.tfrecord")
    (file,) = catalog_files([str(path)]).files
    (piece,) = cut(file, 0)
    end = file.stat.size_bytes - 5
    os.truncate(path, end)
    # The piece has the old size, and this state of the file has the new size.
    (new_file,) = catalog_files([str(path)]).files
    assert piece.stop == file.stat.size_bytes
    with pytest.raises(DataError, match="verify the data set"):
        start_read(new_file, piece)
    call = start_read(file, piece)
    with pytest.raises(DataError, match=r"a\.tfrecord"):
        call()


def test_damaged_member_costs_its_range_only(tmp_path: Path) -> None:
    shard = make_shard(tmp_path, "gzip")
    assert shard.info is not None
    content = inflate_members(shard, 0, shard.info.framed_bytes)
    assert len(content) == shard.info.framed_bytes
    assert (inflate_members(shard, 100, 900) == content[100:900]).all()
    flip(shard.path, shard.info.bytes - 3)  # in the last member
    with pytest.raises(DataError, match=r"gzip member .*byte \d+ of the file|byte \d+ of the file"):
        inflate_members(shard, 0, shard.info.framed_bytes)
    unreadable: list[tuple[int, int, object]] = []
    data = inflate_members(shard, 0, shard.info.framed_bytes, unreadable)  # type: ignore[arg-type]
    ((begin, end, _),) = unreadable
    assert end == shard.info.framed_bytes
    assert (data[:begin] == content[:begin]).all()
    assert not data[begin:].any()


def test_empty_file_has_no_frames(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(b"")
    (file,) = catalog_files([str(tmp_path / "a.tfrecord")]).files
    assert list(stream(file)) == []


_RECORDS, _SHARDS = 400, 40


def _make(folder: Path, compression: str = "none") -> Path:
    return write_data_set(
        folder, {"train": mixed_rows(_RECORDS)}, shards=_SHARDS, compression=compression
    )


def _pieces_of_shards(out: Path) -> list[Piece]:
    files = catalog_inputs(out).files
    return [
        Piece(ordinal, 0, file.info.framed_bytes, None, file.info.records)
        for ordinal, file in enumerate(files)
        if file.info is not None
    ]


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_joined_frames_have_the_payloads_and_places_of_their_files(
    compression: str, tmp_path: Path
) -> None:
    out = _make(tmp_path, compression)
    files = catalog_inputs(out).files
    pieces = list(resolve(files, _pieces_of_shards(out)))
    single_reads = [call() for call in iter_piece_reads(files, pieces)]
    (joined,) = [call() for call in iter_joined_reads(files, pieces)]
    expected = [
        (frames.payload(row).tobytes(), frames.location(row))
        for frames in single_reads
        for row in range(len(frames))
    ]
    assert len(single_reads) == _SHARDS
    assert expected == [
        (joined.payload(row).tobytes(), joined.location(row)) for row in range(_RECORDS)
    ]


def test_joined_parts_of_shards_have_the_places_of_their_files(tmp_path: Path) -> None:
    out = _make(tmp_path)
    files = catalog_inputs(out).files
    halves = [
        Piece(piece.file, piece.stop // 2, piece.stop, None, None)
        for piece in _pieces_of_shards(out)
        if piece.stop is not None
    ]
    pieces = list(resolve(files, halves))
    single_reads = [call() for call in iter_piece_reads(files, pieces)]
    (joined,) = [call() for call in iter_joined_reads(files, pieces)]
    expected = [frames.location(row) for frames in single_reads for row in range(len(frames))]
    assert 0 < len(expected) < _RECORDS
    assert expected == [joined.location(row) for row in range(len(joined))]
    assert isinstance(joined.origin, JoinedOrigin)
    starts = np.arange(0, _RECORDS, _RECORDS // _SHARDS)
    assert joined.origin.count_all_records(joined.numbers, starts).tolist() == [
        number + starts[frames.file]
        for frames in single_reads
        for number in frames.numbers.tolist()
    ]


def test_joined_reads_have_at_most_the_maximum_number_of_records(tmp_path: Path) -> None:
    out = _make(tmp_path)
    files = catalog_inputs(out).files
    pieces = list(resolve(files, _pieces_of_shards(out)))
    reads = join_reads(iter_piece_reads(files, pieces), 35)
    assert [len(call()) for call in reads] == [30] * 13 + [10]
    reads = join_reads(iter_piece_reads(files, pieces), 5)
    assert [len(call()) for call in reads] == [10] * _SHARDS


def test_joined_frames_contain_the_damage_of_their_files(tmp_path: Path) -> None:
    out = _make(tmp_path)
    _, offset = flip_record(out, 3, shard="train-00005")
    files = catalog_inputs(out).files
    pieces = list(resolve(files, _pieces_of_shards(out)))
    os.truncate(files[8].path, 1000)
    single_reads = [call() for call in iter_piece_reads(files, pieces)]
    (joined,) = [call() for call in iter_joined_reads(files, pieces)]
    assert [
        (frames.payload(row).tobytes(), frames.location(row))
        for frames in single_reads
        for row in range(len(frames))
    ] == [(joined.payload(row).tobytes(), joined.location(row)) for row in range(len(joined))]
    assert joined.records == _RECORDS
    assert sorted([*joined.numbers, *(damage.record for damage in joined.damage)]) == list(
        range(_RECORDS)
    )
    errors = [
        [damage.error(frames.origin.path(damage.record)) for damage in frames.damage]
        for frames in (*single_reads, joined)
    ]
    assert [str(error) for error in errors.pop()] == [
        str(error) for file_errors in errors for error in file_errors
    ]
    assert joined.damage[0].record == 53
    assert joined.damage[0].place == f"record 3, byte {offset}"


def test_foreign_files_that_change_are_refused_in_joined_reads(tmp_path: Path) -> None:
    paths = [plain_file(tmp_path / f"{name}.tfrecord", 20) for name in "ab"]
    files = catalog_files([str(tmp_path)]).files
    pieces = [piece for ordinal, file in enumerate(files) for piece in cut(file, ordinal)]
    (call,) = iter_joined_reads(files, pieces)
    assert len(call()) == 40
    os.utime(paths[1], (0, 0))
    with pytest.raises(DataError, match="changed while it was read") as error:
        call()
    assert error.value.source == str(paths[1])


def test_large_pieces_are_not_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = _make(tmp_path)
    files = catalog_inputs(out).files
    pieces = list(resolve(files, _pieces_of_shards(out)))
    piece_bytes = sum(piece.size_bytes for piece in pieces[:3])
    monkeypatch.setattr("recordmill.shards.pieces.PIECE_BYTES", piece_bytes)
    sizes = [call().framed_bytes for call in iter_joined_reads(files, pieces)]
    assert sizes[0] == piece_bytes
    assert max(sizes) <= piece_bytes
    assert sum(sizes) == sum(piece.size_bytes for piece in pieces)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, _RECORDS),
        ({"where": "id >= 100"}, _RECORDS - 100),
        ({"class_names": True}, _RECORDS),
        ({"limit": 123}, 123),
    ],
)
def test_read_of_small_shards_writes_the_rows_of_one_shard(
    options: dict[str, object], rows: int, tmp_path: Path
) -> None:
    single_shard = write_data_set(tmp_path / "one", {"train": mixed_rows(_RECORDS)}, shards=1)
    tables = []
    for out in (single_shard, _make(tmp_path / "many")):
        result = recordmill.read(out, tmp_path / f"{out.name} read", **options)
        tables.append(pq.read_table(result.paths[0]))
    assert tables[0].num_rows == rows
    assert tables[0].equals(tables[1])


def test_damage_of_a_joined_shard_names_its_file_and_record(tmp_path: Path) -> None:
    out = _make(tmp_path)
    path, offset = flip_record(out, 4, "train-00023")
    with pytest.raises(DataError, match="CRC of the data") as error:
        recordmill.read(out, tmp_path / "read")
    assert error.value.source == str(path)
    assert error.value.place == f"record 4, byte {offset}"
    rest = recordmill.read(out, tmp_path / "rest", max_rejects=1)
    assert (rest.written, rest.rejected) == (_RECORDS - 1, 1)


def test_record_of_a_joined_shard_that_does_not_fit_names_its_file(tmp_path: Path) -> None:
    out = _make(tmp_path)
    small = replace(MIXED["id"], dtype="int8")
    schema = replace(MIXED, features=(small, *MIXED.features[1:]))
    with pytest.raises(DataError, match="outside the range of its dtype") as error:
        recordmill.read(out, tmp_path / "read", columns=["id"], schema=schema)
    assert Path(error.value.source).name == "train-00012-of-00040.tfrecord"
    assert error.value.place.startswith("record 8, byte ")


def test_plan_opens_no_index_of_a_small_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = _make(tmp_path)
    monkeypatch.setattr("recordmill.shards.cutting.load_index", None)
    assert recordmill.read(out, tmp_path / "read").written == _RECORDS
