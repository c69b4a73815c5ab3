"""What is looked at before a submission: each refusal says what to change, and a local engine's workers are really
asked.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from flink_server import FlinkServer, flink_server

from recordmill.base.errors import UsageError
from recordmill.pipelines.build import submit
from recordmill.pipelines.remote.cluster import check_cluster, refuse
from recordmill.pipelines.remote.parallelism import with_parallelism
from recordmill.pipelines.remote.submission import pipeline_options
from recordmill.transforms.probe import Wanted, look

PROCESS = ("--environment_type=PROCESS", '--environment_config={"command": "/opt/recordmill-worker"}')


def nothing(server: FlinkServer) -> None:
    pass


def no_managers(server: FlinkServer) -> None:
    server.managers = server.slots = server.free = 0


def taken(server: FlinkServer) -> None:
    server.free = 1


@pytest.mark.parametrize(
    ("change", "flags", "says"),
    [
        (no_managers, PROCESS, "there is no TaskManager; start one"),
        (taken, (*PROCESS, "--parallelism=2"), "2 are needed, 1 of 2 free.*--parallelism=1"),
        (nothing, ("--environment_type=LOOPBACK",), "LOOPBACK serves one TaskManager, and there are 2"),
        (nothing, ("--environment_type=EXTERNAL",), "name the worker pool"),
        (nothing, ("--environment_type=PROCESS",), "names no command"),
        (nothing, (), "recordmill is not installed; name one that has it"),
        (nothing, (*PROCESS, "--flink_job_server_jar=/nowhere.jar"), "/nowhere.jar is not there"),
    ],
)
def test_each_refusal_says_what_to_change(
    change: Callable[[FlinkServer], None], flags: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    jar = tmp_path / "job-server.jar"
    make_jar(jar, "flink-1.19")
    with flink_server() as server:
        change(server)
        given = (f"--flink_master={server.url}", f"--flink_job_server_jar={jar}", *flags)
        with pytest.raises(UsageError, match=says):
            refuse(check_cluster("FlinkRunner", pipeline_options("FlinkRunner", given)))


def make_jar(path: Path, engine: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"META-INF/maven/org.apache.beam/beam-runners-{engine}/pom.properties", "version=2.62.0")


@pytest.mark.parametrize(
    ("engine", "says"),
    [("flink-1.19", ""), ("flink-2.0", "is for Flink 2.0, the cluster is 1.19"), ("spark-3", "job server for spark")],
)
def test_the_jar_is_held_against_the_cluster(tmp_path: Path, engine: str, says: str) -> None:
    jar = tmp_path / "job-server.jar"
    make_jar(jar, engine)
    with flink_server() as server:
        options = pipeline_options(
            "FlinkRunner", (f"--flink_master={server.url}", f"--flink_job_server_jar={jar}", *PROCESS)
        )
        wrong = [str(found) for found in check_cluster("FlinkRunner", options) if not found.ok]
    assert len(wrong) == bool(says)
    assert says in "".join(wrong)


def test_a_master_that_does_not_answer_is_said_and_a_jar_that_is_not_there() -> None:
    options = pipeline_options(
        "FlinkRunner", ("--flink_master=127.0.0.1:9", "--flink_job_server_jar=/no.jar", *PROCESS)
    )
    found = check_cluster("FlinkRunner", options)
    assert [one.what for one in found if not one.ok] == ["Flink", "job server"]
    with pytest.raises(UsageError, match=r"127.0.0.1:9 gives no answer .*; start Flink, or name its REST address"):
        refuse(found)


def test_as_many_slots_are_used_as_are_free_unless_it_is_said() -> None:
    with flink_server() as server:
        master = f"--flink_master={server.url}"
        assert with_parallelism("FlinkRunner", (master,), pipeline_options("FlinkRunner", (master,)))[1:] == (
            "--parallelism=2",
        )
        for given in (("--parallelism=1",), ("--parallelism", "1")):
            flags = (master, *given)
            assert with_parallelism("FlinkRunner", flags, pipeline_options("FlinkRunner", flags)) == flags


def test_a_worker_says_what_it_does_not_see(tmp_path: Path) -> None:
    there, token = tmp_path / "a.csv", tmp_path / "token"
    there.write_text("x\n1\n")
    token.write_text("mine")
    seen = look(0, Wanted(str(token), "mine", ((str(there), 4),)))
    assert (seen["out"], seen["inputs"]) == ("", "")
    assert "another folder of that name" in look(0, Wanted(str(token), "yours"))["out"]
    assert "No such file" in look(0, Wanted(str(tmp_path / "none"), "x"))["out"]
    assert "4 bytes there, 5 here" in look(0, Wanted(inputs=((str(there), 5),)))["inputs"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "give runner="),
        (("--environment_type=LOOPBACK", "--job_endpoint=localhost:1"), "workers are threads of this process"),
        (PROCESS, "give --flink_submit_uber_jar"),
    ],
)
def test_what_could_not_go_on_alone_is_not_detached(tmp_path: Path, flags: tuple[str, ...], says: str) -> None:
    source = tmp_path / "a.csv"
    source.write_text("x\n1\n")
    runner = "FlinkRunner" if flags else None
    with pytest.raises(UsageError, match=says):
        submit(source, tmp_path / "out", runner=runner, beam_args=flags, header=True, preflight=False)
    assert not (tmp_path / "out").exists()
