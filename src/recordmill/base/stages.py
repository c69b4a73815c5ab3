"""Seconds that a reader spends in each of its stages, summed over threads."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

STAGES = ("read", "check", "decode", "images", "collate")


class StageClock:
    """Seconds per stage, summed over all threads."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._lock = threading.Lock()

    def add(self, stage: str, seconds: float) -> None:
        """Adds the seconds that a thread spent in a stage."""
        with self._lock:
            self.seconds[stage] += seconds


_active_clocks: list[StageClock] = []


@contextlib.contextmanager
def measure_stages() -> Iterator[StageClock]:
    """Measures the stages of all readers in this process during the `with` block."""
    clock = StageClock()
    _active_clocks.append(clock)
    try:
        yield clock
    finally:
        _active_clocks.remove(clock)


@contextlib.contextmanager
def time_stage(stage: str) -> Iterator[None]:
    """Adds the duration of the `with` block to a stage of all active clocks."""
    if not _active_clocks:
        yield
        return
    start = time.perf_counter()
    try:
        yield
    finally:
        # a copy, because another thread may end a measurement during the loop
        for clock in tuple(_active_clocks):
            clock.add(stage, time.perf_counter() - start)
