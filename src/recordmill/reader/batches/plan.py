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
from recordmill.reader.batches.grouping import (
    LengthBuckets,
    PackingLayout,
    compute_length_boundaries,
)
from recordmill.reader.options.collation import Bucketed, Collation, Packed
from recordmill.reader.options.training import Order
from recordmill.reader.prefetch.prefetcher import Fetcher, StepRows
from recordmill.reader.prefetch.protocols import Fetchable
from recordmill.reader.sampling.sampler import EpochLayout, FileExtent, MixtureSampler, Sampler
from recordmill.reader.sampling.schedule import EpochSteps, Remainder, Schedule, State
from recordmill.records.columns.ragged import Array
from recordmill.shards.pieces import PIECE_BYTES

_Result = TypeVar("_Result")
_MIN_WINDOW_PIECES = (
    16  # a window holds at least this many pieces, so that records of that many places meet in it
)
_GROUP_KEY = "bucketed"  # of a state in the middle of a group: which group that is


@dataclass(frozen=True)
class StepBlock:
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
    padded_lengths: Int64s | None = None
    row_edges: Int64s | None = None
    end_positions: tuple[tuple[int, int], ...] = ()
    truncated_counts: Mapping[str, int] = field(default_factory=dict)
    images: Mapping[str, Array] = field(default_factory=dict)

    def select_rows(self, rows: slice | Int64s, edges: Int64s) -> StepBlock:
        """Returns some of the rows, as the steps that begin at these edges, without what says more of its steps."""
        images = {name: array[rows] for name, array in self.images.items()}
        return StepBlock(self.rows.select_rows(rows, edges), images=images)


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
    buckets: LengthBuckets | None = None
    packing: PackingLayout | None = None
    drop_remainder: bool = False
    skipped_steps: int = 0
    step_stride: int = 1

    @property
    def remaining_steps(self) -> int | None:
        """Returns how many steps are left; None without end. TypeError: they are packed."""
        if self.packing is not None:
            raise TypeError(
                "how many packed batches there are is known when they are packed: they have no number"
            )
        remaining_steps = self.schedule.remaining_steps
        return None if remaining_steps is None else remaining_steps - self.skipped_steps

    def schedule_after(self, num_steps: int) -> Schedule:
        """Returns where the step stands that follows so many more."""
        return self.schedule.skip_steps(self.skipped_steps + num_steps)

    def skip_steps(self, num_steps: int) -> StepPlan:
        """The course when so many more steps of it are done."""
        if self.packing is not None:
            raise UsageError(
                "start_step counts batches, and of packed ones none knows its records: give a state"
            )
        next_schedule = self.schedule_after(num_steps)
        if self.buckets is None:
            return replace(self, schedule=next_schedule, skipped_steps=0)
        group_start = self._group_start(next_schedule)
        return replace(
            self,
            schedule=replace(next_schedule, position=group_start),
            skipped_steps=(next_schedule.position - group_start)
            // next_schedule.epoch_steps.global_batch_size,
        )

    def select_iteration(self, number: int, epochs: int | None) -> StepPlan:
        """Returns the plan of an iteration (`Schedule.select_iteration`), the first one without the steps that are done."""
        if epochs is None:
            return self
        return replace(
            self,
            schedule=self.schedule.select_iteration(number, epochs),
            skipped_steps=0 if number else self.skipped_steps,
        )

    def skip_finished_epoch(self) -> StepPlan:
        """The plan from the next epoch on, where nothing of this one is left."""
        schedule = self.schedule
        if not schedule.position or schedule.epoch_steps.count_steps(schedule.position):
            return self
        return replace(
            self, schedule=replace(schedule, epoch=schedule.epoch + 1, position=0), skipped_steps=0
        )

    def select_share(self, worker: int, num_workers: int) -> StepPlan:
        """Returns the share of one of so many takers that take its steps in turn."""
        if self.buckets is not None or self.packing is not None:
            return replace(self, skipped_steps=self.skipped_steps + worker, step_stride=num_workers)
        remaining_steps = self.schedule.remaining_steps
        skipped_steps = worker if remaining_steps is None else min(worker, remaining_steps)
        return replace(
            self, schedule=self.schedule.skip_steps(skipped_steps), step_stride=num_workers
        )

    def resume(self, state: Mapping[str, Any]) -> StepPlan:
        """Returns the plan from a state on; UsageError where it is one of something else, or in the middle of steps
        that were gathered otherwise.
        """
        schedule = self.schedule.resume(state)
        group = state.get(_GROUP_KEY)
        if group is None:
            return replace(self, schedule=schedule, skipped_steps=0)
        if self.buckets is None:
            raise UsageError(
                "state is in the middle of steps that were bucketed together: go on bucketed, as it was"
            )
        resumed = replace(self, schedule=schedule)
        _check_group(group, resumed._group_identity(), schedule)
        skipped_steps = (
            schedule.position - group["group"]
        ) // schedule.epoch_steps.global_batch_size
        return replace(
            resumed,
            schedule=replace(schedule, position=group["group"]),
            skipped_steps=skipped_steps,
        )

    def state(self, schedule: Schedule) -> State:
        """A place in it as JSON takes it."""
        if self.buckets is None or self._group_start(schedule) == schedule.position:
            return schedule.state()
        return {
            **schedule.state(),
            _GROUP_KEY: {**self._group_identity(), "group": self._group_start(schedule)},
        }

    def map_blocks(
        self, fetcher: Fetcher, finish: Callable[[StepBlock], _Result]
    ) -> Iterator[_Result]:
        """Yields finish(lot) of all lots, in order; it runs in the threads."""
        fetcher = replace(fetcher, schedule=self.schedule)
        if self.packing is not None:
            return thread_map(
                finish, self._pack_steps(fetcher, self.packing), min(fetcher.dataset.threads, 2)
            )
        if self.buckets is not None:
            buckets = replace(fetcher, steps_per_range=self.buckets.collation.steps)
            groups = buckets.fetch(
                lambda rows: [finish(block) for block in self._bucket_rows(rows)]
            )
            return itertools.chain.from_iterable(groups)
        return replace(fetcher, step_stride=self.step_stride).fetch(
            lambda rows: finish(StepBlock(rows))
        )

    def _own_step_indices(self, first_step: int, num_steps: int) -> Int64s:
        """Returns which of so many steps are given, after `before` steps."""
        numbers = np.arange(first_step, first_step + num_steps) - self.skipped_steps
        return np.flatnonzero((numbers >= 0) & (numbers % self.step_stride == 0))

    def _group_start(self, schedule: Schedule) -> int:
        """Returns where the group begins that a place is in."""
        assert self.buckets is not None
        epoch_start = self.schedule.position if schedule.epoch == self.schedule.epoch else 0
        group_records = schedule.epoch_steps.global_batch_size * self.buckets.collation.steps
        return epoch_start + (schedule.position - epoch_start) // group_records * group_records

    def _group_identity(self) -> dict[str, Any]:
        assert self.buckets is not None
        collation = self.buckets.collation
        return {
            "feature": self.buckets.name,
            "boundaries": list(collation.boundaries or ()),
            "length": collation.length,
            "steps": collation.steps,
            "num_hosts": self.schedule.epoch_steps.num_hosts,
        }

    def _bucket_rows(self, rows: StepRows) -> list[StepBlock]:
        """A group's steps that are given, if there are any."""
        assert self.buckets is not None
        first_step = self.schedule.count_steps_before(
            rows.step_range.epoch, rows.step_range.position
        )
        own_steps = self._own_step_indices(first_step, rows.step_range.num_steps)
        return (
            [StepBlock(*self.buckets.sort_rows(rows, self.schedule, own_steps))]
            if len(own_steps)
            else []
        )

    def _pack_steps(self, fetcher: Fetcher, packing: PackingLayout) -> Iterator[StepBlock]:
        """Yields the packed steps; records that the last steps had no room for come first."""
        remaining_batch: pa.RecordBatch | None = None
        numbers, num_packed = np.empty(0, np.int64), 0
        for rows in fetcher.fetch(lambda rows: rows):
            epoch, read_end = rows.step_range.epoch, rows.step_range.position + len(rows.numbers)
            batch = (
                rows.batch
                if remaining_batch is None
                else pa.concat_batches([remaining_batch, rows.batch])
            )
            numbers = np.concatenate([numbers, rows.numbers])
            is_epoch_end = read_end == self.schedule.epoch_steps.records
            row_indices, step_ends = packing.pack_records(
                batch, is_epoch_end and not self.drop_remainder
            )
            first_position, num_records = read_end - batch.num_rows, len(row_indices)
            own_steps = self._own_step_indices(num_packed, len(step_ends))
            num_packed += len(step_ends)
            if len(own_steps):
                end_positions = [(epoch, first_position + end) for end in step_ends.tolist()]
                if is_epoch_end:
                    end_positions[-1] = (epoch + 1, 0)
                packed_rows = replace(
                    rows,
                    batch=batch.slice(0, num_records),
                    numbers=numbers[:num_records],
                    mask=None,
                )
                yield _make_packed_block(
                    packed_rows,
                    row_indices,
                    packing,
                    steps=own_steps,
                    end_positions=tuple(end_positions[step] for step in own_steps.tolist()),
                )
            remaining_batch, numbers = (
                (None, numbers[:0])
                if is_epoch_end
                else (batch.slice(num_records), numbers[num_records:])
            )


