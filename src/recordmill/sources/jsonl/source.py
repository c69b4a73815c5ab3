"""Plan and reader of JSON Lines: each line is an object and one record.

The name of a feature is its key. For a key inside of objects, the keys are joined with dots. The
plan scans every line of every file once, on all threads, for types and row counts.

The position of a record is its line number, from 0. Blank lines are not records, but they count as
lines. A line is a reject if it is not a JSON object, has a key twice, or has a value that does not
fit its feature. A literal dot in a key is kept: `{"a.b": 1}` and `{"a": {"b": 1}}` are both `a.b`,
and an input with both is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from recordmill.base import native
from recordmill.base.errors import DataError, Reject
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.threads import prefetch_one
from recordmill.schemas.feature import Feature, Schema, check_feature_count
from recordmill.sources.common.contract import BATCH_BYTES, Chunk, PlanOptions, Unit
from recordmill.sources.common.encoding import read_utf8_blocks
from recordmill.sources.common.lines import (
    LINE_RANGE_INTEGERS,
    STREAMED_COLUMN,
    LineBlock,
    LineRange,
    align_to_lines,
    make_chunk,
    make_line_units,
    note_blank_lines_in_ranges,
    plan_line_ranges,
    prefetch_unit_files,
    read_line_blocks,
    scan_ranges,
    stream_line_blocks,
)
from recordmill.sources.common.scan_cache import CachedBatch, CachedReject, ScanCache
from recordmill.sources.common.tables import CompactTable
from recordmill.sources.jsonl.arrays import is_json_array, read_elements
from recordmill.sources.jsonl.columns import (
    TEXT_FROM_SCALARS,
    TEXT_FROM_STRINGS,
    Leaf,
    build_columns,
    resolve_base64,
)
from recordmill.sources.jsonl.options import JsonlOptions
from recordmill.sources.jsonl.records import (
    LayoutPredictor,
    LineCacheWriter,
    RecordLayout,
    make_layout,
    mark_invalid_lines,
)
from recordmill.sources.jsonl.schema import (
    Declarations,
    Observations,
    infer_features,
    path_to_feature_name,
)
from recordmill.sources.jsonl.tape import JsonPath, Tape, TapeScanner
from recordmill.sources.values.conform import conform
from recordmill.sources.values.labels import ClassNames, has_text_classes
from recordmill.sources.values.schema_unifier import check_columns, finish_schema
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import check_unchanged


def stream_records(file: InputFile, options: JsonlOptions) -> Iterator[LineBlock]:
    """Yields the records of a streamed file, one in each line.

    If the file is a JSON array, its elements become the lines.

    Raises:
        DataError: A JSON array can't be read, the compressed data is damaged, or the content can't
            be decoded.
    """
    if not _is_array(file, options):
        return stream_line_blocks(file, options.encoding, options.max_line_bytes)
    blocks = prefetch_one(read_utf8_blocks(file, options.encoding, BATCH_BYTES))
    return align_to_lines(
        read_elements(blocks, file.name, options.record_keys),
        options.max_line_bytes,
    )


def _is_array(file: InputFile, options: JsonlOptions) -> bool:
    return options.record_path is not None or is_json_array(file, options.encoding)


@dataclass
class ScannedLines:
    """A range of lines with the results of its scan.

    Attributes:
        line_range: The range with its counts.
        observations: The kinds of values at each path.
        label_classes: Distinct values of the label.
    """

    line_range: LineRange
    observations: Observations = field(default_factory=Observations)
    label_classes: ClassNames = field(default_factory=lambda: ClassNames(""))

    def merge(self, later: ScannedLines) -> None:
        """Adds the results for a later range. The attribute `line_range` is not changed."""
        self.observations.merge(later.observations)
        self.label_classes += later.label_classes


def scan_jsonl_ranges(
    files: Sequence[InputFile],
    options: JsonlOptions,
    label: tuple[str, str] | None,
    common: PlanOptions,
    create_cache_writer: Callable[[], LineCacheWriter],
) -> Iterator[ScannedLines]:
    """Scans the lines of all files on several threads.

    Args:
        files: The files.
        options: The options of the files.
        label: (name of the label, TEXT_FROM_STRINGS or TEXT_FROM_SCALARS). The second item
            determines which of its values are class names. If None, no class names are collected.
        common: The options of the plan.
        create_cache_writer: Creates the writer that caches the records of one range.

    Yields:
        The result for each range, in order.

    Raises:
        DataError: A file has changed during the scan, is damaged, or has too many different keys.
    """

    def scan(range_index: int, line_range: LineRange, blocks: Iterator[LineBlock]) -> ScannedLines:
        cache_writer, source = create_cache_writer(), files[line_range.file_ordinal].name
        scanned = _scan_range(
            line_range, range_index, blocks, label, cache_writer, common.memory_bytes, source
        )
        cache_writer.store(line_range.file_ordinal, line_range.start)
        return scanned

    def stream(file: InputFile) -> Iterator[LineBlock]:
        return stream_records(file, options)

    ranges = plan_line_ranges(
        files, options.encoding, lambda file: _is_array(file, options), common.unit_bytes
    )
    return scan_ranges(files, ranges, scan, stream, options.max_line_bytes, common.threads)


def _scan_range(
    line_range: LineRange,
    range_index: int,
    blocks: Iterable[LineBlock],
    label: tuple[str, str] | None,
    cache_writer: LineCacheWriter,
    memory_bytes: int,
    source: str,
) -> ScannedLines:
    scanner, scanned = TapeScanner(memory_bytes, source), ScannedLines(line_range)
    lines = records = size = 0
    for block in blocks:
        size += len(block.data)
        if block.skipped_line_bytes:
            # A skipped line counts as a reject.
            lines, records = lines + 1, records + 1
            # The cache would lack the skipped line.
            cache_writer.discard()
        invalid_bytes = mark_invalid_lines(block)
        for tape in scanner.scan(block.data):
            scanned.observations.add(tape, scanner.paths, range_index, lines)
            cache_writer.add(tape, scanner, invalid_bytes, scanned.observations)
            if label is not None:
                for texts in _label_texts(tape, scanner, *label):
                    scanned.label_classes.add(texts)
            lines += tape.lines
            records += tape.rows + len(tape.errors)
    scanned.line_range = replace(line_range, lines=lines, records=records, content_bytes=size)
    return scanned


def _label_texts(
    tape: Tape, scanner: TapeScanner, name: str, scalar_rule: str
) -> Iterator[pa.Array]:
    """Yields the values of a label as arrays of texts.

    If the label is a list, each of its elements is a value.

    Args:
        tape: The records.
        scanner: The scanner that made the tape.
        name: Name of the label.
        scalar_rule: See `Leaf.scalar_rule`.
    """
    paths = scanner.paths
    for node in [
        node for node, path in enumerate(paths) if node and path_to_feature_name(path) == name
    ]:
        kinds = tape.kinds[tape.node_slice(node)]
        if (
            # In native.JsonKind, all scalars are between null and object.
            ((kinds > native.JsonKind.NULL_VALUE) & (kinds < native.JsonKind.OBJECT)).any()
            if scalar_rule == TEXT_FROM_SCALARS
            else (
                (kinds == native.JsonKind.STRING) | (kinds == native.JsonKind.ESCAPED_STRING)
            ).any()
        ):
            leaf = Leaf(
                Feature(name, "string"),
                scanner.find_nodes(paths[node]),
                paths[node],
                scalar_rule=scalar_rule,
            )
            texts = build_columns(tape, [leaf])[0].column(0)
            # Each element of a list is a value of the label.
            while pa.types.is_nested(texts.type):
                texts = texts.flatten()
            yield texts


@dataclass(frozen=True)
class JsonlSource:
    """A planned JSON Lines input.

    Attributes:
        files: The input files. The column STREAMED_COLUMN marks files that can't be divided into
            ranges.
        paths: Path of each feature in a record, by feature name.
        base64_features: The features with base64 strings.
        scalar_rules: `Leaf.scalar_rule` by feature name.
        cache: Records that the plan has parsed.
    """

    schema: Schema
    files: FileTable
    units: Sequence[Unit]
    options: JsonlOptions
    paths: Mapping[str, JsonPath]
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    base64_features: tuple[str, ...] = ()
    scalar_rules: Mapping[str, str] = field(default_factory=dict)
    cache: ScanCache = field(default_factory=ScanCache, compare=False, repr=False)
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    kind: str = "jsonl"

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields the records of a unit in the order of their lines."""
        for ordinal in prefetch_unit_files(unit, self.files, self.cache):
            file, first_position = self.files[ordinal], unit.first_row
            check_unchanged(file.path, file.stat, file.name)
            for batch in self._parse_batches(ordinal, unit):
                place = partial(_format_reject_place, first_position)
                yield make_chunk(ordinal, file, first_position, batch, place)
                first_position += batch.num_positions
                del batch  # frees the memory before the next one is parsed
            check_unchanged(file.path, file.stat, file.name)

    def locate(self, file_ordinal: int, positions: Sequence[int]) -> list[str]:
        """Returns the line of each record, such as `line 8`, for messages.

        See `sources.common.contract.RecordLocator`.
        """
        return [_format_place(position) for position in positions]

    def _parse_batches(self, ordinal: int, unit: Unit) -> Iterator[CachedBatch]:
        """Yields the batches of a file in a unit, if possible from the cache."""
        file, max_line_bytes = self.files[ordinal], self.options.max_line_bytes
        layout = RecordLayout(
            self.schema, self.paths, frozenset(self.base64_features), self.scalar_rules
        )
        scanner = TapeScanner(self.memory_bytes)
        start, stop = (unit.start, unit.stop) if unit.stop else (0, file.stat.size_bytes)
        if (cached_batches := self.cache.take((ordinal, start))) is not None:
            yield from (
                # Cached batches may lack features that appeared later, and they have names instead
                # of class numbers.
                replace(batch, batch=layout.finish_batch(batch.batch))
                for batch in cached_batches
            )
            return
        is_streamed = self.files.has_flag(STREAMED_COLUMN, ordinal)
        for block in (
            stream_records(file, self.options)
            if is_streamed
            else read_line_blocks(file, start, stop, max_line_bytes)
        ):
            if block.skipped_line_bytes:
                yield layout.build_long_line_batch(block.skipped_line_bytes, max_line_bytes)
            invalid_bytes = mark_invalid_lines(block)
            for tape in scanner.scan(block.data):
                yield layout.build_batch(tape, scanner, invalid_bytes)


