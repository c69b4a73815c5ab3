"""Plans and reads TFRecord files: records are split, shuffled and sharded anew as they are, without a change of a
payload. The plan cuts the files into units and, where the records are to tell it, finds what these are.

The schema comes from the user, from the data set's manifest, from a `schema.pbtxt` beside the files or one folder above
them, or else is inferred from all records. Records that the schema does not fit are rejects, so that what is built can
be read. A record's position is its number in the file. A record whose CRC is wrong is a reject with its offset; where a
header is damaged, reading goes on at the next header that is right, and what was skipped is one reject.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.option_names import available_names, option
from recordmill.base.threads import thread_map
from recordmill.records.inference.infer import Inference
from recordmill.records.tfrecord.frames import HEADER_BYTES, pack_spans
from recordmill.records.tfrecord.stream import detect_tfrecord
from recordmill.schemas import tfmd
from recordmill.schemas.feature import INT64_LIST, OPAQUE_BYTES, Schema, check_feature_count
from recordmill.shards.catalog import (
    UNKNOWN_SPLIT,
    ShardFile,
    catalog_data_set,
    split_from_shard_name,
)
from recordmill.shards.cutting import cut
from recordmill.shards.loading.batches import loads, within_memory
from recordmill.shards.loading.infer_schema import infer_frames, refine_inferred
from recordmill.shards.loading.salvage import Recovered, fitting_frames, frames_of
from recordmill.shards.loading.schema_hints import find_hinted_classes
from recordmill.shards.manifest import is_data_set
from recordmill.shards.pieces import Piece
from recordmill.sources.common.contract import (
    BATCH_BYTES,
    BATCH_ROWS,
    UNIT_BYTES,
    Chunk,
    Payloads,
    PlanOptions,
    Unit,
)
from recordmill.sources.values.labels import format_classes
from recordmill.storage.compression import COMPRESSED_HEAD_BYTES
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import check_unchanged, read_range
from recordmill.storage.folders import is_file, real_path
from recordmill.storage.json_fields import read_bounded

_PIECE_STEP_BYTES = 8 << 20  # 8 MiB: pieces are multiples of it
_MEMORY_DIVISOR = 8  # an eighth of the memory, at most, for the pieces of all threads; twice as many may be under way
SCHEMA_FILE_NAME = "schema.pbtxt"


def choose_piece_bytes(common: PlanOptions) -> int:
    """Returns the bytes of a piece: about a unit, or less where the memory is small."""
    most = min(UNIT_BYTES, common.memory_bytes // (_MEMORY_DIVISOR * common.threads))
    return max(most // _PIECE_STEP_BYTES, 1) * _PIECE_STEP_BYTES


def _read_intact_frames(
    shards: Sequence[ShardFile], piece: Piece, memory_bytes: int
) -> Iterator[tuple[int, Recovered]]:
    """Yields (where in the file their data begins, frames whose CRCs are right)."""
    for load in (
        within_memory(load, memory_bytes) for load in loads(shards, [piece], lenient=True)
    ):
        yield load.first_offset, frames_of(load)


def scan_tfrecords(
    shards: Sequence[ShardFile], common: PlanOptions, counting: bool
) -> tuple[tuple[Unit, ...], Inference]:
    """Returns (the units of all files in order, what their records are). Records are read where they are counted or
    compressed; headers alone cut the others.

    Args:
        shards: The files.
        common: The threads, and how much memory they have.
        counting: Whether it is asked what the records are.
    """
    units, total = list[Unit](), Inference()
    scan = partial(_scan_piece, shards=shards, counting=counting, memory_bytes=common.memory_bytes)
    for unit, inference in thread_map(
        scan, _plan_pieces(shards, choose_piece_bytes(common), counting), common.threads
    ):
        units.append(unit)
        total = total + inference
        check_feature_count(len(total.features), common.memory_bytes)
    return tuple(units), total


def _plan_pieces(shards: Sequence[ShardFile], most_bytes: int, counting: bool) -> Iterator[Piece]:
    """Yields the pieces of all files; one that is read at once anyway needs no cut."""
    for ordinal, shard in enumerate(shards):
        size = shard.stat.size_bytes
        if counting and shard.info is None and shard.codec.is_plain and 0 < size <= most_bytes:
            yield Piece(ordinal, 0, None, 0, size)
        else:
            yield from cut(shard, ordinal, most_bytes, lenient=True)


def _scan_piece(
    piece: Piece, *, shards: Sequence[ShardFile], counting: bool, memory_bytes: int
) -> tuple[Unit, Inference]:
    inference, records, stop = Inference(), piece.records, piece.stop or 0
    size = stop - piece.start
    if counting or records is None:
        records = size = 0
        for _, found in _read_intact_frames(shards, piece, memory_bytes):
            records += len(found.starts) + len(found.rejects)
            size += int(found.lengths.sum())
            if counting:
                inference = inference + infer_frames(found, shards[piece.file].name, memory_bytes)
    return Unit(
        piece.file, piece.file + 1, piece.start, stop, piece.first_record, records, size
    ), inference


@dataclass(frozen=True)
class TfrecordOptions:
    """There is nothing to choose: compression is told by content, the schema is an option of all kinds."""


@dataclass(frozen=True)
class TfrecordSource:
    """TFRecord files as a `Source`.

    Attributes:
        shards: The files as the readers of shards have them.
        checks_records: Whether records are compared with the schema.
        checks_class_numbers: Whether numbers of classes are, too.
    """

    schema: Schema
    files: FileTable
    shards: Sequence[ShardFile]
    units: Sequence[Unit]
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    checks_records: bool = False
    checks_class_numbers: bool = False
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    kind: str = "tfrecord"

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields the unit's payloads, CRCs checked; a unit without a stop is a whole file, read as a stream."""
        ordinal = unit.begin_file
        file = self.files[ordinal]
        check_unchanged(file.path, file.stat, file.name)
        shard = self.shards[ordinal]
        records = unit.rows if shard.info else None
        piece = Piece(ordinal, unit.first_row, records, unit.start, unit.stop or None)
        for offset, found in _read_intact_frames(self.shards, piece, self.memory_bytes):
            if self.checks_records:
                found = fitting_frames(
                    found, self.schema, shard.name, offset, bounded=self.checks_class_numbers
                )
            yield from _to_chunks(found, ordinal)
        check_unchanged(file.path, file.stat, file.name)


