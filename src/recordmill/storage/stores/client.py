"""Connections to stores, their errors, and the limit of concurrent requests.

Each process has one connection for each bucket or host. It is configured as usual on its platform,
by environment variables, AWS profiles or instance roles.
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
from typing import TYPE_CHECKING, Any, TypeVar

from recordmill.base.errors import UsageError
from recordmill.storage.stores.address import Address
from recordmill.storage.stores.protocol import ObjectInfo

if TYPE_CHECKING:
    from obstore.store import ObjectStore

LIST_PAGE_OBJECTS = 1000  # stores list at most this many objects in a response
DEFAULT_MAX_REQUESTS = 64
MAX_COPY_BYTES = 5 << 30  # 5 GiB: the limit of stores for one copy request
CONNECT_SEC, REQUEST_SEC = 10, 60  # timeouts, after which a request is repeated
# Limits for repeating a request, with backoff and jitter.
MAX_RETRIES, RETRY_SEC = 6, 120
# If one of these is set, credentials are not read from profiles.
_CREDENTIAL_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_SKIP_SIGNATURE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
# Prefixes of environment variables, by scheme.
_VARIABLE_PREFIXES = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
_ERROR_CODE = re.compile(r"<Code>(\w+)</Code>")
_REGION = re.compile(r"<Region>([a-z0-9-]{2,40})</Region>")
# Services that obstore asks for credentials if the environment has none.
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
_NO_STORE_MESSAGE = (
    "the answer is not from a store{}: check the endpoint, and any proxies before it"
)
_Result = TypeVar("_Result")


class RequestLimit:
    """Limit of the number of concurrent requests. Threads may share it.

    A thread that has slots can acquire again without waiting, and gets the same slots.
    """

    def __init__(self, max_requests: int = DEFAULT_MAX_REQUESTS) -> None:
        self.max_requests = max_requests
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Frees all slots in a forked child, which lacks the threads that have them."""
        self._num_used = 0
        self._slots_freed, self._thread = threading.Condition(), threading.local()

    def set_max(self, max_requests: int) -> None:
        """Changes the limit. Requests in progress continue."""
        with self._slots_freed:
            self.max_requests = max_requests
            self._slots_freed.notify_all()

    @contextlib.contextmanager
    def acquire(self, num_slots: int = 1) -> Iterator[int]:
        """Waits for `num_slots` slots, or for all if the limit is lower. Yields their number."""
        # Otherwise, a nested call could wait for the slots that its own thread has.
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


REQUEST_LIMIT = RequestLimit()  # the limit of this process
os.register_at_fork(after_in_child=REQUEST_LIMIT.reset_after_fork)


_connections: dict[str, ObjectStore] = {}
_lock = threading.Lock()
# IDs of the processes that opened a connection: this one, and those that it was forked from.
_connected_pids: set[int] = set()


def send_request(address: Address, request: Callable[[ObjectStore], _Result]) -> _Result:
    """Calls `request` with the connection for an address, and returns its result.

    Waits until the request limit permits it.

    Raises:
        OSError: The request failed. The message is one sentence. Includes FileNotFoundError and
            PermissionError.
    """
    try:
        with REQUEST_LIMIT.acquire():
            return request(get_connection(address))
    except request_errors() as error:
        # `from None`: the text of the original error may contain data from the request.
        raise to_store_error(error, address) from None


def no_store_error(address: Address) -> OSError:
    """Returns the error for an answer without an ETag.

    For example, a proxy sends such an answer with a page of its own.
    """
    return OSError(errno.EPROTO, _NO_STORE_MESSAGE.format(" (it has no ETag)"), address.uri)


def iter_objects(address: Address) -> Iterator[tuple[str, ObjectInfo]]:
    """Yields (relative name, object info) of each object below an address.

    Objects are listed in pages. A page that fails is requested again.
    """
    last_key, prefix = "", f"{address.key}/" if address.key else ""
    pages: Iterator[Sequence[ObjectInfo]] | None = None

    def next_page(store: ObjectStore) -> Sequence[ObjectInfo] | None:
        nonlocal pages
        if pages is None:
            pages = store.list(
                address.key or None, offset=last_key or None, chunk_size=LIST_PAGE_OBJECTS
            )
        try:
            return next(pages, None)
        except Exception:
            pages = None  # a failed iterator can't continue, so list again after `last_key`
            raise

    while page := send_list_request(address, next_page):
        for info in page:
            # Stores compare the text of the key only, so some objects are not below the folder.
            if info["path"].startswith(prefix):
                yield info["path"][len(prefix) :], info
        last_key = page[-1]["path"]


