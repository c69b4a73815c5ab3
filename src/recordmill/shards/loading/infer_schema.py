"""Inference of the schema of TFRecord files.

There are two ways. The complete inference counts the features of all records, on threads and in
bounded memory. A guess uses the first records only, and each record has to confirm it when it is
decoded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import reduce

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.threads import thread_map
from recordmill.records.inference.confirm import SchemaGuess, can_guess_schema
from recordmill.records.inference.infer import Inference, infer
from recordmill.records.tfrecord.frames import HEADER_BYTES, FileFrames, stop_at_damage
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema, check_feature_count
from recordmill.shards.catalog import ShardFile
from recordmill.shards.cutting import cut_files
from recordmill.shards.loading.decode import max_record_bytes, refuse_beyond
from recordmill.shards.loading.sample import Sample, iter_sample_reads
from recordmill.shards.loading.schema_hints import (
    Hint,
    check_class_numbers,
    find_contradictions,
    find_hint,
    find_hinted_classes,
    refine_schema,
)
from recordmill.shards.pieces import FrameRead, iter_piece_reads, stream


def infer_from_files(
    files: Sequence[ShardFile],
    *,
    threads: int = 1,
    lenient: bool = False,
    sample: Sample | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    bounded: bool = False,
) -> Inference:
    """Counts the features of all records, or of a sample. CRCs are checked.

    Args:
        threads: Number of threads.
        lenient: If True, damaged records and records that are too large for the memory are left
            out.
        sample: The records to count. If None, all are counted.
        memory_bytes: Limits the number of features. If `lenient` or `bounded` is set, it also
            limits the size of a record.
        bounded: If True, a record that is too large for the memory is an error. `lenient` overrides
            it.

    Raises:
        DataError: A file is damaged and `lenient` is False, or there are too many features.
    """
    refuse = refuse_beyond(memory_bytes) if bounded or lenient else None
    work: Iterator[Iterable[FrameRead]] = (
        _group_reads(files, threads, refuse)
        if sample is None
        else ([read] for read in iter_sample_reads(files, sample))
    )

    def infer_reads(reads: Iterable[FrameRead]) -> Inference:
        parts = (read() for read in reads)
        total = Inference()
        for frames in parts if lenient else stop_at_damage(parts):
            total = total + infer_frames(frames, files[frames.file].name, memory_bytes)
        return total

    total = Inference()
    for part in thread_map(infer_reads, work, threads):
        total = total + part
        check_feature_count(len(total.features), memory_bytes)
    return total


def _group_reads(
    files: Sequence[ShardFile], threads: int, refuse: Callable[[int], str] | None
) -> Iterator[Iterable[FrameRead]]:
    """Yields groups of deferred reads. One thread counts a group.

    Usually a group is one read. If there are as many compressed streams as threads, all reads of a
    stream are one group.
    """
    # The thread that iterates over a stream decompresses it. With one stream per group, all threads
    # can decompress.
    by_file = sum(not file.codec.is_plain and file.index_path is None for file in files) >= threads
    for piece in cut_files(enumerate(files), lenient=True):
        reads = iter_piece_reads(files, [piece], refuse=refuse)
        if piece.stop is None and by_file:
            yield reads
        else:
            yield from ([read] for read in reads)


def infer_schema(
    files: Sequence[ShardFile],
    *,
    threads: int = 1,
    lenient: bool = False,
    columns: Collection[str] | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> tuple[Schema, list[str]]:
    """Infers the schema of all records.

    A schema file next to the files adds facts that the records do not show, such as class names.

    Args:
        threads: Number of threads.
        lenient: If True, damaged records are left out.
        columns: Names of the requested features. Any other feature may have values of several
            kinds, and is then left out. None means all.
        memory_bytes: Limits the number of features and the size of a record.

    Returns:
        The schema, and notes on the use of the schema file.

    Raises:
        DataError: A file is damaged and `lenient` is False, the records don't fit into the memory,
            or `refine_inferred` raises it.
    """
    inference = infer_from_files(
        files, threads=threads, lenient=lenient, memory_bytes=memory_bytes, bounded=True
    )
    return refine_inferred(
        files, inference if columns is None else inference.drop_conflicts(columns), columns
    )


def refine_inferred(
    files: Sequence[ShardFile], inference: Inference, columns: Collection[str] | None = None
) -> tuple[Schema, list[str]]:
    """Returns the schema for the counts of features.

    A schema file next to the files adds facts that the records do not show, such as class names.

    Args:
        columns: Names of the requested features. Any other feature may have different classes in
            different files. None requests all.

    Returns:
        The schema, and notes on the use of the schema file.

    Raises:
        DataError: Files have numbers of different classes.
    """
    schema = inference.to_schema()
    hint, notes = _find_consistent_hint(files, schema, columns)
    if hint is None:
        return schema, notes
    refined, hint_notes = refine_schema(schema, inference, hint)
    return refined, notes + hint_notes


def _find_consistent_hint(
    files: Sequence[ShardFile], schema: Schema, columns: Collection[str] | None
) -> tuple[Hint | None, list[str]]:
    """Returns the result of `find_hint`, and checks the class numbers of the files.

    Raises:
        DataError: Files have numbers of different classes.
    """
    hint, notes = find_hint(files)
    # Without notes there are no schema files, so no classes can differ.
    if hint is None and notes:
        requested = schema.names if columns is None else set(schema.names).intersection(columns)
        classes = find_hinted_classes(files)
        check_class_numbers(
            schema, {name: lists for name, lists in classes.items() if name in requested}
        )
    return hint, notes


def infer_frames(frames: FileFrames, name: str, memory_bytes: int) -> Inference:
    """Counts the features of good records.

    Args:
        frames: Frames of one file.
        name: Name of the file in messages.
        memory_bytes: Limits the number of features.
    """
    total = Inference()
    # `infer` names the record of an error by counting from `first_record`. So each call gets
    # consecutive records.
    for rows in np.split(np.arange(len(frames)), np.flatnonzero(np.diff(frames.numbers) > 1) + 1):
        if len(rows):
            total += infer(
                frames.data,
                frames.starts[rows] + HEADER_BYTES,
                frames.lengths[rows],
                source=name,
                first_record=int(frames.numbers[rows[0]]),
                memory_bytes=memory_bytes,
            )
    return total


# 8 MiB of all files together. Counting them takes 25 ms, and usually finds even features that only
# one record in about 10,000 has. If there are few files, more of each is read. Most differences are
# between files.
GUESS_BYTES = 8 << 20
# 64 KiB. A smaller read would not be faster.
_MIN_BYTES_PER_FILE = 64 << 10
_MAX_GUESS_FILES = 64


def guess_schema(
    files: Sequence[ShardFile],
    *,
    threads: int,
    columns: Collection[str] | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> SchemaGuess | None:
    """Guesses the schema from the first records of some of the files.

    Args:
        threads: Number of threads.
        columns: See `infer_schema`.
        memory_bytes: Limits the size of a record.

    Returns:
        The guess. None if there are no records, if the first records don't determine a schema, or
        if one of them is damaged or too large.

    Raises:
        DataError: Files have numbers of different classes.
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
        inference = inference if columns is None else inference.drop_conflicts(columns)
        if not can_guess_schema(inference):
            return None
        schema = inference.to_schema()
    except DataError:
        # The complete inference that follows will find this again, and its error names the place.
        return None
    return _make_guess(files, inference, schema, columns)


