"""Engines that are brought up once, and comparisons of their outputs."""

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
    """Of engines, one at a time; one that did not come up is not tried again."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._up: FlinkHosts | SparkHosts | None = None
        self._failed: dict[type, str] = {}

    def bring_up(self, kind: type[Cluster], why_not: Callable[[], str]) -> Cluster:
        """The cluster of that kind; skips the test, with the reason, where none can be had."""
        if isinstance(self._up, kind):
            return self._up
        if kind in self._failed:
            pytest.fail(f"as before: {self._failed[kind]}")
        if reason := why_not():
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
        """End what is up."""
        if self._up is not None:
            self._up.down()
        self._up = None


@dataclass
class Engine:
    """flags: for commands that run there. hidden: a folder that its hosts have empty. live: its
    jobs.
    """

    flags: list[str]
    hidden: Path | None = None
    live: Callable[[], list[str]] = list


def shards(out: Path) -> dict[str, str]:
    """Name to digest of the shards of a data set."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in out.glob("data-*/*.tfrecord*")
    }


def tree(folder: Path) -> dict[str, str]:
    """Name to digest of all files of a read but its summary."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "_read.json")
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def fit_and_compare(table: Path, folder: Path, *flags: str) -> None:
    """Builds with a transform, in one process and with these flags, give the same records in the
    same order.
    """
    pytest.importorskip("tensorflow_transform")
    steps = folder / "transform.yaml"
    steps.write_text("x: zscore\nname: {vocabulary: {top_k: 50}}\nid: drop\n")
    options = ("csv", table, "--num-shards=2", "--transform", steps)
    driver.run("build", *options, "--out", folder / "local")
    driver.run("build", *options, "--out", folder / "out", *flags)
    ours, theirs = (recordmill.open(folder / name).to_numpy() for name in ("local", "out"))
    assert (ours["name"] == theirs["name"]).all()
    assert (
        abs(ours["x"] - theirs["x"]).max() < 1e-5
    )  # a mean's last bits depend on how the records were added up
