"""How many requests this process may have under way at once, whatever they are for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

REQUESTS = 64  # by default


class Limit:
    """Slots for requests; who has one may ask again within it. Safe to share between threads."""

    def __init__(self, most: int = REQUESTS) -> None:
        self.most, self._used = most, 0
        self._freed, self._own = threading.Condition(), threading.local()

    def set(self, most: int) -> None:
        """From now on so many; those that are under way go on."""
        with self._freed:
            self.most = most
            self._freed.notify_all()

    @contextlib.contextmanager
    def slots(self, wanted: int = 1) -> Iterator[int]:
        """Wait for so many slots, or for all that there are; gives how many these are."""
        if getattr(self._own, "held", 0):
            yield self._own.held
            return
        with self._freed:
            self._freed.wait_for(lambda: self._used + min(wanted, self.most) <= self.most)
            self._own.held = min(wanted, self.most)
            self._used += self._own.held
        try:
            yield self._own.held
        finally:
            with self._freed:
                self._used -= self._own.held
                self._own.held = 0
                self._freed.notify_all()


LIMIT = Limit()  # of this process
