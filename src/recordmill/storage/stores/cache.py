"""Blocks of remote files that were read lately, or are about to be: in memory, where many small reads are one request
and reading on waits for none, and on a local disk, in a folder that processes may share, where each block is a file
with its CRC and all of them together have at most so many bytes.
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

MEMORY_CACHE_BYTES = 128 << 20  # 128 MiB: what 20 threads read ahead of themselves
BlockKey = tuple[Hashable, int]  # what is read, and the block's number


class BlockCache:
    """The blocks of all files of this process; safe to share between threads."""

    def __init__(self, max_bytes: int = MEMORY_CACHE_BYTES) -> None:
        self._limits, self._cached_bytes = (
            [max_bytes],
            0,
        )  # of all calls at work, and of this process
        self._cached: OrderedDict[BlockKey, Bytes] = (
            OrderedDict()
        )  # the one that was asked for last stands last
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """This process was forked: what threads of the other one had under way does not come."""
        self._lock = threading.Lock()
        self._pending: dict[BlockKey, Future[Bytes]] = {}

    @property
    def max_bytes(self) -> int:
        """How much is held: what the tightest of the calls at work allows."""
        return min(self._limits)

    @contextlib.contextmanager
    def limit_to(self, max_bytes: int) -> Iterator[None]:
        """Hold at most so much while a call lasts."""
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
        """Have the block read by another thread, unless it is there or on its way."""
        if key in self:
            return
        future, is_mine = self._find_or_claim(key)
        if is_mine:
            try:
                submit(self._read, key, future, read)
            except BaseException as error:
                self._fail(key, future, error)
                raise

    def get(self, key: BlockKey, read: Callable[[], Bytes]) -> Bytes:
        """The block, which this thread reads if nobody has it. Whatever `read` raises is raised, and not held."""
        future, is_mine = self._find_or_claim(key)
        if is_mine:
            self._read(key, future, read)
        return future.result()

    def _find_or_claim(self, key: BlockKey) -> tuple[Future[Bytes], bool]:
        """(the block, there or coming; whether the caller is to read it)."""
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


CACHE_FOLDER_NAME = (
    "recordmill-blocks"  # in the folder that the user names; nothing else there is touched
)
_BLOCK_MAGIC = np.frombuffer(b"RMBLOCK2", np.uint8)
_HEADER_BYTES = len(_BLOCK_MAGIC) + 8  # and the CRC and the length, 32 bits each
_COUNT_FILE_NAME = (
    "used"  # the file that is locked by the process that counts, with the count in it
)
_TARGET_SHARE = (
    0.9  # of the limit, to which blocks are removed: one look at all of them makes room for many
)

_log = logging.getLogger(__name__)


class DiskCache:
    """Blocks in files that threads and processes share, each with a CRC over its key and its bytes.

    Attributes:
        folder: the user's folder; the blocks lie in `CACHE_FOLDER_NAME` in it, which may be removed at any time.
        most_bytes: how much all blocks may take together.
    """

    def __init__(self, folder: str, max_bytes: int) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._blocks_folder = Path(folder, CACHE_FOLDER_NAME)
        self._is_disabled, self._lock = False, threading.RLock()

    def get(self, key: Hashable, size: int) -> Bytes | None:
        """Returns the block of that size, or None where it is not there or damaged."""
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
        """Keeps a block, where there is room for it."""
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
                fcntl.flock(count_file, fcntl.LOCK_EX)  # until the file is closed
                count = self._make_room(size, os.pread(count_file.fileno(), 32, 0))
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
                    reason = error.strerror or os.strerror(
                        errno.ENOSPC
                    )  # NumPy's own error has no reason
                    _log.warning("%s: nothing more is kept there: %s", self.folder, reason)
                self._is_disabled = True

    def _make_room(self, size: int, count_text: bytes) -> int:
        """Returns the bytes of all blocks, after removing some by chance if the limit is near."""
        total_bytes = (
            int(count_text) if count_text.isdigit() else None
        )  # None: nobody has counted, or the process was killed
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
    """Returns whether the name is that of a block, whole or half-written by a process that was killed."""
    return re.fullmatch(r"[0-9a-f]{64}|\.[0-9a-f]{32}\.tmp", path.name) is not None


def _block_file_name(key: Hashable) -> str:
    return hashlib.sha256(repr(key).encode("utf-8", "surrogateescape")).hexdigest()


def _block_header(name: str, block: Bytes) -> Bytes:
    """Returns what stands before a block of that name."""
    crc = zlib.crc32(block.data, zlib.crc32(name.encode()))
    return np.concatenate([_BLOCK_MAGIC, np.array([crc, len(block)], "<u4").view(np.uint8)])
