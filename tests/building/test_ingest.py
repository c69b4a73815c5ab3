"""Input records become frames with keys. Invalid ones become rejects with their place."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kit.sorted_runs import payloads_of

from recordmill.base.errors import DataError
from recordmill.base.progress import Progress
from recordmill.building import ingest as module
from recordmill.building.ingest import (
    IngestResult,
    apply_transform,
    assign_keys,
    create_sketches,
    encode_chunk,
    ingest,
    read_first_records,
    read_unit_group,
)
from recordmill.building.plan import BuildPlan
from recordmill.pipelines.build_options import make_options
from recordmill.pipelines.build_plan import make_plan
from recordmill.records.example.encode import encode
from recordmill.shards.run import RunFolder


def plan_build(source: Any, tmp_path: Path, **options: Any) -> BuildPlan:
    out = str(tmp_path / "out")
    folder = RunFolder.create(out)
    return make_plan(source, folder, out, 0, make_options(out, **options), Progress())


def ingest_all(plan: BuildPlan) -> list[IngestResult]:
    groups = range(len(plan.unit_groups))
    return [ingest(plan, group, Progress(), 1 << 20)[0] for group in groups]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A CSV file of 100 records and one row with a field too many."""
    rows = "".join(f"{row},text {row}\n" for row in range(100))
    path = tmp_path / "table.csv"
    path.write_text(f"id,text\n{rows}1,2,3\n")
    return path


def test_sorted_runs_hold_the_encoded_records_and_rejects_are_counted(
    table: Path, tmp_path: Path
) -> None:
    plan = plan_build(table, tmp_path, max_rejects=5)
    (result,) = ingest_all(plan)
    assert (result.records_read, sum(result.rejected.counts.values())) == (101, 1)
    assert sum(run.records for run in result.sorted_runs) == 100
    payloads = []
    for run in result.sorted_runs:
        data = np.fromfile(run.path, np.uint8)
        payloads += payloads_of(data[: run.frames_bytes])
    ids = pa.array(range(100), pa.int64())
    texts = pa.array([f"text {row}" for row in range(100)], pa.large_string())
    frames = encode(pa.RecordBatch.from_arrays([ids, texts], ["id", "text"]), plan.schema)
    assert sorted(payloads) == sorted(payloads_of(frames.data))


def test_record_without_a_split_is_a_reject_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,part\n1,train\n2,\n3,test\n")
    plan = plan_build(tmp_path / "in.csv", tmp_path, split_column="part", max_rejects=1)
    (chunk,) = read_unit_group(plan, 0)
    keyed, rejects = assign_keys(plan, chunk)
    assert keyed.rows == 2
    assert [plan.split_names[split] for split in keyed.split_ids] == ["train", "test"]
    (reject,) = rejects
    assert (reject.reason, reject.place) == ("split", "line 3, row 1")
    assert reject.source.endswith("in.csv")


def test_columns_that_only_determine_the_split_are_not_written(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,part\n1,a\n2,b\n")
    plan = plan_build(tmp_path / "in.csv", tmp_path, split_column="part")
    (chunk,) = read_unit_group(plan, 0)
    keyed, _ = assign_keys(plan, chunk)
    transformed, rejects = apply_transform(plan, keyed)
    assert isinstance(transformed.records, pa.RecordBatch)
    assert transformed.records.schema.names == ["id"]
    assert rejects == ()


@pytest.mark.parametrize("count", [0, 1, 99, 100, 1000])
def test_first_records_are_those_of_the_inputs_in_order(
    table: Path, tmp_path: Path, count: int
) -> None:
    plan = plan_build(table, tmp_path, max_rejects=5)
    records = read_first_records(plan, count)
    assert records["id"].to_pylist() == list(range(min(count, 100)))


def test_record_beyond_the_limit_of_readers_names_its_file_and_record(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_build(table, tmp_path, max_rejects=5)
    (chunk,) = read_unit_group(plan, 0)
    keyed, _ = assign_keys(plan, chunk)
    monkeypatch.setattr(module, "find_oversized_record", lambda frames: 17)
    with pytest.raises(DataError, match=r"table\.csv: record 17\b"):
        encode_chunk(plan, keyed)


def test_build_without_statistics_has_no_sketches(tmp_path: Path) -> None:
    source = {"id": [1, 2]}
    assert create_sketches(plan_build(source, tmp_path / "a", stats=False)) is None
    assert create_sketches(plan_build(source, tmp_path / "b")) is not None
