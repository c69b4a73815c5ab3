"""`Hadoop`: a `Connection` to HDFS, by hdfs-native, which needs neither Java nor a library of Hadoop's.

Not by pyarrow.fs: its `move` removes what has the name already, and nothing else of it makes a file only where there is
none, so that two builds could both commit. What is written has a name of its own until it is whole; a rename, which
HDFS does in one step, then gives it the one that it is known by.

The settings are Hadoop's own: `core-site.xml` and `hdfs-site.xml` in HADOOP_CONF_DIR (name services among them), and
HADOOP_USER_NAME or a Kerberos ticket.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import itertools
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from recordmill.base.errors import MissingExtraError
from recordmill.storage.stores.address import Address
from recordmill.storage.stores.protocol import ObjectInfo

LIST_PAGE_FILES = 1000  # files that are given at once of a listing
# of the client, whose own would try for three minutes to reach a host that is not there
_SETTINGS = {"dfs.client.failover.max.attempts": "4", "dfs.client.socket-timeout": "60000"}
_WRITTEN_BYTES = 8 << 20  # 8 MiB: of a file that is put, at once


class HadoopError(OSError):
    """An answer of HDFS, in a sentence."""


class Hadoop:
    """See `Connection`; keys are paths without the slash at their beginning.

    address: names the host, or the name service.
    """

    max_copy_bytes: int | None = None  # a rename moves no byte

    def __init__(self, address: Address) -> None:
        try:
            from hdfs_native import Client
        except ImportError:
            raise MissingExtraError("hdfs://", "hdfs", "hdfs_native") from None
        self._root = address.root
        with self._errors_named(""):
            self._client = Client(address.root, dict(_SETTINGS))

    def head(self, key: str) -> ObjectInfo:
        with self._errors_named(key):
            found = self._client.get_file_info(f"/{key}")
        if found.isdir:
            raise FileNotFoundError(errno.ENOENT, "is a folder", f"{self._root}/{key}")
        return _about(found, key)

    def probe(self, key: str) -> None:
        self.head(key)

    def get(self, key: str, byte_range: tuple[int, int] | None = None) -> _Coming:
        # The file is opened before its state is asked for: what is opened is never newer than that.
        with self._errors_named(key):
            reader = self._client.read(f"/{key}")
        about = self.head(key)
        start, stop = (0, about["size"]) if byte_range is None else byte_range
        return _Coming(about, reader, start, min(stop, about["size"]), self, key)

    def list_pages(self, key: str, start_after: str = "") -> Iterator[Sequence[ObjectInfo]]:
        files = (
            _about(found, _key(found))
            for found in self._found(key, recursive=True)
            if not found.isdir
        )
        while page := list(itertools.islice(files, LIST_PAGE_FILES)):
            yield page

    def list_keys(self, key: str) -> list[str]:
        return [_key(found) for found in self._found(key, recursive=False)]

    def put(self, key: str, data: bytes) -> None:
        with self._errors_named(key):
            self._client.rename(self._written(key, [data]), f"/{key}", overwrite=True)

    def create(self, key: str, data: bytes) -> bool:
        with self._errors_named(key):
            written = self._written(key, [data])
            try:
                self._client.rename(written, f"/{key}", overwrite=False)
            except FileExistsError:
                self._client.delete(written)
                return False
        return True

    def upload(
        self, key: str, data: str | Iterator[bytes], part_bytes: int, concurrency: int
    ) -> None:
        with self._errors_named(key):
            written = self._written(key, _blocks(data) if isinstance(data, str) else data)
            self._client.rename(written, f"/{key}", overwrite=True)

    def delete(self, keys: Sequence[str], root: str) -> None:
        for key in keys:
            with self._errors_named(key):
                self._client.delete(f"/{key}")
        for folder in sorted({key.rpartition("/")[0] for key in keys}, key=len, reverse=True):
            while (
                folder.startswith(f"{root}/" if root else "")
                and folder
                and self._is_removed(folder)
            ):
                folder = folder.rpartition("/")[0]

    def move_or_copy(self, key: str, target: str) -> None:
        try:
            with self._errors_named(key):
                self._client.rename(f"/{key}", f"/{target}", overwrite=True)
        except FileNotFoundError:  # it was named before
            self.head(target)

    def _is_removed(self, folder: str) -> bool:
        """Remove a folder if it is empty; whether it was."""
        try:
            return self._client.delete(f"/{folder}", recursive=False)
        except RuntimeError:  # it is not: somebody may have made a file there just now
            return False

    def _found(self, key: str, recursive: bool) -> Iterator[Any]:
        """Yields what lies in a folder, or below it; nothing if it is not there."""
        with contextlib.suppress(FileNotFoundError), self._errors_named(key):
            yield from self._client.list_status(f"/{key}", recursive)

    def _written(self, key: str, parts: Any) -> str:
        """The path of a new file beside the key, with these parts."""
        from hdfs_native import WriteOptions

        folder, _, name = key.rpartition("/")
        path = (
            f"/{folder}/.{name}.{uuid.uuid4().hex}._COPYING_"
            if folder
            else f"/.{name}.{uuid.uuid4().hex}._COPYING_"
        )
        try:
            with self._client.create(path, WriteOptions(create_parent=True)) as file:
                for part in parts:
                    file.write(part)
        except BaseException:
            with contextlib.suppress(Exception):
                self._client.delete(path)
            raise
        return path

    @contextlib.contextmanager
    def _errors_named(self, key: str) -> Iterator[None]:
        """Turns what HDFS answers within it into one sentence that names the file."""
        uri = f"{self._root}/{key}"
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "no such file", uri) from None
        except (HadoopError, FileExistsError):
            raise
        except (OSError, RuntimeError) as error:
            raise _error_of(str(error), uri) from None


def _blocks(path: str) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        yield from iter(lambda: file.read(_WRITTEN_BYTES), b"")


def _error_of(text: str, uri: str) -> OSError:
    """Returns the client's answer, of which the first line says what is wrong, as an error of one sentence."""
    if "is not a directory" in text or "ParentNotDirectoryException" in text:
        return FileNotFoundError(errno.ENOENT, "no such file: a part of its path is a file", uri)
    if "AccessControlException" in text:
        return PermissionError(
            errno.EACCES, "access refused: this user is not allowed to do that", uri
        )
    if "failed to lookup address" in text or "No NameNode hosts found" in text:
        return HadoopError(
            errno.EHOSTUNREACH,
            "the host, or name service, is unknown: look at HADOOP_CONF_DIR",
            uri,
        )
    if "Connection refused" in text or "timed out" in text:
        return HadoopError(
            errno.ECONNREFUSED, "HDFS can't be reached: look at host, port and network", uri
        )
    said = re.split(r"\n|\\n", text)[0][:200]
    return HadoopError(errno.EIO, f"HDFS failed: {said}", uri)


@dataclass(frozen=True)
class _Coming:
    """Bytes [start, stop) of a file that is open."""

    meta: ObjectInfo
    reader: Any
    start: int
    stop: int
    client: Hadoop
    key: str

    @property
    def length(self) -> int:
        """How much comes: the client ends the process's thread where more is asked for than there is."""
        return max(min(self.stop, len(self.reader)) - self.start, 0)

    def bytes(self) -> bytes:
        with self.client._errors_named(self.key):
            return self.reader.read_range(self.start, self.length)  # type: ignore[no-any-return]

    def stream(self, min_chunk_size: int) -> Iterator[Any]:
        with self.client._errors_named(self.key):
            yield from self.reader.read_range_stream(self.start, self.length)


def _about(found: Any, key: str) -> ObjectInfo:
    changed = datetime.datetime.fromtimestamp(found.modification_time / 1000, datetime.timezone.utc)
    # what is written anew has another time, in milliseconds, or another length
    etag = f"{found.modification_time}-{found.length}"
    return {"path": key, "size": found.length, "last_modified": changed, "e_tag": etag}


def _key(found: Any) -> str:
    return str(found.path).strip("/")
