"""A schedule to the columns of its steps, in order, read and decoded on threads ahead of the consumer.

Some steps at once are what one thread does: it looks the numbers up, copies the frames out of the files, checks their
CRCs and decodes all of them together, so that what a call costs is shared by thousands of records. Epochs follow each
other without a pause. `memory_bytes` bounds what is under way. What is damaged, or does not fit the schema, ends it
with an error that names the place, or is left out and named.
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
    Frames,
    scan_frames,
)
from recordmill.schemas.feature import Schema
from recordmill.shards.access import FileAccess, group_by_file
from recordmill.shards.index import INDEX_DTYPE
from recordmill.shards.loading.batches import decode_block
from recordmill.shards.pieces import PIECE_BYTES, FrameBlock
from recordmill.storage.files import release_mapped_pages

StreamedBlocks = Mapping[
    int, Sequence[FrameBlock]
]  # ordinal of a file that is only streamed: blocks of it that were read


def ordered_frames(
    files: Sequence[FileAccess], ends: Int64s, numbers: Int64s, streamed: StreamedBlocks
) -> Frames:
    """The frames of these records, one after the other in the order of the numbers.

    Args:
        ends: int64 [files], the number of records up to and with each file.
        numbers: int64 [rows] in [0, ends[-1]), in any order, also several times.
        held: what was read of files that are not seekable; it has all of these records.

    Raises:
        DataError: a record is damaged; the error may lack its place (see `prefetcher`).
    """
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
        targets = np.cumsum(sizes) - sizes
        out = allocate(int(sizes.sum()), np.uint8)
        for part in parts:
            _copy_part(part, targets[part.rows], sizes[part.rows], out)
    with time_stage("check"):
        frames, _ = scan_frames(out, source="", is_final=True)
    if not np.array_equal(frames.starts, targets):
        raise DataError("the index does not fit the shard")
    return frames


@dataclass(frozen=True)
class _Part:
    """Ascending records of one file: rows, which of the numbers they are; lengths, of their payloads; offsets, of a
    seekable file; blocks, of another one: (block, [n] which of its frames, which of the records these are).
    """

    file: FileAccess
    rows: Int64s
    lengths: Int64s
    offsets: Int64s | None
    blocks: Sequence[tuple[FrameBlock, Int64s, slice]] = ()


def _make_part(
    file: FileAccess, rows: Int64s, records: Int64s, blocks: Sequence[FrameBlock]
) -> _Part:
    if file.seekable:
        offsets, lengths = file.locate(records)
        return _Part(file, rows, lengths, offsets)
    blocks_in_part, lengths = [], np.empty(len(records), np.int64)
    for block in blocks:
        block_rows = _slice_in_block(block, records)
        if block_rows.start < block_rows.stop and block.fault:
            raise DataError(
                block.fault, source=file.file.path, place=f"record {block.first_record}"
            )
        if block_rows.start < block_rows.stop:
            blocks_in_part.append((block, records[block_rows] - block.first_record, block_rows))
            lengths[block_rows] = block.frames.lengths[blocks_in_part[-1][1]]
    return _Part(file, rows, lengths, None, blocks_in_part)


def _slice_in_block(block: FrameBlock, records: Int64s) -> slice:
    """Returns which of the ascending records are in the block."""
    return slice(
        *np.searchsorted(records, [block.first_record, block.first_record + block.records]).tolist()
    )


def _copy_part(part: _Part, targets: Int64s, sizes: Int64s, out: Bytes) -> None:
    """Copies the frames of ascending records to their places in out."""
    file = part.file
    if part.offsets is None:
        for block, frame_indices, rows in part.blocks:
            _scatter_frames(
                file,
                block.frames.data,
                block.frames.starts[frame_indices],
                sizes[rows],
                targets[rows],
                out,
            )
        return
    for rows in file.portions(part.offsets, part.lengths, 1 << 62):
        data, starts = file.reach(part.offsets[rows], part.lengths[rows])
        _scatter_frames(file, data, starts, sizes[rows], targets[rows], out)


def _scatter_frames(
    file: FileAccess, data: Bytes, starts: Int64s, sizes: Int64s, targets: Int64s, out: Bytes
) -> None:
    data = np.ascontiguousarray(data)
    starts, sizes, targets = (
        np.ascontiguousarray(array, np.int64) for array in (starts, sizes, targets)
    )
    if native.copy_spans([data], None, starts, sizes, targets, out) < len(starts):
        raise DataError("ends before its last record", source=file.file.path)
    file.file.check_unchanged()


class Streams:
    """The blocks of streamed files that hold the records asked for; asked in the order of a schedule, each file is read
    once an epoch. Not to be shared between threads.
    """

    def __init__(self, files: Sequence[FileAccess], ends: Int64s) -> None:
        self._files, self._ends = files, ends
        self._open: dict[tuple[int, int], _Stream] = {}  # by file and pass
        self._ask_engine: set[tuple[int, int]] = set()  # those of the last call

    def hold(self, numbers: Int64s, passes: Int64s) -> StreamedBlocks:
        """Returns blocks with all records of these numbers that lie in streamed files. passes: which pass over all
        records each number is of: the end of one and the begin of the next are read by two streams, and not held with
        all between.
        """
        blocks_by_file: dict[int, dict[int, FrameBlock]] = {}
        keys = set()
        for pass_number in np.unique(passes).tolist():
            ascending = np.sort(numbers[passes == pass_number])
            for file_index, first_record, rows in group_by_file(self._ends, ascending):
                file = self._files[file_index]
                if file.seekable:
                    continue
                key = (
                    file_index,
                    0 if file.framed_bytes <= PIECE_BYTES else pass_number,
                )  # a small one is a block, read once for all
                keys.add(key)
                if (stream := self._open.get(key)) is None:
                    stream = self._open[key] = _Stream(file)
                for block in stream.blocks(
                    int(ascending[rows.start]) - first_record,
                    int(ascending[rows.stop - 1]) - first_record,
                ):
                    blocks_by_file.setdefault(file_index, {})[block.first_record] = block
        # A file that neither these numbers nor those before them were in is done with, for this epoch.
        for key in self._open.keys() - keys - self._ask_engine:
            del self._open[key]
        self._ask_engine = keys
        return {file_index: list(blocks.values()) for file_index, blocks in blocks_by_file.items()}

    @property
    def open_files(self) -> list[int]:
        """The ordinals of the files of which something is held."""
        return sorted({file_index for file_index, _ in self._open})


class _Stream:
    def __init__(self, file: FileAccess) -> None:
        self._file, self._low = file, 0
        self._begin()

    def _begin(self) -> None:
        self._reading: Generator[FrameBlock, None, None] = self._file.blocks(0, self._file.records)
        self._blocks_in_use: list[FrameBlock] = []
        self._next_record = 0

    def blocks(self, first: int, last: int) -> list[FrameBlock]:
        """Returns the blocks that hold records first to last.

        What lies before both this `first` and the one before is forgotten, since batches of one window ask for records
        to and fro; what is asked for again is read anew from the front.
        """
        if first < (
            self._blocks_in_use[0].first_record if self._blocks_in_use else self._next_record
        ):
            self._begin()
        while self._next_record <= last:
            block = next(self._reading)
            self._next_record = block.first_record + block.records
            self._blocks_in_use.append(block)
        if self._next_record >= self._file.records:
            self._reading.close()  # and with it the file, of which there may be very many
        forgotten, self._low = min(self._low, first), first
        self._blocks_in_use = [
            block for block in self._blocks_in_use if block.first_record + block.records > forgotten
        ]
        return list(self._blocks_in_use)


@dataclass(frozen=True)
class ReadRecords:
    """Records that were read: the batch of those that could be, which of the numbers they are, and (row, reason) of the
    others.
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
    """Decodes the records of these numbers, in their order, and names those that can't be; DataError where a file is no
    longer what it was.
    """
    rows, bad_rows = np.arange(len(numbers), dtype=np.int64), []
    try:
        frames = ordered_frames(files, ends, numbers, streamed)
    except DataError:
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
    """Yields (row, reason) of those whose frames are damaged, each looked at by itself."""
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
                (row, block.fault)
                for block in streamed[file_index]
                if block.fault and block.first_record == record
            )


