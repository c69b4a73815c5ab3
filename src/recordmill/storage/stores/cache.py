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
import stat
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
        self._bounds, self._used = [most_bytes], 0  # of all calls at work, and of this process
        self._held: OrderedDict[Key, Bytes] = OrderedDict()  # the one that was asked for last stands last
        self.begin_child()

    def begin_child(self) -> None:
        """This process was forked: what threads of the other one had under way does not come."""
        self._lock = threading.Lock()
        self._coming: dict[Key, Future[Bytes]] = {}

    @property
    def most_bytes(self) -> int:
        """How much is held: what the tightest of the calls at work allows."""
        return min(self._bounds)

    @contextlib.contextmanager
    def within(self, most_bytes: int) -> Iterator[None]:
        """Hold at most so much while a call lasts."""
        with self._lock:
            self._bounds.append(most_bytes)
            self._let_go()
        try:
            yield
        finally:
            with self._lock:
                self._bounds.remove(most_bytes)

    def __contains__(self, key: Key) -> bool:
        return key in self._held or key in self._coming

    def begin(self, key: Key, read: Callable[[], Bytes], submit: Callable[..., Future[None]]) -> None:
        """Have the block read by another thread, unless it is there or on its way."""
        if key in self:
            return
        found, is_mine = self._find(key)
        if is_mine:
            try:
                submit(self._read, key, found, read)
            except BaseException as error:
                self._fail(key, found, error)
                raise

    def get(self, key: Key, read: Callable[[], Bytes]) -> Bytes:
        """The block, which this thread reads if nobody has it. Whatever `read` raises is raised, and not held."""
        found, is_mine = self._find(key)
        if is_mine:
            self._read(key, found, read)
        return found.result()

    def _find(self, key: Key) -> tuple[Future[Bytes], bool]:
        """(the block, there or coming; whether the caller is to read it)."""
        with self._lock:
            if (coming := self._coming.get(key)) is not None:
                return coming, False
            found: Future[Bytes] = Future()
            if (block := self._held.get(key)) is not None:
                self._held.move_to_end(key)
                found.set_result(block)
                return found, False
            self._coming[key] = found
            return found, True

    def _read(self, key: Key, mine: Future[Bytes], read: Callable[[], Bytes]) -> None:
        try:
            block = read()
        except BaseException as error:
            self._fail(key, mine, error)
            return
        with self._lock:
            del self._coming[key]
            self._held[key] = block
            self._used += len(block)
            self._let_go()
        mine.set_result(block)

    def _fail(self, key: Key, mine: Future[Bytes], error: BaseException) -> None:
        with self._lock:
            self._coming.pop(key, None)
        mine.set_exception(error)

    def _let_go(self) -> None:
        while self._used > self.most_bytes:
            self._used -= len(self._held.popitem(last=False)[1])


FOLDER = "recordmill-blocks"  # in the folder that the user names; nothing else there is touched
_MAGIC = np.frombuffer(b"RMBLOCK2", np.uint8)
_HEADER_BYTES = len(_MAGIC) + 8  # and the CRC and the length, 32 bits each
_USED = "used"  # the file that is locked by who counts, with the count in it
_FILLED = 0.9  # of the limit, to which blocks are removed: one look at all of them makes room for many
_LEFT_SEC = 600  # a block that is not whole after 10 minutes is a dead process's
_LOCKED_SEC = 10.0  # nobody who counts holds the lock as long; who is stopped may hold it for ever
_OWN_NAME = re.compile(r"[0-9a-f]{64}|\.[0-9a-f]{32}\.tmp")  # of a block, whole or not yet

_log = logging.getLogger(__name__)


