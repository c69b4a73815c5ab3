"""The preflight refuses what would fail on an engine and says what to change; local workers are
really asked.
"""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from kit.files import files_in
from kit.flink_server import flink_server
from kit.store_server import STRANGER, Store, of_s3, s3_server, settings
from kit.web_files import served

import recordmill
from recordmill.base.errors import UsageError
from recordmill.commands.main import run
from recordmill.pipelines.beam_run import check_runner
from recordmill.pipelines.build import build, submit
from recordmill.pipelines.remote.cluster import check_cluster, refuse_findings, with_parallelism
from recordmill.pipelines.remote.preflight import doctor
from recordmill.pipelines.remote.submission import pipeline_options
from recordmill.shards.manifest import load_manifest
from recordmill.transforms.probe import ProbeRequest, probe_worker

PROCESS = (
    "--environment_type=PROCESS",
    '--environment_config={"command": "/opt/recordmill-worker"}',
)


@pytest.mark.parametrize(
    ("change", "flags", "says"),
    [
        ({"managers": 0, "slots": 0, "free": 0}, PROCESS, "there is no TaskManager; start one"),
        (
            {"free": 1},
            (*PROCESS, "--parallelism=2"),
            "2 are needed, 1 of 2 free.*use --parallelism=1",
        ),
        ({}, ("--environment_type=LOOPBACK",), "LOOPBACK serves one TaskManager, and there are 2"),
        ({}, ("--environment_type=EXTERNAL",), "name the worker pool"),
        ({}, ("--environment_type=PROCESS",), "names no command"),
        ({}, (), "recordmill is not installed; name one that has it"),
        ({}, (*PROCESS, "--flink_job_server_jar=/nowhere.jar"), "/nowhere.jar is not there"),
    ],
)
def test_each_refusal_of_the_preflight_has_a_remedy(
    change: dict[str, int], flags: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    jar = tmp_path / "job-server.jar"
    make_jar(jar, "flink-1.19")
    with flink_server() as server:
        vars(server).update(change)
        given = (f"--flink_master={server.url}", f"--flink_job_server_jar={jar}", *flags)
        with pytest.raises(UsageError, match=says):
            refuse_findings(check_cluster("FlinkRunner", pipeline_options("FlinkRunner", given)))


def make_jar(path: Path, engine: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            f"META-INF/maven/org.apache.beam/beam-runners-{engine}/pom.properties", "version=2.62.0"
        )


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ("flink-1.19", ""),
        ("flink-2.0", "is for Flink 2.0, the cluster is 1.19"),
        ("spark-3", "job server for spark"),
    ],
)
def test_job_server_jar_of_another_engine_is_refused(
    tmp_path: Path, engine: str, says: str
) -> None:
    jar = tmp_path / "job-server.jar"
    make_jar(jar, engine)
    with flink_server() as server:
        options = pipeline_options(
            "FlinkRunner",
            (f"--flink_master={server.url}", f"--flink_job_server_jar={jar}", *PROCESS),
        )
        wrong = [str(found) for found in check_cluster("FlinkRunner", options) if not found.ok]
    assert len(wrong) == bool(says)
    assert says in "".join(wrong)


def test_silent_master_and_missing_jar_are_reported() -> None:
    options = pipeline_options(
        "FlinkRunner", ("--flink_master=127.0.0.1:9", "--flink_job_server_jar=/no.jar", *PROCESS)
    )
    found = check_cluster("FlinkRunner", options)
    assert [one.what for one in found if not one.ok] == ["Flink", "job server"]
    with pytest.raises(
        UsageError, match=r"127.0.0.1:9 does not answer .*; start Flink, or name its REST address"
    ):
        refuse_findings(found)


def test_parallelism_defaults_to_the_free_slots() -> None:
    with flink_server() as server:
        master = f"--flink_master={server.url}"
        assert with_parallelism(
            "FlinkRunner", (master,), pipeline_options("FlinkRunner", (master,))
        )[1:] == ("--parallelism=2",)
        for given in (("--parallelism=1",), ("--parallelism", "1")):
            flags = (master, *given)
            assert (
                with_parallelism("FlinkRunner", flags, pipeline_options("FlinkRunner", flags))
                == flags
            )


