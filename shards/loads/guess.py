"""What TFRecord files hold, guessed from the first records of each; and their records decoded if they confirm it.

A read that begins with a guess reads its files once. What a guess says is believed only when every record has confirmed
it; else all records are counted, as `schema_of` does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce

import pyarrow as pa

from recordmill.base.errors import DataError
from recordmill.base.threads import thread_map
from recordmill.records.inference.confirm import Guess, is_monotone
from recordmill.records.inference.infer import Inference, infer
from recordmill.records.tfrecord.frames import HEADER_BYTES
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.shards.catalog import ShardFile
from recordmill.shards.loads.batches import Load, blocks_of
from recordmill.shards.loads.hints import contradicted, find_hint, refine
from recordmill.shards.pieces import FrameBlock, stream

# 8 MiB of all files together: a fortieth of a second to count, and enough to meet what one record in some ten thousand
# has. Of few files more of each is looked at, since what differs mostly differs between files.
GUESSED_BYTES = 8 << 20
_LEAST_BYTES = 64 << 10  # 64 KiB of a file: below it a read costs as much however little it reads
_MOST_FILES = 64


def guess_schema(files: Sequence[ShardFile], *, threads: int, wanted: Collection[str] | None = None) -> Guess | None:
    """The schema of the first records of the files; None where there are none, or where they can't tell that of all.

    wanted: as of `infer_schema`.
    """
    held = [file for file in files if file.stat.size_bytes]
    count = min(len(held), _MOST_FILES)
    looked_at = [held[i * len(held) // count] for i in range(count)]
    size = max(GUESSED_BYTES // max(count, 1), _LEAST_BYTES)
    try:
        parts = thread_map(lambda file: _infer_first(file, size), looked_at, threads)
        inference = reduce(lambda one, other: one + other, parts, Inference())
        inference = inference if wanted is None else inference.without_conflicts(wanted)
        return _guess(files, inference) if is_monotone(inference) else None
    except DataError:
        return None  # reading all of them says what is wrong, and where


def _infer_first(file: ShardFile, size: int) -> Inference:
    block = next(stream(file, batch_bytes=size), None)
    if block is None:
        return Inference()
    frames = block.frames
    return infer(frames.data, frames.starts + HEADER_BYTES, frames.lengths, source=file.name)


def _guess(files: Sequence[ShardFile], inference: Inference) -> Guess | None:
    schema = inference.schema()
    empty = frozenset(name for (name, _), counts in inference.features.items() if not counts.kinds)
    hint, notes = find_hint(files)
    if hint is None:
        return Guess(schema, tuple(notes), empty)
    if contradicted(schema, inference, hint):
        return None  # the note says which values do, of all records
    refined, used = refine(schema, inference, hint)
    return Guess(refined, (*notes, *used), empty)


def confirm_load(load: Load, guess: Guess) -> list[pa.RecordBatch]:
    """Read if need be, and decode all features.

    Raises:
        Unconfirmed: a record is not what was guessed. DataError: one is damaged.
    """
    return [confirm_block(block, guess) for block in blocks_of(load)]


def confirm_block(block: FrameBlock, guess: Guess) -> pa.RecordBatch:
    """The block's records as columns of all features; as `confirm_load`."""
    frames = block.frames
    return guess.decode(frames.data, frames.starts + HEADER_BYTES, frames.lengths)


def selected(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """The batch as the decoder gives it for these features, which are some of its own."""
    return batch if batch.schema.names == list(schema.names) else _of(batch, schema)


def _of(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    return batch.select(list(schema.names)).replace_schema_metadata(to_arrow(schema).metadata)
