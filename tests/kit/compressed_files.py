"""A content of 3,000 bytes in each compression format."""

import bz2
import gzip
import lzma
import zlib
from pathlib import Path

import numpy as np

from kit.files import zstd
from recordmill.storage.codecs import find_codec
from recordmill.storage.compression import open_blocks

CONTENT = np.random.default_rng(1).integers(0, 9, 3000, dtype=np.uint8).tobytes()


gzip_member = find_codec("gzip").pack


PACKED = {
    "gzip": gzip_member(CONTENT[:2000]) + gzip_member(b"") + gzip.compress(CONTENT[2000:]),
    "zlib": zlib.compress(CONTENT),
    "zstd": zstd(CONTENT[:2000]) + zstd(CONTENT[2000:]),
    "bz2": bz2.compress(CONTENT[:2000]) + bz2.compress(CONTENT[2000:]),
    "xz": lzma.compress(CONTENT[:2000]) + lzma.compress(CONTENT[2000:]),
}


def read_compressed(
    path: Path, data: bytes, kind: str = "auto", block_bytes: int = 700, **options: object
) -> bytes:
    """Writes `data` to `path`, and returns its decompressed content.

    Asserts that all blocks but the last one have `block_bytes` bytes.
    """
    path.write_bytes(data)
    blocks = list(
        open_blocks(str(path), block_bytes=block_bytes, compression=kind, source="name", **options)
    )  # type: ignore[arg-type]
    assert all(len(block) == block_bytes for block in blocks[:-1])
    assert all(0 < len(block) <= block_bytes for block in blocks)
    return b"".join(block.tobytes() for block in blocks)
