"""The digest of a file: SHA-256 over the SHA-256 digests of its fixed 8 MiB chunks,
so that many threads can share one file.

It equals no other tool's digest of the file, on purpose: a plain SHA-256 can't be computed in parallel or resumed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from recordmill.storage.files import Bytes, read_blocks

DIGESTED_BYTES = 8 << 20  # 8 MiB: decided once, part of the manifest's format


def chunk_digests(data: Bytes) -> list[bytes]:
    """The digests of consecutive chunks of data, which must start at a multiple of CHUNK_BYTES in its file."""
    view = memoryview(np.ascontiguousarray(data))
    return [hashlib.sha256(view[at : at + DIGESTED_BYTES]).digest() for at in range(0, len(view), DIGESTED_BYTES)]


def combine(digests: Iterable[bytes]) -> str:
    """The file's digest, in hex, from its chunks' digests in order."""
    whole = hashlib.sha256()
    for digest in digests:
        whole.update(digest)
    return whole.hexdigest()


def digest_file(path: str) -> str:
    """The file's digest, in hex, reading it in chunks."""
    return combine(digest for block in read_blocks(path, DIGESTED_BYTES) for digest in chunk_digests(block))
