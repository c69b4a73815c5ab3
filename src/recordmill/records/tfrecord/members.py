"""Writer of compressed TFRecord files that keep random access to their records.

A file consists of members that are compressed independently. A member begins and ends between
records. So a record can be read by decompressing one member. Only the records determine the
members, not the calls that add them, so the same records always make the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from recordmill.base.buffers import Bytes, Int64s
from recordmill.records.tfrecord.frames import FRAME_OVERHEAD_BYTES, Frames
from recordmill.storage.codecs import Codec

# 1 MiB uncompressed. With this size, reading a single record takes about 2 ms, and restarting the
# compression for each member makes files about 1 % larger.
MEMBER_BYTES = 1 << 20


class MemberSplitter:
    """Groups frames into members of at most `member_bytes`, or of one larger frame."""

    def __init__(self, member_bytes: int = MEMBER_BYTES) -> None:
        self._member_bytes, self._pending, self._pending_bytes = (
            member_bytes,
            [np.empty(0, np.uint8)],
            0,
        )

    def add(self, frames: Frames) -> Iterator[Bytes]:
        """Copies contiguous frames, and yields members that are complete.

        A member is complete if the next frame does not fit into it.
        """
        if len(frames) == 0:
            return
        frames_begin, frames_end = (
            int(frames.starts[0]),
            int(frames.starts[-1] + frames.lengths[-1]) + FRAME_OVERHEAD_BYTES,
        )
        frame_ends = np.append(frames.starts[1:], frames_end)
        begin = frames_begin
        while begin < frames_end:
            # the current member has room for the bytes before this offset in `frames.data`
            room = begin - self._pending_bytes + self._member_bytes
            count = int(np.searchsorted(frame_ends, room, side="right"))
            end = int(frame_ends[count - 1]) if count and frame_ends[count - 1] > begin else begin
            if end == begin and self._pending_bytes == 0:
                # The frame is larger than a member, so it becomes a member of its own.
                end = int(frame_ends[np.searchsorted(frame_ends, begin, side="right")])
            self._pending.append(frames.data[begin:end].copy())
            self._pending_bytes += end - begin
            begin = end
            # frames are left, so the next one does not fit into this member
            if begin < frames_end:
                yield from self.finish()

    def finish(self) -> Iterator[Bytes]:
        """Yields the last member, if there are frames that were not yielded."""
        if self._pending_bytes:
            # The first array is always empty. If there is only one other array, it needs no copy.
            yield self._pending[1] if len(self._pending) == 2 else np.concatenate(self._pending)
        self._pending, self._pending_bytes = self._pending[:1], 0


class MemberWriter:
    """Compresses frames to members.

    Args:
        write_bytes: Receives the bytes of the file, in order.
        codec: The compression.
        member_bytes: Maximum uncompressed size of a member. A larger frame is a member of its own.
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
        """Writes the last member.

        A file without records becomes one empty member, because a file of 0 bytes is not valid
        compressed data.
        """
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
        """Offsets of the members, int64: in the file, and in the uncompressed data."""
        return np.array(self._compressed_ends[:-1], np.int64), np.array(
            self._uncompressed_ends[:-1], np.int64
        )
