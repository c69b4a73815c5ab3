"""Stripes in their order to shards, one after the other; cuts and rejects are those of any other build.

Sizes are known as records come, so shards of a size (`--shard-size`) are cut at once. How many records a split has is
known only when all its files were read: shards of a number (`--num-shards`) are cut as if none were a reject, and where
some were, what was written is cut anew, by a copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from recordmill.base.progress import Progress
from recordmill.base.siphash import U64
from recordmill.base.threads import thread_map
from recordmill.building.ingest import Ingested
from recordmill.building.plan import BuildPlan
from recordmill.building.shard_writer import UnsyncedShard, WrittenShard
from recordmill.building.straight.accounts import Accounts
from recordmill.building.straight.in_order import Stripe, read_in_order, stripes
from recordmill.building.straight.shards import ShardsInTurn
from recordmill.records.tfrecord.frames import Frames
from recordmill.records.tfrecord.shard_file import read_frames
from recordmill.shards.index import INDEX_DTYPE, map_table
from recordmill.sources.inputs.contract import FileRecords
from recordmill.storage.codecs import NONE, find_codec
from recordmill.storage.disk.past_cache import PastCache

_SYNCING = 4  # threads that only wait for the disk


def straight_stripes(plan: BuildPlan) -> list[Stripe] | None:
    """The stripes of a plan whose keys and splits are known before its files are read; None where they aren't, where
    shards are compressed, which needs a thread for each, and where there are more shards than files.
    """
    source, order, number = plan.source, plan.order, plan.shards.num_shards
    if not isinstance(source, FileRecords) or not source.is_record_per_file or plan.transform is not None:
        return None
    if order.key is not None or order.split_by is not None or not find_codec(plan.compression).is_plain:
        return None
    found = stripes(plan)
    few = number is not None and any(0 < files < number for files in files_by_split(plan, found))
    return None if few else found


def files_by_split(plan: BuildPlan, found: Sequence[Stripe]) -> list[int]:
    """[splits] how many files each has."""
    counts = [0] * len(plan.splits)
    for stripe in found:
        counts[stripe.split] += len(stripe.ordinals)
    return counts


def write_straight(
    plan: BuildPlan, found: Sequence[Stripe], progress: Progress
) -> tuple[list[Ingested], list[WrittenShard]]:
    """Read all files and write all shards; the accounts are those that `conclude` holds against each other.

    Raises:
        DataError: a file changed since it was listed, or can't be read. TooManyRejects: more than the build may have.
        UsageError: more shards are asked for than there are records, or than there may be.
    """
    files = files_by_split(plan, found)
    progress.begin("write", sum(files))
    accounts = Accounts(plan, progress)
    with _past_cache(plan) as past_cache, ShardsInTurn(plan, files, past_cache) as shards:
        pieces = (piece for ready in read_in_order(plan, found) for piece in accounts.take(ready))
        written = _synced(plan, shards.write(pieces))
        shards.check()
    if plan.shards.num_shards is not None:
        for split, lost in accounts.rejects_by_split().items():
            mine = [shard for shard in written if shard.shard.split == split]
            written = [shard for shard in written if shard.shard.split != split]
            written += _cut_anew(plan, split, files[split] - lost, mine, progress)
    return [accounts.ingested()], [shard.take_names() for shard in written]


def _past_cache(plan: BuildPlan) -> contextlib.AbstractContextManager[PastCache | None]:
    """How shards are written that must be on the disk in the end; what is put into a store is read again at once."""
    return contextlib.nullcontext() if plan.store else PastCache()


def _synced(plan: BuildPlan, shards: Iterable[UnsyncedShard]) -> list[UnsyncedShard]:
    """The shards when the disk has them; what is only put into a store need not wait for it."""
    return list(shards if plan.store else thread_map(UnsyncedShard.sync, shards, _SYNCING))


def _cut_anew(
    plan: BuildPlan, split: int, records: int, written: Sequence[UnsyncedShard], progress: Progress
) -> list[UnsyncedShard]:
    """The split's shards, cut for as many records as it has indeed."""
    counts = [records if number == split else 0 for number in range(len(plan.splits))]
    with _past_cache(plan) as past_cache, ShardsInTurn(plan, counts, past_cache) as shards:
        made = _synced(plan, shards.write(_written(split, written, progress)))
        shards.check()
    for shard in written:
        shard.remove()
    return made


def _written(split: int, written: Sequence[UnsyncedShard], progress: Progress) -> Iterator[tuple[int, Frames, U64]]:
    """The records of shards that have no name yet, in order."""
    for shard in sorted(written, key=lambda one: one.shard.index):
        keys = np.ascontiguousarray(map_table(str(shard.index_path), INDEX_DTYPE)["key"])
        for frames in read_frames(str(shard.path), source=shard.shard.info.name, compression=NONE, max_ratio=None):
            progress.advance()
            yield split, frames, keys[frames.first_record : frames.first_record + len(frames)]
