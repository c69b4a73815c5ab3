"""Plans TFRecord files in one pass: the units of each and, where they are to be told by the records, what these are;
blocks of whole frames go to the threads that check and count them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import numpy as np

from recordmill.base.arrays import Bytes
from recordmill.base.threads import thread_map
from recordmill.records.inference.infer import Inference
from recordmill.records.tfrecord.frames import Frames, try_scan
from recordmill.schemas.feature import check_feature_count
from recordmill.shards.catalog import ShardFile
from recordmill.shards.cutting import cut
from recordmill.shards.loading.batches import Load, loads
from recordmill.shards.loading.infer_schema import infer_files, infer_frames
from recordmill.shards.loading.salvage import frames_of, recovered
from recordmill.shards.pieces import FrameBlock, Piece
from recordmill.sources.common.contract import UNIT_BYTES, PlanOptions, Unit, packed
from recordmill.sources.common.scan_cache import RecordKeeper, ScanCache
from recordmill.storage.files import read_blocks, read_range

_BLOCK_BYTES = 8 << 20  # 8 MiB: blocks are multiples of it
_SHARE = 8  # an eighth of the memory, at most, for the blocks of all threads; twice as many may be under way


@dataclass(frozen=True)
class Block:
    """Some whole frames of file `ordinal`, the first of which is record first_record and stands at byte first_offset,
    as data begins.

    Attributes:
        data: None: all of the file, still to be read.
        stop: After the last whole frame.
        is_sound: False: it can't be read in one pass from here on.
    """

    ordinal: int
    first_record: int = 0
    first_offset: int = 0
    data: Bytes | None = None
    stop: int = 0
    is_sound: bool = True


def block_bytes(common: PlanOptions) -> int:
    """Returns the bytes that are read at once: about a unit, or less where the memory is small."""
    most = min(UNIT_BYTES, common.memory_bytes // (_SHARE * common.threads))
    return max(most // _BLOCK_BYTES, 1) * _BLOCK_BYTES


def blocks(shards: Sequence[ShardFile], size: int) -> Iterator[Block]:
    """Yields the blocks of all plain files, file by file; a file of one block is read by whoever takes that."""
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
    for block in read_blocks(shard.path, size):
        at += len(block)
        data = np.concatenate([rest, block])
        frames, stop, error = try_scan(data, source=shard.path, final=at >= shard.stat.size_bytes, check=False)
        sound = error is None and stop > 0
        yield Block(ordinal, record, offset, data, stop, sound)
        if not sound:
            return
        record, offset, rest = record + len(frames), offset + stop, data[stop:]


def read_block(block: Block, shard: ShardFile) -> Block:
    """Returns the block with its data."""
    if block.data is not None:
        return block
    data = read_range(shard.path)
    return Block(block.ordinal, data=data, stop=len(data))


_LOAD_BYTES = 2048  # of memory, beside its bytes and the numbers of its frames


@dataclass(frozen=True)
class CachedLoad:
    """A load whose frames are in memory, or say a fault."""

    load: Load

    @property
    def size_bytes(self) -> int:
        """Bytes that it takes of the memory, roughly: of its data all that was read at once."""
        if self.load.block is None:
            return _LOAD_BYTES
        frames = self.load.block.frames
        numbers = frames.starts.nbytes + frames.lengths.nbytes + frames.crcs.nbytes
        return int(_held(frames.data).nbytes + numbers + _LOAD_BYTES)


def _held(data: Bytes) -> Bytes:
    """Returns the array that is kept in memory where data is."""
    while isinstance(data.base, np.ndarray):
        data = data.base
    return data


def _apart(load: Load) -> CachedLoad:
    """Returns the load as it is kept: the end of a stream leaves most of its buffer empty, which is then given back."""
    block = load.block
    if block is not None and _held(block.frames.data).nbytes > 2 * block.frames.data.nbytes:
        load = replace(load, block=replace(block, frames=replace(block.frames, data=block.frames.data.copy())))
    return CachedLoad(load)


@dataclass(frozen=True)
class ScannedFile:
    """inference: what the records are; None where they were not counted on the way."""

    units: tuple[Unit, ...]
    inference: Inference | None = None


@dataclass(frozen=True)
class _Part:
    """Findings of a block. unit: None: its file can't be read in one pass."""

    ordinal: int
    unit: Unit | None = None
    inference: Inference | None = None


def scan_tfrecords(
    shards: Sequence[ShardFile], common: PlanOptions, counting: bool, cache: ScanCache[CachedLoad]
) -> list[ScannedFile]:
    """Returns each file, in order; counting: also what its records are. kept: where records are kept, under the
    beginnings of their units.
    """
    parts: dict[int, list[_Part]] = defaultdict(list)
    look = partial(_look_at_block, shards=shards, counting=counting, cache=cache, memory_bytes=common.memory_bytes)
    for part in thread_map(look, blocks(shards, block_bytes(common)), common.threads):
        parts[part.ordinal].append(part)
    for ordinal, found in list(parts.items()):
        if not _is_whole(shards[ordinal], found):
            del parts[ordinal]
            for part in found:
                if part.unit is not None:
                    cache.take((ordinal, part.unit.start))
    around = partial(_look_around, counting=counting, cache=cache, memory_bytes=common.memory_bytes)
    rest = [(ordinal, shard) for ordinal, shard in enumerate(shards) if ordinal not in parts]
    looked = dict(zip((ordinal for ordinal, _ in rest), thread_map(around, rest, common.threads), strict=True))
    return [looked[at] if at in looked else _together(parts[at], counting, cache) for at in range(len(shards))]


