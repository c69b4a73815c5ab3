"""Plan and reader of TFRecord files.

The build splits, shuffles and shards the records again, without a change of their payloads. The
plan divides the files into units. If the schema must be inferred, it also reads all records.

The user declares the schema, or it comes from the manifest of a data set, or from a `schema.pbtxt`
in the folder of the files or its parent. Otherwise it is inferred from all records. Records that do
not fit the schema are rejects, so that the result can be read with it.

The position of a record is its number in the file. A record with a wrong CRC is a reject with its
offset as the place. After a damaged header, reading continues at the next correct header, and the
skipped bytes are one reject.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.option_names import available_names, option
from recordmill.base.threads import thread_map
from recordmill.records.inference.infer import Inference
from recordmill.records.tfrecord.frames import HEADER_BYTES, FileFrames, pack_spans
from recordmill.records.tfrecord.stream import detect_tfrecord_compression
from recordmill.schemas import tfmd
from recordmill.schemas.feature import OPAQUE_BYTES, Schema, check_feature_count
from recordmill.shards.catalog import (
    UNKNOWN_SPLIT,
    ShardFile,
    catalog_data_set,
    split_from_shard_name,
)
from recordmill.shards.cutting import cut
from recordmill.shards.lengths import compare_length, read_lengths
from recordmill.shards.loading.decode import list_damage_rejects, refuse_beyond, select_fitting
from recordmill.shards.loading.infer_schema import infer_frames, refine_inferred
from recordmill.shards.loading.schema_hints import check_class_numbers, find_hinted_classes
from recordmill.shards.manifest import is_data_set
from recordmill.shards.pieces import Piece, iter_piece_reads
from recordmill.sources.common.contract import (
    BATCH_BYTES,
    BATCH_ROWS,
    UNIT_BYTES,
    Chunk,
    Payloads,
    PlanOptions,
    Unit,
)
from recordmill.sources.common.options import InputOptions
from recordmill.storage.compression import COMPRESSED_HEAD_BYTES
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import (
    check_unchanged,
    read_range,
)
from recordmill.storage.folders import is_file, real_path
from recordmill.storage.json_fields import MAX_JSON_BYTES

_PIECE_STEP_BYTES = 8 << 20  # 8 MiB: the size of a piece is a multiple of it
# The pieces of all threads take at most an eighth of the memory. Up to twice as many may be in
# progress.
_MEMORY_DIVISOR = 8
SCHEMA_FILE_NAME = "schema.pbtxt"
_MAX_LENGTH_NOTES = 3


def choose_piece_bytes(common: PlanOptions) -> int:
    """Returns the size of a piece in bytes.

    A piece is about as large as a unit, or smaller if there is little memory.
    """
    max_bytes = min(UNIT_BYTES, common.memory_bytes // (_MEMORY_DIVISOR * common.threads))
    return max(max_bytes // _PIECE_STEP_BYTES, 1) * _PIECE_STEP_BYTES


def _read_frames(
    shards: Sequence[ShardFile], piece: Piece, memory_bytes: int
) -> Iterator[FileFrames]:
    """Yields the frames of a piece. A record that is too large for the memory is damage."""
    reads = iter_piece_reads(shards, [piece], refuse=refuse_beyond(memory_bytes))
    return (read() for read in reads)


def scan_tfrecords(
    shards: Sequence[ShardFile], common: PlanOptions, infers_schema: bool
) -> tuple[tuple[Unit, ...], Inference]:
    """Divides the files into units, and infers the schema if it is needed.

    Otherwise records are only read if a file is compressed, because the headers of a plain file are
    enough.

    Args:
        shards: The files.
        common: The options of the plan.
        infers_schema: Whether the schema is inferred from the records.

    Returns:
        (the units of all files in order, the inference from all records). The inference is empty if
        `infers_schema` is not set.
    """
    units, total = list[Unit](), Inference()
    scan = partial(
        _scan_piece, shards=shards, infers_schema=infers_schema, memory_bytes=common.memory_bytes
    )
    for unit, inference in thread_map(
        scan, _plan_pieces(shards, choose_piece_bytes(common), infers_schema), common.threads
    ):
        units.append(unit)
        total = total + inference
        check_feature_count(len(total.features), common.memory_bytes)
    return tuple(units), total


def _plan_pieces(
    shards: Sequence[ShardFile], max_bytes: int, infers_schema: bool
) -> Iterator[Piece]:
    """Yields the pieces of all files.

    If the records are read anyway, a small file is one piece and is not searched for record
    boundaries.
    """
    for ordinal, shard in enumerate(shards):
        size = shard.stat.size_bytes
        # A search for boundaries would read the file twice.
        if infers_schema and shard.info is None and shard.codec.is_plain and 0 < size <= max_bytes:
            yield Piece(ordinal, 0, size)
        else:
            yield from cut(shard, ordinal, max_bytes, lenient=True)


def _scan_piece(
    piece: Piece, *, shards: Sequence[ShardFile], infers_schema: bool, memory_bytes: int
) -> tuple[Unit, Inference]:
    inference, records, size = Inference(), piece.records, piece.size_bytes
    # The headers did not show the number of records.
    if infers_schema or records is None:
        records = size = 0
        for frames in _read_frames(shards, piece, memory_bytes):
            records += frames.records
            size += int(frames.lengths.sum())
            if infers_schema:
                inference = inference + infer_frames(frames, shards[piece.file].name, memory_bytes)
    return Unit(
        begin_file=piece.file,
        end_file=piece.file + 1,
        start=piece.start,
        stop=piece.stop or 0,
        first_row=piece.first_record or 0,
        rows=records,
        size_bytes=size,
    ), inference


@dataclass(frozen=True)
class TfrecordSource:
    """A planned TFRecord input.

    Attributes:
        shards: The files in the form that functions for reading shards need.
        checks_records: Whether reading compares records with the schema and rejects records that
            don't fit.
        checks_class_numbers: Whether records with a class number out of range are rejected, too.
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
        """Yields the payloads of a unit. Payloads with a wrong CRC become rejects.

        A unit with a `stop` of 0 is a complete file, which is read as a stream.
        """
        ordinal = unit.begin_file
        file = self.files[ordinal]
        check_unchanged(file.path, file.stat, file.name)
        shard = self.shards[ordinal]
        records = unit.rows if shard.info else None
        piece = Piece(ordinal, unit.start, unit.stop or None, unit.first_row, records)
        for frames in _read_frames(self.shards, piece, self.memory_bytes):
            rejects = list_damage_rejects(frames, shard.name)
            if self.checks_records:
                frames, unfit = select_fitting(
                    frames,
                    self.schema,
                    shard.name,
                    checks_class_numbers=self.checks_class_numbers,
                )
                rejects += unfit
            yield from _to_chunks(frames, rejects, ordinal)
        check_unchanged(file.path, file.stat, file.name)


