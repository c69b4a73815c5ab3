"""Batches of rows of about the same length: the rows of many steps sorted by length and cut into steps again.

Which records a group of steps has, and when it is over, stay as they were: so every host has equally many batches, and
a saved position is that of its group and the steps of it that are done.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recordmill.reader.collating.ways import Bucketed
from recordmill.reader.fetching.fetcher import Rows
from recordmill.reader.sampling.permutation import key_of, permuted
from recordmill.reader.sampling.schedule import Schedule

Int64s = npt.NDArray[np.int64]


def lengths_of(column: pa.Array) -> Int64s:
    """[rows] how many items each row of a list column has; a missing one has none."""
    found: Int64s = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def quantiles(columns: Iterable[pa.Array], buckets: int) -> tuple[int, ...]:
    """Ascending lengths that cut the rows of these list columns into about equally many, the last one the longest;
    held is a number for each length that occurs.
    """
    counts: dict[int, int] = {}
    for column in columns:
        lengths, found = np.unique(lengths_of(column), return_counts=True)
        for length, count in zip(lengths.tolist(), found.tolist(), strict=True):
            counts[length] = counts.get(length, 0) + count
    if not counts:
        return (1,)
    lengths = np.array(sorted(counts))
    behind = np.cumsum([counts[length] for length in lengths.tolist()])
    wanted = behind[-1] * np.arange(1, buckets + 1) / buckets
    return tuple(np.unique(np.maximum(lengths[np.searchsorted(behind, wanted - 1e-9)], 1)).tolist())


@dataclass(frozen=True)
class Buckets:
    """name: the feature, at: its column; way: how, with its boundaries."""

    name: str
    at: int
    way: Bucketed

    def sorted(self, rows: Rows, schedule: Schedule, steps: Int64s) -> tuple[Rows, Int64s]:
        """The rows of these steps of a group in the order in which they are given, and [steps] the length that each
        step is padded to.
        """
        lengths = lengths_of(rows.batch.column(self.at))
        if self.way.length is not None:
            lengths = np.minimum(lengths, self.way.length)
        whole = self._order(self._bucket(lengths), rows, schedule)
        cut = [whole[rows.edges[step] : rows.edges[step + 1]] for step in steps.tolist()]
        longest = np.array([int(lengths[step].max(initial=0)) for step in cut], np.int64)
        order = np.concatenate(cut)
        moved = replace(
            rows,
            edges=np.cumsum([0, *map(len, cut)]),
            batch=rows.batch.take(pa.array(order)),
            numbers=rows.numbers[order],
            mask=None if rows.mask is None else rows.mask[order],
        )
        return moved, self._padded(longest)

    def _bucket(self, lengths: Int64s) -> Int64s:
        assert self.way.boundaries is not None
        return np.searchsorted(np.array(self.way.boundaries), lengths).astype(np.int64)

    def _order(self, bucket: Int64s, rows: Rows, schedule: Schedule) -> Int64s:
        """[rows] the rows by bucket, their full steps in random order; a shorter one stays the last."""
        size, sampler = schedule.steps.batch_size, schedule.sampler
        order = np.argsort(bucket, kind="stable")
        full = len(order) // size
        steps = np.arange(full)
        if sampler.mode is not False:
            stretch = rows.stretch
            key = key_of(sampler.fingerprint, "bucketed", sampler.seed, stretch.epoch, stretch.position)
            steps = permuted(steps, full, key)
        return np.concatenate([order[: full * size].reshape(full, size)[steps].reshape(-1), order[full * size :]])

    def _padded(self, longest: Int64s) -> Int64s:
        """What each step is padded to: the boundary above its longest row, or, beyond the last one, that row."""
        boundaries = np.array(self.way.boundaries, np.int64)
        above = np.searchsorted(boundaries, longest)
        found = np.where(above < len(boundaries), boundaries[np.minimum(above, len(boundaries) - 1)], longest)
        return found if self.way.length is None else np.minimum(found, self.way.length)
