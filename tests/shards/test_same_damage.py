"""A damaged byte costs the same records for every reader.

The readers are a read, an inspection, a build, training and access by number. Users rely on this
when they compare the rejects of two readers.
"""

import contextlib
import gzip
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from kit.data_sets import FOLDER, write_data_set

import recordmill
from recordmill.base.errors import DataError
from recordmill.exporting.plan import ReadOptions, plan_read
from recordmill.exporting.records import read_task_records
from recordmill.records.tfrecord.frames import FRAME_DAMAGE, frame_payloads
from recordmill.schemas.feature import Feature, Schema
from recordmill.shards import record_table
from recordmill.shards.catalog import catalog_inputs
from recordmill.shards.cutting import cut
from recordmill.shards.pieces import iter_piece_reads
from recordmill.shards.tfrecord_file import open_tfrecord
from recordmill.sources.common.contract import PlanOptions
from recordmill.sources.common.options import InputOptions
from recordmill.sources.tfrecord.source import plan_tfrecord
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import stat

SCHEMA = Schema((Feature("id", "int64", (), True), Feature("text", "string", (), True)))
ROWS = 7
Place = tuple[str, str, str]  # place, reason and message of a reject


@dataclass
class Case:
    """An input with a file that the test damages.

    Attributes:
        content: The intact content of the file.
    """

    inputs: Path
    file: Path
    content: bytes


