"""Reading and decoding of the records of a schedule, ahead of the consumer.

A thread takes a range of steps at a time. It looks up the offsets of all records in the range,
copies their frames out of the files, checks the CRCs, and decodes them together. So thousands of
records share the fixed costs of each call. The threads continue with the next epoch without a
pause. `memory_bytes` limits the work in progress.

A record that is damaged or does not fit the schema is an error that names its place. If `skip_bad`
is set, it is left out and reported.
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

# Maximum size of the frames in a range of steps. With 8 MiB, the fixed costs of a call do not
# matter, and the first batch is not late.
PREFETCH_RANGE_BYTES = 8 << 20
# Making the arrays of a step takes time. If steps had one record each, a range of many thousand
# steps would delay the first step.
_MAX_RANGE_STEPS = 256
# A record in progress is in memory three times: as a frame, in columns, and in arrays.
_MEMORY_COPIES = 3

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class StepRows:
    """Rows of the records in a range of steps.

    Attributes:
        step_range: The steps.
        batch: The columns under their stored names. The rows are in the order of the steps.
        edges: int64 [steps + 1]. First row of each step, and the number of rows.
        numbers: int64 [rows]. Number of each record among all stored records.
        mask: bool [rows]. False for rows that only fill up a batch. None if there are no such rows.
        positions: int64 [rows]. Position of each record in the epoch. None unless bad records are
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
        """Returns some of the rows as new steps.

        Args:
            rows: The rows, in the order of the result.
            edges: First row of each new step, and the number of rows.
        """
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
        dataset: The data set, mixture or zip that contains the records.
        schedule: The steps to read.
        schema: The features to decode.
        threads: Number of threads that read and decode.
        memory_bytes: Memory limit of the work in progress.
        output_row_bytes: Memory that the consumer needs per row, for example for decoded images.
        skip_bad: If True, records that can't be read are left out and reported.
        steps_per_range: Number of steps that are read together. If 0, it depends on the size of the
            records.
        step_stride: Reads only the first step of the schedule and every `step_stride`-th step after
            it.
        skip_below: If `skip_bad` is set, positions of the first epoch below this one are left out,
            too.
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
        """Reads the steps in ranges, and yields `finish(rows)` for each range, in order.

        Args:
            finish: Converts the rows of a range. The threads of the reader call it.

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
        """Returns the average memory that a record in progress needs, in bytes."""
        framed = sum(file.framed_bytes for part in self.dataset.parts for file in part.files)
        return (
            _MEMORY_COPIES
            * (framed // max(sum(file.records for file in self.dataset.files), 1) + 1)
            + self.output_row_bytes
        )

    def _step_ranges(self, row_bytes: int) -> Iterator[StepRange]:
        """Divides the schedule into ranges of steps that are read together.

        If shards are compressed and the order is random, reading a record decompresses the complete
        gzip member that contains it. A range is then as large as a window, so that each member is
        decompressed once.
        """
        if self.steps_per_range:
            return self.schedule.step_ranges(self.steps_per_range)
        step_bytes = row_bytes * self.schedule.epoch_steps.batch_size
        # a shuffled record of a compressed shard needs its complete member
        is_costly = self.schedule.sampler.mode is not False and any(
            file.inflates_members for file in self.dataset.files
        )
        # All ranges in progress together take half of the memory. A costly range may take that half
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
        """Returns the numbers of the records among all stored records, int64 [rows]."""
        numbers = self.schedule.record_numbers(step_range)
        return (
            numbers
            if self.dataset.record_subset is None
            else self.dataset.record_subset.record_numbers(numbers)
        )

    def _read_rows(self, step_range: StepRange, is_large: bool) -> StepRows:
        try:
            if self.skip_bad:
                return self._read_rows_or_skip(step_range, is_large)
            numbers, steps = self._numbers(step_range), self.schedule.epoch_steps
            edges = np.minimum(np.arange(step_range.num_steps + 1) * steps.batch_size, len(numbers))
            mask = self.schedule.mask(step_range) if steps.remainder == "pad" else None
            batch = self.dataset.read(numbers, self.schema, use_mapping=not is_large)
            return StepRows(
                step_range=step_range, batch=batch, edges=edges, numbers=numbers, mask=mask
            )
        finally:
            # Pages of mapped indexes count as memory of this process until they are released. That
            # is harmless unless the data set is larger than the memory for this work.
            if is_large:
                release_mapped_pages()

    def _read_rows_or_skip(self, step_range: StepRange, is_large: bool) -> StepRows:
        numbers, positions = (
            self._numbers(step_range),
            self.schedule.epoch_steps.positions(step_range),
        )
        if step_range.epoch == self.schedule.epoch:
            is_included = positions >= self.skip_below
            numbers, positions = numbers[is_included], positions[is_included]
        frames = self.dataset.files.frames(numbers, use_mapping=not is_large)
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
