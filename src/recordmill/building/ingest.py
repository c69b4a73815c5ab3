"""Ingestion of input units into sorted runs.

For one unit group at a time, records are read, transformed, encoded and sorted by key.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.buffers import release_unused
from recordmill.base.errors import DataError, Reject
from recordmill.base.messages import Message, shorten
from recordmill.base.option_names import option
from recordmill.base.progress import Progress
from recordmill.base.siphash import U64
from recordmill.building.plan import BuildPlan
from recordmill.building.record_keys import NO_SPLIT
from recordmill.building.sorted_run import Histogram, SortedRun, SortedRunWriter
from recordmill.records.example.decode import decode_lenient, max_decoded_size
from recordmill.records.example.encode import encode as encode_batch
from recordmill.records.tfrecord.frames import (
    FRAME_OVERHEAD_BYTES,
    MAX_RECORD_BYTES,
    Frames,
    frame_payloads,
)
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import OPAQUE_BYTES
from recordmill.shards.rejects import RejectSummary, RejectWriter
from recordmill.sources.common.contract import BATCH_BYTES, Chunk, Payloads, RecordLocator, Source
from recordmill.statistics.dataset_sketch import SketchPool, payloads_to_flat

# Messages to the user, by the reason of the reject.
_SKIP_NOTES = {
    "parse": "records left out of the statistics, because they can't be parsed",
    "memory": "records left out of the statistics, because parsing them takes too much memory",
}
# A parsed record may take a third (1/3) of the memory. Its serialized bytes, the sorted runs and
# the statistics need the rest.
_MAX_DECODED_SHARE = 3
# Four threads share a sketch. Each needs it for a tenth of its time, so they seldom wait.
_THREADS_PER_SKETCH = 4


@dataclass(frozen=True)
class IngestResult:
    """The result of ingesting one unit group.

    Attributes:
        unit_group: Index of the unit group in `BuildPlan.unit_groups`.
        sorted_runs: The sorted runs that contain its records.
        records_read: Number of records read: sorted ones and rejects.
        rejected: The rejects.
        note_counts: Messages to the user, each with the number of records that it is about.
    """

    unit_group: int
    sorted_runs: tuple[SortedRun, ...]
    records_read: int
    rejected: RejectSummary
    note_counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class KeyedChunk:
    """A chunk with the key and the split of each record.

    Attributes:
        records: A RecordBatch, or serialized records as Payloads.
        file_ids: [rows] uint32, indices into `Source.files`.
        positions: [rows] int64, row number in the file.
        keys: [rows] uint64.
        split_ids: [rows] uint16, ordinals of splits.
        pixel_sums: Pixel sums of the images of each feature, as in `Chunk`. Empty if the images
            have not been decoded.
    """

    records: pa.RecordBatch | Payloads
    file_ids: npt.NDArray[np.uint32]
    positions: npt.NDArray[np.int64]
    keys: U64
    split_ids: npt.NDArray[np.uint16]
    pixel_sums: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.positions)


def ingest(
    plan: BuildPlan,
    unit_group: int,
    progress: Progress,
    buffer_bytes: int,
    sketches: SketchPool | None = None,
) -> tuple[IngestResult, Histogram]:
    """Reads a unit group and writes its records to sorted runs.

    Args:
        plan: The plan of the build. The sorted runs and rejects go to its folder.
        unit_group: Index of the unit group in `plan.unit_groups`.
        progress: Receives the number of read and rejected records.
        buffer_bytes: The memory that a sorted run may take before it is written.
        sketches: The statistics that receive the values, or None.

    Returns:
        (result, histogram). The histogram counts the records of all sorted runs of the unit group.

    Raises:
        DataError: An input is truncated or has changed since the plan, or a record is too large.
            Other bad records become rejects.
        TooManyRejects: The rejects exceed the budget by far, so that the build need not go on.
    """
    folder = Path(plan.folder)
    reject_writer = RejectWriter(
        folder / "rejects" / f"{unit_group:06d}-{uuid.uuid4().hex}.jsonl",
        max_rejects=plan.max_rejects,
        task_name=str(unit_group),
    )
    writer = SortedRunWriter(
        os.fspath(folder / "runs"),
        plan.key_buckets,
        _limit_buffer_bytes(plan, unit_group, buffer_bytes),
    )
    sorted_runs: list[SortedRun] = []
    records_read = 0
    note_counts: Counter[str] = Counter()
    for chunk in read_unit_group(plan, unit_group):
        # Keys come before the transform, which must not change the order or the splits.
        keyed_chunk, split_rejects = assign_keys(plan, chunk)
        records, transform_rejects = apply_transform(plan, keyed_chunk)
        num_rejected = reject_writer.write((*chunk.rejects, *split_rejects, *transform_rejects))
        note_counts.update(chunk.note_counts)
        records_read += records.rows + num_rejected
        if records.rows:
            frames = encode_chunk(plan, records)
            sorted_runs += writer.add(
                frames.data,
                frames.lengths + FRAME_OVERHEAD_BYTES,
                crcs=frames.crcs,
                keys=records.keys,
                split_ids=records.split_ids,
                file_ids=records.file_ids,
                positions=records.positions,
            )
            # The writer keeps only the data of the frames.
            del frames
            note_counts.update(update_statistics(plan, sketches, records))
        progress.advance(records.rows, num_rejected)
        is_large = _is_large(chunk)
        # Free the memory before the next chunk is read.
        del chunk, keyed_chunk, records
        if is_large:
            release_unused()
    if not writer.is_empty:
        sorted_runs.append(writer.finish())
    release_unused()
    return IngestResult(
        unit_group=unit_group,
        sorted_runs=tuple(sorted_runs),
        records_read=records_read,
        rejected=reject_writer.close(),
        note_counts=note_counts,
    ), writer.histogram


def read_unit_group(plan: BuildPlan, unit_group: int) -> Iterator[Chunk]:
    """Yields the chunks of all units of a unit group.

    A chunk may contain rejects and no records.
    """
    source = _source(plan)
    for unit_id in plan.unit_groups[unit_group]:
        yield from source.read(source.units[unit_id])


def read_first_records(plan: BuildPlan, max_records: int) -> pa.Table:
    """Returns the first `max_records` records of the inputs, before any transform.

    Records that can't be used are left out. The table has the columns of the plan's schema.
    """
    source, batches = _source(plan), list[pa.RecordBatch]()
    for chunk in (chunk for unit in source.units for chunk in source.read(unit)):
        records = chunk.records
        if not isinstance(records, pa.RecordBatch):
            starts = np.ascontiguousarray(records.offsets[:-1])[:max_records]
            lengths = np.diff(records.offsets)[:max_records]
            records, *_ = decode_lenient(records.data, starts, lengths, source.schema)
        # The first chunk alone may have more records than requested.
        batches.append(records.slice(0, max_records).select(plan.schema.names))
        if sum(batch.num_rows for batch in batches) >= max_records:
            break
    return pa.Table.from_batches(batches, to_arrow(plan.schema)).slice(0, max_records)


def assign_keys(plan: BuildPlan, chunk: Chunk) -> tuple[KeyedChunk, tuple[Reject, ...]]:
    """Assigns a key and a split to each record of a chunk.

    Key and split depend on the records as read, before any transform.

    Returns:
        (keyed_chunk, rejects). `keyed_chunk` contains the records that have a split. `rejects` has
        one reject for each other record, because its columns determine no split. It does not repeat
        `chunk.rejects`.
    """
    batch = decode_key_columns(plan, chunk)
    keys, split_ids = plan.key_assigner.assign(batch, chunk.file_ids, chunk.positions)
    keyed_chunk = KeyedChunk(
        chunk.records,
        file_ids=chunk.file_ids,
        positions=chunk.positions,
        keys=keys,
        split_ids=split_ids,
        pixel_sums=chunk.pixel_sums,
    )
    if batch is None or not len(bad_rows := np.flatnonzero(split_ids == NO_SPLIT)):
        return keyed_chunk, ()
    messages = {row: plan.key_assigner.explain_no_split(batch, row) for row in bad_rows.tolist()}
    good_rows = np.flatnonzero(split_ids != NO_SPLIT)
    rejects = tuple(_make_rejects(plan, keyed_chunk, messages, "split"))
    chunk = chunk.take(good_rows)
    return KeyedChunk(
        chunk.records,
        file_ids=chunk.file_ids,
        positions=chunk.positions,
        keys=keys[good_rows],
        split_ids=split_ids[good_rows],
        pixel_sums=chunk.pixel_sums,
    ), rejects


def decode_key_columns(plan: BuildPlan, chunk: Chunk) -> pa.RecordBatch | None:
    """Returns the columns that determine keys and splits, or None if no column does.

    The batch has one row per record of the chunk. If a record can't be parsed, its row is null. If
    the records are a RecordBatch already, it is returned as it is, with all columns.
    """
    if isinstance(chunk.records, pa.RecordBatch):
        return chunk.records
    if not plan.key_options.columns:
        return None
    data, offsets = chunk.records.data, chunk.records.offsets
    starts, lengths = np.ascontiguousarray(offsets[:-1]), np.diff(offsets)
    batch, good_rows, bad_records = decode_lenient(
        data, starts, lengths, _source(plan).schema, plan.key_options.columns
    )
    if not bad_records:
        return batch
    # Bad records become null rows, so that each row still belongs to its record.
    rows = np.full(len(starts), -1, np.int64)
    rows[good_rows] = np.arange(len(good_rows))
    return batch.take(pa.array(rows, mask=rows < 0))


def apply_transform(
    plan: BuildPlan, keyed_chunk: KeyedChunk
) -> tuple[KeyedChunk, tuple[Reject, ...]]:
    """Applies the plan's transform to the records.

    Without a transform, columns that are not in the plan's schema are dropped.

    Returns:
        (keyed_chunk, rejects). The rejects are the records that can't be parsed or that the
        transform refuses.
    """
    if plan.transform is None or not keyed_chunk.rows:
        records = keyed_chunk.records
        if isinstance(records, pa.RecordBatch) and len(plan.schema) < records.num_columns:
            keyed_chunk = replace(keyed_chunk, records=records.select(list(plan.schema.names)))
        return keyed_chunk, ()
    keyed_chunk, rejects = parse_payloads(plan, keyed_chunk)
    batch, refused = plan.transform.apply(keyed_chunk.records)
    # The transform returns only the rows that it accepts.
    good_rows = np.setdiff1d(np.arange(keyed_chunk.rows), list(refused))
    messages = {row: f"the transform refuses it: {why}" for row, why in refused.items()}
    return _take_rows(keyed_chunk, good_rows, batch), (
        *rejects,
        *_make_rejects(plan, keyed_chunk, messages, "transform"),
    )


def parse_payloads(
    plan: BuildPlan, keyed_chunk: KeyedChunk
) -> tuple[KeyedChunk, tuple[Reject, ...]]:
    """Parses serialized records. A RecordBatch is returned as it is.

    Returns:
        (keyed_chunk, rejects). The reason of a reject is "parse" if the record is malformed, or
        "memory" if parsing would need too much memory.
    """
    payloads = keyed_chunk.records
    if isinstance(payloads, pa.RecordBatch):
        return keyed_chunk, ()
    if message := _describe_memory_excess(plan, payloads):
        empty = pa.RecordBatch.from_pylist([], to_arrow(_source(plan).schema))
        return _take_rows(keyed_chunk, np.zeros(0, np.int64), empty), tuple(
            _make_rejects(plan, keyed_chunk, {0: message}, "memory")
        )
    starts, lengths = np.ascontiguousarray(payloads.offsets[:-1]), np.diff(payloads.offsets)
    batch, good_rows, bad_records = decode_lenient(
        payloads.data, starts, lengths, _source(plan).schema
    )
    messages = {bad_record.row: bad_record.describe() for bad_record in bad_records}
    return _take_rows(keyed_chunk, good_rows, batch), tuple(
        _make_rejects(plan, keyed_chunk, messages, "parse")
    )


def _describe_memory_excess(plan: BuildPlan, payloads: Payloads) -> str:
    """Returns an error message if parsing a record needs too much memory, else "".

    A record that is itself small can contain millions of empty values. Each of them takes up to 24
    bytes when parsed.
    """
    record_bytes = payloads.data.nbytes
    # Only a chunk of a single record can be larger.
    if record_bytes <= BATCH_BYTES:
        return ""
    parsed_bytes, _ = max_decoded_size(
        payloads.data, int(payloads.offsets[0]), record_bytes, _source(plan).schema
    )
    if parsed_bytes <= plan.memory_bytes // _MAX_DECODED_SHARE:
        return ""
    memory_option, enough_memory = (
        option("memory", f"{n >> 20}MiB")
        for n in (plan.memory_bytes, _MAX_DECODED_SHARE * parsed_bytes + (1 << 20))
    )
    return Message(
        "a record of {record_bytes} bytes takes {parsed_bytes} bytes when it is "
        "parsed, more than {memory_option} leaves for one; {enough_memory} is enough",
        record_bytes=f"{record_bytes:,}",
        parsed_bytes=f"{parsed_bytes:,}",
        memory_option=memory_option,
        enough_memory=enough_memory,
    )


def _take_rows(
    keyed_chunk: KeyedChunk, rows: npt.NDArray[np.int64], batch: pa.RecordBatch
) -> KeyedChunk:
    """Returns the rows `rows` of a chunk, with `batch` as their records.

    Args:
        rows: The indices of the rows.
        batch: The records of these rows, one per index.
    """
    return KeyedChunk(
        batch,
        file_ids=keyed_chunk.file_ids[rows],
        positions=keyed_chunk.positions[rows],
        keys=keyed_chunk.keys[rows],
        split_ids=keyed_chunk.split_ids[rows],
    )


def _make_rejects(
    plan: BuildPlan, keyed_chunk: KeyedChunk, messages: Mapping[int, str], reason: str
) -> Iterator[Reject]:
    """Yields a reject for each row in `messages`, all with the same reason.

    Args:
        plan: The plan of the build.
        keyed_chunk: The records.
        messages: Error message by row. It is cut to 300 characters.
        reason: The reason, such as "parse".
    """
    source = _source(plan)
    for file_id in dict.fromkeys(keyed_chunk.file_ids[list(messages)].tolist()):
        rows = [row for row in messages if keyed_chunk.file_ids[row] == file_id]
        positions = keyed_chunk.positions[rows].tolist()
        # A source of text can replace the record number by the line.
        places = [f"record {position}" for position in positions]
        if isinstance(source, RecordLocator):
            places = source.locate(file_id, positions)
        for row, place in zip(rows, places, strict=True):
            yield Reject(source.files[file_id].name, place, reason, shorten(messages[row], 300))


def encode_chunk(plan: BuildPlan, keyed_chunk: KeyedChunk) -> Frames:
    """Encodes records as TFRecord frames. Serialized records are framed without parsing.

    Raises:
        DataError: A record is larger than MAX_RECORD_BYTES, or an Example can't contain its values.
    """
    if isinstance(keyed_chunk.records, pa.RecordBatch):
        frames = encode_batch(keyed_chunk.records, plan.schema)
    else:
        frames = frame_payloads(
            keyed_chunk.records.data, np.ascontiguousarray(keyed_chunk.records.offsets)
        )
    if len(frames) != keyed_chunk.rows:
        raise DataError(
            f"{keyed_chunk.rows} rows became {len(frames)} records", source=_source(plan).kind
        )
    if (oversized := find_oversized_record(frames)) is not None:
        source = _source(plan).files[int(keyed_chunk.file_ids[oversized])].name
        raise DataError(
            describe_oversized_record(frames, oversized),
            source=source,
            place=f"record {int(keyed_chunk.positions[oversized])}",
        )
    return frames


def create_sketches(plan: BuildPlan) -> SketchPool | None:
    """Returns empty statistics for a build, or None if the plan has none."""
    if not plan.has_statistics:
        return None
    return SketchPool(
        plan.schema, plan.split_names, plan.memory_bytes, plan.threads // _THREADS_PER_SKETCH
    )


def update_statistics(
    plan: BuildPlan, sketches: SketchPool | None, keyed_chunk: KeyedChunk
) -> Mapping[str, int]:
    """Adds the values of the records to the statistics.

    Args:
        plan: The plan of the build.
        sketches: The statistics, or None to do nothing.
        keyed_chunk: The records as they are written.

    Returns:
        Messages to the user about records that the statistics leave out, each with the number of
        such records.
    """
    if sketches is None:
        return {}
    payloads = keyed_chunk.records
    if not isinstance(payloads, pa.RecordBatch) and plan.schema.message == OPAQUE_BYTES:
        with sketches.borrow() as sketch:
            sketch.add_flat(
                [payloads_to_flat(payloads.data, payloads.offsets, plan.schema)],
                keyed_chunk.keys,
                keyed_chunk.split_ids,
            )
        return {}
    keyed_chunk, rejects = parse_payloads(plan, keyed_chunk)
    assert isinstance(keyed_chunk.records, pa.RecordBatch)
    with sketches.borrow() as sketch:
        sketch.add(
            keyed_chunk.records, keyed_chunk.keys, keyed_chunk.split_ids, keyed_chunk.pixel_sums
        )
    return Counter(_SKIP_NOTES[reject.reason] for reject in rejects)


def _is_large(chunk: Chunk) -> bool:
    """Returns whether the records of a chunk have more than 1 MiB on average.

    After such records the memory pool must release its free blocks. Otherwise it keeps them, and
    hardly ever reuses blocks of such sizes.
    """
    records = chunk.records
    return (records.nbytes if isinstance(records, pa.RecordBatch) else records.data.nbytes) > len(
        chunk.file_ids
    ) << 20


def _source(plan: BuildPlan) -> Source:
    assert plan.source is not None
    return plan.source


def _limit_buffer_bytes(plan: BuildPlan, unit_group: int, max_bytes: int) -> int:
    """Returns the memory for each sorted run of a unit group: at most `max_bytes`.

    A small unit group gets three times the size of its records, plus 16 MiB, if that is less.
    """
    expected = sum(
        _source(plan).units[unit_id].size_bytes for unit_id in plan.unit_groups[unit_group]
    )
    return min(max_bytes, 3 * expected + (16 << 20))


def find_oversized_record(frames: Frames) -> int | None:
    """Returns the index of the largest record if it exceeds MAX_RECORD_BYTES, else None."""
    return (
        int(np.argmax(frames.lengths))
        if len(frames) and int(frames.lengths.max()) > MAX_RECORD_BYTES
        else None
    )


def describe_oversized_record(frames: Frames, record: int) -> str:
    """Returns the error message for a record that is larger than MAX_RECORD_BYTES.

    Args:
        frames: The encoded records.
        record: The index of the large one.
    """
    return (
        f"{int(frames.lengths[record])} bytes in one record, and readers accept at "
        f"most {MAX_RECORD_BYTES}; divide the record"
    )
