"""Reads and decodes the records of a schedule on threads, ahead of the consumer.

A thread works on a range of steps at once. It looks up the offsets of the records, copies their
frames out of the files, checks the CRCs and decodes all of them together. So the fixed costs of a
call are shared by thousands of records. Epochs follow each other without a pause, and
`memory_bytes` bounds the work in progress. A damaged record, or one that does not fit the schema,
ends the reading with an error that names its place. With `skip_bad` it is left out and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.base.stages import time_stage
from recordmill.base.threads import thread_map
from recordmill.reader.prefetch.protocols import Fetchable
from recordmill.reader.sampling.schedule import Schedule, StepRange
from recordmill.records.tfrecord.frames import HEADER_BYTES
from recordmill.schemas.feature import Schema
from recordmill.shards.index import INDEX_DTYPE
from recordmill.storage.files import release_mapped_pages

# Frames in a range of steps. 8 MiB make the fixed costs of a call negligible, and do not delay the
# first batch.
PREFETCH_RANGE_BYTES = 8 << 20
# Each step gets arrays of its own, which take time. So the first step of a single record would come
# late after a range of many thousand steps.
_MAX_RANGE_STEPS = 256
# A record in progress exists as a frame, as columns, and in the arrays made of the columns.
_MEMORY_COPIES = 3

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class StepRows:
    """Rows of the records in a range of steps.

    Attributes:
        batch: The columns under their stored names, step by step.
        edges: int64 [steps + 1] the first row of each step.
        numbers: int64 [rows] the number of each record among all records.
        mask: [rows] false for rows that only pad a batch; None: all rows count.
        positions: int64 [rows] the position of each record in the epoch, if bad records are
            skipped.
        bad: (record number, reason) of each skipped record.
    """

    step_range: StepRange
    batch: pa.RecordBatch
    edges: Int64s
    numbers: Int64s
    mask: npt.NDArray[np.bool_] | None
    positions: Int64s | None = None
    bad: tuple[tuple[int, str], ...] = ()

    def select_rows(self, rows: slice | Int64s, edges: Int64s) -> StepRows:
        """Returns a selection of the rows, divided into steps at `edges`."""
        if isinstance(rows, slice):
            batch = self.batch.slice(rows.start, rows.stop - rows.start)
        else:
            batch = self.batch.take(pa.array(rows))
        mask = None if self.mask is None else self.mask[rows]
        positions = None if self.positions is None else self.positions[rows]
        return replace(
            self,
            batch=batch,
            edges=edges,
            numbers=self.numbers[rows],
            mask=mask,
            positions=positions,
        )


@dataclass(frozen=True)
class Fetcher:
    """Reader of the records of a schedule's steps.

    Attributes:
        schema: The features to decode.
        memory_bytes: The limit for the work in progress.
        output_row_bytes: Memory that the consumer adds per row, such as decoded images.
        skip_bad: Leaves out and reports records that cannot be read.
        steps_per_range: The number of steps to read together; 0: chosen from the size of the
            records.
        step_stride: Reads only the first step of the schedule and every n-th one after it.
        skip_below: With `skip_bad`, also leaves out the positions of the first epoch below this
            one.
    """

    dataset: Fetchable
    schedule: Schedule
    schema: Schema
    threads: int
    memory_bytes: int = 512 << 20  # the default of the option
    output_row_bytes: int = 0
    skip_bad: bool = False
    steps_per_range: int = 0
    step_stride: int = 1
    skip_below: int = 0

    def fetch(self, finish: Callable[[StepRows], _Result]) -> Iterator[_Result]:
        """Yields finish(rows) for each range of steps, in order.

        `finish` runs in the threads.

        Raises:
            DataError: A record is damaged or does not fit the schema. The error names its file,
                record and offset.
        """
        row_bytes = self._row_bytes()
        weight = row_bytes * self.schedule.epoch_steps.batch_size
        is_large = (
            sum(
                file.framed_bytes + file.records * INDEX_DTYPE.itemsize
                for file in self.dataset.files
            )
            > self.memory_bytes
        )
        return thread_map(
            lambda step_range: finish(self._read_rows(step_range, is_large)),
            self._step_ranges(row_bytes),
            self.threads,
            item_bytes=lambda step_range: weight * step_range.num_steps,
            max_bytes=self.memory_bytes,
        )

    def _row_bytes(self) -> int:
        """Returns the average memory of a record in progress."""
        framed = sum(file.framed_bytes for part in self.dataset.parts for file in part.files)
        return (
            _MEMORY_COPIES
            * (framed // max(sum(file.records for file in self.dataset.files), 1) + 1)
            + self.output_row_bytes
        )

    def _step_ranges(self, row_bytes: int) -> Iterator[StepRange]:
        """Yields ranges of steps that share the fixed costs of a call.

        If shards are compressed and the order is random, reading one record inflates its
        neighbours, too. A range is then as large as a window, so that each gzip member is inflated
        once.
        """
        if self.steps_per_range:
            return self.schedule.step_ranges(self.steps_per_range)
        step_bytes = row_bytes * self.schedule.epoch_steps.batch_size
        # a shuffled record of a compressed shard needs its complete member
        is_costly = self.schedule.sampler.mode is not False and any(
            file.inflates_members for file in self.dataset.files
        )
        # The ranges of all threads together take half of the memory. A costly range takes the half
        # alone.
        target_bytes = self.memory_bytes // (2 if is_costly else 2 * self.threads)
        target_bytes = (
            target_bytes if is_costly else min(target_bytes, PREFETCH_RANGE_BYTES * _MEMORY_COPIES)
        )
        max_steps = (
            target_bytes // step_bytes
            if is_costly
            else min(target_bytes // step_bytes, _MAX_RANGE_STEPS)
        )
        return self.schedule.step_ranges(
            max(max_steps, 1), stop_at_windows=is_costly, step_stride=self.step_stride
        )

    def _numbers(self, step_range: StepRange) -> Int64s:
        """Returns [rows] the numbers of the records among all stored records."""
        numbers = self.schedule.record_numbers(step_range)
        return (
            numbers
            if self.dataset.record_subset is None
            else self.dataset.record_subset.record_numbers(numbers)
        )

    def _read_rows(self, step_range: StepRange, is_large: bool) -> StepRows:
        try:
            if self.skip_bad:
                return self._read_rows_or_skip(step_range)
            numbers, steps = self._numbers(step_range), self.schedule.epoch_steps
            edges = np.minimum(np.arange(step_range.num_steps + 1) * steps.batch_size, len(numbers))
            mask = self.schedule.mask(step_range) if steps.remainder == "pad" else None
            batch = self.dataset.read(numbers, self.schema)
            return StepRows(
                step_range=step_range, batch=batch, edges=edges, numbers=numbers, mask=mask
            )
        finally:
            # Pages of mapped files count as memory of this process until they are released. That is
            # harmless unless the files are larger than the memory for this work.
            if is_large:
                release_mapped_pages()

    def _read_rows_or_skip(self, step_range: StepRange) -> StepRows:
        numbers, positions = (
            self._numbers(step_range),
            self.schedule.epoch_steps.positions(step_range),
        )
        if step_range.epoch == self.schedule.epoch:
            is_included = positions >= self.skip_below
            numbers, positions = numbers[is_included], positions[is_included]
        frames = self.dataset.files.frames(numbers)
        damaged = {damage.record: damage.message for damage in frames.damage}
        is_damaged = np.isin(numbers, list(damaged))
        rows = np.flatnonzero(~is_damaged)
        with time_stage("decode"):
            batch, good, unfit = self.dataset.make_decoding(self.schema).decode_lenient(
                frames.data, frames.starts + HEADER_BYTES, frames.lengths
            )
        bad = {row: damaged[int(numbers[row])] for row in np.flatnonzero(is_damaged).tolist()}
        for record in unfit:
            bad[int(rows[record.row])] = record.describe()
        good_rows = rows[good]
        return StepRows(
            step_range=step_range,
            batch=batch,
            # one step with all rows; `BatchRefiller` divides them into batches
            edges=np.array([0, len(good_rows)], np.int64),
            numbers=numbers[good_rows],
            mask=None,
            positions=positions[good_rows],
            bad=tuple((int(numbers[row]), bad[row]) for row in sorted(bad)),
        )
