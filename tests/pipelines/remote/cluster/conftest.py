"""What the tests of engines share: inputs, what one process makes of them, and the engines, each
brought up once.
"""

import hashlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import driver
import flink_hosts
import pytest
import spark_hosts
from flink_hosts import FlinkHosts
from kit.image_samples import encoded, picture
from spark_hosts import SparkHosts

import recordmill

Cluster = TypeVar("Cluster", FlinkHosts, SparkHosts)


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV file of 60,000 rows."""
    draw = random.Random(7)
    path = tmp_path_factory.mktemp("inputs") / "table.csv"
    rows = (
        f"{row},{draw.random():.6f},n{draw.randrange(500)},{draw.choice('abc')}\n"
        for row in range(60_000)
    )
    path.write_text("id,x,name,label\n" + "".join(rows))
    return path


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 60 JPEG files in two classes."""
    folder = tmp_path_factory.mktemp("images")
    for number in range(60):
        path = folder / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encoded("JPEG", picture(size=(40 + number, 30), seed=number)))
    return folder


@pytest.fixture(scope="session")
def built(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table's data set, as one process builds it."""
    out = tmp_path_factory.mktemp("local") / "out"
    recordmill.build(table, out, num_shards=6, splits={"train": 0.8, "test": 0.2})
    return out


@pytest.fixture(autouse=True)
def _drivers() -> Iterator[None]:
    """No driver outlives its test."""
    yield
    driver.end_all()


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


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """Engines over hosts of their own."""
    found = Clusters(tmp_path_factory)
    yield found
    found.bring_down()


@pytest.fixture
def flink(clusters: Clusters) -> Iterator[FlinkHosts]:
    """A Flink cluster of two hosts, with all of its slots free before the test and after it."""
    cluster = clusters.bring_up(FlinkHosts, flink_hosts.why_not)
    yield cluster
    driver.end_all()
    cluster.cancel()
    cluster.wait_for_all()


@pytest.fixture
def spark(clusters: Clusters) -> SparkHosts:
    """A Spark cluster of two hosts."""
    return clusters.bring_up(SparkHosts, spark_hosts.why_not)


@pytest.fixture(scope="session")
def prism() -> list[str]:
    """The flags of Prism; skipped where its program is not."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    found = (
        os.environ.get("PRISM")
        or shutil.which("prism")
        or str(cache / "recordmill" / "servers" / "prism")
    )
    if not Path(found).exists():
        pytest.skip(
            "no Prism: go install github.com/apache/beam/sdks/v2/go/cmd/prism@v2.77.0, and PRISM names it"
        )
    return ["--runner=PrismRunner", f"--prism_location={found}"]


@dataclass
class Engine:
    """flags: for commands that run there. hidden: a folder that its hosts have empty. live: its
    jobs.
    """

    flags: list[str]
    hidden: Path | None = None
    live: Callable[[], list[str]] = list


@pytest.fixture(scope="module", params=["prism", "flink", "spark"])
def kind_of_engine(request: pytest.FixtureRequest) -> str:
    """One after the other: the tests of an engine come together."""
    kind: str = request.param
    return kind


@pytest.fixture
def engine(kind_of_engine: str, request: pytest.FixtureRequest) -> Engine:
    found = request.getfixturevalue(kind_of_engine)
    if kind_of_engine == "prism":
        return Engine(found)
    return Engine(found.flags, found.hidden, found.live if isinstance(found, FlinkHosts) else list)


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
