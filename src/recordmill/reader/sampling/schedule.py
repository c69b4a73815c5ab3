"""Division of epochs into training steps, and saved positions.

`EpochSteps` assigns the positions of an epoch to steps and hosts. `Schedule` contains all steps of
a run from a position on. It saves the position as JSON, so that another run can continue there.

A step of all hosts together has `batch_size * num_hosts` consecutive positions, divided into equal
parts. So every host gets the same number of batches. On one host, the positions that remain at the
end of an epoch become a shorter batch, unless an option drops them. On several hosts, they are
dropped. Another option pads them with the first records of the epoch instead. A saved position
counts the records that all hosts together have consumed. A run can therefore continue on another
number of hosts, with exactly the records that no host has consumed.
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
    """A range of steps in one epoch.

    Attributes:
        epoch: Number of the epoch.
        position: Start of the first step in the epoch.
        num_steps: Number of steps in the range.
        step_stride: Distance between two steps of the range, in steps.
    """

    epoch: int
    position: int
    num_steps: int
    step_stride: int = 1


@dataclass(frozen=True)
class EpochSteps:
    """Division of an epoch into steps.

    Attributes:
        records: Number of records of an epoch.
        batch_size: Number of records of a step of one host.
        remainder: Treatment of the last positions of an epoch if they do not fill a step: "short",
            "drop" or "pad".
        num_hosts: Number of hosts that share each step.
        host_index: Index of this host, from 0.

    Raises:
        UsageError: A number is not an integer in its range.
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
        """Number of positions that all hosts together consume in a step."""
        return self.batch_size * self.num_hosts

    def count_steps(self, position: int = 0) -> int:
        """Returns the number of steps of an epoch from a position on.

        >>> EpochSteps(100, 8).count_steps(), EpochSteps(100, 8, "drop").count_steps()
        (13, 12)
        >>> EpochSteps(100, 8, "pad", num_hosts=3).count_steps(48)
        3
        """
        remaining_records = max(self.records - position, 0)
        return (
            remaining_records // self.global_batch_size
            if self.remainder == "drop"
            else -(-remaining_records // self.global_batch_size)
        )

    def positions(self, step_range: StepRange) -> Int64s:
        """Returns the positions of this host in a range of steps, int64 [rows].

        The positions are in the order of the steps. Positions from `records` on only fill up a
        batch.
        """
        step_starts = (
            step_range.position
            + self.global_batch_size
            * step_range.step_stride
            * np.arange(step_range.num_steps, dtype=np.int64)
        )
        # A batch that is not filled up has at most as many rows as an epoch has records.
        rows = self.batch_size if self.remainder == "pad" else min(self.batch_size, self.records)
        positions = step_starts[:, None] + (
            self.host_index * self.batch_size + np.arange(rows, dtype=np.int64)
        )
        flat = positions.reshape(-1)
        return flat if self.remainder == "pad" else flat[flat < self.records]


State = dict[str, Any]


def parse_state(state: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns a saved state.

    Raises:
        UsageError: The value is not a mapping.
    """
    if not isinstance(state, Mapping):
        raise UsageError(f"{name} must be a mapping, as `state()` returns it, not {state!r:.99}")
    return state


# Format of a saved state. A change of the order, or of the meaning of a field, needs a new number.
_STATE_FORMAT = 1


@dataclass(frozen=True)
class Schedule:
    """Steps of one or more epochs, from a position on.

    Attributes:
        sampler: Order of the records of each epoch.
        epoch_steps: Division of each epoch into steps.
        end_epoch: Number of the first epoch that is not included. None means without end.
        epoch: Number of the epoch of the first step, counted from the start of training.
        position: Start of the first step in this epoch.
        generations: (folder, generation) of each data set that has generations.
    """

    sampler: Sampler | MixtureSampler
    epoch_steps: EpochSteps
    end_epoch: int | None = 1
    epoch: int = 0
    position: int = 0
    generations: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if self.end_epoch is not None and self.end_epoch < 0:
            raise UsageError(f"epochs must be 0 or more, or None for no end, not {self.end_epoch}")

    @property
    def remaining_steps(self) -> int | None:
        """Number of remaining steps. None if the schedule has no end."""
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
        """Yields all remaining steps in ranges. A range is within one epoch.

        Args:
            max_steps: Maximum number of steps in a range.
            stop_at_windows: If True, all steps of a range begin in the same window of the sampler.
            step_stride: Yields only the first step and every `step_stride`-th step after it,
                counted across epochs. This is the share of one of `step_stride` workers that take
                turns.
        """
        if self.remaining_steps == 0:
            return  # an endless schedule without records would loop forever
        position, step_index = self.position, 0
        for epoch in (
            count(self.epoch) if self.end_epoch is None else range(self.epoch, self.end_epoch)
        ):
            epoch_remaining = self.epoch_steps.count_steps(position)
            while step_index < epoch_remaining:
                first_position = position + step_index * self.epoch_steps.global_batch_size
                num_steps = min(-(-(epoch_remaining - step_index) // step_stride), max_steps)
                if stop_at_windows:
                    # Steps that begin in this window. The last one may extend into the next window.
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
            # With a stride, the next step of this worker may not be the first one of the next
            # epoch.
            position, step_index = 0, step_index - epoch_remaining

    def record_numbers(self, step_range: StepRange) -> Int64s:
        """Returns the record numbers of this host in a range of steps, int64 [rows]."""
        return self.sampler.record_numbers(
            step_range.epoch,
            self.epoch_steps.positions(step_range) % max(self.epoch_steps.records, 1),
        )

    def mask(self, step_range: StepRange) -> npt.NDArray[np.bool_]:
        """Returns a mask that is False for padding rows of a batch, bool [rows]."""
        return self.epoch_steps.positions(step_range) < self.epoch_steps.records

    def skip_steps(self, num_steps: int) -> Schedule:
        """Returns the schedule without its first `num_steps` steps.

        Raises:
            UsageError: Fewer steps remain.
        """
        if num_steps < 0 or (self.remaining_steps is not None and num_steps > self.remaining_steps):
            raise UsageError(f"step {num_steps} of {self.remaining_steps}")
        epoch_remaining = self.epoch_steps.count_steps(self.position)
        if num_steps < epoch_remaining:
            return replace(
                self, position=self.position + num_steps * self.epoch_steps.global_batch_size
            )
        # max avoids a division by zero if an epoch is too short for a step
        epochs, steps = divmod(num_steps - epoch_remaining, max(self.epoch_steps.count_steps(), 1))
        return replace(
            self, epoch=self.epoch + 1 + epochs, position=steps * self.epoch_steps.global_batch_size
        )

    def skip_all(self) -> Schedule:
        """Returns an empty schedule at the end. A schedule without end is returned unchanged."""
        return self if self.end_epoch is None else replace(self, epoch=self.end_epoch, position=0)

    def count_steps_before(self, epoch: int, position: int) -> int:
        """Returns the number of steps before the step that begins at this position."""
        if epoch == self.epoch:
            return (position - self.position) // self.epoch_steps.global_batch_size
        complete_epoch_steps = (epoch - self.epoch - 1) * self.epoch_steps.count_steps()
        return (
            self.epoch_steps.count_steps(self.position)
            + complete_epoch_steps
            + position // self.epoch_steps.global_batch_size
        )

    def select_iteration(self, number: int, epochs: int | None) -> Schedule:
        """Returns the part of the schedule for one iteration.

        Args:
            number: Number of the iteration. Iteration 0 completes the epochs of the iteration that
                contains the start of the schedule. Each later iteration has `epochs` epochs.
            epochs: Number of epochs of an iteration. If None, the schedule is returned unchanged.
        """
        if epochs is None:
            return self
        # Iterations are counted from epoch 0, so that a resumed training has the same iterations.
        iteration_index = self.epoch // epochs + number
        first_part = replace(self, end_epoch=(iteration_index + 1) * epochs)
        return (
            first_part
            if number == 0
            else replace(first_part, epoch=iteration_index * epochs, position=0)
        )

    def state(self) -> State:
        """Returns the start of the schedule as a JSON object."""
        numbers = [number for _, number in self.generations]
        return {
            "format": _STATE_FORMAT,
            **self._identity_fields(),
            # For messages only. A generation with the same records continues in the same way.
            **({"generation": numbers[0] if len(numbers) == 1 else numbers} if numbers else {}),
            "epoch": self.epoch,
            "position": self.position,
        }

    def resume(self, state: Mapping[str, Any]) -> Schedule:
        """Returns a schedule that begins at a saved state.

        The state may have been saved with another number of hosts.

        Raises:
            UsageError: The state is damaged, or belongs to other data or options.
        """
        expected = {"format": _STATE_FORMAT, **self._identity_fields()}
        for name, value in expected.items():
            if name not in state:
                raise UsageError(f"state has no {name!r}: it was not returned by `state()`")
            if state[name] != value:
                if name == "data":
                    self._check_generations(state.get("generation"))
                raise UsageError(
                    "state was saved with another "
                    f"{_FIELD_DESCRIPTIONS.get(name, name)}: {state[name]!r}, and now "
                    f"it is {value!r}. Its position would mean other records"
                )
        epoch, position = state.get("epoch"), state.get("position")
        if not (isinstance(epoch, int) and isinstance(position, int) and min(epoch, position) >= 0):
            raise UsageError(
                f"state has epoch {epoch!r} and position {position!r}, which must be "
                "whole numbers from 0"
            )
        if position > self.epoch_steps.records:
            raise UsageError(
                f"state has position {position}, and an epoch has {self.epoch_steps.records} records"
            )
        return replace(self, epoch=epoch, position=position)

    def _check_generations(self, saved: Any) -> None:
        """Raises UsageError if a state was saved with another generation of a data set."""
        numbers = saved if isinstance(saved, list) else [saved]
        if len(numbers) != len(self.generations):
            return
        for (folder, number), saved_number in zip(self.generations, numbers, strict=True):
            if isinstance(saved_number, int) and saved_number != number:
                raise UsageError(
                    f"state was saved with generation {saved_number} of {folder}, and this is "
                    f"generation {number}, which may have other records. To continue with the old "
                    f"ones, open the data set with recordmill.open({folder!r}, "
                    f"generation={saved_number})"
                )

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
