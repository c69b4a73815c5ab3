"""ReadShards reads the data sets of WriteShards."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from kit.child_processes import X_SCHEMA
from kit.data_sets import mixed_rows, write_data_set
from kit.write_pipelines import beam, run_pipeline

import recordmill
from recordmill.base.errors import UsageError
from recordmill.shards.manifest import load_manifest
from recordmill.transforms import ReadShards, WriteShards, read_shards


def test_read_shards_reads_the_records_of_write_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_pipeline(tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    values: list[int] = []
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        batches = pipeline | ReadShards("out", ["x"])
        assert batches.element_type.__name__ == "RecordBatch"
        _ = (
            batches
            | beam.Map(lambda batch: sorted(batch.column("x").to_pylist()))
            | beam.Map(values.extend)
        )
    assert sorted(values) == list(range(50)) or not values  # the runner may call copies of `extend`
    pipeline = beam.Pipeline(runner=FnApiRunner())
    batches = pipeline | ReadShards(["out"])
    _ = batches | WriteShards(str(tmp_path / "again"), X_SCHEMA)
    result = pipeline.run()
    result.wait_until_finish()
    assert (
        load_manifest(tmp_path / "again").parts[0].splits
        == load_manifest(tmp_path / "out").parts[0].splits
    )
    counters = {
        (counter.key.step, counter.key.metric.name): counter.committed
        for counter in result.metrics().query()["counters"]
    }
    assert sum(count for (_, name), count in counters.items() if name == "records_read") == 100
    assert counters["WriteShards/Shard/MakeShards", "records_written"] == 50
    for columns, message in ((["y"], "no such feature"), (["x"], "no such file")):
        with (
            pytest.raises(Exception, match=message),
            beam.Pipeline(runner=FnApiRunner()) as pipeline,
        ):
            _ = pipeline | ReadShards("out" if columns == ["y"] else "nothing", columns)


def test_tasks_of_a_plan_contain_each_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_shards, "TASK_BYTES", 1000)
    out = write_data_set(tmp_path / "out", {"train": mixed_rows(40), "test": mixed_rows(3, 40)})
    plan = read_shards.plan_inputs(ReadShards(str(out), ["name", "id"], split="train"))
    numbers = list(read_shards.list_task_numbers(plan))
    assert len(numbers) > 1
    batches = [batch for number in numbers for batch in read_shards.read_task_batches(number, plan)]
    table = pa.Table.from_batches(batches)
    assert table.column_names == ["name", "id"]
    expected = recordmill.open(out, split="train", columns=["name", "id"]).to_table()
    assert table.sort_by("id").equals(expected.sort_by("id").cast(table.schema))


def test_local_inputs_are_absolute_for_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "@file").touch()
    inputs = ReadShards(["a/*.tfrecord", "@list.txt", "@file", "s3:/bucket/x"]).inputs
    assert inputs == [
        f"{tmp_path}/a/*.tfrecord",
        f"@{tmp_path}/list.txt",
        f"{tmp_path}/@file",
        "s3://bucket/x",
    ]
    with pytest.raises(UsageError, match="a path is empty"):
        ReadShards("")
