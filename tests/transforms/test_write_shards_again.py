"""Steps of `WriteShards` that an engine runs twice, in one process or several, at once or after a death."""

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from store_server import Store

beam = pytest.importorskip("apache_beam", reason="these PTransforms need Apache Beam")

from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402
from apache_beam.runners.portability.fn_api_runner import FnApiRunner  # noqa: E402

import recordmill  # noqa: E402
from recordmill.base.errors import UsageError  # noqa: E402
from recordmill.building import commit  # noqa: E402
from recordmill.schemas.feature import Feature, Schema  # noqa: E402
from recordmill.shards import run  # noqa: E402
from recordmill.shards.manifest import load  # noqa: E402
from recordmill.storage.folders import files_below, names_in  # noqa: E402
from recordmill.transforms import BatchDicts, ReadShards, WriteShards, build_stages, write_shards  # noqa: E402

SCHEMA = Schema((Feature("x", "int64", required=True),))


def start(out: str) -> None:
    """A start in a process of its own, which ends at once."""
    write_shards.start_run(WriteShards(out, SCHEMA))


@pytest.mark.sweep
def test_a_second_start_elsewhere_leaves_the_live_run_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = write_shards.start_run(WriteShards(str(out), SCHEMA))
    before = files_below(first.job_folder.run())
    other = multiprocessing.get_context("spawn").Process(target=start, args=(str(out),))
    other.start()
    other.join()
    assert other.exitcode == 0
    runs = [name for name in names_in(out) if name.startswith("_run-")]
    assert len(runs) == 2  # the other's is its own, and is left to its lease
    assert files_below(first.job_folder.run()) == before


def run_pipeline(out: Path | str, *flags: str) -> None:
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions(list(flags)))
    _ = pipeline | beam.Create([{"x": i} for i in range(50)]) | BatchDicts(10) | WriteShards(str(out), SCHEMA)
    pipeline.run().wait_until_finish()


@pytest.mark.parametrize("dies", ["put_if_absent", "tidy"])
def test_a_finish_that_died_on_its_way_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    inner = build_stages.finish

    class DiedError(BaseException):
        pass

    def twice(*args: Any) -> Any:
        args = (*args[:2], list(args[2]))
        with monkeypatch.context() as patched:
            patched.setattr(
                run if dies == "put_if_absent" else commit, dies, lambda *args: (_ for _ in ()).throw(DiedError())
            )
            with pytest.raises(DiedError):
                inner(*args)
        first = inner(*args)
        assert inner(*args) == first
        return first

    monkeypatch.setattr(build_stages, "finish", twice)
    run_pipeline(tmp_path / "out")
    assert recordmill.verify(tmp_path / "out") == []
    assert load(tmp_path / "out").records == {"train": 50}


@pytest.mark.sweep
def test_a_graph_that_runs_twice_is_two_builds(tmp_path: Path) -> None:
    pipeline = beam.Pipeline(runner=FnApiRunner())
    rows = pipeline | beam.Create([{"x": i} for i in range(50)])
    _ = rows | BatchDicts(10) | WriteShards(str(tmp_path / "out"), SCHEMA, overwrite=True)
    for generation in (1, 2):
        pipeline.run().wait_until_finish()
        assert load(tmp_path / "out", generation).records == {"train": 50}
    assert load(tmp_path / "out", 1).run["id"] != load(tmp_path / "out", 2).run["id"]


@pytest.mark.sweep
def test_worker_processes_and_repeated_bundles_on_a_disk_and_in_a_store(tmp_path: Path, store: Store) -> None:
    flags = ("--direct_running_mode=multi_processing", "--direct_num_workers=2", "--direct_runner_bundle_repeat=1")
    for out in (str(tmp_path / "out"), f"{store.root}/out"):
        run_pipeline(out, *flags)
        manifest = load(out)
        assert manifest.records == {"train": 50}
        assert recordmill.verify(out) == []
        assert {name.split("/")[0] for name in files_below(out) if name[:5] == "data-"} == {manifest.parts[0].folder}
        assert not [name for name in files_below(out) if f"_run-{manifest.run['id']}" in name]
        assert sorted(recordmill.open(out).to_numpy()["x"].tolist()) == list(range(50))


def test_what_is_written_can_be_read_in_a_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_pipeline(tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    found: list[int] = []
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        batches = pipeline | ReadShards("out", ["x"])
        assert batches.element_type.__name__ == "RecordBatch"
        _ = batches | beam.Map(lambda batch: sorted(batch.column("x").to_pylist())) | beam.Map(found.extend)
    assert sorted(found) == list(range(50)) or not found  # the runner may hand over copies
    pipeline = beam.Pipeline(runner=FnApiRunner())
    batches = pipeline | ReadShards(["out"])
    _ = batches | WriteShards(str(tmp_path / "again"), SCHEMA)
    result = pipeline.run()
    result.wait_until_finish()
    assert load(tmp_path / "again").parts[0].splits == load(tmp_path / "out").parts[0].splits
    counters = {(one.key.step, one.key.metric.name): one.committed for one in result.metrics().query()["counters"]}
    assert sum(count for (_, name), count in counters.items() if name == "records_read") == 100
    assert counters["WriteShards/Shard/MakeShards", "records_written"] == 50
    for wrong, message in ((["y"], "no such feature"), (["x"], "no such file")):
        with pytest.raises(Exception, match=message), beam.Pipeline(runner=FnApiRunner()) as pipeline:
            _ = pipeline | ReadShards("out" if wrong == ["y"] else "nothing", wrong)


@pytest.mark.sweep
def test_inputs_are_named_from_where_the_graph_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_pipeline(tmp_path / "out")
    (shard,) = (tmp_path / "out").glob("data-*/*.tfrecord")
    (tmp_path / "list.txt").write_text(f"{shard.relative_to(tmp_path)}\n")
    monkeypatch.chdir(tmp_path)
    pipeline = beam.Pipeline(runner=FnApiRunner())
    given = ("out", Path("out"), f"file://{tmp_path}/out", "out/data-*/*.tfrecord", "@list.txt", ["./out"])
    for number, inputs in enumerate(given):
        _ = pipeline | f"{number}" >> ReadShards(inputs)
    monkeypatch.chdir("/")
    result = pipeline.run()
    result.wait_until_finish()
    counters = result.metrics().query(beam.metrics.MetricsFilter().with_name("records_read"))["counters"]
    assert [one.committed for one in counters] == [50] * len(given)


def test_collections_that_have_no_end_or_windows_are_refused(tmp_path: Path) -> None:
    pipeline = beam.Pipeline(runner=FnApiRunner())
    batches = pipeline | beam.Create([{"x": 1}]) | BatchDicts() | beam.WindowInto(beam.window.FixedWindows(10))
    with pytest.raises(UsageError, match="global window"):
        _ = batches | WriteShards(str(tmp_path / "out"), SCHEMA)
    with pytest.raises(Exception, match="RecordBatch"):
        _ = beam.Pipeline(runner=FnApiRunner()) | beam.Create([1, 2]) | WriteShards(str(tmp_path / "out"), SCHEMA)
    assert os.listdir(tmp_path) == []