def _format_place(line: int) -> str:
    return f"line {line + 1}"


def _format_reject_place(first_line: int, reject: CachedReject) -> str:
    return _format_place(first_line + reject.ordinal)


def plan_jsonl(
    files: Sequence[InputFile], options: JsonlOptions, common: PlanOptions
) -> JsonlSource:
    """Scans every line for types and row counts, and plans the reading.

    Raises:
        DataError: There is no record, a path has values of several forms without a majority, or a
            file is damaged or has changed during the plan.
        UsageError: An option names an unknown column.
    """
    files = FileTable.from_files(files)
    (common, base64_features, bytes_notes) = resolve_base64(common)
    options = replace(options, max_line_bytes=common.cap_line_bytes(options.max_line_bytes))
    common = replace(common, columns=options.columns)
    label = label_to_collect(common)
    cache = common.create_parsed_cache()
    predictor = LayoutPredictor(common, base64_features)
    scanned = scan_jsonl_ranges(
        files,
        options,
        label,
        common,
        create_cache_writer=lambda: LineCacheWriter(predictor, cache),
    )
    total = ScannedLines(LineRange(file_ordinal=0, start=0, stop=0))
    line_ranges, observations = _add_up_ranges(scanned, total), total.observations
    if not observations.rows:
        raise _no_record_error(files, options, line_ranges)
    check_feature_count(
        len(observations.counts_by_path),
        common.memory_bytes,
        files[0].name if len(files) == 1 else "",
    )
    check_columns(
        options.columns or (), dict.fromkeys(str(path[0]) for path in observations.counts_by_path)
    )
    inferred = infer_features(
        observations,
        Declarations.from_options(common),
        partial(_find_range_begin, files=files, line_ranges=line_ranges),
    )
    classes = None if label is None else ClassNames(label[0], total.label_classes.names)
    schema, notes = finish_schema(
        inferred.schema, inferred.features_without_values, classes, common, "the files"
    )
    # Raises an error if the schema has lists at other places than the records.
    conform(_make_empty_batch(schema, inferred.paths), schema)
    # The cached records have no classes, so they are compared with a layout without them.
    final_layout = make_layout(inferred, common, base64_features)
    label_rules = dict.fromkeys(
        [label[0]]
        if label is not None and has_text_classes(label[0], final_layout.schema, classes)
        else [],
        TEXT_FROM_SCALARS,
    )
    cache.drop_invalid(lambda layout: layout.agrees_with(final_layout))
    marked_files = files.with_flags(
        STREAMED_COLUMN,
        (line_range.file_ordinal for line_range in line_ranges if line_range.is_streamed),
    )
    blank_line_notes = note_blank_lines_in_ranges(files, line_ranges)
    all_notes = (
        *_note_arrays(files, line_ranges),
        *inferred.notes,
        *bytes_notes,
        *blank_line_notes,
        *notes,
    )
    return JsonlSource(
        schema=schema,
        files=marked_files,
        units=make_line_units(line_ranges, common.unit_bytes),
        options=options,
        paths=final_layout.paths,
        notes=all_notes,
        base64_features=tuple(sorted(base64_features)),
        scalar_rules={**label_rules, **final_layout.scalar_rules},
        cache=cache,
        memory_bytes=common.memory_bytes,
    )


