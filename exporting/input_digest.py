"""The digest of what some pieces were read from: the bytes of their files as they lie on disk, to tell later whether
they are still the same.

SHA-256 over the CRC32C of blocks: it runs at the speed of memory (SHA-256 by itself at a sixth of it), and it has to
tell a file that was made anew or damaged, not one that was forged. A block that changed keeps its CRC by chance once in
four billion.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from recordmill.records.tfrecord.crc32c import crc32c
from recordmill.shards.catalog import ShardFile
from recordmill.shards.pieces import Piece, load_index, raw_range
from recordmill.storage.files import read_blocks

_BLOCK_BYTES = 256 << 10  # 256 KiB: what was read is still in the core's cache when its CRC is computed


def digest_inputs(files: Sequence[ShardFile], pieces: Sequence[Piece], *, lenient: bool = False) -> str:
    """The digest, in hex, of the bytes on disk that hold these pieces; lenient: and of the index, by which damaged
    shards of ours are then read.

    Raises:
        OSError: a file is gone. DataError: its index is.
    """
    whole = hashlib.sha256()
    for file, start, stop in _ranges(files, pieces):
        whole.update(b"%d %d %d " % (file, start, stop))
        for block in read_blocks(files[file].path, _BLOCK_BYTES, start, stop):
            whole.update(crc32c(block).to_bytes(4, "little"))
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
