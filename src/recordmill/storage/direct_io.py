"""`DirectFiles`: new files written past the system's cache, by a thread of its own, while the next bytes are made.

What must be durable before anything counts goes to the disk anyway. On the way through the cache it is copied by the
processor into pages that the system must find first, and waits for the disk at the end (934 MB of shards: 0.2 to 2.4 s
of the processor by how many pages have to be found, and 0.3 s at the end; past the cache 0.04 s, and nothing at the
end). So whoever reads the files next reads them from the disk. Where a file system wants nothing of it, the same thread
writes as usual.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

_BUFFER_BYTES = (
    1 << 20
)  # 1 MiB: a disk is no quicker with more at once, and it is copied within the processor's cache
_MAX_BUFFERS = 4  # of them one is filled, one is written, and two are the slack between
_ALIGN_BYTES = (
    4096  # bytes: of offsets, lengths and addresses; a multiple of what any known disk asks for
)
_DIRECT_FLAG = getattr(os, "O_DIRECT", 0)  # 0: a system without it

Buffer = npt.NDArray[np.uint8]


class DirectFiles:
    """Makes such files; use it in a `with` block, in which no more than one of them may be written to at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="recordmill")
        self._idle_buffers: queue.SimpleQueue[Buffer] = queue.SimpleQueue()
        self._num_buffers, self._lock = 0, threading.Lock()
        self._open_files: set[DirectFile] = set()

    def __enter__(self) -> DirectFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True)
        for file in list(self._open_files):  # of work that failed
            file.abort()

    def create(self, path: str | Path) -> DirectFile:
        """A new file; FileExistsError if the name is taken."""
        file = DirectFile(
            self, os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        )
        self._open_files.add(file)
        return file

    def discard(self, file: DirectFile) -> None:
        """Takes the file out of its files."""
        self._open_files.discard(file)

    def acquire_buffer(self) -> Buffer:
        """A buffer to fill, when there is one."""
        with self._lock:
            if self._idle_buffers.empty() and self._num_buffers < _MAX_BUFFERS:
                self._num_buffers += 1
                return np.frombuffer(mmap.mmap(-1, _BUFFER_BYTES), np.uint8)  # begins with a page
        return self._idle_buffers.get()

    def submit_write(
        self, write: Callable[[Buffer], None], buffer: Buffer, size: int
    ) -> Future[None]:
        """Have the buffer's first bytes put into their file, and the buffer be idle then."""

        def write_and_release() -> None:
            try:
                write(buffer[:size])
            finally:
                self._idle_buffers.put(buffer)

        return self._pool.submit(write_and_release)


class DirectFile:
    """A file in the making. An error of the disk is raised by a later `write`, or by `wait`."""

    def __init__(self, owner: DirectFiles, descriptor: int) -> None:
        self._owner, self._descriptor = owner, descriptor
        self._is_direct, self._is_unsupported = False, not _DIRECT_FLAG
        self._buffer: Buffer | None = None
        self._num_filled = 0  # bytes in the buffer
        self._pending: deque[Future[None]] = deque()

    def write(self, data: bytes | memoryview | Buffer) -> int:
        """Take all of it; gives its number of bytes."""
        view, num_written = np.frombuffer(data, np.uint8), 0
        while num_written < len(view):
            if self._buffer is None:
                self._raise_errors()
                self._buffer = self._owner.acquire_buffer()
            num_copied = min(_BUFFER_BYTES - self._num_filled, len(view) - num_written)
            self._buffer[self._num_filled : self._num_filled + num_copied] = view[
                num_written : num_written + num_copied
            ]
            self._num_filled, num_written = self._num_filled + num_copied, num_written + num_copied
            if self._num_filled == _BUFFER_BYTES:
                self._submit_buffer()
        return len(view)

    def close(self) -> None:
        """Nothing more is written; `wait` tells when all is."""
        self._submit_buffer()

    def wait(self) -> None:
        """Until all is written; OSError as the system says it."""
        try:
            while self._pending:
                self._pending.popleft().result()
        finally:
            self.abort()

    def abort(self) -> None:
        """Write nothing more; what is on its way is waited for."""
        for future in self._pending:
            with contextlib.suppress(Exception):
                future.result()
        self._pending.clear()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._owner.discard(self)

    def _submit_buffer(self) -> None:
        buffer, size, self._buffer, self._num_filled = self._buffer, self._num_filled, None, 0
        if buffer is not None:
            self._pending.append(self._owner.submit_write(self._write_buffer, buffer, size))

    def _raise_errors(self) -> None:
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()

    def _write_buffer(self, data: Buffer) -> None:
        """Full buffers go past the cache; what is less, at the end of a file or all of a small one, through it, since
        the disk would have to be waited for then, and `fsync` has several such files written at once.
        """
        self._set_direct(enabled=len(data) == _BUFFER_BYTES)
        num_written = 0
        while num_written < len(data):
            try:
                num_written += os.write(self._descriptor, data[num_written:])
            except OSError as error:
                if error.errno != errno.EINVAL or not self._is_direct:
                    raise
                self._is_unsupported = True
            if (
                num_written % _ALIGN_BYTES or self._is_unsupported
            ):  # cut short by the system, or nothing for this file system
                self._set_direct(enabled=False)

    def _set_direct(self, *, enabled: bool) -> None:
        """Write past the cache, where that can be, or not."""
        enabled = enabled and not self._is_unsupported
        if enabled == self._is_direct:
            return
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(
                self._descriptor,
                fcntl.F_SETFL,
                flags | _DIRECT_FLAG if enabled else flags & ~_DIRECT_FLAG,
            )
            self._is_direct = enabled
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._is_unsupported = True
