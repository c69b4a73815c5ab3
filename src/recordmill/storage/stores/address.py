"""Paths that users give: `s3://bucket/key` and its like to an `Address`, what lies on this machine to a path; and what
is neither is refused.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple
from urllib.parse import unquote

from recordmill.base.errors import UsageError
from recordmill.base.option_names import redact_passwords

HADOOP = "hdfs"
BUCKET_SCHEMES = ("s3", "gs", "az", HADOOP)  # schemes of stores, whose folders can be listed
_OTHER_HADOOP_SCHEMES = ("viewfs", "webhdfs")
WEB_SCHEMES = ("http", "https")  # single files, to be read
# `s3:/` is what pathlib makes of `s3://`
_URI = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):(//?)|(?i:(file)):()")


class Address(NamedTuple):
    """An object. root: scheme and bucket, or host (`s3://photos`); key: its name there, which may be empty."""

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
        """The address that a path is; None for one of this machine's.

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
        """The address that a URI is, which `parse_input_path` or `parse_output_path` gave."""
        address = cls.parse(uri)
        assert address is not None, uri
        return address


def parse_local_path(path: str | os.PathLike[str]) -> str:
    """The path as text; UsageError for an empty one, and for a URI, since only local files are served. Every path that
    a user can type goes through here, or `parse_input_path`, before anything is made.

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
            f"{redacted}: {scheme}:// is served here for reading only; name a local folder"
        )
    if scheme.lower() in _OTHER_HADOOP_SCHEMES:
        raise UsageError(
            f"{redacted}: {scheme}:// is not served; name the same files as hdfs://host:port/path"
        )
    raise UsageError(
        f"{redacted}: {scheme}:// is not served; copy the files to a local disk, or name a local folder"
    )


def parse_input_path(path: str | os.PathLike[str]) -> str:
    """Returns the path as `parse_local_path` does, but the URI of an object that can be read is one, written with `//`;
    UsageError for one in which a password may stand.

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
            f"{_redact(text)}: a URL with a user or a password is not served (it may hold a secret); {advice}"
        )
    if not rest.strip("/"):
        raise UsageError(
            f"{text}: names no {'bucket' if scheme in BUCKET_SCHEMES and scheme != HADOOP else 'host'}"
        )
    if scheme == HADOOP and rest.startswith("/"):
        raise UsageError(
            f"{text}: names no host: hdfs://host:port/path, or the name service of HADOOP_CONF_DIR"
        )
    if scheme in WEB_SCHEMES and "?" in rest:
        redacted = _redact(text)
        raise UsageError(
            f"{redacted}?...: a URL with a query is not served (it may hold a secret); download the file"
        )
    return f"{scheme}://{rest}"


def parse_output_path(path: str | os.PathLike[str]) -> str:
    """Returns the path as `parse_local_path` does, but the URI of a folder in a store is one, without a slash at its end."""
    text = _path_text(path)
    scheme = text.partition(":/")[0].lower()
    if scheme not in BUCKET_SCHEMES:
        return parse_local_path(text)
    uri = parse_input_path(text).rstrip("/")
    address = Address.parse(uri)
    if address is not None and not address.key:
        container = "on the host" if scheme == HADOOP else "in the bucket"
        raise UsageError(f"{text}: name a folder {container}, as in {uri}/data")
    return uri


def unquote_name(name: str, uri: str) -> str:
    """Returns the name of the last part of the URI: on the web, `a%20b.csv` is `a b.csv`."""
    return unquote(name) if uri.partition(":")[0] in WEB_SCHEMES else name


def _is_local_name(text: str, scheme: str, slashes: str) -> bool:
    """Returns whether a folder, or a file, of this machine has such a name."""
    return slashes != "//" and os.path.lexists(f"{scheme}:" if slashes else text)


def _redact(text: str) -> str:
    """A URL for a message: without what may be a secret."""
    return redact_passwords(text).partition("?")[0]


def _path_text(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if not text:
        raise UsageError(
            "a path is empty, as a variable that is not set gives it: name a file or a folder"
        )
    return os.fsdecode(text) if isinstance(text, bytes) else text
