"""`Run`: where one worker of a loader stands in an iteration, and the state that goes on there.

In how far a batch says where the next one of its worker stands:

as they come, bucketed   by its number: a worker takes every so many-th step
packed                   by where its own records end: the steps of the other workers come between, and are passed by
bad records skipped      by its last record: the batch may be filled up in the middle of the worker's next step
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from recordmill.base.errors import UsageError
from recordmill.reader.collating.course import Course
from recordmill.reader.sampling.schedule import Schedule, State
from recordmill.reader.torch.given import Place


@dataclass
class Run:
    """course: the steps of this worker from where the run began. at: where its next step stands. others: packed, how
    many steps of other workers come before that one. had: with bad records skipped, the position in that step up to
    which its records were given. over: the worker has had all of them.
    """

    course: Course
    number: int
    worker: int
    workers: int
    at: Schedule
    over: bool = False
    others: int = 0
    had: int = 0

    @classmethod
    def first(cls, course: Course, number: int, worker: int, workers: int) -> Run:
        """From an iteration's begin."""
        own = course.share(worker, workers)
        if course.packs is not None:
            return cls(own, number, worker, workers, course.schedule, course.schedule.remaining == 0, worker)
        at = own.schedule if course.buckets is None else _ahead(course.after(0), worker)
        return cls(own, number, worker, workers, at, at.remaining == 0)

    @classmethod
    def loaded(cls, begin: Course, state: Mapping[str, Any], epochs: int | None, worker: int, workers: int) -> Run:
        """From a state on. begin: of the first iteration, without end; epochs: of each.

        Raises:
            UsageError: it is a state of something else, or of another worker.
        """
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
        course = begin.at(state)
        course = replace(course, schedule=replace(course.schedule, epochs=until), every=workers)
        if course.packs is not None:
            course = replace(course, done=others)
        return cls(course, number, worker, workers, replace(at, epochs=until), over, others, had)

    def advance(self, place: Place, skip: bool) -> None:
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
        """As JSON takes it."""
        given = {**self.course.state(self.at), "over": self.over, "worker": self.worker, "workers": self.workers}
        given |= {"others": self.others} if self.others else {}
        return given | ({"had": self.had} if self.had else {})

    def _filled_up(self, epoch: int, position: int) -> None:
        """The last batch ends there, in one of this worker's own steps, or at its end."""
        begin = self.course.schedule
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
