"""Reads join small shards, with the records and errors of reading one shard after the other."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kit.data_sets import MIXED, flip_record, mixed_rows, write_data_set

import recordmill
from recordmill.base.errors import DataError
from recordmill.shards.catalog import catalog_inputs
from recordmill.shards.cutting import resolve
from recordmill.shards.pieces import Piece, iter_joined_reads, iter_piece_reads

_RECORDS, _SHARDS = 400, 40


def _make(folder: Path, compression: str = "none") -> Path:
    return write_data_set(
        folder, {"train": mixed_rows(_RECORDS)}, shards=_SHARDS, compression=compression
    )


def _whole_shards(out: Path) -> list[Piece]:
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
    pieces = list(resolve(files, _whole_shards(out)))
    alone = [read() for read in iter_piece_reads(files, pieces)]
    (joined,) = [read() for read in iter_joined_reads(files, pieces)]
    expected = [
        (frames.payload(row).tobytes(), frames.location(row))
        for frames in alone
        for row in range(len(frames))
    ]
    assert len(alone) == _SHARDS
    assert expected == [
        (joined.payload(row).tobytes(), joined.location(row)) for row in range(_RECORDS)
    ]


def test_joined_parts_of_shards_have_the_places_of_their_files(tmp_path: Path) -> None:
    out = _make(tmp_path)
    files = catalog_inputs(out).files
    halves = [
        Piece(piece.file, piece.stop // 2, piece.stop, None, None)
        for piece in _whole_shards(out)
        if piece.stop is not None
    ]
    pieces = list(resolve(files, halves))
    alone = [read() for read in iter_piece_reads(files, pieces)]
    (joined,) = [read() for read in iter_joined_reads(files, pieces)]
    expected = [frames.location(row) for frames in alone for row in range(len(frames))]
    assert 0 < len(expected) < _RECORDS
    assert expected == [joined.location(row) for row in range(len(joined))]


def test_large_pieces_are_not_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = _make(tmp_path)
    files = catalog_inputs(out).files
    pieces = list(resolve(files, _whole_shards(out)))
    piece_bytes = sum(piece.size_bytes for piece in pieces[:3])
    monkeypatch.setattr("recordmill.shards.pieces.PIECE_BYTES", piece_bytes)
    sizes = [read().framed_bytes for read in iter_joined_reads(files, pieces)]
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
    one = write_data_set(tmp_path / "one", {"train": mixed_rows(_RECORDS)}, shards=1)
    tables = []
    for out in (one, _make(tmp_path / "many")):
        result = recordmill.read(out, tmp_path / f"{out.name} read", **options)
        tables.append(pq.read_table(result.paths[0]))
    assert tables[0].num_rows == rows
    assert tables[0].equals(tables[1])


def test_damage_of_a_joined_shard_names_its_file_and_record(tmp_path: Path) -> None:
    out = _make(tmp_path)
    path, offset = flip_record(out, 4, "train-00023")
    with pytest.raises(DataError, match="CRC of the data") as caught:
        recordmill.read(out, tmp_path / "read")
    assert caught.value.source == str(path)
    assert caught.value.place == f"record 4, byte {offset}"
    rest = recordmill.read(out, tmp_path / "rest", max_rejects=1)
    assert (rest.written, rest.rejected) == (_RECORDS - 1, 1)


def test_record_of_a_joined_shard_that_does_not_fit_names_its_file(tmp_path: Path) -> None:
    out = _make(tmp_path)
    small = replace(MIXED["id"], dtype="int8")
    schema = replace(MIXED, features=(small, *MIXED.features[1:]))
    with pytest.raises(DataError, match="outside the range of its dtype") as caught:
        recordmill.read(out, tmp_path / "read", columns=["id"], schema=schema)
    assert Path(caught.value.source).name == "train-00012-of-00040.tfrecord"
    assert caught.value.place.startswith("record 8, byte ")


def test_plan_opens_no_index_of_a_small_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = _make(tmp_path)
    monkeypatch.setattr("recordmill.shards.cutting.load_index", None)
    assert recordmill.read(out, tmp_path / "read").written == _RECORDS
