"""What any TFRecord files hold: `Inference` over all their records, on threads, in bounded memory, and the schema it gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from recordmill.records.frames import HEADER_BYTES
from recordmill.records.infer import Inference, infer
from recordmill.schemas.feature import Schema
from recordmill.schemas.threads import thread_map
from recordmill.shards.batches import Load, loads
from recordmill.shards.catalog import ShardFile
from recordmill.shards.pieces import cut, read


def infer_files(files: Sequence[ShardFile], *, threads: int = 1, progress: Callable[[int], None] | None = None) -> Inference:
    """What all records of the files are, as a monoid's sum; CRCs are checked on the way.

    Raises:
        DataError: a file is damaged.
    """
    pieces = (piece for ordinal, file in enumerate(files) for piece in cut(file, ordinal))
    total = Inference()
    for part in thread_map(_infer_load, loads(files, pieces), threads):
        total = total + part
        if progress is not None:
            progress(part.records)
    return total


def infer_schema(files: Sequence[ShardFile], *, threads: int = 1) -> Schema:
    """The features of the files' records."""
    return infer_files(files, threads=threads).schema()


def _infer_load(load: Load) -> Inference:
    blocks = [load.block] if load.block is not None else read(load.file, load.piece)
    parts = (infer(block.frames.data, block.frames.starts + HEADER_BYTES, block.frames.lengths) for block in blocks)
    return reduce(lambda one, other: one + other, parts, Inference())