def _to_chunks(found: Recovered, ordinal: int) -> Iterator[Chunk]:
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
        pack_spans(
            [found.data], found.starts[first:last] + HEADER_BYTES, found.lengths[first:last], data
        )
        yield Chunk(
            Payloads(data, offsets),
            np.full(last - first, ordinal, np.uint32),
            found.numbers[first:last],
            rejects,
        )
        first, rejects = last, ()


def plan_tfrecord(
    files: Sequence[InputFile], options: TfrecordOptions, common: PlanOptions
) -> TfrecordSource:
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
    files, shards, notes = _select_current_shards(files)
    paths = sorted(
        {path for shard in shards if (path := _find_schema_file(shard.path)) is not None}
    )
    counting = bool(common.droppable_features) or (common.schema is None and not paths)
    units, counted = scan_tfrecords(shards, common, counting)
    if not units:
        raise DataError("there are no records", source=files[0].name if files else "")
    schema, schema_notes, all_fit = _resolve_schema(
        shards, paths, common, counted if counting else None
    )
    for file in files:
        check_unchanged(file.path, file.stat, file.name)
    return TfrecordSource(
        schema,
        FileTable.from_files(files),
        [shard.for_other_hosts() for shard in shards],
        units,
        notes=(*notes, *schema_notes),
        checks_records=schema.message != OPAQUE_BYTES and not all_fit,
        checks_class_numbers=common.schema is not None,
        memory_bytes=common.memory_bytes,
    )


