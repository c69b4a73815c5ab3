"""`StepPlan`: the steps of a schedule in the order and the rows in which they are given, several at once (a lot).

as they come        a stretch of the fetcher is a lot
bucketed            so is a group of steps, whose rows are sorted by length
packed              a step is as many records as fit its rows; there is no telling how many steps an epoch has
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.base.errors import UsageError
from recordmill.base.threads import thread_map
from recordmill.reader.batches.grouping import Buckets, Packs, quantiles
from recordmill.reader.options.collation import Bucketed, Collation, Packed
from recordmill.reader.options.training import Order
from recordmill.reader.prefetch.prefetcher import Fetcher, StepRows
from recordmill.reader.prefetch.protocols import Fetchable
from recordmill.reader.sampling.sampler import EpochLayout, FileExtent, MixtureSampler, Sampler
from recordmill.reader.sampling.schedule import EpochSteps, Remainder, Schedule, State
from recordmill.records.columns.ragged import Array
from recordmill.shards.pieces import PIECE_BYTES

_Result = TypeVar("_Result")
_PIECES = (
    16  # a window holds at least this many pieces, so that records of that many places meet in it
)
_GROUP = "bucketed"  # of a state in the middle of a group: which group that is


@dataclass(frozen=True)
class StepChunk:
    """Rows of consecutive steps.

    Attributes:
        rows: of all steps; edges count what is given as rows.
        lengths: [steps] what the bucketed feature is padded to.
        bins: [rows + 1] where the records of each packed row begin in the batch.
        ends: [steps] (epoch, position) after each packed step.
        cut: packed records that were longer than a row, by feature.
        images: decoded ones, by feature, [rows, height, width, channels].
    """

    rows: StepRows
    lengths: Int64s | None = None
    bins: Int64s | None = None
    ends: tuple[tuple[int, int], ...] = ()
    cut: Mapping[str, int] = field(default_factory=dict)
    images: Mapping[str, Array] = field(default_factory=dict)

    def chosen(self, rows: slice | Int64s, edges: Int64s) -> StepChunk:
        """Returns some of the rows, as the steps that begin at these edges, without what says more of its steps."""
        images = {name: array[rows] for name, array in self.images.items()}
        return StepChunk(self.rows.chosen(rows, edges), images=images)


@dataclass(frozen=True)
class StepPlan:
    """Steps that one consumer gets.

    Attributes:
        schedule: from where on is read.
        done: how many of its first steps are not given.
        every: of the others only the first and every so many-th one after it, counted across the ends of epochs: the
            share of one of so many that take turns. To know which records those are, steps that are gathered are read
            whole by each of them.
    """

    schedule: Schedule
    buckets: Buckets | None = None
    packs: Packs | None = None
    drop: bool = False
    done: int = 0
    every: int = 1

    @property
    def remaining(self) -> int | None:
        """Returns how many steps are left; None without end. TypeError: they are packed."""
        if self.packs is not None:
            raise TypeError(
                "how many packed batches there are is known when they are packed: they have no number"
            )
        left = self.schedule.remaining_steps
        return None if left is None else left - self.done

    def after(self, step: int) -> Schedule:
        """Returns where the step stands that follows so many more."""
        return self.schedule.skip_steps(self.done + step)

    def begun_after(self, step: int) -> StepPlan:
        """The course when so many more steps of it are done."""
        if self.packs is not None:
            raise UsageError(
                "start_step counts batches, and of packed ones none knows its records: give a state"
            )
        at = self.after(step)
        if self.buckets is None:
            return replace(self, schedule=at, done=0)
        begin = self._group(at)
        return replace(
            self,
            schedule=replace(at, position=begin),
            done=(at.position - begin) // at.epoch_steps.global_batch_size,
        )

    def iteration(self, number: int, epochs: int | None) -> StepPlan:
        """Returns the plan of an iteration (`Schedule.select_iteration`), the first one without the steps that are done."""
        if epochs is None:
            return self
        return replace(
            self,
            schedule=self.schedule.select_iteration(number, epochs),
            done=0 if number else self.done,
        )

    def at_open_step(self) -> StepPlan:
        """The plan from the next epoch on, where nothing of this one is left."""
        at = self.schedule
        if not at.position or at.epoch_steps.count_steps(at.position):
            return self
        return replace(self, schedule=replace(at, epoch=at.epoch + 1, position=0), done=0)

    def share(self, taker: int, takers: int) -> StepPlan:
        """Returns the share of one of so many takers that take its steps in turn."""
        if self.buckets is not None or self.packs is not None:
            return replace(self, done=self.done + taker, every=takers)
        left = self.schedule.remaining_steps
        ahead = taker if left is None else min(taker, left)
        return replace(self, schedule=self.schedule.skip_steps(ahead), every=takers)

    def at(self, state: Mapping[str, Any]) -> StepPlan:
        """Returns the plan from a state on; UsageError where it is one of something else, or in the middle of steps
        that were gathered otherwise.
        """
        schedule = self.schedule.resume(state)
        group = state.get(_GROUP)
        if group is None:
            return replace(self, schedule=schedule, done=0)
        if self.buckets is None:
            raise UsageError(
                "state is in the middle of steps that were bucketed together: go on bucketed, as it was"
            )
        begun = replace(self, schedule=schedule)
        _check_group(group, begun._named(), schedule)
        done = (schedule.position - group["group"]) // schedule.epoch_steps.global_batch_size
        return replace(begun, schedule=replace(schedule, position=group["group"]), done=done)

    def state(self, at: Schedule) -> State:
        """A place in it as JSON takes it."""
        if self.buckets is None or self._group(at) == at.position:
            return at.state()
        return {**at.state(), _GROUP: {**self._named(), "group": self._group(at)}}

    def chunks(self, fetcher: Fetcher, finish: Callable[[StepChunk], _Result]) -> Iterator[_Result]:
        """Yields finish(lot) of all lots, in order; it runs in the threads."""
        fetcher = replace(fetcher, schedule=self.schedule)
        if self.packs is not None:
            return thread_map(
                finish, self._packed(fetcher, self.packs), min(fetcher.dataset.threads, 2)
            )
        if self.buckets is not None:
            buckets = replace(fetcher, at_once=self.buckets.how.steps)
            groups = buckets.fetch(lambda rows: [finish(chunk) for chunk in self._bucketed(rows)])
            return itertools.chain.from_iterable(groups)
        return replace(fetcher, every=self.every).fetch(lambda rows: finish(StepChunk(rows)))

    def _own(self, before: int, steps: int) -> Int64s:
        """Returns which of so many steps are given, after `before` steps."""
        numbers = np.arange(before, before + steps) - self.done
        return np.flatnonzero((numbers >= 0) & (numbers % self.every == 0))

    def _group(self, at: Schedule) -> int:
        """Returns where the group begins that a place is in."""
        assert self.buckets is not None
        first = self.schedule.position if at.epoch == self.schedule.epoch else 0
        span = at.epoch_steps.global_batch_size * self.buckets.how.steps
        return first + (at.position - first) // span * span

    def _named(self) -> dict[str, Any]:
        assert self.buckets is not None
        collation = self.buckets.how
        return {
            "feature": self.buckets.name,
            "boundaries": list(collation.boundaries or ()),
            "length": collation.length,
            "steps": collation.steps,
            "num_hosts": self.schedule.epoch_steps.num_hosts,
        }

    def _bucketed(self, rows: StepRows) -> list[StepChunk]:
        """A group's steps that are given, if there are any."""
        assert self.buckets is not None
        before = self.schedule.count_steps_before(rows.step_range.epoch, rows.step_range.position)
        own = self._own(before, rows.step_range.num_steps)
        return [StepChunk(*self.buckets.sorted(rows, self.schedule, own))] if len(own) else []

    def _packed(self, fetcher: Fetcher, packs: Packs) -> Iterator[StepChunk]:
        """Yields the packed steps; records that the last steps had no room for come first."""
        rest: pa.RecordBatch | None = None
        numbers, before = np.empty(0, np.int64), 0
        for rows in fetcher.fetch(lambda rows: rows):
            epoch, read_end = rows.step_range.epoch, rows.step_range.position + len(rows.numbers)
            batch = rows.batch if rest is None else pa.concat_batches([rest, rows.batch])
            numbers = np.concatenate([numbers, rows.numbers])
            final = read_end == self.schedule.epoch_steps.records
            place, ends = packs.fit(batch, final and not self.drop)
            begin, taken = read_end - batch.num_rows, len(place)
            own = self._own(before, len(ends))
            before += len(ends)
            if len(own):
                places = [(epoch, begin + end) for end in ends.tolist()]
                if final:
                    places[-1] = (epoch + 1, 0)
                given = replace(
                    rows, batch=batch.slice(0, taken), numbers=numbers[:taken], mask=None
                )
                yield _packed_chunk(
                    given, place, packs, own, tuple(places[step] for step in own.tolist())
                )
            rest, numbers = (None, numbers[:0]) if final else (batch.slice(taken), numbers[taken:])


