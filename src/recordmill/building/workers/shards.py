"""One shard by whichever worker is free, under a name of the attempt; and its own name for the attempt that the engine
accounts for.

Attempts never share a name, so that one that was given up, and goes on writing, changes nothing that others read. Who
gives the names takes what was accounted, however often it is done.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from recordmill.base.errors import RecordmillError
from recordmill.base.progress import Progress
from recordmill.building.shard_writer import WrittenShard, write_shards
from recordmill.building.workers.runs import cut_slices, gather
from recordmill.building.workers.shared_files import (
    ATTEMPTS_FOLDER,
    NotSharedError,
    SharedFolder,
    SharedPlan,
    workbench,
)
from recordmill.building.workers.survey import Survey
from recordmill.shards.grammar import ShardName
from recordmill.shards.manifest import INDEX_FOLDER, ShardInfo, shard_name
from recordmill.storage.files import give_name, stat

_GATHERED = 4  # times a shard's bytes that are fetched whole; more, of one key's records, is read where it lies


@dataclass(frozen=True)
class ShardAttempt:
    """A shard of an attempt. files: (where it lies, its name below the data folder, size in bytes), the shard last."""

    shard: WrittenShard
    files: tuple[tuple[str, str, int], ...]


@dataclass(frozen=True)
class FinalShard:
    """A shard under its own name, below the data folder. sizes: of its files, by their names there."""

    split: int
    index: int
    info: ShardInfo
    sizes: tuple[tuple[str, int], ...]


def make_shard(plan: SharedPlan, survey: Survey, ordinal: int, progress: Progress) -> ShardAttempt:
    """Merge what the shard needs of all runs, and write it and its index.

    Raises:
        DataError: a record was damaged on its way here. NotSharedError: a run can't be seen on this worker.
    """
    layout, job_folder = survey.layout.load(), plan.job_folder
    shard, found = cut_slices(job_folder, layout.runs, layout.cuts, ordinal)
    with workbench(plan) as bench:
        data, scratch = Path(bench.folder, "data"), Path(bench.folder, "runs")
        size = sum(piece.frames_bytes for piece in found)
        weight = sum(piece.records for piece in found) if shard.by == "records" else size
        if job_folder.is_remote and weight <= _GATHERED * shard.weight:
            found = gather(found, str(scratch / "gathered"))
        name = ShardName(bench.splits[shard.split], shard.index, shard.of, bench.compression)
        memory = bench.memory_bytes // (2 * bench.threads)
        (made,) = write_shards(data, scratch, [name], shard, found, memory, progress)
        files = []
        for temporary, path in made.files:
            size = stat(str(temporary)).size_bytes
            files.append(
                (job_folder.hand_over(str(temporary), ATTEMPTS_FOLDER), path.relative_to(data).as_posix(), size)
            )
    return ShardAttempt(made.shard, tuple(files))


def gap_of(made: ShardAttempt) -> tuple[int, int] | None:
    """(split, index) of a shard that came out empty, of which the data set will have none."""
    return None if made.shard.info.records else (made.shard.split, made.shard.index)


def give_final_name(job_folder: SharedFolder, made: ShardAttempt, gaps: Iterable[tuple[int, int]]) -> FinalShard | None:
    """Give the files of the attempt that was accounted their names; None for an empty shard.

    gaps: all shards that came out empty: the names of those behind them close up.

    Raises:
        NotSharedError: this worker doesn't find a file that another has made.
    """
    shard = made.shard
    if not shard.info.records:
        return None
    empty = [index for split, index in gaps if split == shard.split]
    old = shard_name(shard.info)
    new = replace(old, index=old.index - sum(index < old.index for index in empty), of=old.of - len(empty))
    names = {
        str(old): str(new),
        f"{INDEX_FOLDER}/{old.index_name}": f"{INDEX_FOLDER}/{new.index_name}",
        f"{INDEX_FOLDER}/{old.members_name}": f"{INDEX_FOLDER}/{new.members_name}",
    }
    for path, name, size in made.files:
        target = job_folder.data(*names[name].split("/"))
        try:
            give_name(path, target, size)
        except FileNotFoundError:
            raise NotSharedError(path, job_folder.out) from None
        if (there := stat(target).size_bytes) != size:
            raise RecordmillError(f"{target}: {there} bytes, where {size} were written; nothing was committed")
    sizes = tuple((names[name], size) for _, name, size in made.files)
    return FinalShard(shard.split, new.index, replace(shard.info, name=str(new)), sizes)
