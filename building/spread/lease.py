"""That a build is alive, said by whoever works for it: a sign in its folder, renewed while work is done.

What follows from its absence is `shards.store_run`'s and `shards.dead_runs`' to say. Nobody's end removes it: a driver
may die while its job goes on, and a worker while others work.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from recordmill.building.spread.place import RUNS, Place
from recordmill.shards.dead_runs import machine
from recordmill.shards.store_run import LEASE, LEASE_SEC, RENEW_SEC
from recordmill.storage.files import put_bytes

_log = logging.getLogger(__name__)
_renewed: dict[Place, float] = {}  # when this process did it last


def renew(place: Place) -> None:
    """Say that the build is alive; not more often than every RENEW_SEC from one process."""
    now = time.monotonic()
    if now - _renewed.get(place, -RENEW_SEC) < RENEW_SEC:
        return
    _renewed[place] = now
    # on a disk, what counts is when something was written in the folder of runs
    path = place.run(LEASE) if place.is_remote else place.run(RUNS, f".{LEASE}")
    put_bytes(path, json.dumps({"host": machine()["host"], "lease_sec": LEASE_SEC}).encode())


@contextmanager
def alive(place: Place) -> Iterator[None]:
    """The build is alive meanwhile, however long it takes."""
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(RENEW_SEC):
            try:
                renew(place)
            except OSError as error:
                _log.warning("%s: the lease can't be renewed: %s", place.out, error.strerror)

    renew(place)
    thread = threading.Thread(target=keep, name="recordmill-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
