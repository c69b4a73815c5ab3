"""A damaged byte costs the same records for every reader: a read, an inspection, a build, training
and access by number. Users rely on it when they compare the rejects of one with those of another.
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
    """An input with a file that is damaged, and its content."""

    inputs: Path
    file: Path
    content: bytes


@pytest.fixture(params=["plain", "packed", "own", "own gzip"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    columns = {"id": list(range(ROWS)), "text": ["abcdefg"[:at] for at in range(ROWS)]}
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
    packed = request.param == "packed"
    path = tmp_path / ("a.tfrecord.gz" if packed else "a.tfrecord")
    content = shard.read_bytes()
    return Case(path, path, gzip.compress(content, 1, mtime=0) if packed else content)


def of_read(inputs: Path) -> tuple[list[int], list[Place]]:
    plan = plan_read(inputs, ReadOptions(lenient=True), schema=SCHEMA)
    parts = [part for task in plan.tasks for part in read_task_records(plan, task, 1)]
    ids = [i for part in parts for batch in part.batches for i in batch["id"].to_pylist()]
    return ids, [(one.place, one.reason, one.message) for part in parts for one in part.rejects]


def of_build(case: Case) -> list[Place]:
    path = case.file
    file = InputFile(0, path.name, str(path), stat(str(path)), None)
    source = plan_tfrecord([file], InputOptions(), PlanOptions(schema=SCHEMA))
    chunks = [chunk for unit in source.units for chunk in source.read(unit)]
    return [(one.place, one.reason, one.message) for chunk in chunks for one in chunk.rejects]


def of_inspect(inputs: Path) -> tuple[int, list[Place]]:
    summary = recordmill.inspect(inputs, schema=SCHEMA, threads=1, max_rejects="100%")
    first = summary.rejected.first
    return summary.looked_at, [(one.place, one.reason, one.message) for one in first]


def of_training(inputs: Path) -> tuple[list[int], int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = recordmill.open(inputs, schema=SCHEMA, threads=1)
        batches = dataset.batches(3, shuffle=False, on_bad="skip", drop_remainder=False)
        ids = [number for batch in batches for number in batch["id"].tolist()]
    return ids, batches.skipped


def strict_errors(inputs: Path) -> Iterator[DataError | None]:
    """What each strict reader raises."""

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
    ids, rejects = of_read(case.inputs)
    assert sorted(ids) == ids
    if case.inputs == case.file and rejects:
        # a file that is refused as a whole has no name to be listed by
        with contextlib.suppress(DataError):
            assert of_build(case) == rejects
    assert of_inspect(case.inputs) == (len(ids), rejects)
    assert of_training(case.inputs) == (ids, len(rejects))
    for error in strict_errors(case.inputs):
        assert (error is None) == (not rejects)
        if error is not None and error.place.startswith("record") and case.file.suffix != ".gz":
            assert error.place == rejects[0][0]
    if case.file.suffix == ".gz" and case.inputs == case.file:
        # nothing comes after broken compression, and what comes before it is kept
        lost = [record for record in range(ROWS) if record not in ids]
        assert lost == [] or len(rejects) >= 1
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
    opened = open_tfrecord(file, 0)
    pieces = list(cut(file, 0, lenient=True))
    assert opened.records == 6
    assert [one.record for one in opened.damage] == [1, 3, 5]
    assert [piece.damage for piece in pieces if piece.damage is not None] == list(opened.damage)
    assert pieces[-1].stop == len(content)
    assert opened.locate(np.arange(6))[1].tolist() == [4, -1, 4, -1, 4, -1]


def test_large_damaged_range_is_reported_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(
        frame_payloads(np.zeros(8, np.uint8), np.array([0, 8])).data.tobytes() + b"?" * 99
    )
    files = catalog_inputs(path).files
    pieces = cut(files[0], 0, lenient=True)
    calls = iter_piece_reads(files, pieces, refuse=lambda size: "too large" if size > 50 else "")
    assert [one.kind for call in calls for one in call().damage] == [FRAME_DAMAGE]


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.sweep)])
def test_flipped_byte_costs_every_reader_the_same_records(case: Case, step: int) -> None:
    case.file.write_bytes(case.content)
    assert of_read(case.inputs) == (list(range(ROWS)), [])
    for at in range(0, len(case.content), step):
        damaged = bytearray(case.content)
        damaged[at] ^= 1 << at % 8
        case.file.write_bytes(damaged)
        check(case)


def test_two_damaged_records_are_two_rejects_and_the_first_is_the_error(case: Case) -> None:
    if case.file.suffix == ".gz":
        pytest.skip("damaged compression hides the records after it")
    damaged = bytearray(case.content)
    for at in (70, 200):
        damaged[at] ^= 1
    case.file.write_bytes(damaged)
    assert len(of_read(case.inputs)[1]) == 2
    check(case)