def _to_chunks(frames: FileFrames, rejects: tuple[Reject, ...], ordinal: int) -> Iterator[Chunk]:
    """Divides frames into chunks of about BATCH_BYTES.

    The first chunk contains all rejects.
    """
    end_bytes = np.cumsum(frames.lengths)
    begin = 0
    while begin < len(end_bytes) or rejects:
        begin_bytes = int(end_bytes[begin - 1]) if begin else 0
        # At least one record, even if it is larger than a batch.
        end = max(int(np.searchsorted(end_bytes, begin_bytes + BATCH_BYTES, "right")), begin + 1)
        end = min(end, begin + BATCH_ROWS, len(end_bytes))
        offsets = np.concatenate([np.zeros(1, np.int64), end_bytes[begin:end] - begin_bytes])
        data = np.empty(int(offsets[-1]), np.uint8)
        pack_spans(
            [frames.data], frames.starts[begin:end] + HEADER_BYTES, frames.lengths[begin:end], data
        )
        yield Chunk(
            records=Payloads(data, offsets),
            file_ids=np.full(end - begin, ordinal, np.uint32),
            positions=frames.numbers[begin:end],
            rejects=rejects,
        )
        begin, rejects = end, ()


def plan_tfrecord(
    files: Sequence[InputFile], options: InputOptions, common: PlanOptions
) -> TfrecordSource:
    """Finds the records and determines the schema.

    Raises:
        DataError: There is no record, or several schema files disagree.
        UsageError: An option would need parsed records, or names an unknown feature.
    """
    if common.dtypes:
        name, dtype = next(iter(common.dtypes.items()))
        raise UsageError(
            "{dtypes}: records of TFRecord files are kept as they are; to change types, "
            "read them to Parquet and build from that",
            dtypes=option("dtypes", {name: dtype}),
        )
    files, shards, selection_notes = _select_current_shards(files)
    paths = sorted(
        {path for shard in shards if (path := _find_schema_file(shard.path)) is not None}
    )
    infers_schema = bool(common.droppable_features) or (common.schema is None and not paths)
    units, inference = scan_tfrecords(shards, common, infers_schema)
    if not units:
        raise DataError("there are no records", source=files[0].name if files else "")
    schema, schema_notes, all_fit = _resolve_schema(
        shards, paths, common, inference if infers_schema else None
    )
    for file in files:
        check_unchanged(file.path, file.stat, file.name)
    return TfrecordSource(
        schema=schema,
        files=FileTable.from_files(files),
        shards=[shard.for_other_hosts() for shard in shards],
        units=units,
        notes=(*selection_notes, *schema_notes, *_note_lengths(shards, units)),
        # Records that are known to fit need no check.
        checks_records=schema.message != OPAQUE_BYTES and not all_fit,
        checks_class_numbers=common.schema is not None,
        memory_bytes=common.memory_bytes,
    )


