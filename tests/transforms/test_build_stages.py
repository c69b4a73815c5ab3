"""Stages of a build may run twice or in several processes. The result is the same."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to
from kit.child_processes import X_SCHEMA
from kit.store_server import Store
from kit.write_pipelines import beam, run_pipeline

import recordmill
from recordmill.base.progress import Progress
from recordmill.building import commit
from recordmill.building.sorted_run import Histogram
from recordmill.shards import run as runs
from recordmill.shards.manifest import load_manifest
from recordmill.storage.folders import find_files
from recordmill.transforms import BatchDicts, WriteShards, build_stages
from recordmill.transforms.build_stages import (
    HISTOGRAMS,
    ElementNumbers,
    IngestUnitGroup,
    add_histograms,
    list_empty_shards,
    list_merges,
    pack_shard_numbers,
    write_shard_attempts,
)


@pytest.mark.parametrize("failing", ["put_if_absent", "finish_output"])
def test_commit_that_died_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    commit_once = build_stages.commit_shared_build

    class DiedError(BaseException):
        pass

    def die_then_commit(*args: Any) -> Any:
        args = (*args[:2], list(args[2]))
        with monkeypatch.context() as patched:
            patched.setattr(
                runs if failing == "put_if_absent" else commit,
                failing,
                lambda *args: (_ for _ in ()).throw(DiedError()),
            )
            with pytest.raises(DiedError):
                commit_once(*args)
        first = commit_once(*args)
        assert commit_once(*args) == first
        return first

    monkeypatch.setattr(build_stages, "commit_shared_build", die_then_commit)
    run_pipeline(tmp_path / "out")
    assert recordmill.verify(tmp_path / "out") == []
    assert load_manifest(tmp_path / "out").records == {"train": 50}


@pytest.mark.sweep
def test_pipeline_that_runs_twice_makes_two_generations(tmp_path: Path) -> None:
    pipeline = beam.Pipeline(runner=FnApiRunner())
    rows = pipeline | beam.Create([{"x": i} for i in range(50)])
    _ = rows | BatchDicts(10) | WriteShards(str(tmp_path / "out"), X_SCHEMA, overwrite=True)
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


def histogram(*records: int) -> Histogram:
    total = Histogram.zeros(1, len(records))
    total.records[:] = np.array([records])
    return total


def test_numbers_are_generated_when_the_job_runs() -> None:
    with beam.Pipeline(runner=FnApiRunner()) as pipeline:
        assert_that(pipeline | ElementNumbers(5), equal_to([0, 1, 2, 3, 4]))


def test_sum_of_histograms_skips_empty_ones() -> None:
    total = add_histograms(iter([None, histogram(1, 2), None, histogram(10, 20)]))
    assert total is not None
    assert total.records.tolist() == [[11, 22]]
    assert add_histograms([None, None]) is None
    assert add_histograms([]) is None


@pytest.mark.parametrize(
    ("count", "is_local", "packs"),
    [(3, True, [(0, 1, 2)]), (3, False, [(0,), (1,), (2,)]), (0, True, [()]), (0, False, [])],
)
def test_shards_are_packed_for_threads_or_workers(
    count: int, is_local: bool, packs: list[tuple[int, ...]]
) -> None:
    plan: Any = SimpleNamespace(num_shards=count)
    assert list(pack_shard_numbers(plan, is_local)) == packs


def test_only_empty_shards_are_listed() -> None:
    def attempt(records: int) -> Any:
        info = SimpleNamespace(records=records)
        return SimpleNamespace(shard=SimpleNamespace(split_id=1, index=7, info=info))

    assert list(list_empty_shards(attempt(0))) == [(1, 7)]
    assert list(list_empty_shards(attempt(1))) == []


def test_plan_without_merges_is_not_loaded() -> None:
    assert list(list_merges(SimpleNamespace(num_merges=0))) == []  # type: ignore[arg-type]


class Folder:
    """Folder of a job without a lease."""

    def work(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def test_bundle_outputs_one_histogram_for_all_its_unit_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = {
        group: SimpleNamespace(
            unit_group=group,
            records_read=5,
            rejected=SimpleNamespace(total=1),
            sorted_runs=[0, 0],
        )
        for group in range(3)
    }
    monkeypatch.setattr(
        build_stages,
        "ingest_unit_group",
        lambda plan, group, progress: (results[group], histogram(group, 1)),
    )
    step, plan = IngestUnitGroup(), SimpleNamespace(job_folder=Folder())
    for groups, records in (((0, 1, 2), [3, 3]), ((2,), [2, 1])):
        step.start_bundle()
        outputs = [output for group in groups for output in step.process(group, plan, Progress())]  # type: ignore[arg-type]
        assert outputs == [results[group] for group in groups]
        (tagged,) = step.finish_bundle()
        assert tagged.tag == HISTOGRAMS  # type: ignore[attr-defined]
        assert tagged.value.value.records.tolist() == [records]  # type: ignore[attr-defined]
    step.start_bundle()
    assert list(step.finish_bundle()) == []


def test_attempts_of_shards_are_written_on_the_threads_of_the_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write(plan: Any, shard_plan: Any, number: int, progress: Progress) -> Any:
        progress.advance(number)
        info = SimpleNamespace(records=number, bytes=10 * number)
        return SimpleNamespace(shard=SimpleNamespace(info=info, index=number))

    monkeypatch.setattr(build_stages, "write_shard_attempt", write)
    plan: Any = SimpleNamespace(job_folder=Folder(), load=lambda: SimpleNamespace(threads=2))
    shard_plan: Any = SimpleNamespace(records=6)
    progress = Progress()
    attempts = list(write_shard_attempts((3, 1, 2), shard_plan, plan, progress))
    assert [attempt.shard.index for attempt in attempts] == [3, 1, 2]
    assert (progress.stage, progress.total, progress.records) == ("write", 6, 6)
