"""Collations that gather the records of a batch from several steps.

Bucketed: the rows of a group of steps are sorted by length and divided into steps again. The
records of a group and its end do not change. All hosts therefore have the same number of batches. A
saved position consists of the start of the group and the number of its finished steps.

Packed: the lists of several records are placed one after another in rows of one length. Each record
goes into the first row with room, in the order of the records. A step takes as many consecutive
records as fit, so a position still counts records. With several hosts, the rows of all hosts are
packed together. Each host reads the records of all hosts and keeps its own rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.base import native
from recordmill.base.buffers import Int32s, Int64s, to_offsets
from recordmill.reader.options.collation import Bucketed
from recordmill.reader.prefetch.prefetcher import StepRows
from recordmill.reader.sampling.sampler import derive_random_key, permute_indices
from recordmill.reader.sampling.schedule import Schedule
from recordmill.records.columns.numpy_arrays import list_lengths
from recordmill.records.columns.ragged import Ragged


def compute_length_boundaries(columns: Iterable[pa.Array], num_buckets: int) -> tuple[int, ...]:
    """Computes boundaries of lengths that divide the rows into buckets of similar size.

    Memory grows with the number of different lengths only.

    Args:
        columns: List columns, one after another.
        num_buckets: Number of buckets. The result has fewer boundaries if some are equal.

    Returns:
        Ascending lengths from 1 on. The last one is the longest length. (1,) if there are no rows.
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
    # without the small number, a rounding error could select the next length
    target_counts = cumulative_counts[-1] * (np.arange(1, num_buckets + 1) / num_buckets - 1e-12)
    return tuple(
        np.unique(
            np.maximum(lengths[np.searchsorted(cumulative_counts, target_counts)], 1)
        ).tolist()
    )


@dataclass(frozen=True)
class LengthBuckets:
    """Sorting of rows into buckets, by the length of one feature.

    Attributes:
        name: Name of this feature.
        column_index: Index of its column.
        collation: The collation, with the boundaries of the buckets.
    """

    name: str
    column_index: int
    collation: Bucketed

    def sort_rows(
        self, rows: StepRows, schedule: Schedule, steps: Int64s
    ) -> tuple[StepRows, Int64s]:
        """Sorts a group of steps by length and returns some of the new steps.

        Args:
            rows: The rows of the group.
            schedule: The schedule, for batch size and seed.
            steps: Indices of the new steps to return.

        Returns:
            The rows of these steps, and the padded length of each step, int64 [steps].
        """
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
        """Returns the order of the rows, int64 [rows].

        Rows are sorted by bucket and divided into steps. Complete steps are shuffled unless the
        schedule keeps the order. An incomplete step remains the last one.

        Args:
            bucket: int64 [rows]. Index of the bucket of each row.
            rows: The rows of the group.
        """
        size, sampler = schedule.epoch_steps.batch_size, schedule.sampler
        order = np.argsort(bucket, kind="stable")
        full = len(order) // size
        steps = np.arange(full)
        if sampler.mode is not False:
            step_range = rows.step_range
            # each group of each epoch has an order of its own
            key = derive_random_key(
                sampler.fingerprint, "bucketed", sampler.seed, step_range.epoch, step_range.position
            )
            steps = permute_indices(steps, full, key)
        return np.concatenate(
            [order[: full * size].reshape(full, size)[steps].reshape(-1), order[full * size :]]
        )

    def _padded_lengths(self, longest: Int64s) -> Int64s:
        """Returns the padded length of each step.

        This length is the smallest boundary that the longest row fits in. If the longest row is
        above all boundaries, its own length is used.
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
        names: Names of the packed features.
        column_indices: Indices of their columns.
        max_lengths: Length of a row of each feature.
        step_rows: Number of rows of a step of all hosts.
        first_host_row: First row of this host.
        host_rows: Number of rows of this host.
    """

    names: tuple[str, ...]
    column_indices: tuple[int, ...]
    max_lengths: tuple[int, ...]
    step_rows: int
    first_host_row: int
    host_rows: int

    def pack_records(self, batch: pa.RecordBatch, keep_last_step: bool) -> tuple[Int64s, Int64s]:
        """Assigns records to rows.

        Args:
            batch: The records.
            keep_last_step: If True, the last, incomplete step is returned, too, if it has records.

        Returns:
            (row_indices, step_ends). `row_indices` is the row of each record in a returned step,
            counted over all steps. `step_ends` is the number of records up to the end of each step.
        """
        lengths = np.stack([list_lengths(batch.column(index)) for index in self.column_indices])
        # An empty list counts as one item. Otherwise a step of empty lists would never be full.
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
        """Returns the records of this host in some steps.

        Args:
            row_indices: Row of each record, from `pack_records`.
            steps: Indices of the steps, ascending.

        Returns:
            The records in the order of their rows, and the first record of each row and their
            number, int64 [rows + 1].
        """
        step_numbers, row_numbers = np.divmod(row_indices, self.step_rows)
        records = np.flatnonzero(
            (row_numbers >= self.first_host_row)
            & (row_numbers < self.first_host_row + self.host_rows)
            & np.isin(step_numbers, steps)
        )
        # row of each record among the rows of this host in the selected steps
        local_rows = (
            np.searchsorted(steps, step_numbers[records]) * self.host_rows
            + row_numbers[records]
            - self.first_host_row
        )
        counts = np.bincount(local_rows, minlength=len(steps) * self.host_rows)
        row_edges = to_offsets(counts)
        # a stable sort keeps the order of the records in each row
        return records[np.argsort(local_rows, kind="stable")], row_edges

    def truncate_lists(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """Cuts lists that are longer than a row.

        Returns:
            The batch, and the number of cut records by feature.
        """
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
    """Joins the lists of the records of each row into one list."""
    return Ragged(records.values, records.row_splits[row_edges])


def compute_segments(records: Ragged, row_edges: Int64s, length: int) -> tuple[Int32s, Int32s]:
    """Numbers the records and the items of packed rows.

    Args:
        records: The lists of the records, in the order of their rows.
        row_edges: int64 [rows + 1]. First record of each row, and the number of records.
        length: Length of a row.

    Returns:
        For each item, int32 [rows, length]: the number of its record in the row, from 1, and its
        position in the record. Both are 0 after the last item of a row.
    """
    rows, splits = len(row_edges) - 1, records.row_splits
    segment_ids, positions = np.zeros((rows, length), np.int32), np.zeros((rows, length), np.int32)
    sizes = np.diff(splits[row_edges[0] : row_edges[-1] + 1])
    row_of_record = np.repeat(np.arange(rows), np.diff(row_edges))
    # first item of each record, counted from the start of its row
    record_starts = splits[row_edges[0] : row_edges[-1]] - splits[row_edges[row_of_record]]
    item_positions = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    flat_indices = np.repeat(row_of_record * length + record_starts, sizes) + item_positions
    segment_ids.reshape(-1)[flat_indices] = np.repeat(
        np.arange(row_edges[0], row_edges[-1]) - row_edges[row_of_record] + 1, sizes
    )
    positions.reshape(-1)[flat_indices] = item_positions
    return segment_ids, positions
