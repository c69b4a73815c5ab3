"""Slices: what one shard needs of one run, as a reference into the run's file or by value. A run and cuts in, slices
out; nothing is merged here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recordmill.building.run_file import ENTRY_DTYPE, Entries, Run
from recordmill.storage.files import Bytes, read_exactly


@dataclass(frozen=True)
class FileRef:
    """A slice of a run file: `bytes` of frames from frames_at on, and entries from entries_at on."""

    path: str
    frames_at: int
    entries_at: int


@dataclass(frozen=True)
class RunSlice:
    """Consecutive records of one run that a shard needs,
    by reference on one machine or by value through an engine's shuffle.

    payload: a FileRef, or the entries' bytes followed by the frames' bytes.
    """

    records: int
    frames_bytes: int
    payload: FileRef | bytes

    def entries(self, first: int, last: int) -> Entries:
        """Entries [first, last) of the slice."""
        at, end = first * ENTRY_DTYPE.itemsize, last * ENTRY_DTYPE.itemsize
        if isinstance(self.payload, FileRef):
            raw = np.empty(end - at, np.uint8)
            read_exactly(self.payload.path, self.payload.entries_at + at, raw)
            return raw.view(ENTRY_DTYPE)
        return np.frombuffer(self.payload, np.uint8)[at:end].view(ENTRY_DTYPE)

    def read_frames(self, start: int, into: Bytes) -> None:
        """Fill the array with the slice's frames from byte `start` on."""
        if isinstance(self.payload, FileRef):
            read_exactly(self.payload.path, self.payload.frames_at + start, into)
        else:
            begin = self.records * ENTRY_DTYPE.itemsize + start
            into[:] = np.frombuffer(self.payload, np.uint8)[begin : begin + len(into)]


class RunCutter:
    """Gives what shards need of one run; where the records of a bucket begin is added up once."""

    def __init__(self, run: Run) -> None:
        self._run, self._buckets = run, run.histogram.records.shape[1]
        self._records, self._bytes = (
            np.concatenate([[0], np.cumsum(table)]) for table in (run.histogram.records, run.histogram.bytes)
        )

    def block(self, split: int, first_bucket: int, last_bucket: int, by_value: bool) -> RunSlice | None:
        """The run's records of a split in buckets [first_bucket, last_bucket), or None if it has none there."""
        first, last = split * self._buckets + first_bucket, split * self._buckets + last_bucket
        count, size = int(self._records[last] - self._records[first]), int(self._bytes[last] - self._bytes[first])
        if count == 0:
            return None
        entries_at = self._run.frames_bytes + int(self._records[first]) * ENTRY_DTYPE.itemsize
        block = RunSlice(count, size, FileRef(self._run.path, int(self._bytes[first]), entries_at))
        if not by_value:
            return block
        frames = np.empty(size, np.uint8)
        block.read_frames(0, frames)
        return RunSlice(count, size, block.entries(0, count).tobytes() + frames.tobytes())
