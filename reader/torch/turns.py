"""`Turns`: which iteration of a loader has begun, agreed by the workers that iterate together.

A DataLoader starts its workers anew for each iteration, from the object that its own process holds, which hears nothing
of what they did: without a place that all of them see, every iteration would be the first one. That place is a file
without a name; the workers of an iteration know each other by a key.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import weakref
from collections.abc import Iterator
from multiprocessing import context, reduction
from typing import IO, Any

_REMEMBERED = 64  # iterations that may be under way at once
_MOST_BYTES = 1 << 16


class Turns:
    """The number of the iteration that comes next. Forked and spawned children see the same one; a copy that is pickled
    otherwise goes its own way.
    """

    def __init__(self, number: int = 0) -> None:
        self._hold(tempfile.TemporaryFile(prefix="recordmill-", buffering=0))  # noqa: SIM115
        self._write({"next": number, "begun": []})

    def begin(self, key: str, worker: int, number: int | None = None) -> int:
        """The number of the iteration that this worker begins: the one that others of this key began and it did not
        yet, or else the next one, or the one given. (Seeds that a program sets give two iterations the same key.)
        """
        with self._locked():
            known = self._read()
            for other, begun, workers in reversed(known["begun"]):
                if other == key and worker not in workers and number in (None, begun):
                    workers.append(worker)
                    self._write(known)
                    return int(begun)
            mine = known["next"] if number is None else number
            begun_ones = [*known["begun"], [key, mine, [worker]]][-_REMEMBERED:]
            self._write({"next": max(known["next"], mine + 1), "begun": begun_ones})
            return int(mine)

    def restart(self, number: int) -> None:
        """The next iteration has this number, whatever was before."""
        with self._locked():
            self._write({"next": number, "begun": []})

    @property
    def latest(self) -> str | None:
        """The key of the iteration that was begun last."""
        with self._locked():
            begun = self._read()["begun"]
            return begun[-1][0] if begun else None

    @property
    def next(self) -> int:
        """The number of the iteration that comes next."""
        with self._locked():
            return int(self._read()["next"])

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(os.pread(self._file.fileno(), _MOST_BYTES, 0))
        return found

    def _write(self, known: dict[str, Any]) -> None:
        data = json.dumps(known).encode()
        os.pwrite(self._file.fileno(), data, 0)
        os.ftruncate(self._file.fileno(), len(data))

    def __getstate__(self) -> Any:
        if context.get_spawning_popen() is not None:
            return reduction.DupFd(self._file.fileno())
        return (self.next,)

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple):
            self.__init__(*state)  # type: ignore[misc]
        else:
            self._hold(os.fdopen(state.detach(), "r+b", buffering=0))

    def _hold(self, file: IO[bytes]) -> None:
        self._file = file
        weakref.finalize(self, file.close)
