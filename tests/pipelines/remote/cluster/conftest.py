"""Fixtures of the tests of engines: inputs, a data set that one process built, and the engines."""

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
        path.write_bytes(encode_image("JPEG", picture(size=(40 + number, 30), seed=number)))
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
