"""Lenient reads lose only damaged records and report each of them, for plain and compressed
files alike.
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

# Damaged shards read leniently
ROWS_OF_SALVAGE = 40
TABLE = mixed_rows(ROWS_OF_SALVAGE)
PIECE_BYTES = 2000


def salvaged(catalog: Catalog) -> tuple[list[int], list[Reject], int]:
    """(ids of the good records, the rejects, the pieces)."""
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
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, bytes]:
    out = write_data_set(
        tmp_path_factory.mktemp("ds") / "out", {"train": TABLE}, shards=1, compression=request.param
    )
    shard = sorted((out / FOLDER).glob("train-*"))[0]
    return out, shard, shard.read_bytes()


def test_lenient_read_of_intact_shards_loses_nothing(made: tuple[Path, Path, bytes]) -> None:
    ids, rejects, pieces = salvaged(catalog_inputs(made[0], lenient=True))
    assert ids == list(range(ROWS_OF_SALVAGE))
    assert not rejects
    assert pieces > 3


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_lenient_read_loses_only_damaged_records_and_reports_them(
    made: tuple[Path, Path, bytes], data: st.DataObject
) -> None:
    out, shard, whole = made
    damaged = bytearray(whole)
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=3)):
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    size = data.draw(st.one_of(st.just(len(whole)), st.integers(0, len(whole))))
    try:
        shard.write_bytes(damaged[:size])
        ids, rejects, _ = salvaged(catalog_inputs(out, lenient=True))
    finally:
        shard.write_bytes(whole)
    assert ids == sorted(set(ids))
    assert len(ids) + len(rejects) == ROWS_OF_SALVAGE
    assert set(ids) | {int(reject.place.split()[1].rstrip(",")) for reject in rejects} == set(
        range(ROWS_OF_SALVAGE)
    )
    if size == len(whole) and shard.suffix == ".tfrecord":
        assert len(rejects) <= 3


@pytest.mark.parametrize("step", [-1, 0, 3, 8, 11, 12, 40])
def test_plain_and_compressed_files_report_the_same_damage(
    made: tuple[Path, Path, bytes], tmp_path: Path, step: int
) -> None:
    """By hopping over headers, by scanning a piece and by reading a stream: one place, reason and
    message.
    """
    with open_stream(str(made[1])) as stream:
        buffer = np.empty(1 << 20, np.uint8)
        whole = buffer[: stream.fill(buffer)].tobytes()
    damaged = bytearray(whole)
    for record in (5, 6, 20):
        damaged[_starts(whole)[record] + step] ^= 0x10
    told = []
    for name, content in (
        ("a.tfrecord", bytes(damaged)),
        ("a.tfrecord.gz", gzip.compress(bytes(damaged), 1)),
    ):
        (tmp_path / name).write_bytes(content)
        ids, rejects, _ = salvaged(catalog_inputs(tmp_path / name))
        told.append((ids, [(reject.place, reject.reason, reject.message) for reject in rejects]))
    assert told[0] == told[1]
    assert len(told[0][0]) == ROWS_OF_SALVAGE - 3
    assert all(
        (reason == FRAME_DAMAGE) == ("; skipped " in message) for _, reason, message in told[0][1]
    )


def _starts(shard: bytes) -> list[int]:
    starts, at = [], 0
    while at < len(shard):
        starts.append(at)
        at += int.from_bytes(shard[at : at + 8], "little") + 16
    return starts
