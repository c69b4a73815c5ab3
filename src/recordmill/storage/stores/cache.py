"""Blocks of remote files that were read lately, or are about to be: in memory, where many small reads are one request
and reading on waits for none, and on a local disk, in a folder that processes may share, where each block is a file
with its CRC and all of them together have at most so many bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import random
import threading
import time
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future

import numpy as np

from recordmill.base.arrays import Bytes

MEMORY_CACHE_BYTES = 128 << 20  # 128 MiB: what 20 threads read ahead of themselves
Key = tuple[Hashable, int]  # what is read, and the block's number


class Blocks:
    """The blocks of all files of this process; safe to share between threads."""

    def __init__(self, most_bytes: int = MEMORY_CACHE_BYTES) -> None:
        self.most_bytes, self._used, self._lock = most_bytes, 0, threading.Lock()
        self._held: OrderedDict[Key, Future[Bytes]] = OrderedDict()

    def bound(self, most_bytes: int) -> None:
        """Hold at most so much from now on."""
        with self._lock:
            self.most_bytes = most_bytes

    def __contains__(self, key: Key) -> bool:
        return key in self._held

    def begin(self, key: Key, read: Callable[[], Bytes], submit: Callable[..., Future[None]]) -> None:
        """Have the block read by another thread, unless it is there or on its way."""
        if key not in self._held and (mine := self._claim(key)) is not None:
            submit(self._read, key, mine, read)

    def get(self, key: Key, read: Callable[[], Bytes]) -> Bytes:
        """The block, which this thread reads if nobody has it. Whatever `read` raises is raised, and not held."""
        while True:
            with self._lock:
                found = self._held.get(key)
                if found is not None:
                    self._held.move_to_end(key)
            if found is None and (mine := self._claim(key)) is not None:
                self._read(key, mine, read)
                found = mine
            if found is not None:
                return found.result()

    def _claim(self, key: Key) -> Future[Bytes] | None:
        with self._lock:
            if key in self._held:
                return None
            mine: Future[Bytes] = Future()
            self._held[key] = mine
            return mine

    def _read(self, key: Key, mine: Future[Bytes], read: Callable[[], Bytes]) -> None:
        try:
            block = read()
        except BaseException as error:
            with self._lock:
                self._held.pop(key, None)
            mine.set_exception(error)
            return
        with self._lock:
            self._used += len(block)
            mine.set_result(block)
            while self._used > self.most_bytes:
                oldest = next((key for key, future in self._held.items() if future.done()), None)
                if oldest is None:
                    return
                self._used -= len(self._held.pop(oldest).result())


FOLDER = "recordmill-blocks"  # in the folder that the user names; nothing else there is touched
_MAGIC = np.frombuffer(b"RMBLOCK1", np.uint8)
_HEADER_BYTES = len(_MAGIC) + 8  # and the CRC and the length, 32 bits each
_USED = "used"  # the file that is locked by who counts, with the count in it
_FILLED = 0.9  # of the limit, to which blocks are removed: one look at all of them makes room for many
_LEFT_SEC = 600  # a block that is not whole after 10 minutes is a dead process's

_log = logging.getLogger(__name__)


class DiskCache:
    """See the module. Safe to share between threads and processes."""

    def __init__(self, folder: str, most_bytes: int) -> None:
        self.folder, self.most_bytes = folder, most_bytes
        self._home, self._is_off, self._lock = os.path.join(folder, FOLDER), False, threading.Lock()

    def get(self, key: Hashable, size: int) -> Bytes | None:
        """The block of that size, in memory of the caller's own; None where it is not there, or damaged."""
        path = self._path(key)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            whole = np.empty(_HEADER_BYTES + size + 1, np.uint8)  # a byte more than it may have
            got = _read(descriptor, whole)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        block = whole[_HEADER_BYTES : _HEADER_BYTES + size]
        if got == _HEADER_BYTES + size and np.array_equal(whole[:_HEADER_BYTES], _header(block)):
            return block
        _log.warning("%s: is damaged, and is fetched again", path)
        with contextlib.suppress(OSError):
            os.unlink(path)
        return None

    def put(self, key: Hashable, block: Bytes) -> None:
        """Keep a block, where there is room for it."""
        path, size = self._path(key), _HEADER_BYTES + len(block)
        temporary = os.path.join(os.path.dirname(path), f".{uuid.uuid4().hex}.tmp")
        if self._is_off or size > self.most_bytes * _FILLED:
            return
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._make_room(size, temporary)
            with open(temporary, "r+b") as file:
                file.write(_header(block).data)
                file.write(block.data)
            os.rename(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            with self._lock:
                said, self._is_off = self._is_off, True
            if not said:
                _log.warning("%s: nothing more is kept there: %s", self.folder, error.strerror)

    def _path(self, key: Hashable) -> str:
        name = hashlib.sha256(repr(key).encode("utf-8", "surrogateescape")).hexdigest()
        return os.path.join(self._home, name[:2], name)

    def _make_room(self, size: int, path: str) -> None:
        """Count so many bytes more, and remove blocks until they fit; they are a file of that path at once, for whoever
        counts all files.
        """
        descriptor = os.open(
            os.path.join(self._home, _USED), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            said = os.pread(descriptor, 32, 0)
            used = int(said) if said.isdigit() else None  # none: nobody has counted, or who did was killed
            if used is None or used + size > self.most_bytes:
                used = self._removed(size)
            with open(path, "xb") as file:
                file.truncate(size)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(used + size).encode(), 0)
        finally:
            os.close(descriptor)

    def _removed(self, size: int) -> int:
        """What is used, after blocks were removed by chance if the limit is near."""
        found = list(self._files())
        used = sum(about.st_size for _, about in found)
        if used + size <= self.most_bytes:
            return used
        random.shuffle(found)
        for path, about in found:
            if used + size <= self.most_bytes * _FILLED:
                break
            if path.endswith(".tmp") and time.time() - about.st_mtime < _LEFT_SEC:
                continue
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            used -= about.st_size
        return used

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        for number in range(256):
            with contextlib.suppress(FileNotFoundError), os.scandir(os.path.join(self._home, f"{number:02x}")) as found:
                for entry in found:
                    with contextlib.suppress(FileNotFoundError):
                        if entry.is_file(follow_symlinks=False):
                            yield entry.path, entry.stat(follow_symlinks=False)


def _header(block: Bytes) -> Bytes:
    return np.concatenate([_MAGIC, np.array([zlib.crc32(block.data), len(block)], "<u4").view(np.uint8)])


def _read(descriptor: int, into: Bytes) -> int:
    done = 0
    while count := os.readv(descriptor, [into[done:]]):
        done += count
    return done
