"""A plan whose inputs are a record each to stripes: consecutive files in the order of the data set, read, checked and
encoded on threads, and given in that order. Memory is bounded by the stripes at work, however many files there are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import Reject
from recordmill.base.siphash import U64
from recordmill.base.threads import thread_map
from recordmill.building.ingest import Placed, encode
from recordmill.building.plan import BuildPlan
from recordmill.records.tfrecord.frames import Frames
from recordmill.sources.inputs.contract import BATCH_BYTES, BATCH_FILES, Chunk, FileRecords

_COPIES = (
    3  # of a stripe's bytes that are in memory at once: what was read, its frames, and what is decoded to check it
)


@dataclass(frozen=True)
class Stripe:
    """Files of one split that follow each other in the data set. ordinals, keys: [files], in its order."""

    split: int
    ordinals: npt.NDArray[np.uint32]
    keys: U64
    size_bytes: int


@dataclass(frozen=True)
class Ready:
    """A stripe's records, and what was found out about its files.

    pieces: frames and their keys, in order. rejects: ordinal of the file and why it is none of the records. digests,
    counts: as in `Chunk`.
    """

    stripe: Stripe
    pieces: tuple[tuple[Frames, U64], ...]
    rejects: tuple[tuple[int, Reject], ...]
    digests: Mapping[int, str]
    counts: Mapping[str, int]


def stripes(plan: BuildPlan) -> list[Stripe]:
    """All files, by split, key and ordinal, in stripes of about a batch; one larger file is a stripe of its own."""
    assert plan.source is not None
    files = plan.source.files
    ordinals = np.arange(len(files), dtype=np.uint32)
    keys, splits = plan.ordering.place(None, ordinals, np.zeros(len(files), np.int64))
    order = np.lexsort((ordinals, keys, splits))
    ordinals, keys, splits = ordinals[order], keys[order], splits[order]
    sizes = files.sizes[order]
    batches = (np.cumsum(sizes) - sizes // 2) // BATCH_BYTES  # a file is in the batch in which its middle lies
    marks = np.stack([splits, batches, np.arange(len(files)) // BATCH_FILES])
    edges = np.flatnonzero(np.any(np.diff(marks, axis=1, prepend=-1), axis=0)).tolist()
    return [
        Stripe(int(splits[first]), ordinals[first:last], keys[first:last], int(sizes[first:last].sum()))
        for first, last in itertools.pairwise([*edges, len(files)])
    ]


def read_in_order(plan: BuildPlan, found: Sequence[Stripe]) -> Iterator[Ready]:
    """The stripes in their order, each read on one of the plan's threads.

    Raises:
        DataError: a file changed since it was listed, or can't be read.
    """
    return thread_map(
        lambda stripe: read_stripe(plan, stripe),
        found,
        plan.threads,
        weight=lambda stripe: _COPIES * stripe.size_bytes,
        room=plan.memory_bytes // 4,
    )


def read_stripe(plan: BuildPlan, stripe: Stripe) -> Ready:
    """Read, check and encode the stripe's files."""
    assert isinstance(plan.source, FileRecords)
    pieces: list[tuple[Frames, U64]] = []
    rejects: list[Reject] = []
    digests: dict[int, str] = {}
    counts: dict[str, int] = {}
    is_good = np.zeros(len(stripe.ordinals), np.bool_)
    done = 0
    for chunk in plan.source.read_files(stripe.ordinals.tolist()):
        rows = _rows(stripe, chunk, done)
        is_good[rows] = True
        keys = stripe.keys[rows]
        splits = np.full(len(rows), stripe.split, np.uint16)
        if len(rows):
            pieces.append((encode(plan, Placed(chunk.records, chunk.file, chunk.position, keys, splits)), keys))
        rejects += chunk.rejects
        digests.update(chunk.digests)
        for what, count in chunk.counts.items():
            counts[what] = counts.get(what, 0) + count
        done += len(rows) + len(chunk.rejects)
    bad = stripe.ordinals[~is_good].tolist()
    assert done == len(stripe.ordinals), "a file is one record or one reject"
    return Ready(stripe, tuple(pieces), tuple(zip(bad, rejects, strict=True)), digests, counts)


def _rows(stripe: Stripe, chunk: Chunk, done: int) -> npt.NDArray[np.int64]:
    """Where in the stripe the chunk's records stand, which are of the files behind the first `done`."""
    files = stripe.ordinals[done : done + chunk.rows + len(chunk.rejects)]
    rows = done + (np.flatnonzero(np.isin(files, chunk.file)) if chunk.rejects else np.arange(chunk.rows))
    assert np.array_equal(stripe.ordinals[rows], chunk.file), "files were read in another order"
    return rows