def list_keys(address: Address) -> list[str]:
    """Returns the keys of the objects and folders in a folder.

    Keys of folders may end with a slash.
    """
    listing = send_list_request(
        address, lambda store: store.list_with_delimiter(address.key or None)
    )
    return [*listing["common_prefixes"], *(info["path"] for info in listing["objects"])]


def send_list_request(address: Address, request: Callable[[ObjectStore], _Result]) -> _Result:
    """Sends a request for a list of objects, as `send_request` does.

    Also repeats requests with truncated responses, which obstore does not repeat.

    Raises:
        OSError: The request failed. The message is one sentence. Includes FileNotFoundError and
            PermissionError.
    """
    for attempt in range(MAX_RETRIES):
        try:
            with REQUEST_LIMIT.acquire():
                return request(get_connection(address))
        except request_errors() as error:
            # obstore has this text in the error of a truncated response.
            if "list response" not in str(error):
                raise to_store_error(error, address) from None
        time.sleep(random.uniform(0.5, 1) * 0.2 * 2**attempt)  # 0.1 s up to 6.4 s, with jitter
    return send_request(address, request)


def request_errors() -> tuple[type[Exception], ...]:
    """Returns the exceptions that requests raise. Some of them are Python's own."""
    from obstore.exceptions import BaseError

    return (
        BaseError,
        FileNotFoundError,
        PermissionError,
        ValueError,
        NotImplementedError,
    )


def get_connection(address: Address) -> ObjectStore:
    """Returns the connection of this process for an address. Opens it on first use."""
    check_not_forked()
    with _lock:
        if address.root not in _connections:
            _connections[address.root] = _connect(address)
            _connected_pids.add(os.getpid())
        return _connections[address.root]


def check_not_forked() -> None:
    """Raises OSError in a child that was forked from a process with connections.

    The child lacks the threads of the connections.
    """
    if _connected_pids - {os.getpid()}:
        raise OSError(
            errno.ENOTSUP, "a forked process can't use connections to stores: start it by spawn"
        )


def _connect(address: Address) -> ObjectStore:
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
        return S3Store(address.bucket, **{**_profile_settings(), **common})
    if address.scheme == "gs":
        return GCSStore(address.bucket, **common)
    if address.scheme == "az":
        return AzureStore(address.bucket, **common)
    return HTTPStore.from_url(address.root, **common)


def _profile_settings() -> dict[str, str]:
    """Returns settings from the configuration files of the AWS command line.

    Environment variables take precedence, so settings that they contain are omitted.
    """
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
    """Returns the OSError for an exception of a request.

    The message is our own, because the store's message may contain data from the request.
    """
    from obstore import exceptions

    text = str(error)
    message = text.partition("\n\nDebug source")[
        0
    ]  # the rest contains settings and the error of the connection
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
            f"the {container} is in {region_text}: set AWS_REGION to {advice}",
            address.uri,
        )
    if "Invalid Access Key" in message:
        return PermissionError(
            errno.EACCES, "the key in the environment does not have the form of a key", address.uri
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
            errno.EACCES, "the store does not know the key, or the secret is wrong", address.uri
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
    """Returns whether the user has configured requests without a key."""
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
            "the store's name is unknown: check the endpoint and the network",
        )
    if "ConnectionRefused" in text or "tcp connect error" in text:
        return (
            errno.ECONNREFUSED,
            "the store can't be reached: check the endpoint and the network",
        )
    if "TimedOut" in text or "timed out" in text:
        return errno.ETIMEDOUT, f"the store did not answer within {REQUEST_SEC} s, several times"
    if "BadScheme" in text:
        return (
            errno.EPROTO,
            ("the endpoint does not use https: AWS_ALLOW_HTTP=true (AZURE_, GOOGLE_) allows that"),
        )
    if "from headers" in message or "non-partial response" in message:
        hint = " (it has no ETag)" if "ETag" in message else ""
        return errno.EPROTO, _NO_STORE_MESSAGE.format(hint)
    if "redential" in message:
        return errno.EACCES, _no_key_message(container)
    details = " ".join(part for part in (status, code) if part)
    return errno.EIO, f"the store failed{f' ({details})' if details else ''}, several times"
