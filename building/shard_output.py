"""Where a shard's frames go: a plain file, or a compressed one of record-aligned members;
both count and digest what they write.
"""

from __future__ import annotations

from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from recordmill.records.tfrecord.frames import Frames
from recordmill.records.tfrecord.members import MemberWriter
from recordmill.shards.index import MEMBERS_DTYPE
from recordmill.storage.codecs import find_codec
from recordmill.storage.digest import Digest
from recordmill.storage.disk.past_cache import DirectFile
from recordmill.storage.files import Bytes, write_all


class ShardOutput:
    """Frames into a file. bytes: of the file so far. digest: of it, as text (`storage.digest`)."""

    def __init__(self, file: BinaryIO | DirectFile, compression: str) -> None:
        self._file, self._digest, self.bytes = file, Digest(), 0
        codec = find_codec(compression)
        self._members = None if codec.is_plain else MemberWriter(self._put, codec)

    @property
    def digest(self) -> str:
        return self._digest.text()

    def write(self, frames: Frames) -> None:
        """Add contiguous frames."""
        if self._members is None:
            self._put(frames.data)
        else:
            self._members.write(frames)

    def close(self) -> npt.NDArray[np.void] | None:
        """Write what was held back; gives the member table of a compressed shard."""
        if self._members is None:
            return None
        self._members.close()
        compressed, uncompressed = self._members.table
        table = np.empty(len(compressed), MEMBERS_DTYPE)
        table["compressed"], table["uncompressed"] = compressed, uncompressed
        return table

    def _put(self, data: bytes | Bytes) -> None:
        self._digest.update(data)
        self.bytes += write_all(self._file, data)
