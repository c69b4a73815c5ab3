"""Parsing of user-supplied paths: URIs such as `s3://bucket/key`, and local paths.

Anything else is an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import unquote

from recordmill.base.errors import UsageError
from recordmill.base.messages import redact_passwords

BUCKET_SCHEMES = ("s3", "gs", "az")  # stores with folders that can be listed
WEB_SCHEMES = ("http", "https")  # single files, for reading only
# pathlib turns `s3://` into `s3:/`, so both are accepted.
_URI = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):(//?)|(?i:(file)):()")


class Address(NamedTuple):
    """Address of an object or folder in a store.

    Attributes:
        root: Scheme and bucket or host, such as `s3://photos`.
        key: The name in the bucket. May be empty.
    """

    root: str
    key: str

    @property
    def scheme(self) -> str:
        return self.root.partition(":")[0]

    @property
    def bucket(self) -> str:
        return self.root.partition("://")[2]

    @property
    def uri(self) -> str:
        return f"{self.root}/{self.key}" if self.key else self.root

    @classmethod
    def parse(cls, path: str) -> Address | None:
        """Returns the address of a URI, or None for a local path.

        >>> Address.parse("s3://b/x/y.csv"), Address.parse("s3:/b/x"), Address.parse("a/b:c")
        (Address(root='s3://b', key='x/y.csv'), None, None)
        """
        scheme, _, rest = path.partition("://")
        bucket, _, key = rest.partition("/")
        if not bucket or scheme not in (*BUCKET_SCHEMES, *WEB_SCHEMES):
            return None
        key = key.strip("/")
        return cls(f"{scheme}://{bucket}", unquote(key) if scheme in WEB_SCHEMES else key)

    @classmethod
    def from_uri(cls, uri: str) -> Address:
        """Returns the address of a URI from `parse_input_path` or `parse_output_path`."""
        address = cls.parse(uri)
        assert address is not None, uri
        return address


def is_remote(path: str) -> bool:
    """Returns whether a path is in a store. This includes members of archives in a store."""
    return "://" in path and Address.parse(path) is not None


def expand_home(path: str | os.PathLike[str]) -> str:
    """Returns a path with a leading `~` or `~user` replaced by the home folder, as in a shell.

    If there is no such user, the path is unchanged.
    """
    text = os.fsdecode(path)
    # pathlib would shorten `./~` to `~`, and a second call would expand that.
    if text.startswith("./") and os.path.normpath(text).startswith("~"):
        return os.path.abspath(text)
    return os.path.expanduser(text)


def parse_local_path(path: str | os.PathLike[str]) -> str:
    """Returns a local path as text. A leading `~` is expanded, see `expand_home`.

    Each path from a user passes through this function or `parse_input_path` before anything is
    written.

    Raises:
        UsageError: The path is empty, or a URI other than `file:///`.

    >>> parse_local_path("data/a:b.csv"), parse_local_path("file:///tmp/x")
    ('data/a:b.csv', '/tmp/x')
    """
    text = _path_text(path)
    if (match := _URI.match(text)) is None:
        return text
    scheme, slashes = match[1] or match[3], match[2] or ""
    if scheme.lower() == "file" and slashes == "//" and text[match.end() :].startswith("/"):
        return text[match.end() :]
    if _is_local_name(text, scheme, slashes):
        return text
    if scheme.lower() == "file":
        raise UsageError(
            f"{text}: a file: URI of this machine begins with file:///; or give the path alone"
        )
    redacted = _redact(text)
    if scheme.lower() in (*BUCKET_SCHEMES, *WEB_SCHEMES):
        raise UsageError(
            f"{redacted}: {scheme}:// is supported for reading only; name a local folder"
        )
    raise UsageError(
        f"{redacted}: {scheme}:// is not supported; copy the files to a local disk, "
        "or name a local folder"
    )


def parse_input_paths(inputs: Any) -> list[str]:
    """Returns the inputs of a call as paths and URIs, see `parse_input_path`.

    Args:
        inputs: A path, or several ones.

    Raises:
        UsageError: `inputs` is something else, or a URI is not supported.

    >>> parse_input_paths("data"), parse_input_paths(["a", "s3:/bucket/b"])
    (['data'], ['a', 's3://bucket/b'])
    """
    if isinstance(inputs, str | os.PathLike):
        inputs = [inputs]
    is_list = isinstance(inputs, Iterable) and not isinstance(inputs, bytes)
    paths = list[str]()
    for path in inputs if is_list else [inputs]:
        if not isinstance(path, str | os.PathLike):
            raise UsageError(
                "an input is a path, as in 'data', or a list of paths, as in ['a', 'b'], "
                f"not an object of type {type(path).__name__}"
            )
        paths.append(parse_input_path(path))
    return paths


def parse_input_path(path: str | os.PathLike[str]) -> str:
    """Returns a local path, or the URI of an object that can be read.

    URIs are normalized to `//` after the scheme. A leading `~` of a local path is expanded.

    Raises:
        UsageError: The path is empty, or the URI is not supported, incomplete, or may contain a
            password.

    >>> parse_input_path("s3:/bucket/a.csv"), parse_input_path("data/a.csv")
    ('s3://bucket/a.csv', 'data/a.csv')
    """
    text = _path_text(path)
    if (match := _URI.match(text)) is None:
        return text
    scheme, slashes = (match[1] or match[3]).lower(), match[2] or ""
    if scheme not in (*BUCKET_SCHEMES, *WEB_SCHEMES) or _is_local_name(text, scheme, slashes):
        return parse_local_path(text)
    rest = text[match.end() :]
    if redact_passwords(f"{scheme}://{rest}") != f"{scheme}://{rest}":
        advice = (
            "download the file"
            if scheme in WEB_SCHEMES
            else "keys are taken from the environment (docs/stores.md)"
        )
        raise UsageError(
            f"{_redact(text)}: a URL with a user or a password is not supported (it "
            f"may contain a secret); {advice}"
        )
    if not rest.strip("/"):
        raise UsageError(f"{text}: names no {'bucket' if scheme in BUCKET_SCHEMES else 'host'}")
    if scheme in WEB_SCHEMES and "?" in rest:
        redacted = _redact(text)
        raise UsageError(
            f"{redacted}?...: a URL with a query is not supported (it may contain a "
            "secret); download the file"
        )
    return f"{scheme}://{rest}"


def parse_output_path(path: str | os.PathLike[str]) -> str:
    """Returns a local path, or the URI of a folder in a store.

    The URI has no final slash. A leading `~` of a local path is expanded.

    Raises:
        UsageError: The URI names no folder in a bucket, or `parse_input_path` refuses the path.
    """
    text = _path_text(path)
    scheme = text.partition(":/")[0].lower()
    if scheme not in BUCKET_SCHEMES:
        return parse_local_path(text)
    uri = parse_input_path(text).rstrip("/")
    address = Address.parse(uri)
    if address is not None and not address.key:
        raise UsageError(f"{text}: name a folder in the bucket, as in {uri}/data")
    return uri


def unquote_name(name: str, uri: str) -> str:
    """Returns the readable form of the last part of a URI.

    >>> unquote_name("a%20b.csv", "https://example.com/a%20b.csv")
    'a b.csv'
    """
    return unquote(name) if uri.partition(":")[0] in WEB_SCHEMES else name


def _is_local_name(text: str, scheme: str, slashes: str) -> bool:
    """Returns whether a path that looks like a URI is an existing local name."""
    return slashes != "//" and os.path.lexists(f"{scheme}:" if slashes else text)


def _redact(text: str) -> str:
    """Returns a URL for messages, without passwords and query."""
    return redact_passwords(text).partition("?")[0]


def _path_text(path: str | os.PathLike[str]) -> str:
    text = expand_home(path)
    if not text:
        raise UsageError(
            "a path is empty, perhaps because a variable is not set: name a file or a folder"
        )
    if "\0" in text:
        raise UsageError(f"{text!r} is not a path: no name of a file has a NUL character")
    return text
