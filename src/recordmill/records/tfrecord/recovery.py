"""The good frames of a TFRecord file that is read as a stream, and the gaps between them: what stands in each, and how
many bytes it takes.

`resume_after_damage` says where reading goes on, for all who read around damage: behind a damaged payload where its
header says, behind a damaged header at the next one with a right CRC. Behind damaged compressed data nothing can be
read, and the last gap says so. Memory is that of `shard_file.read_frames`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np

from recordmill.base import native
from recordmill.records.tfrecord.frames import FRAME_BYTES, HEADER_BYTES, MAX_RECORD_BYTES, try_scan
from recordmill.records.tfrecord.stream import READ_BATCH_BYTES, FrameBatch, frame_bytes
from recordmill.storage.compression import open_stream
from recordmill.storage.files import Bytes

# kinds of gaps: a payload's CRC, anything else of a frame, the compressed data
DATA_GAP, FRAME, STREAM = ("crc", "frame", "compression")


@dataclass(frozen=True)
class Gap:
    """Bytes [first_offset, first_offset + size_bytes) of the uncompressed file, which hold no good frame; it counts as
    one record, first_record.

    kind: one of DATA, FRAME and STREAM. reason: what is wrong, in words.
    """

    first_record: int
    first_offset: int
    size_bytes: int
    kind: str
    reason: str


def read_good_frames(
    path: str, *, compression: str, batch_bytes: int = READ_BATCH_BYTES, max_record_bytes: int = MAX_RECORD_BYTES
) -> Iterator[FrameBatch | Gap]:  # fmt: skip
    """The file's good frames in order, and each gap where it stands.

    Raises:
        OSError: as the operating system says it.
    """
    with open_stream(path, compression=compression, source=path) as stream:
        search = _Search(path, max_record_bytes)
        rest, room, ended = np.empty(0, np.uint8), batch_bytes, False
        while not ended:
            buffer = np.empty(room, np.uint8)
            buffer[: len(rest)] = rest
            count = stream.fill(buffer[len(rest) :])
            ended = count < room - len(rest)
            data = buffer[: len(rest) + count]
            consumed = yield from search.through(data, final=ended and stream.error is None)
            rest = data[consumed:]
            # As in read_frames: a length is only believed as far as bytes arrive for it.
            short = consumed == 0 and not search.searching
            room = (
                min(max(2 * room, FRAME_BYTES), max(frame_bytes(rest), FRAME_BYTES))
                if short
                else max(batch_bytes, 2 * HEADER_BYTES)
            )
        if stream.error is not None:
            yield from search.lost(len(rest), f"{stream.error.place}: {stream.error.reason}; what is behind it is lost")


class _Search:
    """Where the stream has been looked through to, and the gap that is open there, if one is."""

    def __init__(self, path: str, max_record_bytes: int) -> None:
        self._path, self._max = path, max_record_bytes
        self._record = self._offset = 0  # of the next frame
        self._gap: tuple[int, str] | None = None  # where it begins, and why

    @property
    def searching(self) -> bool:
        return self._gap is not None

    def through(self, data: Bytes, final: bool) -> Generator[FrameBatch | Gap, None, int]:
        """What stands in data; returns how many of its bytes are done with."""
        at, begin = 0, self._offset
        found = native.next_frame(data, 0, self._max, final) if self._gap is not None else 0
        while True:
            if self._gap is not None:
                if found == len(data):
                    at = len(data) if final else max(len(data) - HEADER_BYTES + 1, at)  # a header may be cut in two
                    self._offset = begin + at
                    if final:
                        yield self._close()
                    return at
                at, self._offset = found, begin + found
                yield self._close()
            frames, consumed, error = try_scan(
                data[at:],
                source=self._path,
                first_record=self._record,
                first_offset=self._offset,
                max_record_bytes=self._max,
                final=final,
            )
            if len(frames):
                yield FrameBatch(frames.data, frames.starts, frames.lengths, frames.crcs, self._record, self._offset)
            self._record, at, self._offset = self._record + len(frames), at + consumed, self._offset + consumed
            if error is None:
                return at
            kind, found = resume_after_damage(data, at, max_record_bytes=self._max, whole=final)
            if kind == DATA_GAP:
                yield Gap(self._record, self._offset, found - at, DATA_GAP, error.reason)
                self._record, at, self._offset = self._record + 1, found, begin + found
            else:
                self._gap = self._offset, error.reason

    def _close(self) -> Gap:
        """The open gap, which ends here."""
        assert self._gap is not None
        first, reason = self._gap
        gap = Gap(self._record, first, self._offset - first, FRAME, reason)
        self._record, self._gap = self._record + 1, None
        return gap

    def lost(self, size: int, reason: str) -> Iterator[Gap]:
        """The end of a stream that broke, with `size` bytes of a frame that is not whole."""
        if self._gap is not None:
            self._offset, size = self._offset + size, 0
            yield self._close()
        yield Gap(self._record, self._offset, size, STREAM, reason)


def resume_after_damage(
    data: Bytes, at: int, *, max_record_bytes: int = MAX_RECORD_BYTES, whole: bool = True, known: int | None = None
) -> tuple[str, int]:  # fmt: skip
    """(kind, the byte of data where reading goes on) for a frame at byte `at` that a scan has refused.

    kind: DATA if the header is right and the whole frame is here, so that only the payload's CRC can be wrong, else
    FRAME. whole: what is found has to fit the data. known: where an index says that the next record begins; without
    it, a damaged header costs all up to the next one that is right, or up to the data's end.
    """
    is_sound = native.frame_fault(data, at, max_record_bytes, True) == native.GOOD
    kind = DATA_GAP if is_sound else FRAME
    if known is not None:
        return kind, known
    return kind, at + frame_bytes(data[at:]) if is_sound else native.next_frame(data, at + 1, max_record_bytes, whole)


def with_skipped(reason: str, kind: str, size_bytes: int) -> str:
    """The reason of a gap, and how many bytes it took to find the next frame, unless the damaged one's end is known."""
    return f"{reason}; skipped {size_bytes} bytes" if kind != DATA_GAP and size_bytes > 0 else reason
