"""`Course`: the steps of a schedule in the order and the rows in which they are given, several at once (a lot).

as they come        a stretch of the fetcher is a lot
bucketed            so is a group of steps, whose rows are sorted by length
packed              a step is as many records as fit its rows; there is no telling how many steps an epoch has
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import UsageError
from recordmill.base.threads import thread_map
from recordmill.reader.collating.bucketing import Buckets, quantiles
from recordmill.reader.collating.packing import Packs
from recordmill.reader.collating.ways import Bucketed, Packed, Way
from recordmill.reader.fetching.fetcher import Fetcher, Rows
from recordmill.reader.fetching.order import Order, make_schedule
from recordmill.reader.fetching.readable import Fetchable
from recordmill.reader.sampling.schedule import Schedule, State
from recordmill.reader.sampling.steps import Steps
from recordmill.records.columns.ragged import Array

Int64s = npt.NDArray[np.int64]
Result = TypeVar("Result")
_GROUP = "bucketed"  # of a state in the middle of a group: which group that is


@dataclass(frozen=True)
class Lot:
    """rows: of all steps; edges count what is given as rows. lengths: [steps] what the bucketed feature is padded to.
    bins: [rows + 1] where the records of each packed row begin in the batch. ends: [steps] (epoch, position) behind
    each packed step. cut: packed records that were longer than a row, by feature. images: decoded ones, by feature,
    [rows, height, width, channels].
    """

    rows: Rows
    lengths: Int64s | None = None
    bins: Int64s | None = None
    ends: tuple[tuple[int, int], ...] = ()
    cut: Mapping[str, int] = field(default_factory=dict)
    images: Mapping[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class Course:
    """schedule: from where on is read; done: how many of its first steps are not given. every: of the others only the
    first and every so many-th one behind it, counted across the ends of epochs: what one of so many that take turns
    gets. To know which records those are, steps that are gathered are read whole by each of them.
    """

    schedule: Schedule
    buckets: Buckets | None = None
    packs: Packs | None = None
    drop: bool = False
    done: int = 0
    every: int = 1

    @property
    def remaining(self) -> int | None:
        """How many steps are left; None without end.

        Raises:
            TypeError: they are packed.
        """
        if self.packs is not None:
            raise TypeError("how many packed batches there are is known when they are packed: they have no number")
        left = self.schedule.remaining
        return None if left is None else left - self.done

    def after(self, step: int) -> Schedule:
        """Where the step behind so many more stands."""
        return self.schedule.after(self.done + step)

    def begun_after(self, step: int) -> Course:
        """The course when so many more steps of it are done."""
        if self.packs is not None:
            raise UsageError("start_step counts batches, and of packed ones none knows its records: give a state")
        at = self.after(step)
        if self.buckets is None:
            return replace(self, schedule=at, done=0)
        begin = self._group(at)
        return replace(self, schedule=replace(at, position=begin), done=(at.position - begin) // at.steps.span)

    def iteration(self, number: int, epochs: int | None) -> Course:
        """What an iteration gives (`Schedule.iteration`), the first one without the steps that are done."""
        if epochs is None:
            return self
        return replace(self, schedule=self.schedule.iteration(number, epochs), done=0 if number else self.done)

    def share(self, taker: int, takers: int) -> Course:
        """What one of so many gets that take its steps in turn."""
        if self.buckets is not None or self.packs is not None:
            return replace(self, done=self.done + taker, every=takers)
        left = self.schedule.remaining
        ahead = taker if left is None else min(taker, left)
        return replace(self, schedule=self.schedule.after(ahead), every=takers)

    def at(self, state: Mapping[str, Any]) -> Course:
        """The same course from a state on.

        Raises:
            UsageError: it is a state of something else, or in the middle of steps that were gathered otherwise.
        """
        schedule = self.schedule.at(state)
        group = state.get(_GROUP)
        if group is None:
            return replace(self, schedule=schedule, done=0)
        if self.buckets is None:
            raise UsageError("state is in the middle of steps that were bucketed together: go on bucketed, as it was")
        begun = replace(self, schedule=schedule)
        _check_group(group, begun._named(), schedule)
        done = (schedule.position - group["group"]) // schedule.steps.span
        return replace(begun, schedule=replace(schedule, position=group["group"]), done=done)

    def state(self, at: Schedule) -> State:
        """A place in it as JSON takes it."""
        if self.buckets is None or self._group(at) == at.position:
            return at.state()
        return {**at.state(), _GROUP: {**self._named(), "group": self._group(at)}}

    def lots(self, fetcher: Fetcher, finish: Callable[[Lot], Result]) -> Iterator[Result]:
        """finish(lot) of all lots, in order; it runs in the threads."""
        fetcher = replace(fetcher, schedule=self.schedule)
        if self.packs is not None:
            return thread_map(finish, self._packed(fetcher, self.packs), min(fetcher.dataset.threads, 2))
        if self.buckets is not None:
            buckets = replace(fetcher, at_once=self.buckets.way.steps)
            found = buckets.fetch(lambda rows: [finish(lot) for lot in self._bucketed(rows)])
            return itertools.chain.from_iterable(found)
        return replace(fetcher, every=self.every).fetch(lambda rows: finish(Lot(rows)))

    def _own(self, before: int, steps: int) -> Int64s:
        """Which of so many steps are given, behind so many of the course."""
        numbers = np.arange(before, before + steps) - self.done
        return np.flatnonzero((numbers >= 0) & (numbers % self.every == 0))

    def _group(self, at: Schedule) -> int:
        """Where the group begins in which a place is."""
        assert self.buckets is not None
        first = self.schedule.position if at.epoch == self.schedule.epoch else 0
        span = at.steps.span * self.buckets.way.steps
        return first + (at.position - first) // span * span

    def _named(self) -> dict[str, Any]:
        assert self.buckets is not None
        way = self.buckets.way
        return {
            "feature": self.buckets.name,
            "boundaries": list(way.boundaries or ()),
            "length": way.length,
            "steps": way.steps,
            "num_hosts": self.schedule.steps.num_hosts,
        }

    def _bucketed(self, rows: Rows) -> list[Lot]:
        """A group's steps that are given, if there are any."""
        assert self.buckets is not None
        before = self.schedule.steps_before(rows.stretch.epoch, rows.stretch.position)
        own = self._own(before, rows.stretch.steps)
        return [Lot(*self.buckets.sorted(rows, self.schedule, own))] if len(own) else []

    def _packed(self, fetcher: Fetcher, packs: Packs) -> Iterator[Lot]:
        """Each stretch's records behind those that the last steps had no room for."""
        held: pa.RecordBatch | None = None
        numbers, before = np.empty(0, np.int64), 0
        for rows in fetcher.fetch(lambda rows: rows):
            epoch, behind = rows.stretch.epoch, rows.stretch.position + len(rows.numbers)
            batch = rows.batch if held is None else pa.concat_batches([held, rows.batch])
            numbers = np.concatenate([numbers, rows.numbers])
            final = behind == self.schedule.steps.records
            place, ends = packs.fit(batch, final and not self.drop)
            begin, taken = behind - batch.num_rows, len(place)
            own = self._own(before, len(ends))
            before += len(ends)
            if len(own):
                places = [(epoch, begin + end) for end in ends.tolist()]
                if final:
                    places[-1] = (epoch + 1, 0)
                given = replace(rows, batch=batch.slice(0, taken), numbers=numbers[:taken], mask=None)
                yield _packed_lot(given, place, packs, own, tuple(places[step] for step in own.tolist()))
            held, numbers = (None, numbers[:0]) if final else (batch.slice(taken), numbers[taken:])


