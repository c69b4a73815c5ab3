"""Caches for blocks of objects, in memory and on a local disk.

The memory cache turns many small reads into one request, and contains blocks that are read ahead.
The disk cache is a folder that processes may share. Each of its blocks is a file with a checksum,
and the size of all of them is bounded.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import random
import re
import threading
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from recordmill.base.buffers import Bytes

MEMORY_CACHE_BYTES = 128 << 20  # 128 MiB: the blocks that 20 threads read ahead
BlockKey = tuple[Hashable, int]  # (identity of the content, index of the block)


class BlockCache:
    """Memory cache of the blocks of all objects in this process.

    Threads may share it. If several threads need a block, one of them reads it. The least recently
    used blocks are evicted first.

    Args:
        max_bytes: The largest size of all blocks.
    """

    def __init__(self, max_bytes: int = MEMORY_CACHE_BYTES) -> None:
        # The limit of this process, and those of all `limit_to` blocks in progress.
        self._limits, self._cached_bytes = [max_bytes], 0
        # The most recently used block is at the end.
        self._cached: OrderedDict[BlockKey, Bytes] = OrderedDict()
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """Forgets the reads in progress in a forked child, which lacks their threads."""
        self._lock = threading.Lock()
        self._pending: dict[BlockKey, Future[Bytes]] = {}

    @property
    def max_bytes(self) -> int:
        """Maximum size of all blocks: the smallest limit that is set at present."""
        return min(self._limits)

    @contextlib.contextmanager
    def limit_to(self, max_bytes: int) -> Iterator[None]:
        """Limits the size of the cache in the `with` block."""
        with self._lock:
            self._limits.append(max_bytes)
            self._evict()
        try:
            yield
        finally:
            with self._lock:
                self._limits.remove(max_bytes)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._cached or key in self._pending

    def start_read(
        self, key: BlockKey, read: Callable[[], Bytes], submit: Callable[..., Future[None]]
    ) -> None:
        """Starts to read a block in another thread.

        Does nothing if the block is cached or being read.

        Args:
            key: The key of the block.
            read: Returns the block.
            submit: Runs a function with arguments in another thread.
        """
        if key in self:
            return
        future, is_mine = self._find_or_claim(key)
        if is_mine:
            # If `submit` fails, threads that wait for the block must get the error.
            try:
                submit(self._read, key, future, read)
            except BaseException as error:
                self._fail(key, future, error)
                raise

    def get(self, key: BlockKey, read: Callable[[], Bytes]) -> Bytes:
        """Returns a block from the cache, or reads it.

        If another thread is reading the block, this call waits for it. An error of `read` is raised
        in all threads that wait for the block. It is not cached.
        """
        future, is_mine = self._find_or_claim(key)
        if is_mine:
            self._read(key, future, read)
        return future.result()

    def _find_or_claim(self, key: BlockKey) -> tuple[Future[Bytes], bool]:
        """Returns (future of the block, whether the caller must read it)."""
        with self._lock:
            if (pending := self._pending.get(key)) is not None:
                return pending, False
            future: Future[Bytes] = Future()
            if (block := self._cached.get(key)) is not None:
                self._cached.move_to_end(key)
                future.set_result(block)
                return future, False
            self._pending[key] = future
            return future, True

    def _read(self, key: BlockKey, future: Future[Bytes], read: Callable[[], Bytes]) -> None:
        try:
            block = read()
        except BaseException as error:
            self._fail(key, future, error)
            return
        with self._lock:
            del self._pending[key]
            self._cached[key] = block
            self._cached_bytes += len(block)
            self._evict()
        future.set_result(block)

    def _fail(self, key: BlockKey, future: Future[Bytes], error: BaseException) -> None:
        with self._lock:
            self._pending.pop(key, None)
        future.set_exception(error)

    def _evict(self) -> None:
        while self._cached_bytes > self.max_bytes:
            self._cached_bytes -= len(self._cached.popitem(last=False)[1])


# Subfolder of the user's folder. Nothing else in that folder is touched.
CACHE_FOLDER_NAME = "recordmill-blocks"
_BLOCK_MAGIC = np.frombuffer(b"RMBLOCK2", np.uint8)
_HEADER_BYTES = len(_BLOCK_MAGIC) + 8  # the CRC and the length follow, with 32 bits each
# The process that writes a block locks this file. It contains the size of all files.
_COUNT_FILE_NAME = "used"
# Eviction continues to this share of the limit, so that one listing makes room for many blocks.
_TARGET_SHARE = 0.9

_log = logging.getLogger(__name__)


class DiskCache:
    """Disk cache of blocks, which threads and processes may share.

    Each file has a CRC over its key and its content.

    Attributes:
        folder: The user's folder. The blocks are in its subfolder `CACHE_FOLDER_NAME`, which may be
            removed at any time.
        max_bytes: The largest size of all files.
    """

    def __init__(self, folder: str, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._blocks_folder = Path(folder, CACHE_FOLDER_NAME)
        self._is_disabled, self._lock = False, threading.RLock()

    def get(self, key: Hashable, size: int) -> Bytes | None:
        """Returns the block of a key, or None if it is missing or damaged.

        A damaged file, or one with another size, is removed.
        """
        name = _block_file_name(key)
        path = self._blocks_folder / name[:2] / name
        try:
            content = np.fromfile(path, np.uint8)
        except OSError:
            return None
        block = content[_HEADER_BYTES:]
        if len(block) == size and np.array_equal(
            content[:_HEADER_BYTES], _block_header(name, block)
        ):
            return block
        _log.warning("%s: is damaged, and is fetched again", path)
        path.unlink(missing_ok=True)
        return None

    def put(self, key: Hashable, block: Bytes) -> None:
        """Writes a block, and evicts others if the cache is full.

        After a write error, such as a full disk, this cache logs a warning and writes nothing more.
        """
        name, size = _block_file_name(key), _HEADER_BYTES + len(block)
        if self._is_disabled or size > self.max_bytes * _TARGET_SHARE:
            return
        path = self._blocks_folder / name[:2] / name
        temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with (
                self._lock,
                open(self._blocks_folder / _COUNT_FILE_NAME, "a+b", buffering=0) as count_file,
            ):
                fcntl.flock(count_file, fcntl.LOCK_EX)  # released when the file is closed
                count = self._make_room(size, os.pread(count_file.fileno(), 32, 0))
                # Another process never reads a part of a block, because of the rename.
                try:
                    np.concatenate([_block_header(name, block), block]).tofile(temporary)
                    os.replace(temporary, path)
                finally:
                    temporary.unlink(missing_ok=True)
                count_file.truncate(0)
                count_file.write(str(count + size).encode())
        except OSError as error:
            with self._lock:
                if not self._is_disabled:
                    # NumPy's error has no reason.
                    reason = error.strerror or os.strerror(errno.ENOSPC)
                    _log.warning("%s: nothing more is kept there: %s", self.folder, reason)
                self._is_disabled = True

    def _make_room(self, size: int, count_text: bytes) -> int:
        """Returns the size of all files after the eviction of random ones, if necessary.

        Args:
            size: The size of the new file.
            count_text: The content of the count file: the size of all files.
        """
        # The file is empty if it is new, or if a process was killed after it truncated the file.
        total_bytes = int(count_text) if count_text.isdigit() else None
        if total_bytes is not None and total_bytes + size <= self.max_bytes:
            return total_bytes
        block_files = [
            (path, path.stat().st_size)
            for path in self._blocks_folder.glob("[0-9a-f][0-9a-f]/*")
            if _is_cache_file(path)
        ]
        total_bytes = sum(file_bytes for _, file_bytes in block_files)
        if total_bytes + size > self.max_bytes:
            random.shuffle(block_files)
            for path, file_bytes in block_files:
                if total_bytes + size <= self.max_bytes * _TARGET_SHARE:
                    break
                path.unlink(missing_ok=True)
                total_bytes -= file_bytes
        return total_bytes


def _is_cache_file(path: Path) -> bool:
    """Returns whether a path is the file of a block.

    Includes temporary files that a killed process left.
    """
    return re.fullmatch(r"[0-9a-f]{64}|\.[0-9a-f]{32}\.tmp", path.name) is not None


def _block_file_name(key: Hashable) -> str:
    return hashlib.sha256(repr(key).encode("utf-8", "surrogateescape")).hexdigest()


def _block_header(name: str, block: Bytes) -> Bytes:
    """Returns the header of the file of a block."""
    crc = zlib.crc32(block.data, zlib.crc32(name.encode()))
    return np.concatenate([_BLOCK_MAGIC, np.array([crc, len(block)], "<u4").view(np.uint8)])
