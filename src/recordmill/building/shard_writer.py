"""Writers of shards.

Merged frames are divided among consecutive shards, verified, and written together with the index of
each shard.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import to_offsets
from recordmill.base.progress import Progress
from recordmill.base.siphash import U64
from recordmill.building.merge import MergeBatch, limit_fan_in, max_fan_in, merge
from recordmill.building.run_slices import RunSlice
from recordmill.building.shard_boundaries import BY_RECORDS, ShardRange
from recordmill.records.tfrecord.frames import FRAME_OVERHEAD_BYTES, Frames, scan_frames
from recordmill.records.tfrecord.members import MemberWriter
from recordmill.records.writers.npy_file import NpyFile
from recordmill.shards.file_names import ShardName
from recordmill.shards.index import (
    INDEX_DTYPE,
    MEMBERS_DTYPE,
    add_checksums,
    make_index,
    record_checksum,
)
from recordmill.shards.manifest import INDEX_FOLDER, ShardInfo
from recordmill.storage.codecs import find_codec
from recordmill.storage.digest import Digest
from recordmill.storage.direct_io import DirectFile, DirectFiles
from recordmill.storage.files import Bytes, create_file, sync_file, write_all
from recordmill.storage.folders import remove_file, rename


class ShardOutput:
    """Writes the frames of one shard to a file, compressed if necessary.

    Attributes:
        bytes: Number of bytes written.
        digest: Digest of these bytes.

    Args:
        file: The file. The caller closes it.
        compression: The compression, such as "none" or "gzip".
    """

    def __init__(self, file: BinaryIO | DirectFile, compression: str) -> None:
        self._file, self._digest, self.bytes = file, Digest(), 0
        codec = find_codec(compression)
        self._members = None if codec.is_plain else MemberWriter(self._put, codec)

    @property
    def digest(self) -> str:
        return self._digest.text()

    def write(self, frames: Frames) -> None:
        """Appends frames."""
        if self._members is None:
            self._put(frames.data)
        else:
            self._members.write(frames)

    def close(self) -> npt.NDArray[np.void] | None:
        """Writes the rest of the compressed data. The file stays open.

        Returns:
            MEMBERS_DTYPE, the table of the compressed members, or None for a plain shard.
        """
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
class FinishedShard:
    """A complete shard in the data folder of the run. It may be empty.

    Attributes:
        split_id: Ordinal of its split.
        index: Its number within the split. Empty shards still count.
        info: Its entry in the manifest.
    """

    split_id: int
    index: int
    info: ShardInfo


@dataclass(frozen=True)
class StagedShard:
    """A complete shard under temporary names, which may not be durable yet.

    Attributes:
        shard: The shard, with its final name.
        files: (temporary path, final path) of the index, of the member table if the shard is
            compressed, and of the shard file, in this order.
        direct_file: The shard file if it bypasses the page cache, else None.
    """

    shard: FinishedShard
    files: tuple[tuple[Path, Path], ...]
    direct_file: DirectFile | None = None

    @property
    def path(self) -> Path:
        """The temporary path of the shard file."""
        return self.files[-1][0]

    @property
    def index_path(self) -> Path:
        """The temporary path of the index."""
        return self.files[0][0]

    def finalize(self, durable: bool = True) -> FinishedShard:
        """Renames the files to their final names.

        Args:
            durable: If True, first waits until the files are on the disk. Files for an upload don't
                need this.
        """
        return (self.sync() if durable else self).rename_to_final()

    def sync(self) -> StagedShard:
        """Waits until the files are durable on the disk."""
        if self.direct_file is not None:
            self.direct_file.wait()
        for temporary, _ in self.files:
            sync_file(temporary)
        return self

    def rename_to_final(self) -> FinishedShard:
        """Renames the files to their final names, over files of earlier attempts.

        The shard file is the last one, so a shard always has its index.
        """
        for temporary, path in self.files:
            rename(temporary, path)
        return self.shard

    def remove(self) -> None:
        """Removes the files, which must still have their temporary names."""
        for temporary, _ in self.files:
            remove_file(temporary)


class ShardWriter:
    """Writes one shard and its index, under temporary names.

    The caller must call either `finish` or `abort`.

    Attributes:
        name: The final name.
        framed_bytes: Number of bytes of frames so far, before compression.

    Args:
        folder: The data folder.
        name: The final name.
        split_id: Ordinal of the split.
        index: Number of the shard within the split.
        direct_writer: Creates a file that bypasses the page cache. If None, the file is an ordinary
            one.
    """

    def __init__(
        self,
        folder: Path,
        name: ShardName,
        split_id: int,
        index: int,
        direct_writer: DirectFiles | None = None,
    ) -> None:
        self.name = name
        self._folder = folder
        self._shard_id = (split_id, index)
        self._attempt = uuid.uuid4().hex
        self._path = folder / f".{self._attempt}.tmp"
        self._index_path = self._index_folder_path("npy")
        self._index = NpyFile(self._index_path, INDEX_DTYPE)
        try:
            self._file = (create_file if direct_writer is None else direct_writer.create)(
                self._path
            )
        except BaseException:
            # No caller can abort this writer, so the open index file is closed here.
            self._index.abort()
            raise
        self._output = ShardOutput(self._file, name.compression)
        self.framed_bytes, self._sum = 0, 0

    @property
    def records(self) -> int:
        return self._index.rows

    def add(self, frames: Frames, keys: U64) -> None:
        """Appends records.

        Args:
            frames: The frames, which must be back to back.
            keys: The key of each record.
        """
        self._output.write(frames)
        self._index.append(
            make_index(frames.lengths + FRAME_OVERHEAD_BYTES, keys, self.framed_bytes)
        )
        self.framed_bytes += len(frames.data)
        self._sum = add_checksums(self._sum, record_checksum(keys, frames.crcs))

    def finish(self) -> StagedShard:
        """Completes the shard and its index, which keep their temporary names."""
        members = self._output.close()
        self._file.close()
        self._index.close()
        files = [(self._index_path, self._folder / INDEX_FOLDER / self.name.index_name)]
        if members is not None:
            path = self._index_folder_path("members.npy")
            table = NpyFile(path, MEMBERS_DTYPE)
            table.append(members)
            table.close()
            files.append((path, self._folder / INDEX_FOLDER / self.name.members_name))
        output = self._output
        info = ShardInfo(
            name=str(self.name),
            records=self.records,
            bytes=output.bytes,
            framed_bytes=self.framed_bytes,
            digest=output.digest,
            sum=f"{self._sum:016x}",
        )
        files.append((self._path, self._folder / str(self.name)))
        direct = self._file if isinstance(self._file, DirectFile) else None
        return StagedShard(FinishedShard(*self._shard_id, info), tuple(files), direct)

    def abort(self) -> None:
        """Closes the incomplete files. They remain until their folder is removed."""
        (self._file.abort if isinstance(self._file, DirectFile) else self._file.close)()
        self._index.abort()

    def _index_folder_path(self, ending: str) -> Path:
        return self._folder / INDEX_FOLDER / f".{self._attempt}.{ending}"


def write_shards(
    folder: Path,
    scratch: Path,
    names: Sequence[ShardName],
    shard_range: ShardRange,
    slices: Sequence[RunSlice],
    memory_bytes: int,
    progress: Progress,
) -> list[StagedShard]:
    """Writes consecutive shards by one merge of their slices.

    The merge needs about `memory_bytes`, or twice the largest record if that is more.

    Args:
        folder: The data folder.
        scratch: The folder for merged slices.
        names: The final name of each shard.
        shard_range: The shards.
        slices: The slices that contain their records.
        memory_bytes: The memory of the merge.
        progress: Receives the number of written records, and may raise RunCancelled.

    Returns:
        All shards, in their order. They may be empty.

    Raises:
        DataError: A record was damaged since it was written to a sorted run.
        RunCancelled: The user has stopped the build.
    """

    def open_shard(number: int) -> ShardWriter:
        return ShardWriter(
            folder,
            names[number],
            split_id=shard_range.split_id,
            index=shard_range.index + number,
        )

    staged, writer = list[StagedShard](), open_shard(0)
    try:
        with limit_fan_in(
            _choose_fan_in(slices, shard_range, memory_bytes),
            slices,
            folder=scratch,
            memory_bytes=memory_bytes,
            on_batch=progress.advance,
        ) as merge_slices:
            for index, frames, keys in divide_frames(
                _report_batches(merge(merge_slices, memory_bytes), progress), shard_range
            ):
                # Shards before this one are complete, and may be empty.
                while len(staged) < index:
                    staged.append(writer.finish())
                    writer = open_shard(len(staged))
                writer.add(verify_frames(frames, writer), keys)
                progress.advance(len(keys))
        # The last shards may be empty, and need files all the same.
        while len(staged) < len(shard_range) - 1:
            staged.append(writer.finish())
            writer = open_shard(len(staged))
    except BaseException:
        writer.abort()
        raise
    return [*staged, writer.finish()]


def _choose_fan_in(slices: Sequence[RunSlice], shard_range: ShardRange, memory_bytes: int) -> int:
    """Returns the number of slices that a merge may read at once.

    This is `max_fan_in`, or four times as much if the slices contain more than twice the size of
    the shards. In the second case a key is so frequent that most records in the slices belong to
    other shards. To merge some of the slices into files first would copy all these records. So a
    larger fan-in is better.
    """
    slices_size = sum(
        run_slice.records if shard_range.measure == BY_RECORDS else run_slice.frames_bytes
        for run_slice in slices
    )
    return (
        max_fan_in(memory_bytes)
        if slices_size <= 2 * shard_range.size
        else 4 * max_fan_in(memory_bytes)
    )


def _report_batches(batches: Iterator[MergeBatch], progress: Progress) -> Iterator[MergeBatch]:
    """Calls `progress.advance` for each batch, and yields the batches.

    A shard may need many batches before its first record. Without this, Ctrl-C would wait for that
    record.

    Raises:
        RunCancelled: The user has stopped the build.
    """
    for batch in batches:
        progress.advance()
        yield batch


def divide_frames(
    batches: Iterator[MergeBatch], shard_range: ShardRange
) -> Iterator[tuple[int, Bytes, U64]]:
    """Divides the records of a merge among consecutive shards.

    Args:
        batches: The merged records.
        shard_range: The shards. Records before and after them are skipped.

    Yields:
        (shard, frames, keys). `shard` is the position of the shard in the range, from 0. The frames
        are a view of a few MiB, which the next item overwrites. An empty shard yields no item.
    """
    shard_edges = np.array(shard_range.edges, np.int64)
    # Records or bytes in the batches up to this one.
    total = 0
    for batch in batches:
        total_before = total
        total = total + (batch.records if shard_range.measure == BY_RECORDS else batch.frames_bytes)
        # The slices of a frequent key may begin long before the shard. Such a batch needs no sort.
        if total <= shard_edges[0]:
            continue
        sorted_batch = batch.sort()
        sizes = (
            np.ones(len(sorted_batch.sizes), np.int64)
            if shard_range.measure == BY_RECORDS
            else sorted_batch.sizes
        )
        # The start of a record determines its shard, even if the record is larger.
        positions = total_before + np.cumsum(sizes) - sizes
        shard_rows = np.searchsorted(positions, shard_edges)
        row = int(shard_rows[0])
        for buffer, keys in sorted_batch.frames(row, int(shard_rows[-1])):
            ends = to_offsets(sorted_batch.sizes[row : row + len(keys)])
            edges_in_buffer = np.clip(shard_rows - row, 0, len(keys))
            for index in np.flatnonzero(np.diff(edges_in_buffer)).tolist():
                begin, end = int(edges_in_buffer[index]), int(edges_in_buffer[index + 1])
                yield index, buffer[ends[begin] : ends[end]], keys[begin:end]
            row += len(keys)
        if total >= shard_edges[-1]:
            return


def verify_frames(buffer: Bytes, writer: ShardWriter) -> Frames:
    """Parses the next frames of a shard and verifies their CRCs.

    Args:
        buffer: The frames, back to back.
        writer: The shard that will get them. Error messages count its records.

    Raises:
        DataError: A record is damaged.
    """
    frames, _ = scan_frames(
        buffer,
        source=str(writer.name),
        first_record=writer.records,
        first_offset=writer.framed_bytes,
        is_final=True,
    )
    return frames
