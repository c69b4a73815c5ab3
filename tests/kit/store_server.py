"""Real servers of S3 and Azure on loopback, and the settings that reach them.

`.ci/servers` installs the servers.
"""

import base64
import hashlib
import hmac
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from recordmill.storage import files
from recordmill.storage.stores import client
from recordmill.storage.stores.client import DEFAULT_MAX_REQUESTS, REQUEST_LIMIT
from recordmill.storage.stores.objects import ObjectStorage

KEY, SECRET = "test-key", "test-secret-of-the-store"
STRANGER = "stranger"  # a key of the S3 server with the same secret, but without permissions
BUCKET = "bucket"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "recordmill", "servers")


@dataclass
class Store:
    """A server with one bucket.

    Attributes:
        root: URI of the bucket.
        endpoint: URL of the server.
        client: obstore's client, which the tests use to write and read objects.
    """

    root: str
    endpoint: str
    client: Any

    def put(self, key: str, data: bytes) -> str:
        """Writes a new object. Returns its URI."""
        import obstore

        obstore.put(self.client, key, data)
        return f"{self.root}/{key}"

    def keys(self) -> list[str]:
        """Returns the keys of all objects."""
        import obstore

        return [entry["path"] for page in obstore.list(self.client) for entry in page]

    def objects(self, out: str) -> dict[str, bytes]:
        """Returns the contents of all objects below a URI, by their relative keys."""
        import obstore

        prefix = out.partition(f"{BUCKET}/")[2]
        keys = [entry["path"] for page in obstore.list(self.client, prefix) for entry in page]
        return {
            key[len(prefix) + 1 :]: bytes(obstore.get(self.client, key).bytes()) for key in keys
        }

    def put_folder(self, folder: Path, prefix: str) -> str:
        """Writes all files below a folder as objects below the prefix. Returns its URI."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return f"{self.root}/{prefix}"


def find_server(name: str) -> str:
    """Returns the path of the server's program. Skips the test if it is missing."""
    path = shutil.which(
        name, path=os.pathsep.join((str(_CACHE), f"{_CACHE}/node_modules/.bin", os.environ["PATH"]))
    )
    if path is None:
        pytest.skip(f"no {name}: .ci/servers installs it, where Go and npm are there")
    return path


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


@contextmanager
def use_settings(**variables: str) -> Iterator[None]:
    """Replaces the process's store settings inside the `with` block.

    Earlier connections are forgotten.
    """
    saved = _store_settings()
    for name in saved:
        del os.environ[name]
    os.environ.update({name: value for name, value in variables.items() if value})
    _reset_connections()
    try:
        yield
    finally:
        for name in _store_settings():
            del os.environ[name]
        os.environ.update(saved)
        _reset_connections()


def _store_settings() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if name.startswith(("AWS_", "AZURE_"))
    }


def s3_settings(endpoint: str, **overrides: str) -> dict[str, str]:
    """Returns the settings for an S3 server.

    Args:
        endpoint: URL of the server.
        overrides: Settings that are added or replaced, without the prefix `AWS_`.
    """
    variables = {
        "ACCESS_KEY_ID": KEY,
        "SECRET_ACCESS_KEY": SECRET,
        "REGION": "us-east-1",
        "ALLOW_HTTP": "true",
    }
    variables |= {
        "ENDPOINT_URL": endpoint,
        "CONFIG_FILE": os.devnull,
        "SHARED_CREDENTIALS_FILE": os.devnull,
        **overrides,
    }
    return {f"AWS_{name}": value for name, value in variables.items()}


def _reset_connections() -> None:
    client._connections.clear()
    REQUEST_LIMIT.set_max(DEFAULT_MAX_REQUESTS)
    files._OBJECT_STORAGE.__init__()  # type: ignore[misc]
    assert isinstance(files._OBJECT_STORAGE, ObjectStorage)


@contextmanager
def s3_server(folder: Path, host: str = "127.0.0.1") -> Iterator[Store]:
    """Runs versitygw over an empty folder. Its subfolders are the buckets."""
    from obstore.store import S3Store

    program = find_server("versitygw")
    (folder / BUCKET).mkdir(parents=True)
    port = free_port()
    keys = {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
    users = folder.with_name(f"{folder.name}-users")
    users.mkdir()
    stranger = {
        "access": STRANGER,
        "secret": SECRET,
        "role": "user",
        "userID": 0,
        "groupID": 0,
        "projectID": 0,
    }
    (users / "users.json").write_text(json.dumps({"accessAccounts": {STRANGER: stranger}}))
    command = [program, "--port", f"{host}:{port}", "--iam-dir", str(users), "posix", str(folder)]
    endpoint = f"http://{host}:{port}"
    with _running(command, port, folder / "log", keys, host), use_settings(**s3_settings(endpoint)):
        yield Store(
            f"s3://{BUCKET}", endpoint, S3Store(BUCKET, client_options={"allow_http": True})
        )


@contextmanager
def azure_server(folder: Path) -> Iterator[Store]:
    """Runs Azurite with its own well-known account."""
    from obstore.store import AzureStore

    program, port, account = find_server("azurite-blob"), free_port(), "devstoreaccount1"
    key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    command = [
        program,
        "--silent",
        "--disableTelemetry",
        "--skipApiVersionCheck",
        "--inMemoryPersistence",
    ]
    endpoint = f"http://127.0.0.1:{port}/{account}"
    variables = {"ENDPOINT": endpoint, "ACCOUNT_NAME": account, "ACCOUNT_KEY": key}
    with (
        _running(
            [*command, "--blobHost", "127.0.0.1", "--blobPort", str(port)], port, folder / "log", {}
        ),
        use_settings(
            AZURE_ALLOW_HTTP="true",
            **{f"AZURE_STORAGE_{name}": value for name, value in variables.items()},
        ),
    ):
        _make_container(endpoint, account, key)
        yield Store(
            f"az://{BUCKET}", endpoint, AzureStore(BUCKET, client_options={"allow_http": True})
        )


def _make_container(endpoint: str, account: str, key: str) -> None:
    """Makes a container with a signed request, because obstore can't."""
    path = f"/{account}/{BUCKET}"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    header_lines = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    signed_text = f"PUT\n{chr(10) * 11}{header_lines}/{account}{path}\nrestype:container"
    digest = hmac.new(base64.b64decode(key), signed_text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {account}:{base64.b64encode(digest).decode()}"
    headers["Content-Length"] = "0"
    request = urllib.request.Request(
        f"{endpoint}/{BUCKET}?restype=container", method="PUT", headers=headers
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 201


@contextmanager
def _running(
    command: list[str], port: int, log: Path, environment: dict[str, str], host: str = "127.0.0.1"
) -> Iterator[None]:
    with open(log, "wb") as log_file:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=log_file, stderr=log_file
        )
    try:
        _wait_for(host, port, process)
        yield
    finally:
        process.kill()
        process.wait()


def _wait_for(host: str, port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert process.poll() is None, "the server has ended"
        with socket.socket() as connection:
            if connection.connect_ex((host, port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("the server does not listen")