def label_to_collect(common: PlanOptions) -> tuple[str, str] | None:
    """Returns the label if the scan must collect its class names.

    The second item is the rule that selects its values.

    Returns:
        (name, TEXT_FROM_SCALARS) if the label is declared as text, (name, TEXT_FROM_STRINGS) if its
        dtype is not declared. None if there is no label, or if its classes can't be texts or are
        declared in the schema.
    """
    if common.label is None or common.schema is not None:
        return None
    declared_dtype = common.dtypes.get(common.label)
    if declared_dtype is not None and not declared_dtype.startswith("string"):
        return None
    return common.label, TEXT_FROM_STRINGS if declared_dtype is None else TEXT_FROM_SCALARS


def _add_up_ranges(
    scanned_ranges: Iterable[ScannedLines], total: ScannedLines
) -> CompactTable[LineRange]:
    """Adds the results of all ranges to `total`, and returns the ranges."""

    def iter_line_ranges() -> Iterator[LineRange]:
        for scanned in scanned_ranges:
            total.merge(scanned)
            yield scanned.line_range

    return CompactTable.from_items(iter_line_ranges(), LINE_RANGE_INTEGERS)


def _find_range_begin(
    range_index: int, files: Sequence[InputFile], line_ranges: Sequence[LineRange]
) -> tuple[str, int]:
    """Returns (file name, line number from 0 in this file where the range begins)."""
    ordinal, first_line, index = line_ranges[range_index].file_ordinal, 0, range_index
    # Ranges of one file are consecutive, so the lines of the earlier ones add up.
    while index and (previous := line_ranges[index - 1]).file_ordinal == ordinal:
        first_line, index = first_line + previous.lines, index - 1
    return files[ordinal].name, first_line


