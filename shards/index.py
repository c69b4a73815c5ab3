"""The index of a shard: a `.npy` of one structured entry per record, so that record 17 is one seek away.

`np.load(path, mmap_mode="r")` opens it. For gzip shards the offsets count uncompressed bytes, and a member table beside
it says where in the file the member that holds an offset begins.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError
from recordmill.records.writers.npy_file import npy_header
from recordmill.storage.files import map_file

# offset: of the frame's first byte in the uncompressed shard; length: of the payload, so a frame is length + 16 bytes;
# key: its place in the global order
INDEX_DTYPE = np.dtype([("offset", "<i8"), ("length", "<i8"), ("key", "<u8")])
# compressed: the member's first byte in the file; uncompressed: the first byte it holds of the shard
MEMBERS_DTYPE = np.dtype([("compressed", "<i8"), ("uncompressed", "<i8")])

_PREFIX_BYTES = 10  # of a .npy: magic, version and the header's length

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


def map_table(path: str, dtype: np.dtype[np.void]) -> Index:
    """The entries of an index or a member table, memory-mapped.

    The header must be, byte for byte, that of as many entries as the file has. `np.load` would parse it with
    `ast.literal_eval`, which CPython 3.11 can't do in two threads at once (SystemError: AST constructor recursion depth
    mismatch).

    Raises:
        DataError: the file is missing, or is not such a table.
    """
    try:
        data = map_file(path)
    except FileNotFoundError:
        raise DataError("is missing", source=path) from None
    header_bytes = _PREFIX_BYTES + int.from_bytes(data[_PREFIX_BYTES - 2 : _PREFIX_BYTES].tobytes(), "little")
    rows, rest = divmod(len(data) - header_bytes, dtype.itemsize)
    if rows < 0 or rest or data[:header_bytes].tobytes() != npy_header(dtype, (rows,), header_bytes):
        raise DataError(
            f"is no index: not a .npy of {dtype.itemsize}-byte entries ({', '.join(dtype.names or ())})", source=path
        )
    return data[header_bytes:].view(dtype)
