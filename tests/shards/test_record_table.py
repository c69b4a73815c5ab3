"""The table of a file without an index has every record.

A file that changes during a read is an error.
"""

import gzip
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.data_sets import plain_file
from kit.files import flip, tfrecord_bytes

from recordmill.base.errors import DataError
from recordmill.records.tfrecord import frames
from recordmill.records.tfrecord.stream import read_frames
from recordmill.shards import record_table
from recordmill.shards.catalog import catalog_files
from recordmill.shards.record_table import MAX_DAMAGE, RecordTable, scan_headers
from recordmill.shards.tfrecord_file import ContentDigest, open_tfrecord


@pytest.mark.parametrize("remaining_bytes", [0, 5, 1000])
def test_file_truncated_during_the_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remaining_bytes: int
) -> None:
    """The error is raised even if damaged records are left out.

    The end of a frame is read where the file has no more bytes.
    """
    path, iterate = plain_file(tmp_path / "a.tfrecord"), record_table.iter_frame_offsets

    def truncate_after_each_part(*arguments: Any, **options: Any) -> Any:
        for starts in iterate(*arguments, **options):
            yield starts
            os.truncate(path, min(remaining_bytes, os.stat(path).st_size))

    (shard,) = catalog_files([str(path)]).files
    file = open_tfrecord(shard, 0)
    monkeypatch.setattr(frames, "_READ_WINDOW_BYTES", 2000)
    monkeypatch.setattr(record_table, "iter_frame_offsets", truncate_after_each_part)
    with pytest.raises(
        DataError,
        match=r"a\.tfrecord: (ends at byte|became shorter|record \d+, byte \d+: truncated)",
    ):
        [call() for call in file.iter_reads(0, file.records)]


def table_of(path: Path) -> RecordTable:
    content = ContentDigest()
    parts = scan_headers(str(path), lenient=True, digest=content)
    return RecordTable.from_parts(parts, content, path.stat().st_size)


@given(st.lists(st.integers(0, 60), max_size=50))
def test_table_has_the_place_of_every_record(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    path = tmp_path_factory.getbasetemp() / "table.tfrecord"
    path.write_bytes(tfrecord_bytes(bytes(size) for size in sizes))
    table = table_of(path)
    ends = np.cumsum([0, *(size + 16 for size in sizes)]).tolist()
    assert (table.records, table.end, table.damage) == (len(sizes), ends[-1], ())
    offsets, lengths = table.locate(np.arange(len(sizes)))
    assert (offsets.tolist(), lengths.tolist()) == (ends[:-1], sizes)
    for record, (begin, end) in enumerate(itertools.pairwise(ends)):
        assert table.find_record(begin) == table.find_record(end - 1) == (record, begin, end)
        assert table.offset_of(record) == begin


def test_damage_is_one_record_of_unknown_length(tmp_path: Path) -> None:
    path = plain_file(tmp_path / "a.tfrecord")
    intact_table = table_of(path)
    for record in (10, 11, 30):
        flip(path, intact_table.offset_of(record))
    table = table_of(path)
    # Two damaged lengths that follow each other are one range without a good frame.
    assert [damage.record for damage in table.damage] == [10, 29]
    assert table.records == 49
    assert np.flatnonzero(table.locate(np.arange(49))[1] < 0).tolist() == [10, 29]
    assert table.offset_of(11) == intact_table.offset_of(12)


def test_after_many_damaged_records_the_rest_is_one_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_DAMAGE > 1000
    path = plain_file(tmp_path / "a.tfrecord")
    intact_table = table_of(path)
    for record in (5, 15, 25):
        flip(path, intact_table.offset_of(record))
    monkeypatch.setattr(record_table, "MAX_DAMAGE", 2)
    table = table_of(path)
    assert [damage.record for damage in table.damage] == [5, 15, 25]
    assert (table.records, table.end) == (26, intact_table.end)


def test_table_of_a_stream_equals_that_of_the_plain_file(tmp_path: Path) -> None:
    path = plain_file(tmp_path / "a.tfrecord")
    compressed = tmp_path / "a.tfrecord.gz"
    compressed.write_bytes(gzip.compress(path.read_bytes()))
    parts = read_frames(str(compressed), compression="gzip", batch_bytes=700)
    streamed = RecordTable.from_frames(parts, ContentDigest())
    plain = table_of(path)
    assert streamed.starts.tolist() == plain.starts.tolist()
    assert streamed.content == plain.content


def test_strict_scan_raises_the_first_damage_with_its_place(tmp_path: Path) -> None:
    path = plain_file(tmp_path / "a.tfrecord")
    flip(path, table_of(path).offset_of(7))
    with pytest.raises(DataError, match=r"a\.tfrecord: record 7, byte \d+"):
        list(scan_headers(str(path), lenient=False))
