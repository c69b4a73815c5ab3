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

Remainder = Literal["short", "drop", "pad"]


@dataclass(frozen=True)
class StepRange:
    """Steps of one epoch: so many, from a position on, each of them or every so many-th one."""

    epoch: int
    position: int
    num_steps: int
    step_stride: int = 1


@dataclass(frozen=True)
class EpochSteps:
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
    remainder: Remainder = "short"
    num_hosts: int = 1
    host_index: int = 0

    def __post_init__(self) -> None:
        for name, minimum in (("batch_size", 1), ("num_hosts", 1), ("host_index", None)):
            object.__setattr__(self, name, to_whole_number(getattr(self, name), name, minimum))
        if not 0 <= self.host_index < self.num_hosts:
            raise UsageError(
                f"host_index must be from 0 to {self.num_hosts - 1} (num_hosts - 1), not {self.host_index}"
            )

    @property
    def global_batch_size(self) -> int:
        """Positions of one step of all hosts."""
        return self.batch_size * self.num_hosts

    def count_steps(self, position: int = 0) -> int:
        """Returns how many steps an epoch has from a position on.

        >>> Steps(100, 8).count(), Steps(100, 8, "drop").count(), Steps(100, 8, "pad", num_hosts=3).count(48)
        (13, 12, 3)
        """
        remaining_records = max(self.records - position, 0)
        return (
            remaining_records // self.global_batch_size
            if self.remainder == "drop"
            else -(-remaining_records // self.global_batch_size)
        )

    def positions(self, step_range: StepRange) -> Int64s:
        """Returns [rows] this host's positions of these steps, one step after the other; those from `records` on are
        none, but fill a batch up.
        """
        step_starts = (
            step_range.position
            + self.global_batch_size
            * step_range.step_stride
            * np.arange(step_range.num_steps, dtype=np.int64)
        )
        rows = self.batch_size if self.remainder == "pad" else min(self.batch_size, self.records)
        positions = step_starts[:, None] + (
            self.host_index * self.batch_size + np.arange(rows, dtype=np.int64)
        )
        flat = positions.reshape(-1)
        return flat if self.remainder == "pad" else flat[flat < self.records]


State = dict[str, Any]


def check_state(state: Any) -> None:
    """Raises UsageError for a state that no `state()` gave."""
    if not isinstance(state, Mapping):
        raise UsageError(f"state is a mapping, as `state()` gives it, not {state!r:.99}")


_STATE_FORMAT = 1  # of a state; another meaning of its fields, or another order, is another format


@dataclass(frozen=True)
class Schedule:
    """Steps of one or more epochs.

    Attributes:
        epochs: how often all records are given, counted from the very first; None: without end.
        epoch: where it begins.
        position: where it begins in that epoch.
    """

    sampler: Sampler | MixtureSampler
    epoch_steps: EpochSteps
    end_epoch: int | None = 1
    epoch: int = 0
    position: int = 0

    def __post_init__(self) -> None:
        if self.end_epoch is not None and self.end_epoch < 0:
            raise UsageError(f"epochs must be 0 or more, or None for no end, not {self.end_epoch}")

    @property
    def remaining_steps(self) -> int | None:
        """Returns how many steps are left; None without end."""
        if not self.epoch_steps.records or (
            self.end_epoch is not None and self.epoch >= self.end_epoch
        ):
            return 0
        if self.end_epoch is None:
            return (
                None
                if self.epoch_steps.count_steps() or self.epoch_steps.count_steps(self.position)
                else 0
            )
        return (
            self.epoch_steps.count_steps(self.position)
            + (self.end_epoch - self.epoch - 1) * self.epoch_steps.count_steps()
        )

    def step_ranges(
        self, max_steps: int, *, stop_at_windows: bool = False, step_stride: int = 1
    ) -> Iterator[StepRange]:
        """Yields all steps that are left, at most so many at once; never of two epochs.

        Args:
            most: steps at once.
            by_windows: none of a window that the step before does not reach into.
            every: only the first step and every so many-th one after it, counted across the ends of epochs: the share
                of one of so many that take turns.
        """
        if self.remaining_steps == 0:
            return  # and not for ever nothing
        position, step_index = self.position, 0
        for epoch in (
            count(self.epoch) if self.end_epoch is None else range(self.epoch, self.end_epoch)
        ):
            epoch_remaining = self.epoch_steps.count_steps(position)
            while step_index < epoch_remaining:
                first_position = position + step_index * self.epoch_steps.global_batch_size
                num_steps = min(-(-(epoch_remaining - step_index) // step_stride), max_steps)
                if stop_at_windows:
                    window_end = self.sampler.window_bounds(epoch, first_position)[1]
                    num_steps = min(
                        num_steps,
                        -(
                            -(window_end - first_position)
                            // (self.epoch_steps.global_batch_size * step_stride)
                        ),
                    )
                yield StepRange(epoch, first_position, num_steps, step_stride)
                step_index += num_steps * step_stride
            position, step_index = 0, step_index - epoch_remaining

    def record_numbers(self, step_range: StepRange) -> Int64s:
        """Returns [rows] the records of this host's batches of a stretch, one after the other."""
        return self.sampler.record_numbers(
            step_range.epoch,
            self.epoch_steps.positions(step_range) % max(self.epoch_steps.records, 1),
        )

    def pass_numbers(self, step_range: StepRange) -> Int64s:
        """Returns [rows] which pass over all records each of these numbers is of: within one, files are read to
        their ends once. What fills a batch up is of a pass of its own.
        """
        repetitions, positions = np.divmod(
            self.epoch_steps.positions(step_range), max(self.epoch_steps.records, 1)
        )
        return 2 * self.sampler.pass_numbers(step_range.epoch, positions) + np.minimum(
            repetitions, 1
        )

    def mask(self, step_range: StepRange) -> npt.NDArray[np.bool_]:
        """Returns [rows] which of them count, and don't only fill a batch up."""
        mask: npt.NDArray[np.bool_] = (
            self.epoch_steps.positions(step_range) < self.epoch_steps.records
        )
        return mask

    def skip_steps(self, num_steps: int) -> Schedule:
        """Returns what is left when so many steps of it are done; UsageError where it has not so many."""
        if num_steps < 0 or (self.remaining_steps is not None and num_steps > self.remaining_steps):
            raise UsageError(f"step {num_steps} of {self.remaining_steps}")
        epoch_remaining = self.epoch_steps.count_steps(self.position)
        if num_steps < epoch_remaining:
            return replace(
                self, position=self.position + num_steps * self.epoch_steps.global_batch_size
            )
        epochs, steps = divmod(num_steps - epoch_remaining, max(self.epoch_steps.count_steps(), 1))
        return replace(
            self, epoch=self.epoch + 1 + epochs, position=steps * self.epoch_steps.global_batch_size
        )

    def skip_all(self) -> Schedule:
        """Returns what is left after all of it: nothing, but where it has no end."""
        return self if self.end_epoch is None else replace(self, epoch=self.end_epoch, position=0)

    def count_steps_before(self, epoch: int, position: int) -> int:
        """Returns how many of its steps come before the one that begins at this place."""
        if epoch == self.epoch:
            return (position - self.position) // self.epoch_steps.global_batch_size
        complete_epoch_steps = (epoch - self.epoch - 1) * self.epoch_steps.count_steps()
        return (
            self.epoch_steps.count_steps(self.position)
            + complete_epoch_steps
            + position // self.epoch_steps.global_batch_size
        )

    def select_iteration(self, number: int, epochs: int | None) -> Schedule:
        """Returns the schedule of an iteration of `epochs` epochs: the first one, number 0, has what is left of so
        many, each other one so many more.
        """
        if epochs is None:
            return self
        iteration_index = self.epoch // epochs + number
        first_part = replace(self, end_epoch=(iteration_index + 1) * epochs)
        return (
            first_part
            if number == 0
            else replace(first_part, epoch=iteration_index * epochs, position=0)
        )

    def state(self) -> State:
        """Returns where it begins, as JSON takes it."""
        return {
            "format": _STATE_FORMAT,
            **self._identity_fields(),
            "epoch": self.epoch,
            "position": self.position,
        }

    def resume(self, state: Mapping[str, Any]) -> Schedule:
        """Returns the schedule from a state on, which may be that of another number of hosts, but not of other data or
        options.
        """
        expected = {"format": _STATE_FORMAT, **self._identity_fields()}
        for name, value in expected.items():
            if name not in state:
                raise UsageError(f"state has no {name!r}: it is none that `state()` gave")
            if state[name] != value:
                raise UsageError(
                    f"state is of another {_FIELD_DESCRIPTIONS.get(name, name)}: {state[name]!r} where it is {value!r} now; its "
                    "position would be that of other records"
                )
        epoch, position = state.get("epoch"), state.get("position")
        if not (isinstance(epoch, int) and isinstance(position, int) and min(epoch, position) >= 0):
            raise UsageError(
                f"state has epoch {epoch!r} and position {position!r}, which are no numbers from 0 on"
            )
        if position > self.epoch_steps.records:
            raise UsageError(
                f"state has position {position}, and an epoch has {self.epoch_steps.records} records"
            )
        return replace(self, epoch=epoch, position=position)

    def _identity_fields(self) -> dict[str, Any]:
        fields = {
            "data": self.sampler.fingerprint,
            "records": self.sampler.records,
            "shuffle": self.sampler.mode,
            "seed": self.sampler.seed,
            "batch_size": self.epoch_steps.batch_size,
        }
        return (
            {**fields, "window_bytes": self.sampler.window_bytes}
            if self.sampler.mode == "window"
            else fields
        )


_FIELD_DESCRIPTIONS = {
    "data": "data set (its files, or `where`)",
    "records": "number of records",
    "shuffle": "mode (shuffle)",
}
