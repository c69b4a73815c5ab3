"""A build on Spark with two hosts writes the same bytes as one process.

This holds after an executor was killed, too.
"""

import signal
from pathlib import Path

import pytest
from driver import Driver, run
from engines import shards
from hosts import wait
from spark_hosts import SparkHosts

import recordmill as package

pytestmark = pytest.mark.cluster


def test_killed_executor_changes_no_byte(
    spark: SparkHosts, table: Path, built: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = ("csv", table, "--out", out, "--num-shards=6", "--splits=train=0.8,test=0.2")
    driver = Driver("build", *options, "--no-preflight", *spark.flags)
    driver.wait_for(lambda: any(out.glob("_run-*/runs/[!.]*")))
    assert spark.executors(3)
    spark.kill_executor(3)
    code, err = driver.end()
    assert code == 0, err
    assert shards(out) == shards(built)
    assert package.verify(out) == []
    assert not list(out.glob("_run-*"))


def test_killed_driver_ends_its_job(
    spark: SparkHosts, table: Path, built: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = (
        "csv",
        table,
        "--out",
        out,
        "--num-shards=6",
        "--splits=train=0.8,test=0.2",
        *spark.flags,
    )
    driver = Driver("build", *options, "--no-preflight")
    driver.wait_for(lambda: any(out.glob("_run-*/runs/[!.]*")))
    driver.stop(signal.SIGKILL)
    wait(lambda: not spark.executors(2) + spark.executors(3), 120, "the end of the job")
    assert not list(out.glob("manifest*"))
    run("build", *options, "--no-preflight")
    assert shards(out) == shards(built)