@pytest.fixture(params=["plain", "packed", "own", "own gzip"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    columns = {"id": list(range(ROWS)), "text": ["abcdefg"[:length] for length in range(ROWS)]}
    compression = "gzip" if request.param == "own gzip" else "none"
    out = write_data_set(
        tmp_path / "set",
        {"train": columns},
        SCHEMA,
        shards=1,
        compression=compression,
        member_bytes=120,
    )
    (shard,) = (out / FOLDER).glob("train-*")
    if request.param.startswith("own"):
        return Case(out, shard, shard.read_bytes())
    is_gzip = request.param == "packed"
    path = tmp_path / ("a.tfrecord.gz" if is_gzip else "a.tfrecord")
    content = shard.read_bytes()
    return Case(path, path, gzip.compress(content, 1, mtime=0) if is_gzip else content)


def read_leniently(inputs: Path) -> tuple[list[int], list[Place]]:
    plan = plan_read(inputs, ReadOptions(lenient=True), schema=SCHEMA)
    parts = [part for task in plan.tasks for part in read_task_records(plan, task, 1)]
    ids = [i for part in parts for batch in part.batches for i in batch["id"].to_pylist()]
    return ids, [
        (reject.place, reject.reason, reject.message) for part in parts for reject in part.rejects
    ]


def list_build_rejects(case: Case) -> list[Place]:
    path = case.file
    file = InputFile(0, path.name, str(path), stat(str(path)), None)
    source = plan_tfrecord([file], InputOptions(), PlanOptions(schema=SCHEMA))
    chunks = [chunk for unit in source.units for chunk in source.read(unit)]
    return [
        (reject.place, reject.reason, reject.message)
        for chunk in chunks
        for reject in chunk.rejects
    ]


def inspect_leniently(inputs: Path) -> tuple[int, list[Place]]:
    summary = recordmill.inspect(inputs, schema=SCHEMA, threads=1, max_rejects="100%")
    first = summary.rejected.first
    return summary.looked_at, [(reject.place, reject.reason, reject.message) for reject in first]


def train_leniently(inputs: Path) -> tuple[list[int], int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = recordmill.open(inputs, schema=SCHEMA, threads=1)
        batches = dataset.batches(3, shuffle=False, on_bad="skip", drop_remainder=False)
        ids = [number for batch in batches for number in batch["id"].tolist()]
    return ids, batches.skipped


def strict_errors(inputs: Path) -> Iterator[DataError | None]:
    """Yields the error of each strict reader, or None if it succeeds."""

    def table() -> None:
        recordmill.open(inputs, schema=SCHEMA, threads=1).to_table()

    def train() -> None:
        for _ in recordmill.open(inputs, schema=SCHEMA, threads=1).batches(3, shuffle=False):
            pass

    def inspect() -> None:
        recordmill.inspect(inputs, schema=SCHEMA, threads=1)

    def read() -> None:
        plan = plan_read(inputs, ReadOptions(), schema=SCHEMA)
        for task in plan.tasks:
            list(read_task_records(plan, task, 1))

    for reader in (table, train, inspect, read):
        try:
            reader()
        except DataError as error:
            yield error
        else:
            yield None


def check(case: Case) -> None:
    ids, rejects = read_leniently(case.inputs)
    assert sorted(ids) == ids
    if case.inputs == case.file and rejects:
        # A build may refuse the complete file. Then it has no rejects to compare.
        with contextlib.suppress(DataError):
            assert list_build_rejects(case) == rejects
    assert inspect_leniently(case.inputs) == (len(ids), rejects)
    assert train_leniently(case.inputs) == (ids, len(rejects))
    for error in strict_errors(case.inputs):
        assert (error is None) == (not rejects)
        if error is not None and error.place.startswith("record") and case.file.suffix != ".gz":
            assert error.place == rejects[0][0]
    if case.file.suffix == ".gz" and case.inputs == case.file:
        # The records after broken compression are lost, and the records before it are kept.
        lost_ids = [record for record in range(ROWS) if record not in ids]
        assert lost_ids == [] or len(rejects) >= 1
    else:
        assert len(ids) + len(rejects) == ROWS


def test_after_the_damage_limit_every_reader_leaves_out_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_table, "MAX_DAMAGE", 2)
    frames = frame_payloads(np.zeros(ROWS * 4, np.uint8), np.arange(0, ROWS * 4 + 1, 4))
    content = frames.data.copy()
    content[frames.starts[1::2] + 8] ^= 1  # the headers of records 1, 3 and 5
    path = tmp_path / "a.tfrecord"
    path.write_bytes(content.tobytes())
    (file,) = catalog_inputs(path).files
    tfrecord = open_tfrecord(file, 0)
    pieces = list(cut(file, 0, lenient=True))
    assert tfrecord.records == 6
    assert [damage.record for damage in tfrecord.damage] == [1, 3, 5]
    assert [piece.damage for piece in pieces if piece.damage is not None] == list(tfrecord.damage)
    assert pieces[-1].stop == len(content)
    assert tfrecord.locate(np.arange(6))[1].tolist() == [4, -1, 4, -1, 4, -1]


def test_large_damaged_range_is_reported_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(
        frame_payloads(np.zeros(8, np.uint8), np.array([0, 8])).data.tobytes() + b"?" * 99
    )
    files = catalog_inputs(path).files
    pieces = cut(files[0], 0, lenient=True)
    calls = iter_piece_reads(files, pieces, refuse=lambda size: "too large" if size > 50 else "")
    assert [damage.kind for call in calls for damage in call().damage] == [FRAME_DAMAGE]


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.sweep)])
def test_flipped_byte_costs_every_reader_the_same_records(case: Case, step: int) -> None:
    case.file.write_bytes(case.content)
    assert read_leniently(case.inputs) == (list(range(ROWS)), [])
    for position in range(0, len(case.content), step):
        damaged_content = bytearray(case.content)
        damaged_content[position] ^= 1 << position % 8
        case.file.write_bytes(damaged_content)
        check(case)


def test_two_damaged_records_are_two_rejects_and_the_first_is_the_error(case: Case) -> None:
    if case.file.suffix == ".gz":
        pytest.skip("damaged compression hides the records after it")
    damaged_content = bytearray(case.content)
    for position in (70, 200):
        damaged_content[position] ^= 1
    case.file.write_bytes(damaged_content)
    assert len(read_leniently(case.inputs)[1]) == 2
    check(case)
