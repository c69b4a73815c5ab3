"""Times of the reader's threads by stage, while somebody measures: `timed("decode")` stands around what is done.

A stage is entered once for some thousand records, so that looking at the clock costs nothing beside it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

STAGES = ("read", "check", "decode", "images", "collate")


class Clock:
    """Seconds of all threads together, by stage."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._lock = threading.Lock()

    def add(self, stage: str, seconds: float) -> None:
        """Count what a thread spent on a stage."""
        with self._lock:
            self.seconds[stage] += seconds


_running: list[Clock] = []


@contextlib.contextmanager
def measuring() -> Iterator[Clock]:
    """Measures what this process's readers spend within the context."""
    clock = Clock()
    _running.append(clock)
    try:
        yield clock
    finally:
        _running.remove(clock)


@contextlib.contextmanager
def timed(stage: str) -> Iterator[None]:
    """Counts the time of the context as that stage."""
    if not _running:
        yield
        return
    begun = time.perf_counter()
    try:
        yield
    finally:
        for clock in tuple(_running):
            clock.add(stage, time.perf_counter() - begun)
