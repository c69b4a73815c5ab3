"""Steps of `WriteShards` that an engine runs twice, in one process or several, at once or after a death."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

beam = pytest.importorskip("apache_beam", reason="these PTransforms need Apache Beam")

from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402
from apache_beam.runners.portability.fn_api_runner import FnApiRunner  # noqa: E402

import recordmill  # noqa: E402
from recordmill.building import commit as commits  # noqa: E402
from recordmill.building import plan  # noqa: E402
from recordmill.schemas.feature import Feature, Schema  # noqa: E402
from recordmill.shards.manifest import load  # noqa: E402
from recordmill.transforms import BatchDicts, WriteShards, stages, write_shards  # noqa: E402

SCHEMA = Schema((Feature("x", "int64", required=True),))


def start(run: str, out: str, ends: Any = None) -> str:
    """A second start in a process of its own, which ends at once."""
    path = write_shards.start_run(run, WriteShards(out, SCHEMA))
    if ends is not None:
        write_shards._release_all()
    return path


def test_a_second_start_elsewhere_leaves_the_live_run_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = start("abc", str(out))
    before = Path(path).read_bytes()
    (Path(path).parent / "data" / "shard").write_bytes(b"x")
    other = multiprocessing.get_context("spawn").Process(target=start, args=("abc", str(out), True))
    other.start()
    other.join()
    assert other.exitcode == 0
    assert Path(path).read_bytes() == before
    assert (Path(path).parent / "data" / "shard").read_bytes() == b"x"
    write_shards._composed.add("abc")
    write_shards._release_all()
    assert not out.exists()


def run_pipeline(out: Path, *flags: str) -> None:
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions(list(flags)))
    _ = pipeline | beam.Create([{"x": i} for i in range(50)]) | BatchDicts(10) | WriteShards(str(out), SCHEMA)
    pipeline.run().wait_until_finish()


def test_a_finish_that_died_behind_the_data_s_rename_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = stages.conclude
    placed: list[str] = []

    def twice(*args: Any) -> Any:
        class DiedError(BaseException):
            pass

        with monkeypatch.context() as patched:
            patched.setattr(commits, "put_if_absent", lambda *args: (_ for _ in ()).throw(DiedError()))
            patched.setattr(commits, "_is_published", lambda *args: True)  # as if the process had ended there
            patched.setattr(commits, "_tidy", lambda *args: (_ for _ in ()).throw(DiedError()))
            with pytest.raises(DiedError):
                inner(*args)
        placed.extend(path.name for path in (tmp_path / "out").glob("data-*"))
        first = inner(*args)
        assert inner(*args) == first
        return first

    monkeypatch.setattr(stages, "conclude", twice)
    run_pipeline(tmp_path / "out")
    assert len(placed) == 1
    assert recordmill.verify(tmp_path / "out") == []
    assert load(tmp_path / "out").records == {"train": 50}


def test_a_finish_that_is_repeated_when_all_is_removed_gives_what_was_committed(tmp_path: Path) -> None:
    run_pipeline(tmp_path / "out")
    manifest = load(tmp_path / "out")
    plan._load_plan.cache_clear()
    plan._saved.clear()
    again = stages.finish_build([], [], [], str(tmp_path / "out" / f"_run-{manifest.run['id']}" / "plan.pickle"))
    assert again == manifest


def test_two_worker_processes_and_repeated_bundles(tmp_path: Path) -> None:
    run_pipeline(
        tmp_path / "out",
        "--direct_running_mode=multi_processing",
        "--direct_num_workers=2",
        "--direct_runner_bundle_repeat=1",
    )
    assert load(tmp_path / "out").records == {"train": 50}
    assert recordmill.verify(tmp_path / "out") == []
    assert [name for name in os.listdir(tmp_path / "out") if name.startswith("data-")] == [
        load(tmp_path / "out").parts[0].folder
    ]
