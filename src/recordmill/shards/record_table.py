"""Table of the records of a file without an index, from its frame headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from recordmill.base.buffers import Int64s
from recordmill.base.errors import DataError
from recordmill.records.tfrecord.frames import (
    FRAME_DAMAGE,
    FRAME_OVERHEAD_BYTES,
    ContentDigest,
    Damage,
    FileFrames,
    FileOrigin,
    iter_frame_offsets,
    read_frame_end,
    stop_at_damage,
)
from recordmill.records.tfrecord.stream import (
    add_skipped_bytes,
    find_resume_offset,
    read_frames,
)
from recordmill.shards.manifest import explain_missing
from recordmill.storage.files import map_file, stat

# Each damaged range needs a read of its own, so a file with more ranges would be slow to read. Its
# rest becomes one range.
MAX_DAMAGE = 4096


def scan_headers(
    path: str, *, lenient: bool, digest: ContentDigest | None = None
) -> Iterator[Int64s | Damage]:
    """Finds all frames of an uncompressed file, and the damage between them.

    Only the headers are read. After `MAX_DAMAGE` damaged ranges, the rest of the file counts as one
    range.

    Args:
        path: Path or URL of the file.
        lenient: If True, the scan continues after damage. Otherwise the first damage is raised.
        digest: Receives the lengths and CRCs of all frames.

    Yields:
        Arrays of ascending offsets, and `Damage` objects, in the order of the file.

    Raises:
        DataError: The file has become shorter, or a header is damaged and `lenient` is False.
    """
    with explain_missing(path):
        size_bytes = stat(path).size_bytes
    position = record = num_damaged = 0
    last_start = -1
    while True:
        try:
            for starts in iter_frame_offsets(
                path, start=position, first_record=record, digest=digest
            ):
                yield starts
                record, last_start = record + len(starts), int(starts[-1])
            return
        except DataError as error:
            if not lenient:
                raise_first_damage(path)
            if not lenient or stat(path).size_bytes != size_bytes:
                raise
            reason = error.reason
        if last_start >= position:
            position = read_frame_end(path, last_start)
        num_damaged += 1
        kind, end = (
            find_resume_offset(map_file(path), position)
            if num_damaged <= MAX_DAMAGE
            else (FRAME_DAMAGE, size_bytes)
        )
        damage = Damage(record, position, end - position, kind, reason)
        yield (
            replace(damage, reject_message=add_skipped_bytes(reason, end - position))
            if kind == FRAME_DAMAGE
            else damage
        )
        if end == size_bytes:
            return
        position, record = end, record + 1


def raise_first_damage(path: str) -> None:
    """Reads a file up to its first damage, and raises it.

    A scan of headers does not check payloads. So the first damage may come before the damage that
    the scan has found.

    Raises:
        DataError: The first damage.
    """
    for _ in stop_at_damage(read_frames(path)):
        pass


@dataclass(frozen=True)
class RecordTable:
    """Places of the records of a file.

    Attributes:
        starts: int64 [records + 1]. First byte of each record in the uncompressed file, and the
            size of this file.
        content: Value of a `ContentDigest`.
        damage: Damaged ranges, in order. Each counts as one record.
    """

    starts: Int64s
    content: int
    damage: tuple[Damage, ...] = ()

    @classmethod
    def from_parts(
        cls, parts: Iterable[Int64s | Damage], content: ContentDigest, size_bytes: int
    ) -> RecordTable:
        """Creates the table of an uncompressed file.

        Args:
            parts: The result of `scan_headers`.
            content: The digest that `scan_headers` fills.
            size_bytes: Size of the file.
        """
        starts: list[Int64s] = []
        damage: list[Damage] = []
        for part in parts:
            if isinstance(part, Damage):
                starts.append(np.array([part.offset]))
                damage.append(part)
            else:
                starts.append(part)
        return cls(
            np.concatenate([*starts, np.array([size_bytes])]).astype(np.int64, copy=False),
            content.value,
            tuple(damage),
        )

    @classmethod
    def from_frames(cls, parts: Iterable[FileFrames], content: ContentDigest) -> RecordTable:
        """Creates the table of a file that is read as a stream.

        Args:
            parts: All frames of one file, in order.
            content: Receives the lengths and CRCs of the good frames.
        """
        starts, damage, end = [np.empty(0, np.int64)], list[Damage](), 0
        for frames in parts:
            assert isinstance(frames.origin, FileOrigin)
            for rows in frames.contiguous_rows():
                content.add(frames.select(rows))
            part_starts = np.empty(frames.records, np.int64)
            first = frames.end_record - frames.records
            part_starts[frames.numbers - first] = frames.starts + frames.origin.data_offset
            for damaged in frames.damage:
                part_starts[damaged.record - first] = damaged.offset
                end = max(end, damaged.offset + damaged.size_bytes)
            if len(frames):
                last_end = int(frames.starts[-1] + frames.lengths[-1]) + FRAME_OVERHEAD_BYTES
                end = max(end, frames.origin.data_offset + last_end)
            starts.append(part_starts)
            damage += frames.damage
        return cls(np.concatenate([*starts, np.array([end])]), content.value, tuple(damage))

    @property
    def records(self) -> int:
        """Number of records, including damaged ones."""
        return len(self.starts) - 1

    @cached_property
    def _is_damaged(self) -> npt.NDArray[np.bool_]:
        """Mask of the damaged records, bool [records]."""
        mask = np.zeros(self.records, np.bool_)
        mask[[damage.record for damage in self.damage]] = True
        return mask

    @property
    def end(self) -> int:
        """Size of the uncompressed file."""
        return int(self.starts[-1])

    def locate(self, records: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the offsets and payload lengths of records. A damaged record has length -1."""
        offsets = self.starts[records]
        lengths = self.starts[records + 1] - offsets - FRAME_OVERHEAD_BYTES
        if self.damage:
            lengths[self._is_damaged[records]] = -1
        return offsets, lengths

    def find_record(self, offset: int) -> tuple[int, int, int]:
        """Returns the record that contains the byte at `offset`.

        Returns:
            The number of the record, its first byte, and the byte after it.
        """
        record = int(np.searchsorted(self.starts, offset, "right")) - 1
        return record, int(self.starts[record]), int(self.starts[record + 1])

    def offset_of(self, record: int) -> int:
        """Returns the offset of the first byte of a record.

        For the number after the last record, returns the end of the last record.
        """
        return int(self.starts[record])

    def prefetch(self, offsets: Iterable[int]) -> None:
        """Does nothing, because the table is in memory."""
