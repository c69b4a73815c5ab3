"""`TorchBatches`: the batches of a schedule as an IterableDataset, for `DataLoader(..., batch_size=None)`.

The workers of a loader take the steps in turn, so that the loader, which asks its workers in turn, gives them in the
order of `Dataset.batches`, however many workers there are. Iterated again it goes on with the next epochs.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch.utils.data

from recordmill.base.errors import UsageError
from recordmill.reader.sampling.schedule import Schedule, State
from recordmill.reader.torch.given import Given
from recordmill.reader.torch.turns import Turns

_LOADER = "loader "  # begins what the workers of a loader have in common


class TorchBatches(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Batches of tensors. `state_dict()` and `load_state_dict()` are what torchdata's StatefulDataLoader calls, in each
    worker; with PyTorch's own DataLoader, count the steps and give the number as `start_step=`, or save
    `state_after(steps)`.
    """

    def __init__(self, given: Given, begin: Schedule, epochs: int | None, ranked: int | None = None) -> None:
        """begin: without end. epochs: of an iteration. ranked: how many ranks there were, where it is shared by them
        and not by the numbers that a user gave.
        """
        self._given, self._begin, self._epochs, self._ranked = given, begin, epochs, ranked
        self._threads = given.dataset.threads
        self._turns = Turns(0 if epochs is None else begin.epoch // epochs)
        self._iterations = 0  # of this object, in this process
        self._loaded: _Run | None = None
        self._running: _Run | None = None

    def __iter__(self) -> Iterator[Any]:
        worker, workers, common = _place()
        if not common.startswith(_LOADER):
            self._check_ranks()
        run, self._loaded = self._loaded, None
        number = self._turns.begin(f"{common}/{self._iterations}", worker, None if run is None else run.number)
        self._iterations += 1
        if run is None:
            run = _Run.first(self._iteration(number), number, worker, workers)
        self._running = run
        return _Reading(run, self._batches(run))

    def _batches(self, run: _Run) -> Generator[Any, None, None]:
        if not run.over:
            self._given.dataset.threads = max(self._threads // run.workers, 1)  # of this worker's own copy
            yield from self._given.batches(run.schedule, run.workers)

    def _iteration(self, number: int) -> Schedule:
        """The steps of all workers."""
        first = 0 if self._epochs is None else self._begin.epoch // self._epochs
        return self._begin.iteration(number - first, self._epochs)

    def __len__(self) -> int:
        """How many batches the next iteration gives.

        Raises:
            TypeError: it has no end.
        """
        left = self._iteration(self._turns.next).remaining
        if left is None:
            raise TypeError("batches without end (epochs=None) have no number")
        return left

    def set_epoch(self, epoch: int) -> None:
        """The next iteration begins with this epoch, counted from the very first, as DistributedSampler has it.

        Raises:
            UsageError: no iteration begins there.
        """
        if self._epochs is None or epoch < 0 or epoch % self._epochs:
            raise UsageError(f"no iteration begins with epoch {epoch}: each of them is epochs={self._epochs}")
        self._turns.restart(epoch // self._epochs)
        self._loaded = self._running = None

    def state_after(self, steps: int) -> State:
        """Where the run stands when this host has had so many batches, counted from its begin over all iterations:
        `to_torch(..., state=...)` goes on there, with any number of workers and hosts.
        """
        return self._begin.after(steps).state()

    def state_dict(self) -> State:
        """Where the next batch of this process stands: of a worker, in a worker.

        Raises:
            UsageError: the workers of a loader have begun an iteration, and know where they are.
        """
        worker, workers, common = _place()
        run = self._loaded or self._running
        if self._loaded is None and not common.startswith(_LOADER) and (self._turns.latest or "").startswith(_LOADER):
            raise UsageError(
                "the workers of a DataLoader have the position: save StatefulDataLoader.state_dict() instead, or "
                "state_after(steps) of this"
            )
        if run is None:
            number = self._turns.next
            run = _Run.first(self._iteration(number), number, worker, workers)
        return {**run.schedule.state(), "over": run.over, "worker": run.worker, "workers": run.workers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on there.

        Raises:
            UsageError: it is a state of something else, or of another worker.
        """
        worker, workers, _ = _place()
        named = {name: state.get(name) for name in ("worker", "workers")}
        if named != {"worker": worker, "workers": workers}:
            raise UsageError(
                f"state is of worker {named['worker']} of {named['workers']}, and this is {worker} of {workers}: a run "
                "goes on with another number of workers from state_after(steps), given as state="
            )
        schedule = self._begin.at(state)
        over = bool(state.get("over"))
        number = 0 if self._epochs is None else schedule.epoch // self._epochs - over
        until = schedule if self._epochs is None else replace(schedule, epochs=(number + 1) * self._epochs)
        self._loaded = _Run(until, number, worker, workers, over)

    def _check_ranks(self) -> None:
        if self._ranked is not None and (now := ranks()[0]) != self._ranked:
            raise UsageError(
                f"torch.distributed has {now} ranks, and had {self._ranked} when to_torch was called: call it after "
                "init_process_group, or give num_hosts and host_index"
            )


@dataclass
class _Run:
    """What is left of an iteration for this worker. schedule: begins with its next step, of which it takes every
    `workers`-th one. over: it has had all of them.
    """

    schedule: Schedule
    number: int
    worker: int
    workers: int
    over: bool

    @classmethod
    def first(cls, schedule: Schedule, number: int, worker: int, workers: int) -> _Run:
        """From an iteration's begin."""
        return cls(schedule, number, worker, workers, False)._ahead(worker)

    def _ahead(self, steps: int) -> _Run:
        left = self.schedule.remaining
        taken = steps if left is None else min(steps, left)
        schedule = self.schedule.after(taken)
        return replace(self, schedule=schedule, over=schedule.remaining == 0)

    def advance(self) -> None:
        """One step of this worker is done."""
        ahead = self._ahead(self.workers)
        self.schedule, self.over = ahead.schedule, ahead.over


class _Reading(Iterator[Any]):
    """The batches of a run, which is told of each of them."""

    def __init__(self, run: _Run, batches: Generator[Any, None, None]) -> None:
        self._run, self._batches = run, batches

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._run.advance()
        return batch


def ranks() -> tuple[int, int]:
    """(how many processes train together, which of them this is), as torch.distributed says; one without it."""
    there = torch.distributed
    if not there.is_available() or not there.is_initialized():
        return 1, 0
    return there.get_world_size(), there.get_rank()


def _place() -> tuple[int, int, str]:
    """(this worker, how many there are, what the workers of an iteration have in common)."""
    info = torch.utils.data.get_worker_info()
    if info is None:
        return 0, 1, f"process {os.getpid()}"
    return info.id, info.num_workers, f"{_LOADER}{info.seed - info.id}"
