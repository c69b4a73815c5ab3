"""`Hadoop`: a `Connection` to HDFS.

It uses hdfs-native, which needs neither Java nor a Hadoop library. pyarrow.fs does not fit: its
`move` replaces an existing file, and it cannot create a file only if none exists, so two builds
could both commit. Files are written under a temporary name. A rename, which is atomic in HDFS, then
gives them their final name.

The settings are those of Hadoop: `core-site.xml` and `hdfs-site.xml` in HADOOP_CONF_DIR, including
name services, and HADOOP_USER_NAME or a Kerberos ticket.
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

LIST_PAGE_FILES = 1000  # files in a page of a listing
# The client's own settings would take three minutes to report an unreachable host.
_SETTINGS = {"dfs.client.failover.max.attempts": "4", "dfs.client.socket-timeout": "60000"}
_WRITE_BLOCK_BYTES = 8 << 20  # bytes of a local file per write


class HadoopError(OSError):
    """An error of HDFS, as one sentence."""


class Hadoop:
    """Connection to HDFS. Keys are paths without the leading slash.

    Args:
        address: Contains the host or the name service.
    """

    max_copy_bytes: int | None = None  # a rename copies nothing

    def __init__(self, address: Address) -> None:
        try:
            from hdfs_native import Client
        except ImportError:
            raise MissingExtraError("hdfs://", "hdfs", "hdfs_native") from None
        self._root = address.root
        with self._translate_errors(""):
            self._client = Client(address.root, dict(_SETTINGS))

    def head(self, key: str) -> ObjectInfo:
        with self._translate_errors(key):
            status = self._client.get_file_info(f"/{key}")
        if status.isdir:
            raise FileNotFoundError(errno.ENOENT, "is a folder", f"{self._root}/{key}")
        return _object_info(status, key)

    def probe(self, key: str) -> None:
        self.head(key)

    def get(self, key: str, byte_range: tuple[int, int] | None = None) -> _HdfsResponse:
        # The file is opened before its status is requested, so that it is never newer than the
        # status.
        with self._translate_errors(key):
            reader = self._client.read(f"/{key}")
        info = self.head(key)
        start, stop = (0, info["size"]) if byte_range is None else byte_range
        return _HdfsResponse(info, reader, start, min(stop, info["size"]), self, key)

    def list_pages(self, key: str, start_after: str = "") -> Iterator[Sequence[ObjectInfo]]:
        files = (
            _object_info(status, _object_key(status))
            for status in self._list_statuses(key, recursive=True)
            if not status.isdir
        )
        while page := list(itertools.islice(files, LIST_PAGE_FILES)):
            yield page

    def list_keys(self, key: str) -> list[str]:
        return [_object_key(status) for status in self._list_statuses(key, recursive=False)]

    def put(self, key: str, data: bytes) -> None:
        with self._translate_errors(key):
            self._client.rename(self._write_temporary(key, [data]), f"/{key}", overwrite=True)

    def create(self, key: str, data: bytes) -> bool:
        with self._translate_errors(key):
            temporary_path = self._write_temporary(key, [data])
            try:
                self._client.rename(temporary_path, f"/{key}", overwrite=False)
            except FileExistsError:
                self._client.delete(temporary_path)
                return False
        return True

    def upload(
        self, key: str, data: str | Iterator[bytes], part_bytes: int, concurrency: int
    ) -> None:
        with self._translate_errors(key):
            temporary_path = self._write_temporary(
                key, _read_blocks(data) if isinstance(data, str) else data
            )
            self._client.rename(temporary_path, f"/{key}", overwrite=True)

    def delete(self, keys: Sequence[str], root: str) -> None:
        for key in keys:
            with self._translate_errors(key):
                self._client.delete(f"/{key}")
        for folder in sorted({key.rpartition("/")[0] for key in keys}, key=len, reverse=True):
            while (
                folder.startswith(f"{root}/" if root else "")
                and folder
                and self._remove_if_empty(folder)
            ):
                folder = folder.rpartition("/")[0]

    def move_or_copy(self, key: str, target: str) -> None:
        try:
            with self._translate_errors(key):
                self._client.rename(f"/{key}", f"/{target}", overwrite=True)
        except FileNotFoundError:  # an earlier attempt has renamed it
            self.head(target)

    def _remove_if_empty(self, folder: str) -> bool:
        """Removes a folder if it is empty, and returns whether it did."""
        try:
            return self._client.delete(f"/{folder}", recursive=False)
        except RuntimeError:  # not empty: another process may have just created a file in it
            return False

    def _list_statuses(self, key: str, recursive: bool) -> Iterator[Any]:
        """Yields the statuses in a folder, or nothing if it does not exist."""
        with contextlib.suppress(FileNotFoundError), self._translate_errors(key):
            yield from self._client.list_status(f"/{key}", recursive)

    def _write_temporary(self, key: str, parts: Any) -> str:
        """Writes a temporary file next to the key and returns its path."""
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
    def _translate_errors(self, key: str) -> Iterator[None]:
        """Turns errors inside the `with` block into one sentence that names the file."""
        uri = f"{self._root}/{key}"
        try:
            yield
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "no such file", uri) from None
        except (HadoopError, FileExistsError):
            raise
        except (OSError, RuntimeError) as error:
            raise _translate_error(str(error), uri) from None


def _read_blocks(path: str) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        yield from iter(lambda: file.read(_WRITE_BLOCK_BYTES), b"")


def _translate_error(text: str, uri: str) -> OSError:
    """Returns an error of one sentence for the client's error text."""
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
    reason = re.split(r"\n|\\n", text)[0][:200]
    return HadoopError(errno.EIO, f"HDFS failed: {reason}", uri)


@dataclass(frozen=True)
class _HdfsResponse:
    """Bytes [start, stop) of an open file."""

    meta: ObjectInfo
    reader: Any
    start: int
    stop: int
    client: Hadoop
    key: str

    @property
    def length(self) -> int:
        """Number of available bytes.

        The client aborts the thread of the process if more bytes are requested than the file has.
        """
        return max(min(self.stop, len(self.reader)) - self.start, 0)

    def bytes(self) -> bytes:
        with self.client._translate_errors(self.key):
            return self.reader.read_range(self.start, self.length)  # type: ignore[no-any-return]

    def stream(self, min_chunk_size: int) -> Iterator[Any]:
        with self.client._translate_errors(self.key):
            yield from self.reader.read_range_stream(self.start, self.length)


def _object_info(status: Any, key: str) -> ObjectInfo:
    modified = datetime.datetime.fromtimestamp(
        status.modification_time / 1000, datetime.timezone.utc
    )
    # A rewritten file differs in its time in milliseconds or in its length.
    etag = f"{status.modification_time}-{status.length}"
    return {"path": key, "size": status.length, "last_modified": modified, "e_tag": etag}


def _object_key(status: Any) -> str:
    return str(status.path).strip("/")
