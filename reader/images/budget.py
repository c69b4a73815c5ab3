"""`Budget`: memory that threads share, so that what they hold at once stays below a bound."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Budget:
    """So many bytes. What alone needs more waits until nothing else is held, and goes alone."""

    def __init__(self, total_bytes: int) -> None:
        self._total = self._free = max(total_bytes, 1)
        self._changed = threading.Condition()

    @contextmanager
    def held(self, size_bytes: int) -> Iterator[None]:
        """So many bytes of it, while the context lasts."""
        taken = min(size_bytes, self._total)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= taken)
            self._free -= taken
        try:
            yield
        finally:
            with self._changed:
                self._free += taken
                self._changed.notify_all()
