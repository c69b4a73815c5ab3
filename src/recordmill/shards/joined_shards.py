"""Many uncompressed shards on a disk, read by record number at once: `JoinedShards`.

Finding and copying records costs about 0.1 ms for each shard, if it is done shard by shard. A batch
of a shuffled data set may have records of 1,000 shards. Here, all shards and their indexes are
mapped into one array. So one call finds all records of a batch, and another one copies them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recordmill.base import native
from recordmill.base.buffers import Bytes, Int64s, to_offsets
from recordmill.base.threads import ForkSafeLock
from recordmill.records.tfrecord.frames import FRAME_OVERHEAD_BYTES
from recordmill.shards.index import INDEX_DTYPE, MAX_INDEX_HEADER_BYTES
from recordmill.shards.manifest import make_missing_file_error
from recordmill.shards.tfrecord_file import IndexedShard, TFRecordFile
from recordmill.storage.files import read_spans
from recordmill.storage.mapped_files import MappedFiles

# Minimum number of files to join. Fewer files are read one by one.
MIN_SHARDS = 16
# An entry of an index is (offset, length, key), which are 8 bytes each.
_ENTRY_WORDS = 3
_mapping_lock = ForkSafeLock()


class JoinedShards:
    """Shards and their indexes in one array. Threads can share it.

    A shard is mapped when one of its records is first needed. It then stays mapped.

    Args:
        shards: The shards.
        mapped: The array with room for the shards, followed by room for their indexes and for one
            more entry.
    """

    def __init__(self, shards: Sequence[IndexedShard], mapped: MappedFiles) -> None:
        self._shards, self._mapped = shards, mapped
        self._words: Int64s = mapped.data.view(np.int64)
        self._content_begins: Int64s = mapped.begins[: len(shards)]
        self._framed_bytes: Int64s = np.array([shard.framed_bytes for shard in shards])
        self._firsts: Int64s = to_offsets([shard.records for shard in shards])[:-1]
        self._ends: Int64s = to_offsets([shard.records for shard in shards])[1:]
        # Position in `_words` of the first entry of each index.
        self._index_begins: Int64s = np.zeros(len(shards), np.int64)
        self._is_mapped = np.zeros(len(shards), np.bool_)

    def map_shard(self, ordinal: int) -> None:
        """Maps a shard and its index, unless they are mapped already.

        Raises:
            DataError: A file is missing, or it differs from the manifest.
        """
        if self._is_mapped[ordinal]:
            return
        with _mapping_lock:
            if not self._is_mapped[ordinal]:
                shard = self._shards[ordinal]
                index = shard.map_into(self._mapped, ordinal, len(self._shards) + ordinal)
                begin = index.ctypes.data - self._words.ctypes.data
                # The header of an index has a multiple of 64 bytes.
                assert begin % self._words.itemsize == 0
                self._index_begins[ordinal] = begin // self._words.itemsize
                self._is_mapped[ordinal] = True

    def locate(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the offsets in the array and the payload lengths of records.

        Args:
            numbers: Record numbers among all shards, in ascending order. They may repeat.

        Raises:
            DataError: A file is missing, or an index does not fit its shard or the manifest.
        """
        if not len(numbers):
            return numbers, numbers
        low, high = self._ends.searchsorted([numbers[0], numbers[-1]], "right").tolist()
        counts = np.diff(numbers.searchsorted(self._ends[low : high + 1]), prepend=0)
        used = np.flatnonzero(counts)
        counts, used = counts[used], used + low
        for ordinal in used[~self._is_mapped[used]].tolist():
            self.map_shard(ordinal)
        positions = _ENTRY_WORDS * numbers + np.repeat(
            self._index_begins[used] - _ENTRY_WORDS * self._firsts[used], counts
        )
        offsets, lengths = self._words[positions], self._words[positions + 1]
        # A frame must end where the next one begins, and the last one at the end of the shard.
        sizes = np.repeat(self._framed_bytes[used], counts)
        is_last = numbers == np.repeat(self._ends[used] - 1, counts)
        ends = np.where(is_last, sizes, self._words[positions + _ENTRY_WORDS])
        is_wrong = (offsets < 0) | (lengths < 0) | (ends > sizes)
        is_wrong |= offsets + lengths != ends - FRAME_OVERHEAD_BYTES
        if is_wrong.any():
            number = numbers[np.argmax(is_wrong)]
            ordinal = int(self._ends.searchsorted(number, "right"))
            # This call raises the error for the first wrong record.
            self._shards[ordinal].locate(number[None] - self._firsts[ordinal])
        return offsets + np.repeat(self._content_begins[used], counts), lengths

    def gather(
        self, offsets: Int64s, lengths: Int64s, out: Bytes, targets: Int64s, use_mapping: bool
    ) -> None:
        """Copies frames to their places in a buffer.

        Args:
            offsets: Offsets of the frames, from `locate`.
            lengths: Their payload lengths.
            out: The buffer.
            targets: The offset in `out` of each frame.
            use_mapping: See `RecordFiles.frames`.

        Raises:
            DataError: A shard has become shorter.
        """
        sizes = lengths + FRAME_OVERHEAD_BYTES
        if len(offsets) and not use_mapping:
            edges = np.append(np.searchsorted(offsets, self._content_begins), len(offsets))
            counts = np.diff(edges)
            used = np.flatnonzero(counts)
            starts = offsets - np.repeat(self._content_begins, counts)
            paths = [self._shards[ordinal].file.path for ordinal in used.tolist()]
            try:
                read_spans(paths, np.append(0, edges[used + 1]), starts, sizes, out, targets)
            except FileNotFoundError as error:
                raise make_missing_file_error(error.filename) from None
            return
        num_copied = native.copy_spans([self._mapped.data], None, offsets, sizes, targets, out)
        assert num_copied == len(offsets)


def join_shards(files: Sequence[TFRecordFile]) -> JoinedShards | None:
    """Joins at least MIN_SHARDS uncompressed shards on a disk. Reads nothing.

    Returns:
        The shards. None if there are fewer files or files of another kind, or if the process can't
        map them all.
    """
    if len(files) < MIN_SHARDS:
        return None
    shards = [
        file
        for file in files
        if isinstance(file, IndexedShard)
        and file.file.codec.is_plain
        and MappedFiles.is_mappable(file.file.path)
    ]
    if len(shards) < len(files):
        return None
    entry_bytes = INDEX_DTYPE.itemsize
    content_bytes = [shard.framed_bytes for shard in shards]
    index_bytes = [MAX_INDEX_HEADER_BYTES + shard.records * entry_bytes for shard in shards]
    # `locate` also reads the index entry after that of each record. The last entry is followed by
    # this additional one.
    mapped = MappedFiles.reserve(np.array([*content_bytes, *index_bytes, entry_bytes]))
    return None if mapped is None else JoinedShards(shards, mapped)
