"""Builds and reads on a Flink of two hosts: the bytes are those of one process, also after a worker or a TaskManager
was killed; what is stopped is gone, and nothing of a live job is removed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import shards, tree
from driver import Driver, recordmill, run
from flink_hosts import POOL, FlinkHosts, wait

import recordmill as package

pytestmark = pytest.mark.cluster


def test_a_table_gives_the_same_shards(flink: FlinkHosts, table: Path, built: Path, tmp_path: Path) -> None:
    """With the look beforehand, which finds both hosts."""
    run("build", "csv", table, "--out", tmp_path / "out", "--num-shards=6", "--splits=train=0.8,test=0.2", *flink.flags)
    assert shards(tmp_path / "out") == shards(built)
    assert package.verify(tmp_path / "out") == []
    assert flink.live() == []


def test_images_give_the_same_shards(flink: FlinkHosts, images: Path, tmp_path: Path) -> None:
    package.build(images, tmp_path / "local", num_shards=3)
    run("build", "images", images, "--out", tmp_path / "out", "--num-shards=3", "--no-preflight", *flink.flags)
    assert shards(tmp_path / "out") == shards(tmp_path / "local")


@pytest.mark.parametrize("to", ["parquet", "npy"])
def test_a_read_of_a_relative_path_gives_the_same_files(
    flink: FlinkHosts, built: Path, tmp_path: Path, to: str
) -> None:
    run("read", built, "--out", tmp_path / "local", "--to", to)
    run("read", built.name, "--out", tmp_path / "out", "--to", to, "--no-preflight", *flink.flags, cwd=built.parent)
    assert tree(tmp_path / "out") == tree(tmp_path / "local")


def test_doctor_asks_workers_of_pools_and_says_what_they_do_not_see(flink: FlinkHosts, table: Path) -> None:
    """The folder is there for this process, and empty on the TaskManagers' hosts."""
    pools = ("--environment_type=EXTERNAL", f"--environment_config=localhost:{POOL}")
    flags = [flag for flag in flink.flags if "environment" not in flag]
    said, err = recordmill("doctor", table, "--out", flink.hidden / "out", *flags, *pools)
    assert "ok  slots: 4 of 4 free, on 2 TaskManagers" in said, err
    assert "NO  --out: a worker on" in said
    assert "name a folder that all workers see" in said
    assert "NO  INPUT" not in said
    assert not (flink.hidden / "out").exists()


def test_a_build_that_workers_could_not_see_is_refused(flink: FlinkHosts, table: Path) -> None:
    code, err = Driver("build", "csv", table, "--out", flink.hidden / "out", "--quiet", *flink.flags).end()
    assert code == 2
    assert "does not see it" in err
    assert "name a folder that all workers see" in err
    assert not (flink.hidden / "out").exists()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_driver_that_is_stopped_ends_its_job_and_leaves_nothing(
    flink: FlinkHosts, table: Path, tmp_path: Path, signum: int
) -> None:
    out = tmp_path / "out"
    driver = Driver("build", "csv", table, "--out", out, "--no-preflight", *flink.flags)
    driver.wait_for(lambda: bool(flink.live()) and any(flink.workers(2) + flink.workers(3)))
    code, err = driver.stop(signum)
    assert flink.live() == []
    assert code == 130
    assert "nothing was written" in err
    assert not out.exists()


def test_a_killed_driver_takes_nothing_from_its_job(
    flink: FlinkHosts, table: Path, built: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = ("csv", table, "--out", out, "--num-shards=6", "--splits=train=0.8,test=0.2")
    driver = Driver("build", *options, "--no-preflight", *flink.flags, "--flink_submit_uber_jar")
    driver.wait_for(lambda: any(out.glob("_run-*/runs/[!.]*")))
    driver.stop(signal.SIGKILL)
    (job,) = flink.live()
    (folder,) = out.glob("_run-*")
    assert f"{job}: running" in recordmill("status", out)[0]
    recordmill("clean", out, "--remove")
    assert any((folder / "shared").iterdir())
    wait(lambda: flink.live() == [], 120, "the end of the job")
    assert shards(out) == shards(built)  # it committed by itself
    package.clean(out, remove=True)
    assert not folder.exists()
    assert package.verify(out) == []


def kill_worker(flink: FlinkHosts) -> None:
    for pid in flink.workers(2)[:1] or flink.workers(3)[:1]:
        os.kill(pid, signal.SIGKILL)


def kill_host(flink: FlinkHosts) -> None:
    flink.kill_task_manager(3)


@pytest.mark.parametrize("kill", [kill_worker, kill_host])
def test_what_is_killed_changes_no_byte(
    flink: FlinkHosts, table: Path, built: Path, tmp_path: Path, kill: Callable[[FlinkHosts], None]
) -> None:
    """The engine repeats what was lost, beside what zombies may still write."""
    out = tmp_path / "out"
    options = ("csv", table, "--out", out, "--num-shards=6", "--splits=train=0.8,test=0.2")
    driver = Driver("build", *options, "--no-preflight", *flink.flags)
    try:
        driver.wait_for(lambda: any(out.glob("_run-*/runs/[!.]*")))
        kill(flink)
        code, err = driver.end()
    finally:
        if kill is kill_host:
            flink.start_task_manager(3)
            wait(lambda: flink.ask("/overview")["taskmanagers"] == 2, 60, "TaskManagers")
    assert code == 0, err
    assert shards(out) == shards(built)
    assert package.verify(out) == []
    assert not list(out.glob("_run-*"))


def test_a_detached_build_goes_on_by_itself(flink: FlinkHosts, table: Path, built: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("csv", table, "--out", out, "--num-shards=6", "--splits=train=0.8,test=0.2")
    run("build", *options, "--detach", "--no-preflight", *flink.flags, "--flink_submit_uber_jar")
    assert ": running" in recordmill("status", out)[0]
    wait(lambda: flink.live() == [], 120, "the end of the job")
    assert shards(out) == shards(built)
    assert "generation 1: train " in recordmill("status", out)[0]


def test_what_a_worker_says_is_the_sentence_and_the_trace_a_file(flink: FlinkHosts, tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_text('{"x": 1}\n' * 5)
    package.build(tmp_path / "good.jsonl", tmp_path / "good")
    source = tmp_path / "a.jsonl"
    source.write_text('{"x": 1}\n' * 500 + '{"x": [1, 2]}\n')
    options = ("--out", tmp_path / "out", "--schema", tmp_path / "good" / "schema.pbtxt", "--no-preflight", "--quiet")
    code, err = Driver("build", "jsonl", source, *options, *flink.flags).end()
    assert code == 1
    line = err.strip().splitlines()[-1]
    assert "line 501" in line
    trace = Path(line.rpartition("all that the engine said: ")[2].rstrip(")"))
    assert "Traceback (most recent call last)" in trace.read_text()
    trace.unlink()
    assert not (tmp_path / "out").exists()