def _packed_lot(rows: Rows, place: Int64s, packs: Packs, steps: Int64s, ends: tuple[tuple[int, int], ...]) -> Lot:
    """These steps of those that the records were packed into."""
    order, bins = packs.own_records(place, steps)
    batch, cut = packs.cut(rows.batch.take(pa.array(order)))
    edges = np.arange(len(steps) + 1) * packs.own
    return Lot(replace(rows, batch=batch, numbers=rows.numbers[order], edges=edges), None, bins, ends, cut)


def make_course(dataset: Fetchable, batch_size: int, order: Order, ways: Mapping[str, Way]) -> Course:
    """The course of this host.

    Raises:
        UsageError: an option does not fit, with another or with the data, or a state is one of something else.
    """
    names = dataset.schema.names
    packed = {name: way for name, way in ways.items() if isinstance(way, Packed)}
    if packed:
        return _packed_course(dataset, batch_size, order, packed)
    for name, way in ways.items():
        if isinstance(way, Bucketed):
            return _bucketed_course(dataset, batch_size, order, Buckets(name, names.index(name), way))
    return Course(make_schedule(dataset, batch_size, order))


def _packed_course(dataset: Fetchable, batch_size: int, order: Order, packed: Mapping[str, Packed]) -> Course:
    if order.pad_remainder:
        raise UsageError(
            "packed batches all have batch_size rows: there is no remainder that pad_remainder would fill up"
        )
    Steps(0, batch_size, "drop", order.num_hosts, order.host_index)  # which refuses hosts that there are not
    alone = replace(order, num_hosts=1, host_index=0, drop_remainder=False)
    at = tuple(dataset.schema.names.index(name) for name in packed)
    limits = tuple(way.length for way in packed.values())
    packs = Packs(tuple(packed), at, limits, batch_size * order.num_hosts, batch_size * order.host_index, batch_size)
    return Course(make_schedule(dataset, batch_size, alone), packs=packs, drop=order.drop_remainder)


def _bucketed_course(dataset: Fetchable, batch_size: int, order: Order, buckets: Buckets) -> Course:
    if buckets.way.boundaries is None:
        alone = dataset.select([buckets.name])
        found = quantiles((batch.column(0) for batch in alone.record_batches()), buckets.way.buckets)
        buckets = replace(buckets, way=replace(buckets.way, boundaries=found))
    begin = Course(make_schedule(dataset, batch_size, replace(order, state=None)), buckets)
    return begin if order.state is None else begin.at(order.state)


def _check_group(group: Any, wanted: Mapping[str, Any], at: Schedule) -> None:
    """Refuse a place in the middle of a group of another kind."""
    for name, value in wanted.items():
        if not isinstance(group, Mapping) or name not in group:
            raise UsageError(f"state has no {name!r} under {_GROUP!r}: it is none that `state()` gave")
        if group[name] != value:
            raise UsageError(
                f"state is in the middle of {wanted['steps']} steps that are sorted by length together, with {name} "
                f"{group[name]!r} where it is {value!r} now: go on there as it was, or from a state at their end"
            )
    begin = group.get("group")
    if not isinstance(begin, int) or not 0 <= begin <= at.position:
        raise UsageError(f"state has group {begin!r}, which is no position before its own")
