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
from recordmill.reader.batches.source import BatchSource, unfailed
from recordmill.reader.sampling.schedule import Schedule, State, check_state
from recordmill.reader.torch.tensors import BatchPlace, tensor_batches

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
        plan: the steps of this worker from where the run began.
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
            return cls(
                own,
                number,
                worker,
                workers,
                plan.schedule,
                plan.schedule.remaining_steps == 0,
                worker,
            )
        at = own.schedule if plan.buckets is None else _ahead(plan.after(0), worker)
        return cls(own, number, worker, workers, at, at.remaining_steps == 0)

    @classmethod
    def loaded(
        cls,
        begin: StepPlan,
        state: Mapping[str, Any],
        epochs: int | None,
        worker: int,
        workers: int,
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
        at = begin.schedule.resume(state)
        number = 0 if epochs is None else at.epoch // epochs - over
        until = None if epochs is None else (number + 1) * epochs
        plan = begin.at(state)
        plan = replace(plan, schedule=replace(plan.schedule, end_epoch=until), every=workers)
        if plan.packs is not None:
            plan = replace(plan, done=others)
        return cls(plan, number, worker, workers, replace(at, end_epoch=until), over, others, had)

    def advance(self, place: BatchPlace, skip: bool) -> None:
        """One step of this worker is done, and the next one stands there, if its number does not say it."""
        if place is None:
            self.at = _ahead(self.at, self.workers)
        elif skip:
            self._filled_up(*place)
        else:
            self.at, self.others = (
                replace(self.at, epoch=place[0], position=place[1]),
                self.workers - 1,
            )
        self.over = self.at.remaining_steps == 0

    def end(self) -> None:
        """There is no further step."""
        if self.at.end_epoch is not None and self.at.remaining_steps:
            self.at = replace(self.at, epoch=self.at.end_epoch, position=0)
        self.over = True

    def state(self) -> State:
        """Returns the position as JSON takes it."""
        given = {
            **self.plan.state(self.at),
            "over": self.over,
            "worker": self.worker,
            "workers": self.workers,
        }
        given |= {"others": self.others} if self.others else {}
        return given | ({"had": self.had} if self.had else {})

    def _filled_up(self, epoch: int, position: int) -> None:
        """The last batch ends there, in one of this worker's own steps, or at its end."""
        begin = self.plan.schedule
        span, first = (
            begin.epoch_steps.global_batch_size,
            begin.position if epoch == begin.epoch else 0,
        )
        step = first + (position - 1 - first) // span * span
        self.at, self.had = replace(self.at, epoch=epoch, position=step), position
        if position >= min(step + span, begin.epoch_steps.records):
            self.at, self.had = _ahead(self.at, self.workers), 0


def _ahead(at: Schedule, steps: int) -> Schedule:
    left = at.remaining_steps
    return at.skip_steps(steps if left is None else min(steps, left))


def _number(state: Mapping[str, Any], name: str) -> int:
    value = state.get(name, 0)
    if not isinstance(value, int) or value < 0:
        raise UsageError(f"state has {name} {value!r}, which is no number from 0 on")
    return value


_LOADER = "loader "  # begins what the workers of a loader have in common


class TorchBatches(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Batches of tensors. `state_dict()` and `load_state_dict()` are what torchdata's StatefulDataLoader calls, in each
    worker; with PyTorch's own DataLoader, count the steps and give the number as `start_step=`, or save
    `state_after(steps)`.
    """

    def __init__(self, source: BatchSource, begin: StepPlan, ranked: int | None = None) -> None:
        """Creates the batches of a plan without end. ranked: how many ranks there were, where it is shared by them and
        not by the numbers that a user gave.
        """
        self._source, self._begin, self._ranked = source, begin, ranked
        self._epochs = epochs = source.options.order.epochs  # of an iteration
        self._threads, self._skip = source.dataset.threads, source.skips
        self._counter = IterationCounter(0 if epochs is None else begin.schedule.epoch // epochs)
        self._iterations = 0  # of this object, in this process
        self._loaded: WorkerPosition | None = None
        self._running: WorkerPosition | None = None

    def __iter__(self) -> Iterator[Any]:
        worker, workers, common = _place()
        if not common.startswith(_LOADER):
            self._check_ranks()
        run, self._loaded = self._loaded, None
        number = self._counter.begin(
            f"{common}/{self._iterations}", worker, None if run is None else run.number
        )
        self._iterations += 1
        if run is None:
            run = WorkerPosition.first(self._iteration(number), number, worker, workers)
        self._running = run
        return _Reading(run, self._batches(run), self._skip)

    def _batches(self, run: WorkerPosition) -> Generator[tuple[Any, BatchPlace], None, None]:
        if not run.over:
            self._source.dataset.threads = max(
                self._threads // run.workers, 1
            )  # of this worker's own copy
            for number, (batch, place) in enumerate(
                tensor_batches(self._source, run.plan, run.workers, run.had)
            ):
                yield unfailed(batch, number * run.workers + run.worker), place

    def _iteration(self, number: int) -> StepPlan:
        """The steps of all workers."""
        first = 0 if self._epochs is None else self._begin.schedule.epoch // self._epochs
        return self._begin.iteration(number - first, self._epochs)

    def __len__(self) -> int:
        """Returns how many batches the next iteration gives.

        Raises:
            TypeError: it has no end, they are packed, or nobody can know.
        """
        if self._skip:
            raise TypeError('how many batches on_bad="skip" leaves is known at the end only')
        left = self._iteration(self._counter.next).remaining
        if left is None:
            raise TypeError("batches without end (epochs=None) have no number")
        return left

    def set_epoch(self, epoch: int) -> None:
        """The next iteration begins with this epoch, counted from the very first, as DistributedSampler has it.

        Raises:
            UsageError: no iteration begins there.
        """
        if self._epochs is None or epoch < 0 or epoch % self._epochs:
            raise UsageError(
                f"no iteration begins with epoch {epoch}: each of them is epochs={self._epochs}"
            )
        self._counter.restart(epoch // self._epochs)
        self._loaded = self._running = None

    def state_after(self, steps: int) -> State:
        """Returns where the run stands when this host has had so many batches, counted from its begin over all
        iterations.

        `to_torch(..., state=...)` goes on there, with any number of workers, and of hosts (in the middle of steps that
        were bucketed together, with the same number).

        Raises:
            UsageError: batches are packed, or bad records skipped: which records that many batches had is known to
                those alone who made them.
        """
        if self._skip or self._begin.packs is not None:
            raise UsageError(
                "state_after counts batches, and of batches that are packed, or that skip bad records, none knows its "
                "records: save StatefulDataLoader.state_dict(), or state_dict() of this where there are no workers"
            )
        return self._begin.state(self._begin.after(steps))

    def state_dict(self) -> State:
        """Returns where the next batch of this process stands: of a worker, in a worker.

        Raises:
            UsageError: the workers of a loader have begun an iteration, and know where they are.
        """
        worker, workers, common = _place()
        run = self._loaded or self._running
        if (
            self._loaded is None
            and not common.startswith(_LOADER)
            and (self._counter.latest or "").startswith(_LOADER)
        ):
            raise UsageError(
                "the workers of a DataLoader have the position: save StatefulDataLoader.state_dict() instead, or "
                "state_after(steps) of this"
            )
        if run is None:
            number = self._counter.next
            run = WorkerPosition.first(self._iteration(number), number, worker, workers)
        return run.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on there.

        Raises:
            UsageError: it is a state of something else, or of another worker.
        """
        worker, workers, _ = _place()
        self._loaded = WorkerPosition.loaded(self._begin, state, self._epochs, worker, workers)

    def _check_ranks(self) -> None:
        if self._ranked is not None and (now := ranks()[0]) != self._ranked:
            raise UsageError(
                f"torch.distributed has {now} ranks, and had {self._ranked} when to_torch was called: call it after "
                "init_process_group, or give num_hosts and host_index"
            )


class _Reading(Iterator[Any]):
    """The batches of a run, which is told of each of them. skip: bad records are."""

    def __init__(
        self,
        run: WorkerPosition,
        batches: Generator[tuple[Any, BatchPlace], None, None],
        skip: bool,
    ) -> None:
        self._run, self._batches, self._skip = run, batches, skip

    def __next__(self) -> Any:
        try:
            batch, place = next(self._batches)
        except StopIteration:
            self._run.end()
            raise
        self._run.advance(place, self._skip)
        return batch


def ranks() -> tuple[int, int]:
    """Returns (how many processes train together, which of them this is), as torch.distributed says; one without it."""
    there = torch.distributed
    if not there.is_available() or not there.is_initialized():
        return 1, 0
    return there.get_world_size(), there.get_rank()


def _place() -> tuple[int, int, str]:
    """Returns (this worker, how many there are, what the workers of an iteration have in common)."""
    info = torch.utils.data.get_worker_info()
    if info is None:
        return 0, 1, f"process {os.getpid()}"
    return info.id, info.num_workers, f"{_LOADER}{info.seed - info.id}"
