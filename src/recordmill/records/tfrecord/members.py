"""Writes frames to a compressed file of record-aligned members, so that such a shard keeps its random access: a record
is one seek and one member away.

Where members begin follows from the records alone, never from how they arrive, so the same records give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from recordmill.base.buffers import Bytes, Int64s
from recordmill.records.tfrecord.frames import FRAME_OVERHEAD_BYTES, Frames
from recordmill.storage.codecs import Codec

# 1 MiB uncompressed: a record costs 2 ms to reach, and the deflate windows that begin anew cost about 1 % in size
MEMBER_BYTES = 1 << 20


class MemberSplitter:
    """Cuts contiguous frames into runs of whole frames of at most member_bytes, or of one larger frame."""

    def __init__(self, member_bytes: int = MEMBER_BYTES) -> None:
        self._member_bytes, self._pending, self._pending_bytes = (
            member_bytes,
            [np.empty(0, np.uint8)],
            0,
        )

    def add(self, frames: Frames) -> Iterator[Bytes]:
        """Yields the members that are complete: those that have no room for a frame that has come."""
        if len(frames) == 0:
            return
        frames_begin, frames_end = (
            int(frames.starts[0]),
            int(frames.starts[-1] + frames.lengths[-1]) + FRAME_OVERHEAD_BYTES,
        )
        frame_ends = np.append(frames.starts[1:], frames_end)
        begin = frames_begin
        while begin < frames_end:
            room = begin - self._pending_bytes + self._member_bytes
            count = int(np.searchsorted(frame_ends, room, side="right"))
            end = int(frame_ends[count - 1]) if count and frame_ends[count - 1] > begin else begin
            if end == begin and self._pending_bytes == 0:
                end = int(
                    frame_ends[np.searchsorted(frame_ends, begin, side="right")]
                )  # one frame above member_bytes
            self._pending.append(frames.data[begin:end].copy())
            self._pending_bytes += end - begin
            begin = end
            if begin < frames_end:
                yield from self.finish()

    def finish(self) -> Iterator[Bytes]:
        """Yields the frames that wait for others, if there are any."""
        if self._pending_bytes:
            yield self._pending[1] if len(self._pending) == 2 else np.concatenate(self._pending)
        self._pending, self._pending_bytes = self._pending[:1], 0


class MemberWriter:
    """Frames to members of a codec, each given to `put` as it is complete, with the table of where they begin.

    put: takes the next bytes of the file.
    """

    def __init__(
        self,
        write_bytes: Callable[[bytes], object],
        codec: Codec,
        *,
        member_bytes: int = MEMBER_BYTES,
    ) -> None:
        self._write_bytes, self._codec, self._splitter = (
            write_bytes,
            codec,
            MemberSplitter(member_bytes),
        )
        self._compressed_ends, self._uncompressed_ends = [0], [0]

    def write(self, frames: Frames) -> None:
        """Adds contiguous frames."""
        for member in self._splitter.add(frames):
            self._write(member)

    def close(self) -> None:
        """Writes the frames that wait. A shard without records is one empty member: an empty file is of no codec."""
        for member in self._splitter.finish():
            self._write(member)
        if len(self._compressed_ends) == 1:
            self._write_bytes(self._codec.pack(b""))

    def _write(self, member: Bytes) -> None:
        packed = self._codec.pack(member)
        self._write_bytes(packed)
        self._compressed_ends.append(self._compressed_ends[-1] + len(packed))
        self._uncompressed_ends.append(self._uncompressed_ends[-1] + len(member))

    @property
    def table(self) -> tuple[Int64s, Int64s]:
        """The first byte of each member in the file, and in the uncompressed shard; int64 [members] each."""
        return np.array(self._compressed_ends[:-1], np.int64), np.array(
            self._uncompressed_ends[:-1], np.int64
        )
