"""Fixtures that every test may use."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from recordmill.base import messages

if TYPE_CHECKING:
    from kit.store_server import Store

# The first call of a kernel compiles it, which takes seconds on a fresh machine. So no example has
# a deadline. Each run draws other examples, so a few per test are enough, and the suite stays below
# ten minutes.
settings.register_profile("recordmill", deadline=None, max_examples=40)
settings.load_profile("recordmill")

# A message with option names loses them in an f-string. In tests that is an error.
messages.STRICT = True

# A shell starts background jobs with SIGINT ignored, and nohup ignores SIGHUP. The children of
# tests would inherit that, so both signals get their default handlers.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real files, which is not part of the repository.

    Tests that use it are skipped if it is missing.
    """
    root = Path(
        os.environ.get(
            "RECORDMILL_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"
        )
    )
    if not root.is_dir():
        pytest.skip(
            f"no folder {root}: these tests need the shared test data, which is not part of the repository"
        )
    return root


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs the tests of a module once per server in its list `STORES`."""
    starts = getattr(metafunc.module, "STORES", ())
    if starts and "store" in metafunc.fixturenames:
        ids = [start.__name__.removesuffix("_server") for start in starts]
        metafunc.parametrize("store", starts, ids=ids, indirect=True, scope="module")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Adds marks to the tests of stores and of memory.

    Tests that need the server of a store get the mark `store`. Tests that measure memory run on
    Linux only, and are tried three times.
    """
    linux = pytest.mark.skipif(
        sys.platform != "linux", reason="the memory of a process is asked of /proc"
    )
    for item in items:
        needs_store = "store" in getattr(item, "fixturenames", ()) or "[store" in item.nodeid
        if needs_store and not item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.store)
        if item.get_closest_marker("memory"):
            item.add_marker(linux)
            item.add_marker(pytest.mark.flaky(reruns=2))


def pytest_collection_finish() -> None:
    """Exempts the objects of all test modules from garbage collection.

    Otherwise each full collection would inspect them, which takes a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Store"]:
    """Server of a store on loopback: S3, or the parameter from `STORES`.

    Skips the test if the server is not installed.
    """
    from kit.store_server import s3_server

    with getattr(request, "param", s3_server)(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture
def out(
    store: "Store", request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Folder in the store that only this test uses.

    Temporary local files go to `tmp_path`.
    """
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    name: str = request.node.originalname
    return f"{store.root}/{name}"
