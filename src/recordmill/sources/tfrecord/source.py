"""Plans and reads TFRecord files: records are split, shuffled and sharded anew as they are, without a change of a
payload. One pass plans: it finds the units of each file and, where the records are to tell it, what these are.

The schema comes from the user, from the data set's manifest, from a `schema.pbtxt` beside the files or one folder above
them, or else is inferred from all records. Records that the schema does not fit are rejects, so that what is built can
be read. A record's position is its number in the file. A record whose CRC is wrong is a reject with its offset; where a
header is damaged, reading goes on at the next header that is right, and what was skipped is one reject.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce

import numpy as np

from recordmill.base.buffers import Bytes
from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.option_names import option, there_are
from recordmill.base.threads import thread_map
from recordmill.records.inference.infer import Inference
from recordmill.records.tfrecord.frames import HEADER_BYTES, Frames, pack_spans, try_scan
from recordmill.records.tfrecord.stream import detect_tfrecord
from recordmill.schemas import tfmd
from recordmill.schemas.feature import INT64, PAYLOAD, Schema, check_feature_count
from recordmill.shards.catalog import UNKNOWN_SPLIT, ShardFile, of_data_set, split_of_shard
from recordmill.shards.cutting import cut
from recordmill.shards.loading.batches import Load, loads, within_memory
from recordmill.shards.loading.infer_schema import infer_files, infer_frames, schema_of
from recordmill.shards.loading.salvage import Recovered, fitting_frames, frames_of, recovered
from recordmill.shards.loading.schema_hints import own_classes
from recordmill.shards.manifest import is_data_set
from recordmill.shards.pieces import FrameBlock, Piece
from recordmill.sources.common.contract import (
    BATCH_BYTES,
    BATCH_ROWS,
    UNIT_BYTES,
    Chunk,
    Payloads,
    PlanOptions,
    Unit,
    packed,
)
from recordmill.sources.common.scan_cache import RecordKeeper, ScanCache
from recordmill.sources.values.labels import show_classes
from recordmill.storage.compression import COMPRESSED_HEAD_BYTES
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import check_unchanged, read_blocks, read_range
from recordmill.storage.folders import is_file, real_path
from recordmill.storage.json_fields import read_bounded

_BLOCK_BYTES = 8 << 20  # 8 MiB: blocks are multiples of it
_SHARE = 8  # an eighth of the memory, at most, for the blocks of all threads; twice as many may be under way
_LOAD_BYTES = 2048  # of memory, beside its bytes and the numbers of its frames
SCHEMA_FILE = "schema.pbtxt"


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


@dataclass(frozen=True)
class TfrecordOptions:
    """There is nothing to choose: compression is told by content, the schema is an option of all kinds."""


@dataclass(frozen=True)
class TfrecordSource:
    """TFRecord files as a `Source`.

    Attributes:
        shards: The files as the readers of shards have them.
        checks_records: Whether records are compared with the schema.
        bounded: Whether numbers of classes are, too.
    """

    schema: Schema
    files: FileTable
    shards: Sequence[ShardFile]
    units: Sequence[Unit]
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    checks_records: bool = False
    bounded: bool = False
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    cache: ScanCache[CachedLoad] = field(default_factory=ScanCache, compare=False, repr=False)
    kind: str = "tfrecord"

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields the unit's payloads, CRCs checked; a unit without a stop is a whole file, read as a stream."""
        ordinal = unit.first_file
        file = self.files[ordinal]
        check_unchanged(file.path, file.stat, file.name)
        for load in self._loads(unit):
            fits = fitting_frames(load, self.schema, bounded=self.bounded) if self.checks_records else frames_of(load)
            yield from _chunks(fits, ordinal)
        check_unchanged(file.path, file.stat, file.name)

    def _loads(self, unit: Unit) -> Iterator[Load]:
        """Returns the loads that the plan has cached, or else those of the file."""
        ordinal = unit.first_file
        if (cached := self.cache.take((ordinal, unit.start))) is not None:
            return (one.load for one in cached)
        records = unit.rows if self.shards[ordinal].info else None
        piece = Piece(ordinal, unit.first_row, records, unit.start, unit.stop or None)
        return (within_memory(load, self.memory_bytes) for load in loads(self.shards, [piece], lenient=True))


def _chunks(found: Recovered, ordinal: int) -> Iterator[Chunk]:
    """Yields the good records in chunks of about BATCH_BYTES; the rejects go with the first one."""
    rejects = found.rejects
    ends = np.cumsum(found.lengths)
    first = 0
    while first < len(ends) or rejects:
        before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, before + BATCH_BYTES, "right")), first + 1)
        last = min(last, first + BATCH_ROWS, len(ends))
        offsets = np.concatenate([np.zeros(1, np.int64), ends[first:last] - before])
        data = np.empty(int(offsets[-1]), np.uint8)
        pack_spans([found.data], found.starts[first:last] + HEADER_BYTES, found.lengths[first:last], data)
        yield Chunk(
            Payloads(data, offsets), np.full(last - first, ordinal, np.uint32), found.numbers[first:last], rejects
        )
        first, rejects = last, ()


