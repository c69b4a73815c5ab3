"""Ranges of objects by requests, many at once, which obstore repeats where they fail and goes on with where an answer
ends early; and which content each object was seen to have.

The content of an object is known by its etag. Each answer says which content it came from: where an object is replaced
while a range of it is read, the range is read anew, and `last_seen` says what it was read from, so that who planned
with another content is told. Nothing is asked only to learn that.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from recordmill.base.buffers import Bytes
from recordmill.base.errors import DataError
from recordmill.storage.stores.address import Address
from recordmill.storage.stores.client import REQUEST_LIMIT, check_not_forked, send_request
from recordmill.storage.stores.protocol import Connection, Stat

DOWNLOAD_PART_BYTES = 2 << 20  # 2 MiB: of a large range, so that it comes by several connections
_MAX_ATTEMPTS = 4  # to read a range of an object that is replaced
_MAX_KNOWN_OBJECTS = 1 << 17  # objects whose etags are remembered, some 40 MB
_CHUNK_BYTES = 256 << 10  # 256 KiB: of an answer, copied as they come

_Result = TypeVar("_Result")


class ReplacedError(Exception):
    """An answer is of another content than the ones before it."""


class Downloader:
    """The requests of a process for parts of objects; safe to share between threads."""

    def __init__(self) -> None:
        self._known_stats: OrderedDict[str, Stat] = OrderedDict()
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """This process was forked: it has none of the other one's threads."""
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    def limit_requests(self, max_requests: int) -> None:
        """Have at most so many requests under way."""
        if max_requests == REQUEST_LIMIT.max_requests:
            return
        REQUEST_LIMIT.set_max(max_requests)
        with self._lock:
            old, self._threads = self._threads, None
        if old is not None:
            old.shutdown(wait=False)

    def stat(self, address: Address) -> Stat:
        """Asks what the object is now."""
        try:
            return self.record_stat(
                address, send_request(address, lambda client: client.head(address.key))
            )
        except OSError as error:  # of which the answer to such a request does not say the reason
            if isinstance(error, PermissionError | FileNotFoundError) or error.errno == errno.EIO:
                send_request(address, lambda client: client.probe(address.key))
            raise

    def last_known_stat(self, address: Address) -> Stat | None:
        """Returns what the object was when it was read, or listed, last; None where it was not yet."""
        return self._known_stats.get(address.uri)

    def assume_stat(self, address: Address, object_stat: Stat) -> None:
        """Take the object to be so until it is seen."""
        with self._lock:
            self._known_stats.setdefault(address.uri, object_stat)

    def record_stat(self, address: Address, info: Any) -> Stat:
        """Remember what a store says of the object."""
        etag = (info["e_tag"] or "").strip('"')
        modified_ns = (
            int(info["last_modified"].timestamp()) * 10**9
        )  # in seconds, as all answers have it
        object_stat = Stat(info["size"], 0 if etag else modified_ns, etag)
        with self._lock:
            self._known_stats[address.uri] = object_stat
            self._known_stats.move_to_end(address.uri)
            if len(self._known_stats) > _MAX_KNOWN_OBJECTS:
                self._known_stats.popitem(last=False)
        return object_stat

    def retry_if_replaced(self, address: Address, read: Callable[[Stat], _Result]) -> _Result:
        """Returns what `read` gives, called again with what the object is now where it was replaced meanwhile."""
        for _ in range(_MAX_ATTEMPTS):
            try:
                return read(self.last_known_stat(address) or self.stat(address))
            except ReplacedError:
                self.stat(address)
        raise DataError("is replaced again and again while it is read", source=address.uri)

    def read_parts(
        self, address: Address, object_stat: Stat, ranges: Sequence[tuple[int, Bytes]]
    ) -> None:
        """Fill each (start, array) with what lies in the object from there on, by many requests at once."""
        parts = _split_ranges(ranges)
        if len(parts) == 1:
            self.fetch_range(address, object_stat, *parts[0])
            return
        self.start_reading(address, object_stat, parts)()

    def start_reading(
        self, address: Address, object_stat: Stat, ranges: Sequence[tuple[int, Bytes]]
    ) -> Callable[[], None]:
        """Begins to read as `read_parts` does, by other threads; gives what waits for them, and raises what they do."""
        futures = [
            self.submit(self.fetch_range, address, object_stat, *part)
            for part in _split_ranges(ranges)
        ]
        return lambda: wait_for_all(futures)

    def fetch_range(self, address: Address, object_stat: Stat, start: int, buffer: Bytes) -> None:
        """Fill the array with what the object has from there on, by one request; where the answer ends early, the
        client goes on with the same content.

        Raises:
            ReplacedError: The object has another content.
        """

        def read(client: Connection) -> int:
            response = client.get(address.key, (start, start + len(buffer)))
            if self.record_stat(address, response.meta) != object_stat:
                raise ReplacedError
            num_read = 0
            for chunk in (
                (response.bytes(),)
                if len(buffer) <= _CHUNK_BYTES
                else response.stream(_CHUNK_BYTES)
            ):
                buffer[num_read : num_read + len(chunk)] = np.frombuffer(chunk, np.uint8)
                num_read += len(chunk)
            return num_read

        if (num_read := send_request(address, read)) < len(buffer):
            raise DataError(
                f"ends at byte {start + num_read}, before its length", source=address.uri
            )

    def submit(self, call: Any, *args: Any) -> Future[Any]:
        """Have it called by one of as many threads as there may be requests."""
        check_not_forked()
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(
                    REQUEST_LIMIT.max_requests, thread_name_prefix="recordmill-request"
                )
            return self._threads.submit(call, *args)


def _split_ranges(ranges: Sequence[tuple[int, Bytes]]) -> list[tuple[int, Bytes]]:
    """Each (start, array) in parts that are a request each."""
    return [
        (start + offset, array[offset : offset + DOWNLOAD_PART_BYTES])
        for start, array in ranges
        for offset in range(0, len(array), DOWNLOAD_PART_BYTES)
    ]


def wait_for_all(futures: list[Future[Any]]) -> None:
    """Wait for all of them; the first error is raised, and what has not begun is then not begun."""
    try:
        for future in futures:
            future.result()
    finally:
        for future in futures:  # one has failed: nobody wants the others
            future.cancel()
