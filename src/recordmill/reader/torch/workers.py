"""State that the workers of a loader share: which iteration has begun, and where each of them stands in it.

A DataLoader starts its workers anew for each iteration, from the object that its own process holds, which hears nothing
of what they did: without a place that all of them see, every iteration would be the first one. That place is a file
without a name; the workers of an iteration know each other by a key.

How a batch says where the next one of its worker stands:

as they come, bucketed   by its number: a worker takes every so many-th step
packed                   by where its own records end: the steps of the other workers come between, and are passed by
bad records skipped      by its last record: the batch may be filled up in the middle of the worker's next step
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing import context, reduction
from typing import IO, Any

from recordmill.base.errors import UsageError
from recordmill.reader.batches.plan import StepPlan
from recordmill.reader.sampling.schedule import Schedule, State, check_state
from recordmill.reader.torch.tensors import BatchPlace

_REMEMBERED = 64  # iterations that may be under way at once
_MOST_BYTES = 1 << 16


class IterationCounter:
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


@dataclass
class WorkerPosition:
    """Position of one worker.

    Attributes:
        course: the steps of this worker from where the run began.
        at: where its next step stands.
        others: packed, how many steps of other workers come before that one.
        had: with bad records skipped, the position in that step up to which its records were given.
        over: the worker has had all of them.
    """

    plan: StepPlan
    number: int
    worker: int
    workers: int
    at: Schedule
    over: bool = False
    others: int = 0
    had: int = 0

    @classmethod
    def first(cls, plan: StepPlan, number: int, worker: int, workers: int) -> WorkerPosition:
        """Returns the position at an iteration's begin."""
        own = plan.share(worker, workers)
        if plan.packs is not None:
            return cls(own, number, worker, workers, plan.schedule, plan.schedule.remaining == 0, worker)
        at = own.schedule if plan.buckets is None else _ahead(plan.after(0), worker)
        return cls(own, number, worker, workers, at, at.remaining == 0)

    @classmethod
    def loaded(
        cls, begin: StepPlan, state: Mapping[str, Any], epochs: int | None, worker: int, workers: int
    ) -> WorkerPosition:
        """Returns the position of a state. `begin` is the first iteration, without end; `epochs` is of each.

        Raises:
            UsageError: it is a state of something else, or of another worker.
        """
        check_state(state)
        named = {name: state.get(name) for name in ("worker", "workers")}
        if named != {"worker": worker, "workers": workers}:
            raise UsageError(
                f"state is of worker {named['worker']} of {named['workers']}, and this is {worker} of {workers}: a run "
                "goes on with another number of workers from state_after(steps), given as state="
            )
        over, others, had = bool(state.get("over")), _number(state, "others"), _number(state, "had")
        at = begin.schedule.at(state)
        number = 0 if epochs is None else at.epoch // epochs - over
        until = None if epochs is None else (number + 1) * epochs
        plan = begin.at(state)
        plan = replace(plan, schedule=replace(plan.schedule, epochs=until), every=workers)
        if plan.packs is not None:
            plan = replace(plan, done=others)
        return cls(plan, number, worker, workers, replace(at, epochs=until), over, others, had)

    def advance(self, place: BatchPlace, skip: bool) -> None:
        """One step of this worker is done, and the next one stands there, if its number does not say it."""
        if place is None:
            self.at = _ahead(self.at, self.workers)
        elif skip:
            self._filled_up(*place)
        else:
            self.at, self.others = replace(self.at, epoch=place[0], position=place[1]), self.workers - 1
        self.over = self.at.remaining == 0

    def end(self) -> None:
        """There is no further step."""
        if self.at.epochs is not None and self.at.remaining:
            self.at = replace(self.at, epoch=self.at.epochs, position=0)
        self.over = True

    def state(self) -> State:
        """Returns the position as JSON takes it."""
        given = {**self.plan.state(self.at), "over": self.over, "worker": self.worker, "workers": self.workers}
        given |= {"others": self.others} if self.others else {}
        return given | ({"had": self.had} if self.had else {})

    def _filled_up(self, epoch: int, position: int) -> None:
        """The last batch ends there, in one of this worker's own steps, or at its end."""
        begin = self.plan.schedule
        span, first = begin.steps.span, begin.position if epoch == begin.epoch else 0
        step = first + (position - 1 - first) // span * span
        self.at, self.had = replace(self.at, epoch=epoch, position=step), position
        if position >= min(step + span, begin.steps.records):
            self.at, self.had = _ahead(self.at, self.workers), 0


def _ahead(at: Schedule, steps: int) -> Schedule:
    left = at.remaining
    return at.after(steps if left is None else min(steps, left))


def _number(state: Mapping[str, Any], name: str) -> int:
    value = state.get(name, 0)
    if not isinstance(value, int) or value < 0:
        raise UsageError(f"state has {name} {value!r}, which is no number from 0 on")
    return value