def record_location(files: Sequence[FileAccess], ends: Int64s, number: int) -> tuple[str, str]:
    """Returns (path, place in it) of the record with this number among all."""
    file_index = int(np.searchsorted(ends, number, "right"))
    return files[
        file_index
    ].file.path, f"record {number - (int(ends[file_index - 1]) if file_index else 0)}"


PREFETCH_RANGE_BYTES = (
    8 << 20
)  # 8 MiB of frames: a call's fixed costs vanish, and the first batch comes at once
_MAX_RANGE_STEPS = 256  # at most, since each is made of arrays of its own: steps of single records, too, come at once
_MEMORY_COPIES = (
    3  # a record under way is there as a frame, as columns and in the arrays that are made of them
)

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class StepRows:
    """The records of a stretch of steps.

    Attributes:
        batch: its rows, one step after the other, named as in the records.
        edges: int64 [steps + 1], where in it each step begins.
        numbers: int64 [rows], theirs among all records.
        mask: [rows] which count; None: all do.
        positions: int64 [rows], theirs in the epoch, where records may be left out.
        bad: (number, reason) of the records that were left out.
    """

    step_range: StepRange
    batch: pa.RecordBatch
    edges: Int64s
    numbers: Int64s
    mask: npt.NDArray[np.bool_] | None
    positions: Int64s | None = None
    bad: tuple[tuple[int, str], ...] = ()

    def select_rows(self, rows: slice | Int64s, edges: Int64s) -> StepRows:
        """Returns some of the rows, as the steps that begin at these edges."""
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
    """Fetcher of the records of a schedule's steps.

    Attributes:
        memory_bytes: what may be under way.
        schema: the features that are decoded.
        made_bytes: what the consumer makes of a row beside its columns, as decoded images.
        skip_bad: leave out what can't be read, and name it.
        at_once: so many steps are read together; 0: as many as are worth it.
        every: only the schedule's first step and every so many-th one.
        skip_below: with skip_bad, the positions of the first epoch below this one are left out, too.
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
        """Yields finish(rows) of all groups of steps, in order; it runs in the threads. DataError names file, record
        and offset.
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
        """Returns how much memory a record takes while it is under way, on the average."""
        parts = self.dataset.zip_parts or (self.dataset,)
        framed = sum(file.framed_bytes for part in parts for file in part.files)
        return (
            _MEMORY_COPIES * (framed // max(sum(self.dataset.file_records), 1) + 1)
            + self.output_row_bytes
        )

    def _step_ranges(self, row_bytes: int) -> Iterator[StepRange]:
        """Yields as many steps at once as are worth the calls.

        Where reading one record costs reading those around it, and the order is not theirs, these are as many as a
        window has: its members are inflated once then.
        """
        if self.steps_per_range:
            return self.schedule.step_ranges(self.steps_per_range)
        step_bytes = row_bytes * self.schedule.epoch_steps.batch_size
        is_costly = self.schedule.sampler.mode is not False and any(
            not file.file.codec.is_plain for file in self.dataset.files
        )
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
        """Returns [rows] the numbers among all records."""
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
            return StepRows(step_range, batch, edges, numbers, mask)
        finally:
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
        stored = self.dataset.make_decoding(self.schema)
        result = decode_or_skip(self.dataset.files, self.dataset.ends, numbers, streamed, stored)
        edges = np.array([0, len(result.good_rows)], np.int64)
        bad = tuple((int(numbers[row]), reason) for row, reason in result.bad)
        return StepRows(
            step_range,
            result.batch,
            edges,
            numbers[result.good_rows],
            None,
            positions[result.good_rows],
            bad,
        )


def decode_records(
    dataset: Fetchable, numbers: Int64s, streamed: StreamedBlocks, stored: Decoding
) -> pa.RecordBatch:
    """Returns the columns of the records with these numbers among all, in this order, named as in the records.
    DataError names file, record and offset.
    """
    if dataset.zip_parts:
        return _decode_zipped(dataset.zip_parts, numbers, stored.stored_schema)
    files, ends = dataset.files, dataset.ends
    try:
        block = FrameBlock(ordered_frames(files, ends, numbers, streamed), 0, 0)
        with time_stage("decode"):
            return decode_block(block, stored, "")
    except DataError as error:
        raise_bad_record(files, ends, numbers, streamed, stored)
        raise error


def _decode_zipped(
    zip_parts: Sequence[Fetchable], numbers: Int64s, schema: Schema
) -> pa.RecordBatch:
    """The columns of `schema`, each from the data set that has it, whose files are all seekable."""
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
    stored: Decoding,
) -> None:
    """Reads again what could not be read together, record by record, and raises the DataError of the first one that is
    bad.
    """
    for number in np.unique(numbers).tolist():
        file_index = int(np.searchsorted(ends, number, "right"))
        record = number - (int(ends[file_index - 1]) if file_index else 0)
        file = files[file_index]
        if file.seekable:
            frame = file.frame(record)
            offset = file.offset(record) - int(frame.starts[0])
        else:
            block = next(
                block
                for block in streamed[file_index]
                if 0 <= record - block.first_record < block.records
            )
            frame_index = record - block.first_record
            frame = replace(
                block.frames,
                starts=block.frames.starts[frame_index : frame_index + 1],
                lengths=block.frames.lengths[frame_index : frame_index + 1],
                crcs=block.frames.crcs[frame_index : frame_index + 1],
            )
            offset = block.first_offset
        start = frame.starts + HEADER_BYTES
        _, _, bad = stored.decode_lenient(frame.data, start, frame.lengths)
        if bad:
            decode_block(FrameBlock(frame, record, offset), stored, file.file.path)
