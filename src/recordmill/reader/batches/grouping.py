"""Steps whose records are gathered from several steps.

Bucketed: the rows of many steps sorted by length and cut into steps again. Which records a group of steps has, and when
it is over, stay as they were: so every host has equally many batches, and a saved position is that of its group and the
steps of it that are done.

Packed: lists of several records one after the other in rows of one length: first fit, in the order of the records. A
step takes consecutive records, as many as fit: so a position counts records, whatever they are packed into. With hosts,
all rows of a step are packed together, and each host keeps its own: it reads the records of all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base import native
from recordmill.base.buffers import Int32s, Int64s
from recordmill.reader.options.collation import Bucketed
from recordmill.reader.prefetch.prefetcher import StepRows
from recordmill.reader.sampling.sampler import derive_random_key, permute_indices
from recordmill.reader.sampling.schedule import Schedule
from recordmill.records.columns.numpy_arrays import list_lengths
from recordmill.records.columns.ragged import Ragged


def compute_length_boundaries(columns: Iterable[pa.Array], num_buckets: int) -> tuple[int, ...]:
    """Ascending lengths that cut the rows of these list columns into about equally many, the last one the longest;
    held is a number for each length that occurs.
    """
    counts: dict[int, int] = {}
    for column in columns:
        lengths, length_counts = np.unique(list_lengths(column), return_counts=True)
        for length, count in zip(lengths.tolist(), length_counts.tolist(), strict=True):
            counts[length] = counts.get(length, 0) + count
    if not counts:
        return (1,)
    lengths = np.array(sorted(counts))
    cumulative_counts = np.cumsum([counts[length] for length in lengths.tolist()])
    target_counts = cumulative_counts[-1] * (np.arange(1, num_buckets + 1) / num_buckets - 1e-12)
    return tuple(
        np.unique(
            np.maximum(lengths[np.searchsorted(cumulative_counts, target_counts)], 1)
        ).tolist()
    )


@dataclass(frozen=True)
class LengthBuckets:
    """Buckets of one feature: its name, its column, and the collation with its boundaries."""

    name: str
    column_index: int
    collation: Bucketed

    def sort_rows(
        self, rows: StepRows, schedule: Schedule, steps: Int64s
    ) -> tuple[StepRows, Int64s]:
        """Returns the rows of these steps of a group in the order given, and [steps] the length each is padded to."""
        lengths = list_lengths(rows.batch.column(self.column_index))
        if self.collation.length is not None:
            lengths = np.minimum(lengths, self.collation.length)
        order = self._order_rows(self._assign_buckets(lengths), rows, schedule)
        step_rows = [order[rows.edges[step] : rows.edges[step + 1]] for step in steps.tolist()]
        longest = np.array([int(lengths[step].max(initial=0)) for step in step_rows], np.int64)
        return rows.select_rows(
            np.concatenate(step_rows), np.cumsum([0, *map(len, step_rows)])
        ), self._padded_lengths(longest)

    def _assign_buckets(self, lengths: Int64s) -> Int64s:
        assert self.collation.boundaries is not None
        return np.searchsorted(np.array(self.collation.boundaries), lengths).astype(np.int64)

    def _order_rows(self, bucket: Int64s, rows: StepRows, schedule: Schedule) -> Int64s:
        """Returns [rows] the rows by bucket, their full steps in random order; a shorter one stays the last."""
        size, sampler = schedule.epoch_steps.batch_size, schedule.sampler
        order = np.argsort(bucket, kind="stable")
        full = len(order) // size
        steps = np.arange(full)
        if sampler.mode is not False:
            step_range = rows.step_range
            key = derive_random_key(
                sampler.fingerprint, "bucketed", sampler.seed, step_range.epoch, step_range.position
            )
            steps = permute_indices(steps, full, key)
        return np.concatenate(
            [order[: full * size].reshape(full, size)[steps].reshape(-1), order[full * size :]]
        )

    def _padded_lengths(self, longest: Int64s) -> Int64s:
        """Returns the length that each step is padded to: the boundary above its longest row, or, beyond the last
        one, that row.
        """
        boundaries = np.array(self.collation.boundaries, np.int64)
        boundary_indices = np.searchsorted(boundaries, longest)
        padded_lengths = np.where(
            boundary_indices < len(boundaries),
            boundaries[np.minimum(boundary_indices, len(boundaries) - 1)],
            longest,
        )
        return (
            padded_lengths
            if self.collation.length is None
            else np.minimum(padded_lengths, self.collation.length)
        )


@dataclass(frozen=True)
class PackingLayout:
    """Packed features, and the rows of a step.

    Attributes:
        names: the features that are packed.
        columns: their columns.
        limits: the length of a row of each.
        rows: of a step of all hosts.
        first: the first row of this host.
        own: how many rows this host has.
    """

    names: tuple[str, ...]
    column_indices: tuple[int, ...]
    max_lengths: tuple[int, ...]
    step_rows: int
    first_host_row: int
    host_rows: int

    def pack_records(self, batch: pa.RecordBatch, keep_last_step: bool) -> tuple[Int64s, Int64s]:
        """Returns ([n] the row of each record that has a place, counted over all steps; [steps] the records up to and
        with each step). final: the last step is one, too, if it has records.
        """
        lengths = np.stack([list_lengths(batch.column(index)) for index in self.column_indices])
        # An empty list takes a place as well, so that a step has an end.
        row_lengths = np.array(self.max_lengths, np.int64)
        lengths = np.ascontiguousarray(np.clip(lengths, 1, row_lengths[:, None]))
        row_numbers, step_ends = (
            np.empty(batch.num_rows, np.int64),
            np.empty(batch.num_rows, np.int64),
        )
        free_items = np.empty(self.step_rows * len(row_lengths), np.int64)
        step_ends = step_ends[
            : native.pack_rows(lengths, row_lengths, free_items, row_numbers, step_ends)
        ]
        if keep_last_step and batch.num_rows > (step_ends[-1] if len(step_ends) else 0):
            step_ends = np.append(step_ends, batch.num_rows)
        return row_numbers[: step_ends[-1] if len(step_ends) else 0], step_ends

    def select_host_records(self, row_indices: Int64s, steps: Int64s) -> tuple[Int64s, Int64s]:
        """Returns (this host's records of these steps in row order, [rows + 1] where those of each row begin)."""
        step_numbers, row_numbers = np.divmod(row_indices, self.step_rows)
        records = np.flatnonzero(
            (row_numbers >= self.first_host_row)
            & (row_numbers < self.first_host_row + self.host_rows)
            & np.isin(step_numbers, steps)
        )
        local_rows = (
            np.searchsorted(steps, step_numbers[records]) * self.host_rows
            + row_numbers[records]
            - self.first_host_row
        )
        counts = np.bincount(local_rows, minlength=len(steps) * self.host_rows)
        row_edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        return records[np.argsort(local_rows, kind="stable")], row_edges

    def truncate_lists(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """The batch without what is longer than a row, and how many records of which feature were cut."""
        truncated_counts = {}
        for name, column_index, max_length in zip(
            self.names, self.column_indices, self.max_lengths, strict=True
        ):
            num_longer = int(
                np.count_nonzero(list_lengths(batch.column(column_index)) > max_length)
            )
            if num_longer:
                truncated_counts[name] = num_longer
                truncated = pc.list_slice(
                    batch.column(column_index), 0, max_length, return_fixed_size_list=False
                )
                batch = batch.set_column(
                    column_index,
                    batch.schema.field(column_index),
                    truncated.cast(batch.schema.field(column_index).type),
                )
        return batch, truncated_counts


def join_packed_lists(records: Ragged, row_edges: Int64s) -> Ragged:
    """The lists of the records of each row as one."""
    return Ragged(records.values, records.row_splits[row_edges])


def compute_segments(records: Ragged, row_edges: Int64s, length: int) -> tuple[Int32s, Int32s]:
    """Returns ([rows, length] the record of each item in its row, from 1; its place there); 0 after the last."""
    rows, splits = len(row_edges) - 1, records.row_splits
    segment_ids, positions = np.zeros((rows, length), np.int32), np.zeros((rows, length), np.int32)
    sizes = np.diff(splits[row_edges[0] : row_edges[-1] + 1])
    row_of_record = np.repeat(np.arange(rows), np.diff(row_edges))  # of each record
    record_starts = (
        splits[row_edges[0] : row_edges[-1]] - splits[row_edges[row_of_record]]
    )  # of each record in its row
    item_positions = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    flat_indices = np.repeat(row_of_record * length + record_starts, sizes) + item_positions
    segment_ids.reshape(-1)[flat_indices] = np.repeat(
        np.arange(row_edges[0], row_edges[-1]) - row_edges[row_of_record] + 1, sizes
    )
    positions.reshape(-1)[flat_indices] = item_positions
    return segment_ids, positions
