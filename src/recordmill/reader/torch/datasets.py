"""`TorchBatches`, a dataset for PyTorch loaders: `DataLoader(..., batch_size=None)`.

The workers of a loader take turns at the steps, and the loader asks its workers in turn. So it
yields the steps in the order of `Dataset.batches` with any number of workers. Each further
iteration continues with the next epochs.

A DataLoader starts its workers again for each iteration, from a copy of the object in its own
process. The workers report nothing to that object. Without shared state, every iteration would be
the first one. The shared state is an unnamed temporary file. The workers of one iteration
recognize each other by a key.

A batch determines where the next batch of the same worker begins:

* Usually by its number, because a worker takes every n-th step. This includes bucketed steps.
* If records are packed, by the end of its records. The steps of other workers come between.
* If bad records are skipped, by its last record. The batch may have been filled up from the
  middle of the worker's next step.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import weakref
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import context, reduction
from typing import IO, Any

import torch
import torch.utils.data

from recordmill.base.errors import UsageError
from recordmill.reader.batches.plan import StepPlan, count_iteration_steps
from recordmill.reader.batches.source import BatchSource, unwrap_mapped
from recordmill.reader.sampling.schedule import Schedule, State, parse_state
from recordmill.reader.torch.tensors import BatchPosition, tensor_batches
from recordmill.storage.files import create_unnamed_file

# Maximum number of iterations in progress. Older ones are forgotten.
_MAX_ITERATIONS = 64


class IterationCounter:
    """Number of the next iteration, shared with child processes.

    Forked and spawned children share the counter. A copy made by pickling in any other way is
    independent.
    """

    def __init__(self, number: int = 0) -> None:
        self._keep_file(create_unnamed_file())
        self._write({"next": number, "begun": []})

    def begin_iteration(self, key: str, worker: int, number: int | None = None) -> int:
        """Returns the number of the iteration that this worker takes part in.

        The worker joins an iteration with this key that other workers have begun, but it has not.
        If there is none, it begins a new iteration. A key can occur in several iterations, if the
        program sets the seeds of PyTorch.

        Args:
            key: Identifies the workers of one iteration.
            worker: Index of this worker.
            number: Number of the iteration to join or to begin. None means any with this key, or
                the next number.
        """
        with self._locked():
            record = self._read()
            # newest first, because two iterations may have the same key
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
        """Sets the number of the next iteration, and forgets the iterations in progress."""
        with self._locked():
            self._write({"next": number, "begun": []})

    @property
    def latest_key(self) -> str | None:
        """Key of the iteration that was begun last. None if there was no iteration."""
        with self._locked():
            iterations = self._read()["begun"]
            return iterations[-1][0] if iterations else None

    @property
    def next_number(self) -> int:
        """Number of the next iteration."""
        with self._locked():
            return int(self._read()["next"])

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # the lock of the file excludes other processes, but not other threads of this one
        with self._thread_lock:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _read(self) -> dict[str, Any]:
        file = self._file.fileno()
        return json.loads(os.pread(file, os.fstat(file).st_size, 0))

    def _write(self, record: dict[str, Any]) -> None:
        data = json.dumps(record).encode()
        os.pwrite(self._file.fileno(), data, 0)
        os.ftruncate(self._file.fileno(), len(data))

    def __getstate__(self) -> Any:
        # A file descriptor can only be passed to a child that is being spawned. Any other copy gets
        # the current number and a file of its own.
        if context.get_spawning_popen() is not None:
            return reduction.DupFd(self._file.fileno())
        return (self.next_number,)

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple):
            self.__init__(*state)  # type: ignore[misc]
        else:
            self._keep_file(os.fdopen(state.detach(), "r+b", buffering=0))

    def _keep_file(self, file: IO[bytes]) -> None:
        self._file, self._thread_lock = file, threading.Lock()
        # If another thread has the lock during a fork, the child would wait for it forever. So the
        # child gets a new lock.
        os.register_at_fork(after_in_child=partial(_renew_lock, weakref.ref(self)))
        weakref.finalize(self, file.close)


def _renew_lock(counter: weakref.ref[IterationCounter]) -> None:
    if (alive := counter()) is not None:
        alive._thread_lock = threading.Lock()


@dataclass
class WorkerPosition:
    """Position of one worker of a loader.

    Attributes:
        plan: Steps of this worker in the iteration.
        iteration: Number of the iteration.
        worker: Index of this worker.
        num_workers: Number of workers of the loader.
        schedule: The rest of the iteration, from the next step of this worker on.
        is_over: True if the worker has no step left.
        other_steps: If batches are packed, the number of steps of other workers before the next
            step of this worker.
        read_position: If bad records are skipped, the position before which all records are used.
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
        """Returns the position at the start of an iteration.

        Args:
            plan: Steps of all workers in the iteration.
            iteration: Number of the iteration.
            worker: Index of this worker.
            num_workers: Number of workers of the loader.
        """
        worker_plan = plan.select_share(worker, num_workers)
        if plan.packing is not None:
            return cls(
                worker_plan,
                iteration=iteration,
                worker=worker,
                num_workers=num_workers,
                schedule=plan.schedule,
                is_over=plan.schedule.remaining_steps == 0,
                # the other workers before this one take the first steps
                other_steps=worker,
            )
        schedule = (
            worker_plan.schedule
            if plan.buckets is None
            else _skip_steps(plan.schedule_after(0), worker)
        )
        return cls(
            worker_plan,
            iteration=iteration,
            worker=worker,
            num_workers=num_workers,
            schedule=schedule,
            is_over=schedule.remaining_steps == 0,
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
        """Returns the position in a saved state.

        Args:
            first_plan: Endless plan of the steps of all workers, from the first iteration on.
            epochs: Number of epochs of an iteration. None means without end.

        Raises:
            UsageError: The state belongs to other data or options, or to another worker.
        """
        parse_state(state, "state")
        worker_fields = {name: state.get(name) for name in ("worker", "workers")}
        if worker_fields != {"worker": worker, "workers": num_workers}:
            raise UsageError(
                f"state is of worker {worker_fields['worker']} of "
                f"{worker_fields['workers']}, and this is {worker} of {num_workers}: "
                "to continue with another number of workers, pass state_after(steps) "
                "as state="
            )
        is_over, other_steps, read_position = (
            bool(state.get("over")),
            _read_count(state, "others"),
            _read_count(state, "had"),
        )
        schedule = first_plan.schedule.resume(state)
        # A state at the end of an iteration contains the first epoch of the next iteration.
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
            iteration=iteration,
            worker=worker,
            num_workers=num_workers,
            schedule=replace(schedule, end_epoch=end_epoch),
            is_over=is_over,
            other_steps=other_steps,
            read_position=read_position,
        )

    def advance(self, end_position: BatchPosition, skips_bad_records: bool) -> None:
        """Moves to the next step of this worker.

        Args:
            end_position: (epoch, position) after the last batch. None if the number of the step
                determines the next one.
            skips_bad_records: True if bad records are skipped.
        """
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
        """Moves to the end of the iteration, after the last step of this worker."""
        if self.schedule.end_epoch is not None and self.schedule.remaining_steps:
            self.schedule = replace(self.schedule, epoch=self.schedule.end_epoch, position=0)
        self.is_over = True

    def state(self) -> State:
        """Returns the position as a JSON object."""
        state = {
            **self.plan.state(self.schedule),
            "over": self.is_over,
            "worker": self.worker,
            "workers": self.num_workers,
        }
        state |= {"others": self.other_steps} if self.other_steps else {}
        return state | ({"had": self.read_position} if self.read_position else {})

    def _advance_to(self, epoch: int, position: int) -> None:
        """Moves to the end of a batch that was filled up after bad records.

        The batch may end inside of a later step of this worker. Then this step is the next one, and
        `read_position` is set.
        """
        schedule = self.plan.schedule
        step_records, first_position = (
            schedule.epoch_steps.global_batch_size,
            schedule.position if epoch == schedule.epoch else 0,
        )
        # start of the step that contains the last record of the batch
        step_position = (
            first_position + (position - 1 - first_position) // step_records * step_records
        )
        self.schedule, self.read_position = (
            replace(self.schedule, epoch=epoch, position=step_position),
            position,
        )
        # If the batch ends where this step ends, the worker continues with its next step.
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
        raise UsageError(f"state has {name} {value!r}, which must be a whole number from 0")
    return value


