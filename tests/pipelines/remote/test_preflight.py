"""A job that cannot work is refused before it starts, with a remedy."""

import json
import sys
import zipfile
from pathlib import Path

import pytest
from kit.flink_server import flink_server
from kit.preflights import PROCESS
from kit.store_server import STRANGER, Store, s3_settings, use_settings

import recordmill
from recordmill.base.errors import UsageError
from recordmill.commands.main import run
from recordmill.pipelines.build import build
from recordmill.pipelines.remote.cluster import check_cluster, refuse_findings
from recordmill.pipelines.remote.preflight import doctor
from recordmill.pipelines.remote.submission import pipeline_options


@pytest.mark.parametrize(
    ("change", "flags", "message"),
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
    change: dict[str, int], flags: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    jar = tmp_path / "job-server.jar"
    make_jar(jar, "flink-1.19")
    with flink_server() as server:
        vars(server).update(change)
        all_flags = (f"--flink_master={server.url}", f"--flink_job_server_jar={jar}", *flags)
        with pytest.raises(UsageError, match=message):
            refuse_findings(
                check_cluster("FlinkRunner", pipeline_options("FlinkRunner", all_flags))
            )


def make_jar(path: Path, engine: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            f"META-INF/maven/org.apache.beam/beam-runners-{engine}/pom.properties", "version=2.62.0"
        )


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("flink-1.19", ""),
        ("flink-2.0", "is for Flink 2.0, the cluster is 1.19"),
        ("spark-3", "job server for spark"),
    ],
)
def test_job_server_jar_of_another_engine_is_refused(
    tmp_path: Path, engine: str, message: str
) -> None:
    jar = tmp_path / "job-server.jar"
    make_jar(jar, engine)
    with flink_server() as server:
        options = pipeline_options(
            "FlinkRunner",
            (f"--flink_master={server.url}", f"--flink_job_server_jar={jar}", *PROCESS),
        )
        problems = [
            str(finding) for finding in check_cluster("FlinkRunner", options) if not finding.ok
        ]
    assert len(problems) == bool(message)
    assert message in "".join(problems)


def diagnose_out(out: Path | str, overwrite: bool = False) -> tuple[bool, str]:
    """Returns the finding of doctor on OUT, if no worker answers.

    Returns:
        (whether OUT is usable, the text of the finding).
    """
    flags = ("--flink_master=127.0.0.1:9", *PROCESS)
    findings = doctor(out=out, runner="FlinkRunner", beam_args=flags, overwrite=overwrite)
    (out_finding,) = (finding for finding in findings if finding.what == "OUT")
    return out_finding.ok, str(out_finding)


def test_unusable_out_is_reported_with_a_remedy(tmp_path: Path, store: Store) -> None:
    local = build({"x": [1, 2]}, tmp_path / "data").out
    in_store = build({"x": [1, 2]}, f"{store.root}/data").out
    for out in (local, in_store):
        assert diagnose_out(out) == (
            False,
            f"OUT: {out} already holds a data set; overwrite=True replaces it (the old one stays readable until the "
            "new one is complete)",
        )
        assert diagnose_out(out, True) == (
            True,
            f"OUT: {out}: can be written to, holds a data set, which would be replaced",
        )
    for out in (tmp_path / "new", f"{store.root}/new"):
        assert diagnose_out(out) == (True, f"OUT: {out}: can be written to, holds no data set")
    before = store.keys()
    with use_settings(**s3_settings(store.endpoint, ACCESS_KEY_ID=STRANGER)):
        assert diagnose_out(f"{store.root}/new")[1].endswith("or allow this one to be written to")
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
    engine_flags = (
        "--job_endpoint=embed",
        "--environment_type=beam:env:harness_subprocess_python:v1",
    )
    source = store.put("in.csv", b"x\n1\n")
    keys = store.keys()
    for command, count in ((harness, 0), (worker, 2)):
        flags = (*engine_flags, f"--environment_config={command}")
        findings = doctor(source, f"{store.root}/out", runner="PortableRunner", beam_args=flags)
        problems = [str(finding) for finding in findings if not finding.ok]
        assert len(problems) == count
        assert all(
            "does not see it" in problem and "give the workers the store's settings" in problem
            for problem in problems
        )
    assert store.keys() == keys


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


def test_doctor_names_the_option_in_a_finding_as_a_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build([{"x": 1}], tmp_path / "out")
    words = ["doctor", "--runner=FlinkRunner", "--flink_master=127.0.0.1:9"]
    assert run([*words, "--out", str(tmp_path / "out"), "--json"]) == 1
    (finding,) = (
        finding for finding in json.loads(capsys.readouterr().out) if finding["what"] == "OUT"
    )
    assert finding["detail"] == f"{tmp_path / 'out'} already holds a data set"
    assert finding["remedy"].startswith("--overwrite replaces it")
    assert run([*words, "--out", str(tmp_path / "out")]) == 1
    assert "already holds a data set; --overwrite replaces it" in capsys.readouterr().out
