"""Jobs that would fail on an engine are refused with a remedy.

A job that is staged for Dataflow builds the same files as this process.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from kit.files import files_in
from kit.preflights import PROCESS
from kit.store_server import s3_server
from kit.web_files import serve_requests

import recordmill
from recordmill.base.errors import UsageError
from recordmill.pipelines.beam_run import check_runner
from recordmill.pipelines.build import submit
from recordmill.shards.manifest import load_manifest


@pytest.mark.parametrize(
    ("runner", "flags", "message"),
    [
        (None, (), "needs an engine: give runner="),
        (
            "FlinkRunner",
            ("--environment_type=LOOPBACK", "--job_endpoint=localhost:1"),
            "workers are threads of this process",
        ),
        ("FlinkRunner", PROCESS, "use --flink_submit_uber_jar"),
        ("PrismRunner", (), "Prism and its job end with this process"),
    ],
)
def test_detach_that_cannot_continue_alone_is_refused(
    tmp_path: Path, runner: str | None, flags: tuple[str, ...], message: str
) -> None:
    source = tmp_path / "a.csv"
    source.write_text("x\n1\n")
    with pytest.raises(UsageError, match=message):
        submit(
            source, tmp_path / "out", runner=runner, beam_args=flags, header=True, preflight=False
        )
    assert not (tmp_path / "out").exists()


ROOT = Path(__file__).resolve().parents[3]


JOBS = "/v1b3/projects/project/locations/region/jobs"


@dataclass
class Service:
    """A server that acts as Dataflow.

    Attributes:
        folder: The folder for staged files, in place of a bucket.
        jobs: The requests of submitted jobs.
    """

    url: str
    folder: Path
    jobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def flags(self) -> tuple[str, ...]:
        flags = ("--project=project", "--region=region", f"--temp_location={self.folder}")
        return (*flags, "--no_auth", f"--dataflow_endpoint={self.url}")

    def staged(self) -> dict[str, Path]:
        """Returns the paths of the staged files by name."""
        return {path.name: path for path in self.folder.rglob("*") if path.is_file()}


@contextmanager
def dataflow(folder: Path) -> Iterator[Service]:
    """Runs a server that acts as Dataflow. `folder` is created in place of the bucket."""
    folder.mkdir()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path.partition("?")[0] == JOBS
            service.jobs.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self._say("JOB_STATE_PENDING")

        def do_GET(self) -> None:
            self._say("JOB_STATE_RUNNING")

        def _say(self, state: str) -> None:
            name = service.jobs[-1]["name"]
            answer = json.dumps(
                {"id": "2026-job", "name": name, "currentState": state, "projectId": "project"}
            ).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    with serve_requests(Handler) as port:
        service = Service(f"http://localhost:{port}", folder)
        yield service


def install(package: Path, folder: Path) -> Path:
    """Installs a package as a Beam worker does.

    Uses no index, and builds with the installed packages.
    """
    pip_options = (
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--disable-pip-version-check",
    )
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *pip_options, "--target", folder, package],
        check=True,
    )
    return folder


@pytest.mark.sweep
def test_staged_job_of_dataflow_builds_the_files_of_one_machine(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", reason="a package is made by it")
    rows = "a,b\n" + "".join(f"{number},row {number}\n" for number in range(3000))
    (tmp_path / "in.csv").write_text(rows)
    options = {"num_shards": 3, "splits": "train=0.8,test=0.2", "name": "same"}
    local = recordmill.build(tmp_path / "in.csv", tmp_path / "one", **options)
    with s3_server(tmp_path / "store") as store, dataflow(tmp_path / "bucket") as service:
        source, out = store.put("in/in.csv", rows.encode()), f"{store.root}/out"
        flags = (*service.flags, f"--setup_file={ROOT / 'setup.py'}")
        submitted = submit(source, out, runner="DataflowRunner", beam_args=flags, **options)
        staged = service.staged()
        installed = install(staged["workflow.tar.gz"], tmp_path / "installed")
        assert len(list(installed.rglob("*.py"))) > 300
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [sys.executable, "-P", Path(__file__).with_name("run_staged.py")]
        subprocess.run(
            [*command, staged["pipeline.pb"], installed], check=True, cwd="/", env=environment
        )
        (job,) = service.jobs
        assert job["name"] == submitted.runs[0].job
        assert job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"] == str(
            staged["pipeline.pb"]
        )
        assert recordmill.verify(out) == []
        manifest = load_manifest(out)
        assert manifest.fingerprint == local.manifest.fingerprint
        contents, expected = (
            files_in(folder, data_manifest.parts[0].folder)
            for folder, data_manifest in ((out, manifest), (local.out, local.manifest))
        )
        assert {**contents, "inputs.jsonl": b""} == {**expected, "inputs.jsonl": b""}


@pytest.mark.parametrize(
    "flag",
    [
        "--checkpointing_interval=1000",
        "--object_reuse",
        "--max_bundle_size=500",
        "--execution_mode_for_batch=BATCH_FORCED",
    ],
)
def test_flags_of_the_flink_job_server_are_accepted(flag: str) -> None:
    check_runner("FlinkRunner", [flag, "--parallelism=2", "--flink_master=localhost:8081"])