# Distinguishes the keys of a loader's workers from the key of a process without workers.
_LOADER_PREFIX = "loader "


class TorchBatches(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Batches of tensors for PyTorch loaders.

    torchdata's StatefulDataLoader calls `state_dict()` and `load_state_dict()` in each worker. With
    PyTorch's own DataLoader, count the steps and pass the number as `start_step=`, or save
    `state_after(steps)`.
    """

    def __init__(
        self, source: BatchSource, first_plan: StepPlan, num_ranks: int | None = None
    ) -> None:
        """Creates the batches of an endless plan.

        Args:
            source: The data set with its options.
            first_plan: Endless plan of the steps of all workers of this host.
            num_ranks: Number of ranks of torch.distributed that the plan was made for. None if the
                caller has passed `num_hosts` and `host_index`.
        """
        self._source, self._first_plan, self._num_ranks = source, first_plan, num_ranks
        self._epochs = epochs = source.options.order.epochs  # number of epochs of an iteration
        self._skips_bad_records = source.skips_bad_records
        self._iteration_counter = IterationCounter(
            0 if epochs is None else first_plan.schedule.epoch // epochs
        )
        self._iterations_here = 0  # number of iterations of this object in this process
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
                self._plan_iteration(number), number, worker=worker, num_workers=num_workers
            )
        self._current_position = position
        return _WorkerBatches(
            position, self._batches(position), self._skips_bad_records, self._epochs
        )

    def _batches(
        self, position: WorkerPosition
    ) -> Generator[tuple[Any, BatchPosition], None, None]:
        if not position.is_over:
            yield from tensor_batches(
                self._source,
                position.plan,
                num_workers=position.num_workers,
                skip_below=position.read_position,
            )

    def _plan_iteration(self, number: int) -> StepPlan:
        """Returns the steps of all workers in an iteration."""
        first_iteration = (
            0 if self._epochs is None else self._first_plan.schedule.epoch // self._epochs
        )
        return self._first_plan.select_iteration(number - first_iteration, self._epochs)

    def __len__(self) -> int:
        """Returns the number of batches of the next iteration.

        Raises:
            TypeError: The iteration is endless, or the number is unknown because batches are packed
                or bad records are skipped.
        """
        if self._skips_bad_records:
            raise TypeError('with on_bad="skip" the number of batches is known only at the end')
        remaining_steps = self._plan_iteration(self._iteration_counter.next_number).remaining_steps
        if remaining_steps is None:
            raise TypeError("with epochs=None there is no number of batches")
        return remaining_steps

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration begin with this epoch, as DistributedSampler.set_epoch does.

        Args:
            epoch: Number of the epoch, counted from the start of training.

        Raises:
            UsageError: No iteration begins with this epoch.
        """
        if self._epochs is None or epoch < 0 or epoch % self._epochs:
            raise UsageError(
                f"no iteration begins with epoch {epoch}, because each has epochs={self._epochs}"
            )
        self._iteration_counter.restart(epoch // self._epochs)
        self._restored_position = self._current_position = None

    def state_after(self, steps: int) -> State:
        """Returns the position after this host has consumed `steps` batches.

        `to_torch(..., state=...)` continues there, with any number of workers. It also accepts
        another number of hosts, except between steps that are bucketed together.

        Args:
            steps: Number of batches since the start of training, over all iterations.

        Raises:
            UsageError: Batches are packed or bad records are skipped. Then only the workers know
                which records the batches contained.
        """
        if self._skips_bad_records or self._first_plan.packing is not None:
            raise UsageError(
                "state_after counts batches, but the records of batches that are "
                "packed, or that skip bad records, are not known in advance: save "
                "StatefulDataLoader.state_dict(), or state_dict() of this object if "
                "there are no workers"
            )
        return self._first_plan.state(self._first_plan.schedule_after(steps))

    def state_dict(self) -> State:
        """Returns the position of the next batch of this worker, or of this process.

        Raises:
            UsageError: The workers of a loader have begun an iteration, so only they know their
                positions.
        """
        worker, num_workers, group_key = _identify_worker()
        position = self._restored_position or self._current_position
        if (
            self._restored_position is None
            and not group_key.startswith(_LOADER_PREFIX)
            and (self._iteration_counter.latest_key or "").startswith(_LOADER_PREFIX)
        ):
            raise UsageError(
                "the workers of a DataLoader have the position: save "
                "StatefulDataLoader.state_dict() instead, or state_after(steps) of "
                "this object"
            )
        if position is None:
            number = self._iteration_counter.next_number
            position = WorkerPosition.start_of_iteration(
                self._plan_iteration(number), number, worker=worker, num_workers=num_workers
            )
        return position.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration continue at a saved position.

        Raises:
            UsageError: The state belongs to other data or options, or to another worker.
        """
        worker, num_workers, _ = _identify_worker()
        self._restored_position = WorkerPosition.from_state(
            self._first_plan, state, self._epochs, worker=worker, num_workers=num_workers
        )

    def _check_ranks(self) -> None:
        if self._num_ranks is not None and (current_ranks := get_ranks()[0]) != self._num_ranks:
            raise UsageError(
                f"torch.distributed has {current_ranks} ranks, and had {self._num_ranks} when to_torch was called: call it after "
                "init_process_group, or give num_hosts and host_index"
            )


class _WorkerBatches(Iterator[Any]):
    """Iterator that records the position of its worker after each batch."""

    def __init__(
        self,
        position: WorkerPosition,
        batches: Generator[tuple[Any, BatchPosition], None, None],
        skips_bad_records: bool,
        epochs: int | None,
    ) -> None:
        self._position, self._batches, self._skips_bad_records = (
            position,
            batches,
            skips_bad_records,
        )
        self._epochs, self._num_batches = epochs, 0

    def __next__(self) -> Any:
        try:
            batch, end_position = next(self._batches)
        except StopIteration:
            self._position.finish()
            raise
        position, schedule, count = self._position, self._position.schedule, self._num_batches
        self._num_batches += 1
        position.advance(end_position, self._skips_bad_records)
        return unwrap_mapped(
            batch,
            lambda: (
                count_iteration_steps(schedule, self._epochs)
                if end_position is None
                # the steps before a state are unknown
                else count * position.num_workers + position.worker
            ),
        )


def get_ranks() -> tuple[int, int]:
    """Returns (number of processes that train together, index of this one).

    The source is torch.distributed. If it is not initialized, there is one process.
    """
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 1, 0
    return distributed.get_world_size(), distributed.get_rank()


def _identify_worker() -> tuple[int, int, str]:
    """Returns (index of this worker, number of workers, key of the iteration)."""
    info = torch.utils.data.get_worker_info()
    if info is None:
        return 0, 1, f"process {os.getpid()}"
    # PyTorch seeds worker i of an iteration with base + i, so the base is common to the workers.
    return info.id, info.num_workers, f"{_LOADER_PREFIX}{info.seed - info.id}"
