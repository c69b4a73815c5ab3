"""`StepPlan`: the steps of a schedule, as batches return them.

A block contains the rows of several consecutive steps. The collations determine these steps:

* If no feature is bucketed or packed, they are the steps that a thread of the fetcher reads at
  once.
* If a feature is bucketed, they are one group, and its rows are sorted by length.
* If features are packed, a step has as many records as fit into its rows. So the number of steps of
  an epoch is unknown in advance.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import Int64s, to_offsets
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
from recordmill.records.columns.ragged import Array, Ragged
from recordmill.shards.pieces import PIECE_BYTES

_Result = TypeVar("_Result")
# Minimum number of pieces in a window. With fewer, a window would mix records from too few parts of
# the data set.
_MIN_WINDOW_PIECES = 16
# Field of a state that is inside a group of bucketed steps. It has the options and the start of the
# group.
_GROUP_KEY = "bucketed"


@dataclass(frozen=True)
class StepBlock:
    """Rows of consecutive steps.

    Attributes:
        rows: Rows of all steps. If records are packed, `edges` counts packed rows, and `numbers`
            has one number per record.
        padded_lengths: int64 [steps]. Padded length of the bucketed feature.
        row_edges: int64 [rows + 1]. First record of each packed row, and the number of records.
        end_positions: (epoch, position) after each packed step.
        truncated_counts: Number of packed records that were longer than a row, by feature.
        images: Decoded images by feature, [rows, height, width, channels]. Lists of images are
            `Ragged`.
    """

    rows: StepRows
    padded_lengths: Int64s | None = None
    row_edges: Int64s | None = None
    end_positions: tuple[tuple[int, int], ...] = ()
    truncated_counts: Mapping[str, int] = field(default_factory=dict)
    images: Mapping[str, Array | Ragged] = field(default_factory=dict)

    def select_rows(self, rows: slice | Int64s, edges: Int64s) -> StepBlock:
        """Returns some of the rows as new steps. Fields that describe the old steps are dropped.

        Args:
            rows: The rows, in the order of the result.
            edges: First row of each new step, and the number of rows.
        """
        images = {
            name: _select_lists(images, rows) if isinstance(images, Ragged) else images[rows]
            for name, images in self.images.items()
        }
        return StepBlock(self.rows.select_rows(rows, edges), images=images)


def _select_lists(lists: Ragged, rows: slice | Int64s) -> Ragged:
    """Returns some of the lists of images. Their row splits start at 0."""
    assert isinstance(lists.values, np.ndarray)
    if isinstance(rows, slice):
        splits = lists[rows].row_splits
        return Ragged(lists.values[splits[0] : splits[-1]], splits - splits[0])
    lengths = lists.lengths[rows]
    splits = to_offsets(lengths)
    items = np.repeat(lists.row_splits[rows] - splits[:-1], lengths) + np.arange(splits[-1])
    return Ragged(lists.values[items], splits)


@dataclass(frozen=True)
class StepPlan:
    """Steps of one consumer.

    Attributes:
        schedule: The steps to read. It may begin before the first step that is returned.
        buckets: Set if a feature is bucketed.
        packing: Set if features are packed.
        drop_remainder: If True and records are packed, the incomplete last step of an epoch is left
            out.
        skipped_steps: Number of steps to skip at the start of `schedule`.
        step_stride: Returns only the first step and every `step_stride`-th step after it, counted
            across epochs. This is the share of one of `step_stride` workers that take turns. If a
            feature is bucketed or packed, each worker reads the records of all steps.
    """

    schedule: Schedule
    buckets: LengthBuckets | None = None
    packing: PackingLayout | None = None
    drop_remainder: bool = False
    skipped_steps: int = 0
    step_stride: int = 1

    @property
    def remaining_steps(self) -> int | None:
        """Number of steps. None if the plan never ends.

        Raises:
            TypeError: The steps are packed, so their number is unknown.
        """
        if self.packing is not None:
            raise TypeError("the number of packed batches is known only when they are packed")
        remaining_steps = self.schedule.remaining_steps
        return None if remaining_steps is None else remaining_steps - self.skipped_steps

    def schedule_after(self, num_steps: int) -> Schedule:
        """Returns the schedule that begins after the first `num_steps` steps of this plan."""
        return self.schedule.skip_steps(self.skipped_steps + num_steps)

    def skip_steps(self, num_steps: int) -> StepPlan:
        """Returns the plan without its first steps.

        Raises:
            UsageError: The steps are packed.
        """
        if self.packing is not None:
            raise UsageError(
                "start_step counts batches, but the records of packed batches are "
                "not known in advance: pass a state"
            )
        next_schedule = self.schedule_after(num_steps)
        if self.buckets is None:
            return replace(self, schedule=next_schedule, skipped_steps=0)
        group_start = self._group_start(next_schedule)
        return replace(
            self,
            # a group is read from its start, and its finished steps are skipped
            schedule=replace(next_schedule, position=group_start),
            skipped_steps=(next_schedule.position - group_start)
            // next_schedule.epoch_steps.global_batch_size,
        )

    def select_iteration(self, number: int, epochs: int | None) -> StepPlan:
        """Returns the plan of one iteration, as `Schedule.select_iteration` does.

        Steps that are skipped at the start remain skipped in the first iteration only.
        """
        if epochs is None:
            return self
        return replace(
            self,
            schedule=self.schedule.select_iteration(number, epochs),
            skipped_steps=0 if number else self.skipped_steps,
        )

    def skip_finished_epoch(self) -> StepPlan:
        """Returns the plan from the next epoch on if this epoch is finished."""
        schedule = self.schedule
        # with "drop", a state at the end of an epoch can have records left, but no steps
        if not schedule.position or schedule.epoch_steps.count_steps(schedule.position):
            return self
        return replace(
            self, schedule=replace(schedule, epoch=schedule.epoch + 1, position=0), skipped_steps=0
        )

    def select_share(self, worker: int, num_workers: int) -> StepPlan:
        """Returns the share of one worker.

        Args:
            worker: Index of the worker.
            num_workers: Number of workers that take the steps in turn.
        """
        if self.buckets is not None or self.packing is not None:
            # each worker reads all steps, because gathering needs their records
            return replace(self, skipped_steps=self.skipped_steps + worker, step_stride=num_workers)
        remaining_steps = self.schedule.remaining_steps
        skipped_steps = worker if remaining_steps is None else min(worker, remaining_steps)
        return replace(
            self, schedule=self.schedule.skip_steps(skipped_steps), step_stride=num_workers
        )

    def resume(self, state: Mapping[str, Any]) -> StepPlan:
        """Returns the plan from a state on.

        Raises:
            UsageError: The state belongs to other data or options, or it is inside a group of steps
                that other options have formed.
        """
        schedule = self.schedule.resume(state)
        group = state.get(_GROUP_KEY)
        if group is None:
            return replace(self, schedule=schedule, skipped_steps=0)
        if self.buckets is None:
            raise UsageError(
                "state is in the middle of steps that were bucketed together: use "
                "the same collate= as before"
            )
        # the group is read again from its start, and its finished steps are skipped
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
        """Returns the state at the beginning of a schedule, as a JSON object.

        Args:
            schedule: The rest of the schedule of this plan.
        """
        if self.buckets is None or self._group_start(schedule) == schedule.position:
            return schedule.state()
        return {
            **schedule.state(),
            _GROUP_KEY: {**self._group_identity(), "group": self._group_start(schedule)},
        }

    def map_blocks(
        self, fetcher: Fetcher, finish: Callable[[StepBlock], _Result]
    ) -> Iterator[_Result]:
        """Yields `finish(block)` for all blocks, in order.

        Args:
            fetcher: Reads the records. Its schedule is replaced.
            finish: Called on threads of the reader.
        """
        fetcher = replace(fetcher, schedule=self.schedule)
        if self.packing is not None:
            # steps are packed in order in the thread of the consumer, and finished on threads
            return thread_map(
                finish, self._pack_steps(fetcher, self.packing), min(fetcher.threads, 2)
            )
        if self.buckets is not None:
            # a range of the fetcher is one group
            buckets = replace(fetcher, steps_per_range=self.buckets.collation.steps)
            groups = buckets.fetch(
                lambda rows: [finish(block) for block in self._bucket_rows(rows)]
            )
            return itertools.chain.from_iterable(groups)
        return replace(fetcher, step_stride=self.step_stride).fetch(
            lambda rows: finish(StepBlock(rows))
        )

    def _own_step_indices(self, first_step: int, num_steps: int) -> Int64s:
        """Returns which steps of a range belong to this plan's worker.

        The steps of other workers and the skipped steps are left out.

        Args:
            first_step: Number of the first step of the range, counted from the start of `schedule`.
            num_steps: Number of steps in the range.

        Returns:
            Indices in the range, from 0.
        """
        numbers = np.arange(first_step, first_step + num_steps) - self.skipped_steps
        return np.flatnonzero((numbers >= 0) & (numbers % self.step_stride == 0))

    def _group_start(self, schedule: Schedule) -> int:
        """Returns the start of the group that contains the first step of a schedule.

        Args:
            schedule: The end of `self.schedule`, from some position on.
        """
        assert self.buckets is not None
        # groups are counted from the start of the plan in its first epoch, and from 0 in later ones
        epoch_start = self.schedule.position if schedule.epoch == self.schedule.epoch else 0
        group_records = schedule.epoch_steps.global_batch_size * self.buckets.collation.steps
        return epoch_start + (schedule.position - epoch_start) // group_records * group_records

    def _group_identity(self) -> dict[str, Any]:
        """Returns the options that determine the steps of a group, for a saved state.

        A run with other values can't resume inside a group.
        """
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
        """Sorts the rows of a group by length, and returns them as a block.

        The block has only the steps of this worker. The list is empty if none of the steps belongs
        to this worker.
        """
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
        """Yields blocks of packed steps. The consumer's thread packs them.

        Records that do not fill a step are kept, and come first in the next block.
        """
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
            # position of the first record of `batch`, and the number of records in packed steps
            first_position, num_records = read_end - batch.num_rows, len(row_indices)
            own_steps = self._own_step_indices(num_packed, len(step_ends))
            num_packed += len(step_ends)
            if len(own_steps):
                end_positions = [(epoch, first_position + end) for end in step_ends.tolist()]
                # the next step begins in the next epoch, also if records at the end were left out
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
            # a step never mixes two epochs
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
    """Returns a block with some of the packed steps.

    Args:
        rows: The records.
        row_indices: Row of each record, counted over all steps.
        steps: Indices of the steps.
        end_positions: (epoch, position) after each of these steps.
    """
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


def count_iteration_steps(schedule: Schedule, epochs: int | None) -> int:
    """Counts the steps of an iteration before the start of a schedule.

    Args:
        epochs: Number of epochs of an iteration. None if all epochs are one iteration.
    """
    first_epoch = 0 if epochs is None else schedule.epoch // epochs * epochs
    steps = schedule.epoch_steps
    return (
        schedule.epoch - first_epoch
    ) * steps.count_steps() + schedule.position // steps.global_batch_size


def plan_steps(
    dataset: Fetchable, batch_size: int, order: Order, collations: Mapping[str, Collation]
) -> StepPlan:
    """Returns an endless plan of the steps of this host.

    The plan begins at the state and `start_step` of `order`. `StepPlan.select_iteration` ends it.

    Args:
        batch_size: Number of rows of a batch of this host.
        order: Options that determine the order.
        collations: Collations of the features that have one.

    Raises:
        UsageError: An option does not fit the data or the other options, or the state does not fit.
    """
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
        raise UsageError("packed batches all have batch_size rows, so pad_remainder has no effect")
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
    # the boundaries need one pass over this feature only
    feature_only = dataset.select([buckets.name])
    boundaries = compute_length_boundaries(
        (batch.column(0) for batch in feature_only.record_batches()), collation.buckets
    )
    return replace(buckets, collation=replace(collation, boundaries=boundaries))


def _check_group(group: Any, expected: Mapping[str, Any], schedule: Schedule) -> None:
    """Raises UsageError if a state does not fit the current group of steps.

    Args:
        group: The value of the state for the group.
        expected: The current options, from `StepPlan._group_identity`.
        schedule: The schedule from the state on.
    """
    for name, value in expected.items():
        if not isinstance(group, Mapping) or name not in group:
            raise UsageError(
                f"state has no {name!r} under {_GROUP_KEY!r}: it was not returned by `state()`"
            )
        if group[name] != value:
            raise UsageError(
                f"state is in the middle of {expected['steps']} steps that are sorted "
                f"by length together, with {name} {group[name]!r}, and now it is "
                f"{value!r}: use the old value, or a state from the end of these steps"
            )
    group_start = group.get("group")
    if not isinstance(group_start, int) or not 0 <= group_start <= schedule.position:
        raise UsageError(f"state has group {group_start!r}, which is not a position before its own")


def make_schedule(
    dataset: Fetchable, batch_size: int, order: Order, *, for_all_hosts: bool = False
) -> Schedule:
    """Returns an endless schedule of the steps of this host.

    Args:
        batch_size: Number of rows of a batch of this host.
        order: Options that determine the order.
        for_all_hosts: True if this host reads the records of all hosts.

    Raises:
        UsageError: An epoch is shorter than one step.
    """
    hosts, host = order.hosts
    # reports invalid options before the records of all files are counted
    EpochSteps(0, batch_size, "drop", num_hosts=hosts, host_index=host)
    remainder: Remainder = (
        "pad" if order.pad_remainder else "drop" if order.drop_remainder or hosts > 1 else "short"
    )
    records = len(dataset)
    steps = (
        # packing takes the records of all hosts, and divides the packed rows among the hosts later
        EpochSteps(records, batch_size)
        if for_all_hosts
        else EpochSteps(records, batch_size, remainder, num_hosts=hosts, host_index=host)
    )
    if records and hosts > 1 and not steps.count_steps():
        raise UsageError(
            f"an epoch has {records:,} records, less than a batch of {batch_size} for "
            f"each of {hosts} hosts: use a smaller batch_size, or pad_remainder=True"
        )
    sampler = make_sampler(dataset, order)
    return Schedule(sampler, steps, end_epoch=None, generations=dataset.generations)


def make_sampler(dataset: Fetchable, order: Order) -> Sampler | MixtureSampler:
    """Returns the order of the records of a data set or a mixture."""
    if dataset.mixed is not None:
        datasets, proportions = dataset.mixed
        return MixtureSampler(
            tuple(_make_dataset_sampler(part, order) for part in datasets),
            proportions,
            records=len(dataset),
            fingerprint=dataset.fingerprint,
        )
    return _make_dataset_sampler(dataset, order)


def _make_dataset_sampler(dataset: Fetchable, order: Order) -> Sampler:
    # a small window gets smaller pieces, so that it still mixes records from several parts
    piece_bytes = max(min(order.window_bytes // _MIN_WINDOW_PIECES, PIECE_BYTES), 1)
    files = (FileExtent(file.records, file.framed_bytes) for file in dataset.files)
    layout = EpochLayout.from_files(
        files if order.shuffle == "window" else (), piece_bytes, dataset.record_subset
    )
    return Sampler(
        mode=order.shuffle,
        records=len(dataset),
        layout=layout,
        seed=order.seed,
        fingerprint=dataset.fingerprint,
        window_bytes=order.window_bytes,
    )
