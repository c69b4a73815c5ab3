"""Infers what any TFRecord files hold: `Inference` over all their records, on threads, in bounded memory, and the
schema it gives; or guessed from the first records of each, and the others decoded if they confirm it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial, reduce

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.threads import thread_map
from recordmill.records.inference.confirm import SchemaGuess, is_monotone
from recordmill.records.inference.infer import Inference, infer
from recordmill.records.tfrecord.frames import HEADER_BYTES
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema, check_feature_count
from recordmill.shards.catalog import ShardFile
from recordmill.shards.cutting import cut_files
from recordmill.shards.loading.batches import (
    Load,
    blocks_of,
    loads,
    max_record_bytes,
    refused_load,
    within_memory,
)
from recordmill.shards.loading.salvage import Recovered, frames_of
from recordmill.shards.loading.sample import Sample, sample_loads
from recordmill.shards.loading.schema_hints import find_contradictions, find_hint, refine_schema
from recordmill.shards.pieces import FrameBlock, stream


def infer_from_files(
    files: Sequence[ShardFile],
    *,
    threads: int = 1,
    lenient: bool = False,
    sample: Sample | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    bounded: bool = False,
) -> Inference:
    """Infers what all records of the files are, or those of a sample; CRCs are checked on the way.

    lenient: leave out what is damaged. memory_bytes: bounds features and, if lenient or bounded, a record.

    Raises:
        DataError: a file is damaged, unless lenient; there are too many features.
    """
    work: Iterator[Iterable[Load]] = (
        _work_items(files, threads, lenient)
        if sample is None
        else ([load] for load in sample_loads(files, sample, lenient=lenient))
    )
    total = Inference()
    infer_loads = partial(
        _infer_loads, lenient=lenient, bounded=bounded or lenient, memory_bytes=memory_bytes
    )
    for part in thread_map(infer_loads, work, threads):
        total = total + part
        check_feature_count(len(total.features), memory_bytes)
    return total


def _work_items(
    files: Sequence[ShardFile], threads: int, lenient: bool
) -> Iterator[Iterable[Load]]:
    """Loads that one thread counts: each by itself or, where there is a compressed file for each thread, all of one,
    which is inflated by the thread that counts it.
    """
    by_file = sum(not file.codec.is_plain and file.index_path is None for file in files) >= threads
    for piece in cut_files(enumerate(files), lenient=lenient):
        file_loads = loads(files, [piece], lenient=lenient)
        if piece.stop is None and by_file:
            yield file_loads
        else:
            yield from ([load] for load in file_loads)


def infer_schema(
    files: Sequence[ShardFile],
    *,
    threads: int = 1,
    lenient: bool = False,
    columns: Collection[str] | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> tuple[Schema, list[str]]:
    """(the features of the files' records, by what came along with them and fits; notes on that).

    lenient: of records that can be read. wanted: names of features; others may be of several kinds, and are left out
    then.
    """
    inference = infer_from_files(
        files, threads=threads, lenient=lenient, memory_bytes=memory_bytes, bounded=True
    )
    return refine_inferred(
        files, inference if columns is None else inference.without_conflicts(columns)
    )


def refine_inferred(files: Sequence[ShardFile], inference: Inference) -> tuple[Schema, list[str]]:
    """(the schema of what was counted, made better by a hint beside the files; notes on that hint)."""
    schema = inference.schema()
    hint, notes = find_hint(files)
    if hint is None:
        return schema, notes
    refined, hint_notes = refine_schema(schema, inference, hint)
    return refined, notes + hint_notes


def _infer_loads(
    work: Iterable[Load], *, lenient: bool, bounded: bool, memory_bytes: int
) -> Inference:
    total = Inference()
    for load in work:
        total = total + _infer_load(
            within_memory(load, memory_bytes) if bounded else load, lenient, memory_bytes
        )
    return total


def infer_frames(recovered: Recovered, name: str, memory_bytes: int) -> Inference:
    """Infers what these records are, of the file of that name."""
    total = Inference()
    for rows in np.split(
        np.arange(len(recovered.numbers)), np.flatnonzero(np.diff(recovered.numbers) > 1) + 1
    ):
        if len(rows):
            starts, first = recovered.starts[rows] + HEADER_BYTES, int(recovered.numbers[rows[0]])
            total += infer(
                recovered.data,
                starts,
                recovered.lengths[rows],
                source=name,
                first_record=first,
                memory_bytes=memory_bytes,
            )
    return total


def _infer_load(load: Load, lenient: bool, memory_bytes: int) -> Inference:
    if lenient:
        return infer_frames(frames_of(load), load.file.name, memory_bytes)
    if load.piece.fault:
        raise refused_load(load)
    total = Inference()
    for block in blocks_of(load):
        first_record, starts = block.first_record, block.frames.starts + HEADER_BYTES
        total += infer(
            block.frames.data,
            starts,
            block.frames.lengths,
            source=load.file.name,
            first_record=first_record,
            memory_bytes=memory_bytes,
        )
    return total


# 8 MiB of all files together: a fortieth of a second to count, and enough to meet what one record in some ten thousand
# has. Of few files more of each is looked at, since what differs mostly differs between files.
GUESS_BYTES = 8 << 20
_MIN_BYTES_PER_FILE = (
    64 << 10
)  # 64 KiB of a file: below it a read costs as much however little it reads
_MAX_GUESS_FILES = 64


def guess_schema(
    files: Sequence[ShardFile],
    *,
    threads: int,
    columns: Collection[str] | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> SchemaGuess | None:
    """The schema of the first records of the files; None where there are none, where they can't tell that of all, or
    where one is too large for the memory.

    wanted: as of `infer_schema`.
    """
    nonempty = [file for file in files if file.stat.size_bytes]
    count = min(len(nonempty), _MAX_GUESS_FILES)
    sampled_files = [nonempty[i * len(nonempty) // count] for i in range(count)]
    size = max(GUESS_BYTES // max(count, 1), _MIN_BYTES_PER_FILE)
    try:
        parts = thread_map(
            lambda file: _infer_first_records(file, size, max_record_bytes(memory_bytes)),
            sampled_files,
            threads,
        )
        inference = reduce(operator.add, parts, Inference())
        inference = inference if columns is None else inference.without_conflicts(columns)
        return _make_guess(files, inference) if is_monotone(inference) else None
    except DataError:
        return None  # reading all of them says what is wrong, and where


def _infer_first_records(file: ShardFile, batch_bytes: int, max_bytes: int) -> Inference:
    block = next(stream(file, batch_bytes=batch_bytes, max_record_bytes=max_bytes), None)
    if block is None:
        return Inference()
    frames = block.frames
    return infer(frames.data, frames.starts + HEADER_BYTES, frames.lengths, source=file.name)


def _make_guess(files: Sequence[ShardFile], inference: Inference) -> SchemaGuess | None:
    schema = inference.schema()
    empty = frozenset(
        inference.feature_name(*key)
        for key, counts in inference.features.items()
        if not counts.kinds
    )
    hint, notes = find_hint(files)
    if hint is None:
        return SchemaGuess(schema, tuple(notes), empty)
    if find_contradictions(schema, inference, hint):
        return None  # the note says which values do, of all records
    refined, hint_notes = refine_schema(schema, inference, hint)
    return SchemaGuess(refined, (*notes, *hint_notes), empty)


def confirm_load(load: Load, guess: SchemaGuess) -> list[pa.RecordBatch]:
    """Read if need be, and decode all features.

    Raises:
        Unconfirmed: a record is not what was guessed. DataError: one is damaged.
    """
    return [confirm_block(block, guess) for block in blocks_of(load)]


def confirm_block(block: FrameBlock, guess: SchemaGuess) -> pa.RecordBatch:
    """The block's records as columns of all features; as `confirm_load`."""
    frames = block.frames
    return guess.decode(frames.data, frames.starts + HEADER_BYTES, frames.lengths)


def select_features(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """The batch as the decoder gives it for these features, which are some of its own."""
    return (
        batch if batch.schema.names == list(schema.names) else _select_batch_columns(batch, schema)
    )


def _select_batch_columns(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    return batch.select(list(schema.names)).replace_schema_metadata(to_arrow(schema).metadata)
