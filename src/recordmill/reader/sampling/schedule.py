"""`Steps`: which positions of an epoch each step gets, and which of them each host. `Schedule`: every step of a run
from a position on, and a state in JSON from which another run goes on.

A step of all hosts together is `batch_size * num_hosts` consecutive positions, cut into equal parts, so that every
host has equally many batches. The positions that are left at an epoch's end are a shorter batch (on one host), are
left out, or are filled up with the epoch's first ones. The position counts the records of the epoch that all hosts
together have had, so a run goes on on another number of hosts with exactly those that nobody has had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import Int64s
from recordmill.base.errors import UsageError
from recordmill.base.sizes import to_whole_number
from recordmill.reader.sampling.sampler import MixtureSampler, Sampler

End = Literal["short", "drop", "pad"]


@dataclass(frozen=True)
class StepRange:
    """Steps of one epoch: so many, from a position on, each of them or every so many-th one."""

    epoch: int
    position: int
    steps: int
    every: int = 1


@dataclass(frozen=True)
class Steps:
    """Division of an epoch into steps.

    Attributes:
        records: of an epoch.
        batch_size: of one host.
        end: what becomes of the positions that do not fill a step.

    Raises:
        UsageError: a number is none.
    """

    records: int
    batch_size: int
    end: End = "short"
    num_hosts: int = 1
    host_index: int = 0

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("num_hosts", 1), ("host_index", None)):
            object.__setattr__(self, name, to_whole_number(getattr(self, name), name, least))
        if not 0 <= self.host_index < self.num_hosts:
            raise UsageError(
                f"host_index must be from 0 to {self.num_hosts - 1} (num_hosts - 1), not {self.host_index}"
            )

    @property
    def span(self) -> int:
        """Positions of one step of all hosts."""
        return self.batch_size * self.num_hosts

    def count(self, position: int = 0) -> int:
        """Returns how many steps an epoch has from a position on.

        >>> Steps(100, 8).count(), Steps(100, 8, "drop").count(), Steps(100, 8, "pad", num_hosts=3).count(48)
        (13, 12, 3)
        """
        left = max(self.records - position, 0)
        return left // self.span if self.end == "drop" else -(-left // self.span)

    def positions(self, step_range: StepRange) -> Int64s:
        """Returns [rows] this host's positions of these steps, one step after the other; those from `records` on are
        none, but fill a batch up.
        """
        steps = step_range.position + self.span * step_range.every * np.arange(
            step_range.steps, dtype=np.int64
        )
        rows = self.batch_size if self.end == "pad" else min(self.batch_size, self.records)
        own = steps[:, None] + (self.host_index * self.batch_size + np.arange(rows, dtype=np.int64))
        flat = own.reshape(-1)
        return flat if self.end == "pad" else flat[flat < self.records]


State = dict[str, Any]


def check_state(state: Any) -> None:
    """Raises UsageError for a state that no `state()` gave."""
    if not isinstance(state, Mapping):
        raise UsageError(f"state is a mapping, as `state()` gives it, not {state!r:.99}")


_FORMAT = 1  # of a state; another meaning of its fields, or another order, is another format


@dataclass(frozen=True)
class Schedule:
    """Steps of one or more epochs.

    Attributes:
        epochs: how often all records are given, counted from the very first; None: without end.
        epoch: where it begins.
        position: where it begins in that epoch.
    """

    sampler: Sampler | MixtureSampler
    steps: Steps
    epochs: int | None = 1
    epoch: int = 0
    position: int = 0

    def __post_init__(self) -> None:
        if self.epochs is not None and self.epochs < 0:
            raise UsageError(f"epochs must be 0 or more, or None for no end, not {self.epochs}")

    @property
    def remaining(self) -> int | None:
        """Returns how many steps are left; None without end."""
        if not self.steps.records or (self.epochs is not None and self.epoch >= self.epochs):
            return 0
        if self.epochs is None:
            return None if self.steps.count() or self.steps.count(self.position) else 0
        return self.steps.count(self.position) + (self.epochs - self.epoch - 1) * self.steps.count()

    def step_ranges(
        self, most: int, *, by_windows: bool = False, every: int = 1
    ) -> Iterator[StepRange]:
        """Yields all steps that are left, at most so many at once; never of two epochs.

        Args:
            most: steps at once.
            by_windows: none of a window that the step before does not reach into.
            every: only the first step and every so many-th one after it, counted across the ends of epochs: the share
                of one of so many that take turns.
        """
        if self.remaining == 0:
            return  # and not for ever nothing
        position, step = self.position, 0
        for epoch in count(self.epoch) if self.epochs is None else range(self.epoch, self.epochs):
            left = self.steps.count(position)
            while step < left:
                begin = position + step * self.steps.span
                taken = min(-(-(left - step) // every), most)
                if by_windows:
                    window_end = self.sampler.window_of(epoch, begin)[1]
                    taken = min(taken, -(-(window_end - begin) // (self.steps.span * every)))
                yield StepRange(epoch, begin, taken, every)
                step += taken * every
            position, step = 0, step - left

    def numbers(self, step_range: StepRange) -> Int64s:
        """Returns [rows] the records of this host's batches of a stretch, one after the other."""
        return self.sampler.at(
            step_range.epoch, self.steps.positions(step_range) % max(self.steps.records, 1)
        )

    def passes(self, step_range: StepRange) -> Int64s:
        """Returns [rows] which pass over all records each of these numbers is of: within one, files are read to
        their ends once. What fills a batch up is of a pass of its own.
        """
        rounds, positions = np.divmod(self.steps.positions(step_range), max(self.steps.records, 1))
        return 2 * self.sampler.passes(step_range.epoch, positions) + np.minimum(rounds, 1)

    def mask(self, step_range: StepRange) -> npt.NDArray[np.bool_]:
        """Returns [rows] which of them count, and don't only fill a batch up."""
        counted: npt.NDArray[np.bool_] = self.steps.positions(step_range) < self.steps.records
        return counted

    def after(self, step: int) -> Schedule:
        """Returns what is left when so many steps of it are done; UsageError where it has not so many."""
        if step < 0 or (self.remaining is not None and step > self.remaining):
            raise UsageError(f"step {step} of {self.remaining}")
        left = self.steps.count(self.position)
        if step < left:
            return replace(self, position=self.position + step * self.steps.span)
        epochs, steps = divmod(step - left, max(self.steps.count(), 1))
        return replace(self, epoch=self.epoch + 1 + epochs, position=steps * self.steps.span)

    def end(self) -> Schedule:
        """Returns what is left after all of it: nothing, but where it has no end."""
        return self if self.epochs is None else replace(self, epoch=self.epochs, position=0)

    def steps_before(self, epoch: int, position: int) -> int:
        """Returns how many of its steps come before the one that begins at this place."""
        if epoch == self.epoch:
            return (position - self.position) // self.steps.span
        whole = (epoch - self.epoch - 1) * self.steps.count()
        return self.steps.count(self.position) + whole + position // self.steps.span

    def iteration(self, number: int, epochs: int | None) -> Schedule:
        """Returns the schedule of an iteration of `epochs` epochs: the first one, number 0, has what is left of so
        many, each other one so many more.
        """
        if epochs is None:
            return self
        first = self.epoch // epochs + number
        until = replace(self, epochs=(first + 1) * epochs)
        return until if number == 0 else replace(until, epoch=first * epochs, position=0)

    def state(self) -> State:
        """Returns where it begins, as JSON takes it."""
        return {"format": _FORMAT, **self._named(), "epoch": self.epoch, "position": self.position}

    def at(self, state: Mapping[str, Any]) -> Schedule:
        """Returns the schedule from a state on, which may be that of another number of hosts, but not of other data or
        options.
        """
        wanted = {"format": _FORMAT, **self._named()}
        for name, value in wanted.items():
            if name not in state:
                raise UsageError(f"state has no {name!r}: it is none that `state()` gave")
            if state[name] != value:
                raise UsageError(
                    f"state is of another {_SAID.get(name, name)}: {state[name]!r} where it is {value!r} now; its "
                    "position would be that of other records"
                )
        epoch, position = state.get("epoch"), state.get("position")
        if not (isinstance(epoch, int) and isinstance(position, int) and min(epoch, position) >= 0):
            raise UsageError(
                f"state has epoch {epoch!r} and position {position!r}, which are no numbers from 0 on"
            )
        if position > self.steps.records:
            raise UsageError(
                f"state has position {position}, and an epoch has {self.steps.records} records"
            )
        return replace(self, epoch=epoch, position=position)

    def _named(self) -> dict[str, Any]:
        named = {
            "data": self.sampler.fingerprint,
            "records": self.sampler.records,
            "shuffle": self.sampler.mode,
            "seed": self.sampler.seed,
            "batch_size": self.steps.batch_size,
        }
        return (
            {**named, "window_bytes": self.sampler.window_bytes}
            if self.sampler.mode == "window"
            else named
        )


_SAID = {
    "data": "data set (its files, or `where`)",
    "records": "number of records",
    "shuffle": "mode (shuffle)",
}
