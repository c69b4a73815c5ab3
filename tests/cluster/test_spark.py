"""Builds and reads on a Spark of two hosts: the bytes are those of one process, also after an executor was killed."""

import signal
from pathlib import Path

import pytest
from conftest import fit_and_compare, shards, tree
from driver import Driver, run
from hosts import wait
from spark_hosts import SparkHosts

import recordmill as package

pytestmark = pytest.mark.cluster


def test_a_table_gives_the_same_shards(spark: SparkHosts, table: Path, built: Path, tmp_path: Path) -> None:
    """With the look beforehand, which finds both hosts."""
    run("build", "csv", table, "--out", tmp_path / "out", "--num-shards=6", "--splits=train=0.8,test=0.2", *spark.flags)
    assert shards(tmp_path / "out") == shards(built)
    assert package.verify(tmp_path / "out") == []


def test_images_give_the_same_shards(spark: SparkHosts, images: Path, tmp_path: Path) -> None:
    package.build(images, tmp_path / "local", num_shards=3)
    run("build", "images", images, "--out", tmp_path / "out", "--num-shards=3", "--no-preflight", *spark.flags)
    assert shards(tmp_path / "out") == shards(tmp_path / "local")


def test_a_transform_is_fitted_there_and_its_build(spark: SparkHosts, table: Path, tmp_path: Path) -> None:
    fit_and_compare(table, tmp_path, "--no-preflight", *spark.flags)


@pytest.mark.parametrize("to", ["parquet", "npy"])
def test_a_read_gives_the_same_files(spark: SparkHosts, built: Path, tmp_path: Path, to: str) -> None:
    run("read", built, "--out", tmp_path / "local", "--to", to)
    run("read", built, "--out", tmp_path / "out", "--to", to, "--no-preflight", *spark.flags)
    assert tree(tmp_path / "out") == tree(tmp_path / "local")


def test_a_build_that_workers_do_not_see_is_refused(spark: SparkHosts, table: Path) -> None:
    code, err = Driver("build", "csv", table, "--out", spark.hidden / "out", "--quiet", *spark.flags).end()
    assert code == 2
    (line,) = err.splitlines()
    assert "does not see it" in line
    assert not (spark.hidden / "out").exists()


def test_a_killed_executor_changes_no_byte(spark: SparkHosts, table: Path, built: Path, tmp_path: Path) -> None:
    """The engine repeats what was lost, beside what the workers of the dead executor may still write."""
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


def test_a_killed_driver_ends_its_job(spark: SparkHosts, table: Path, built: Path, tmp_path: Path) -> None:
    """Its job server, which is the application's driver, ends with it; what it wrote is in nobody's way."""
    out = tmp_path / "out"
    options = ("csv", table, "--out", out, "--num-shards=6", "--splits=train=0.8,test=0.2", *spark.flags)
    driver = Driver("build", *options, "--no-preflight")
    driver.wait_for(lambda: any(out.glob("_run-*/runs/[!.]*")))
    driver.stop(signal.SIGKILL)
    wait(lambda: not spark.executors(2) + spark.executors(3), 120, "the end of the job")
    assert not list(out.glob("manifest*"))
    run("build", *options, "--no-preflight")
    assert shards(out) == shards(built)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_driver_that_is_stopped_ends_its_job_and_leaves_nothing(
    spark: SparkHosts, table: Path, tmp_path: Path, signum: int
) -> None:
    out = tmp_path / "out"
    driver = Driver("build", "csv", table, "--out", out, "--no-preflight", *spark.flags)
    driver.wait_for(lambda: any(out.glob("_run-*/runs/[!.]*")))
    code, err = driver.stop(signum)
    assert code == 130
    assert "nothing was written" in err
    assert not out.exists()


def test_what_a_worker_says_is_all_that_is_said(spark: SparkHosts, tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_text('{"x": 1}\n' * 5)
    package.build(tmp_path / "good.jsonl", tmp_path / "good")
    source = tmp_path / "a.jsonl"
    source.write_text('{"x": 1}\n' * 500 + '{"x": [1, 2]}\n')
    options = ("--out", tmp_path / "out", "--schema", tmp_path / "good" / "schema.pbtxt", "--no-preflight", "--quiet")
    code, err = Driver("build", "jsonl", source, *options, *spark.flags).end()
    assert code == 1
    (line,) = err.splitlines()
    assert "line 501" in line
    trace = Path(line.rpartition("all that the engine said: ")[2].rstrip(")"))
    assert "Traceback (most recent call last)" in trace.read_text()
    trace.unlink()
    assert not (tmp_path / "out").exists()