class DiskCache:
    """See the module. Safe to share between threads and processes.

    Whoever may write to the folder may put anything there: below it no link is followed, no pipe is waited for, a block
    is none of another key, and what has no name of a block is left alone.
    """

    def __init__(self, folder: str, most_bytes: int) -> None:
        self.folder, self.most_bytes = folder, most_bytes
        self._is_off, self._lock = False, threading.RLock()

    def get(self, key: Hashable, size: int) -> Bytes | None:
        """The block of that size, in memory of the caller's own; None where it is not there, or damaged."""
        name = _name_of(key)
        with contextlib.suppress(OSError), self._home() as home, _entered(name[:2], home) as folder:
            whole = np.empty(_HEADER_BYTES + size + 1, np.uint8)  # a byte more than it may have
            with _opened(name, folder, os.O_RDONLY) as file:
                got = _read(file, whole)
            block = whole[_HEADER_BYTES : _HEADER_BYTES + size]
            if got == _HEADER_BYTES + size and np.array_equal(whole[:_HEADER_BYTES], _header(name, block)):
                return block
            _log.warning("%s: is damaged, and is fetched again", os.path.join(self.folder, FOLDER, name[:2], name))
            os.unlink(name, dir_fd=folder)
        return None

    def put(self, key: Hashable, block: Bytes) -> None:
        """Keep a block, where there is room for it."""
        name, temporary = _name_of(key), f".{uuid.uuid4().hex}.tmp"
        if self._is_off or _HEADER_BYTES + len(block) > self.most_bytes * _FILLED:
            return
        try:
            os.makedirs(self.folder, exist_ok=True)
            with self._home(make=True) as home, _entered(name[:2], home, make=True) as folder:
                try:
                    if self._begin(home, folder, temporary, _HEADER_BYTES + len(block)):
                        with _opened(temporary, folder, os.O_WRONLY) as file, open(file, "wb", closefd=False) as whole:
                            whole.write(_header(name, block).data)
                            whole.write(block.data)
                        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                except OSError:
                    with contextlib.suppress(OSError):
                        os.unlink(temporary, dir_fd=folder)
                    raise
        except OSError as error:
            self._turn_off(error.strerror)

    def _turn_off(self, reason: str | None) -> None:
        with self._lock:
            if not self._is_off:
                _log.warning("%s: nothing more is kept there: %s", self.folder, reason)
            self._is_off = True

    def _home(self, *, make: bool = False) -> contextlib.AbstractContextManager[int]:
        """The folder of all blocks. What the user named may be a link."""
        return _entered(os.path.join(self.folder, FOLDER), make=make)

    def _begin(self, home: int, folder: int, name: str, size: int) -> bool:
        """Count so many bytes more, and remove blocks until they fit; they are a file of that name at once, for whoever
        counts all files. False if nobody comes to count.
        """
        with self._lock, _opened(_USED, home, os.O_RDWR | os.O_CREAT) as used:
            if os.fstat(used).st_nlink > 1:
                raise OSError(errno.EMLINK, f"{_USED} is somebody else's file")
            until = time.monotonic() + _LOCKED_SEC
            while not self._is_off and not _lock(used):
                if time.monotonic() > until:
                    self._turn_off("another process does not let go of its lock")
                time.sleep(random.uniform(0.001, 0.01))
            if self._is_off:
                return False
            said = os.pread(used, 32, 0)
            count = int(said) if said.isdigit() else None  # none: nobody has counted, or who did was killed
            if count is None or count + size > self.most_bytes:
                count = self._removed(home, size)
            with _opened(name, folder, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
                os.ftruncate(file, size)
            os.ftruncate(used, 0)
            os.pwrite(used, str(count + size).encode(), 0)
            return True

    def _removed(self, home: int, size: int) -> int:
        """What is used, after blocks were removed by chance if the limit is near."""
        found = list(_blocks(home))
        used = sum(about.st_size for _, _, about in found)
        if used + size <= self.most_bytes:
            return used
        random.shuffle(found)
        for group, name, about in found:
            if used + size <= self.most_bytes * _FILLED:
                break
            if name.endswith(".tmp") and time.time() - about.st_mtime < _LEFT_SEC:
                continue
            with contextlib.suppress(FileNotFoundError), _entered(group, home) as folder:
                os.unlink(name, dir_fd=folder)
            used -= about.st_size
        return used


def _name_of(key: Hashable) -> str:
    return hashlib.sha256(repr(key).encode("utf-8", "surrogateescape")).hexdigest()


def _header(name: str, block: Bytes) -> Bytes:
    """What stands before a block of that name, and of no other."""
    crc = zlib.crc32(block.data, zlib.crc32(name.encode()))
    return np.concatenate([_MAGIC, np.array([crc, len(block)], "<u4").view(np.uint8)])


@contextlib.contextmanager
def _entered(name: str, above: int | None = None, *, make: bool = False) -> Iterator[int]:
    """A folder, of another one or by its path, as a descriptor; OSError if the name is a link or no folder."""
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=above)
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        yield folder
    finally:
        os.close(folder)


@contextlib.contextmanager
def _opened(name: str, folder: int, flags: int) -> Iterator[int]:
    """A file as a descriptor, for which nothing is waited; OSError if it is a link, a pipe or anything else."""
    file = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, f"{name} is no file")
        yield file
    finally:
        os.close(file)


def _lock(file: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _blocks(home: int) -> Iterator[tuple[str, str, os.stat_result]]:
    """(folder, name, state) of the files that have names of blocks."""
    for group in (f"{number:02x}" for number in range(256)):
        with contextlib.suppress(OSError), _entered(group, home) as folder:
            for name in os.listdir(folder):
                if _OWN_NAME.fullmatch(name) and name.startswith((group, ".")):
                    with contextlib.suppress(FileNotFoundError):
                        about = os.stat(name, dir_fd=folder, follow_symlinks=False)
                        if stat.S_ISREG(about.st_mode):
                            yield group, name, about


def _read(descriptor: int, into: Bytes) -> int:
    done = 0
    while count := os.readv(descriptor, [into[done:]]):
        done += count
    return done
