"""Compaction: the records of all parts of a data set become one part.

The records of the old shards are sorted and merged by their stored keys, as in a build. Payloads
are copied and never decoded. So the new shards have the bytes of one build of all inputs. With
`--key`, this requires unique values, because records with equal keys keep the order of their parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from recordmill.base.errors import DataError
from recordmill.base.progress import Progress
from recordmill.building.finish_build import (
    check_record_counts,
    compute_fingerprint,
    find_existing_commit,
    find_keep_generations,
    make_run_entry,
    publish_and_commit,
    renumber_shards,
)
from recordmill.building.ingest import IngestResult
from recordmill.building.local_build import sort_and_write
from recordmill.building.plan import BuildPlan
from recordmill.building.shard_boundaries import ShardOptions
from recordmill.building.shard_writer import FinishedShard
from recordmill.building.sorted_run import Histogram, KeyBuckets, SortedRun, SortedRunWriter
from recordmill.records.tfrecord.frames import FRAME_OVERHEAD_BYTES, FileFrames
from recordmill.schemas.splits import SPLIT_WORDS
from recordmill.schemas.tfmd import from_pbtxt
from recordmill.shards.catalog import ShardFile
from recordmill.shards.index import add_checksums, record_checksum
from recordmill.shards.manifest import (
    COMPACT,
    INPUTS_NAME,
    TRANSFORM_FOLDER,
    Manifest,
    Part,
    ShardInfo,
)
from recordmill.shards.rejects import RejectSummary
from recordmill.shards.run import RunFolder
from recordmill.shards.tfrecord_file import IndexedShard
from recordmill.storage.files import create_file, is_remote, read_blocks, sync_file, write_all
from recordmill.storage.folders import copy_tree, fetch_file, join, sync_tree

_COPY_BLOCK_BYTES = 1 << 20  # 1 MiB
_SPLIT_ORDER = tuple(dict.fromkeys(SPLIT_WORDS.values()))


@dataclass(frozen=True)
class Compaction:
    """A planned compaction.

    Attributes:
        plan: The plan of the new shards.
        manifest: The manifest of the generation with the old parts.
        files: The shards of all old parts, in reading order.
    """

    plan: BuildPlan
    manifest: Manifest
    files: tuple[ShardFile, ...]


@dataclass(frozen=True)
class _OldShard:
    """A shard of an old part.

    Attributes:
        file: The shard.
        split_id: Ordinal of its split.
        part: Ordinal of its part.
        first_record: Number of its first record in its split and part.
        key_offset: Number that is added to each key. Without shuffle, it lets the keys of a part
            continue those of the parts before it. With shuffle, it is 0.
    """

    file: IndexedShard
    split_id: int
    part: int
    first_record: int
    key_offset: int


def plan_compaction(
    manifest: Manifest,
    files: Sequence[ShardFile],
    folder: RunFolder,
    out: str,
    base: int,
    *,
    shard_options: ShardOptions | None,
    compression: str | None,
    threads: int,
    memory_bytes: int,
    keep_generations: int | None,
) -> Compaction:
    """Plans a compaction.

    Args:
        manifest: The manifest of the newest generation.
        files: All shards of it, in reading order.
        folder: The local run folder.
        out: The output folder or store URL.
        base: Number of the newest generation.
        shard_options: The number or size of the shards. None means the same as in the data set.
        compression: The compression of the shards. None means the same as in the data set.
        threads: The number of threads.
        memory_bytes: The memory limit of the compaction.
        keep_generations: The number of generations that are kept. None means as many as before.
    """
    options = manifest.options
    if shard_options is None:
        number, size = options.get("num_shards"), options.get("shard_bytes")
        shard_options = (
            ShardOptions(num_shards=number)
            if number is not None
            else ShardOptions()
            if size is None
            else ShardOptions(size)
        )
    split_names = _order_splits(manifest)
    framed_bytes = sum(shard.framed_bytes for *_, shard in manifest.shards())
    num_shards = shard_options.num_shards or framed_bytes // shard_options.shard_bytes + 1
    key_limit = 2**64 if options.get("shuffle", True) else max(_key_offsets(manifest)[-1], 1)
    plan = BuildPlan(
        folder=str(folder.path.absolute()),
        base_generation=base,
        schema=from_pbtxt(manifest.schema),
        split_names=split_names,
        key_buckets=KeyBuckets.for_shards(len(split_names), key_limit, num_shards),
        shard_options=shard_options,
        compression=compression or manifest.compression,
        threads=threads,
        memory_bytes=memory_bytes,
        name=manifest.name,
        store_url=out if is_remote(out) else "",
        keep_generations=keep_generations,
        expected_bytes=framed_bytes,
    )
    return Compaction(plan, manifest, tuple(files))


def compact_locally(compaction: Compaction, progress: Progress) -> Manifest:
    """Merges all parts on the threads of this process, and commits the result.

    Returns:
        The committed manifest.

    Raises:
        DataError: A record or an index is damaged. Nothing is committed.
        UsageError: A split has fewer records than shards.
        CommitConflict: Another run committed first.
    """
    plan, manifest = compaction.plan, compaction.manifest
    progress.begin("read", sum(manifest.records.values()))
    results, shards = sort_and_write(
        plan,
        enumerate(_group_shards(compaction)),
        lambda group: _sort_shards(plan, *group, progress),
        progress,
    )
    progress.begin_commit()
    return _commit(compaction, results, shards)


def _group_shards(compaction: Compaction) -> Iterator[list[_OldShard]]:
    """Yields groups of consecutive shards. The records of a group fill about one sorted run."""
    manifest, plan = compaction.manifest, compaction.plan
    split_ids = {name: split_id for split_id, name in enumerate(plan.split_names)}
    parts = {part.folder: number for number, part in enumerate(manifest.parts)}
    shuffles = manifest.options.get("shuffle", True)
    key_offsets = [0] * len(parts) if shuffles else _key_offsets(manifest)
    group, group_bytes = list[_OldShard](), 0
    counts: dict[tuple[str, str], int] = {}
    listed = zip(manifest.shards(), compaction.files, strict=True)
    for ordinal, ((split, part, info), file) in enumerate(listed):
        first_record = counts.get((split, part.folder), 0)
        counts[split, part.folder] = first_record + info.records
        number = parts[part.folder]
        if group and group_bytes + info.framed_bytes > plan.local_buffer_bytes:
            yield group
            group, group_bytes = [], 0
        group_bytes += info.framed_bytes
        group.append(
            _OldShard(
                IndexedShard(file, ordinal),
                split_id=split_ids[split],
                part=number,
                first_record=first_record,
                key_offset=key_offsets[number],
            )
        )
    if group:
        yield group


def _sort_shards(
    plan: BuildPlan, number: int, shards: Sequence[_OldShard], progress: Progress
) -> tuple[IngestResult, Histogram]:
    """Copies the records of some shards to sorted runs.

    Args:
        shards: Consecutive shards. Their records fill about one sorted run.
        progress: Receives the number of records.

    Returns:
        (result, histogram), as from `ingest`. The result counts the shards as one unit group.

    Raises:
        DataError: A record is damaged, or the keys differ from the manifest.
    """
    writer = SortedRunWriter(
        str(Path(plan.folder, "runs")), plan.key_buckets, plan.local_buffer_bytes
    )
    runs: list[SortedRun] = []
    for shard in shards:
        file, info = shard.file, shard.file.file.info
        assert info is not None
        all_keys, checksum = np.ascontiguousarray(file.index["key"]), 0
        for read in file.iter_reads(0, file.records):
            frames = read()
            keys = all_keys[frames.numbers]
            checksum = add_checksums(checksum, record_checksum(keys, frames.crcs))
            runs += _add_frames(writer, shard, frames, keys)
            progress.advance(len(keys))
        if f"{checksum:016x}" != info.sum:
            raise DataError(
                f"the sum of its records is {checksum:016x} where the manifest says {info.sum}: "
                "payloads or keys were changed",
                source=file.file.path,
            )
    if not writer.is_empty:
        runs.append(writer.finish())
    records = sum(shard.file.records for shard in shards)
    return IngestResult(number, tuple(runs), records, RejectSummary.empty()), writer.histogram


def _add_frames(
    writer: SortedRunWriter, shard: _OldShard, frames: FileFrames, keys: Any
) -> Iterator[SortedRun]:
    """Adds the frames of a shard to the writer.

    A generator: nothing is added unless it is consumed.

    Args:
        frames: Consecutive frames of the shard.
        keys: uint64 [frames]. The stored key of each record, without `shard.key_offset`.

    Yields:
        The sorted runs that were written to make room.

    Raises:
        DataError: The shard is damaged.
    """
    for damage in frames.damage:
        raise damage.error(shard.file.file.path)
    if len(frames.numbers) == 0:
        return
    sizes = frames.lengths + FRAME_OVERHEAD_BYTES
    begin = int(frames.starts[0])
    yield from writer.add(
        frames.data[begin : begin + int(sizes.sum())],
        sizes=sizes,
        crcs=frames.crcs,
        keys=keys + np.uint64(shard.key_offset),
        split_ids=np.full(len(keys), shard.split_id, np.uint16),
        # Records with equal keys stay in the order of their parts.
        file_ids=np.full(len(keys), shard.part, np.uint32),
        positions=shard.first_record + frames.numbers,
    )


def _commit(
    compaction: Compaction, results: Sequence[IngestResult], shards: Sequence[FinishedShard]
) -> Manifest:
    """Verifies the record counts, copies the other files of the data set, and commits.

    If this run has committed before, it returns that manifest.
    """
    plan, manifest = compaction.plan, compaction.manifest
    if (committed := find_existing_commit(plan)) is not None:
        return committed
    folder = RunFolder.attach(plan.folder)
    check_record_counts(sum(manifest.records.values()), 0, results, shards)
    shards_by_split = renumber_shards(plan, shards, folder.data)
    inputs = _copy_files(plan.out, manifest, folder.data)
    rejects = []
    for number, name in enumerate(manifest.rejects.get("files", ())):
        rejects.append(str(folder.rejects / f"{number}.jsonl"))
        fetch_file(join(plan.out, *name.split("/")), rejects[-1])
    return publish_and_commit(
        plan,
        rejects,
        lambda data_name, names: _make_manifest(
            compaction, data_name, shards_by_split, inputs, names
        ),
    )


def _copy_files(out: str, manifest: Manifest, data: Path) -> dict[str, Any]:
    """Copies statistics and transform, and joins the lists of inputs.

    Args:
        out: The output folder.
        manifest: The manifest of the old parts.
        data: The new data folder.

    Returns:
        The manifest's entry for the inputs.
    """
    for key in ("file", "sketch"):
        if key in manifest.statistics:
            name = manifest.statistics[key]["name"]
            fetch_file(join(out, manifest.statistics_folder, name), data / name)
            sync_file(data / name)
    if manifest.transform:
        copy_tree(join(out, manifest.transform_folder, TRANSFORM_FOLDER), data / TRANSFORM_FOLDER)
        sync_tree(data / TRANSFORM_FOLDER)
    lists = [
        join(out, part.folder, part.inputs["list"])
        for part in manifest.parts
        if "list" in part.inputs
    ]
    inputs = {
        name: sum(part.inputs.get(name, 0) for part in manifest.parts)
        for name in ("files", "bytes")
    }
    if not lists:
        return inputs
    with create_file(data / INPUTS_NAME) as file:
        for block in itertools.chain.from_iterable(
            read_blocks(path, _COPY_BLOCK_BYTES) for path in lists
        ):
            write_all(file, block)
    sync_file(data / INPUTS_NAME)
    return {**inputs, "list": INPUTS_NAME}


def _make_manifest(
    compaction: Compaction,
    data_name: str,
    shards_by_split: Mapping[str, tuple[ShardInfo, ...]],
    inputs: Mapping[str, Any],
    reject_files: Sequence[str],
) -> Manifest:
    plan, manifest = compaction.plan, compaction.manifest
    num_shards = plan.shard_options.num_shards
    options = {
        **manifest.options,
        "compression": plan.compression,
        "shard_bytes": None if num_shards else plan.shard_options.shard_bytes,
        "num_shards": num_shards,
    }
    part = Part(
        folder=data_name,
        kind=", ".join(dict.fromkeys(part.kind for part in manifest.parts)),
        splits=shards_by_split,
        inputs=inputs,
        records_read=sum(part.records_read for part in manifest.parts),
        records_rejected=sum(part.records_rejected for part in manifest.parts),
    )
    return replace(
        manifest,
        compression=plan.compression,
        options=options,
        parts=(part,),
        rejects={**manifest.rejects, "files": list(reject_files)},
        fingerprint=compute_fingerprint(options, plan.schema, inputs, shards_by_split),
        run=make_run_entry(
            RunFolder.attach(plan.folder).id,
            COMPACT,
            find_keep_generations(plan),
            threads=plan.threads,
            memory_bytes=plan.memory_bytes,
        ),
    )


def _order_splits(manifest: Manifest) -> tuple[str, ...]:
    """Returns the names of the splits in the order of a build.

    The declared splits come first, then train, validation and test, then the others by name.
    """
    declared = [*manifest.options.get("splits", ()), *_SPLIT_ORDER]
    rank = {name: number for number, name in reversed([*enumerate(declared)])}
    return tuple(sorted(manifest.splits, key=lambda name: (rank.get(name, len(declared)), name)))


def _key_offsets(manifest: Manifest) -> list[int]:
    """Returns the first key of each part in one build without shuffle, [parts + 1].

    Such keys are the numbers of the records in the order of reading. The last value is the number
    of all records.
    """
    counts = [part.records_read for part in manifest.parts]
    return [0, *itertools.accumulate(counts)]
