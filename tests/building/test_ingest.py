"""The four steps of ingesting (read, place, transform, encode), each by itself; `ingest` is their composition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from recordmill.base.errors import DataError
from recordmill.base.progress import Progress
from recordmill.building.ingest import KeyedChunk, assign_keys, encode_chunk, ingest, read_unit, transform
from recordmill.building.order import OrderOptions
from recordmill.building.plan import BuildPlan, group_units
from recordmill.building.run_file import ENTRY_DTYPE, KeyBuckets
from recordmill.pipelines.build_options import make_options
from recordmill.pipelines.plan import plan_source
from recordmill.records.example.single_example import parse_example
from recordmill.shards.run import RunFolder
from recordmill.sources.common.contract import Payloads

ROWS = 1000


@pytest.fixture
def plan(tmp_path: Path) -> BuildPlan:
    """A plan of two CSV files, of which the second has a row too short."""
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [f"{i},text {i}" for i in range(ROWS)]
    (folder / "a.csv").write_text("x,y\n" + "\n".join(lines[:700]) + "\n")
    (folder / "b.csv").write_text("x,y\n" + "\n".join([*lines[700:], "7"]) + "\n")
    run = RunFolder.create(tmp_path / "out")
    source = plan_source(str(folder), run, str(tmp_path / "out"), make_options(tmp_path / "out", kind="csv"))
    order = OrderOptions(splits=(("train", 0.7), ("test", 0.3)))
    names = ("train", "test")
    plan = BuildPlan(
        str(run.path), 0, source.schema, names, KeyBuckets.plan(2, 2**64, 2), source, order=order, threads=1
    )
    return BuildPlan(**{**plan.__dict__, "groups": group_units(source, plan.arena_bytes, 1)})


def placed(plan: BuildPlan) -> list[KeyedChunk]:
    return [assign_keys(plan, chunk) for group in range(len(plan.groups)) for chunk in read_unit(plan, group)]


def test_read_gives_every_row_of_the_group_s_units_once(plan: BuildPlan) -> None:
    chunks = [chunk for group in range(len(plan.groups)) for chunk in read_unit(plan, group)]
    assert sorted(x for chunk in chunks for x in chunk.records.column("x").to_pylist()) == list(range(ROWS))
    assert [reject.source for chunk in chunks for reject in chunk.rejects] == ["b.csv"]


def test_place_looks_at_file_and_position_alone(plan: BuildPlan) -> None:
    (chunk,) = read_unit(plan, 0)
    found = assign_keys(plan, chunk)
    keys, splits = plan.ordering.assign(None, chunk.file, chunk.position)
    np.testing.assert_array_equal(found.keys, keys)
    np.testing.assert_array_equal(found.splits, splits)
    assert set(splits.tolist()) == {0, 1}
    assert found.records is chunk.records


def test_without_a_transform_all_records_stay_as_they_are(plan: BuildPlan) -> None:
    for records in placed(plan):
        assert transform(plan, records) == (records, ())


def test_encode_gives_a_frame_a_row(plan: BuildPlan) -> None:
    (records,) = placed(plan)
    frames = encode_chunk(plan, records)
    payload = frames.data[frames.starts[0] + 12 :][: frames.lengths[0]].tobytes()
    assert len(frames) == records.rows == ROWS
    assert parse_example(payload, plan.schema) == {"x": 0, "y": "text 0"}


def test_encode_frames_records_that_were_not_parsed_as_they_are(plan: BuildPlan) -> None:
    (records,) = placed(plan)
    two = {name: getattr(records, name)[:2] for name in ("file", "position", "keys", "splits")}
    payloads = Payloads(np.frombuffer(b"abcde", np.uint8), np.array([0, 2, 5]))
    frames = encode_chunk(plan, KeyedChunk(payloads, **two))
    assert [frames.data[start + 12 :][:length].tobytes() for start, length in zip(*_spans(frames), strict=True)] == [
        b"ab",
        b"cde",
    ]


def _spans(frames: object) -> tuple[list[int], list[int]]:
    return frames.starts.tolist(), frames.lengths.tolist()  # type: ignore[attr-defined]


def test_encode_names_the_place_of_what_no_reader_takes(plan: BuildPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recordmill.building.ingest.MAX_RECORD_BYTES", 40)
    (records,) = placed(plan)
    batch = pa.record_batch(
        {"x": records.records.column("x"), "y": pa.array(["y" * (i == 900) * 99 for i in range(ROWS)])}
    )
    long = KeyedChunk(batch, records.file, records.position, records.keys, records.splits)
    with pytest.raises(DataError, match=r"b\.csv: record 200: \d+ bytes in one record"):
        encode_chunk(plan, long)


def test_ingest_is_the_composition(plan: BuildPlan) -> None:
    done, histogram = ingest(plan, 0, Progress(), plan.run_bytes)
    (records,) = placed(plan)
    (run,) = done.runs
    frames = encode_chunk(plan, records)
    data = np.fromfile(run.path, np.uint8)
    entries = data[run.frames_bytes : run.index_at].view(ENTRY_DTYPE)
    assert (done.read, done.rejected.total, run.records, run.frames_bytes) == (ROWS + 1, 1, ROWS, len(frames.data))
    order = np.lexsort((records.keys, records.splits))
    np.testing.assert_array_equal(entries["key"], records.keys[order])
    assert (histogram.records.sum(), histogram.bytes.sum()) == (ROWS, len(frames.data))
    np.testing.assert_array_equal(entries["position"], records.position[order])