def _packed_chunk(
    rows: StepRows, place: Int64s, packs: Packs, steps: Int64s, ends: tuple[tuple[int, int], ...]
) -> StepChunk:
    """Returns these steps of those that the records were packed into."""
    order, bins = packs.own_records(place, steps)
    own = rows.chosen(order, np.arange(len(steps) + 1) * packs.own)
    batch, cut = packs.cut(own.batch)
    return StepChunk(replace(own, batch=batch), None, bins, ends, cut)


def plan_steps(
    dataset: Fetchable, batch_size: int, order: Order, collations: Mapping[str, Collation]
) -> StepPlan:
    """Returns the steps of this host, without end, from where `order` says; `StepPlan.iteration` ends them."""
    names = dataset.schema.names
    packed = {name: how for name, how in collations.items() if isinstance(how, Packed)}
    bucketed = [
        Buckets(name, names.index(name), how)
        for name, how in collations.items()
        if isinstance(how, Bucketed)
    ]
    schedule = make_schedule(dataset, batch_size, order, whole_steps=bool(packed))
    plan = StepPlan(schedule)
    if packed:
        plan = replace(
            plan, packs=_packs(names, batch_size, order, packed), drop=order.drop_remainder
        )
    elif bucketed:
        plan = replace(plan, buckets=_with_boundaries(dataset, bucketed[0]))
    if order.state is not None:
        plan = plan.at(order.state)
    return plan.begun_after(order.start_step) if order.start_step else plan