def test_probe_of_a_worker_reports_what_it_does_not_see(tmp_path: Path) -> None:
    there, token = tmp_path / "a.csv", tmp_path / "token"
    there.write_text("x\n1\n")
    token.write_text("mine")
    seen = probe_worker(0, ProbeRequest(str(token), "mine", ((str(there), 4),)))
    assert (seen["out"], seen["inputs"]) == ("", "")
    assert (
        "another folder of that name" in probe_worker(0, ProbeRequest(str(token), "yours"))["out"]
    )
    assert "No such file" in probe_worker(0, ProbeRequest(str(tmp_path / "none"), "x"))["out"]
    assert (
        "4 bytes there, 5 here"
        in probe_worker(0, ProbeRequest(inputs=((str(there), 5),)))["inputs"]
    )


def about_out(out: Path | str, overwrite: bool = False) -> tuple[bool, str]:
    """What doctor says of OUT, where no worker can be asked."""
    flags = ("--flink_master=127.0.0.1:9", *PROCESS)
    found = doctor(out=out, runner="FlinkRunner", beam_args=flags, overwrite=overwrite)
    (about,) = (finding for finding in found if finding.what == "OUT")
    return about.ok, str(about)


def test_unusable_out_is_reported_with_a_remedy(tmp_path: Path, store: Store) -> None:
    data = build({"x": [1, 2]}, tmp_path / "data").out
    far = build({"x": [1, 2]}, f"{store.root}/data").out
    for out in (data, far):
        assert about_out(out) == (
            False,
            f"OUT: {out} already holds a data set; overwrite=True replaces it (the old one stays readable until the "
            "new one is complete)",
        )
        assert about_out(out, True) == (
            True,
            f"OUT: {out}: can be written to, holds a data set, which would be replaced",
        )
    for out in (tmp_path / "new", f"{store.root}/new"):
        assert about_out(out) == (True, f"OUT: {out}: can be written to, holds no data set")
    before = store.keys()
    with settings(**of_s3(store.endpoint, ACCESS_KEY_ID=STRANGER)):
        assert about_out(f"{store.root}/new")[1].endswith("or allow this one to be written to")
    assert (store.keys(), [path.name for path in tmp_path.iterdir()]) == (before, ["data"])
    assert not [key for key in before if "_run-" in key]


@pytest.mark.sweep
def test_workers_without_the_settings_of_a_store_are_reported(store: Store, tmp_path: Path) -> None:
    harness = f"{sys.executable} -m apache_beam.runners.worker.sdk_worker_main"
    worker = tmp_path / "worker"
    worker.write_text(
        f'#!/bin/sh\nunset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY\nexec {harness} "$@"\n'
    )
    worker.chmod(0o755)
    given = ("--job_endpoint=embed", "--environment_type=beam:env:harness_subprocess_python:v1")
    object_in = store.put("in.csv", b"x\n1\n")
    for command, wrong in ((harness, 0), (worker, 2)):
        flags = (*given, f"--environment_config={command}")
        found = doctor(object_in, f"{store.root}/out", runner="PortableRunner", beam_args=flags)
        told = [str(finding) for finding in found if not finding.ok]
        assert len(told) == wrong
        assert all(
            "does not see it" in one and "give the workers the store's settings" in one
            for one in told
        )
    assert store.keys() == ["in.csv"]


@pytest.mark.parametrize(
    ("runner", "flags", "says"),
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
    tmp_path: Path, runner: str | None, flags: tuple[str, ...], says: str
) -> None:
    source = tmp_path / "a.csv"
    source.write_text("x\n1\n")
    with pytest.raises(UsageError, match=says):
        submit(
            source, tmp_path / "out", runner=runner, beam_args=flags, header=True, preflight=False
        )
    assert not (tmp_path / "out").exists()


ROOT = Path(__file__).resolve().parents[3]
FLAGS = (
    "--project=p",
    "--region=r",
    "--temp_location=gs://bucket/tmp",
    "--sdk_container_image=image",
)


