"""Objects of stores as a `Storage`: small reads by blocks that are kept, large ones by several requests at once; and on
on which settings a process reads certain files of stores.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from recordmill.base.buffers import Bytes
from recordmill.base.errors import DataError
from recordmill.storage.stores import downloads
from recordmill.storage.stores.address import WEB_SCHEMES, Address
from recordmill.storage.stores.cache import BlockCache, DiskCache
from recordmill.storage.stores.client import REQUEST_LIMIT, iter_objects, list_keys, send_request
from recordmill.storage.stores.downloads import Downloader, ReplacedError, wait_for_all
from recordmill.storage.stores.protocol import Connection, Stat

_settings_handlers: list[Callable[[StoreSettings], None]] = []


@dataclass(frozen=True)
class StoreSettings:
    """requests: how many may be under way at once, None: as before. folder, most_bytes: where blocks of the files are
    kept on a disk; "": nowhere. files: what they were when they were opened.

    A process that unpickles it takes the settings.
    """

    requests: int | None = None
    folder: str = ""
    max_bytes: int = 0
    files: Mapping[str, Stat] = field(default_factory=dict, repr=False)

    def apply(self) -> None:
        """This process reads on these settings from now on."""
        for handler in _settings_handlers:
            handler(self)

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.apply()


def register_settings_handler(handler: Callable[[StoreSettings], None]) -> None:
    """Have the settings that this process takes told to `taker`."""
    _settings_handlers.append(handler)


STORE_BLOCK_BYTES = 1 << 20  # 1 MiB: a request's latency is about the time in which that much comes
_PREFETCH_BLOCKS = 4  # blocks that are asked for before whoever reads on comes to them
_MAX_GAP_BYTES = (
    16 << 10
)  # 16 KiB: bytes between two ranges that are cheaper to read than a request of their own


class ObjectReader:
    """An object that is read by ranges."""

    def __init__(self, storage: ObjectStorage, address: Address) -> None:
        self._storage, self._address = storage, address
        storage.last_known_stat(address.uri)  # FileNotFoundError if it is not there

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
        """There is nothing to let go of."""


class ObjectStorage:
    """See `Storage`; one for all stores of this process."""

    def __init__(self) -> None:
        self.downloader, self._blocks = Downloader(), BlockCache()
        self._caches: dict[
            str, tuple[DiskCache, bool]
        ] = {}  # of an object: where its blocks are, whether all fit

    def apply_settings(self, store_settings: StoreSettings) -> None:
        """Read on these settings."""
        if store_settings.requests is not None:
            self.limit_requests(store_settings.requests)
        cache = DiskCache(store_settings.folder, store_settings.max_bytes)
        fits = (
            sum(object_stat.size_bytes for object_stat in store_settings.files.values())
            <= store_settings.max_bytes * 0.8
        )  # and their headers
        for path, object_stat in store_settings.files.items() if store_settings.folder else ():
            address = Address.from_uri(path)
            self._caches[address.uri] = cache, fits
            self.downloader.assume_stat(address, object_stat)

    def reset_after_fork(self) -> None:
        """This process was forked: the threads of the other one, and what they hold, are not here. What was read can be
        read; for anything else `check_process` says why not.
        """
        self._blocks.reset_after_fork()
        self.downloader.reset_after_fork()

    def limit_requests(self, max_requests: int) -> None:
        """Have at most so many requests under way."""
        self.downloader.limit_requests(max_requests)

    def limit_block_memory(self, memory_bytes: int) -> contextlib.AbstractContextManager[None]:
        """Keep blocks in an eighth of the memory that a call may take, while it lasts."""
        return self._blocks.limit_to(memory_bytes // 8)

    def stat(self, path: str) -> Stat:
        address = Address.from_uri(path)
        _check_has_key(address)
        return self.downloader.stat(address)

    def last_known_stat(self, path: str) -> Stat:
        return self.downloader.last_known_stat(Address.from_uri(path)) or self.stat(path)

    def open(self, path: str) -> ObjectReader:
        return ObjectReader(self, Address.from_uri(path))

    def read_object(self, path: str, max_bytes: int) -> bytes:
        """The object as it is now, by one request where it is small; DataError if it has more bytes than that."""
        address = Address.from_uri(path)
        _check_has_key(address)

        def fetch(client: Connection) -> tuple[int, bytes]:
            response = client.get(address.key)
            size = self.downloader.record_stat(address, response.meta).size_bytes
            return size, bytes(response.bytes()) if size <= min(
                STORE_BLOCK_BYTES, max_bytes
            ) else b""

        size, data = send_request(address, fetch)
        if size > max_bytes:
            raise DataError(f"has {size:,} bytes, above the {max_bytes:,} allowed", source=path)
        if len(data) == size:
            return data
        reader = self.open(path)
        return reader.fill(np.empty(reader.stat().size_bytes, np.uint8), 0).tobytes()

    def map(self, path: str) -> Bytes:
        reader = self.open(path)
        size = reader.stat().size_bytes
        if size == 0:
            return np.empty(0, np.uint8)
        with tempfile.TemporaryFile(
            prefix="recordmill-"
        ) as file:  # which has no name: it goes with the mapping
            try:
                os.posix_fallocate(
                    file.fileno(), 0, size
                )  # a page without room on the disk would end the process
            except OSError as error:
                location = f"{tempfile.gettempdir()} (where TMPDIR has {path} mapped)"
                raise OSError(error.errno, error.strerror, location) from None
            mapped = np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)
            if len(reader.fill(mapped, 0)) < size:
                raise DataError("became shorter while it was read", source=path)
            mapped.flags.writeable = False
            return mapped

    def exists(self, path: str) -> bool:
        return self.is_file(path) or self.is_folder(path)

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
        """(name relative to the folder, state) of all objects below it, as the store lists them, a page at a time."""
        address = Address.from_uri(folder)
        _check_listable(address)
        for name, info in iter_objects(address):
            if name:
                yield name, self.downloader.record_stat(Address(address.root, info["path"]), info)

    @property
    def max_prefetched(self) -> int:
        """The number of objects to ask for ahead: as many as there may be requests, and as half of the blocks kept."""
        return min(
            REQUEST_LIMIT.max_requests, max(self._blocks.max_bytes // (2 * STORE_BLOCK_BYTES), 1)
        )

    def prefetch_start(self, path: str, object_stat: Stat) -> None:
        """The object is about to be read from its start: have it asked for."""
        address = Address.from_uri(path)
        if object_stat.size_bytes:
            self._prefetch_block(address, object_stat, 0)

    def start_reading(
        self, path: str, object_stat: Stat, buffer: Bytes, start: int = 0
    ) -> Callable[[], None]:
        """Have the array, all of which that content of the object has, filled by other threads; gives what waits for
        them.

        Raises, then: OSError, and ReplacedError where the object has another content.
        """
        address = Address.from_uri(path)
        if self.has_disk_cache(address):
            return lambda: self._fill_and_check(address, object_stat, buffer, start)
        return self.downloader.start_reading(address, object_stat, [(start, buffer)])

    def _fill_and_check(
        self, address: Address, object_stat: Stat, buffer: Bytes, start: int
    ) -> None:
        self.open(address.uri).fill(buffer, start)
        if self.last_known_stat(address.uri) != object_stat:
            raise ReplacedError

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, Bytes]]) -> None:
        """Fill each (start, array) with what lies in the object from there on; those close to each other are one
        request.

        Raises:
            DataError: The object ends before that.
        """
        address = Address.from_uri(path)
        merged: list[tuple[int, int, list[tuple[int, Bytes]]]] = []  # (start, stop, ranges)
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
            targets = [
                (start, parts[0][1] if len(parts) == 1 else np.empty(stop - start, np.uint8))
                for start, stop, parts in merged
            ]
            if not self.has_disk_cache(address, all_files=True):
                self.downloader.read_parts(address, object_stat, targets)
            else:
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
        """Fill the array, all of which the object has, by blocks; the next ones are asked for where it is read on."""
        stop = start + len(buffer)
        numbers = range(start // STORE_BLOCK_BYTES, -(-stop // STORE_BLOCK_BYTES))
        for number in numbers if len(numbers) > 1 else ():
            self._prefetch_block(address, object_stat, number)
        for number in numbers:
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
        """Returns whether the object's blocks are kept on a disk; whole: and all of those that are read with it fit
        there.
        """
        cache = self._caches.get(address.uri)
        return cache is not None and (cache[1] or not all_files)

    def read_through_disk_cache(
        self, address: Address, object_stat: Stat, buffer: Bytes, start: int
    ) -> None:
        """Fills the array, within the object, by blocks of which some are on a disk; others are asked for at once."""

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
    """Copies what of the block of that number lies in the object from `start` on as far as the array goes."""
    block_start = number * STORE_BLOCK_BYTES
    begin, end = max(start, block_start), min(start + len(buffer), block_start + len(block))
    buffer[begin - start : end - start] = block[begin - block_start : end - block_start]


def _content_key(address: Address, object_stat: Stat) -> tuple[str, Stat]:
    return address.uri, object_stat


def _check_has_key(address: Address) -> None:
    if not address.key:
        raise FileNotFoundError(errno.ENOENT, "names a bucket and no object", address.uri)


def _check_listable(address: Address) -> None:
    if address.scheme in WEB_SCHEMES:
        raise FileNotFoundError(2, "a web server lists no folders: name its files", address.uri)
