"""Lenient reads lose only damaged records, and report each of them.

Plain and compressed files behave alike.
"""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.data_sets import FOLDER, MIXED, mixed_rows, write_data_set

from recordmill.base.errors import Reject
from recordmill.records.tfrecord.frames import FRAME_DAMAGE
from recordmill.shards.catalog import Catalog, catalog_inputs
from recordmill.shards.cutting import cut
from recordmill.shards.loading.decode import salvage
from recordmill.shards.pieces import iter_piece_reads
from recordmill.storage.codecs import SHARD_SUFFIXES
from recordmill.storage.compression import open_stream

ROWS = 40
TABLE = mixed_rows(ROWS)
PIECE_BYTES = 2000


def read_leniently(catalog: Catalog) -> tuple[list[int], list[Reject], int]:
    """Reads all records leniently, and checks the good ones.

    Returns:
        The ids of the good records, the rejects, and the number of pieces.
    """
    pieces = [
        piece
        for ordinal, file in enumerate(catalog.files)
        for piece in cut(file, ordinal, PIECE_BYTES, lenient=True)
    ]
    all_frames = [call() for call in iter_piece_reads(catalog.files, pieces)]
    parts = [salvage(frames, catalog.files[frames.file].name, MIXED) for frames in all_frames]
    batches = [batch for part in parts for batch in part.batches]
    for batch in batches:
        ids = batch.column("id").to_pylist()
        assert batch.equals(
            pa.RecordBatch.from_struct_array(
                TABLE.take(ids).to_struct_array().combine_chunks()
            ).replace_schema_metadata(batch.schema.metadata)
        )
    return (
        [i for batch in batches for i in batch.column("id").to_pylist()],
        [r for part in parts for r in part.rejects],
        len(pieces),
    )


@pytest.fixture(scope="module", params=SHARD_SUFFIXES)
def data_set(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, bytes]:
    out = write_data_set(
        tmp_path_factory.mktemp("ds") / "out", {"train": TABLE}, shards=1, compression=request.param
    )
    shard = sorted((out / FOLDER).glob("train-*"))[0]
    return out, shard, shard.read_bytes()


def test_lenient_read_of_intact_shards_loses_nothing(data_set: tuple[Path, Path, bytes]) -> None:
    ids, rejects, pieces = read_leniently(catalog_inputs(data_set[0], lenient=True))
    assert ids == list(range(ROWS))
    assert not rejects
    assert pieces > 3


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_lenient_read_loses_only_damaged_records_and_reports_them(
    data_set: tuple[Path, Path, bytes], data: st.DataObject
) -> None:
    out, shard, content = data_set
    damaged_content = bytearray(content)
    for position in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=3)):
        damaged_content[position] ^= 1 << data.draw(st.integers(0, 7))
    size = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    try:
        shard.write_bytes(damaged_content[:size])
        ids, rejects, _ = read_leniently(catalog_inputs(out, lenient=True))
    finally:
        shard.write_bytes(content)
    assert ids == sorted(set(ids))
    assert len(ids) + len(rejects) == ROWS
    assert set(ids) | {int(reject.place.split()[1].rstrip(",")) for reject in rejects} == set(
        range(ROWS)
    )
    if size == len(content) and shard.suffix == ".tfrecord":
        assert len(rejects) <= 3


@pytest.mark.parametrize("step", [-1, 0, 3, 8, 11, 12, 40])
def test_plain_and_compressed_files_report_the_same_damage(
    data_set: tuple[Path, Path, bytes], tmp_path: Path, step: int
) -> None:
    """Three ways to read find the same damage, with place, reason and message.

    The ways are a pass over headers, a scan of a piece, and a stream.
    """
    with open_stream(str(data_set[1])) as stream:
        buffer = np.empty(1 << 20, np.uint8)
        intact_content = buffer[: stream.fill(buffer)].tobytes()
    damaged_content = bytearray(intact_content)
    for record in (5, 6, 20):
        damaged_content[_starts(intact_content)[record] + step] ^= 0x10
    results = []
    for name, content in (
        ("a.tfrecord", bytes(damaged_content)),
        ("a.tfrecord.gz", gzip.compress(bytes(damaged_content), 1)),
    ):
        (tmp_path / name).write_bytes(content)
        ids, rejects, _ = read_leniently(catalog_inputs(tmp_path / name))
        results.append((ids, [(reject.place, reject.reason, reject.message) for reject in rejects]))
    assert results[0] == results[1]
    assert len(results[0][0]) == ROWS - 3
    assert all(
        (reason == FRAME_DAMAGE) == ("; skipped " in message)
        for _, reason, message in results[0][1]
    )


def _starts(shard: bytes) -> list[int]:
    starts, offset = [], 0
    while offset < len(shard):
        starts.append(offset)
        offset += int.from_bytes(shard[offset : offset + 8], "little") + 16
    return starts