def _make_packed_block(
    rows: StepRows,
    row_indices: Int64s,
    packing: PackingLayout,
    steps: Int64s,
    end_positions: tuple[tuple[int, int], ...],
) -> StepBlock:
    """Returns these steps of those that the records were packed into."""
    order, row_edges = packing.select_host_records(row_indices, steps)
    packed_rows = rows.select_rows(order, np.arange(len(steps) + 1) * packing.host_rows)
    batch, truncated_counts = packing.truncate_lists(packed_rows.batch)
    return StepBlock(
        replace(packed_rows, batch=batch),
        padded_lengths=None,
        row_edges=row_edges,
        end_positions=end_positions,
        truncated_counts=truncated_counts,
    )


def plan_steps(
    dataset: Fetchable, batch_size: int, order: Order, collations: Mapping[str, Collation]
) -> StepPlan:
    """Returns the steps of this host, without end, from where `order` says; `StepPlan.select_iteration` ends them."""
    names = dataset.schema.names
    packed_collations = {
        name: collation for name, collation in collations.items() if isinstance(collation, Packed)
    }
    bucketed = [
        LengthBuckets(name, names.index(name), collation)
        for name, collation in collations.items()
        if isinstance(collation, Bucketed)
    ]
    schedule = make_schedule(dataset, batch_size, order, for_all_hosts=bool(packed_collations))
    plan = StepPlan(schedule)
    if packed_collations:
        plan = replace(
            plan,
            packing=_make_packing(names, batch_size, order, packed_collations),
            drop_remainder=order.drop_remainder,
        )
    elif bucketed:
        plan = replace(plan, buckets=_add_boundaries(dataset, bucketed[0]))
    if order.state is not None:
        plan = plan.resume(order.state)
    return plan.skip_steps(order.start_step) if order.start_step else plan


