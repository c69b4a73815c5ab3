"""The stages of a build may run twice or in several processes, with the result of one run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from kit.child_processes import ONE
from kit.store_server import Store
from kit.write_pipelines import beam, run_pipeline

import recordmill
from recordmill.building import commit
from recordmill.shards import run as runs
from recordmill.shards.manifest import load_manifest
from recordmill.storage.folders import find_files
from recordmill.transforms import BatchDicts, WriteShards, build_stages


@pytest.mark.parametrize("dies", ["put_if_absent", "finish_output"])
def test_commit_that_died_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: str
) -> None:
    inner = build_stages.commit_shared_build

    class DiedError(BaseException):
        pass

    def twice(*args: Any) -> Any:
        args = (*args[:2], list(args[2]))
        with monkeypatch.context() as patched:
            patched.setattr(
                runs if dies == "put_if_absent" else commit,
                dies,
                lambda *args: (_ for _ in ()).throw(DiedError()),
            )
            with pytest.raises(DiedError):
                inner(*args)
        first = inner(*args)
        assert inner(*args) == first
        return first

    monkeypatch.setattr(build_stages, "commit_shared_build", twice)
    run_pipeline(tmp_path / "out")
    assert recordmill.verify(tmp_path / "out") == []
    assert load_manifest(tmp_path / "out").records == {"train": 50}


@pytest.mark.sweep
def test_pipeline_that_runs_twice_makes_two_generations(tmp_path: Path) -> None:
    pipeline = beam.Pipeline(runner=FnApiRunner())
    rows = pipeline | beam.Create([{"x": i} for i in range(50)])
    _ = rows | BatchDicts(10) | WriteShards(str(tmp_path / "out"), ONE, overwrite=True)
    for generation in (1, 2):
        pipeline.run().wait_until_finish()
        assert load_manifest(tmp_path / "out", generation).records == {"train": 50}
    assert (
        load_manifest(tmp_path / "out", 1).run["id"] != load_manifest(tmp_path / "out", 2).run["id"]
    )


@pytest.mark.sweep
def test_worker_processes_with_repeated_bundles_write_to_disk_and_store(
    tmp_path: Path, store: Store
) -> None:
    flags = (
        "--direct_running_mode=multi_processing",
        "--direct_num_workers=2",
        "--direct_runner_bundle_repeat=1",
    )
    for out in (str(tmp_path / "out"), f"{store.root}/out"):
        run_pipeline(out, *flags)
        manifest = load_manifest(out)
        assert manifest.records == {"train": 50}
        assert recordmill.verify(out) == []
        assert {name.split("/")[0] for name in find_files(out) if name[:5] == "data-"} == {
            manifest.parts[0].folder
        }
        assert not [name for name in find_files(out) if f"_run-{manifest.run['id']}" in name]
        assert sorted(recordmill.open(out).to_numpy()["x"].tolist()) == list(range(50))
