"""ReadShards reads what WriteShards wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from kit.child_processes import ONE
from kit.write_pipelines import beam, run_pipeline

from recordmill.shards.manifest import load_manifest
from recordmill.transforms import ReadShards, WriteShards


def test_read_shards_reads_what_write_shards_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_pipeline(tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    found: list[int] = []
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        batches = pipeline | ReadShards("out", ["x"])
        assert batches.element_type.__name__ == "RecordBatch"
        _ = (
            batches
            | beam.Map(lambda batch: sorted(batch.column("x").to_pylist()))
            | beam.Map(found.extend)
        )
    assert sorted(found) == list(range(50)) or not found  # the runner may hand over copies
    pipeline = beam.Pipeline(runner=FnApiRunner())
    batches = pipeline | ReadShards(["out"])
    _ = batches | WriteShards(str(tmp_path / "again"), ONE)
    result = pipeline.run()
    result.wait_until_finish()
    assert (
        load_manifest(tmp_path / "again").parts[0].splits
        == load_manifest(tmp_path / "out").parts[0].splits
    )
    counters = {
        (one.key.step, one.key.metric.name): one.committed
        for one in result.metrics().query()["counters"]
    }
    assert sum(count for (_, name), count in counters.items() if name == "records_read") == 100
    assert counters["WriteShards/Shard/MakeShards", "records_written"] == 50
    for wrong, message in ((["y"], "no such feature"), (["x"], "no such file")):
        with (
            pytest.raises(Exception, match=message),
            beam.Pipeline(runner=FnApiRunner()) as pipeline,
        ):
            _ = pipeline | ReadShards("out" if wrong == ["y"] else "nothing", wrong)