def _make_packing(
    names: Sequence[str], batch_size: int, order: Order, packed_collations: Mapping[str, Packed]
) -> PackingLayout:
    if order.pad_remainder:
        raise UsageError(
            "packed batches all have batch_size rows: there is no remainder that pad_remainder would fill up"
        )
    column_indices, max_lengths = (
        tuple(names.index(name) for name in packed_collations),
        tuple(collation.length for collation in packed_collations.values()),
    )
    hosts, host = order.hosts
    return PackingLayout(
        names=tuple(packed_collations),
        column_indices=column_indices,
        max_lengths=max_lengths,
        step_rows=batch_size * hosts,
        first_host_row=batch_size * host,
        host_rows=batch_size,
    )


def _add_boundaries(dataset: Fetchable, buckets: LengthBuckets) -> LengthBuckets:
    collation = buckets.collation
    if collation.boundaries is not None:
        return buckets
    feature_only = dataset.select([buckets.name])
    boundaries = compute_length_boundaries(
        (batch.column(0) for batch in feature_only.record_batches()), collation.buckets
    )
    return replace(buckets, collation=replace(collation, boundaries=boundaries))


def _check_group(group: Any, expected: Mapping[str, Any], schedule: Schedule) -> None:
    """Refuses a place in the middle of a group of another kind."""
    for name, value in expected.items():
        if not isinstance(group, Mapping) or name not in group:
            raise UsageError(
                f"state has no {name!r} under {_GROUP_KEY!r}: it is none that `state()` gave"
            )
        if group[name] != value:
            raise UsageError(
                f"state is in the middle of {expected['steps']} steps that are sorted by length together, with {name} "
                f"{group[name]!r} where it is {value!r} now: go on there as it was, or from a state at their end"
            )
    group_start = group.get("group")
    if not isinstance(group_start, int) or not 0 <= group_start <= schedule.position:
        raise UsageError(f"state has group {group_start!r}, which is no position before its own")


