"""The connection to a bucket or host, by the settings of its platform (environment, AWS profiles, instance roles), one
in each process; what stores answer, as Python's errors; and how many requests this process may have under way at once.
"""

from __future__ import annotations

import configparser
import contextlib
import datetime
import errno
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from recordmill.base.errors import UsageError
from recordmill.storage.stores.address import HADOOP, Address
from recordmill.storage.stores.hadoop import Hadoop, HadoopError
from recordmill.storage.stores.protocol import Connection, ObjectInfo, Response

if TYPE_CHECKING:
    from obstore.store import ObjectStore

LIST_PAGE_OBJECTS = 1000  # objects that a store lists in an answer
DEFAULT_MAX_REQUESTS = 64  # by default
CONNECT_SEC, REQUEST_SEC = 10, 60  # a request's time-outs; a slow one is repeated
MAX_RETRIES, RETRY_SEC = 6, 120  # of a request that can be repeated, with backoff and jitter
_CREDENTIAL_VARIABLES = (  # where one of these is set, profiles are not looked at
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_SKIP_SIGNATURE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_VARIABLE_PREFIXES = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}  # of the settings' names
_ERROR_CODE = re.compile(r"<Code>(\w+)</Code>")
_REGION = re.compile(r"<Region>([a-z0-9-]{2,40})</Region>")
# who is asked for a key where the environment has none
_CREDENTIAL_SERVICES = (
    "169.254.169.254",
    "169.254.170.2",
    "/latest/api/token",
    "metadata.google.internal",
    "token request",
)
_HTTP_STATUS = re.compile(r"status (?:code: )?(\d{3})\b|\((\d{3}) [A-Z]")
_WRONG_KEY_CODES = {
    "InvalidAccessKeyId",
    "XAdminUserNotFound",
    "SignatureDoesNotMatch",
    "AuthenticationFailed",
    "InvalidAuthenticationInfo",
}
_WRONG_REGION_CODES = {
    "PermanentRedirect",
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
}
_NO_STORE_MESSAGE = "what answered is no store{}: look at the endpoint, and at proxies before it"
_Result = TypeVar("_Result")


