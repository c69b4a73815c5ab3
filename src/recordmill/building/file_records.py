"""Files that are a record each (images, documents) to shards in one process, in the order of their keys, without a
sort: keys are known from the names, so consecutive files of the data set are read, checked and encoded on threads, and
written to one shard after the other. Cuts, counts and rejects are those of any other build.
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
from recordmill.building.cuts import MOST_SHARDS, check_shard_bytes, record_edges
from recordmill.building.ingest import Ingested, KeyedChunk, count_values, encode_chunk
from recordmill.building.plan import BuildPlan
from recordmill.building.run_file import RunFile
from recordmill.building.shard_writer import OpenShard, UnsyncedShard, WrittenShard, checked_slices
from recordmill.records.tfrecord.frames import FRAME_BYTES, Frames
from recordmill.records.tfrecord.stream import read_frames
from recordmill.shards.grammar import ShardName
from recordmill.shards.index import INDEX_DTYPE, add_sums, map_table, record_sum
from recordmill.shards.rejects import Rejected, RejectWriter
from recordmill.sources.common.contract import BATCH_BYTES, BATCH_FILES, Chunk, FileRecords
from recordmill.statistics.dataset_sketch import SketchPool
from recordmill.storage.codecs import NONE, find_codec
from recordmill.storage.direct_io import DirectFiles

# of a file_batch's bytes that are in memory at once: what was read, its frames, and what is decoded to check it
_COPIES = 3


@dataclass(frozen=True)
class FileBatch:
    """Files of one split that follow each other in the data set. ordinals, keys: [files], in its order."""

    split: int
    ordinals: npt.NDArray[np.uint32]
    keys: U64
    size_bytes: int


@dataclass(frozen=True)
class Ready:
    """A file_batch's records, and what was found out about its files.

    pieces: frames and their keys, in order. rejects: ordinal of the file and why it is none of the records. counts: as
    in `Chunk`.
    """

    file_batch: FileBatch
    pieces: tuple[tuple[Frames, U64], ...]
    rejects: tuple[tuple[int, Reject], ...]
    counts: Mapping[str, int]


def file_batches(plan: BuildPlan) -> list[FileBatch]:
    """All files, by split, key and ordinal, in stripes of about a batch; one larger file is a file_batch of its own."""
    assert plan.source is not None
    files = plan.source.files
    ordinals = np.arange(len(files), dtype=np.uint32)
    keys, splits = plan.ordering.assign(None, ordinals, np.zeros(len(files), np.int64))
    order = np.lexsort((ordinals, keys, splits))
    ordinals, keys, splits = ordinals[order], keys[order], splits[order]
    sizes = files.sizes[order]
    batches = (np.cumsum(sizes) - sizes // 2) // BATCH_BYTES  # a file is in the batch in which its middle lies
    marks = np.stack([splits, batches, np.arange(len(files)) // BATCH_FILES])
    edges = np.flatnonzero(np.any(np.diff(marks, axis=1, prepend=-1), axis=0)).tolist()
    return [
        FileBatch(int(splits[first]), ordinals[first:last], keys[first:last], int(sizes[first:last].sum()))
        for first, last in itertools.pairwise([*edges, len(files)])
    ]


def read_in_order(plan: BuildPlan, found: Sequence[FileBatch], sketches: SketchPool | None = None) -> Iterator[Ready]:
    """The stripes in their order, each read on one of the plan's threads. sketches: count the records for statistics.

    Raises:
        DataError: a file changed since it was listed, or can't be read.
    """
    return thread_map(
        lambda file_batch: read_file_batch(plan, file_batch, sketches),
        found,
        plan.threads,
        weight=lambda file_batch: _COPIES * file_batch.size_bytes,
        room=plan.memory_bytes // 4,
    )


def read_file_batch(plan: BuildPlan, file_batch: FileBatch, sketches: SketchPool | None = None) -> Ready:
    """Read, check and encode the file_batch's files."""
    assert isinstance(plan.source, FileRecords)
    pieces: list[tuple[Frames, U64]] = []
    rejects: list[Reject] = []
    counts: Counter[str] = Counter()
    is_good = np.zeros(len(file_batch.ordinals), np.bool_)
    done = 0
    for chunk in plan.source.read_files(file_batch.ordinals.tolist()):
        rows = _rows(file_batch, chunk, done)
        is_good[rows] = True
        keys = file_batch.keys[rows]
        splits = np.full(len(rows), file_batch.split, np.uint16)
        if len(rows):
            placed = KeyedChunk(chunk.records, chunk.file, chunk.position, keys, splits, chunk.pixels)
            pieces.append((encode_chunk(plan, placed), keys))
            counts.update(count_values(plan, sketches, placed))
        rejects += chunk.rejects
        counts.update(chunk.counts)
        done += len(rows) + len(chunk.rejects)
    bad = file_batch.ordinals[~is_good].tolist()
    assert done == len(file_batch.ordinals), "a file is one record or one reject"
    return Ready(file_batch, tuple(pieces), tuple(zip(bad, rejects, strict=True)), counts)


