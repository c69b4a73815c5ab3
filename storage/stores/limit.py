"""How many requests this process may have under way at once, whatever they are for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

REQUESTS = 64  # by default


class Limit:
    """Slots for requests; who has one may ask again within it. Safe to share between threads."""

    def __init__(self, most: int = REQUESTS) -> None:
        self.most, self._used, self._spared = most, 0, 0
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

    @contextlib.contextmanager
    def spared(self, wanted: int) -> Iterator[int]:
        """Slots for what holds them until others have got on with their own requests: at most half of all slots go to
        those who ask so. Gives how many these are, which may be none.
        """
        with self._freed:
            given = max(min(wanted, self.most // 2 - self._spared), 0)
            self._spared += given
        try:
            if given:
                with self.slots(given):
                    yield given
            else:
                yield 0
        finally:
            with self._freed:
                self._spared -= given


LIMIT = Limit()  # of this process
