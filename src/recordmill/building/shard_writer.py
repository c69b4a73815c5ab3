"""Shards that follow each other: the sorted records of their slices, cut where each begins and ends, checked once more
and written with its index, to a plain file or to a compressed one of record-aligned members.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from recordmill.base.progress import Progress
from recordmill.base.siphash import U64
from recordmill.building.cuts import BY_RECORDS, ShardRange
from recordmill.building.merge import Round, at_most, fan_in, merge
from recordmill.building.slices import RunSlice
from recordmill.records.tfrecord.frames import FRAME_BYTES, Frames, scan
from recordmill.records.tfrecord.members import MemberWriter
from recordmill.records.writers.npy_file import NpyFile
from recordmill.shards.grammar import ShardName
from recordmill.shards.index import INDEX_DTYPE, MEMBERS_DTYPE, add_sums, make_index, record_sum
from recordmill.shards.manifest import INDEX_FOLDER, ShardInfo
from recordmill.storage.codecs import find_codec
from recordmill.storage.digest import Digest
from recordmill.storage.direct_io import DirectFile, DirectFiles
from recordmill.storage.files import Bytes, create_file, sync_file, write_all
from recordmill.storage.folders import remove_file, rename


class ShardOutput:
    """Frames into a file. bytes: of the file so far. digest: of it, as text (`storage.digest`)."""

    def __init__(self, file: BinaryIO | DirectFile, compression: str) -> None:
        self._file, self._digest, self.bytes = file, Digest(), 0
        codec = find_codec(compression)
        self._members = None if codec.is_plain else MemberWriter(self._put, codec)

    @property
    def digest(self) -> str:
        return self._digest.text()

    def write(self, frames: Frames) -> None:
        """Add contiguous frames."""
        if self._members is None:
            self._put(frames.data)
        else:
            self._members.write(frames)

    def close(self) -> npt.NDArray[np.void] | None:
        """Write what was held back; gives the member table of a compressed shard."""
        if self._members is None:
            return None
        self._members.close()
        compressed, uncompressed = self._members.table
        table = np.empty(len(compressed), MEMBERS_DTYPE)
        table["compressed"], table["uncompressed"] = compressed, uncompressed
        return table

    def _put(self, data: bytes | Bytes) -> None:
        self._digest.update(data)
        self.bytes += write_all(self._file, data)


@dataclass(frozen=True)
class WrittenShard:
    """A shard under its name in the run's data folder, which may be empty (`cuts`). split: its split's ordinal."""

    split: int
    index: int
    info: ShardInfo


@dataclass(frozen=True)
class UnsyncedShard:
    """A shard perhaps not on disk yet. files: temporary and own names, the shard last. direct_file: its writer."""

    shard: WrittenShard
    files: tuple[tuple[Path, Path], ...]
    direct_file: DirectFile | None = None

    @property
    def path(self) -> Path:
        """The path before it takes its name."""
        return self.files[-1][0]

    @property
    def index_path(self) -> Path:
        return self.files[0][0]

    def settle(self, durable: bool = True) -> WrittenShard:
        """Gives the files their names; durable: when the disk has them, for which a put into a store need not wait."""
        return (self.sync() if durable else self).take_names()

    def sync(self) -> UnsyncedShard:
        """Wait until the disk has it."""
        if self.direct_file is not None:
            self.direct_file.wait()
        for temporary, _ in self.files:
            sync_file(temporary)
        return self

    def take_names(self) -> WrittenShard:
        """Give the files their names, replacing what an earlier attempt left there."""
        for temporary, path in self.files:
            rename(temporary, path)
        return self.shard

    def remove(self) -> None:
        """Remove the files, which have no names yet."""
        for temporary, _ in self.files:
            remove_file(temporary)


class OpenShard:
    """A shard that frames are added to, under temporary names in the folder. split: its split's ordinal; index: its
    number there. direct_file: writes it past the system's cache, which `UnsyncedShard.sync` waits for.
    """

    def __init__(
        self, folder: Path, name: ShardName, split: int, index: int, direct_file: DirectFiles | None = None
    ) -> None:
        self.name, self._folder, self._place, self._attempt = name, folder, (split, index), uuid.uuid4().hex
        self._path, self._index_path = folder / f".{self._attempt}.tmp", self._in_index("npy")
        self._index = NpyFile(self._index_path, INDEX_DTYPE)
        try:
            self._file = (create_file if direct_file is None else direct_file.create)(self._path)
        except BaseException:
            self._index.abort()
            raise
        self._output = ShardOutput(self._file, name.compression)
        self.framed_bytes, self._sum = 0, 0

    @property
    def records(self) -> int:
        return self._index.rows

    def add(self, frames: Frames, keys: U64) -> None:
        """The next frames, contiguous, and the keys of their records."""
        self._output.write(frames)
        self._index.append(make_index(frames.lengths + FRAME_BYTES, keys, self.framed_bytes))
        self.framed_bytes += len(frames.data)
        self._sum = add_sums(self._sum, record_sum(keys, frames.crcs))

    def finish(self) -> UnsyncedShard:
        """Write what was held back, and the index."""
        members = self._output.close()
        self._file.close()
        self._index.close()
        files = [(self._index_path, self._folder / INDEX_FOLDER / self.name.index_name)]
        if members is not None:
            path = self._in_index("members.npy")
            table = NpyFile(path, MEMBERS_DTYPE)
            table.append(members)
            table.close()
            files.append((path, self._folder / INDEX_FOLDER / self.name.members_name))
        output = self._output
        info = ShardInfo(
            str(self.name), self.records, output.bytes, self.framed_bytes, output.digest, f"{self._sum:016x}"
        )
        files.append((self._path, self._folder / str(self.name)))
        direct = self._file if isinstance(self._file, DirectFile) else None
        return UnsyncedShard(WrittenShard(*self._place, info), tuple(files), direct)

    def abort(self) -> None:
        """Close the files; whoever removes their folder removes them."""
        (self._file.abort if isinstance(self._file, DirectFile) else self._file.close)()
        self._index.abort()

    def _in_index(self, ending: str) -> Path:
        return self._folder / INDEX_FOLDER / f".{self._attempt}.{ending}"


def write_shards(
    folder: Path,
    scratch: Path,
    names: Sequence[ShardName],
    shards: ShardRange,
    slices: Sequence[RunSlice],
    memory_bytes: int,
    progress: Progress,
) -> list[UnsyncedShard]:
    """Write shards that follow each other, and their indexes, into folder, by one merge; of many slices, some are
    merged in the folder scratch first.

    Memory: about memory_bytes, or twice the largest record if that is more.

    Raises:
        DataError: a record was damaged on its way here (its CRC is wrong). Cancelled: the user stopped the job.
    """
    done: list[UnsyncedShard] = []
    shard = OpenShard(folder, names[0], shards.split, shards.index)
    try:
        with at_most(_fan_in(slices, shards, memory_bytes), slices, scratch, memory_bytes, progress.advance) as few:
            for number, data, keys in cut_frames(_stoppable(merge(few, memory_bytes), progress), shards):
                while len(done) < number:
                    done.append(shard.finish())
                    shard = OpenShard(folder, names[len(done)], shards.split, shards.index + len(done))
                shard.add(checked_slices(data, shard), keys)
                progress.advance(len(keys))
        while len(done) < len(shards) - 1:
            done.append(shard.finish())
            shard = OpenShard(folder, names[len(done)], shards.split, shards.index + len(done))
    except BaseException:
        shard.abort()
        raise
    return [*done, shard.finish()]


def _fan_in(slices: Sequence[RunSlice], shards: ShardRange, memory_bytes: int) -> int:
    """How many slices are merged at once: no more than is quick, unless most of them is not the shards' own, since the
    bucket is that of a frequent key; then only the entries are worth a pass.
    """
    weight = sum(piece.records if shards.by == BY_RECORDS else piece.frames_bytes for piece in slices)
    return fan_in(memory_bytes) if weight <= 2 * shards.weight else 4 * fan_in(memory_bytes)


def _stoppable(rounds: Iterator[Round], progress: Progress) -> Iterator[Round]:
    """The rounds; a shard may need many before the first record that is its own, and Ctrl-C must not wait for it."""
    for merged in rounds:
        progress.advance()
        yield merged


def cut_frames(rounds: Iterator[Round], shards: ShardRange) -> Iterator[tuple[int, Bytes, U64]]:
    """The frames of the shards in order: which of these it is, contiguous frames of it, a few MiB at most, valid until
    the next, and the keys of their records.
    """
    edges = np.array(shards.edges, np.int64)
    done = 0  # records, or bytes, of the slices that lie before the round
    for merged in rounds:
        before, done = done, done + (merged.records if shards.by == BY_RECORDS else merged.frames_bytes)
        if done <= edges[0]:
            continue
        ordered = merged.sorted()
        weights = np.ones(len(ordered.sizes), np.int64) if shards.by == BY_RECORDS else ordered.sizes
        begins = before + np.cumsum(weights) - weights
        bounds = np.searchsorted(begins, edges)
        at = int(bounds[0])
        for piece, keys in ordered.frames(at, int(bounds[-1])):
            ends = np.concatenate([[0], np.cumsum(ordered.sizes[at : at + len(keys)])])
            inside = np.clip(bounds - at, 0, len(keys))
            for number in np.flatnonzero(np.diff(inside)).tolist():
                first, last = int(inside[number]), int(inside[number + 1])
                yield number, piece[ends[first] : ends[last]], keys[first:last]
            at += len(keys)
        if done >= edges[-1]:
            return


def checked_slices(data: Bytes, shard: OpenShard) -> Frames:
    """Contiguous frames that the shard gets next, with their CRCs held against their bytes.

    Raises:
        DataError: a record is damaged.
    """
    frames, _ = scan(
        data, source=str(shard.name), first_record=shard.records, first_offset=shard.framed_bytes, final=True
    )
    return frames