class ObstoreConnection:
    """See `Connection`; store: obstore's, whose methods it calls."""

    max_copy_bytes: int | None = 5 << 30  # 5 GiB: what stores copy by one request

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def head(self, key: str) -> ObjectInfo:
        return self._store.head(key)

    def probe(self, key: str) -> None:
        self._store.get_range(key, start=0, end=1)

    def get(self, key: str, byte_range: tuple[int, int] | None = None) -> Response:
        return self._store.get(key, options=None if byte_range is None else {"range": byte_range})

    def list_pages(self, key: str, start_after: str = "") -> Iterator[Sequence[ObjectInfo]]:
        return self._store.list(
            key or None, offset=start_after or None, chunk_size=LIST_PAGE_OBJECTS
        )

    def list_keys(self, key: str) -> list[str]:
        listing = self._store.list_with_delimiter(key or None)
        return [*listing["common_prefixes"], *(info["path"] for info in listing["objects"])]

    def put(self, key: str, data: bytes) -> None:
        self._store.put(key, data, use_multipart=False)

    def create(self, key: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            self._store.put(key, data, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    def upload(
        self, key: str, data: str | Iterator[bytes], part_bytes: int, concurrency: int
    ) -> None:
        source = Path(data) if isinstance(data, str) else data
        self._store.put(key, source, chunk_size=part_bytes, max_concurrency=concurrency)

    def delete(self, keys: Sequence[str], root: str) -> None:
        self._store.delete(list(keys))

    def move_or_copy(self, key: str, target: str) -> None:
        self._store.copy(key, target)


class RequestLimit:
    """Slots for requests; who has one may ask again within it. Safe to share between threads."""

    def __init__(self, max_requests: int = DEFAULT_MAX_REQUESTS) -> None:
        self.max_requests = max_requests
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """This process was forked: whoever had slots in the other one does not give them back here."""
        self._num_used = 0
        self._slots_freed, self._thread = threading.Condition(), threading.local()

    def set_max(self, max_requests: int) -> None:
        """From now on so many; those that are under way go on."""
        with self._slots_freed:
            self.max_requests = max_requests
            self._slots_freed.notify_all()

    @contextlib.contextmanager
    def acquire(self, num_slots: int = 1) -> Iterator[int]:
        """Wait for so many slots, or for all that there are; gives how many these are."""
        if getattr(self._thread, "num_slots", 0):
            yield self._thread.num_slots
            return
        with self._slots_freed:
            self._slots_freed.wait_for(
                lambda: self._num_used + min(num_slots, self.max_requests) <= self.max_requests
            )
            self._thread.num_slots = min(num_slots, self.max_requests)
            self._num_used += self._thread.num_slots
        try:
            yield self._thread.num_slots
        finally:
            with self._slots_freed:
                self._num_used -= self._thread.num_slots
                self._thread.num_slots = 0
                self._slots_freed.notify_all()


REQUEST_LIMIT = RequestLimit()  # of this process
os.register_at_fork(after_in_child=REQUEST_LIMIT.reset_after_fork)


_connections: dict[str, Connection] = {}
_lock = threading.Lock()
_connected_pids: set[int] = (
    set()
)  # the process that has connections, and the ones that it was forked from


def send_request(address: Address, request: Callable[[Connection], _Result]) -> _Result:
    """Returns what the request gives of the address's client.

    Raises:
        OSError: with one sentence that says what is wrong; FileNotFoundError and PermissionError among them.
    """
    try:
        with REQUEST_LIMIT.acquire():
            return request(get_connection(address))
    except request_errors() as error:
        raise to_store_error(error, address) from None  # its own text may hold what was sent


def iter_objects(address: Address) -> Iterator[tuple[str, ObjectInfo]]:
    """Yields (name there, what the store says) of objects below the address; a page that fails is asked for anew."""
    last_key, prefix = "", f"{address.key}/" if address.key else ""
    pages: Iterator[Sequence[ObjectInfo]] | None = None

    def next_page(client: Connection) -> Sequence[ObjectInfo] | None:
        nonlocal pages
        if pages is None:
            pages = client.list_pages(address.key, last_key)
        try:
            return next(pages, None)
        except Exception:
            pages = None
            raise

    while page := send_list_request(address, next_page):
        for info in page:
            if info["path"].startswith(prefix):
                yield info["path"][len(prefix) :], info
        last_key = page[-1]["path"]


def list_keys(address: Address) -> list[str]:
    """Keys of what is in the folder: objects and folders, which may end in a slash."""
    return send_list_request(address, lambda client: client.list_keys(address.key))


def send_list_request(address: Address, request: Callable[[Connection], _Result]) -> _Result:
    """Asks as `send_request` does, for a list of objects: of an answer that ends early obstore would try no second time.

    Raises:
        OSError: as `send_request` says it.
    """
    for attempt in range(MAX_RETRIES):
        try:
            with REQUEST_LIMIT.acquire():
                return request(get_connection(address))
        except request_errors() as error:
            if "list response" not in str(error):
                raise to_store_error(error, address) from None
        time.sleep(random.uniform(0.5, 1) * 0.2 * 2**attempt)
    return send_request(address, request)


def request_errors() -> tuple[type[Exception], ...]:
    """Returns the exceptions that requests raise; some are Python's own."""
    from obstore.exceptions import BaseError

    return (
        BaseError,
        FileNotFoundError,
        PermissionError,
        HadoopError,
        ValueError,
        NotImplementedError,
    )


def get_connection(address: Address) -> Connection:
    """The process's own connection to the address's bucket or host."""
    check_not_forked()
    with _lock:
        if address.root not in _connections:
            _connections[address.root] = _connect(address)
            _connected_pids.add(os.getpid())
        return _connections[address.root]


def check_not_forked() -> None:
    """Raises OSError in a child that was forked from a process with connections, whose threads it does not have."""
    if _connected_pids - {os.getpid()}:
        raise OSError(
            errno.ENOTSUP, "a forked process can't use connections to stores: start it by spawn"
        )


def _connect(address: Address) -> Connection:
    if address.scheme == HADOOP:
        return Hadoop(address)
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    common: dict[str, Any] = {
        "client_options": {"connect_timeout": f"{CONNECT_SEC}s", "timeout": f"{REQUEST_SEC}s"},
        "retry_config": {
            "max_retries": MAX_RETRIES,
            "retry_timeout": datetime.timedelta(seconds=RETRY_SEC),
        },
    }
    allow_http = f"{_VARIABLE_PREFIXES.get(address.scheme, '')}_ALLOW_HTTP"
    if os.environ.get(allow_http, "").lower() in ("1", "true") or address.scheme == "http":
        common["client_options"]["allow_http"] = True
    if address.scheme == "s3":
        return ObstoreConnection(S3Store(address.bucket, **{**_profile_settings(), **common}))
    if address.scheme == "gs":
        return ObstoreConnection(GCSStore(address.bucket, **common))
    if address.scheme == "az":
        return ObstoreConnection(AzureStore(address.bucket, **common))
    return ObstoreConnection(HTTPStore.from_url(address.root, **common))


def _profile_settings() -> dict[str, str]:
    """Returns what the files of the AWS command line say, where the environment doesn't."""
    environment = os.environ
    profile = environment.get("AWS_PROFILE", "default")
    settings: dict[str, str] = {}
    config_sections = _read_profiles(environment.get("AWS_CONFIG_FILE", "~/.aws/config"))
    profile_settings = (
        config_sections.get(profile) or config_sections.get(f"profile {profile}") or {}
    )
    if (
        not {"AWS_REGION", "AWS_DEFAULT_REGION"} & environment.keys()
        and "region" in profile_settings
    ):
        settings["region"] = profile_settings["region"]
    if not any(environment.get(name) for name in _CREDENTIAL_VARIABLES):
        credentials = _read_profiles(
            environment.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
        )
        keys = {**profile_settings, **credentials.get(profile, {})}
        names = {"aws_access_key_id": "access_key_id", "aws_secret_access_key": "secret_access_key"}
        names["aws_session_token"] = "session_token"
        settings.update({ours: keys[theirs] for theirs, ours in names.items() if theirs in keys})
        if "AWS_PROFILE" in environment and "access_key_id" not in settings:
            raise UsageError(
                f"AWS_PROFILE={profile}: the files of the AWS command line have no keys of that profile (roles and "
                "single sign-on: put keys into the environment, as `aws configure export-credentials` does)"
            )
    return settings


def _read_profiles(path: str) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(os.path.expanduser(path), encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        raise UsageError(f"{path}: can't be read as the AWS command line writes it") from None
    return {name: dict(parser[name]) for name in parser.sections()}


def to_store_error(error: Exception, address: Address) -> OSError:
    """The error in a sentence of our own: what a store answers may repeat what was sent to it."""
    if isinstance(error, HadoopError):
        return error
    from obstore import exceptions

    text = str(error)
    message = text.partition("\n\nDebug source")[
        0
    ]  # what follows names settings, and the error of the connection
    code = match[1] if (match := _ERROR_CODE.search(text)) else ""
    status = next(
        (short_form or long_form for short_form, long_form in _HTTP_STATUS.findall(message)), ""
    )
    container = "host" if address.scheme.startswith("http") else "bucket"
    if any(name in message for name in _CREDENTIAL_SERVICES):
        return PermissionError(errno.EACCES, _no_key_message(container), address.uri)
    if code in _WRONG_REGION_CODES or "301 Moved" in text:
        region = match[1] if (match := _REGION.search(text)) else ""
        region_text, advice = (f"region {region}", region) if region else ("another region", "it")
        return OSError(
            errno.EREMOTE,
            f"the {container} lies in {region_text}: set AWS_REGION to {advice}",
            address.uri,
        )
    if "Invalid Access Key" in message:
        return PermissionError(
            errno.EACCES, "the key in the environment is not written as keys are", address.uri
        )
    if (
        code in _WRONG_KEY_CODES
        or "failed to authenticate" in text
        or isinstance(error, exceptions.UnauthenticatedError)
    ):
        if _is_unsigned(address):
            return PermissionError(
                errno.EACCES, _not_public_message(address, container), address.uri
            )
        return PermissionError(
            errno.EACCES, "the store does not know the key, or it has another secret", address.uri
        )
    if code == "NoSuchBucket" or "ContainerNotFound" in text:
        return FileNotFoundError(
            errno.ENOENT, f"there is no bucket {address.bucket!r}", address.uri
        )
    if isinstance(error, exceptions.NotFoundError | FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "no such object", address.uri)
    if isinstance(error, exceptions.PermissionDeniedError | PermissionError) or status in (
        "401",
        "403",
    ):
        refusal = f"access refused: the key in use is not allowed to do that in this {container}"
        if _is_unsigned(address):
            refusal = _not_public_message(address, container)
        elif container == "host":
            refusal = "access refused by the web server"
        return PermissionError(errno.EACCES, refusal, address.uri)
    if isinstance(error, exceptions.InvalidPathError):
        return OSError(
            errno.EINVAL, "a name with an empty part, or `.` or `..`, can't be reached", address.uri
        )
    return OSError(*_unclassified_error(text, message, code, status, container), address.uri)


def _is_unsigned(address: Address) -> bool:
    """Returns whether requests go without a key, as the user wanted."""
    variable = f"{_VARIABLE_PREFIXES.get(address.scheme, '')}_SKIP_SIGNATURE"
    return os.environ.get(variable, "").lower() in ("1", "true")


def _not_public_message(address: Address, container: str) -> str:
    return f"the {container} is not public, and {_VARIABLE_PREFIXES[address.scheme]}_SKIP_SIGNATURE has no key sent"


def _no_key_message(container: str) -> str:
    return f"no key for this {container} is in the environment, in a profile, or given by an instance role"


def _unclassified_error(
    text: str, message: str, code: str, status: str, container: str
) -> tuple[int, str]:
    if "dns error" in text:
        return (
            errno.EHOSTUNREACH,
            "the store's name is unknown: look at the endpoint and the network",
        )
    if "ConnectionRefused" in text or "tcp connect error" in text:
        return (
            errno.ECONNREFUSED,
            "the store can't be reached: look at the endpoint and the network",
        )
    if "TimedOut" in text or "timed out" in text:
        return errno.ETIMEDOUT, f"the store did not answer within {REQUEST_SEC} s, several times"
    if "BadScheme" in text:
        return (
            errno.EPROTO,
            "the endpoint is no https: AWS_ALLOW_HTTP=true (AZURE_, GOOGLE_) allows that",
        )
    if "from headers" in message or "non-partial response" in message:
        hint = " (it has no ETag)" if "ETag" in message else ""
        return errno.EPROTO, _NO_STORE_MESSAGE.format(hint)
    if "redential" in message:
        return errno.EACCES, _no_key_message(container)
    details = " ".join(part for part in (status, code) if part)
    return errno.EIO, f"the store failed{f' ({details})' if details else ''}, several times"