def _rows(file_batch: FileBatch, chunk: Chunk, done: int) -> npt.NDArray[np.int64]:
    """Returns the rows in file_batch of the chunk's records, which are of the files after the first `done`."""
    files = file_batch.ordinals[done : done + chunk.rows + len(chunk.rejects)]
    rows = done + (np.flatnonzero(np.isin(files, chunk.file)) if chunk.rejects else np.arange(chunk.rows))
    assert np.array_equal(file_batch.ordinals[rows], chunk.file), "files were read in another order"
    return rows


class FileAccounts:
    """Adds up stripes as they are read. lost: how many files of each split are rejects."""

    def __init__(self, plan: BuildPlan, progress: Progress) -> None:
        self._plan, self._progress = plan, progress
        self._rejects: list[tuple[int, Reject]] = []  # ordinal of the file, and why: files come by their keys
        self._rejected = Rejected.zero()
        self.lost: Counter[int] = Counter()
        self._read, self._records, self._bytes, self._sum = 0, 0, 0, 0
        self._counts: Counter[str] = Counter()

    def take(self, ready: Ready) -> Iterator[tuple[int, Frames, U64]]:
        """Count a file_batch, and give its pieces on.

        Raises:
            TooManyRejects: so many that the build need not go on. Cancelled: the user stopped it.
        """
        self._read += len(ready.file_batch.ordinals)
        self._counts.update(ready.counts)
        if ready.rejects:
            self._rejects += ready.rejects
            found = [reject for _, reject in ready.rejects]
            self._rejected += Rejected(Counter(reject.reason for reject in found), tuple(found))
            self.lost[ready.file_batch.split] += len(found)
            if self._plan.most_rejects is not None:
                self._rejected.check_so_far(self._plan.most_rejects)
        for frames, keys in ready.pieces:
            self._records += len(frames)
            self._bytes += int(np.sum(frames.lengths)) + FRAME_BYTES * len(frames)
            self._sum = add_sums(self._sum, record_sum(keys, frames.crcs))
            self._progress.advance(len(frames))
            yield ready.file_batch.split, frames, keys
        self._progress.advance(0, len(ready.rejects))

    def ingested(self) -> Ingested:
        """The accounts as any other build has them; the rejects are listed in the order of their files."""
        writer = RejectWriter(Path(self._plan.folder, "rejects", "files.jsonl"))
        writer.write(reject for _, reject in sorted(self._rejects, key=lambda one: one[0]))
        run = RunFile("", self._records, self._bytes, 0, 0, self._sum)
        return Ingested(0, (run,), self._read, writer.close(), self._counts)


