"""Builds write the same files in this process and on engines.

The workers of these engines are processes that share nothing but OUT.
"""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from kit.fault_proxy import fault_proxy
from kit.files import files_in
from kit.store_server import Store, s3_settings, use_settings

beam = pytest.importorskip("apache_beam", reason="engines are reached through Apache Beam")

import recordmill  # noqa: E402
from recordmill.base.errors import RecordmillError  # noqa: E402
from recordmill.building import local_build  # noqa: E402
from recordmill.storage.folders import find_files  # noqa: E402
from recordmill.transforms import build_stages  # noqa: E402

HARNESS = f"{sys.executable} -m apache_beam.runners.worker.sdk_worker_main"
FLAGS = (
    "--job_endpoint=embed",
    "--environment_type=beam:env:harness_subprocess_python:v1",
    f"--environment_config={HARNESS}",
)
ENGINE: dict[str, Any] = {"runner": "PortableRunner", "beam_args": FLAGS, "preflight": False}
OPTIONS: dict[str, Any] = {
    "num_shards": 3,
    "splits": "train=0.8,test=0.2",
    "max_rejects": 3,
    "name": "same",
}


def part_files(build: recordmill.BuildResult) -> dict[str, bytes]:
    return files_in(build.out, build.manifest.parts[0].folder)


def test_local_build_writes_no_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle would run code for anybody with write access to OUT."""
    paths = []

    def check_files(*args: Any) -> Any:
        paths.extend(path for path in (tmp_path / "out").rglob("*") if path.is_file())
        assert not [path for path in paths if path.exists() and path.read_bytes()[:1] == b"\x80"]
        return commit_local_build(*args)

    commit_local_build = local_build.commit_local_build
    monkeypatch.setattr(local_build, "commit_local_build", check_files)
    recordmill.build({"x": list(range(100))}, tmp_path / "out", runner="FnApiRunner")
    assert paths
    assert not [path for path in paths if "pickle" in path.name]


@pytest.mark.sweep
@pytest.mark.parametrize("is_run_removed", [False, True])
def test_job_that_fails_after_its_commit_has_built_the_data_set(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_run_removed: bool,
) -> None:
    def lose_worker(manifest: Any, plan: Any) -> Any:
        if is_run_removed:
            plan.job_folder.open_run().remove_work_files()
        raise RecordmillError("a worker was lost")

    monkeypatch.setattr(build_stages, "clear_run", lose_worker)
    threads = {
        **ENGINE,
        "beam_args": ("--job_endpoint=embed", "--environment_type=beam:env:embedded_python:v1"),
    }
    result = recordmill.build({"x": [1, 2, 3]}, tmp_path / "out", **threads)
    assert result.records == {"train": 3}
    assert (
        "the data set is complete; its job failed after the commit: a worker was lost"
        in caplog.text
    )
    assert recordmill.verify(result.out) == []
    assert not list((tmp_path / "out").glob("_run-*"))


@pytest.mark.sweep
def test_worker_processes_write_to_a_store(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.csv").write_text(
        "a,b\n" + "".join(f"{number},row {number}\n" for number in range(3000)) + "x,y,z\n"
    )
    monkeypatch.chdir(tmp_path)
    local = recordmill.build("in.csv", tmp_path / "one", **OPTIONS)
    in_store = recordmill.build(
        "in.csv", f"{store.root}/far", runner="PortableRunner", beam_args=FLAGS, **OPTIONS
    )
    shared = recordmill.build("in.csv", "near", **ENGINE, **OPTIONS)
    assert part_files(local) == part_files(in_store) == part_files(shared)
    assert (
        local.manifest.fingerprint == in_store.manifest.fingerprint == shared.manifest.fingerprint
    )
    for result in (in_store, shared):
        assert not [name for name in find_files(str(result.out)) if name.startswith("_run-")]
        assert recordmill.verify(result.out) == []
        assert result.rejected == 1
    with fault_proxy(store.endpoint) as proxy, use_settings(**s3_settings(proxy.url)):
        proxy.delay_sec = 0.01
        recordmill.build("in.csv", f"{store.root}/few", storage_requests=1, **ENGINE, **OPTIONS)
        assert proxy.max_concurrent <= 2  # one request of the driver, one of a worker
    memory = recordmill.build({"x": list(range(50))}, f"{store.root}/memory", **ENGINE)
    assert sorted(recordmill.open(memory.out).to_numpy()["x"].tolist()) == list(range(50))
    with pytest.raises(RecordmillError, match="1 of 3001 records was rejected"):
        recordmill.build("in.csv", f"{store.root}/failed", **ENGINE)
    assert not find_files(f"{store.root}/failed")
    assert not [name for name in os.listdir(tmp_path) if name.startswith("_run-")]
