"""Dataflow, as far as it goes without a network: up to the job that its service is asked to run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from dataflow_service import dataflow
from store_server import s3_server

import recordmill
from recordmill.base.errors import UsageError
from recordmill.pipelines.build import submit
from recordmill.shards.manifest import load
from recordmill.storage.files import read_range
from recordmill.storage.folders import files_below, join

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ("--project=p", "--region=r", "--temp_location=gs://bucket/tmp", "--sdk_container_image=image")


def test_a_folder_of_this_machine_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(UsageError, match="Dataflow's workers see no disk of this machine"):
        recordmill.build(tmp_path / "a.csv", tmp_path / "out", header=True, runner="DataflowRunner", beam_args=FLAGS)
    assert not (tmp_path / "out").exists()


def install(package: Path, folder: Path) -> Path:
    """As a worker of Beam does it, which has no index to ask and builds with what is there."""
    how = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", "install", *how, "--target", folder, package], check=True)
    return folder


def files(out: str | Path, folder: str) -> dict[str, bytes]:
    found = files_below(join(str(out), folder))
    return {name: read_range(path).tobytes() for name, path in found.items() if name != "inputs.jsonl"}


@pytest.mark.sweep
def test_what_is_staged_and_submitted_builds_what_one_machine_builds(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", reason="a package is made by it")
    rows = "a,b\n" + "".join(f"{at},row {at}\n" for at in range(3000))
    (tmp_path / "in.csv").write_text(rows)
    options = {"num_shards": 3, "splits": "train=0.8,test=0.2", "name": "same"}
    one = recordmill.build(tmp_path / "in.csv", tmp_path / "one", **options)
    with s3_server(tmp_path / "store") as store, dataflow(tmp_path / "bucket") as service:
        source, out = store.put("in/in.csv", rows.encode()), f"{store.root}/out"
        flags = (*service.flags, f"--setup_file={ROOT / 'setup.py'}")
        submitted = submit(source, out, runner="DataflowRunner", beam_args=flags, **options)
        staged = service.staged()
        installed = install(staged["workflow.tar.gz"], tmp_path / "installed")
        assert len(list(installed.rglob("*.py"))) > 300
        elsewhere = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [sys.executable, "-P", Path(__file__).with_name("run_staged.py")]
        subprocess.run([*command, staged["pipeline.pb"], installed], check=True, cwd="/", env=elsewhere)
        (job,) = service.jobs
        assert job["name"] == submitted.runs[0].job
        assert job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"] == str(staged["pipeline.pb"])
        assert recordmill.verify(out) == []
        manifest = load(out)
        assert manifest.fingerprint == one.manifest.fingerprint
        assert files(out, manifest.parts[0].folder) == files(one.out, one.manifest.parts[0].folder)