def count_records(shards: Sequence[ShardFile], looked: Sequence[ScannedFile], common: PlanOptions) -> Inference:
    """Counts the records of all files, those that were not counted on the way included."""
    parts = (
        one.inference or infer_files([shard], threads=common.threads, lenient=True, memory_bytes=common.memory_bytes)
        for shard, one in zip(shards, looked, strict=True)
    )
    found = reduce(lambda one, other: one + other, parts, Inference())
    check_feature_count(len(found.features), common.memory_bytes)
    return found


def _look_at_block(
    block: Block, *, shards: Sequence[ShardFile], counting: bool, cache: ScanCache[CachedLoad], memory_bytes: int
) -> _Part:
    if not block.is_sound:
        return _Part(block.ordinal)
    shard = shards[block.ordinal]
    block = read_block(block, shard)
    assert block.data is not None
    keeping = RecordKeeper(cache)
    frames, stop, error = try_scan(
        block.data[: block.stop], source=shard.path, final=True, check=counting or keeping.goes_on
    )
    if error is not None:
        return _Part(block.ordinal)
    start, ordinal = block.first_offset, block.ordinal
    if keeping.goes_on:
        keeping.add(_kept_load(shard, block, frames))
        keeping.put((ordinal, start))
    unit = Unit(ordinal, ordinal + 1, start, start + stop, block.first_record, len(frames), stop)
    inference = infer_frames(recovered(frames, block.first_record), shard.name, memory_bytes) if counting else None
    return _Part(ordinal, unit, inference)


def _kept_load(shard: ShardFile, block: Block, frames: Frames) -> CachedLoad:
    start = block.first_offset
    piece = Piece(block.ordinal, block.first_record, len(frames), start, start + block.stop)
    return CachedLoad(Load(shard, piece, FrameBlock(frames, block.first_record, start)))


def _is_whole(shard: ShardFile, parts: Sequence[_Part]) -> bool:
    """Returns whether the parts are all of the file, and what the manifest says where there is one."""
    units = [part.unit for part in parts if part.unit is not None]
    if len(units) < len(parts) or units[-1].stop != shard.stat.size_bytes:
        return False
    return shard.info is None or (
        shard.info.framed_bytes == units[-1].stop and shard.info.records == sum(unit.rows or 0 for unit in units)
    )


def _together(parts: Sequence[_Part], counting: bool, cache: ScanCache[CachedLoad]) -> ScannedFile:
    units = tuple(part.unit for part in parts if part.unit is not None)
    if not any(cache.has((unit.first_file, unit.start)) for unit in units):
        units = packed(units, UNIT_BYTES, parts=True)
    counts = (part.inference for part in parts if part.inference is not None)
    inference = reduce(lambda one, other: one + other, counts, Inference()) if counting else None
    return ScannedFile(units, inference)


def _look_around(
    item: tuple[int, ShardFile], *, counting: bool, cache: ScanCache[CachedLoad], memory_bytes: int
) -> ScannedFile:
    """Returns a file that is compressed or damaged, or has a record that is larger than a block."""
    ordinal, shard = item
    units, inference = [], None
    for piece in cut(shard, ordinal, UNIT_BYTES, lenient=True):
        if piece.stop is None:
            unit, inference = _of_stream(shard, piece, counting, cache, memory_bytes)
        else:
            records = 1 if piece.fault else piece.records
            size = piece.stop - piece.start
            unit = Unit(ordinal, ordinal + 1, piece.start, piece.stop, piece.first_record, records, size)
        units.append(unit)
    return ScannedFile(tuple(units), inference)


def _of_stream(
    shard: ShardFile, piece: Piece, counting: bool, cache: ScanCache[CachedLoad], memory_bytes: int
) -> tuple[Unit, Inference | None]:
    """Returns a compressed file tells its records only by reading it."""
    records = size = 0
    inference, keeping = Inference(), RecordKeeper(cache)
    for load in loads({piece.file: shard}, [piece], lenient=True):  # type: ignore[arg-type]
        found = frames_of(load)
        records += len(found.starts) + len(found.rejects)
        size += int(found.lengths.sum())
        if counting:
            inference = inference + infer_frames(found, shard.name, memory_bytes)
        if keeping.goes_on:
            keeping.add(_apart(load))
    keeping.put((piece.file, 0))
    unit = Unit(piece.file, piece.file + 1, rows=records, size_bytes=size)
    return unit, inference if counting else None
