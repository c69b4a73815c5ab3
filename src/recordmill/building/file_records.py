"""Build without a sort, for inputs with one record per file, such as images.

The key of such a record depends only on the name of its file, so it is known before the file is
read. One process does the entire build: threads read and encode the files in the order of their
keys, and the shards are written one after the other. The bytes of the shards are the same as with a
sort.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import Reject
from recordmill.base.progress import Progress
from recordmill.base.siphash import U64
from recordmill.base.threads import thread_map
from recordmill.building.ingest import IngestResult, KeyedChunk, encode_chunk, update_statistics
from recordmill.building.plan import BuildPlan
from recordmill.building.shard_boundaries import MAX_SHARDS, check_shard_count, divide_records
from recordmill.building.shard_writer import FinishedShard, ShardWriter, StagedShard, verify_frames
from recordmill.building.sorted_run import SortedRun
from recordmill.records.tfrecord.frames import FRAME_OVERHEAD_BYTES, Frames, stop_at_damage
from recordmill.records.tfrecord.stream import read_frames
from recordmill.shards.file_names import ShardName
from recordmill.shards.index import INDEX_DTYPE, add_checksums, map_table, record_checksum
from recordmill.shards.rejects import RejectSummary, RejectWriter
from recordmill.sources.common.contract import BATCH_BYTES, BATCH_FILES, Chunk, FileRecordSource
from recordmill.statistics.dataset_sketch import SketchPool
from recordmill.storage.codecs import UNCOMPRESSED, find_codec
from recordmill.storage.direct_io import DirectFiles

# Memory of a batch, as a multiple of its file sizes: the files, their frames, and the images that
# are decoded for a check.
_COPIES_PER_BATCH = 3


@dataclass(frozen=True)
class FileBatch:
    """Files of one split that are read together, in the order of their keys.

    Attributes:
        split_id: Ordinal of the split.
        file_ids: [files] uint32, indices into `Source.files`.
        keys: [files] uint64, ascending.
        size_bytes: Total size of the files.
    """

    split_id: int
    file_ids: npt.NDArray[np.uint32]
    keys: U64
    size_bytes: int


@dataclass(frozen=True)
class EncodedBatch:
    """The encoded records of a FileBatch.

    Attributes:
        file_batch: The files.
        frame_batches: (frames, keys of their records) of consecutive records, in the order of the
            keys.
        rejects: (file id, reject) of each file that can't be used.
        note_counts: Messages to the user, each with the number of records that it is about.
    """

    file_batch: FileBatch
    frame_batches: tuple[tuple[Frames, U64], ...]
    rejects: tuple[tuple[int, Reject], ...]
    note_counts: Mapping[str, int]


def make_file_batches(plan: BuildPlan) -> list[FileBatch]:
    """Divides all input files into batches, ordered by split, key and file id.

    A batch has at most BATCH_FILES files of one split, and about BATCH_BYTES. A file larger than
    BATCH_BYTES gets a separate batch.
    """
    assert plan.source is not None
    files = plan.source.files
    file_ids = np.arange(len(files), dtype=np.uint32)
    keys, split_ids = plan.key_assigner.assign(None, file_ids, np.zeros(len(files), np.int64))
    order = np.lexsort((file_ids, keys, split_ids))
    file_ids, keys, split_ids = file_ids[order], keys[order], split_ids[order]
    sizes = files.sizes[order]
    # The middle of a file determines its batch.
    batch_ids = (np.cumsum(sizes) - sizes // 2) // BATCH_BYTES
    boundaries = np.stack([split_ids, batch_ids, np.arange(len(files)) // BATCH_FILES])
    edges = np.flatnonzero(np.any(np.diff(boundaries, axis=1, prepend=-1), axis=0)).tolist()
    return [
        FileBatch(
            split_id=int(split_ids[begin]),
            file_ids=file_ids[begin:end],
            keys=keys[begin:end],
            size_bytes=int(sizes[begin:end].sum()),
        )
        for begin, end in itertools.pairwise([*edges, len(files)])
    ]


def read_in_order(
    plan: BuildPlan, file_batches: Sequence[FileBatch], sketches: SketchPool | None = None
) -> Iterator[EncodedBatch]:
    """Reads and encodes the batches in threads, and yields them in their order.

    The batches that are read ahead take at most a quarter of the plan's memory.

    Args:
        plan: The plan of the build.
        file_batches: The batches in the order of their keys.
        sketches: The statistics that receive the values, or None.

    Raises:
        DataError: A file can't be read, or has changed since the plan.
    """
    return thread_map(
        lambda file_batch: read_file_batch(plan, file_batch, sketches),
        file_batches,
        plan.threads,
        item_bytes=lambda file_batch: _COPIES_PER_BATCH * file_batch.size_bytes,
        max_bytes=plan.memory_bytes // 4,
    )


def read_file_batch(
    plan: BuildPlan, file_batch: FileBatch, sketches: SketchPool | None = None
) -> EncodedBatch:
    """Reads and encodes the files of a batch.

    Args:
        plan: The plan of the build. Its source must be a `FileRecordSource`.
        file_batch: The files.
        sketches: The statistics that receive the values, or None.

    Raises:
        DataError: A file can't be read, or has changed since the plan.
    """
    assert isinstance(plan.source, FileRecordSource)
    frame_batches: list[tuple[Frames, U64]] = []
    rejects: list[Reject] = []
    note_counts: Counter[str] = Counter()
    is_good = np.zeros(len(file_batch.file_ids), np.bool_)
    num_read = 0
    for chunk in plan.source.read_files(file_batch.file_ids.tolist()):
        rows = _find_rows(file_batch, chunk, num_read)
        is_good[rows] = True
        keys = file_batch.keys[rows]
        split_ids = np.full(len(rows), file_batch.split_id, np.uint16)
        if len(rows):
            keyed_chunk = KeyedChunk(
                chunk.records,
                file_ids=chunk.file_ids,
                positions=chunk.positions,
                keys=keys,
                split_ids=split_ids,
                pixel_sums=chunk.pixel_sums,
            )
            frame_batches.append((encode_chunk(plan, keyed_chunk), keys))
            note_counts.update(update_statistics(plan, sketches, keyed_chunk))
        rejects += chunk.rejects
        note_counts.update(chunk.note_counts)
        num_read += len(rows) + len(chunk.rejects)
    bad_files = file_batch.file_ids[~is_good].tolist()
    assert num_read == len(file_batch.file_ids), "a file is one record or one reject"
    return EncodedBatch(
        file_batch=file_batch,
        frame_batches=tuple(frame_batches),
        rejects=tuple(zip(bad_files, rejects, strict=True)),
        note_counts=note_counts,
    )


def _find_rows(file_batch: FileBatch, chunk: Chunk, num_read: int) -> npt.NDArray[np.int64]:
    """Returns the row in `file_batch` of each record of a chunk.

    Args:
        file_batch: The files that are read.
        chunk: The next chunk of these files. It has one record or one reject for each of the next
            files.
        num_read: The number of files in the chunks before this one.
    """
    files = file_batch.file_ids[num_read : num_read + chunk.rows + len(chunk.rejects)]
    # The chunk covers as many consecutive files as it has records and rejects.
    rows = num_read + (
        np.flatnonzero(np.isin(files, chunk.file_ids)) if chunk.rejects else np.arange(chunk.rows)
    )
    assert np.array_equal(file_batch.file_ids[rows], chunk.file_ids), (
        "files were read in another order"
    )
    return rows


class FileTotals:
    """Record counts, checksum and rejects of all batches that were added.

    Attributes:
        rejected_by_split: Number of rejected files in each split, by split id.
    """

    def __init__(self, plan: BuildPlan, progress: Progress) -> None:
        self._plan, self._progress = plan, progress
        # (file id, reject)
        self._rejects: list[tuple[int, Reject]] = []
        self._rejected = RejectSummary.empty()
        self.rejected_by_split: Counter[int] = Counter()
        self._records_read, self._records, self._bytes, self._checksum = 0, 0, 0, 0
        self._note_counts: Counter[str] = Counter()

    def add(self, batch: EncodedBatch) -> Iterator[tuple[int, Frames, U64]]:
        """Adds a batch to the totals, and yields its records as (split_id, frames, keys).

        A generator: nothing is added unless the caller consumes it.

        Raises:
            TooManyRejects: The rejects exceed the budget by far, so that the build need not go on.
            RunCancelled: The user has stopped the build.
        """
        self._records_read += len(batch.file_batch.file_ids)
        self._note_counts.update(batch.note_counts)
        if batch.rejects:
            self._rejects += batch.rejects
            rejects = [reject for _, reject in batch.rejects]
            self._rejected += RejectSummary(
                Counter(reject.reason for reject in rejects), tuple(rejects)
            )
            self.rejected_by_split[batch.file_batch.split_id] += len(rejects)
            if self._plan.max_rejects is not None:
                self._rejected.check_limit(self._plan.max_rejects)
        for frames, keys in batch.frame_batches:
            self._records += len(frames)
            self._bytes += int(np.sum(frames.lengths)) + FRAME_OVERHEAD_BYTES * len(frames)
            self._checksum = add_checksums(self._checksum, record_checksum(keys, frames.crcs))
            self._progress.advance(len(frames))
            yield batch.file_batch.split_id, frames, keys
        self._progress.advance(0, len(batch.rejects))

    def finish(self) -> IngestResult:
        """Writes the reject file and returns the totals.

        Returns:
            The totals, as if all files were one unit group with one sorted run.
        """
        writer = RejectWriter(Path(self._plan.folder, "rejects", "files.jsonl"))
        # Files arrive in the order of their keys, but users expect rejects in the order of the
        # inputs.
        writer.write(reject for _, reject in sorted(self._rejects, key=lambda pair: pair[0]))
        run = SortedRun(
            "",
            records=self._records,
            frames_bytes=self._bytes,
            begin_bucket=0,
            end_bucket=0,
            checksum=self._checksum,
        )
        return IngestResult(
            unit_group=0,
            sorted_runs=(run,),
            records_read=self._records_read,
            rejected=writer.close(),
            note_counts=self._note_counts,
        )


class SequentialShards:
    """Writer of shards for records that arrive ordered by split and key.

    The number of shards is unknown before the end. So the file names contain MAX_SHARDS as this
    number, and `commit_local_build` renames the files. Use the writer as a context manager: at the
    end it closes a shard that an error has left open.

    Args:
        plan: The plan of the build.
        records: The number of records of each split. It is ignored if the plan has no `num_shards`.
        direct_writer: The writer of files that bypass the page cache, or None for ordinary files.

    Raises:
        UsageError: A split has fewer records than shards.
    """

    def __init__(
        self, plan: BuildPlan, records: Sequence[int], direct_writer: DirectFiles | None
    ) -> None:
        self._plan = plan
        self._direct_writer = direct_writer
        num_shards = plan.shard_options.num_shards
        self._edges = [
            np.array(divide_records(count, num_shards, name), np.int64)
            if num_shards is not None and count
            else None
            for count, name in zip(records, plan.split_names, strict=True)
        ]
        # The size of each split so far: records, or bytes of frames.
        self._written_sizes = [0] * len(records)
        self._writer: ShardWriter | None = None
        # (split_id, index) of the open shard.
        self._current = (-1, -1)

    def __enter__(self) -> SequentialShards:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.abort()

    def write(self, frame_batches: Iterable[tuple[int, Frames, U64]]) -> Iterator[StagedShard]:
        """Writes records and yields each complete shard that has records.

        Args:
            frame_batches: (split_id, frames, keys), ordered by split and key.

        Raises:
            DataError: A record was damaged since it was encoded.
        """
        for split_id, frames, keys in frame_batches:
            shard_indices = self._assign_shards(split_id, frames)
            edges = [0, *(np.flatnonzero(np.diff(shard_indices)) + 1).tolist(), len(shard_indices)]
            for begin, end in itertools.pairwise(edges):
                shard_index = int(shard_indices[begin])
                # `check_shard_counts` raises the error when the total size is known.
                if shard_index >= MAX_SHARDS:
                    continue
                if self._current != (split_id, shard_index):
                    yield from self._finish()
                    # The number of shards is not known yet. `commit_local_build` renames them.
                    name = ShardName(
                        self._plan.split_names[split_id],
                        index=shard_index,
                        num_shards=MAX_SHARDS,
                        compression="none",
                    )
                    self._writer = ShardWriter(
                        Path(self._plan.folder, "data"),
                        name,
                        split_id=split_id,
                        index=shard_index,
                        direct_writer=self._direct_writer,
                    )
                    self._current = (split_id, shard_index)
                assert self._writer is not None
                begin_byte = int(frames.starts[begin])
                end_byte = (
                    int(frames.starts[end - 1] + frames.lengths[end - 1]) + FRAME_OVERHEAD_BYTES
                )
                self._writer.add(
                    verify_frames(
                        frames.data[begin_byte:end_byte],
                        self._writer,
                    ),
                    keys[begin:end],
                )
        yield from self._finish()

    def check_shard_counts(self) -> None:
        """Raises UsageError if a split needs more than MAX_SHARDS shards.

        Call it after `write`, which silently skips the records of further shards.
        """
        if self._plan.shard_options.num_shards is None:
            for size, name in zip(self._written_sizes, self._plan.split_names, strict=True):
                check_shard_count(size, self._plan.shard_options, name)

    def _assign_shards(self, split_id: int, frames: Frames) -> npt.NDArray[np.int64]:
        """Returns the index of each record's shard within the split.

        Also adds the records to the size of the split so far.
        """
        edges = self._edges[split_id]
        sizes = (
            np.ones(len(frames), np.int64)
            if edges is not None
            else frames.lengths + FRAME_OVERHEAD_BYTES
        )
        # The first byte of a record determines its shard, as in `compute_boundaries`.
        positions = self._written_sizes[split_id] + np.cumsum(sizes) - sizes
        self._written_sizes[split_id] += int(sizes.sum())
        if edges is None:
            return np.asarray(positions // self._plan.shard_options.shard_bytes)
        return np.searchsorted(edges, positions, side="right") - 1

    def _finish(self) -> Iterator[StagedShard]:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            yield writer.finish()


# Shards that are made durable at once. Each thread only waits for the disk.
_SYNC_THREADS = 4


def plan_without_sort(plan: BuildPlan) -> list[FileBatch] | None:
    """Returns the file batches of a build without a sort, or None.

    None means that the build needs a sort.

    A build needs no sort if all of these hold:

    * Each input file is one record, and there is no transform.
    * Keys and splits do not depend on columns, which are known only after a file is read.
    * Shards are not compressed, because compression needs a thread for each shard.
    * With `num_shards`, each split has at least as many files as shards.
    """
    source, options, num_shards = plan.source, plan.key_options, plan.shard_options.num_shards
    if (
        not isinstance(source, FileRecordSource)
        or not source.is_record_per_file
        or plan.transform is not None
    ):
        return None
    if options.columns or not find_codec(plan.compression).is_plain:
        return None
    file_batches = make_file_batches(plan)
    is_too_few = num_shards is not None and any(
        0 < files < num_shards for files in count_files_by_split(plan, file_batches)
    )
    return None if is_too_few else file_batches


def count_files_by_split(plan: BuildPlan, file_batches: Sequence[FileBatch]) -> list[int]:
    """Returns the number of files of each split, by split id."""
    counts = [0] * len(plan.split_names)
    for file_batch in file_batches:
        counts[file_batch.split_id] += len(file_batch.file_ids)
    return counts


def write_file_records(
    plan: BuildPlan,
    file_batches: Sequence[FileBatch],
    progress: Progress,
    sketches: SketchPool | None = None,
) -> tuple[list[IngestResult], list[FinishedShard]]:
    """Reads all files and writes all shards of a build without a sort.

    Args:
        plan: The plan of the build.
        file_batches: The batches from `plan_without_sort`.
        progress: Receives the number of written and rejected records.
        sketches: The statistics that receive the values, or None.

    Returns:
        ([totals], shards), the arguments of `commit_local_build`. The shards are under their final
        names. Unless the output is in a store, they are durable.

    Raises:
        DataError: A file can't be read, or has changed since the plan.
        TooManyRejects: The rejects exceed the budget by far.
        UsageError: A split has fewer records than shards, or needs more than MAX_SHARDS shards.
    """
    files_by_split = count_files_by_split(plan, file_batches)
    progress.begin("write", sum(files_by_split))
    totals = FileTotals(plan, progress)
    with (
        _open_direct_writer(plan) as direct_writer,
        SequentialShards(plan, files_by_split, direct_writer) as shards,
    ):
        frame_batches = (
            frame_batch
            for batch in read_in_order(plan, file_batches, sketches)
            for frame_batch in totals.add(batch)
        )
        staged = _sync_all(plan, shards.write(frame_batches))
        shards.check_shard_counts()
    # The edges were computed from the number of files. Rejects leave the last shards short or
    # empty, so the split is divided again.
    if plan.shard_options.num_shards is not None:
        for split_id, num_rejected in totals.rejected_by_split.items():
            split_shards = [shard for shard in staged if shard.shard.split_id == split_id]
            staged = [shard for shard in staged if shard.shard.split_id != split_id]
            staged += _redistribute(
                plan,
                split_id,
                records=files_by_split[split_id] - num_rejected,
                first_version=split_shards,
                progress=progress,
            )
    return [totals.finish()], [shard.rename_to_final() for shard in staged]


def _open_direct_writer(plan: BuildPlan) -> contextlib.AbstractContextManager[DirectFiles | None]:
    """Returns a context manager with a writer of files that bypass the page cache.

    For an output in a store it provides None, because shards are read again at once for the upload,
    and the page cache helps.
    """
    return contextlib.nullcontext() if plan.store_url else DirectFiles()


def _sync_all(plan: BuildPlan, staged: Iterable[StagedShard]) -> list[StagedShard]:
    """Returns all shards, after their files are durable on the disk.

    A thread waits for the disk while later shards are written. Shards for an upload need not be
    durable.
    """
    return list(staged if plan.store_url else thread_map(StagedShard.sync, staged, _SYNC_THREADS))


def _redistribute(
    plan: BuildPlan,
    split_id: int,
    records: int,
    first_version: Sequence[StagedShard],
    progress: Progress,
) -> list[StagedShard]:
    """Divides the records of a split among shards again.

    Rejects have changed the number of records since the first division.

    Args:
        plan: The plan of the build.
        records: The number of records of the split, without rejects.
        first_version: The shards that contain these records. They are removed at the end.
        progress: Is advanced, so that the user can stop the build.

    Returns:
        The new shards.
    """
    # The other splits get no shards from this writer.
    counts = [records if number == split_id else 0 for number in range(len(plan.split_names))]
    with (
        _open_direct_writer(plan) as direct_writer,
        SequentialShards(plan, counts, direct_writer) as shards,
    ):
        staged = _sync_all(plan, shards.write(_read_back(split_id, first_version, progress)))
        shards.check_shard_counts()
    for shard in first_version:
        # The old shards are removed last, because the new ones were read from them.
        shard.remove()
    return staged


def _read_back(
    split_id: int, staged: Sequence[StagedShard], progress: Progress
) -> Iterator[tuple[int, Frames, U64]]:
    """Yields (split_id, frames, keys) of staged shards in order.

    The items are the input of `SequentialShards.write`.
    """
    for staged_shard in sorted(staged, key=lambda shard: shard.shard.index):
        keys = np.ascontiguousarray(map_table(str(staged_shard.index_path), INDEX_DTYPE)["key"])
        for frames in stop_at_damage(
            read_frames(str(staged_shard.path), compression=UNCOMPRESSED, max_ratio=None)
        ):
            progress.advance()
            yield split_id, frames, keys[frames.numbers]
