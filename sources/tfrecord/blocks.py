"""Plain TFRecord files in one pass: each byte is read once, and blocks of whole frames go to the threads that digest,
check and count them.

A block begins where the whole frames of the one before end, and what is new in it begins at a multiple of
DIGESTED_BYTES, so that threads share one file's digest, too. A file that is damaged, or has a record larger than a
block, is not for one pass, which its last block says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from recordmill.base.room import room
from recordmill.records.tfrecord.frames import Bytes, try_scan
from recordmill.shards.catalog import ShardFile
from recordmill.sources.inputs.contract import UNIT_BYTES, PlanOptions
from recordmill.storage.digest import DIGESTED_BYTES
from recordmill.storage.files import open_reader, read_range

_SHARE = 8  # an eighth of the memory, at most, for the blocks of all threads; twice as many may be under way


@dataclass(frozen=True)
class Block:
    """Some whole frames of file `ordinal`, the first of which is record first_record and stands at byte first_offset,
    as data begins.

    data: None: all of the file, still to be read. fresh: where in data begins what no block before had. stop: behind
    the last whole frame. is_sound: False: it can't be read in one pass from here on.
    """

    ordinal: int
    first_record: int = 0
    first_offset: int = 0
    data: Bytes | None = None
    fresh: int = 0
    stop: int = 0
    is_sound: bool = True


def block_bytes(common: PlanOptions) -> int:
    """What is read at once: about a unit, or less where the memory is small."""
    most = min(UNIT_BYTES, common.memory_bytes // (_SHARE * common.threads))
    return max(most // DIGESTED_BYTES, 1) * DIGESTED_BYTES


def blocks(shards: Sequence[ShardFile], size: int) -> Iterator[Block]:
    """The blocks of all plain files, file by file; a file of one block is read by whoever takes that."""
    for ordinal, shard in enumerate(shards):
        if not shard.codec.is_plain or not shard.stat.size_bytes:
            continue
        if shard.stat.size_bytes <= size:
            yield Block(ordinal)
        else:
            yield from _of_file(ordinal, shard, size)


def _of_file(ordinal: int, shard: ShardFile, size: int) -> Iterator[Block]:
    record = offset = at = 0
    rest = np.empty(0, np.uint8)
    with open_reader(shard.path) as reader:
        while at < shard.stat.size_bytes:
            data = room(len(rest) + size, np.uint8)
            data[: len(rest)] = rest
            found = reader.fill(data[len(rest) :], at)
            data, fresh, at = data[: len(rest) + len(found)], len(rest), at + len(found)
            final = at >= shard.stat.size_bytes or not len(found)
            frames, stop, error = try_scan(data, source=shard.path, final=final, check=False)
            sound = error is None and stop > 0 and len(found) > 0
            yield Block(ordinal, record, offset, data, fresh, stop, sound)
            if not sound:
                return
            record, offset, rest = record + len(frames), offset + stop, data[stop:]


def read_block(block: Block, shard: ShardFile) -> Block:
    """The same with its data."""
    if block.data is not None:
        return block
    data = read_range(shard.path)
    return Block(block.ordinal, data=data, stop=len(data))
