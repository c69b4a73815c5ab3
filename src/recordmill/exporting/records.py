"""Reading of the records of a `ReadTask` in order: check, decode, filter, convert.

The work is done on threads. Bad records become rejects. Records with images to decode are divided
into small batches, so that the decoded images fit into memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import Int64s
from recordmill.base.errors import DataError, Reject
from recordmill.base.messages import Message, shorten
from recordmill.base.option_names import option
from recordmill.base.siphash import derive_key, hash_positions
from recordmill.base.threads import thread_map
from recordmill.exporting.plan import ReadPlan, ReadTask
from recordmill.records.columns.convert import DecodeTensor, convert_columns
from recordmill.records.columns.decode_images import DecodeImages
from recordmill.records.columns.numpy_arrays import is_bytes
from recordmill.records.example.decode import decode_lenient, max_decoded_size
from recordmill.records.example.locate import BadRecord
from recordmill.records.tfrecord.frames import HEADER_BYTES, FileFrames, stop_at_damage
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import ITEM_BYTES, OPAQUE_BYTES, Schema
from recordmill.shards.cutting import resolve
from recordmill.shards.loading.decode import (
    PARSE,
    Salvaged,
    decode_frames,
    list_damage_rejects,
    salvage,
)
from recordmill.shards.loading.infer_schema import confirm_frames, select_features
from recordmill.shards.pieces import (
    PIECE_BYTES,
    FrameRead,
    Piece,
    iter_joined_reads,
    iter_piece_reads,
    replace_by_damage,
)

# Reason of a reject with an intact record and a value that can't be converted.
CONVERT_REASON = "convert"
_SAMPLE_DOMAIN = b"recordmill-sampl"


@dataclass(frozen=True)
class SelectedRecords:
    """Decoded records of some frames, after filtering.

    Attributes:
        frames: The frames.
        batch: The selected features of the records.
        rows: Row in `frames` of each record in `batch`.
        bad: (row in `frames`, fault) of each record that can't be decoded.
        filtered: Number of records that were filtered out.
    """

    frames: FileFrames
    batch: pa.RecordBatch
    rows: Int64s
    bad: tuple[tuple[int, BadRecord], ...]
    filtered: int

    def cut(self, ends: Int64s) -> Iterator[SelectedRecords]:
        """Divides the records into consecutive parts.

        Bad records go with the part in which they occur. Damage and the number of filtered records
        go with the first part.

        Args:
            ends: End row of each part. The last one must be the number of rows.
        """
        begin = first_frame = 0
        frames, filtered = self.frames, self.filtered
        for end in ends.tolist():
            end_frame = int(self.rows[end]) if end < len(self.rows) else len(frames)
            bad = tuple(
                bad_record for bad_record in self.bad if first_frame <= bad_record[0] < end_frame
            )
            batch, rows = self.batch.slice(begin, end - begin), self.rows[begin:end]
            yield SelectedRecords(frames, batch, rows, bad, filtered)
            begin, first_frame, filtered = end, end_frame, 0
            frames = replace(frames, damage=())


def select_matching(plan: ReadPlan, frames: FileFrames) -> SelectedRecords:
    """Decodes the records that are in the sample and satisfy the predicate.

    Raises:
        DataError: The predicate can't be evaluated.
        SchemaNotConfirmed: A record contradicts the guessed schema.
    """
    selection, predicate = plan.options.selection, plan.options.predicate
    if plan.guess is not None:
        # A plan with a guess filters nothing, so that all records are decoded and confirm the
        # guess.
        decoded = plan.guess.decode(frames.data, frames.starts + HEADER_BYTES, frames.lengths)
        return SelectedRecords(
            frames, select_features(decoded, plan.selected), np.arange(len(frames)), (), 0
        )
    # The sample is chosen before decoding, so all other records cost nothing.
    rows = (
        np.arange(len(frames))
        if selection.sample is None
        else np.flatnonzero(
            sample_mask(
                plan.files[frames.file].identity, frames.numbers, selection.sample, selection.seed
            )
        )
    )
    batch, good, undecoded = decode_lenient(
        frames.data, frames.starts[rows] + HEADER_BYTES, frames.lengths[rows], plan.decoded
    )
    # Converts rows of the sample to rows of the frames.
    good = rows[good]
    filtered = len(frames) - len(rows)
    if predicate is not None:
        try:
            mask = predicate.evaluate(batch)
        except DataError as error:
            raise DataError(error.reason, source=frames.origin.path(0)) from None
        filtered += int(len(mask) - mask.sum())
        batch, good = batch.filter(pa.array(mask)), good[mask]
    # The selected features are decoded first, then those that only the predicate needs.
    if plan.selected is not plan.decoded:
        batch = pa.RecordBatch.from_arrays(
            batch.columns[: len(plan.selected)], schema=to_arrow(plan.selected)
        )
    return SelectedRecords(
        frames,
        batch,
        good,
        tuple((int(rows[record.row]), record) for record in undecoded),
        filtered,
    )


def convert_selected(plan: ReadPlan, selected_records: SelectedRecords) -> Salvaged:
    """Converts the records to the output schema.

    Raises:
        DataError: A record can't be decoded or converted, and the plan is not lenient.
    """
    converted = convert_columns(plan.steps, selected_records.batch, plan.selected)
    bad = [(row, PARSE, record) for row, record in selected_records.bad] + [
        (int(selected_records.rows[record.row]), CONVERT_REASON, record)
        for record in converted.bad_records
    ]
    frames = selected_records.frames
    name = plan.files[frames.file].name if plan.options.lenient else ""
    rejects = list(list_damage_rejects(frames, name))
    # Rejects are in the order of the records.
    for row, reason, record in sorted(bad, key=lambda item: item[0]):
        message = shorten(record.describe(), 290)
        path, place = frames.location(row)
        if not plan.options.lenient:
            raise DataError(message, source=path, place=place)
        rejects.append(Reject(name, place, reason, message))
    batches = (converted.batch,) if converted.batch.num_rows else ()
    return Salvaged(batches, tuple(rejects), selected_records.filtered)


def sample_mask(
    file_identity: bytes, numbers: Int64s, share: float, seed: int
) -> npt.NDArray[np.bool_]:
    """Returns which records belong to a random sample.

    The result depends only on the seed, the identity of the file and the record numbers.

    Args:
        file_identity: `ShardFile.identity` of the file.
        numbers: Record numbers in the file.
        share: Fraction of the records in the sample.
        seed: Seed of the sample.
    """
    key0, key1 = (
        np.array([word], np.uint64) for word in derive_key(seed, _SAMPLE_DOMAIN, file_identity)
    )
    keys = np.empty(len(numbers), np.uint64)
    hash_positions(
        key0,
        key1,
        np.zeros(len(numbers), np.uint32),
        0,
        np.ascontiguousarray(numbers, np.int64),
        keys,
    )
    return (keys >> np.uint64(11)) < np.uint64(round(share * 2**53))


# 1 MiB of pixels, or one image. Parquet needs 36 times this size to write it.
_IMAGE_BATCH_BYTES = 1 << 20


def divide_images(
    plan: ReadPlan, selected_records: SelectedRecords
) -> Iterator[tuple[SelectedRecords, int]]:
    """Divides records with images into batches that can be decoded together.

    Yields:
        The records of a batch, and its peak memory in bytes until it is written.

    Raises:
        DataError: A single image needs more memory than the plan has.
    """
    selected_records, result, work = _measure_costs(plan, selected_records)
    start = 0
    # The encoded images stay in memory while a batch of them is decoded.
    encoded = int(selected_records.batch.nbytes)
    for image_batch in selected_records.cut(_batch_ends(result, _IMAGE_BATCH_BYTES)):
        rows = slice(start, start + image_batch.batch.num_rows)
        yield (
            image_batch,
            encoded + int(_peak_bytes(plan, result[rows].sum(), work[rows].max(initial=0))),
        )
        start = rows.stop


def _measure_costs(
    plan: ReadPlan, selected_records: SelectedRecords
) -> tuple[SelectedRecords, Int64s, Int64s]:
    """Measures how much memory the conversions of each record need.

    A record with a tensor that is too large becomes a bad record. An image that is too large is an
    error instead of a reject, because its limit depends on the number of threads. Rejects must not
    depend on that.

    Returns:
        The records without the oversize ones, the bytes of the converted values of each record, and
        the temporary bytes for converting it.

    Raises:
        DataError: An image needs more memory than the plan has.
    """
    result, work = np.zeros((2, selected_records.batch.num_rows), np.int64)
    oversize: dict[int, BadRecord] = {}
    for step in plan.steps:
        if not isinstance(step, DecodeImages | DecodeTensor):
            continue
        feature = plan.selected[step.feature]
        step_result, step_work = step.estimate_bytes(
            selected_records.batch.column(plan.selected.names.index(step.feature)), feature
        )
        # A pixel value has one byte. The size of a number in a tensor depends on the dtype.
        is_image = isinstance(step, DecodeImages)
        peak_bytes = _peak_bytes(
            plan,
            step_result,
            step_work,
            1 if is_image else ITEM_BYTES[step.output_feature(feature).dtype],
        )
        max_bytes = plan.image_bytes if is_image else plan.memory_bytes
        for row in np.flatnonzero(peak_bytes > max_bytes).tolist() if max_bytes else ():
            reason = _oversize_message(plan, step, int(peak_bytes[row]))
            if is_image:
                path, place = selected_records.frames.location(int(selected_records.rows[row]))
                raise DataError(
                    "feature {feature}: {reason}",
                    feature=repr(step.feature),
                    reason=reason,
                    source=path,
                    place=place,
                )
            oversize.setdefault(row, BadRecord(row, step.feature, reason))
        # All converted values are kept, but the temporary memory of only one step is needed at a
        # time.
        result, work = result + step_result, np.maximum(work, step_work)
    if not oversize:
        return selected_records, result, work
    rows = np.delete(np.arange(selected_records.batch.num_rows), list(oversize))
    bad = (
        *selected_records.bad,
        *((int(selected_records.rows[row]), bad_record) for row, bad_record in oversize.items()),
    )
    batch = selected_records.batch.take(pa.array(rows))
    selected_records = replace(
        selected_records,
        batch=batch,
        rows=selected_records.rows[rows],
        bad=tuple(sorted(bad, key=lambda bad_record: bad_record[0])),
    )
    return selected_records, result[rows], work[rows]


def _peak_bytes(plan: ReadPlan, result: Int64s, work: Int64s, item_bytes: int = 1) -> Int64s:
    """Returns the peak memory of decoding, keeping and writing images or tensors.

    Args:
        result: Size of the decoded values.
        work: Temporary memory for decoding them.
        item_bytes: Size of one number in the decoded values.
    """
    decoding = work + 2 * result
    return np.maximum(
        decoding, result + result // item_bytes * plan.options.output_format.buffer_bytes_per_value
    )


def _batch_ends(pixels: Int64s, part_bytes: int) -> Int64s:
    """Returns the end row of each batch of about `part_bytes`.

    `pixels` contains the size of each row. The result is [0] without rows.
    """
    ends = np.cumsum(pixels)
    batch_ends, row = [], 0
    while row < len(pixels):
        batch_begin = int(ends[row - 1]) if row else 0
        row = max(int(np.searchsorted(ends, batch_begin + part_bytes, "right")), row + 1)
        batch_ends.append(row)
    return np.array(batch_ends or [0], np.int64)


def _oversize_message(plan: ReadPlan, step: DecodeImages | DecodeTensor, peak_bytes: int) -> str:
    if isinstance(step, DecodeTensor):
        return Message(
            "a tensor {memory_message}",
            memory_message=_memory_message(plan, peak_bytes, peak_bytes),
        )
    reason = Message(
        "an image {memory_message}",
        memory_message=_memory_message(
            plan, peak_bytes, peak_bytes + plan.memory_bytes - plan.image_bytes
        ),
    )
    if not plan.options.output_format.buffer_bytes_per_value:
        return reason
    alternative = (
        option("to", "arrow")
        if step.resize
        else Message("{to} or {resize}", to=option("to", "arrow"), resize=option("resize", "HxW"))
    )
    return Message("{reason}, and {alternative} takes less", reason=reason, alternative=alternative)


def _memory_message(plan: ReadPlan, peak_bytes: int, enough_bytes: int) -> str:
    """Returns the message for a record that needs too much memory.

    Args:
        peak_bytes: The memory that the record needs.
        enough_bytes: A memory limit with which the read would succeed.
    """
    written = " and write" if plan.options.output_format.buffer_bytes_per_value else ""
    return Message(
        "takes {peak_bytes} MiB to decode{written}, more than {memory} leaves; {enough} is enough",
        peak_bytes=(peak_bytes >> 20) + 1,
        written=written,
        memory=option("memory", f"{plan.memory_bytes >> 20}MiB"),
        enough=option("memory", f"{(enough_bytes >> 20) + 1}MiB"),
    )


def _refuse_oversize(plan: ReadPlan) -> Callable[[int], str] | None:
    """Returns a function that decides which records are too large for the memory limit.

    Returns:
        The argument `refuse` of `iter_piece_reads`. The function takes the size of a record in
        bytes and returns an error message, or "" if the record can be read. None if there is no
        memory limit.
    """
    if not plan.memory_bytes:
        return None

    def refuse(size_bytes: int) -> str:
        # The record, its values, and the values that are being written.
        peak_bytes = 3 * size_bytes
        if size_bytes <= PIECE_BYTES or peak_bytes <= plan.memory_bytes:
            return ""
        return Message(
            "a record {memory_message}",
            memory_message=_memory_message(plan, peak_bytes, peak_bytes),
        )

    return refuse


def _without_oversize_record(plan: ReadPlan, frames: FileFrames) -> FileFrames:
    """Replaces a record that is too large to be decoded by damage."""
    # A record above this size is the only one of its frames.
    if (
        not plan.memory_bytes
        or len(frames) != 1
        or frames.framed_bytes <= PIECE_BYTES
        or plan.decoded.message == OPAQUE_BYTES
    ):
        return frames
    start, length = int(frames.starts[0]) + HEADER_BYTES, int(frames.lengths[0])
    result_bytes, values = max_decoded_size(frames.data, start, length, plan.decoded)
    results, item_bytes = np.array([result_bytes]), max(result_bytes // max(values, 1), 1)
    peak_bytes = frames.framed_bytes + int(
        _peak_bytes(plan, results, np.zeros_like(results), item_bytes)[0]
    )
    if peak_bytes <= plan.memory_bytes:
        return frames
    return replace_by_damage(
        frames,
        0,
        Message(
            "a record {memory_message}",
            memory_message=_memory_message(plan, peak_bytes, peak_bytes),
        ),
    )


# 16 MiB of converted records. Two of these per thread wait for the writer.
_SLICE_BYTES = 16 << 20


def read_task_records(plan: ReadPlan, task: ReadTask, threads: int) -> Iterator[Salvaged]:
    """Reads all records of a task, in order.

    Raises:
        DataError: A record is damaged or can't be converted, and the plan is not lenient.
    """
    limit = None if plan.options.has_filter else task.limit
    parts = salvage_reads(plan, iter_plan_reads(plan, task.pieces, limit=limit), threads)
    if task.limit is None or limit is not None:
        return parts
    return _take_rows(parts, task.limit)


def iter_plan_reads(
    plan: ReadPlan, pieces: Iterable[Piece], *, limit: int | None = None
) -> Iterator[FrameRead]:
    """Yields deferred reads of the pieces of a plan, in order.

    Small pieces are read together, unless the file of each record matters for rejects or the
    sample.

    Args:
        limit: Maximum number of records to read, see `iter_piece_reads`. If None, all are read.
    """
    is_by_file = plan.options.lenient or plan.options.selection.sample is not None
    return (iter_piece_reads if is_by_file else iter_joined_reads)(
        plan.files,
        resolve(plan.files, pieces, lenient=plan.options.lenient),
        limit=limit,
        refuse=_refuse_oversize(plan),
    )


def salvage_reads(plan: ReadPlan, reads: Iterable[FrameRead], threads: int) -> Iterator[Salvaged]:
    """Reads and converts records, in order.

    Raises:
        DataError: A record is damaged or can't be converted, and the plan is not lenient.
    """

    def read_frames(read: FrameRead) -> FileFrames:
        return _without_oversize_record(plan, read())

    if not plan.steps and not plan.options.has_filter:
        return thread_map(lambda read: _decode(plan, read_frames(read)), reads, threads)
    if any(isinstance(step, DecodeImages) for step in plan.steps):
        # One thread reads all frames, because that is a hundred times faster than decoding images.
        selected_records = (
            select_matching(plan, frames) for frames in _or_damage(plan, map(read_frames, reads))
        )
        image_batches = (
            batch for records in selected_records for batch in divide_images(plan, records)
        )
        return thread_map(
            lambda batch: convert_selected(plan, batch[0]),
            image_batches,
            threads,
            item_bytes=lambda batch: batch[1],
            max_bytes=plan.image_bytes or sys.maxsize,
        )
    max_rows = max(_SLICE_BYTES // fixed_row_bytes(plan.schema), 1)
    parts = _or_damage(plan, thread_map(read_frames, reads, threads))
    divided = (part for frames in parts for part in frames.split(max_rows))
    return chain.from_iterable(thread_map(lambda part: _convert(plan, part), divided, threads))


def _or_damage(plan: ReadPlan, parts: Iterator[FileFrames]) -> Iterator[FileFrames]:
    """Yields the frames. Raises DataError at the first damage, unless the plan is lenient."""
    return parts if plan.options.lenient else stop_at_damage(parts)


def _convert(plan: ReadPlan, frames: FileFrames) -> Iterable[Salvaged]:
    """Selects and converts the records of some frames.

    If they become very large, they are converted in parts, one at a time as the caller asks for
    them.
    """
    selected_records, result, _ = _measure_costs(plan, select_matching(plan, frames))
    ends = (
        _batch_ends(result, _SLICE_BYTES)
        if int(result.sum()) > 2 * _SLICE_BYTES
        else np.array([selected_records.batch.num_rows])
    )
    if len(ends) == 1:
        return (convert_selected(plan, selected_records),)
    return (convert_selected(plan, batch_records) for batch_records in selected_records.cut(ends))


def fixed_row_bytes(schema: Schema) -> int:
    """Returns the size of a row in the columns of fixed size. At least 1."""
    sizes = [
        feature.inner_size * ITEM_BYTES.get(feature.dtype, 8)
        for feature in schema
        if not feature.ragged_rank and not is_bytes(feature)
    ]
    return max(sum(sizes), 1)


def _decode(plan: ReadPlan, frames: FileFrames) -> Salvaged:
    if plan.options.lenient:
        return salvage(frames, plan.files[frames.file].name, plan.schema)
    if plan.guess is not None:
        batch = select_features(confirm_frames(frames, plan.guess), plan.schema)
    else:
        batch = decode_frames(frames, plan.schema)
    return Salvaged((batch,), ())


def _take_rows(parts: Iterator[Salvaged], limit: int) -> Iterator[Salvaged]:
    """Yields parts until `limit` rows were yielded. The last part is shortened."""
    remaining = limit
    for part in parts:
        if part.rows > remaining:
            batches, batch_rows = [], remaining
            for batch in part.batches:
                batches.append(batch.slice(0, batch_rows))
                batch_rows -= min(batch_rows, batch.num_rows)
            part = replace(part, batches=tuple(batch for batch in batches if batch.num_rows))
        yield part
        remaining -= part.rows
        if remaining <= 0:
            return
