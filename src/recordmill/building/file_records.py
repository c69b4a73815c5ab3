"""Build without a sort, for inputs with one record per file, such as images.

The key of such a record depends only on the name of its file, so it is known before the file is read. Threads read and
encode the files in the order of their keys, and the shards are written one after the other, in one process. The bytes
of the shards are the same as with a sort.
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
from recordmill.records.tfrecord.frames import FRAME_OVERHEAD_BYTES, Frames
from recordmill.records.tfrecord.stream import read_frames
from recordmill.shards.file_names import ShardName
from recordmill.shards.index import INDEX_DTYPE, add_checksums, map_table, record_checksum
from recordmill.shards.rejects import RejectSummary, RejectWriter
from recordmill.sources.common.contract import BATCH_BYTES, BATCH_FILES, Chunk, FileRecordSource
from recordmill.statistics.dataset_sketch import SketchPool
from recordmill.storage.codecs import UNCOMPRESSED, find_codec
from recordmill.storage.direct_io import DirectFiles

# copies of a batch in memory at once: its files, their frames, and the images decoded for a check
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
        frame_batches: (frames, keys) in the order of the keys.
        rejects: (ordinal of the file, reject) of each file that can't be used.
        note_counts: Number of records for each message to the user.
    """

    file_batch: FileBatch
    frame_batches: tuple[tuple[Frames, U64], ...]
    rejects: tuple[tuple[int, Reject], ...]
    note_counts: Mapping[str, int]


