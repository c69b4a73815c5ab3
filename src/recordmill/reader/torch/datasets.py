"""`TorchBatches`, the dataset that PyTorch's loaders take: `DataLoader(..., batch_size=None)`.

The workers of a loader take the steps in turn, so that the loader, which asks its workers in turn, gives them in the
order of `Dataset.batches`, however many workers there are. Iterated again it goes on with the next epochs.

A DataLoader starts its workers anew for each iteration, from the object that its own process holds, which hears nothing
of what they did: without a place that all of them see, every iteration would be the first one. That place is a file
without a name; the workers of an iteration know each other by a key. A batch says where the next one of its worker
stands:

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
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from multiprocessing import context, reduction
from typing import IO, Any

import torch
import torch.utils.data

from recordmill.base.errors import UsageError
from recordmill.reader.batches.plan import StepPlan
from recordmill.reader.batches.source import BatchSource, unwrap_mapped
from recordmill.reader.sampling.schedule import Schedule, State, check_state
from recordmill.reader.torch.tensors import BatchPosition, tensor_batches

_MAX_ITERATIONS = 64  # iterations that may be under way at once
_MAX_RECORD_BYTES = 1 << 16


class IterationCounter:
    """The number of the iteration that comes next. Forked and spawned children see the same one; a copy that is pickled
    otherwise goes its own way.
    """

    def __init__(self, number: int = 0) -> None:
        self._keep_file(tempfile.TemporaryFile(prefix="recordmill-", buffering=0))  # noqa: SIM115
        self._write({"next": number, "begun": []})

    def begin_iteration(self, key: str, worker: int, number: int | None = None) -> int:
        """The number of the iteration that this worker begins: the one that others of this key began and it did not
        yet, or else the next one, or the one given. (Seeds that a program sets give two iterations the same key.)
        """
        with self._locked():
            record = self._read()
            for group_key, started_number, workers in reversed(record["begun"]):
                if group_key == key and worker not in workers and number in (None, started_number):
                    workers.append(worker)
                    self._write(record)
                    return int(started_number)
            new_number = record["next"] if number is None else number
            iterations = [*record["begun"], [key, new_number, [worker]]][-_MAX_ITERATIONS:]
            self._write({"next": max(record["next"], new_number + 1), "begun": iterations})
            return int(new_number)

    def restart(self, number: int) -> None:
        """The next iteration has this number, whatever was before."""
        with self._locked():
            self._write({"next": number, "begun": []})

    @property
    def latest_key(self) -> str | None:
        """The key of the iteration that was begun last."""
        with self._locked():
            iterations = self._read()["begun"]
            return iterations[-1][0] if iterations else None

    @property
    def next_number(self) -> int:
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
        record: dict[str, Any] = json.loads(os.pread(self._file.fileno(), _MAX_RECORD_BYTES, 0))
        return record

    def _write(self, record: dict[str, Any]) -> None:
        data = json.dumps(record).encode()
        os.pwrite(self._file.fileno(), data, 0)
        os.ftruncate(self._file.fileno(), len(data))

    def __getstate__(self) -> Any:
        if context.get_spawning_popen() is not None:
            return reduction.DupFd(self._file.fileno())
        return (self.next_number,)

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple):
            self.__init__(*state)  # type: ignore[misc]
        else:
            self._keep_file(os.fdopen(state.detach(), "r+b", buffering=0))

    def _keep_file(self, file: IO[bytes]) -> None:
        self._file = file
        weakref.finalize(self, file.close)


@dataclass
class WorkerPosition:
    """Position of one worker.

    Attributes:
        plan: the steps of this worker from where the run began.
        at: where its next step stands.
        others: packed, how many steps of other workers come before that one.
        had: with bad records skipped, the position in that step up to which its records were given.
        over: the worker has had all of them.
    """

    plan: StepPlan
    iteration: int
    worker: int
    num_workers: int
    schedule: Schedule
    is_over: bool = False
    other_steps: int = 0
    read_position: int = 0

    @classmethod
    def start_of_iteration(
        cls, plan: StepPlan, iteration: int, worker: int, num_workers: int
    ) -> WorkerPosition:
        """Returns the position at an iteration's begin."""
        worker_plan = plan.select_share(worker, num_workers)
        if plan.packing is not None:
            return cls(
                worker_plan,
                iteration,
                worker,
                num_workers,
                plan.schedule,
                plan.schedule.remaining_steps == 0,
                worker,
            )
        schedule = (
            worker_plan.schedule
            if plan.buckets is None
            else _skip_steps(plan.schedule_after(0), worker)
        )
        return cls(
            worker_plan, iteration, worker, num_workers, schedule, schedule.remaining_steps == 0
        )

    @classmethod
    def from_state(
        cls,
        first_plan: StepPlan,
        state: Mapping[str, Any],
        epochs: int | None,
        worker: int,
        num_workers: int,
    ) -> WorkerPosition:
        """Returns the position of a state. `begin` is the first iteration, without end; `epochs` is of each.

        Raises:
            UsageError: it is a state of something else, or of another worker.
        """
        check_state(state)
        worker_fields = {name: state.get(name) for name in ("worker", "workers")}
        if worker_fields != {"worker": worker, "workers": num_workers}:
            raise UsageError(
                f"state is of worker {worker_fields['worker']} of {worker_fields['workers']}, and this is {worker} of {num_workers}: a run "
                "goes on with another number of workers from state_after(steps), given as state="
            )
        is_over, other_steps, read_position = (
            bool(state.get("over")),
            _read_count(state, "others"),
            _read_count(state, "had"),
        )
        schedule = first_plan.schedule.resume(state)
        iteration = 0 if epochs is None else schedule.epoch // epochs - is_over
        end_epoch = None if epochs is None else (iteration + 1) * epochs
        plan = first_plan.resume(state)
        plan = replace(
            plan, schedule=replace(plan.schedule, end_epoch=end_epoch), step_stride=num_workers
        )
        if plan.packing is not None:
            plan = replace(plan, skipped_steps=other_steps)
        return cls(
            plan,
            iteration,
            worker,
            num_workers,
            replace(schedule, end_epoch=end_epoch),
            is_over,
            other_steps,
            read_position,
        )

    def advance(self, end_position: BatchPosition, skips_bad_records: bool) -> None:
        """One step of this worker is done, and the next one stands there, if its number does not say it."""
        if end_position is None:
            self.schedule = _skip_steps(self.schedule, self.num_workers)
        elif skips_bad_records:
            self._advance_to(*end_position)
        else:
            self.schedule, self.other_steps = (
                replace(self.schedule, epoch=end_position[0], position=end_position[1]),
                self.num_workers - 1,
            )
        self.is_over = self.schedule.remaining_steps == 0

    def finish(self) -> None:
        """There is no further step."""
        if self.schedule.end_epoch is not None and self.schedule.remaining_steps:
            self.schedule = replace(self.schedule, epoch=self.schedule.end_epoch, position=0)
        self.is_over = True

    def state(self) -> State:
        """Returns the position as JSON takes it."""
        state = {
            **self.plan.state(self.schedule),
            "over": self.is_over,
            "worker": self.worker,
            "workers": self.num_workers,
        }
        state |= {"others": self.other_steps} if self.other_steps else {}
        return state | ({"had": self.read_position} if self.read_position else {})

    def _advance_to(self, epoch: int, position: int) -> None:
        """The last batch ends there, in one of this worker's own steps, or at its end."""
        schedule = self.plan.schedule
        step_records, first_position = (
            schedule.epoch_steps.global_batch_size,
            schedule.position if epoch == schedule.epoch else 0,
        )
        step_position = (
            first_position + (position - 1 - first_position) // step_records * step_records
        )
        self.schedule, self.read_position = (
            replace(self.schedule, epoch=epoch, position=step_position),
            position,
        )
        if position >= min(step_position + step_records, schedule.epoch_steps.records):
            self.schedule, self.read_position = _skip_steps(self.schedule, self.num_workers), 0