def _infer_first_records(file: ShardFile, batch_bytes: int, max_bytes: int) -> Inference:
    parts = stream(file, batch_bytes=batch_bytes, max_record_bytes=max_bytes)
    frames = next(stop_at_damage(parts), None)
    return Inference() if frames is None else infer_frames(frames, file.name, DEFAULT_MEMORY_BYTES)


def _make_guess(
    files: Sequence[ShardFile],
    inference: Inference,
    schema: Schema,
    columns: Collection[str] | None,
) -> SchemaGuess | None:
    empty = frozenset(
        inference.feature_name(*key)
        for key, counts in inference.features.items()
        if not counts.kinds
    )
    hint, notes = _find_consistent_hint(files, schema, columns)
    if hint is None:
        return SchemaGuess(schema, tuple(notes), empty)
    if find_contradictions(schema, inference, hint):
        # The full inference counts all records, so its note can name the contradicting values.
        return None
    refined, hint_notes = refine_schema(schema, inference, hint)
    return SchemaGuess(refined, (*notes, *hint_notes), empty)


def confirm_frames(frames: FileFrames, guess: SchemaGuess) -> pa.RecordBatch:
    """Decodes all features with a guessed schema.

    Raises:
        SchemaNotConfirmed: A record contradicts the guess.
        DataError: A record is damaged.
    """
    (batch,) = (
        guess.decode(part.data, part.starts + HEADER_BYTES, part.lengths)
        for part in stop_at_damage([frames])
    )
    return batch


def select_features(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """Selects the columns of a batch that belong to a schema.

    The batch must contain all features of the schema. The result has the order of the schema, and
    equals the result of decoding with it.
    """
    if batch.schema.names == list(schema.names):
        return batch
    return batch.select(list(schema.names)).replace_schema_metadata(to_arrow(schema).metadata)
