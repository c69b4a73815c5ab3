"""The digest of what some pieces were read from, to tell later whether it is still the same: it has to tell a file that
was made anew or damaged, not one that was forged.

Where each record is read and checked, it is that of their lengths and CRCs, which the reader has at hand
(`frame_digests`); no input is read once more for it. Where damaged records are left out, or not all are read, it is
that of the files' bytes as they lie on disk: SHA-256 over the CRC32C of blocks. A record, or a block, that changed
keeps its CRC by chance once in four billion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from blake3 import blake3

from recordmill.base import native
from recordmill.shards.catalog import ShardFile
from recordmill.shards.pieces import FrameBlock, Piece, load_index, raw_range, read_piece
from recordmill.storage.files import read_blocks

_BLOCK_BYTES = 256 << 10  # 256 KiB: what was read is still in the core's cache when its CRC is computed


def frame_digests(file: int, blocks: Iterable[FrameBlock]) -> bytes:
    """The digests of these frames, which were checked, of the file of this number."""
    return b"".join(_frames_digest(file, block) for block in blocks)


def _frames_digest(file: int, block: FrameBlock) -> bytes:
    digest = blake3(b"%d %d %d " % (file, block.first_record, block.first_offset))
    digest.update(memoryview(np.ascontiguousarray(block.frames.lengths)).cast("B"))
    digest.update(memoryview(np.ascontiguousarray(block.frames.crcs)).cast("B"))
    return digest.digest()


def digest_frames(files: Sequence[ShardFile], pieces: Sequence[Piece]) -> str:
    """What `frame_digests` gives of the loads of these pieces, in order, as one digest in hex, by reading and checking
    them.

    Raises:
        OSError: a file is gone. DataError: it is damaged.
    """
    whole = hashlib.sha256()
    for piece in pieces:
        for block in read_piece(files[piece.file], piece):
            whole.update(_frames_digest(piece.file, block))
    return whole.hexdigest()


def digest_bytes(files: Sequence[ShardFile], pieces: Sequence[Piece], *, lenient: bool = False) -> str:
    """The digest, in hex, of the bytes on disk that hold these pieces; lenient: and of the index, by which damaged
    shards of ours are then read.

    Raises:
        OSError: a file is gone. DataError: its index is.
    """
    whole = hashlib.sha256()
    for file, start, stop in _ranges(files, pieces):
        whole.update(b"%d %d %d " % (file, start, stop))
        for block in read_blocks(files[file].path, _BLOCK_BYTES, start, stop):
            whole.update(native.crc32c(block, 0).to_bytes(4, "little"))
    for piece in pieces if lenient else ():
        index = load_index(files[piece.file], lenient=True)
        if index is not None:
            whole.update(index[piece.first_record : piece.first_record + (piece.records or 0)].tobytes())
    return whole.hexdigest()


def _ranges(files: Sequence[ShardFile], pieces: Sequence[Piece]) -> Iterator[tuple[int, int, int]]:
    """(file, first byte, behind the last byte) of the pieces; those that touch or overlap as one."""
    held: tuple[int, int, int] | None = None
    for piece in pieces:
        start, stop = raw_range(files[piece.file], piece)
        if held is not None and held[0] == piece.file and start <= held[2]:
            held = (held[0], held[1], max(held[2], stop))
            continue
        if held is not None:
            yield held
        held = (piece.file, start, stop)
    if held is not None:
        yield held
