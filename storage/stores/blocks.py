"""Blocks of remote files that were read lately, or are about to be: many small reads are one request, and reading on
waits for none.

What is held is bounded in bytes; the block used longest ago goes first. A block that is on its way is waited for, not
asked for again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future

from recordmill.storage.stores.protocol import Bytes

HELD_BYTES = 128 << 20  # 128 MiB: what 20 threads read ahead of themselves
Key = tuple[Hashable, int]  # what is read, and the block's number


class Blocks:
    """The blocks of all files of this process; safe to share between threads."""

    def __init__(self, most_bytes: int = HELD_BYTES) -> None:
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
