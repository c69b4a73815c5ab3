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

# The first call of a kernel compiles it, which takes seconds on a fresh machine: no example has a
# deadline. Each run draws other examples, so that few of each keep the whole suite within ten
# minutes.
settings.register_profile("recordmill", deadline=None, max_examples=40)
settings.load_profile("recordmill")

# An f-string over a message that names options is an error in tests: it would lose the options.
messages.STRICT = True

# A shell starts what it runs in the background with SIGINT ignored, and nohup ignores SIGHUP;
# children would inherit that, and get both here.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real files that the repository does not hold; tests that want it skip where it
    is absent.
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
    """The tests of a module that says STORES run with each of these servers as their `store`."""
    starts = getattr(metafunc.module, "STORES", ())
    if starts and "store" in metafunc.fixturenames:
        ids = [start.__name__.removesuffix("_server") for start in starts]
        metafunc.parametrize("store", starts, ids=ids, indirect=True, scope="module")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests that need a store's server; those that measure memory need Linux and are tried
    three times.
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
    """What the modules of all tests hold stays: a collection of garbage that looks at it each time
    takes a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Store"]:
    """A server of S3, or what the module says in STORES, on loopback; skips where it is not
    installed.
    """
    from kit.store_server import s3_server

    with getattr(request, "param", s3_server)(tmp_path_factory.mktemp("store")) as server:
        yield server


@pytest.fixture
def out(
    store: "Store", request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A folder of the test's own in the store; what is prepared for it lies in a folder of the
    test's own, too.
    """
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    name: str = request.node.originalname
    return f"{store.root}/{name}"
