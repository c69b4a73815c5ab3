"""A real S3 server on loopback, and the settings by which this process and its children reach it.

`.ci/servers` installs it once, in the user's cache; without it these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from recordmill.storage import files
from recordmill.storage.stores import client
from recordmill.storage.stores.objects import ObjectStorage

KEY, SECRET = "test-key", "test-secret-of-the-store"
BUCKET = "bucket"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "recordmill", "servers")


@dataclass
class Store:
    """An S3 server with one bucket. endpoint: its URL; client: obstore's, for what the tests put there themselves."""

    endpoint: str
    client: Any

    def put(self, key: str, data: bytes) -> str:
        """A new object; gives its URI."""
        import obstore

        obstore.put(self.client, key, data)
        return f"s3://{BUCKET}/{key}"

    def put_folder(self, folder: Path, prefix: str) -> str:
        """All files below a folder as objects below the prefix; gives its URI."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return f"s3://{BUCKET}/{prefix}"


def find_server(name: str) -> str:
    """The server's program; skips the test where there is none."""
    found = shutil.which(name, path=f"{_CACHE}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"no {name}: .ci/servers installs it, where Go is there")
    return found


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def settings(endpoint: str, **others: str) -> Iterator[None]:
    """The process's settings of S3 are these, and no others, meanwhile; connections made before are forgotten."""
    before = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    given = {"ACCESS_KEY_ID": KEY, "SECRET_ACCESS_KEY": SECRET, "REGION": "us-east-1", "ALLOW_HTTP": "true"}
    given |= {"ENDPOINT_URL": endpoint, "CONFIG_FILE": os.devnull, "SHARED_CREDENTIALS_FILE": os.devnull, **others}
    for name in before:
        del os.environ[name]
    os.environ.update({f"AWS_{name}": value for name, value in given.items() if value})
    _forget()
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]
        os.environ.update(before)
        _forget()


def _forget() -> None:
    client._clients.clear()
    files._OBJECTS.__init__()  # type: ignore[misc]
    assert isinstance(files._OBJECTS, ObjectStorage)


@contextmanager
def s3_server(folder: Path) -> Iterator[Store]:
    """versitygw over an empty folder, whose sub-folders are buckets."""
    from obstore.store import S3Store

    program = find_server("versitygw")
    (folder / BUCKET).mkdir(parents=True)
    port = free_port()
    keys = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [program, "--port", f"127.0.0.1:{port}", "posix", str(folder)],
            env={**os.environ, **keys},
            stdout=log,
            stderr=log,
        )
    try:
        _wait_for(port, process)
        endpoint = f"http://127.0.0.1:{port}"
        with settings(endpoint):
            yield Store(endpoint, S3Store(BUCKET, client_options={"allow_http": True}))
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert process.poll() is None, "the server has ended"
        with socket.socket() as asked:
            if asked.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the server does not listen")