def make_file_batches(plan: BuildPlan) -> list[FileBatch]:
    """Divides all input files into batches, ordered by split, key and ordinal.

    A batch has about BATCH_BYTES, at most BATCH_FILES files, and one split. A larger file is a batch by itself.
    """
    assert plan.source is not None
    files = plan.source.files
    ordinals = np.arange(len(files), dtype=np.uint32)
    keys, splits = plan.key_assigner.assign(None, ordinals, np.zeros(len(files), np.int64))
    order = np.lexsort((ordinals, keys, splits))
    ordinals, keys, splits = ordinals[order], keys[order], splits[order]
    sizes = files.sizes[order]
    batches = (
        np.cumsum(sizes) - sizes // 2
    ) // BATCH_BYTES  # the middle of a file determines its batch
    marks = np.stack([splits, batches, np.arange(len(files)) // BATCH_FILES])
    edges = np.flatnonzero(np.any(np.diff(marks, axis=1, prepend=-1), axis=0)).tolist()
    return [
        FileBatch(
            int(splits[first]), ordinals[first:last], keys[first:last], int(sizes[first:last].sum())
        )
        for first, last in itertools.pairwise([*edges, len(files)])
    ]


def read_in_order(
    plan: BuildPlan, found: Sequence[FileBatch], sketches: SketchPool | None = None
) -> Iterator[EncodedBatch]:
    """Reads and encodes the batches in threads, and yields them in their order.

    The batches that are read ahead take at most a quarter of the plan's memory.

    Args:
        sketches: The statistics that receive the values, or None.

    Raises:
        DataError: A file can't be read, or has changed since the plan.
    """
    return thread_map(
        lambda file_batch: read_file_batch(plan, file_batch, sketches),
        found,
        plan.threads,
        item_bytes=lambda file_batch: _COPIES_PER_BATCH * file_batch.size_bytes,
        max_bytes=plan.memory_bytes // 4,
    )


def read_file_batch(
    plan: BuildPlan, file_batch: FileBatch, sketches: SketchPool | None = None
) -> EncodedBatch:
    """Reads and encodes the files of a batch.

    Args:
        sketches: The statistics that receive the values, or None.
    """
    assert isinstance(plan.source, FileRecordSource)
    pieces: list[tuple[Frames, U64]] = []
    rejects: list[Reject] = []
    counts: Counter[str] = Counter()
    is_good = np.zeros(len(file_batch.file_ids), np.bool_)
    done = 0
    for chunk in plan.source.read_files(file_batch.file_ids.tolist()):
        rows = _rows(file_batch, chunk, done)
        is_good[rows] = True
        keys = file_batch.keys[rows]
        splits = np.full(len(rows), file_batch.split_id, np.uint16)
        if len(rows):
            placed = KeyedChunk(
                chunk.records, chunk.file_ids, chunk.positions, keys, splits, chunk.pixel_sums
            )
            pieces.append((encode_chunk(plan, placed), keys))
            counts.update(update_statistics(plan, sketches, placed))
        rejects += chunk.rejects
        counts.update(chunk.note_counts)
        done += len(rows) + len(chunk.rejects)
    bad = file_batch.file_ids[~is_good].tolist()
    assert done == len(file_batch.file_ids), "a file is one record or one reject"
    return EncodedBatch(file_batch, tuple(pieces), tuple(zip(bad, rejects, strict=True)), counts)


def _rows(file_batch: FileBatch, chunk: Chunk, done: int) -> npt.NDArray[np.int64]:
    """Returns the indices in the batch of the records of a chunk.

    Args:
        file_batch: The files that are read.
        chunk: The next chunk of these files.
        done: The number of files in the chunks before it.
    """
    files = file_batch.file_ids[done : done + chunk.rows + len(chunk.rejects)]
    # the chunk covers as many consecutive files as it has records and rejects
    rows = done + (
        np.flatnonzero(np.isin(files, chunk.file_ids)) if chunk.rejects else np.arange(chunk.rows)
    )
    assert np.array_equal(file_batch.file_ids[rows], chunk.file_ids), (
        "files were read in another order"
    )
    return rows


class FileTotals:
    """Record counts, checksum and rejects of the batches that were written.

    Attributes:
        rejected_by_split: Number of rejected files in each split, by the ordinal of the split.
    """

    def __init__(self, plan: BuildPlan, progress: Progress) -> None:
        self._plan, self._progress = plan, progress
        self._make_rejects: list[tuple[int, Reject]] = []  # (ordinal of the file, reject)
        self._rejected = RejectSummary.empty()
        self.rejected_by_split: Counter[int] = Counter()
        self._read, self._records, self._bytes, self._sum = 0, 0, 0, 0
        self._counts: Counter[str] = Counter()

    def add(self, ready: EncodedBatch) -> Iterator[tuple[int, Frames, U64]]:
        """Adds a batch, and yields the (split, frames, keys) to write.

        Raises:
            TooManyRejects: The rejects exceed the budget by far, so that the build need not go on.
            RunCancelled: The user has stopped the build.
        """
        self._read += len(ready.file_batch.file_ids)
        self._counts.update(ready.note_counts)
        if ready.rejects:
            self._make_rejects += ready.rejects
            found = [reject for _, reject in ready.rejects]
            self._rejected += RejectSummary(
                Counter(reject.reason for reject in found), tuple(found)
            )
            self.rejected_by_split[ready.file_batch.split_id] += len(found)
            if self._plan.max_rejects is not None:
                self._rejected.check_limit(self._plan.max_rejects)
        for frames, keys in ready.frame_batches:
            self._records += len(frames)
            self._bytes += int(np.sum(frames.lengths)) + FRAME_OVERHEAD_BYTES * len(frames)
            self._sum = add_checksums(self._sum, record_checksum(keys, frames.crcs))
            self._progress.advance(len(frames))
            yield ready.file_batch.split_id, frames, keys
        self._progress.advance(0, len(ready.rejects))

    def finish(self) -> IngestResult:
        """Writes the reject file and returns the totals as the result of one group."""
        writer = RejectWriter(Path(self._plan.folder, "rejects", "files.jsonl"))
        # files arrive in the order of their keys, but users expect the order of the inputs
        writer.write(reject for _, reject in sorted(self._make_rejects, key=lambda one: one[0]))
        run = SortedRun("", self._records, self._bytes, 0, 0, self._sum)
        return IngestResult(0, (run,), self._read, writer.close(), self._counts)


class SequentialShards:
    """Writer of shards for records that arrive ordered by split and key.

    Use it as a context manager: an error closes the shard that is open. The shards are named "... of MAX_SHARDS",
    because their number is not known before the end.

    Args:
        records: The number of records of each split. It is used only if the plan has a number of shards.
        past_cache: The writer of files that bypass the page cache, or None for ordinary files.

    Raises:
        UsageError: A split has fewer records than shards.
    """

    def __init__(
        self, plan: BuildPlan, records: Sequence[int], past_cache: DirectFiles | None
    ) -> None:
        self._plan, self._direct_writer, number = plan, past_cache, plan.shard_options.num_shards
        self._edges = [
            np.array(divide_records(count, number, name), np.int64)
            if number is not None and count
            else None
            for count, name in zip(records, plan.split_names, strict=True)
        ]
        self._weights = [0] * len(records)  # of each split so far: records, or framed bytes
        self._open: ShardWriter | None = None
        self._at = (-1, -1)  # split and number of the open shard

    def __enter__(self) -> SequentialShards:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._open is not None:
            self._open.abort()

    def write(self, pieces: Iterable[tuple[int, Frames, U64]]) -> Iterator[StagedShard]:
        """Writes records and yields each shard when it is complete, except empty ones.

        Args:
            pieces: (split, frames, keys), ordered by split and key.

        Raises:
            DataError: A record was damaged since it was encoded.
        """
        for split, frames, keys in pieces:
            numbers = self._numbers(split, frames)
            edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
            for first, last in itertools.pairwise(edges):
                number = int(numbers[first])
                if number >= MAX_SHARDS:  # `check` raises the error when the total size is known
                    continue
                if self._at != (split, number):
                    yield from self._finish()
                    # the number of shards is not known yet; `commit_local_build` renames them
                    name = ShardName(self._plan.split_names[split], number, MAX_SHARDS, "none")
                    self._open = ShardWriter(
                        Path(self._plan.folder, "data"), name, split, number, self._direct_writer
                    )
                    self._at = (split, number)
                assert self._open is not None
                begin, end = (
                    int(frames.starts[first]),
                    int(frames.starts[last - 1] + frames.lengths[last - 1]),
                )
                self._open.add(
                    verify_frames(frames.data[begin : end + FRAME_OVERHEAD_BYTES], self._open),
                    keys[first:last],
                )
        yield from self._finish()

    def check(self) -> None:
        """Raises UsageError if a split needs more than MAX_SHARDS shards. Call it after `write`."""
        if self._plan.shard_options.num_shards is None:
            for size, name in zip(self._weights, self._plan.split_names, strict=True):
                check_shard_count(size, self._plan.shard_options, name)

    def _numbers(self, split: int, frames: Frames) -> npt.NDArray[np.int64]:
        """Returns the shard index of each record, and adds the records to the weights."""
        edges = self._edges[split]
        weights = (
            np.ones(len(frames), np.int64)
            if edges is not None
            else frames.lengths + FRAME_OVERHEAD_BYTES
        )
        # the first byte of a record determines its shard, as in `compute_boundaries`
        begins = self._weights[split] + np.cumsum(weights) - weights
        self._weights[split] += int(weights.sum())
        if edges is None:
            return np.asarray(begins // self._plan.shard_options.shard_bytes)
        return np.searchsorted(edges, begins, side="right") - 1

    def _finish(self) -> Iterator[StagedShard]:
        if self._open is not None:
            shard, self._open = self._open, None
            yield shard.finish()


_SYNC_THREADS = 4  # threads; they only wait for the disk


def plan_without_sort(plan: BuildPlan) -> list[FileBatch] | None:
    """Returns the batches of a build that needs no sort, otherwise None.

    Each file must be one record, without a transform. Keys and splits must not depend on columns. Each split must have
    at least as many files as shards. Shards must not be compressed, because compression needs a thread for each shard.
    """
    source, order, number = plan.source, plan.key_options, plan.shard_options.num_shards
    if (
        not isinstance(source, FileRecordSource)
        or not source.is_record_per_file
        or plan.transform is not None
    ):
        return None
    if order.columns or not find_codec(plan.compression).is_plain:
        return None
    found = make_file_batches(plan)
    few = number is not None and any(
        0 < files < number for files in count_files_by_split(plan, found)
    )
    return None if few else found


def count_files_by_split(plan: BuildPlan, found: Sequence[FileBatch]) -> list[int]:
    """Returns the number of files of each split."""
    counts = [0] * len(plan.split_names)
    for file_batch in found:
        counts[file_batch.split_id] += len(file_batch.file_ids)
    return counts


def write_file_records(
    plan: BuildPlan,
    found: Sequence[FileBatch],
    progress: Progress,
    sketches: SketchPool | None = None,
) -> tuple[list[IngestResult], list[FinishedShard]]:
    """Writes all shards of a build without a sort.

    Args:
        found: The batches from `plan_without_sort`.
        sketches: The statistics that receive the values, or None.

    Returns:
        (totals, shards) for `commit_local_build`: one `IngestResult` in a list, and all shards. On a disk, the shards are durable.

    Raises:
        DataError: A file can't be read, or has changed since the plan.
        TooManyRejects: The rejects exceed the budget by far.
        UsageError: A split has fewer records than shards, or needs more than MAX_SHARDS shards.
    """
    files = count_files_by_split(plan, found)
    progress.begin("write", sum(files))
    totals = FileTotals(plan, progress)
    with _direct_writer(plan) as past_cache, SequentialShards(plan, files, past_cache) as shards:
        pieces = (
            piece for ready in read_in_order(plan, found, sketches) for piece in totals.add(ready)
        )
        written = _sync_all(plan, shards.write(pieces))
        shards.check()
    # The edges were computed from the number of files. Rejects leave the last shards short or empty.
    if plan.shard_options.num_shards is not None:
        for split, lost in totals.rejected_by_split.items():
            mine = [shard for shard in written if shard.shard.split_id == split]
            written = [shard for shard in written if shard.shard.split_id != split]
            written += _redistribute(plan, split, files[split] - lost, mine, progress)
    return [totals.finish()], [shard.rename_to_final() for shard in written]


def _direct_writer(plan: BuildPlan) -> contextlib.AbstractContextManager[DirectFiles | None]:
    """Returns a writer that bypasses the page cache, or None for a store.

    Shards for a store are read again at once for the upload, so the cache helps.
    """
    return contextlib.nullcontext() if plan.store_url else DirectFiles()


def _sync_all(plan: BuildPlan, shards: Iterable[StagedShard]) -> list[StagedShard]:
    """Makes the shards durable while later ones are written. Uploads don't need this."""
    return list(shards if plan.store_url else thread_map(StagedShard.sync, shards, _SYNC_THREADS))


def _redistribute(
    plan: BuildPlan, split: int, records: int, written: Sequence[StagedShard], progress: Progress
) -> list[StagedShard]:
    """Divides a split into shards again, after rejects have changed its record count.

    Reads the records from the first version of the shards, and removes it.
    """
    counts = [records if number == split else 0 for number in range(len(plan.split_names))]
    with _direct_writer(plan) as past_cache, SequentialShards(plan, counts, past_cache) as shards:
        made = _sync_all(plan, shards.write(_written(split, written, progress)))
        shards.check()
    for shard in written:
        shard.remove()
    return made


def _written(
    split: int, written: Sequence[StagedShard], progress: Progress
) -> Iterator[tuple[int, Frames, U64]]:
    """Yields the records of the shards in order, as `SequentialShards.write` takes them."""
    for shard in sorted(written, key=lambda one: one.shard.index):
        keys = np.ascontiguousarray(map_table(str(shard.index_path), INDEX_DTYPE)["key"])
        for frames in read_frames(
            str(shard.path), source=shard.shard.info.name, compression=UNCOMPRESSED, max_ratio=None
        ):
            progress.advance()
            yield split, frames, keys[frames.first_record : frames.first_record + len(frames)]
