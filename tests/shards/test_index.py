"""A few entries of an index yield the same pieces as all entries.

Damage of an index is reported.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.store_server import Store

from recordmill.base.errors import DataError
from recordmill.records.writers.npy_file import make_npy_header
from recordmill.shards import index as index_module
from recordmill.shards.cutting import RecordOffsets, _find_record_at, cut_records
from recordmill.shards.index import (
    INDEX_DTYPE,
    INDEX_FRAME_BYTES,
    Index,
    MappedIndex,
    PartialIndex,
    add_checksums,
    make_index,
    record_checksum,
)
from recordmill.shards.pieces import Piece

LENGTHS = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 5000)), min_size=1, max_size=200)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("far") / "index.npy"


@pytest.fixture(autouse=True)
def few_entries() -> Iterator[None]:
    with patch.object(index_module, "PROBE_ENTRIES", 4):
        yield


def cut_range(
    offsets: RecordOffsets, piece_bytes: int, low: int, high: int, begins: object = None
) -> list[Piece]:
    offsets.prefetch([*range(low + piece_bytes, high, piece_bytes)])
    ends = [_find_record_at(offsets, byte) for byte in (low, high)]
    return list(cut_records(offsets, 3, *ends, piece_bytes=piece_bytes, begins=begins))  # type: ignore[arg-type]


def make_index_of(lengths: list[int]) -> Index:
    frames = np.array(lengths, np.int64) + INDEX_FRAME_BYTES
    return make_index(frames, np.arange(len(lengths), dtype=np.uint64))


def content(index: Index) -> bytes:
    return make_npy_header(INDEX_DTYPE, (len(index),)) + index.tobytes()


@given(LENGTHS, st.integers(1, 3000))
def test_pieces_of_a_partial_index_equal_those_of_the_complete_index(
    path: Path, lengths: list[int], piece_bytes: int
) -> None:
    index = make_index_of(lengths)
    path.write_bytes(content(index))
    end = sum(lengths) + INDEX_FRAME_BYTES * len(lengths)
    expected = cut_range(MappedIndex(index, "x", end), piece_bytes, 0, end)
    assert cut_range(PartialIndex(str(path), len(index), end), piece_bytes, 0, end) == expected
    assert expected[-1].stop == end


@given(LENGTHS, st.integers(1, 3000), st.lists(st.integers(0, 5000), max_size=4), st.booleans())
def test_pieces_hold_each_record_once(
    path: Path, lengths: list[int], piece_bytes: int, positions: list[int], has_members: bool
) -> None:
    index = make_index_of(lengths)
    path.write_bytes(content(index))
    end = sum(lengths) + INDEX_FRAME_BYTES * len(lengths)
    bounds = [0, *sorted(min(position, end) for position in positions), end]
    begins = np.ascontiguousarray(index["offset"])[::3] if has_members else None
    all_pieces = []
    for limits in itertools.pairwise(bounds):
        pieces = cut_range(MappedIndex(index, "x", end), piece_bytes, *limits, begins)
        assert all(
            limits[0] <= int(index["offset"][piece.first_record]) < limits[1] for piece in pieces
        )
        if not has_members:
            assert (
                cut_range(PartialIndex(str(path), len(index), end), piece_bytes, *limits) == pieces
            )
        all_pieces += pieces
    assert [piece.start for piece in all_pieces] == [0, *(piece.stop for piece in all_pieces[:-1])]
    records = [
        range(piece.first_record or 0, (piece.first_record or 0) + (piece.records or 0))
        for piece in all_pieces
    ]
    assert list(itertools.chain.from_iterable(records)) == list(range(len(lengths)))
    assert all_pieces[-1].stop == end


@given(LENGTHS, st.integers(1, 3000), st.data())
def test_damaged_index_is_an_error_or_has_pieces_of_the_shard(
    path: Path, lengths: list[int], piece_bytes: int, choices: st.DataObject
) -> None:
    data = bytearray(content(make_index_of(lengths)))
    data[choices.draw(st.integers(0, len(data) - 1))] ^= 1 << choices.draw(st.integers(0, 7))
    path.write_bytes(data)
    check_pieces_or_error(
        path, lengths, piece_bytes, sum(lengths) + INDEX_FRAME_BYTES * len(lengths)
    )


def check_pieces_or_error(path: Path, lengths: list[int], piece_bytes: int, end: int) -> None:
    try:
        pieces = cut_range(PartialIndex(str(path), len(lengths), end), piece_bytes, 0, end)
    except DataError:
        return
    assert [piece.start for piece in pieces[1:]] == [piece.stop for piece in pieces[:-1]]
    assert (pieces[0].start, pieces[-1].stop, sum(piece.records or 0 for piece in pieces)) == (
        0,
        end,
        len(lengths),
    )


@pytest.mark.parametrize("piece_bytes", [pytest.param(300, marks=pytest.mark.sweep), 2929])
def test_index_with_any_flipped_bit_is_an_error_or_has_pieces_of_the_shard(
    path: Path, piece_bytes: int
) -> None:
    lengths = [0] * 12 + [19, 0, 0, 36, 4, 18, 87, 273, 284, 4298]
    intact_content, end = (
        content(make_index_of(lengths)),
        sum(lengths) + INDEX_FRAME_BYTES * len(lengths),
    )
    for bit in range(len(intact_content) * 8):
        data = bytearray(intact_content)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        check_pieces_or_error(path, lengths, piece_bytes, end)


def test_one_record_of_a_damaged_index_has_the_place_or_error_of_many() -> None:
    intact_index, end = make_index_of([0, 19, 36]), 55 + 3 * INDEX_FRAME_BYTES
    outcomes = set()
    for bit in range(len(intact_index.tobytes()) * 8):
        data = bytearray(intact_index.tobytes())
        data[bit // 8] ^= 1 << bit % 8
        index = MappedIndex(np.frombuffer(data, INDEX_DTYPE), "x", end)
        for record in range(len(intact_index)):
            single_result = place_or_error(index.locate_one, record)
            batch_result = place_or_error(index.locate, np.array([record]))
            assert single_result == batch_result
            outcomes.add(type(single_result))
    assert outcomes == {str, tuple}


def place_or_error(locate: Callable[[Any], tuple[Any, Any]], record: Any) -> object:
    try:
        offset, length = locate(record)
    except DataError as error:
        return str(error)
    return int(np.ravel(offset)[0]), int(np.ravel(length)[0])


def test_little_of_an_index_in_a_store_is_read(store: Store) -> None:
    index = make_index_of([100] * 5000)
    uri, end = store.put("index.npy", content(index)), 116 * 5000
    remote_index = PartialIndex(uri, 5000, end)
    assert cut_range(remote_index, 50_000, 0, end) == cut_range(
        MappedIndex(index, "x", end), 50_000, 0, end
    )
    assert sum(map(len, remote_index._blocks.values())) < 250
    for bad_uri, message in (
        (store.put("no.npy", b"x" * len(content(index))), "is not an index"),
        (f"{uri}x", "is missing"),
    ):
        with pytest.raises(DataError, match=message):
            cut_range(PartialIndex(bad_uri, 5000, end), 50_000, 0, end)
    for records in (9000, 5):
        with pytest.raises(DataError, match=f"another length than one of the {records} records"):
            PartialIndex(uri, records, end)


@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)), max_size=30),
    st.randoms(),
)
def test_record_checksums_ignore_order_and_add_up(
    records: list[tuple[int, int]], random: object
) -> None:
    def total(part: list[tuple[int, int]]) -> int:
        return record_checksum(
            np.array([k for k, _ in part], np.uint64), np.array([c for _, c in part], np.uint32)
        )

    shuffled = list(records)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert total(records) == total(shuffled)
    assert add_checksums(total(records[:7]), total(records[7:])) == total(records)
    if records:
        assert total(records) != total(records[1:]) or total(records[:1]) == 0


def test_record_checksum_of_version_1_is_pinned() -> None:
    assert (
        f"{record_checksum(np.array([1, 2], np.uint64), np.array([3, 0xFFFFFFFF], np.uint32)):016x}"
        == "b46f961e847e3402"
    )
