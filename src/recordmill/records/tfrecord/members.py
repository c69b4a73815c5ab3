"""Writer of compressed TFRecord files that keep random access to their records.

A file consists of independently compressed members. Each begins and ends between records, so a
record is one seek and one member away. The members depend on the records alone, not on how they
arrive, so the same records give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from recordmill.base.buffers import Bytes, Int64s
from recordmill.records.tfrecord.frames import FRAME_OVERHEAD_BYTES, Frames
from recordmill.storage.codecs import Codec

# 1 MiB uncompressed. Reading a single record takes about 2 ms, and the restarts of the compression
# add about 1 % to the size.
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
        """Copies contiguous frames, and yields each member that is complete.

        A member is complete when the next frame does not fit.
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
            # the offset in `frames.data` up to which the member has room
            room = begin - self._pending_bytes + self._member_bytes
            count = int(np.searchsorted(frame_ends, room, side="right"))
            end = int(frame_ends[count - 1]) if count and frame_ends[count - 1] > begin else begin
            if end == begin and self._pending_bytes == 0:
                # a frame that is larger than a member
                end = int(frame_ends[np.searchsorted(frame_ends, begin, side="right")])
            self._pending.append(frames.data[begin:end].copy())
            self._pending_bytes += end - begin
            begin = end
            # The next frame does not fit.
            if begin < frames_end:
                yield from self.finish()

    def finish(self) -> Iterator[Bytes]:
        """Yields the last member, unless all frames were yielded."""
        if self._pending_bytes:
            # No copy is needed for a single block of frames. The first pending array is always
            # empty.
            yield self._pending[1] if len(self._pending) == 2 else np.concatenate(self._pending)
        self._pending, self._pending_bytes = self._pending[:1], 0


class MemberWriter:
    """Compresses frames to members.

    Args:
        write_bytes: Receives the bytes of the file, in order.
        codec: The compression.
        member_bytes: The uncompressed size of a member.
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

        A file without records becomes one empty member, because an empty file is valid in no
        compression.
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
        """Offsets of the members in the file, and in the uncompressed data, int64 each."""
        return np.array(self._compressed_ends[:-1], np.int64), np.array(
            self._uncompressed_ends[:-1], np.int64
        )