def plan_tfrecord(files: Sequence[InputFile], options: TfrecordOptions, common: PlanOptions) -> TfrecordSource:
    """Finds the records by their headers, and the schema.

    Raises:
        DataError: there is no record, or schema files disagree. UsageError: an option would need parsing, or names no
            feature.
    """
    if common.dtypes:
        name, dtype = next(iter(common.dtypes.items()))
        raise UsageError(
            f"{option('dtypes', {name: dtype})}: records of TFRecord files are kept as they are; to change types, read "
            "them to Parquet and build from that"
        )
    files, shards, notes = _current(files)
    paths = sorted({path for shard in shards if (path := _schema_file(shard.path)) is not None})
    counting = bool(common.may_lack) or (common.schema is None and not paths)
    cache = ScanCache[CachedLoad](common.cache_bytes)
    looked = scan_tfrecords(shards, common, counting, cache)
    cache.settle(lambda _: True)
    units = tuple(unit for one in looked for unit in one.units)
    if not units:
        raise DataError("there are no records", source=files[0].name if files else "")
    counted = count_records(shards, looked, common) if counting else None
    schema, schema_notes, all_fit = _schema(shards, paths, common, counted)
    for file in files:
        check_unchanged(file.path, file.stat, file.name)
    return TfrecordSource(
        *(schema, FileTable.of(files), [shard.for_other_hosts() for shard in shards], units),
        notes=(*notes, *schema_notes),
        checks_records=schema.message != PAYLOAD and not all_fit,
        bounded=common.schema is not None,
        memory_bytes=common.memory_bytes,
        cache=cache,
    )


def _current(files: Sequence[InputFile]) -> tuple[tuple[InputFile, ...], tuple[ShardFile, ...], tuple[str, ...]]:
    """Returns (files with the splits that their names say, the same as shards, notes), without shards of a data set's
    earlier generations.
    """
    known: dict[str, Mapping[str, ShardFile]] = {}
    current: list[InputFile] = []
    shards: list[ShardFile] = []
    stale = 0
    for file in files:
        root = os.path.dirname(os.path.dirname(file.path))
        if root not in known:
            known[root] = (
                {real_path(shard.path): shard for shard in of_data_set(root, lenient=True).files}
                if is_data_set(root)
                else {}
            )
        shard = known[root].get(real_path(file.path))
        if known[root] and shard is None:
            stale += 1
            continue
        if shard is None:
            shard = ShardFile(
                file.path,
                file.name,
                split_of_shard(file.name),
                detect_tfrecord(read_range(file.path, 0, COMPRESSED_HEAD_BYTES).tobytes()),
                file.stat,
            )
        split = shard.split if shard.split != UNKNOWN_SPLIT else file.split
        current.append(replace(file, split=split))
        shards.append(replace(shard, name=file.name))
    notes = (f"{stale} shard(s) of earlier generations of their data set were left out",) if stale else ()
    return tuple(current), tuple(shards), notes


def _schema(
    shards: Sequence[ShardFile], paths: Sequence[str], common: PlanOptions, counted: Inference | None
) -> tuple[Schema, Sequence[str], bool]:
    """Returns (schema, notes on where it is from, whether every record is known to be of it). paths: schema files
    beside the shards; counted: what all records are, where that is asked.
    """
    all_fit, classes = False, own_classes(shards)
    left_out: list[str] = []
    if common.may_lack and counted is not None:  # which of them the records have, only the records say
        common, left_out = common.without_absent(schema_of(shards, counted)[0].names, "the records")
    if common.schema is not None:
        schema, schema_notes = common.schema, ["schema as given", *left_out]
    elif paths:
        found = [tfmd.from_pbtxt(read_bounded(path), path) for path in paths]
        if any(other != found[0] for other in found[1:]):
            _check_classes(found[0], classes)
            raise DataError(
                f"{paths[0]} and {next(p for p, s in zip(paths, found, strict=True) if s != found[0])} "
                f"differ; say which: {option('schema', 'FILE')}"
            )
        schema, schema_notes = found[0], [f"schema from {os.path.basename(os.path.dirname(paths[0]))}/{SCHEMA_FILE}"]
        all_fit = all(shard.info is not None for shard in shards)
    else:
        assert counted is not None
        schema, hinted = schema_of(shards, counted)
        schema_notes, all_fit = ["schema inferred from all records", *hinted], not counted.others
    _check_classes(schema, classes)
    if common.label is not None:
        if common.label not in schema:
            raise UsageError(
                f"{option('label', common.label)}: no such feature; {there_are(common.label, schema.names)}"
            )
        schema = replace(schema, label=common.label)
    return schema, schema_notes, all_fit


def _check_classes(schema: Schema, own: Mapping[str, Mapping[tuple[str, ...], str]]) -> None:
    """Refuses records whose numbers are those of other classes. own: the classes that the records' own files name."""
    for feature in schema:
        tables = own.get(feature.name, {}) if feature.kind == INT64 else {}
        wanted = feature.classes or max(tables, key=len, default=())
        for names, path in tables.items():
            if names[: len(wanted)] != wanted[: len(names)]:
                other = "the schema's" if feature.classes else f"those of {tables[wanted]}"
                raise DataError(
                    f"{feature.name!r} has numbers of the classes {show_classes(names)}, and {other} are "
                    f"{show_classes(wanted)}; records of TFRecord files are kept as they are, so read each of them to "
                    "Parquet and build from that, where classes go by name",
                    source=path,
                )


def _schema_file(path: str) -> str | None:
    folder = os.path.dirname(path)
    places = (os.path.join(folder, SCHEMA_FILE), os.path.join(os.path.dirname(folder), SCHEMA_FILE))
    return next((place for place in places if is_file(place)), None)