def test_local_folder_is_refused_for_dataflow(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(UsageError, match="Dataflow's workers see no disk of this machine"):
        recordmill.build(
            tmp_path / "a.csv",
            tmp_path / "out",
            header=True,
            runner="DataflowRunner",
            beam_args=FLAGS,
        )
    assert not (tmp_path / "out").exists()


JOBS = "/v1b3/projects/project/locations/region/jobs"


@dataclass
class Service:
    """jobs: as they were submitted. flags: by which `DataflowRunner` stages below `folder` and asks
    at `url`.
    """

    url: str
    folder: Path
    jobs: list[dict[str, Any]] = field(default_factory=list)

    @property
    def flags(self) -> tuple[str, ...]:
        where = ("--project=project", "--region=region", f"--temp_location={self.folder}")
        return (*where, "--no_auth", f"--dataflow_endpoint={self.url}")

    def staged(self) -> dict[str, Path]:
        """Name to path of what the job's workers are to get."""
        return {path.name: path for path in self.folder.rglob("*") if path.is_file()}


@contextmanager
def dataflow(folder: Path) -> Iterator[Service]:
    """The service; folder: stands for the bucket of --temp_location."""
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

    with served(Handler) as port:
        service = Service(f"http://localhost:{port}", folder)
        yield service


def install(package: Path, folder: Path) -> Path:
    """As a worker of Beam does it, which has no index to ask and builds with what is there."""
    how = (
        "--quiet",
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--disable-pip-version-check",
    )
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *how, "--target", folder, package], check=True
    )
    return folder


@pytest.mark.sweep
def test_staged_job_of_dataflow_builds_what_one_machine_builds(tmp_path: Path) -> None:
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
        subprocess.run(
            [*command, staged["pipeline.pb"], installed], check=True, cwd="/", env=elsewhere
        )
        (job,) = service.jobs
        assert job["name"] == submitted.runs[0].job
        assert job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"] == str(
            staged["pipeline.pb"]
        )
        assert recordmill.verify(out) == []
        manifest = load_manifest(out)
        assert manifest.fingerprint == one.manifest.fingerprint
        made, wanted = (
            files_in(each, about.parts[0].folder)
            for each, about in ((out, manifest), (one.out, one.manifest))
        )
        assert {**made, "inputs.jsonl": b""} == {**wanted, "inputs.jsonl": b""}


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


@pytest.mark.parametrize(
    ("runner", "flags", "says"),
    [
        ("FlinkRunner", ["--object-reuse"], "unknown option --object-reuse"),
        (None, ["--paralelism=2"], "unknown option --paralelism=2"),
        ("FlinkRunner", ["--num-shard=8"], "unknown option --num-shard=8.*--num-shards"),
        ("FlinkRuner", [], 'runner="FlinkRuner": there are .*; did you mean FlinkRunner'),
        ("my.Runner", [], "No module named 'my'"),
    ],
)
def test_mistyped_beam_flag_names_the_closest_one(
    runner: str | None, flags: list[str], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        check_runner(runner, flags)


def test_stray_word_is_reported_without_the_flags_of_beam(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["--runner=FlinkRunner", "--object_reuse", "--flink_master", "host:8081"]
    with pytest.raises(SystemExit):
        run(["build", "a.csv", "--out", "out", *flags, "b.csv"])
    assert "unrecognized arguments: b.csv;" in capsys.readouterr().err


def test_beam_args_as_one_text_are_refused(tmp_path: Path) -> None:
    for call in (recordmill.build, recordmill.read):
        with pytest.raises(
            UsageError, match=r"must be a list, not a text: beam_args=\['--a', '--b'\]"
        ):
            call("in.csv", tmp_path / "out", runner="FlinkRunner", beam_args="--a --b")


def test_doctor_names_the_option_in_a_finding_as_a_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build([{"x": 1}], tmp_path / "out")
    words = ["doctor", "--runner=FlinkRunner", "--flink_master=127.0.0.1:9"]
    assert run([*words, "--out", str(tmp_path / "out"), "--json"]) == 1
    (finding,) = (one for one in json.loads(capsys.readouterr().out) if one["what"] == "OUT")
    assert finding["detail"] == f"{tmp_path / 'out'} already holds a data set"
    assert finding["remedy"].startswith("--overwrite replaces it")
    assert run([*words, "--out", str(tmp_path / "out")]) == 1
    assert "already holds a data set; --overwrite replaces it" in capsys.readouterr().out