class SequentialShards:
    """Cuts what comes, by rank for records [splits] that there will be, or by framed bytes; use it in a `with` block,
    which leaves no file open. past_cache: writes the shards; None: the system's cache has them.

    Raises:
        UsageError: more shards are asked for than a split has records.
    """

    def __init__(self, plan: BuildPlan, records: Sequence[int], past_cache: DirectFiles | None) -> None:
        self._plan, self._past_cache, number = plan, past_cache, plan.shards.num_shards
        self._edges = [
            np.array(record_edges(count, number, name), np.int64) if number is not None and count else None
            for count, name in zip(records, plan.splits, strict=True)
        ]
        self._weights = [0] * len(records)  # of each split so far: records, or framed bytes
        self._open: OpenShard | None = None
        self._at = (-1, -1)  # split and number of the open shard

    def __enter__(self) -> SequentialShards:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._open is not None:
            self._open.abort()

    def write(self, pieces: Iterable[tuple[int, Frames, U64]]) -> Iterator[UnsyncedShard]:
        """(split, frames, their keys) in order to shards, each given when it is full; one without records is left out.

        Raises:
            DataError: a record was damaged on its way here.
        """
        for split, frames, keys in pieces:
            numbers = self._numbers(split, frames)
            edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
            for first, last in itertools.pairwise(edges):
                number = int(numbers[first])
                if number >= MOST_SHARDS:  # `check` says so when all is known
                    continue
                if self._at != (split, number):
                    yield from self._finish()
                    name = ShardName(self._plan.splits[split], number, MOST_SHARDS, "none")
                    self._open = OpenShard(Path(self._plan.folder, "data"), name, split, number, self._past_cache)
                    self._at = (split, number)
                assert self._open is not None
                begin, end = int(frames.starts[first]), int(frames.starts[last - 1] + frames.lengths[last - 1])
                self._open.add(checked_slices(frames.data[begin : end + FRAME_BYTES], self._open), keys[first:last])
        yield from self._finish()

    def check(self) -> None:
        """Raises UsageError if there would be more shards than a split may have."""
        if self._plan.shards.num_shards is None:
            for size, name in zip(self._weights, self._plan.splits, strict=True):
                check_shard_bytes(size, self._plan.shards, name)

    def _numbers(self, split: int, frames: Frames) -> npt.NDArray[np.int64]:
        """[records] in which shard of the split each one is."""
        edges = self._edges[split]
        weights = np.ones(len(frames), np.int64) if edges is not None else frames.lengths + FRAME_BYTES
        begins = self._weights[split] + np.cumsum(weights) - weights
        self._weights[split] += int(weights.sum())
        if edges is None:
            return np.asarray(begins // self._plan.shards.shard_bytes)
        return np.searchsorted(edges, begins, side="right") - 1

    def _finish(self) -> Iterator[UnsyncedShard]:
        if self._open is not None:
            shard, self._open = self._open, None
            yield shard.finish()


_SYNCING = 4  # threads that only wait for the disk


def one_record_files(plan: BuildPlan) -> list[FileBatch] | None:
    """The stripes of a plan whose keys and splits are known before its files are read; None where they aren't, where
    shards are compressed, which needs a thread for each, and where there are more shards than files.
    """
    source, order, number = plan.source, plan.order, plan.shards.num_shards
    if not isinstance(source, FileRecords) or not source.is_record_per_file or plan.transform is not None:
        return None
    if order.columns or not find_codec(plan.compression).is_plain:
        return None
    found = file_batches(plan)
    few = number is not None and any(0 < files < number for files in files_by_split(plan, found))
    return None if few else found


def files_by_split(plan: BuildPlan, found: Sequence[FileBatch]) -> list[int]:
    """[splits] how many files each has."""
    counts = [0] * len(plan.splits)
    for file_batch in found:
        counts[file_batch.split] += len(file_batch.ordinals)
    return counts


def write_file_records(
    plan: BuildPlan, found: Sequence[FileBatch], progress: Progress, sketches: SketchPool | None = None
) -> tuple[list[Ingested], list[WrittenShard]]:
    """Read all files and write all shards; the accounts are those that `conclude` holds against each other.

    Raises:
        DataError: a file changed since it was listed, or can't be read. TooManyRejects: more than the build may have.
        UsageError: more shards are asked for than there are records, or than there may be.
    """
    files = files_by_split(plan, found)
    progress.begin("write", sum(files))
    accounts = FileAccounts(plan, progress)
    with _past_cache(plan) as past_cache, SequentialShards(plan, files, past_cache) as shards:
        pieces = (piece for ready in read_in_order(plan, found, sketches) for piece in accounts.take(ready))
        written = _synced(plan, shards.write(pieces))
        shards.check()
    if plan.shards.num_shards is not None:
        for split, lost in accounts.lost.items():
            mine = [shard for shard in written if shard.shard.split == split]
            written = [shard for shard in written if shard.shard.split != split]
            written += _cut_anew(plan, split, files[split] - lost, mine, progress)
    return [accounts.ingested()], [shard.take_names() for shard in written]


def _past_cache(plan: BuildPlan) -> contextlib.AbstractContextManager[DirectFiles | None]:
    """How shards are written that must be on the disk in the end; what is put into a store is read again at once."""
    return contextlib.nullcontext() if plan.store else DirectFiles()


def _synced(plan: BuildPlan, shards: Iterable[UnsyncedShard]) -> list[UnsyncedShard]:
    """The shards when the disk has them; what is only put into a store need not wait for it."""
    return list(shards if plan.store else thread_map(UnsyncedShard.sync, shards, _SYNCING))


def _cut_anew(
    plan: BuildPlan, split: int, records: int, written: Sequence[UnsyncedShard], progress: Progress
) -> list[UnsyncedShard]:
    """The split's shards, cut for as many records as it has indeed."""
    counts = [records if number == split else 0 for number in range(len(plan.splits))]
    with _past_cache(plan) as past_cache, SequentialShards(plan, counts, past_cache) as shards:
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
