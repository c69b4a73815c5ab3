"""Fixtures for tests of engines: inputs, a data set and the engines."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import driver
import flink_hosts
import pytest
import spark_hosts
from engines import Clusters, Engine
from flink_hosts import FlinkHosts
from kit.image_samples import encode_image, picture
from spark_hosts import SparkHosts

import recordmill


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CSV file of 60,000 rows."""
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
    """Folder of 60 JPEG files in two classes."""
    folder = tmp_path_factory.mktemp("images")
    for number in range(60):
        path = folder / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode_image("JPEG", picture(size=(40 + number, 30), seed=number)))
    return folder


@pytest.fixture(scope="session")
def built(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data set of the table, built by one process."""
    out = tmp_path_factory.mktemp("local") / "out"
    recordmill.build(table, out, num_shards=6, splits={"train": 0.8, "test": 0.2})
    return out


@pytest.fixture(autouse=True)
def _drivers() -> Iterator[None]:
    """Ends all drivers of a test after it."""
    yield
    driver.end_all()


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """Clusters of engines on separate hosts."""
    clusters_of_session = Clusters(tmp_path_factory)
    yield clusters_of_session
    clusters_of_session.bring_down()


@pytest.fixture
def flink(clusters: Clusters) -> Iterator[FlinkHosts]:
    """Flink cluster of two hosts. All slots are free before and after a test."""
    cluster = clusters.bring_up(FlinkHosts, flink_hosts.find_obstacle)
    yield cluster
    driver.end_all()
    cluster.cancel()
    cluster.wait_for_all()


@pytest.fixture
def spark(clusters: Clusters) -> SparkHosts:
    """Spark cluster of two hosts."""
    return clusters.bring_up(SparkHosts, spark_hosts.find_obstacle)


@pytest.fixture(scope="session")
def prism() -> list[str]:
    """Flags for Prism. Skips the test if its program is missing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    program = (
        os.environ.get("PRISM")
        or shutil.which("prism")
        or str(cache / "recordmill" / "servers" / "prism")
    )
    if not Path(program).exists():
        pytest.skip(
            "no Prism: go install github.com/apache/beam/sdks/v2/go/cmd/prism@v2.77.0, and PRISM names it"
        )
    return ["--runner=PrismRunner", f"--prism_location={program}"]


@pytest.fixture(scope="module", params=["prism", "flink", "spark"])
def kind_of_engine(request: pytest.FixtureRequest) -> str:
    """Name of an engine. The tests of one engine run one after another."""
    kind: str = request.param
    return kind


@pytest.fixture
def engine(kind_of_engine: str, request: pytest.FixtureRequest) -> Engine:
    cluster = request.getfixturevalue(kind_of_engine)
    if kind_of_engine == "prism":
        return Engine(cluster)
    return Engine(
        cluster.flags,
        cluster.hidden,
        cluster.live_jobs if isinstance(cluster, FlinkHosts) else list,
    )
