"""Reads and decodes the records of a schedule on threads, ahead of the consumer.

A thread works on a range of steps at once. It looks up the offsets of the records, copies their
frames out of the files, checks the CRCs and decodes all of them together. So the fixed costs of a
call are shared by thousands of records. Epochs follow each other without a pause, and
`memory_bytes` bounds the work in progress. A damaged record, or one that does not fit the schema,
ends the reading with an error that names its place. With `skip_bad` it is left out and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s, allocate
from recordmill.base.errors import DataError
from recordmill.base.threads import thread_map
from recordmill.reader.options.training import MEMORY_BYTES
from recordmill.reader.prefetch.protocols import Fetchable, time_stage
from recordmill.reader.sampling.schedule import Schedule, StepRange
from recordmill.records.columns.conversions import Decoding
from recordmill.records.tfrecord.frames import (
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES,
    FileFrames,
    Frames,
    scan_frames,
)
from recordmill.schemas.feature import Schema
from recordmill.shards.access import FileAccess, group_by_file
from recordmill.shards.index import INDEX_DTYPE
from recordmill.shards.loading.decode import decode_frames
from recordmill.shards.pieces import PIECE_BYTES
from recordmill.storage.files import release_mapped_pages

# The blocks in memory of each file that can only be streamed, by the index of the file.
StreamedBlocks = Mapping[int, Sequence[FileFrames]]


def ordered_frames(
    files: Sequence[FileAccess], ends: Int64s, numbers: Int64s, streamed: StreamedBlocks
) -> Frames:
    """Returns the frames of the records in the order of `numbers`.

    Args:
        ends: int64 [files] the number of records up to and including each file.
        numbers: int64 [rows] record numbers in [0, ends[-1]), in any order, with repetitions.
        streamed: The blocks that were read from files that are not seekable. They contain all
            requested records of these files.

    Raises:
        DataError: A record is damaged. The error may lack the place, see `raise_bad_record`.
    """
    # Files are read in ascending order. `order` then restores the requested order.
    order = np.argsort(numbers, kind="stable")
    ascending = np.ascontiguousarray(numbers[order], np.int64)
    parts = []
    sizes = np.empty(len(numbers), np.int64)
    with time_stage("read"):
        for file_index, first_record, rows in group_by_file(ends, ascending):
            part = _make_part(
                files[file_index],
                order[rows],
                ascending[rows] - first_record,
                streamed.get(file_index, ()),
            )
            sizes[part.rows] = part.lengths + FRAME_OVERHEAD_BYTES
            parts.append(part)
        # The frames are copied from the files straight to their places in the requested order.
        targets = np.cumsum(sizes) - sizes
        out = allocate(int(sizes.sum()), np.uint8)
        for part in parts:
            _copy_part(part, targets[part.rows], sizes[part.rows], out)
    with time_stage("check"):
        frames, _ = scan_frames(out, source="", is_final=True)
    # The lengths come from the index. If the frames themselves have others, the index is wrong.
    if not np.array_equal(frames.starts, targets):
        raise DataError("the index does not fit the shard")
    return frames


@dataclass(frozen=True)
class _Part:
    """Records of one file in ascending order.

    Attributes:
        rows: The index of each record in the requested numbers.
        lengths: The length of each payload in bytes.
        offsets: The offset of each record if the file is seekable, else None.
        blocks: (block, [n] indices of frames in the block, the records of this part that they are)
            if the file is not seekable.
    """

    file: FileAccess
    rows: Int64s
    lengths: Int64s
    offsets: Int64s | None
    blocks: Sequence[tuple[FileFrames, Int64s, slice]] = ()


def _make_part(
    file: FileAccess, rows: Int64s, records: Int64s, blocks: Sequence[FileFrames]
) -> _Part:
    if file.seekable:
        offsets, lengths = file.locate(records)
        return _Part(file, rows, lengths, offsets)
    blocks_in_part, lengths = [], np.empty(len(records), np.int64)
    for block in blocks:
        block_rows = _slice_in_block(block, records)
        if block_rows.start == block_rows.stop:
            continue
        for damage in block.damage:
            if damage.record in records[block_rows]:
                raise damage.error(file.file.path)
        indices = np.searchsorted(block.numbers, records[block_rows])
        blocks_in_part.append((block, indices, block_rows))
        lengths[block_rows] = block.lengths[indices]
    return _Part(file, rows, lengths, None, blocks_in_part)


def _slice_in_block(block: FileFrames, records: Int64s) -> slice:
    """Returns the slice of the ascending record numbers that are in the block."""
    return slice(
        *np.searchsorted(records, [block.end_record - block.records, block.end_record]).tolist()
    )


def _copy_part(part: _Part, targets: Int64s, sizes: Int64s, out: Bytes) -> None:
    """Copies the frames of a part to the target offsets in `out`."""
    file = part.file
    if part.offsets is None:
        for block, frame_indices, rows in part.blocks:
            _scatter_frames(
                file,
                block.data,
                starts=block.starts[frame_indices],
                sizes=sizes[rows],
                targets=targets[rows],
                out=out,
            )
        return
    for rows in file.portions(part.offsets, part.lengths, 1 << 62):
        data, starts = file.reach(part.offsets[rows], part.lengths[rows])
        _scatter_frames(
            file, data, starts=starts, sizes=sizes[rows], targets=targets[rows], out=out
        )


def _scatter_frames(
    file: FileAccess, data: Bytes, starts: Int64s, sizes: Int64s, targets: Int64s, out: Bytes
) -> None:
    data = np.ascontiguousarray(data)
    starts, sizes, targets = (
        np.ascontiguousarray(array, np.int64) for array in (starts, sizes, targets)
    )
    # fewer copied spans mean that one of them extends past the end of the data
    if native.copy_spans([data], None, starts, sizes, targets, out) < len(starts):
        raise DataError("ends before its last record", source=file.file.path)
    file.file.check_unchanged()


class Streams:
    """Reads the blocks of files that are not seekable.

    Each file is read once per epoch if the requests follow the order of a schedule. Not
    thread-safe.
    """

    def __init__(self, files: Sequence[FileAccess], ends: Int64s) -> None:
        self._files, self._ends = files, ends
        self._open: dict[tuple[int, int], _Stream] = {}  # by file and pass
        self._recent_keys: set[tuple[int, int]] = set()  # keys of the last call

    def hold(self, numbers: Int64s, passes: Int64s) -> StreamedBlocks:
        """Returns the blocks that contain these records of streamed files.

        Args:
            numbers: Record numbers. Numbers in seekable files are ignored.
            passes: The pass over all records that each number belongs to. The end of one pass and
                the start of the next are read by two streams, so that the blocks between them are
                not held.
        """
        blocks_by_file: dict[int, dict[int, FileFrames]] = {}
        keys = set()
        for pass_number in np.unique(passes).tolist():
            ascending = np.sort(numbers[passes == pass_number])
            for file_index, first_record, rows in group_by_file(self._ends, ascending):
                file = self._files[file_index]
                if file.seekable:
                    continue
                # A small file is a single block, which all passes share.
                key = (
                    file_index,
                    0 if file.framed_bytes <= PIECE_BYTES else pass_number,
                )
                keys.add(key)
                if (stream := self._open.get(key)) is None:
                    stream = self._open[key] = _Stream(file)
                for block in stream.blocks(
                    int(ascending[rows.start]) - first_record,
                    int(ascending[rows.stop - 1]) - first_record,
                ):
                    blocks_by_file.setdefault(file_index, {})[block.end_record] = block
        # Calls follow the schedule. A file that two calls in a row did not need is finished for
        # this epoch.
        for key in self._open.keys() - keys - self._recent_keys:
            del self._open[key]
        self._recent_keys = keys
        return {file_index: list(blocks.values()) for file_index, blocks in blocks_by_file.items()}

    @property
    def open_files(self) -> list[int]:
        """Indices of the files that have blocks in memory."""
        return sorted({file_index for file_index, _ in self._open})


class _Stream:
    def __init__(self, file: FileAccess) -> None:
        self._file, self._low = file, 0
        self._begin()

    def _begin(self) -> None:
        self._reading: Generator[FileFrames, None, None] = self._file.blocks(0, self._file.records)
        self._blocks_in_use: list[FileFrames] = []
        self._next_record = 0

    def blocks(self, first: int, last: int) -> list[FileFrames]:
        """Returns the blocks that contain records `first` to `last`, inclusive.

        Blocks before the lower of this `first` and the previous one are dropped, because the
        batches of a window request records back and forth. A request for a dropped block reads the
        file again from its start.
        """
        if first < (
            self._blocks_in_use[0].end_record - self._blocks_in_use[0].records
            if self._blocks_in_use
            else self._next_record
        ):
            self._begin()
        while self._next_record <= last:
            block = next(self._reading)
            self._next_record = block.end_record
            self._blocks_in_use.append(block)
        if self._next_record >= self._file.records:
            self._reading.close()  # closes the file; there may be too many to keep all open
        forgotten, self._low = min(self._low, first), first
        self._blocks_in_use = [
            block for block in self._blocks_in_use if block.end_record > forgotten
        ]
        return list(self._blocks_in_use)


@dataclass(frozen=True)
class ReadRecords:
    """Result of a lenient read.

    Attributes:
        batch: The readable records.
        good_rows: The index of each of them in the requested numbers.
        bad: (index in the requested numbers, reason) of each unreadable record.
    """

    batch: pa.RecordBatch
    good_rows: Int64s
    bad: tuple[tuple[int, str], ...]


def decode_or_skip(
    files: Sequence[FileAccess],
    ends: Int64s,
    numbers: Int64s,
    streamed: StreamedBlocks,
    decoding: Decoding,
) -> ReadRecords:
    """Decodes the records with these numbers in their order, and reports unreadable ones.

    Raises:
        DataError: A file has changed since it was opened.
    """
    rows, bad_rows = np.arange(len(numbers), dtype=np.int64), []
    try:
        frames = ordered_frames(files, ends, numbers, streamed)
    except DataError:
        # Frames are checked together. Only after a failure is each record read on its own.
        bad_rows += list(_find_damaged(files, ends, numbers, streamed))
        rows = np.delete(rows, [row for row, _ in bad_rows])
        frames = ordered_frames(files, ends, numbers[rows], streamed)
    batch, good_rows, invalid = decoding.decode_lenient(
        frames.data, frames.starts + HEADER_BYTES, frames.lengths
    )
    for record in invalid:
        feature_text = f"feature {record.feature!r}: " if record.feature else ""
        bad_rows.append((int(rows[record.row]), f"{feature_text}{record.reason}"))
    return ReadRecords(batch, rows[good_rows], tuple(sorted(bad_rows)))


def _find_damaged(
    files: Sequence[FileAccess], ends: Int64s, numbers: Int64s, streamed: StreamedBlocks
) -> Iterator[tuple[int, str]]:
    """Yields (row, reason) of each damaged frame.

    Each record is read on its own.
    """
    for row, number in enumerate(numbers.tolist()):
        file_index = int(np.searchsorted(ends, number, "right"))
        record = number - (int(ends[file_index - 1]) if file_index else 0)
        if files[file_index].seekable:
            try:
                files[file_index].frame(record)
            except DataError as error:
                yield row, error.reason
        else:
            yield from (
                (row, damage.message)
                for block in streamed[file_index]
                for damage in block.damage
                if damage.record == record
            )


def record_location(files: Sequence[FileAccess], ends: Int64s, number: int) -> tuple[str, str]:
    """Returns (path, place in the file) of a record, for messages.

    Args:
        number: The number of the record among all records.
    """
    file_index = int(np.searchsorted(ends, number, "right"))
    return files[
        file_index
    ].file.path, f"record {number - (int(ends[file_index - 1]) if file_index else 0)}"


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
    memory_bytes: int = MEMORY_BYTES
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
        files, records = self.dataset.files, sum(self.dataset.file_records)
        is_large = (
            sum(file.framed_bytes for file in files) + records * INDEX_DTYPE.itemsize
            > self.memory_bytes
        )
        return thread_map(
            lambda work: finish(self._read_rows(*work, is_large)),
            self._work(row_bytes),
            self.dataset.threads,
            item_bytes=lambda work: weight * work[0].num_steps,
            max_bytes=self.memory_bytes,
        )

    def _row_bytes(self) -> int:
        """Returns the average memory of a record in progress."""
        parts = self.dataset.zip_parts or (self.dataset,)
        framed = sum(file.framed_bytes for part in parts for file in part.files)
        return (
            _MEMORY_COPIES * (framed // max(sum(self.dataset.file_records), 1) + 1)
            + self.output_row_bytes
        )

    def _step_ranges(self, row_bytes: int) -> Iterator[StepRange]:
        """Yields ranges of steps that share the fixed costs of a call.

        If the files are compressed and the order is random, reading one record inflates its
        neighbours, too. A range is then as large as a window, so that each gzip member is inflated
        once.
        """
        if self.steps_per_range:
            return self.schedule.step_ranges(self.steps_per_range)
        step_bytes = row_bytes * self.schedule.epoch_steps.batch_size
        # a shuffled record of a compressed file needs its complete member
        is_costly = self.schedule.sampler.mode is not False and any(
            not file.file.codec.is_plain for file in self.dataset.files
        )
        # The ranges of all threads together take half of the memory. A costly range takes the half
        # alone.
        target_bytes = self.memory_bytes // (2 if is_costly else 2 * self.dataset.threads)
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

    def _work(self, row_bytes: int) -> Iterator[tuple[StepRange, StreamedBlocks]]:
        streams = Streams(self.dataset.files, self.dataset.ends)
        # streams are read here, in the thread that consumes, because their blocks come in order
        only_seekable = all(file.seekable for file in self.dataset.files)
        for step_range in self._step_ranges(row_bytes):
            with time_stage("read"):
                streamed: StreamedBlocks = {}
                if not only_seekable:
                    streamed = streams.hold(
                        self._numbers(step_range), self.schedule.pass_numbers(step_range)
                    )
            yield step_range, streamed

    def _numbers(self, step_range: StepRange) -> Int64s:
        """Returns [rows] the numbers of the records among all stored records."""
        numbers = self.schedule.record_numbers(step_range)
        return (
            numbers
            if self.dataset.record_subset is None
            else self.dataset.record_subset.record_numbers(numbers)
        )

    def _read_rows(
        self, step_range: StepRange, streamed: StreamedBlocks, is_large: bool
    ) -> StepRows:
        try:
            if self.skip_bad:
                return self._read_rows_or_skip(step_range, streamed)
            numbers, steps = self._numbers(step_range), self.schedule.epoch_steps
            edges = np.minimum(np.arange(step_range.num_steps + 1) * steps.batch_size, len(numbers))
            mask = self.schedule.mask(step_range) if steps.remainder == "pad" else None
            batch = decode_records(
                self.dataset, numbers, streamed, self.dataset.make_decoding(self.schema)
            )
            return StepRows(
                step_range=step_range, batch=batch, edges=edges, numbers=numbers, mask=mask
            )
        finally:
            # Pages of mapped files count as memory of this process until they are released. That is
            # harmless unless the files are larger than the memory for this work.
            if is_large:
                release_mapped_pages()

    def _read_rows_or_skip(self, step_range: StepRange, streamed: StreamedBlocks) -> StepRows:
        numbers, positions = (
            self._numbers(step_range),
            self.schedule.epoch_steps.positions(step_range),
        )
        if step_range.epoch == self.schedule.epoch:
            is_included = positions >= self.skip_below
            numbers, positions = numbers[is_included], positions[is_included]
        decoding = self.dataset.make_decoding(self.schema)
        result = decode_or_skip(self.dataset.files, self.dataset.ends, numbers, streamed, decoding)
        # one step with all rows; `BatchRefiller` divides them into batches
        edges = np.array([0, len(result.good_rows)], np.int64)
        bad = tuple((int(numbers[row]), reason) for row, reason in result.bad)
        return StepRows(
            step_range=step_range,
            batch=result.batch,
            edges=edges,
            numbers=numbers[result.good_rows],
            mask=None,
            positions=positions[result.good_rows],
            bad=bad,
        )


def decode_records(
    dataset: Fetchable, numbers: Int64s, streamed: StreamedBlocks, decoding: Decoding
) -> pa.RecordBatch:
    """Returns the columns of the records under their stored names.

    Args:
        numbers: [rows] record numbers, in the order of the rows.

    Raises:
        DataError: A record is damaged or does not fit the schema. The error names its file, record
            and offset.
    """
    if dataset.zip_parts:
        return _decode_zipped(dataset.zip_parts, numbers, decoding.stored_schema)
    files, ends = dataset.files, dataset.ends
    try:
        frames = ordered_frames(files, ends, numbers, streamed)
        with time_stage("decode"):
            return decoding.decode(
                frames.data,
                frames.starts + HEADER_BYTES,
                frames.lengths,
                location=lambda row: ("", ""),
            )
    except DataError as error:
        raise_bad_record(files, ends, numbers, streamed, decoding)
        # every record was read without an error this time
        raise error


def _decode_zipped(
    zip_parts: Sequence[Fetchable], numbers: Int64s, schema: Schema
) -> pa.RecordBatch:
    """Decodes each column from the part that has it.

    The files of the parts are all seekable.
    """
    columns: dict[str, pa.Array] = {}
    for part in zip_parts:
        part_schema = schema.select([name for name in schema.names if name in part.schema])
        if part_schema.names:
            columns |= zip(
                part_schema.names,
                decode_records(part, numbers, {}, part.make_decoding(part_schema)).columns,
                strict=True,
            )
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in schema.names], names=list(schema.names)
    )


def raise_bad_record(
    files: list[FileAccess],
    ends: Int64s,
    numbers: Int64s,
    streamed: StreamedBlocks,
    decoding: Decoding,
) -> None:
    """Finds the first bad record and raises its DataError. Returns if all records are good.

    It is called after several records could not be read together, because that error may lack the
    place. It reads each record on its own.

    Raises:
        DataError: A record is damaged or does not fit the schema.
    """
    for number in np.unique(numbers).tolist():
        file_index = int(np.searchsorted(ends, number, "right"))
        record = number - (int(ends[file_index - 1]) if file_index else 0)
        file = files[file_index]
        if file.seekable:
            frame = file.frame(record)
        else:
            block = next(
                block
                for block in streamed[file_index]
                if 0 <= block.end_record - 1 - record < block.records
            )
            row = int(np.searchsorted(block.numbers, record))
            frame = block.select(slice(row, row + 1))
        decode_frames(frame, decoding)
