"""The digests of files: BLAKE3, at four times the speed of SHA-256 (6.4 GB/s a core). Each is given as text that
names its algorithm, `blake3:<64 hexadecimal digits>`; `sha256:` is read, too, since data sets of earlier versions have
it.

A shard's digest is that of the whole file, as `b3sum` prints it. An input's is BLAKE3 over the BLAKE3 digests of its
fixed 8 MiB chunks, so that many threads can share one file: it equals no other tool's digest of the file, on purpose.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
from blake3 import blake3

from recordmill.storage.files import Bytes, read_blocks

DIGESTED_BYTES = 8 << 20  # 8 MiB: decided once, part of the manifest's format
BLAKE3, SHA256 = "blake3", "sha256"
ALGORITHMS = (BLAKE3, SHA256)  # that a manifest may name
_BLOCK_BYTES = 4 << 20  # 4 MiB: of a whole file at once


class _Hasher(Protocol):
    def update(self, data: bytes | memoryview | Bytes, /) -> object: ...
    def hexdigest(self) -> str: ...


class Digest:
    """The digest of bytes that come in pieces."""

    def __init__(self, algorithm: str = BLAKE3) -> None:
        self._algorithm = algorithm
        self._hasher: _Hasher = blake3() if algorithm == BLAKE3 else hashlib.new(algorithm)

    def update(self, data: bytes | memoryview | Bytes) -> None:
        self._hasher.update(data)

    def text(self) -> str:
        """`blake3:<hex>`."""
        return f"{self._algorithm}:{self._hasher.hexdigest()}"


def algorithm_of(digest: str) -> str:
    """Which algorithm a digest says that it is of; those of manifests are checked to be one of ALGORITHMS.

    >>> algorithm_of("sha256:0a")
    'sha256'
    """
    return digest.partition(":")[0]


def whole_digest(path: str, algorithm: str = BLAKE3) -> str:
    """The digest of the file's bytes, as text; what other tools print, behind the algorithm's name."""
    digest = Digest(algorithm)
    for block in read_blocks(path, _BLOCK_BYTES):
        digest.update(block)
    return digest.text()


def chunk_digests(data: Bytes) -> list[bytes]:
    """The digests of consecutive chunks of data, which must start at a multiple of DIGESTED_BYTES in its file."""
    view = memoryview(np.ascontiguousarray(data))
    return [blake3(view[at : at + DIGESTED_BYTES]).digest() for at in range(0, len(view), DIGESTED_BYTES)]


def combine(digests: Iterable[bytes]) -> str:
    """The file's digest, as text, from its chunks' digests in order."""
    whole = Digest()
    for digest in digests:
        whole.update(digest)
    return whole.text()


def file_chunk_digests(path: str) -> Iterator[bytes]:
    """The digests of the file's chunks, in order."""
    for block in read_blocks(path, DIGESTED_BYTES):
        yield from chunk_digests(block)


def digest_file(path: str) -> str:
    """The digest of an input, as text, reading it in chunks."""
    return combine(file_chunk_digests(path))
