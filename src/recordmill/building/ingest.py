"""Ingestion of input units into sorted runs.

For one group of units at a time, records are read, transformed, encoded and sorted by key.
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
from recordmill.base.option_names import option
from recordmill.base.progress import Progress
from recordmill.base.siphash import U64
from recordmill.building.plan import BuildPlan
from recordmill.building.record_keys import NO_SPLIT
from recordmill.building.sorted_run import Histogram, SortedRun, SortedRunWriter
from recordmill.records.example.decode import decode_lenient, decoded_size
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

_SKIP_NOTES = {
    "parse": "records that statistics leave out, since they can't be parsed",
    "memory": "records that statistics leave out, since parsing them takes more memory than was given",
}
_MAX_DECODED_SHARE = 3  # a parsed record may take a third of the memory, next to its bytes, the runs and the statistics
_THREADS_PER_SKETCH = (
    4  # threads that share a sketch: each spends a tenth of its time on statistics
)


@dataclass(frozen=True)
class IngestResult:
    """The result of ingesting one group of units.

    Attributes:
        group: Index of the group in `BuildPlan.groups`.
        sorted_runs: The sorted runs with its records.
        records_read: Number of records read: the records in the sorted runs and the rejects.
        rejected: The rejects.
        note_counts: Number of records for each message to the user.
    """

    group: int
    sorted_runs: tuple[SortedRun, ...]
    records_read: int
    rejected: RejectSummary
    note_counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class KeyedChunk:
    """A chunk with the key and the split of each record.

    Attributes:
        records: A RecordBatch or Payloads.
        file_ids: [rows] uint32, indices into `Source.files`.
        positions: [rows] int64, row number in the file.
        keys: [rows] uint64.
        split_ids: [rows] uint16, ordinals of splits.
        pixels: As in `Chunk`.
    """

    records: pa.RecordBatch | Payloads
    file_ids: npt.NDArray[np.uint32]
    positions: npt.NDArray[np.int64]
    keys: U64
    split_ids: npt.NDArray[np.uint16]
    pixels: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return len(self.positions)


def ingest(
    plan: BuildPlan,
    group: int,
    progress: Progress,
    run_bytes: int,
    sketches: SketchPool | None = None,
) -> tuple[IngestResult, Histogram]:
    """Reads a group of units and writes their records to sorted runs.

    Args:
        group: Index of the group in `plan.unit_groups`.
        run_bytes: The memory that a run may take before it is written.
        sketches: The statistics that receive the values, or None.

    Returns:
        (result, histogram): The histogram counts the records of all sorted runs of the group.

    Raises:
        DataError: An input is truncated or has changed since the plan, or a record is too large. Other bad records
            become rejects.
        TooManyRejects: The rejects exceed the budget by far, so that the build need not go on.
    """
    folder = Path(plan.folder)
    rejects = RejectWriter(
        folder / "rejects" / f"{group:06d}-{uuid.uuid4().hex}.jsonl",
        max_rejects=plan.max_rejects,
        task_name=str(group),
    )
    writer = SortedRunWriter(
        os.fspath(folder / "runs"), plan.key_buckets, _run_bytes(plan, group, run_bytes)
    )
    runs: list[SortedRun] = []
    count = 0
    counts: Counter[str] = Counter()
    for chunk in read_unit_group(plan, group):
        # before the transform, which must not change the order or the splits
        placed, unsplit = assign_keys(plan, chunk)
        records, refused = transform(plan, placed)
        rejected = rejects.write((*chunk.rejects, *unsplit, *refused))
        counts.update(chunk.note_counts)
        count += records.rows + rejected
        if records.rows:
            frames, places = (
                encode_chunk(plan, records),
                (records.keys, records.split_ids, records.file_ids, records.positions),
            )
            runs += writer.add(
                frames.data, frames.lengths + FRAME_OVERHEAD_BYTES, frames.crcs, *places
            )
            del frames
            counts.update(update_statistics(plan, sketches, records))
        progress.advance(records.rows, rejected)
        large = _is_large(chunk)
        del chunk, placed, records  # free the memory before the next chunk is read
        if large:
            release_unused()
    if not writer.is_empty:
        runs.append(writer.finish())
    release_unused()
    return IngestResult(group, tuple(runs), count, rejects.close(), counts), writer.histogram


def read_unit_group(plan: BuildPlan, group: int) -> Iterator[Chunk]:
    """Yields the chunks of all units of a group. A chunk may contain only rejects."""
    source = _source(plan)
    for number in plan.unit_groups[group]:
        yield from source.read(source.units[number])


def read_first_records(plan: BuildPlan, most: int) -> pa.Table:
    """Returns the first `most` usable records of the inputs, before any transform.

    It has the columns of the plan's schema.
    """
    source, batches = _source(plan), list[pa.RecordBatch]()
    for chunk in (chunk for unit in source.units for chunk in source.read(unit)):
        records = chunk.records
        if not isinstance(records, pa.RecordBatch):
            starts, lengths = (
                np.ascontiguousarray(records.offsets[:-1])[:most],
                np.diff(records.offsets)[:most],
            )
            records, *_ = decode_lenient(records.data, starts, lengths, source.schema)
        batches.append(records.slice(0, most).select(plan.schema.names))
        if sum(batch.num_rows for batch in batches) >= most:
            break
    return pa.Table.from_batches(batches, to_arrow(plan.schema)).slice(0, most)


def assign_keys(plan: BuildPlan, chunk: Chunk) -> tuple[KeyedChunk, tuple[Reject, ...]]:
    """Assigns keys and splits to the records of a chunk.

    They depend on the records as read, before any transform.

    Returns:
        (records, rejects): A record is rejected if its columns determine no split. The rejects of the chunk itself are
        not repeated.
    """
    batch = decode_key_columns(plan, chunk)
    keys, splits = plan.key_assigner.assign(batch, chunk.file_ids, chunk.positions)
    placed = KeyedChunk(
        chunk.records, chunk.file_ids, chunk.positions, keys, splits, chunk.pixel_sums
    )
    if batch is None or not len(lost := np.flatnonzero(splits == NO_SPLIT)):
        return placed, ()
    why = {row: plan.key_assigner.explain_no_split(batch, row) for row in lost.tolist()}
    kept, rejects = (
        np.flatnonzero(splits != NO_SPLIT),
        tuple(_make_rejects(plan, placed, why, "split")),
    )
    chunk = chunk.take(kept)
    return KeyedChunk(
        chunk.records, chunk.file_ids, chunk.positions, keys[kept], splits[kept], chunk.pixel_sums
    ), rejects


def decode_key_columns(plan: BuildPlan, chunk: Chunk) -> pa.RecordBatch | None:
    """Returns the columns that determine keys and splits, or None if no column does.

    The batch has one row per record of the chunk. The row of a record that can't be parsed is null. Records that are
    parsed already are returned with all columns.
    """
    if isinstance(chunk.records, pa.RecordBatch):
        return chunk.records
    if not plan.key_options.columns:
        return None
    data, offsets = chunk.records.data, chunk.records.offsets
    starts, lengths = np.ascontiguousarray(offsets[:-1]), np.diff(offsets)
    batch, kept, bad = decode_lenient(
        data, starts, lengths, _source(plan).schema, plan.key_options.columns
    )
    if not bad:
        return batch
    rows = np.full(len(starts), -1, np.int64)
    rows[kept] = np.arange(len(kept))
    return batch.take(pa.array(rows, mask=rows < 0))


def transform(plan: BuildPlan, placed: KeyedChunk) -> tuple[KeyedChunk, tuple[Reject, ...]]:
    """Applies the plan's transform to the records.

    Without a transform, columns that the plan's schema lacks are dropped.

    Returns:
        (records, rejects): The rejects are the records that can't be parsed or that the transform refuses.
    """
    if plan.transform is None or not placed.rows:
        records = placed.records
        if isinstance(records, pa.RecordBatch) and len(plan.schema) < records.num_columns:
            placed = replace(placed, records=records.select(list(plan.schema.names)))
        return placed, ()
    placed, rejects = parsed(plan, placed)
    batch, refused = plan.transform.apply(placed.records)
    kept = np.setdiff1d(np.arange(placed.rows), list(refused))
    found = {row: f"the transform refuses it: {why}" for row, why in refused.items()}
    return _take_rows(placed, kept, batch), (
        *rejects,
        *_make_rejects(plan, placed, found, "transform"),
    )


def parsed(plan: BuildPlan, placed: KeyedChunk) -> tuple[KeyedChunk, tuple[Reject, ...]]:
    """Parses serialized records. A RecordBatch is returned as it is.

    Returns:
        (records, rejects): The reason of a reject is "parse", or "memory" if parsing would need too much of it.
    """
    payloads = placed.records
    if isinstance(payloads, pa.RecordBatch):
        return placed, ()
    if beyond := _describe_memory_excess(plan, payloads):
        empty = pa.RecordBatch.from_pylist([], to_arrow(_source(plan).schema))
        return _take_rows(placed, np.zeros(0, np.int64), empty), tuple(
            _make_rejects(plan, placed, {0: beyond}, "memory")
        )
    starts, lengths = np.ascontiguousarray(payloads.offsets[:-1]), np.diff(payloads.offsets)
    batch, kept, bad = decode_lenient(payloads.data, starts, lengths, _source(plan).schema)
    found = {
        one.row: f"feature {one.feature!r}: {one.reason}" if one.feature else one.reason
        for one in bad
    }
    return _take_rows(placed, kept, batch), tuple(_make_rejects(plan, placed, found, "parse"))


def _describe_memory_excess(plan: BuildPlan, payloads: Payloads) -> str:
    """Returns the error message for a record that needs too much memory, or "".

    A record that is itself small can contain millions of empty values, and each takes up to 24 bytes when parsed.
    """
    size = payloads.data.nbytes
    if size <= BATCH_BYTES:  # only a chunk of a single record can be larger
        return ""
    made, _ = decoded_size(payloads.data, int(payloads.offsets[0]), size, _source(plan).schema)
    if made <= plan.memory_bytes // _MAX_DECODED_SHARE:
        return ""
    given, enough = (
        option("memory", f"{n >> 20}MiB")
        for n in (plan.memory_bytes, _MAX_DECODED_SHARE * made + (1 << 20))
    )
    return f"a record of {size:,} bytes that parsing makes {made:,}, more than {given} leaves for one; {enough} is enough"


def _take_rows(
    placed: KeyedChunk, rows: npt.NDArray[np.int64], batch: pa.RecordBatch
) -> KeyedChunk:
    """Returns the given rows of a chunk, with `batch` as their records."""
    return KeyedChunk(
        batch,
        placed.file_ids[rows],
        placed.positions[rows],
        placed.keys[rows],
        placed.split_ids[rows],
    )


def _make_rejects(
    plan: BuildPlan, placed: KeyedChunk, messages: Mapping[int, str], reason: str
) -> Iterator[Reject]:
    """Yields a reject for each row in `messages`.

    Args:
        messages: Error message by row. It is cut to 300 characters.
        reason: The reason of all rejects.
    """
    source = _source(plan)
    for file in dict.fromkeys(placed.file_ids[list(messages)].tolist()):
        rows = [row for row in messages if placed.file_ids[row] == file]
        positions = placed.positions[rows].tolist()
        places = [f"record {position}" for position in positions]
        if isinstance(source, RecordLocator):
            places = source.locate(file, positions)
        for row, place in zip(rows, places, strict=True):
            yield Reject(source.files[file].name, place, reason, messages[row][:300])


def encode_chunk(plan: BuildPlan, placed: KeyedChunk) -> Frames:
    """Encodes records as TFRecord frames. Serialized records are framed as they are.

    Raises:
        DataError: A record is larger than MAX_RECORD_BYTES, or an Example can't contain it.
    """
    if isinstance(placed.records, pa.RecordBatch):
        frames = encode_batch(placed.records, plan.schema)
    else:
        frames = frame_payloads(placed.records.data, np.ascontiguousarray(placed.records.offsets))
    if len(frames) != placed.rows:
        raise DataError(
            f"{placed.rows} rows became {len(frames)} records", source=_source(plan).kind
        )
    if (large := find_oversized_record(frames)) is not None:
        source = _source(plan).files[int(placed.file_ids[large])].name
        raise DataError(
            describe_oversized_record(frames, large),
            source=source,
            place=f"record {int(placed.positions[large])}",
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
    plan: BuildPlan, sketches: SketchPool | None, placed: KeyedChunk
) -> Mapping[str, int]:
    """Adds the values of the records to the statistics.

    Args:
        sketches: The statistics, or None to do nothing.
        placed: The encoded records.

    Returns:
        Number of records that the statistics leave out, for each message to the user.
    """
    if sketches is None:
        return {}
    payloads = placed.records
    if not isinstance(payloads, pa.RecordBatch) and plan.schema.message == OPAQUE_BYTES:
        with sketches.borrow() as sketch:
            sketch.add_flat(
                [payloads_to_flat(payloads.data, payloads.offsets, plan.schema)],
                placed.keys,
                placed.split_ids,
            )
        return {}
    placed, rejects = parsed(plan, placed)
    assert isinstance(placed.records, pa.RecordBatch)
    with sketches.borrow() as sketch:
        sketch.add(placed.records, placed.keys, placed.split_ids, placed.pixels)
    return Counter(_SKIP_NOTES[reject.reason] for reject in rejects)


def _is_large(chunk: Chunk) -> bool:
    """Returns whether the records have more than 1 MiB on average.

    After such records the memory pool must release its free blocks. It keeps them otherwise, and hardly ever finds
    another use for blocks of such sizes.
    """
    records = chunk.records
    return (records.nbytes if isinstance(records, pa.RecordBatch) else records.data.nbytes) > len(
        chunk.file_ids
    ) << 20


def _source(plan: BuildPlan) -> Source:
    assert plan.source is not None
    return plan.source


def _run_bytes(plan: BuildPlan, group: int, most_bytes: int) -> int:
    """Returns the memory for each sorted run of a group.

    A small group gets less than `most_bytes`: three times the size of its records, and 16 MiB.
    """
    expected = sum(_source(plan).units[number].size_bytes for number in plan.unit_groups[group])
    return min(most_bytes, 3 * expected + (16 << 20))


def find_oversized_record(frames: Frames) -> int | None:
    """Returns the index of the largest record if it exceeds MAX_RECORD_BYTES, else None."""
    return (
        int(np.argmax(frames.lengths))
        if len(frames) and int(frames.lengths.max()) > MAX_RECORD_BYTES
        else None
    )


def describe_oversized_record(frames: Frames, record: int) -> str:
    """Returns the error message for a record that is too large."""
    return (
        f"{int(frames.lengths[record])} bytes in one record, of which readers take {MAX_RECORD_BYTES} at "
        "most; divide it"
    )
