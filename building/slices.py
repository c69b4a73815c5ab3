"""Slices: what one shard needs of one run, as a reference into the run's file or memory. A run and cuts in, slices out;
nothing is merged here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from recordmill.building.run_file import ENTRY_DTYPE, Entries, HeldRun, Run
from recordmill.storage.files import Bytes, read_exactly


@dataclass(frozen=True)
class FileRef:
    """A slice of a run file: `bytes` of frames from frames_at on, and entries from entries_at on."""

    path: str
    frames_at: int
    entries_at: int


@dataclass(frozen=True)
class HeldRef:
    """A slice of a run in memory, from the run's record `first` on."""

    run: HeldRun
    first: int


@dataclass(frozen=True)
class RunSlice:
    """Consecutive records of one run that a shard needs. payload: where they are."""

    records: int
    frames_bytes: int
    payload: FileRef | HeldRef

    def entries(self, first: int, last: int) -> Entries:
        """Entries [first, last) of the slice."""
        if isinstance(self.payload, HeldRef):
            return self.payload.run.entries[self.payload.first + first : self.payload.first + last]
        raw = np.empty((last - first) * ENTRY_DTYPE.itemsize, np.uint8)
        read_exactly(self.payload.path, self.payload.entries_at + first * ENTRY_DTYPE.itemsize, raw)
        return raw.view(ENTRY_DTYPE)

    @property
    def is_held(self) -> bool:
        """Whether the frames lie in memory, each where `addresses` says, in no order."""
        return isinstance(self.payload, HeldRef)

    def addresses(self, first: int, last: int) -> npt.NDArray[np.int64]:
        """Where the frames of records [first, last) of a held slice lie, as long as the slice lives."""
        assert isinstance(self.payload, HeldRef)
        at = self.payload.first
        return self.payload.run.addresses[at + first : at + last]

    def read_frames(self, start: int, into: Bytes) -> None:
        """Fill the array with the frames from byte `start` on of a slice that is not held."""
        assert not isinstance(self.payload, HeldRef)
        read_exactly(self.payload.path, self.payload.frames_at + start, into)


class RunCutter:
    """Gives what shards need of one run; where the records of a bucket begin is added up once."""

    def __init__(self, run: Run) -> None:
        self._run, self._buckets = run, run.histogram.records.shape[1]
        self._records, self._bytes = (
            np.concatenate([[0], np.cumsum(table)]) for table in (run.histogram.records, run.histogram.bytes)
        )

    def block(self, split: int, first_bucket: int, last_bucket: int) -> RunSlice | None:
        """The run's records of a split in buckets [first_bucket, last_bucket), or None if it has none there."""
        first, last = split * self._buckets + first_bucket, split * self._buckets + last_bucket
        count, size = int(self._records[last] - self._records[first]), int(self._bytes[last] - self._bytes[first])
        if count == 0:
            return None
        entries_at = self._run.frames_bytes + int(self._records[first]) * ENTRY_DTYPE.itemsize
        if self._run.held is not None:
            return RunSlice(count, size, HeldRef(self._run.held, int(self._records[first])))
        return RunSlice(count, size, FileRef(self._run.path, int(self._bytes[first]), entries_at))
