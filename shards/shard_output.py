"""Where a shard's frames go: a plain file, or a gzip file of record-aligned members; both count and digest what they write."""

from __future__ import annotations

import hashlib
from typing import BinaryIO

from recordmill.records.frames import Frames
from recordmill.storage.files import write_all


class PlainOutput:
    """Frames as they are."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest, self.bytes = file, hashlib.sha256(), 0

    @property
    def sha256(self) -> str:
        """Of the file, in hex: what `sha256sum` prints."""
        return self._digest.hexdigest()

    def write(self, frames: Frames) -> None:
        """Add contiguous frames."""
        self._put(memoryview(frames.data))

    def _put(self, data: memoryview | bytes) -> None:
        self._digest.update(data)
        self.bytes += write_all(self._file, data)

    def close(self) -> None:
        """Nothing is held back, and there is no member table."""
        return
