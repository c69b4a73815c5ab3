"""The index of a shard: a `.npy` of one structured entry per record, so that record 17 is one seek away.

`np.load(path, mmap_mode="r")` opens it. For gzip shards the offsets count uncompressed bytes, and a member table beside it
says where in the file the member that holds an offset begins.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# offset: of the frame's first byte in the uncompressed shard; length: of the payload, so a frame is length + 16 bytes; key: its place in the global order
INDEX_DTYPE = np.dtype([("offset", "<i8"), ("length", "<i8"), ("key", "<u8")])
# compressed: the member's first byte in the file; uncompressed: the first byte it holds of the shard
MEMBERS_DTYPE = np.dtype([("compressed", "<i8"), ("uncompressed", "<i8")])

Index = npt.NDArray[np.void]

FRAME_BYTES = 16  # u64 length, u32 CRC of it, payload, u32 CRC of the payload


def make_index(frame_bytes: npt.NDArray[np.int64], keys: npt.NDArray[np.uint64], first_offset: int = 0) -> Index:
    """The entries of consecutive frames of these sizes, the first of which begins at first_offset."""
    index = np.empty(len(keys), INDEX_DTYPE)
    ends = np.cumsum(frame_bytes)
    index["offset"] = first_offset + ends - frame_bytes
    index["length"] = frame_bytes - FRAME_BYTES
    index["key"] = keys
    return index
