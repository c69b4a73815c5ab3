"""Engines that start once for all tests, and comparisons of their outputs."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import driver
import pytest
from flink_hosts import FlinkHosts
from spark_hosts import SparkHosts

import recordmill

Cluster = TypeVar("Cluster", FlinkHosts, SparkHosts)


class Clusters:
    """Clusters of engines. One of them runs at a time.

    A cluster that failed to start is not started again.
    """

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._up: FlinkHosts | SparkHosts | None = None
        self._failed: dict[type, str] = {}

    def bring_up(self, kind: type[Cluster], find_obstacle: Callable[[], str]) -> Cluster:
        """Returns the running cluster of a kind.

        Skips the test, with the reason, if the cluster cannot run on this machine.
        """
        if isinstance(self._up, kind):
            return self._up
        if kind in self._failed:
            pytest.fail(f"as before: {self._failed[kind]}")
        if reason := find_obstacle():
            pytest.skip(reason)
        self.bring_down()
        self._up = cluster = kind(self._folders.mktemp(kind.__name__))
        try:
            cluster.up()
        except BaseException as error:
            self._failed[kind] = f"{kind.__name__} did not come up: {error}"
            self.bring_down()
            raise
        return cluster

    def bring_down(self) -> None:
        """Ends the running cluster."""
        if self._up is not None:
            self._up.down()
        self._up = None


@dataclass
class Engine:
    """Engine for commands.

    Attributes:
        flags: The flags of commands that use the engine.
        hidden: A folder that the hosts of the workers don't see.
        live_jobs: Returns the names of the running jobs.
    """

    flags: list[str]
    hidden: Path | None = None
    live_jobs: Callable[[], list[str]] = list


def shards(out: Path) -> dict[str, str]:
    """Returns the digests of the shards of a data set, by name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in out.glob("data-*/*.tfrecord*")
    }


def tree(folder: Path) -> dict[str, str]:
    """Returns the digests of all files of a read, by path. Leaves out its summary."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "_read.json")
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def fit_and_compare(table: Path, folder: Path, *flags: str) -> None:
    """Checks that two builds with a transform write the same records in the same order.

    One build runs in one process, the other with `flags`.
    """
    pytest.importorskip("tensorflow_transform")
    steps = folder / "transform.yaml"
    steps.write_text("x: zscore\nname: {vocabulary: {top_k: 50}}\nid: drop\n")
    options = ("csv", table, "--num-shards=2", "--transform", steps)
    driver.run("build", *options, "--out", folder / "local")
    driver.run("build", *options, "--out", folder / "out", *flags)
    local, remote = (recordmill.open(folder / name).to_numpy() for name in ("local", "out"))
    assert (local["name"] == remote["name"]).all()
    # The last bits of a mean depend on the order of the additions.
    assert abs(local["x"] - remote["x"]).max() < 1e-5