def make_schedule(
    dataset: Fetchable, batch_size: int, order: Order, *, for_all_hosts: bool = False
) -> Schedule:
    """Returns the steps of this host, without end; whole_steps: a host reads the records of all."""
    hosts, host = order.hosts
    EpochSteps(
        0, batch_size, "drop", num_hosts=hosts, host_index=host
    )  # refused before a file is counted
    if order.mode == "global" and (
        streamed_files := [file.file for file in dataset.files if not file.seekable]
    ):
        raise UsageError(
            f'shuffle="global" needs any record at any time, and {streamed_files[0].name} can only be read from the front '
            f'({streamed_files[0].compression}): shuffle="window" mixes its records as they come, `recordmill build` '
            "makes shards of it that can be read from anywhere"
        )
    remainder: Remainder = (
        "pad" if order.pad_remainder else "drop" if order.drop_remainder or hosts > 1 else "short"
    )
    records = len(dataset)
    steps = (
        EpochSteps(records, batch_size)
        if for_all_hosts
        else EpochSteps(records, batch_size, remainder, num_hosts=hosts, host_index=host)
    )
    if records and hosts > 1 and not steps.count_steps():
        raise UsageError(
            f"an epoch has {records:,} records, less than a batch of {batch_size} for each of {hosts} hosts: make "
            "batch_size smaller, or give pad_remainder=True"
        )
    return Schedule(make_sampler(dataset, order), steps, None)


def make_sampler(dataset: Fetchable, order: Order) -> Sampler | MixtureSampler:
    """The order of a data set's epochs, or of a mixture's."""
    if (parts := dataset.mixture_parts) is not None:
        samplers = (_make_dataset_sampler(part, order) for part in parts.datasets)
        return MixtureSampler(
            tuple(samplers),
            parts.proportions,
            records=parts.records,
            fingerprint=dataset.fingerprint,
        )
    return _make_dataset_sampler(dataset, order)


def _make_dataset_sampler(dataset: Fetchable, order: Order) -> Sampler:
    piece_bytes = max(min(order.window // _MIN_WINDOW_PIECES, PIECE_BYTES), 1)
    files = (FileExtent(file.records, file.framed_bytes, file.seekable) for file in dataset.files)
    layout = EpochLayout.from_files(
        files if order.mode == "window" else (), piece_bytes, dataset.record_subset
    )
    return Sampler(
        mode=order.mode,
        records=len(dataset),
        layout=layout,
        seed=order.seed,
        fingerprint=dataset.fingerprint,
        window_bytes=order.window,
    )