def _select_current_shards(
    files: Sequence[InputFile],
) -> tuple[tuple[InputFile, ...], tuple[ShardFile, ...], tuple[str, ...]]:
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
                {
                    real_path(shard.path): shard
                    for shard in catalog_data_set(root, lenient=True).files
                }
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
                split_from_shard_name(file.name),
                detect_tfrecord(read_range(file.path, 0, COMPRESSED_HEAD_BYTES).tobytes()),
                file.stat,
            )
        split = shard.split if shard.split != UNKNOWN_SPLIT else file.split
        current.append(replace(file, split=split))
        shards.append(replace(shard, name=file.name))
    notes = (
        (f"{stale} shard(s) of earlier generations of their data set were left out",)
        if stale
        else ()
    )
    return tuple(current), tuple(shards), notes


def _resolve_schema(
    shards: Sequence[ShardFile],
    paths: Sequence[str],
    common: PlanOptions,
    counted: Inference | None,
) -> tuple[Schema, Sequence[str], bool]:
    """Returns (schema, notes on where it is from, whether every record is known to be of it). paths: schema files
    beside the shards; counted: what all records are, where that is asked.
    """
    all_fit, classes = False, find_hinted_classes(shards)
    left_out: list[str] = []
    if (
        common.droppable_features and counted is not None
    ):  # which of them the records have, only the records say
        common, left_out = common.drop_absent_features(
            refine_inferred(shards, counted)[0].names, "the records"
        )
    if common.schema is not None:
        schema, schema_notes = common.schema, ["schema as given", *left_out]
    elif paths:
        found = [tfmd.from_pbtxt(read_bounded(path), path) for path in paths]
        if any(other != found[0] for other in found[1:]):
            _check_class_numbers(found[0], classes)
            raise DataError(
                f"{paths[0]} and {next(p for p, s in zip(paths, found, strict=True) if s != found[0])} "
                f"differ; say which: {option('schema', 'FILE')}"
            )
        schema, schema_notes = (
            found[0],
            [f"schema from {os.path.basename(os.path.dirname(paths[0]))}/{SCHEMA_FILE_NAME}"],
        )
        all_fit = all(shard.info is not None for shard in shards)
    else:
        assert counted is not None
        schema, hinted = refine_inferred(shards, counted)
        schema_notes, all_fit = ["schema inferred from all records", *hinted], not counted.others
    _check_class_numbers(schema, classes)
    if common.label is not None:
        if common.label not in schema:
            raise UsageError(
                f"{option('label', common.label)}: no such feature; {available_names(common.label, schema.names)}"
            )
        schema = replace(schema, label=common.label)
    return schema, schema_notes, all_fit


def _check_class_numbers(schema: Schema, own: Mapping[str, Mapping[tuple[str, ...], str]]) -> None:
    """Refuses records whose numbers are those of other classes. own: the classes that the records' own files name."""
    for feature in schema:
        tables = own.get(feature.name, {}) if feature.kind == INT64_LIST else {}
        wanted = feature.classes or max(tables, key=len, default=())
        for names, path in tables.items():
            if names[: len(wanted)] != wanted[: len(names)]:
                other = "the schema's" if feature.classes else f"those of {tables[wanted]}"
                raise DataError(
                    f"{feature.name!r} has numbers of the classes {format_classes(names)}, and {other} are "
                    f"{format_classes(wanted)}; records of TFRecord files are kept as they are, so read each of them to "
                    "Parquet and build from that, where classes go by name",
                    source=path,
                )


def _find_schema_file(path: str) -> str | None:
    folder = os.path.dirname(path)
    places = (
        os.path.join(folder, SCHEMA_FILE_NAME),
        os.path.join(os.path.dirname(folder), SCHEMA_FILE_NAME),
    )
    return next((place for place in places if is_file(place)), None)
