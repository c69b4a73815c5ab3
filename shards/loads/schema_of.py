"""What any TFRecord files hold: `Inference` over all their records, on threads, in bounded memory,
and the schema it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial, reduce

import numpy as np

from recordmill.base.threads import thread_map
from recordmill.records.inference.infer import Inference, infer
from recordmill.records.tfrecord.frames import HEADER_BYTES
from recordmill.schemas.feature import Schema
from recordmill.shards.catalog import ShardFile
from recordmill.shards.cutting import cut_files
from recordmill.shards.loads.batches import Load, blocks_of, loads
from recordmill.shards.loads.hints import find_hint, refine
from recordmill.shards.loads.salvage import Recovered, frames_of
from recordmill.shards.loads.sample import Sample, sample_loads


def infer_files(
    files: Sequence[ShardFile],
    *,
    threads: int = 1,
    lenient: bool = False,
    sample: Sample | None = None,
    progress: Callable[[int], None] | None = None,
) -> Inference:
    """What all records of the files are, or those of a sample, as a monoid's sum; CRCs are checked on the way.

    lenient: leave out what is damaged. progress: called with the number of records of each piece.

    Raises:
        DataError: a file is damaged, unless lenient.
    """
    work: Iterator[Iterable[Load]] = (
        _work(files, threads, lenient)
        if sample is None
        else ([load] for load in sample_loads(files, sample, lenient=lenient))
    )
    total = Inference()
    for part, records in thread_map(partial(_infer_loads, lenient=lenient), work, threads):
        total = total + part
        if progress is not None:
            progress(records)
    return total


def _work(files: Sequence[ShardFile], threads: int, lenient: bool) -> Iterator[Iterable[Load]]:
    """Loads that one thread counts: each by itself or, where there is a compressed file for each thread, all of one,
    which is inflated by the thread that counts it.
    """
    whole = sum(not file.codec.is_plain and file.index is None for file in files) >= threads
    for piece in cut_files(enumerate(files), lenient=lenient):
        found = loads(files, [piece], lenient=lenient)
        if piece.stop is None and whole:
            yield found
        else:
            yield from ([load] for load in found)


def infer_schema(
    files: Sequence[ShardFile],
    *,
    threads: int = 1,
    lenient: bool = False,
    sample: Sample | None = None,
    wanted: Collection[str] | None = None,
) -> tuple[Schema, list[str]]:
    """(the features of the files' records, or of a sample's, by what came along with them and fits; notes on that).

    lenient: of records that can be read. wanted: names of features; others may be of several kinds, and are left out
    then.
    """
    inference = infer_files(files, threads=threads, lenient=lenient, sample=sample)
    return schema_of(files, inference if wanted is None else inference.without_conflicts(wanted))


def schema_of(files: Sequence[ShardFile], inference: Inference) -> tuple[Schema, list[str]]:
    """(the schema of what was counted, made better by a hint beside the files; notes on that hint)."""
    schema = inference.schema()
    hint, notes = find_hint(files)
    if hint is None:
        return schema, notes
    refined, used = refine(schema, inference, hint)
    return refined, notes + used


def _infer_loads(work: Iterable[Load], *, lenient: bool) -> tuple[Inference, int]:
    total, records = Inference(), 0
    for load in work:
        part, count = _infer_load(load, lenient=lenient)
        total, records = total + part, records + count
    return total, records


def infer_frames(found: Recovered, name: str) -> Inference:
    """What these records are, of the file of that name."""
    runs = np.split(np.arange(len(found.numbers)), np.flatnonzero(np.diff(found.numbers) > 1) + 1)
    parts = (
        infer(
            found.data,
            found.starts[run] + HEADER_BYTES,
            found.lengths[run],
            source=name,
            first_record=int(found.numbers[run[0]]),
        )
        for run in runs
        if len(run)
    )
    return reduce(lambda one, other: one + other, parts, Inference())


def _infer_load(load: Load, *, lenient: bool) -> tuple[Inference, int]:
    if lenient:
        found = frames_of(load)
        return infer_frames(found, load.file.name), len(found.starts)
    blocks = blocks_of(load)
    parts = (
        infer(
            block.frames.data,
            block.frames.starts + HEADER_BYTES,
            block.frames.lengths,
            source=load.file.name,
            first_record=block.first_record,
        )
        for block in blocks
    )
    return reduce(lambda one, other: one + other, parts, Inference()), sum(len(block.frames) for block in blocks)
