"""Storage for objects in stores, with caches of blocks.

Small reads use cached blocks. Large reads use several concurrent requests. `StoreSettings` are the
settings of these reads.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from recordmill.base.buffers import Bytes, allocate
from recordmill.base.errors import DataError
from recordmill.storage.stores import downloads
from recordmill.storage.stores.address import WEB_SCHEMES, Address
from recordmill.storage.stores.cache import BlockCache, DiskCache
from recordmill.storage.stores.client import (
    REQUEST_LIMIT,
    iter_objects,
    list_keys,
    no_store_error,
    send_request,
)
from recordmill.storage.stores.downloads import Downloader, ReplacedError, wait_for_all
from recordmill.storage.stores.local import create_unnamed_file, reserve_space
from recordmill.storage.stores.protocol import FileStorage, Stat, check_read_limit

if TYPE_CHECKING:
    from obstore.store import ObjectStore


@dataclass(frozen=True, eq=False)
class StoreSettings:
    """Settings for the reads of certain objects.

    Settings have no effect until `files.apply_store_settings` applies them, in each process that
    reads the objects.

    Attributes:
        requests: Maximum number of concurrent requests. None means the current limit.
        folder: The folder of the disk cache for these files. "" means no cache.
        max_bytes: The maximum size of the disk cache.
        files: State of each file when it was opened, by URI.
    """

    requests: int | None = None
    folder: str = ""
    max_bytes: int = 0
    files: Mapping[str, Stat] = field(default_factory=dict, repr=False)


# 1 MiB takes about as long to transfer as the latency of a request.
STORE_BLOCK_BYTES = 1 << 20
_PREFETCH_BLOCKS = 4  # the number of blocks that are requested ahead of a sequential read
# 16 KiB: reading a gap of this size between two ranges is cheaper than a second request.
_MAX_GAP_BYTES = 16 << 10


class ObjectReader:
    """Reads an object at any offset, like an open file. See `Reader`.

    The object is not opened: each `fill` takes cached blocks or sends requests. If the object is
    replaced between two calls, the second one reads the new content.

    Args:
        storage: The storage, with its connections and caches.
        address: The address of the object.

    Raises:
        FileNotFoundError: The object is missing.
    """

    def __init__(self, storage: ObjectStorage, address: Address) -> None:
        self._storage, self._address = storage, address
        storage.last_known_stat(address.uri)  # raises FileNotFoundError if the object is missing

    def fill(self, buffer: Bytes, start: int) -> Bytes:
        def read(object_stat: Stat) -> Bytes:
            target = buffer[: max(object_stat.size_bytes - start, 0)]
            if not len(target):
                return target
            if len(target) >= 2 * downloads.DOWNLOAD_PART_BYTES and self._storage.has_disk_cache(
                self._address
            ):
                self._storage.read_through_disk_cache(self._address, object_stat, target, start)
            elif len(target) >= 2 * downloads.DOWNLOAD_PART_BYTES:
                self._storage.downloader.read_parts(self._address, object_stat, [(start, target)])
            else:
                self._storage.read_blocks(self._address, object_stat, target, start)
            return target

        return self._storage.downloader.retry_if_replaced(self._address, read)

    def stat(self) -> Stat:
        return self._storage.last_known_stat(self._address.uri)

    def close(self) -> None:
        """Does nothing, because nothing is open. `Reader` requires this method."""


class ObjectStorage(FileStorage):
    """Storage for all stores of this process. See `FileStorage`."""

    def __init__(self) -> None:
        self.downloader, self._blocks = Downloader(), BlockCache()
        # URI of an object: (its cache, whether all files of its settings fit into the cache).
        self._caches: dict[str, tuple[DiskCache, bool]] = {}
        self._applied_settings = weakref.WeakSet[StoreSettings]()

    def apply_settings(self, store_settings: StoreSettings) -> None:
        """Applies the settings to later reads. Does nothing if they were applied before."""
        if store_settings in self._applied_settings:
            return
        self._applied_settings.add(store_settings)
        if store_settings.requests is not None:
            self.limit_requests(store_settings.requests)
        cache = DiskCache(store_settings.folder, store_settings.max_bytes)
        # 0.8 leaves room for the headers of the blocks.
        fits = (
            sum(object_stat.size_bytes for object_stat in store_settings.files.values())
            <= store_settings.max_bytes * 0.8
        )
        for path, object_stat in store_settings.files.items() if store_settings.folder else ():
            address = Address.from_uri(path)
            self._caches[address.uri] = cache, fits
            self.downloader.assume_stat(address, object_stat)

    def reset_after_fork(self) -> None:
        """Makes cached blocks usable in a forked child process.

        The child lacks the threads of its parent, so it forgets their unfinished reads. Any access
        to a store other than to cached blocks raises the error of `check_not_forked` in the child.
        """
        self._blocks.reset_after_fork()
        self.downloader.reset_after_fork()

    def limit_requests(self, max_requests: int) -> None:
        """Sets the largest number of concurrent requests."""
        self.downloader.limit_requests(max_requests)

    def limit_block_memory(self, memory_bytes: int) -> contextlib.AbstractContextManager[None]:
        """Limits cached blocks to an eighth of `memory_bytes` in the `with` block."""
        return self._blocks.limit_to(memory_bytes // 8)

    def stat(self, path: str) -> Stat:
        address = Address.from_uri(path)
        _check_has_key(address)
        return self.downloader.stat(address)

    def last_known_stat(self, path: str) -> Stat:
        return self.downloader.last_known_stat(Address.from_uri(path)) or self.stat(path)

    def open(self, path: str) -> ObjectReader:
        return ObjectReader(self, Address.from_uri(path))

    def read_file(self, path: str, max_bytes: int | None = None) -> Bytes:
        address = Address.from_uri(path)
        _check_has_key(address)

        def fetch(store: ObjectStore) -> tuple[Stat, Any]:
            response = store.get(address.key)
            object_stat = self.downloader.record_stat(address, response.meta)
            size = object_stat.size_bytes
            # The response of a large object is dropped, and several requests read it.
            is_wanted = size <= STORE_BLOCK_BYTES and (max_bytes is None or size <= max_bytes)
            return object_stat, response.bytes() if is_wanted else b""

        object_stat, data = send_request(address, fetch)
        if not object_stat.etag and address.scheme not in WEB_SCHEMES:
            raise no_store_error(address)
        size = object_stat.size_bytes
        check_read_limit(path, size, max_bytes)
        if len(data) < size:
            return super().read_file(path, max_bytes)
        return np.frombuffer(data, np.uint8) if size else np.empty(0, np.uint8)

    def map(self, path: str) -> Bytes:
        reader = self.open(path)
        size = reader.stat().size_bytes
        if size == 0:
            return np.empty(0, np.uint8)
        # The file has no name, so it disappears when the mapping is gone.
        with create_unnamed_file() as file:
            try:
                # A mapped page that has no room on the disk would kill the process with SIGBUS.
                reserve_space(file, size)
            except OSError as error:
                location = f"{tempfile.gettempdir()} (where TMPDIR has {path} mapped)"
                raise OSError(error.errno, error.strerror, location) from None
            mapped = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
            if len(reader.fill(mapped, 0)) < size:
                raise DataError("became shorter while it was read", source=path)
            mapped.flags.writeable = False
            return mapped

    def is_file(self, path: str) -> bool:
        try:
            return bool(Address.from_uri(path).key) and self.stat(path) is not None
        except FileNotFoundError:
            return False

    def is_folder(self, path: str) -> bool:
        try:
            return next(self.iter_object_stats(path), None) is not None
        except FileNotFoundError:
            return False

    def list_names(self, folder: str) -> list[str]:
        address = Address.from_uri(folder)
        _check_listable(address)
        keys = list_keys(address)
        return sorted(
            {key.rstrip("/").rpartition("/")[2] for key in keys if key.strip("/") != address.key}
        )

    def iter_object_stats(self, folder: str) -> Iterator[tuple[str, Stat]]:
        """Yields (relative name, state) of all objects below a folder, in the store's order.

        The store lists the objects in pages, on demand.
        """
        address = Address.from_uri(folder)
        _check_listable(address)
        for name, info in iter_objects(address):
            if name:
                yield name, self.downloader.record_stat(Address(address.root, info["path"]), info)

    @property
    def max_prefetched(self) -> int:
        """Maximum number of objects to prefetch.

        Only their first blocks are fetched in advance. The number is at most the number of
        concurrent requests. The blocks fill at most half of the memory cache.
        """
        return min(
            REQUEST_LIMIT.max_requests, max(self._blocks.max_bytes // (2 * STORE_BLOCK_BYTES), 1)
        )

    def prefetch_start(self, path: str, file_stat: Stat) -> None:
        """Starts to read the first block of an object into the cache."""
        address = Address.from_uri(path)
        if file_stat.size_bytes:
            self._prefetch_block(address, file_stat, 0)

    def start_reading(self, path: str, start: int, stop: int) -> Callable[[], Bytes] | None:
        """Requests bytes [start, stop) of an object.

        If the object is replaced during this, the returned function reads the range of the new one.
        """
        address, object_stat = Address.from_uri(path), self.last_known_stat(path)
        if self.has_disk_cache(address):
            return None  # a block of the cache may make the request unnecessary
        buffer = allocate(max(min(stop, object_stat.size_bytes) - start, 0), np.uint8)
        wait = self.downloader.start_reading(address, object_stat, [(start, buffer)])

        def read() -> Bytes:
            try:
                wait()
            except ReplacedError:
                return self.read_range(path, start, stop)  # retries with the new object
            return buffer

        return read

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, Bytes]]) -> None:
        """Reads ranges of an object. Ranges that are close to each other share a request."""
        address = Address.from_uri(path)
        # (start, stop, ranges inside) of each request.
        merged: list[tuple[int, int, list[tuple[int, Bytes]]]] = []
        for start, buffer in sorted(
            (item for item in ranges if len(item[1])), key=lambda item: item[0]
        ):
            stop = start + len(buffer)
            if merged and start - merged[-1][1] <= _MAX_GAP_BYTES:
                merged[-1] = (
                    merged[-1][0],
                    max(merged[-1][1], stop),
                    [*merged[-1][2], (start, buffer)],
                )
            else:
                merged.append((start, stop, [(start, buffer)]))

        def read(object_stat: Stat) -> None:
            if merged and merged[-1][1] > object_stat.size_bytes:
                raise DataError(
                    f"ends at byte {object_stat.size_bytes}, where {merged[-1][1]} are needed",
                    source=path,
                )
            # A range with a request of its own is read into its array, the others are copied below.
            targets = [
                (start, parts[0][1] if len(parts) == 1 else np.empty(stop - start, np.uint8))
                for start, stop, parts in merged
            ]
            if not self.has_disk_cache(address, all_files=True):
                self.downloader.read_parts(address, object_stat, targets)
            else:
                # All blocks are requested before the first one is waited for.
                for start, data in targets:
                    for number in range(
                        start // STORE_BLOCK_BYTES, -(-(start + len(data)) // STORE_BLOCK_BYTES)
                    ):
                        self._prefetch_block(address, object_stat, number)
                for start, data in targets:
                    self.read_blocks(address, object_stat, data, start)
            for (first, data), (_, _, parts) in zip(targets, merged, strict=True):
                for start, buffer in parts if len(parts) > 1 else ():
                    buffer[:] = data[start - first : start - first + len(buffer)]

        self.downloader.retry_if_replaced(address, read)

    def read_blocks(self, address: Address, object_stat: Stat, buffer: Bytes, start: int) -> None:
        """Fills `buffer` from cached blocks, and prefetches the next blocks of a sequential read.

        All of the buffer must be inside the object.
        """
        stop = start + len(buffer)
        numbers = range(start // STORE_BLOCK_BYTES, -(-stop // STORE_BLOCK_BYTES))
        for number in numbers if len(numbers) > 1 else ():
            self._prefetch_block(address, object_stat, number)
        for number in numbers:
            # A cached previous block shows that the object is read sequentially.
            if number and (_content_key(address, object_stat), number - 1) in self._blocks:
                for next_number in range(
                    number,
                    min(
                        number + _PREFETCH_BLOCKS + 1,
                        -(-object_stat.size_bytes // STORE_BLOCK_BYTES),
                    ),
                ):
                    self._prefetch_block(address, object_stat, next_number)
            key = (_content_key(address, object_stat), number)
            block = self._blocks.get(key, partial(self._read_block, address, object_stat, number))
            _copy_from_block(block, number, buffer, start)

    def has_disk_cache(self, address: Address, all_files: bool = False) -> bool:
        """Returns whether the blocks of an object are cached on a disk.

        Args:
            address: The address of the object.
            all_files: Whether all files of its settings must also fit into the cache together.
        """
        cache = self._caches.get(address.uri)
        return cache is not None and (cache[1] or not all_files)

    def read_through_disk_cache(
        self, address: Address, object_stat: Stat, buffer: Bytes, start: int
    ) -> None:
        """Fills `buffer` from blocks in the disk cache. Missing blocks are requested concurrently.

        All of the buffer must be inside the object.
        """

        def fetch(number: int) -> None:
            _copy_from_block(self._fetch_block(address, object_stat, number), number, buffer, start)

        futures = []
        for number in range(
            start // STORE_BLOCK_BYTES, -(-(start + len(buffer)) // STORE_BLOCK_BYTES)
        ):
            block = self._read_cached_block(address, object_stat, number)
            if block is None:
                futures.append(self.downloader.submit(fetch, number))
            else:
                _copy_from_block(block, number, buffer, start)
        wait_for_all(futures)

    def _prefetch_block(self, address: Address, object_stat: Stat, number: int) -> None:
        key = (_content_key(address, object_stat), number)
        self._blocks.start_read(
            key, partial(self._read_block, address, object_stat, number), self.downloader.submit
        )

    def _read_block(self, address: Address, object_stat: Stat, number: int) -> Bytes:
        block = self._read_cached_block(address, object_stat, number)
        return self._fetch_block(address, object_stat, number) if block is None else block

    def _read_cached_block(self, address: Address, object_stat: Stat, number: int) -> Bytes | None:
        cache = self._caches.get(address.uri)
        if cache is None:
            return None
        return cache[0].get(
            (address.uri, object_stat, number),
            min(STORE_BLOCK_BYTES, object_stat.size_bytes - number * STORE_BLOCK_BYTES),
        )

    def _fetch_block(self, address: Address, object_stat: Stat, number: int) -> Bytes:
        start = number * STORE_BLOCK_BYTES
        block = np.empty(min(STORE_BLOCK_BYTES, object_stat.size_bytes - start), np.uint8)
        self.downloader.fetch_range(address, object_stat, start, block)
        if (cache := self._caches.get(address.uri)) is not None:
            cache[0].put((address.uri, object_stat, number), block)
        return block


def _copy_from_block(block: Bytes, number: int, buffer: Bytes, start: int) -> None:
    """Copies the part of a block that belongs into `buffer`.

    Args:
        block: The content of the block.
        number: The index of the block in the object.
        buffer: The array to fill.
        start: Offset of the buffer in the object.
    """
    block_start = number * STORE_BLOCK_BYTES
    begin, end = max(start, block_start), min(start + len(buffer), block_start + len(block))
    buffer[begin - start : end - start] = block[begin - block_start : end - block_start]


def _content_key(address: Address, object_stat: Stat) -> tuple[str, Stat]:
    return address.uri, object_stat


def _check_has_key(address: Address) -> None:
    if not address.key:
        raise FileNotFoundError(errno.ENOENT, "names a bucket, but no object", address.uri)


def _check_listable(address: Address) -> None:
    if address.scheme in WEB_SCHEMES:
        raise FileNotFoundError(2, "a web server lists no folders: name its files", address.uri)