def _packs(
    names: Sequence[str], batch_size: int, order: Order, packed: Mapping[str, Packed]
) -> Packs:
    if order.pad_remainder:
        raise UsageError(
            "packed batches all have batch_size rows: there is no remainder that pad_remainder would fill up"
        )
    at, limits = (
        tuple(names.index(name) for name in packed),
        tuple(how.length for how in packed.values()),
    )
    hosts, host = order.hosts
    return Packs(tuple(packed), at, limits, batch_size * hosts, batch_size * host, batch_size)


def _with_boundaries(dataset: Fetchable, buckets: Buckets) -> Buckets:
    how = buckets.how
    if how.boundaries is not None:
        return buckets
    alone = dataset.select([buckets.name])
    boundaries = quantiles((batch.column(0) for batch in alone.record_batches()), how.buckets)
    return replace(buckets, how=replace(how, boundaries=boundaries))


def _check_group(group: Any, wanted: Mapping[str, Any], at: Schedule) -> None:
    """Refuses a place in the middle of a group of another kind."""
    for name, value in wanted.items():
        if not isinstance(group, Mapping) or name not in group:
            raise UsageError(
                f"state has no {name!r} under {_GROUP!r}: it is none that `state()` gave"
            )
        if group[name] != value:
            raise UsageError(
                f"state is in the middle of {wanted['steps']} steps that are sorted by length together, with {name} "
                f"{group[name]!r} where it is {value!r} now: go on there as it was, or from a state at their end"
            )
    begin = group.get("group")
    if not isinstance(begin, int) or not 0 <= begin <= at.position:
        raise UsageError(f"state has group {begin!r}, which is no position before its own")


def make_schedule(
    dataset: Fetchable, batch_size: int, order: Order, *, whole_steps: bool = False
) -> Schedule:
    """Returns the steps of this host, without end; whole_steps: a host reads the records of all."""
    hosts, host = order.hosts
    EpochSteps(0, batch_size, "drop", hosts, host)  # refused before a file is counted
    if order.mode == "global" and (
        streamed := [file.file for file in dataset.files if not file.seekable]
    ):
        raise UsageError(
            f'shuffle="global" needs any record at any time, and {streamed[0].name} can only be read from the front '
            f'({streamed[0].compression}): shuffle="window" mixes its records as they come, `recordmill build` '
            "makes shards of it that can be read from anywhere"
        )
    end: Remainder = (
        "pad" if order.pad_remainder else "drop" if order.drop_remainder or hosts > 1 else "short"
    )
    records = len(dataset)
    steps = (
        EpochSteps(records, batch_size)
        if whole_steps
        else EpochSteps(records, batch_size, end, hosts, host)
    )
    if records and hosts > 1 and not steps.count_steps():
        raise UsageError(
            f"an epoch has {records:,} records, less than a batch of {batch_size} for each of {hosts} hosts: make "
            "batch_size smaller, or give pad_remainder=True"
        )
    return Schedule(make_sampler(dataset, order), steps, None)


def make_sampler(dataset: Fetchable, order: Order) -> Sampler | MixtureSampler:
    """The order of a data set's epochs, or of a mixture's."""
    if (mixed := dataset.mixture_parts) is not None:
        samplers = (_one_sampler(one, order) for one in mixed.datasets)
        return MixtureSampler(
            tuple(samplers), mixed.proportions, mixed.records, dataset.fingerprint
        )
    return _one_sampler(dataset, order)


def _one_sampler(dataset: Fetchable, order: Order) -> Sampler:
    piece_bytes = max(min(order.window // _PIECES, PIECE_BYTES), 1)
    extents = (FileExtent(file.records, file.framed_bytes, file.seekable) for file in dataset.files)
    layout = EpochLayout.from_files(
        extents if order.mode == "window" else (), piece_bytes, dataset.record_subset
    )
    return Sampler(order.mode, len(dataset), layout, order.seed, dataset.fingerprint, order.window)