def _note_arrays(files: Sequence[InputFile], line_ranges: Iterable[LineRange]) -> tuple[str, ...]:
    """Returns a note on the files that are JSON arrays."""
    names = [
        files[line_range.file_ordinal].name for line_range in line_ranges if line_range.is_array
    ]
    name_list = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return (
        (f"JSON arrays, whose elements are read as lines ({len(names):,}): {name_list}",)
        if names
        else ()
    )


def _no_record_error(
    files: FileTable, options: JsonlOptions, line_ranges: Sequence[LineRange]
) -> DataError:
    """Returns the error for an input without records.

    The message contains the first bad line. If there is none, the files have no lines.
    """
    ordinal = next(
        (line_range.file_ordinal for line_range in line_ranges if line_range.records), None
    )
    if ordinal is None:
        return DataError("there are no lines", source=files[0].name if files else "")
    marked_files = files.with_flags(
        STREAMED_COLUMN,
        (line_range.file_ordinal for line_range in line_ranges if line_range.is_streamed),
    )
    # A source without features reads the rejects again, with their messages.
    empty_source = JsonlSource(
        schema=Schema(()), files=marked_files, units=(), options=options, paths={}
    )
    first_reject = next(
        reject
        for chunk in empty_source.read(Unit(ordinal, ordinal + 1))
        for reject in chunk.rejects
    )
    return DataError(
        "no line is a JSON object: {message} (JSON Lines has one object on each line)",
        message=first_reject.message,
        source=first_reject.source,
        place=first_reject.place,
    )


def _make_empty_batch(schema: Schema, paths: Mapping[str, JsonPath]) -> pa.RecordBatch:
    columns = []
    for name in schema.names:
        kind = pa.null()
        for _ in range(paths.get(name, ()).count(None)):
            kind = pa.large_list(kind)
        columns.append(pa.nulls(0, kind))
    return pa.RecordBatch.from_arrays(columns, names=list(schema.names))
