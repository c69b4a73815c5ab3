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


def quantiles(columns: Iterable[pa.Array], buckets: int) -> tuple[int, ...]:
    """Ascending lengths that cut the rows of these list columns into about equally many, the last one the longest;
    held is a number for each length that occurs.
    """
    counts: dict[int, int] = {}
    for column in columns:
        lengths, found = np.unique(list_lengths(column), return_counts=True)
        for length, count in zip(lengths.tolist(), found.tolist(), strict=True):
            counts[length] = counts.get(length, 0) + count
    if not counts:
        return (1,)
    lengths = np.array(sorted(counts))
    behind = np.cumsum([counts[length] for length in lengths.tolist()])
    wanted = behind[-1] * (np.arange(1, buckets + 1) / buckets - 1e-12)
    return tuple(np.unique(np.maximum(lengths[np.searchsorted(behind, wanted)], 1)).tolist())


@dataclass(frozen=True)
class Buckets:
    """Buckets of one feature: its name, its column, and the collation with its boundaries."""

    name: str
    at: int
    how: Bucketed

    def sorted(self, rows: StepRows, schedule: Schedule, steps: Int64s) -> tuple[StepRows, Int64s]:
        """Returns the rows of these steps of a group in the order given, and [steps] the length each is padded to."""
        lengths = list_lengths(rows.batch.column(self.at))
        if self.how.length is not None:
            lengths = np.minimum(lengths, self.how.length)
        whole = self._order(self._bucket(lengths), rows, schedule)
        cut = [whole[rows.edges[step] : rows.edges[step + 1]] for step in steps.tolist()]
        longest = np.array([int(lengths[step].max(initial=0)) for step in cut], np.int64)
        return rows.chosen(np.concatenate(cut), np.cumsum([0, *map(len, cut)])), self._padded(
            longest
        )

    def _bucket(self, lengths: Int64s) -> Int64s:
        assert self.how.boundaries is not None
        return np.searchsorted(np.array(self.how.boundaries), lengths).astype(np.int64)

    def _order(self, bucket: Int64s, rows: StepRows, schedule: Schedule) -> Int64s:
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

    def _padded(self, longest: Int64s) -> Int64s:
        """Returns the length that each step is padded to: the boundary above its longest row, or, beyond the last
        one, that row.
        """
        boundaries = np.array(self.how.boundaries, np.int64)
        above = np.searchsorted(boundaries, longest)
        found = np.where(
            above < len(boundaries), boundaries[np.minimum(above, len(boundaries) - 1)], longest
        )
        return found if self.how.length is None else np.minimum(found, self.how.length)


@dataclass(frozen=True)
class Packs:
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
    columns: tuple[int, ...]
    limits: tuple[int, ...]
    rows: int
    first: int
    own: int

    def fit(self, batch: pa.RecordBatch, final: bool) -> tuple[Int64s, Int64s]:
        """Returns ([n] the row of each record that has a place, counted over all steps; [steps] the records up to and
        with each step). final: the last step is one, too, if it has records.
        """
        lengths = np.stack([list_lengths(batch.column(at)) for at in self.columns])
        # An empty list takes a place as well, so that a step has an end.
        limits = np.array(self.limits, np.int64)
        lengths = np.ascontiguousarray(np.clip(lengths, 1, limits[:, None]))
        place, ends = np.empty(batch.num_rows, np.int64), np.empty(batch.num_rows, np.int64)
        left = np.empty(self.rows * len(limits), np.int64)
        ends = ends[: native.pack_rows(lengths, limits, left, place, ends)]
        if final and batch.num_rows > (ends[-1] if len(ends) else 0):
            ends = np.append(ends, batch.num_rows)
        return place[: ends[-1] if len(ends) else 0], ends

    def own_records(self, place: Int64s, steps: Int64s) -> tuple[Int64s, Int64s]:
        """Returns (this host's records of these steps in row order, [rows + 1] where those of each row begin)."""
        step, row = np.divmod(place, self.rows)
        mine = np.flatnonzero(
            (row >= self.first) & (row < self.first + self.own) & np.isin(step, steps)
        )
        at = np.searchsorted(steps, step[mine]) * self.own + row[mine] - self.first
        counts = np.bincount(at, minlength=len(steps) * self.own)
        bins = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        return mine[np.argsort(at, kind="stable")], bins

    def cut(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[str, int]]:
        """The batch without what is longer than a row, and how many records of which feature were cut."""
        cut = {}
        for name, at, limit in zip(self.names, self.columns, self.limits, strict=True):
            longer = int(np.count_nonzero(list_lengths(batch.column(at)) > limit))
            if longer:
                cut[name] = longer
                shorter = pc.list_slice(batch.column(at), 0, limit, return_fixed_size_list=False)
                batch = batch.set_column(
                    at, batch.schema.field(at), shorter.cast(batch.schema.field(at).type)
                )
        return batch, cut


def packed_rows(records: Ragged, bins: Int64s) -> Ragged:
    """The lists of the records of each row as one."""
    return Ragged(records.values, records.row_splits[bins])


def segments(records: Ragged, bins: Int64s, length: int) -> tuple[Int32s, Int32s]:
    """Returns ([rows, length] the record of each item in its row, from 1; its place there); 0 after the last."""
    rows, splits = len(bins) - 1, records.row_splits
    numbers, positions = np.zeros((rows, length), np.int32), np.zeros((rows, length), np.int32)
    sizes = np.diff(splits[bins[0] : bins[-1] + 1])
    row = np.repeat(np.arange(rows), np.diff(bins))  # of each record
    begin = splits[bins[0] : bins[-1]] - splits[bins[row]]  # of each record in its row
    position = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    at = np.repeat(row * length + begin, sizes) + position
    numbers.reshape(-1)[at] = np.repeat(np.arange(bins[0], bins[-1]) - bins[row] + 1, sizes)
    positions.reshape(-1)[at] = position
    return numbers, positions
