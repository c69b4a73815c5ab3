"""A build on a Flink cluster of two hosts survives kills.

Its bytes stay the same, and other jobs are not disturbed.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from driver import Driver, recordmill, run
from engines import shards, tree
from flink_hosts import FlinkHosts, jar
from hosts import command_of, wait

import recordmill as package

pytestmark = pytest.mark.cluster


def job_servers() -> list[int]:
    """Returns the process IDs of the job servers that drivers have started."""
    pids = (int(path.name) for path in Path("/proc").glob("[0-9]*"))
    return [
        pid
        for pid in pids
        if all(word in command_of(pid) for word in (str(jar()).encode(), b"--job-port"))
    ]


@pytest.mark.parametrize("own_server", [False, True])
def test_killed_driver_harms_no_other_job(
    flink: FlinkHosts, table: Path, built: Path, tmp_path: Path, own_server: bool
) -> None:
    out = tmp_path / "out"
    options = (
        "csv",
        table,
        "--out",
        out,
        "--num-shards=6",
        "--splits=train=0.8,test=0.2",
        *flink.flags,
    )
    driver = Driver(
        "build", *options, "--no-preflight", *([] if own_server else ["--flink_submit_uber_jar"])
    )
    driver.wait_for(lambda: any(out.glob("_run-*/runs/[!.]*")))
    assert bool(job_servers()) == own_server
    driver.stop(signal.SIGKILL)
    wait(lambda: not job_servers(), 60, "the end of the job server")
    (job,) = flink.live_jobs()
    (folder,) = out.glob("_run-*")
    assert f"{job}: running" in recordmill("status", out)[0]
    recordmill("clean", out, "--remove")
    assert any((folder / "shared").iterdir())
    wait(lambda: flink.live_jobs() == [], 240, "the end of the job")
    assert shards(out) == shards(built)  # the job committed without its driver
    for path in folder.glob("*"):
        os.utime(path, (1, 1))  # as if the lease had expired
    package.clean(out, remove=True)
    assert not folder.exists()
    assert package.verify(out) == []


def kill_worker(flink: FlinkHosts) -> None:
    """Kills a worker. Waits for one, because a job may have none between its stages."""

    def is_killed() -> bool:
        for pid in flink.workers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return True
        return False

    wait(is_killed, 60, "a worker to kill")


def kill_host(flink: FlinkHosts) -> None:
    flink.kill_task_manager(3)


@pytest.mark.parametrize("kill", [kill_worker, kill_host])
def test_killed_worker_or_host_changes_no_byte(
    flink: FlinkHosts, table: Path, built: Path, tmp_path: Path, kill: Callable[[FlinkHosts], None]
) -> None:
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
    assert code == 0, err
    assert shards(out) == shards(built)
    assert package.verify(out) == []
    assert not list(out.glob("_run-*"))


def test_detached_build_continues_without_its_driver(
    flink: FlinkHosts, table: Path, built: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = ("csv", table, "--out", out, "--num-shards=6", "--splits=train=0.8,test=0.2")
    run("build", *options, "--detach", "--no-preflight", *flink.flags, "--flink_submit_uber_jar")
    assert ": running" in recordmill("status", out)[0]
    wait(lambda: flink.live_jobs() == [], 240, "the end of the job")
    assert shards(out) == shards(built)
    assert ": train " in recordmill("status", out)[0]


def find_busy_workers(flink: FlinkHosts, out: Path) -> list[int]:
    """Returns the Python workers that have a file of the run open."""
    return [
        pid
        for pid in flink.workers()
        if any("_run-" in path and str(out) in path for path in open_files(pid))
    ]


def open_files(pid: int) -> list[str]:
    paths = []
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                paths.append(os.readlink(path))
    return paths


def test_worker_that_wakes_late_changes_nothing(
    flink: FlinkHosts, table: Path, built: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = (
        "csv",
        table,
        "--out",
        out,
        "--num-shards=6",
        "--splits=train=0.8,test=0.2",
        *flink.flags,
    )
    driver = Driver("build", *options, "--no-preflight")
    zombies: list[int] = []

    def stop_busy_worker() -> bool:
        for pid in find_busy_workers(flink, out):
            os.kill(pid, signal.SIGSTOP)
            if pid in find_busy_workers(flink, out):
                zombies.append(pid)
                return True
            os.kill(pid, signal.SIGCONT)
        return False

    driver.wait_for(stop_busy_worker, every=0.01)
    host = 2 if zombies[0] in flink.workers(2) else 3
    flink.kill_task_manager(host, b"sdk_worker_main")
    flink.start_task_manager(host)
    code, err = driver.end()
    assert code == 0, err
    assert shards(out) == shards(built)
    before = tree(out)
    os.kill(zombies[0], signal.SIGCONT)
    wait(lambda: not command_of(zombies[0]), 120, "the end of the worker that woke up")
    assert tree(out) == before
    assert package.verify(out) == []
