"""A failed request to a store is repeated, or raises an error without secrets."""

import errno
import logging
import os
import threading
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from kit.fault_proxy import CUT as CUT_ANSWER
from kit.fault_proxy import fault_proxy
from kit.store_server import (
    BUCKET,
    SECRET,
    STRANGER,
    Store,
    azure_server,
    s3_server,
    s3_settings,
    use_settings,
)
from kit.web_files import web_files

from recordmill.__main__ import main
from recordmill.base.errors import UsageError
from recordmill.storage import files
from recordmill.storage.folders import list_names
from recordmill.storage.stores import client
from recordmill.storage.stores.address import Address
from recordmill.storage.stores.client import RequestLimit

STORES = (s3_server, azure_server)


@pytest.fixture(scope="module")
def remote(store: Store) -> str:
    for part in range(3):
        store.put(f"in/rows/r{part}.parquet", b"rows")
    store.put("in/tables/t0.csv", b"a,b\n1,2\n")
    store.put("in/notes/n1.txt", b"a line\n")
    return f"{store.root}/in"


WRONG_KEY = "the store does not know the key, or the secret is wrong"


class OddStore(BaseHTTPRequestHandler):
    """Answers all requests with its own page and no ETag, as some proxies do."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        page = b"<html>welcome</html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page)

    do_HEAD = do_PUT = do_GET

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


def test_server_that_is_not_a_store_is_reported_as_such() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), OddStore)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with use_settings(**s3_settings(f"http://127.0.0.1:{server.server_port}")):
        for call in (
            lambda: files.put_object("s3://bucket/x", b"1"),
            lambda: files.read_range("s3://bucket/x"),
        ):
            with pytest.raises(OSError, match="the answer is not from a store"):
                call()
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("num_faults", [3, 99])
def test_truncated_list_of_objects_is_requested_again(
    store: Store, remote: str, monkeypatch: pytest.MonkeyPatch, num_faults: int
) -> None:
    if not store.root.startswith("s3"):
        pytest.skip("the proxy is for the other store")
    monkeypatch.setattr(client, "time", types.SimpleNamespace(sleep=lambda _: None))
    with fault_proxy(store.endpoint) as proxy, use_settings(**s3_settings(proxy.url)):
        proxy.begin(CUT_ANSWER, range(num_faults))
        for list_objects in (
            lambda: [name for name, _ in files.iter_object_stats(f"{remote}/rows")],
            lambda: list_names(f"{remote}/rows"),
        ):
            proxy.requests.clear()
            if num_faults < client.MAX_RETRIES:
                assert list_objects() == ["r0.parquet", "r1.parquet", "r2.parquet"]
            else:
                with pytest.raises(OSError, match="the store failed, several times"):
                    list_objects()
            assert len(proxy.requests) == min(num_faults, client.MAX_RETRIES) + 1


def test_list_of_objects_resumes_after_its_last_complete_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = [f"x/{number}" for number in range(7)]
    offsets = []

    class Pages:
        def list(
            self, prefix: str, offset: str | None, chunk_size: int
        ) -> Iterator[list[dict[str, str]]]:
            previous = offset or ""
            offsets.append(previous)
            remaining = [{"path": name} for name in keys if name > previous]
            yield remaining[:3]
            if len(remaining) > 3:
                raise ValueError("Error getting list response body")

    monkeypatch.setattr(client, "time", types.SimpleNamespace(sleep=lambda _: None))
    monkeypatch.setattr(client, "get_connection", lambda address: Pages())
    assert [info["path"] for _, info in client.iter_objects(Address("s3://b", "x"))] == keys
    assert offsets == ["", "x/2", "x/5"]


NO_KEY = "no key for this bucket is in the environment, in a profile, or given by an instance role"


_OF_S3: list[tuple[dict[str, str], str, str]] = [
    ({"SECRET_ACCESS_KEY": "wrong"}, "in/tables", WRONG_KEY),
    ({"ACCESS_KEY_ID": "nobody"}, "in/tables", WRONG_KEY),
    (
        {"ACCESS_KEY_ID": STRANGER},
        "in/tables",
        "access refused: the key in use is not allowed to do that",
    ),
    (
        {"ACCESS_KEY_ID": STRANGER},
        "in/notes/n1.txt",
        "access refused: the key in use is not allowed to do that",
    ),
    ({"REGION": "eu-west-1"}, "in/tables", "is in region us-east-1: set AWS_REGION to us-east-1"),
    (
        {"REGION": "eu-west-1"},
        "in/notes/n1.txt",
        "is in region us-east-1: set AWS_REGION to us-east-1",
    ),
    (
        {"SKIP_SIGNATURE": "true"},
        "in/tables",
        "the bucket is not public, and AWS_SKIP_SIGNATURE has no key sent",
    ),
    ({}, "../no-such-bucket/in", "there is no bucket 'no-such-bucket'"),
    ({}, "../no-such-bucket/a.csv", "there is no bucket 'no-such-bucket'"),
    ({}, "nothing", "no file in this folder"),
    ({}, "in/tables/*.png", "no file matches"),
    ({"ENDPOINT_URL": "http://127.0.0.1:9"}, "in", "can't be reached"),
    ({"ALLOW_HTTP": ""}, "in", "AWS_ALLOW_HTTP=true"),
]


_OF_AZURE = [
    ({"STORAGE_ACCOUNT_KEY": "AAAA"}, "in/tables", WRONG_KEY),
    ({"STORAGE_ACCOUNT_KEY": "AAAA"}, "in/notes/n1.txt", WRONG_KEY),
    (
        {"STORAGE_ACCOUNT_KEY": "%"},
        "in/tables",
        "the key in the environment does not have the form of a key",
    ),
    (
        {"SKIP_SIGNATURE": "true"},
        "in/tables",
        "the bucket is not public, and AZURE_SKIP_SIGNATURE has no key sent",
    ),
    ({}, "../no-such-bucket/in", "there is no bucket 'no-such-bucket'"),
]


@pytest.mark.parametrize(
    ("scheme", "changes", "path", "message"),
    [*(("s3", *case) for case in _OF_S3), *(("az", *case) for case in _OF_AZURE)],
)
def test_wrong_address_or_key_is_reported_in_a_sentence(
    store: Store,
    remote: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    scheme: str,
    changes: dict[str, str],
    path: str,
    message: str,
) -> None:
    if not store.root.startswith(scheme):
        pytest.skip("of the other store")
    current = {name: value for name, value in os.environ.items() if name.startswith("AZURE_")}
    environment = (
        s3_settings(store.endpoint, **changes)
        if scheme == "s3"
        else current | {f"AZURE_{key}": changes[key] for key in changes}
    )
    monkeypatch.setattr(client, "MAX_RETRIES", 1)
    caplog.set_level(logging.DEBUG)
    uri = f"{scheme}://{path[3:]}" if path.startswith("../") else f"{store.root}/{path}"
    commands = [["build", uri, "--out", str(tmp_path / "out")], ["inspect", uri]]
    if not {"nothing", "in/tables/*.png"} & {path}:
        (tmp_path / "a.csv").write_text("a\n1\n")
        commands.append(["build", str(tmp_path / "a.csv"), "--out", f"{uri}/out"])
    with use_settings(**environment):
        for command in commands:
            assert main(command) in (1, 2)
            output = capsys.readouterr()
            assert message in output.err, output.err
            assert output.err.count("\n") == 1
            assert SECRET not in output.err + output.out + caplog.text
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_missing_key_is_reported(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    # Neither service of an instance has keys: the server answers 404 to all requests.
    with web_files(Path("/nonexistent")) as server:
        azure_variables = {
            "AZURE_STORAGE_ACCOUNT_NAME": "a",
            "AZURE_MSI_ENDPOINT": server.url,
            "IDENTITY_ENDPOINT": server.url,
        }
        s3_variables = {
            "AWS_METADATA_ENDPOINT": server.url,
            "AWS_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
        }
        s3_variables |= {
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_ALLOW_HTTP": "true",
            "AZURE_ALLOW_HTTP": "true",
        }
        monkeypatch.setattr(client, "MAX_RETRIES", 0)
        with (
            use_settings(**s3_variables, **azure_variables),
            pytest.raises(PermissionError, match=NO_KEY),
        ):
            next(files.iter_object_stats(f"{scheme}://{BUCKET}/in"), None)


def test_request_limit_holds_for_all_threads() -> None:
    limit, lock = RequestLimit(3), threading.Lock()
    num_running, max_running, barrier = 0, 0, threading.Barrier(3)

    def request() -> None:
        nonlocal num_running, max_running
        with limit.acquire():
            with lock:
                num_running += 1
                max_running = max(max_running, num_running)
            barrier.wait(30)  # three requests are sent at the same time
            with lock:
                num_running -= 1

    with ThreadPoolExecutor(9) as threads:
        for future in [threads.submit(request) for _ in range(9)]:
            future.result()
    assert max_running == 3


def test_nested_request_of_a_thread_uses_its_own_slots() -> None:
    limit = RequestLimit(2)
    with limit.acquire(5) as outer_slots:
        with limit.acquire() as inner_slots:
            assert (outer_slots, inner_slots) == (2, 2)
        with ThreadPoolExecutor(1) as threads:
            request = threads.submit(acquire_once, limit)
            assert not wait([request], timeout=0.05).done
            limit.set_max(3)
            assert request.result(30) == 1
    with limit.acquire(5) as num_slots:
        assert num_slots == 3


def acquire_once(limit: RequestLimit) -> int:
    with limit.acquire() as num_slots:
        return num_slots


CONFIG = """[default]
region = eu-west-1
aws_access_key_id = config-key
aws_secret_access_key = config-secret
[profile work]
region = eu-north-1
"""
CREDENTIALS = """[default]
aws_access_key_id = key
aws_secret_access_key = secret
[work]
aws_access_key_id = work-key
aws_secret_access_key = work-secret
aws_session_token = work-token
"""
WORK = {
    "region": "eu-north-1",
    "access_key_id": "work-key",
    "secret_access_key": "work-secret",
    "session_token": "work-token",
}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {"region": "eu-west-1", "access_key_id": "key", "secret_access_key": "secret"}),
        ({"AWS_PROFILE": "work"}, WORK),
        ({"AWS_PROFILE": "work", "AWS_SKIP_SIGNATURE": "1"}, {"region": "eu-north-1"}),
        ({"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "own"}, {}),
        (
            {"AWS_SHARED_CREDENTIALS_FILE": os.devnull, "AWS_DEFAULT_REGION": "us-east-1"},
            {"access_key_id": "config-key", "secret_access_key": "config-secret"},
        ),
    ],
)
def test_settings_of_profiles_are_used_unless_the_environment_has_them(
    tmp_path: Path, environment: dict[str, str], expected: dict[str, str]
) -> None:
    (tmp_path / "config").write_text(CONFIG)
    (tmp_path / "credentials").write_text(CREDENTIALS)
    variables = {
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        **environment,
    }
    with use_settings(**variables):
        assert client._profile_settings() == expected


def test_profile_without_keys_or_in_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(CONFIG)
    paths = {"AWS_CONFIG_FILE": str(config), "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    with (
        use_settings(**paths, AWS_PROFILE="work"),
        pytest.raises(UsageError, match=r"AWS_PROFILE=work: .*have no keys of that profile"),
    ):
        client._profile_settings()
    config.write_bytes(b"[default]\nregion = \xff\n")
    with (
        use_settings(**paths),
        pytest.raises(UsageError, match=f"{config}: can't be read as the AWS command line writes"),
    ):
        client._profile_settings()


@pytest.mark.parametrize(
    ("text", "error_number", "message"),
    [
        ("Error: dns error: no such host", errno.EHOSTUNREACH, "the store's name is unknown"),
        ("tcp connect error", errno.ECONNREFUSED, "the store can't be reached"),
        ("operation timed out", errno.ETIMEDOUT, "the store did not answer within 60 s"),
        ("server error, status 500", errno.EIO, "the store failed (500), several times"),
        (
            "<Error><Code>SlowDown</Code></Error> (503 Service Unavailable)",
            errno.EIO,
            "the store failed (503 SlowDown), several times",
        ),
        ("status 403", errno.EACCES, "the key in use is not allowed to do that in this bucket"),
        (
            "<Code>PermanentRedirect</Code><Region>eu-west-3</Region>",
            errno.EREMOTE,
            "the bucket is in region eu-west-3: set AWS_REGION to eu-west-3",
        ),
        (
            "<Code>PermanentRedirect</Code>",
            errno.EREMOTE,
            "the bucket is in another region: set AWS_REGION to it",
        ),
    ],
)
def test_error_of_a_request_becomes_a_sentence_without_its_text(
    text: str, error_number: int, message: str
) -> None:
    from obstore.exceptions import GenericError

    error = client.to_store_error(
        GenericError(f"{text} for secret-url\n\nDebug source:\nsecret settings"),
        Address("s3://bucket", "folder/a"),
    )
    assert error.errno == error_number
    assert message in (error.strerror or "")
    assert error.filename == "s3://bucket/folder/a"
    assert "secret" not in str(error)
