"""A build at work on an OUT in a store: its lease, `OUT/_run-<id>/lease.json`, and what builds left whose lease has run
out.

A lease is an object that is written anew every RENEW_SEC while the build puts its objects there. One that was not for
LEASE_SEC, by the store's own clock, is a dead build's: its objects, which no manifest names, may be removed. The lease
goes last, so that a removal that is stopped is taken up by the next.
"""

from __future__ import annotations

import json
import logging
import threading
from types import TracebackType

from recordmill.base.errors import UsageError
from recordmill.shards.dead_runs import loaded, machine
from recordmill.shards.manifest import DATA_PREFIX, MANIFESTS, RUN_PREFIX, generations
from recordmill.storage.files import listed_objects, put_object, remove_objects

RENEW_SEC, LEASE_SEC = 60, 900  # a build that was not heard of for 15 minutes is dead
LEASE = "lease.json"

_log = logging.getLogger(__name__)


def check_store_out(out: str, overwrite: bool) -> int:
    """The generation that a build into OUT would follow (0: none); UsageError if OUT must not be written to."""
    try:
        numbers = generations(out)
        if numbers and not overwrite:
            raise UsageError(
                f"{out} already holds a data set; --overwrite replaces it (the old one stays readable until the "
                "new one is complete)"
            )
        if numbers:
            loaded(out)
            return numbers[-1]
        strange = next((item.name for item in listed_objects(out) if not _is_ours(item.name)), None)
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror}") from None
    if strange is not None:
        raise UsageError(f"{out} is not empty ({strange}, ...) and holds no data set of recordmill; name a new folder")
    return 0


def _is_ours(name: str) -> bool:
    return name.startswith((RUN_PREFIX, DATA_PREFIX, "rejects/", f"{MANIFESTS}/"))


class StoreRun:
    """Holds the lease of a build, as a context; renewed by a thread of its own."""

    def __init__(self, out: str, identifier: str) -> None:
        self.out, self.id = out, identifier
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="recordmill-lease", daemon=True)

    @property
    def _text(self) -> bytes:
        return json.dumps({"host": machine()["host"], "lease_sec": LEASE_SEC}).encode()

    def __enter__(self) -> StoreRun:
        put_object(f"{self.out}/{RUN_PREFIX}{self.id}/{LEASE}", self._text)
        self._thread.start()
        return self

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_SEC):
            try:
                put_object(f"{self.out}/{RUN_PREFIX}{self.id}/{LEASE}", self._text)
            except OSError as error:
                _log.warning("%s: the lease can't be renewed: %s", self.out, error.strerror)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        try:
            remove_objects(self.out, [f"{RUN_PREFIX}{self.id}/{LEASE}"])
        except OSError as failure:
            _log.warning("%s: the lease of this build can't be removed: %s", self.out, failure.strerror)

    @property
    def is_held(self) -> bool:
        """Whether nobody has taken this build for dead."""
        return any(item.name == LEASE for item in listed_objects(f"{self.out}/{RUN_PREFIX}{self.id}"))

    def left_by_dead(self) -> dict[str, list[str]]:
        """Name of each dead build's run folder to the names of what it left, the lease last."""
        leases = {
            item.name.split("/")[0]: item.changed_sec
            for item in listed_objects(self.out)
            if item.name.startswith(RUN_PREFIX) and item.name.endswith(f"/{LEASE}") and item.name.count("/") == 1
        }
        now = leases.pop(f"{RUN_PREFIX}{self.id}")
        dead = {name for name, changed in leases.items() if now - changed > LEASE_SEC}
        kept = {part.folder for manifest in loaded(self.out).values() for part in manifest.parts} if dead else set()
        return {name: [*self._of(name, kept), f"{name}/{LEASE}"] for name in sorted(dead)}

    def _of(self, name: str, kept: set[str]) -> list[str]:
        data = f"{DATA_PREFIX}{name.removeprefix(RUN_PREFIX)}"
        return [] if data in kept else objects_of(self.out, data)


def objects_of(out: str, data: str) -> list[str]:
    """The names below OUT of all objects that belong to a data folder: its own, and its files of rejects."""
    own = [f"{data}/{item.name}" for item in listed_objects(f"{out}/{data}")]
    prefix = f"{data.removeprefix(DATA_PREFIX)}."
    return own + [f"rejects/{item.name}" for item in listed_objects(f"{out}/rejects") if item.name.startswith(prefix)]