def _note_lengths(shards: Sequence[ShardFile], units: Sequence[Unit]) -> list[str]:
    """Returns notes on files with other numbers of records than their `dataset_info.json` lists."""
    foreign = {shard.path: shard.split for shard in shards if shard.info is None}
    lengths, problems = read_lengths(foreign)
    counts = Counter[int]()
    for unit in units:
        counts[unit.begin_file] += unit.rows or 0
    for ordinal, shard in enumerate(shards):
        problem = compare_length(shard.path, counts[ordinal], lengths.get(shard.path))
        problems += [problem] if problem is not None else []
    return [
        *map(str, problems[:_MAX_LENGTH_NOTES]),
        *([f"{len(problems):,} such differences in total"] * (len(problems) > _MAX_LENGTH_NOTES)),
    ]


def _select_current_shards(
    files: Sequence[InputFile],
) -> tuple[tuple[InputFile, ...], tuple[ShardFile, ...], tuple[str, ...]]:
    """Removes shards that belong to an earlier generation of a data set.

    Returns:
        (remaining files, the same files as shards, notes). The split of a file comes from its data
        set or its name, or else from its folder.
    """
    shards_by_root: dict[str, Mapping[str, ShardFile]] = {}
    current_files: list[InputFile] = []
    shards: list[ShardFile] = []
    num_stale = 0
    for file in files:
        root = os.path.dirname(os.path.dirname(file.path))
        if root not in shards_by_root:
            shards_by_root[root] = (
                {
                    real_path(shard.path): shard
                    for shard in catalog_data_set(root, lenient=True).files
                }
                if is_data_set(root)
                else {}
            )
        shard = shards_by_root[root].get(real_path(file.path))
        if shards_by_root[root] and shard is None:
            num_stale += 1
            continue
        if shard is None:
            shard = ShardFile(
                file.path,
                file.name,
                split_from_shard_name(file.name),
                detect_tfrecord_compression(
                    read_range(file.path, 0, COMPRESSED_HEAD_BYTES).tobytes()
                ),
                file.stat,
            )
        # The data set or the file name determines the split, otherwise the folder does.
        split = shard.split if shard.split != UNKNOWN_SPLIT else file.split
        current_files.append(replace(file, split=split))
        shards.append(replace(shard, name=file.name))
    notes = []
    if num_stale:
        notes.append(f"{num_stale} shard(s) of earlier generations of their data set were left out")
    return tuple(current_files), tuple(shards), tuple(notes)


def _resolve_schema(
    shards: Sequence[ShardFile],
    schema_paths: Sequence[str],
    common: PlanOptions,
    inference: Inference | None,
) -> tuple[Schema, Sequence[str], bool]:
    """Determines the schema.

    Args:
        shards: The files.
        schema_paths: Schema files next to the shards.
        common: The options of the plan.
        inference: The inference from all records. None if the records were not read for it.

    Returns:
        (schema, notes about its origin, whether all records are known to fit it).

    Raises:
        DataError: The schema files differ, or the records have the numbers of other classes.
        UsageError: The label is not a feature.
    """
    all_fit, classes = False, find_hinted_classes(shards)
    absence_notes: list[str] = []
    if common.droppable_features and inference is not None:
        # Only the records show which of the droppable features they have.
        common, absence_notes = common.drop_absent_features(
            inference.to_schema().names, "the records"
        )
    if common.schema is not None:
        schema, schema_notes = common.schema, ["schema as given", *absence_notes]
    elif schema_paths:
        schemas = [
            tfmd.from_pbtxt(read_range(path, max_bytes=MAX_JSON_BYTES).tobytes(), path)
            for path in schema_paths
        ]
        if any(other_schema != schemas[0] for other_schema in schemas[1:]):
            check_class_numbers(schemas[0], classes)
            raise DataError(
                "{schema_paths} and {next} differ; choose one: {schema}",
                schema_paths=schema_paths[0],
                next=next(
                    (p for p, s in zip(schema_paths, schemas, strict=True) if s != schemas[0])
                ),
                schema=option("schema", "FILE"),
            )
        schema = schemas[0]
        schema_notes = [
            f"schema from {os.path.basename(os.path.dirname(schema_paths[0]))}/{SCHEMA_FILE_NAME}"
        ]
        all_fit = all(shard.info is not None for shard in shards)
    else:
        assert inference is not None
        schema, hint_notes = refine_inferred(shards, inference)
        schema_notes = ["schema inferred from all records", *hint_notes]
        all_fit = not inference.other_records
    check_class_numbers(schema, classes)
    if common.label is not None:
        if common.label not in schema:
            raise UsageError(
                "{label}: no such feature; {available_names}",
                label=option("label", common.label),
                available_names=available_names(common.label, schema.names),
            )
        schema = replace(schema, label=common.label)
    return schema, schema_notes, all_fit


def _find_schema_file(path: str) -> str | None:
    """Returns the path of the schema file for a shard, or None.

    The file is in the folder of the shard, or in the parent of this folder.
    """
    folder = os.path.dirname(path)
    candidates = (
        os.path.join(folder, SCHEMA_FILE_NAME),
        os.path.join(os.path.dirname(folder), SCHEMA_FILE_NAME),
    )
    return next((candidate for candidate in candidates if is_file(candidate)), None)