def _skip_steps(schedule: Schedule, num_steps: int) -> Schedule:
    remaining_steps = schedule.remaining_steps
    return schedule.skip_steps(
        num_steps if remaining_steps is None else min(num_steps, remaining_steps)
    )


def _read_count(state: Mapping[str, Any], name: str) -> int:
    value = state.get(name, 0)
    if not isinstance(value, int) or value < 0:
        raise UsageError(f"state has {name} {value!r}, which is no number from 0 on")
    return value


_LOADER_PREFIX = "loader "  # begins what the workers of a loader have in common


class TorchBatches(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Batches of tensors. `state_dict()` and `load_state_dict()` are what torchdata's StatefulDataLoader calls, in each
    worker; with PyTorch's own DataLoader, count the steps and give the number as `start_step=`, or save
    `state_after(steps)`.
    """

    def __init__(
        self, source: BatchSource, first_plan: StepPlan, num_ranks: int | None = None
    ) -> None:
        """Creates the batches of a plan without end. ranked: how many ranks there were, where it is shared by them and
        not by the numbers that a user gave.
        """
        self._source, self._first_plan, self._num_ranks = source, first_plan, num_ranks
        self._epochs = epochs = source.options.order.epochs  # of an iteration
        self._threads, self._skips_bad_records = source.dataset.threads, source.skips_bad_records
        self._iteration_counter = IterationCounter(
            0 if epochs is None else first_plan.schedule.epoch // epochs
        )
        self._iterations_here = 0  # of this object, in this process
        self._restored_position: WorkerPosition | None = None
        self._current_position: WorkerPosition | None = None

    def __iter__(self) -> Iterator[Any]:
        worker, num_workers, group_key = _identify_worker()
        if not group_key.startswith(_LOADER_PREFIX):
            self._check_ranks()
        position, self._restored_position = self._restored_position, None
        number = self._iteration_counter.begin_iteration(
            f"{group_key}/{self._iterations_here}",
            worker,
            None if position is None else position.iteration,
        )
        self._iterations_here += 1
        if position is None:
            position = WorkerPosition.start_of_iteration(
                self._plan_iteration(number), number, worker, num_workers
            )
        self._current_position = position
        return _WorkerBatches(position, self._batches(position), self._skips_bad_records)

    def _batches(
        self, position: WorkerPosition
    ) -> Generator[tuple[Any, BatchPosition], None, None]:
        if not position.is_over:
            self._source.dataset.threads = max(
                self._threads // position.num_workers, 1
            )  # of this worker's own copy
            for number, (batch, end_position) in enumerate(
                tensor_batches(
                    self._source, position.plan, position.num_workers, position.read_position
                )
            ):
                yield (
                    unwrap_mapped(batch, number * position.num_workers + position.worker),
                    end_position,
                )

    def _plan_iteration(self, number: int) -> StepPlan:
        """The steps of all workers."""
        first_iteration = (
            0 if self._epochs is None else self._first_plan.schedule.epoch // self._epochs
        )
        return self._first_plan.select_iteration(number - first_iteration, self._epochs)

    def __len__(self) -> int:
        """Returns how many batches the next iteration gives.

        Raises:
            TypeError: it has no end, they are packed, or nobody can know.
        """
        if self._skips_bad_records:
            raise TypeError('how many batches on_bad="skip" leaves is known at the end only')
        remaining_steps = self._plan_iteration(self._iteration_counter.next_number).remaining_steps
        if remaining_steps is None:
            raise TypeError("batches without end (epochs=None) have no number")
        return remaining_steps

    def set_epoch(self, epoch: int) -> None:
        """The next iteration begins with this epoch, counted from the very first, as DistributedSampler has it.

        Raises:
            UsageError: no iteration begins there.
        """
        if self._epochs is None or epoch < 0 or epoch % self._epochs:
            raise UsageError(
                f"no iteration begins with epoch {epoch}: each of them is epochs={self._epochs}"
            )
        self._iteration_counter.restart(epoch // self._epochs)
        self._restored_position = self._current_position = None

    def state_after(self, steps: int) -> State:
        """Returns where the run stands when this host has had so many batches, counted from its begin over all
        iterations.

        `to_torch(..., state=...)` goes on there, with any number of workers, and of hosts (in the middle of steps that
        were bucketed together, with the same number).

        Raises:
            UsageError: batches are packed, or bad records skipped: which records that many batches had is known to
                those alone who made them.
        """
        if self._skips_bad_records or self._first_plan.packing is not None:
            raise UsageError(
                "state_after counts batches, and of batches that are packed, or that skip bad records, none knows its "
                "records: save StatefulDataLoader.state_dict(), or state_dict() of this where there are no workers"
            )
        return self._first_plan.state(self._first_plan.schedule_after(steps))

    def state_dict(self) -> State:
        """Returns where the next batch of this process stands: of a worker, in a worker.

        Raises:
            UsageError: the workers of a loader have begun an iteration, and know where they are.
        """
        worker, num_workers, group_key = _identify_worker()
        position = self._restored_position or self._current_position
        if (
            self._restored_position is None
            and not group_key.startswith(_LOADER_PREFIX)
            and (self._iteration_counter.latest_key or "").startswith(_LOADER_PREFIX)
        ):
            raise UsageError(
                "the workers of a DataLoader have the position: save StatefulDataLoader.state_dict() instead, or "
                "state_after(steps) of this"
            )
        if position is None:
            number = self._iteration_counter.next_number
            position = WorkerPosition.start_of_iteration(
                self._plan_iteration(number), number, worker, num_workers
            )
        return position.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on there.

        Raises:
            UsageError: it is a state of something else, or of another worker.
        """
        worker, num_workers, _ = _identify_worker()
        self._restored_position = WorkerPosition.from_state(
            self._first_plan, state, self._epochs, worker, num_workers
        )

    def _check_ranks(self) -> None:
        if self._num_ranks is not None and (current_ranks := get_ranks()[0]) != self._num_ranks:
            raise UsageError(
                f"torch.distributed has {current_ranks} ranks, and had {self._num_ranks} when to_torch was called: call it after "
                "init_process_group, or give num_hosts and host_index"
            )


class _WorkerBatches(Iterator[Any]):
    """The batches of a run, which is told of each of them. skip: bad records are."""

    def __init__(
        self,
        position: WorkerPosition,
        batches: Generator[tuple[Any, BatchPosition], None, None],
        skips_bad_records: bool,
    ) -> None:
        self._position, self._batches, self._skips_bad_records = (
            position,
            batches,
            skips_bad_records,
        )

    def __next__(self) -> Any:
        try:
            batch, end_position = next(self._batches)
        except StopIteration:
            self._position.finish()
            raise
        self._position.advance(end_position, self._skips_bad_records)
        return batch


def get_ranks() -> tuple[int, int]:
    """Returns (how many processes train together, which of them this is), as torch.distributed says; one without it."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 1, 0
    return distributed.get_world_size(), distributed.get_rank()


def _identify_worker() -> tuple[int, int, str]:
    """Returns (this worker, how many there are, what the workers of an iteration have in common)."""
    info = torch.utils.data.get_worker_info()
    if info is None:
        return 0, 1, f"process {os.getpid()}"
    return info.id, info.num_workers, f"{_LOADER_PREFIX}{info.seed - info.id}"
