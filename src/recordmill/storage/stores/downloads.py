"""Downloads of ranges of objects with concurrent requests.

obstore repeats failed requests, and continues a response that ends early. The etag identifies the
content of an object, and each response contains it. If an object is replaced while a range is read,
the range is read again. `last_known_stat` then returns the new state. So a caller notices without
an extra request that the object has changed since planning.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from recordmill.base.buffers import Bytes
from recordmill.base.errors import DataError
from recordmill.storage.stores.address import Address
from recordmill.storage.stores.client import (
    REQUEST_LIMIT,
    check_not_forked,
    send_request,
)
from recordmill.storage.stores.protocol import Stat

if TYPE_CHECKING:
    from obstore.store import ObjectStore

DOWNLOAD_PART_BYTES = 2 << 20  # 2 MiB: a large range is read by several connections
_MAX_ATTEMPTS = 4  # attempts to read from an object that is replaced during the read
_MAX_KNOWN_OBJECTS = 1 << 17  # the number of remembered etags, which take about 40 MB
_CHUNK_BYTES = 256 << 10  # 256 KiB: the parts of a response that are copied as they arrive

_Result = TypeVar("_Result")


class ReplacedError(Exception):
    """A response is from other content of the object than expected."""


class Downloader:
    """Reads parts of objects from stores. A process has one, which its threads share."""

    def __init__(self) -> None:
        self._known_stats: OrderedDict[str, Stat] = OrderedDict()
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Replaces the lock and the thread pool in a forked child process.

        The threads of the parent do not exist in the child. So a lock that one of them held would
        never be released, and their pool would never run anything. Known states of objects are
        kept.
        """
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    def limit_requests(self, max_requests: int) -> None:
        """Sets the largest number of concurrent requests."""
        if max_requests == REQUEST_LIMIT.max_requests:
            return
        REQUEST_LIMIT.set_max(max_requests)
        with self._lock:
            old, self._threads = self._threads, None
        if old is not None:
            old.shutdown(wait=False)

    def stat(self, address: Address) -> Stat:
        """Requests the current state of an object.

        Raises:
            OSError: The object is missing or can't be accessed.
        """
        try:
            return self.record_stat(
                address, send_request(address, lambda store: store.head(address.key))
            )
        except OSError as error:
            # The response to a HEAD request has no body, so it lacks the reason. The response to a
            # read of one byte contains it.
            if isinstance(error, PermissionError | FileNotFoundError) or error.errno == errno.EIO:
                send_request(address, lambda store: store.get_range(address.key, start=0, end=1))
            raise

    def last_known_stat(self, address: Address) -> Stat | None:
        """Returns the state of an object when it was last read or listed.

        None if the object is not known yet.
        """
        return self._known_stats.get(address.uri)

    def assume_stat(self, address: Address, object_stat: Stat) -> None:
        """Sets the known state of an object, unless the object is known already."""
        with self._lock:
            self._known_stats.setdefault(address.uri, object_stat)

    def record_stat(self, address: Address, info: Any) -> Stat:
        """Records the state that a store has reported for an object, and returns it.

        Args:
            address: The address of the object.
            info: The object info of a response.
        """
        etag = (info["e_tag"] or "").strip('"')
        # Some responses have only full seconds, so all times are rounded to seconds.
        modified_ns = int(info["last_modified"].timestamp()) * 10**9
        object_stat = Stat(info["size"], 0 if etag else modified_ns, etag)
        with self._lock:
            self._known_stats[address.uri] = object_stat
            self._known_stats.move_to_end(address.uri)
            if len(self._known_stats) > _MAX_KNOWN_OBJECTS:
                self._known_stats.popitem(last=False)
        return object_stat

    def retry_if_replaced(self, address: Address, read: Callable[[Stat], _Result]) -> _Result:
        """Calls `read` with the state of an object, and returns its result.

        If `read` raises ReplacedError, it is called again with the new state.

        Args:
            address: The address of the object.
            read: Receives the expected state of the object.

        Raises:
            DataError: The object was replaced in each of several attempts.
            OSError: The object is missing or can't be accessed.
        """
        for _ in range(_MAX_ATTEMPTS):
            try:
                return read(self.last_known_stat(address) or self.stat(address))
            except ReplacedError:
                self.stat(address)
        raise DataError("is replaced repeatedly while it is read", source=address.uri)

    def read_parts(
        self, address: Address, object_stat: Stat, ranges: Sequence[tuple[int, Bytes]]
    ) -> None:
        """Reads ranges of an object with concurrent requests, each range into its array.

        Args:
            address: The address of the object.
            object_stat: The expected state of the object.
            ranges: (offset, array to fill) of each range. All must be inside the object.

        Raises:
            ReplacedError: The object has another content.
            OSError: A request failed.
        """
        parts = _split_ranges(ranges)
        if len(parts) == 1:  # no thread is needed
            self.fetch_range(address, object_stat, *parts[0])
            return
        self.start_reading(address, object_stat, parts)()

    def start_reading(
        self, address: Address, object_stat: Stat, ranges: Sequence[tuple[int, Bytes]]
    ) -> Callable[[], None]:
        """Starts to read ranges of an object, without waiting for them.

        See `read_parts` for the arguments.

        Returns:
            A function that waits until all arrays are filled. It raises the errors of `read_parts`.
        """
        futures = [
            self.submit(self.fetch_range, address, object_stat, *part)
            for part in _split_ranges(ranges)
        ]
        return lambda: wait_for_all(futures)

    def fetch_range(self, address: Address, object_stat: Stat, start: int, buffer: Bytes) -> None:
        """Reads the range at `start` into `buffer` with one request.

        If the response ends early, obstore continues with the same content.

        Raises:
            ReplacedError: The object has another content.
            DataError: The object is shorter than expected.
        """

        def read(store: ObjectStore) -> int:
            response = store.get(address.key, options={"range": (start, start + len(buffer))})
            # Compare before the buffer is changed.
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
        """Calls a function in another thread and returns its future.

        There are as many threads as permitted requests.
        """
        check_not_forked()
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(
                    REQUEST_LIMIT.max_requests, thread_name_prefix="recordmill-request"
                )
            return self._threads.submit(call, *args)


def _split_ranges(ranges: Sequence[tuple[int, Bytes]]) -> list[tuple[int, Bytes]]:
    """Divides ranges into parts of at most DOWNLOAD_PART_BYTES, one for each request."""
    return [
        (start + offset, array[offset : offset + DOWNLOAD_PART_BYTES])
        for start, array in ranges
        for offset in range(0, len(array), DOWNLOAD_PART_BYTES)
    ]


def wait_for_all(futures: list[Future[Any]]) -> None:
    """Waits for all futures. Raises the first error, and cancels futures that have not started."""
    try:
        for future in futures:
            future.result()
    finally:
        for future in futures:  # after an error, the others are not needed
            future.cancel()
