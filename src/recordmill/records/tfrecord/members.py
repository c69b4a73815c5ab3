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
        self._member_bytes, self._waiting, self._waiting_bytes = (
            member_bytes,
            [np.empty(0, np.uint8)],
            0,
        )

    def add(self, frames: Frames) -> Iterator[Bytes]:
        """Yields the members that are complete: those that have no room for a frame that has come."""
        if len(frames) == 0:
            return
        first, last = (
            int(frames.starts[0]),
            int(frames.starts[-1] + frames.lengths[-1]) + FRAME_OVERHEAD_BYTES,
        )
        ends = np.append(frames.starts[1:], last)
        start = first
        while start < last:
            room = start - self._waiting_bytes + self._member_bytes
            count = int(np.searchsorted(ends, room, side="right"))
            stop = int(ends[count - 1]) if count and ends[count - 1] > start else start
            if stop == start and self._waiting_bytes == 0:
                stop = int(
                    ends[np.searchsorted(ends, start, side="right")]
                )  # one frame above member_bytes
            self._waiting.append(frames.data[start:stop].copy())
            self._waiting_bytes += stop - start
            start = stop
            if start < last:
                yield from self.finish()

    def finish(self) -> Iterator[Bytes]:
        """Yields the frames that wait for others, if there are any."""
        if self._waiting_bytes:
            yield self._waiting[1] if len(self._waiting) == 2 else np.concatenate(self._waiting)
        self._waiting, self._waiting_bytes = self._waiting[:1], 0


class MemberWriter:
    """Frames to members of a codec, each given to `put` as it is complete, with the table of where they begin.

    put: takes the next bytes of the file.
    """

    def __init__(
        self, put: Callable[[bytes], object], codec: Codec, *, member_bytes: int = MEMBER_BYTES
    ) -> None:
        self._put, self._codec, self._cutter = put, codec, MemberSplitter(member_bytes)
        self._compressed, self._uncompressed = [0], [0]

    def write(self, frames: Frames) -> None:
        """Adds contiguous frames."""
        for member in self._cutter.add(frames):
            self._write(member)

    def close(self) -> None:
        """Writes the frames that wait. A shard without records is one empty member: an empty file is of no codec."""
        for member in self._cutter.finish():
            self._write(member)
        if len(self._compressed) == 1:
            self._put(self._codec.pack(b""))

    def _write(self, member: Bytes) -> None:
        packed = self._codec.pack(member)
        self._put(packed)
        self._compressed.append(self._compressed[-1] + len(packed))
        self._uncompressed.append(self._uncompressed[-1] + len(member))

    @property
    def table(self) -> tuple[Int64s, Int64s]:
        """The first byte of each member in the file, and in the uncompressed shard; int64 [members] each."""
        return np.array(self._compressed[:-1], np.int64), np.array(
            self._uncompressed[:-1], np.int64
        )
