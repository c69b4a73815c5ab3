"""Builds on an engine whose workers are processes that share only OUT."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import fault_proxy
from store_server import Store, of_s3, settings

beam = pytest.importorskip("apache_beam", reason="engines are reached through Apache Beam")

import recordmill  # noqa: E402
from recordmill.base.errors import RecordmillError  # noqa: E402
from recordmill.storage.files import read_range  # noqa: E402
from recordmill.storage.folders import files_below, join  # noqa: E402

HARNESS = f"{sys.executable} -m apache_beam.runners.worker.sdk_worker_main"
FLAGS = ("--job_endpoint=embed", "--environment_type=beam:env:harness_subprocess_python:v1",
         f"--environment_config={HARNESS}")  # fmt: skip
ENGINE: dict[str, Any] = {"runner": "PortableRunner", "beam_args": FLAGS, "preflight": False}
OPTIONS: dict[str, Any] = {"num_shards": 3, "splits": "train=0.8,test=0.2", "max_rejects": 3, "name": "same"}


def of(build: recordmill.BuildResult) -> dict[str, bytes]:
    found = files_below(join(str(build.out), build.manifest.parts[0].folder))
    return {name: read_range(path).tobytes() for name, path in found.items()}


@pytest.mark.sweep
def test_workers_that_are_processes_write_into_a_store_what_one_machine_writes(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.csv").write_text("a,b\n" + "".join(f"{at},row {at}\n" for at in range(3000)) + "x,y,z\n")
    monkeypatch.chdir(tmp_path)
    one = recordmill.build("in.csv", tmp_path / "one", **OPTIONS)
    far = recordmill.build("in.csv", f"{store.root}/far", runner="PortableRunner", beam_args=FLAGS, **OPTIONS)
    near = recordmill.build("in.csv", "near", **ENGINE, **OPTIONS)
    assert of(one) == of(far) == of(near)
    assert one.manifest.fingerprint == far.manifest.fingerprint == near.manifest.fingerprint
    for out in (far.out, near.out):
        assert not [name for name in files_below(str(out)) if name.startswith("_run-")]
        assert recordmill.verify(out) == []
        assert far.rejected == 1
    with fault_proxy(store.endpoint) as proxy, settings(**of_s3(proxy.url)):
        proxy.delay_sec = 0.01
        recordmill.build("in.csv", f"{store.root}/few", storage_requests=1, **ENGINE, **OPTIONS)
        assert proxy.most <= 2  # the driver and a worker, one each
    memory = recordmill.build({"x": list(range(50))}, f"{store.root}/memory", **ENGINE)
    assert sorted(recordmill.open(memory.out).to_numpy()["x"].tolist()) == list(range(50))
    with pytest.raises(RecordmillError, match="1 of 3001 records were rejected"):
        recordmill.build("in.csv", f"{store.root}/failed", **ENGINE)
    assert not files_below(f"{store.root}/failed")
    assert not [name for name in os.listdir(tmp_path) if name.startswith("_run-")]


@pytest.mark.sweep
@pytest.mark.parametrize("to", ["parquet", "npy"])
def test_workers_that_are_processes_write_the_files_of_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    (tmp_path / "in.csv").write_text("a,b\n" + "".join(f"{at},row {at}\n" for at in range(3000)))
    monkeypatch.chdir(tmp_path)
    recordmill.build("in.csv", "data", splits="train=0.8,test=0.2", num_shards=2)
    one = recordmill.read("data", "one", to=to, file_size=20_000)
    # the input and OUT are named from here, and the workers stand elsewhere
    away = (
        "import os, runpy, sys; os.chdir('/'); runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
    )
    worker = tmp_path / "worker"
    worker.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{away}" apache_beam.runners.worker.sdk_worker_main "$@"\n')
    worker.chmod(0o755)
    flags = (*FLAGS[:2], f"--environment_config={worker}")
    far = recordmill.read(
        "data", "far", to=to, file_size=20_000, runner="PortableRunner", beam_args=flags, preflight=False
    )
    assert (far.records, far.read) == (one.records, 3000)
    found = [
        {name: read_range(path).tobytes() for name, path in files_below(str(result.out)).items()}
        for result in (one, far)
    ]
    assert len(found[0]) > 4
    assert found[0] == found[1]
    assert not [name for name in os.listdir(far.out) if name.startswith("_run-")]
