"""Plan of a read: its features and one task for each output file."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recordmill.base.errors import DataError, UsageError
from recordmill.base.machine import DEFAULT_MEMORY_BYTES, core_count
from recordmill.base.option_names import available_names, option
from recordmill.exporting.file_layout import check_layout, choose_layout
from recordmill.exporting.infer_conversions import (
    RecordBatches,
    UnresolvedStep,
    resolve_steps,
    suggest_conversions,
)
from recordmill.records.columns.convert import ConversionStep, make_class_name_steps, output_schema
from recordmill.records.columns.decode_images import DecodeImages
from recordmill.records.columns.predicate import Predicate, names_to_read
from recordmill.records.inference.confirm import SchemaGuess
from recordmill.records.writers.files import FileLayout, FileOptions
from recordmill.records.writers.outputs import Output, find_output
from recordmill.schemas.feature import Schema
from recordmill.shards.access import FileAccess
from recordmill.shards.catalog import Catalog, Inputs, ShardFile, catalog_inputs
from recordmill.shards.cutting import cut_files
from recordmill.shards.loading.infer_schema import guess_schema, infer_schema
from recordmill.shards.pieces import PIECE_BYTES, Piece, Span
from recordmill.storage.walk import READ_SUMMARY_NAME, RUN_PREFIX

# Estimate of the ratio of uncompressed to compressed size. It only affects how many streams share
# an output.
_INFLATION_RATIO = 4
# Larger than any piece.
_UNLIMITED_BYTES = PIECE_BYTES * 2**40
REJECTS_FOLDER = "rejects"
# Files of a result itself. A split with one of these names can't have a folder.
RESERVED_NAMES = (READ_SUMMARY_NAME, REJECTS_FOLDER)
# 512 MiB of uncompressed shards per output: few files, but enough of them for many cores.
DEFAULT_FILE_BYTES = 512 << 20
# The row group in memory, and the one that is being written.
_BASE_BYTES = 128 << 20
# A piece, its decoded records (up to 4 times its size), and another batch of these that waits for
# the writer.
_THREAD_BYTES = 12 * PIECE_BYTES


@dataclass(frozen=True)
class ReadTask:
    """Work for one output file or folder.

    Attributes:
        split: Name of the split.
        index: Index of the output in its split, counted from 0.
        num_tasks: Number of outputs of the split.
        pieces: Pieces with the records of the output, in order.
        limit: Maximum number of records of the output. None means all records of the pieces.
    """

    split: str
    index: int
    num_tasks: int
    pieces: Sequence[Piece | Span]
    limit: int | None = None

    @property
    def name(self) -> str:
        """Name of the output without its extension, such as `train-00003-of-00016`."""
        return f"{self.split}-{self.index:05d}-of-{self.num_tasks:05d}"


def plan_split_tasks(
    catalog: Catalog, *, lenient: bool, limit: int | None, has_filter: bool
) -> tuple[ReadTask, ...]:
    """Plans one task for each split.

    Args:
        catalog: The files.
        lenient: Damaged bytes become a piece with a fault.
        limit: Maximum number of records of each split.
        has_filter: Records may be filtered out. Then all pieces are needed to find `limit` records,
            else only the first ones.

    Raises:
        DataError: A header is damaged in a file without an index, unless `lenient`.
    """
    max_records = None if has_filter else limit
    return tuple(
        ReadTask(split, 0, 1, tuple(_plan_pieces(catalog, split, lenient, max_records)), limit)
        for split in catalog.splits
    )


def count_records(pieces: Iterable[Piece | Span]) -> int | None:
    """Returns the number of records of the pieces. A fault counts as one record.

    Returns:
        None if the number is unknown before a stream or an index is read.
    """
    records = 0
    for piece in pieces:
        num_records = 1 if isinstance(piece, Piece) and piece.fault else piece.records
        if num_records is None or piece.stop is None:
            return None
        records += num_records
    return records


def _plan_pieces(
    catalog: Catalog, split: str, lenient: bool, limit: int | None
) -> Iterator[Piece | Span]:
    remaining = limit
    for piece in _find_pieces(catalog, split, lenient):
        if remaining is not None:
            if remaining == 0:
                return
            if piece.records is not None and piece.records > remaining:
                piece = _take_first_records(catalog.files[piece.file], piece, remaining)
            remaining -= min(
                remaining, 1 if isinstance(piece, Piece) and piece.fault else piece.records or 0
            )
        yield piece


def _find_pieces(catalog: Catalog, split: str, lenient: bool) -> Iterator[Piece | Span]:
    """Yields the pieces of a split. For a data set these are complete shards."""
    files = ((ordinal, file) for ordinal, file in enumerate(catalog.files) if file.split == split)
    if catalog.manifest is None:
        yield from cut_files(files, lenient=lenient)
        return
    for ordinal, file in files:
        assert file.info is not None
        if file.info.records:
            yield Span(ordinal, 0, file.info.framed_bytes, file.info.records)


def _take_first_records(file: ShardFile, piece: Piece | Span, records: int) -> Piece | Span:
    """Returns a piece with the first records of a piece or shard."""
    access = FileAccess(file, piece.file)
    if isinstance(piece, Piece):
        return next(
            access.pieces(piece.first_record, piece.first_record + records, _UNLIMITED_BYTES)
        )
    prefix = next(access.pieces(0, records, _UNLIMITED_BYTES))
    assert prefix.stop is not None
    return Span(piece.file, 0, prefix.stop, records)


def divide_tasks(
    split_tasks: Sequence[ReadTask], files: Sequence[ShardFile], file_bytes: int
) -> tuple[ReadTask, ...]:
    """Divides the tasks of splits into tasks of about `file_bytes` of shards.

    A task with a limit is not divided.
    """
    return tuple(
        ReadTask(split_task.split, index, len(pieces_by_task), pieces, split_task.limit)
        for split_task in split_tasks
        for pieces_by_task in [_divide_task(split_task, files, file_bytes)]
        for index, pieces in enumerate(pieces_by_task)
    )


def _divide_task(
    task: ReadTask, files: Sequence[ShardFile], file_bytes: int
) -> Sequence[Sequence[Piece | Span]]:
    """Returns the pieces of each part of a task. Pieces at the boundaries are divided."""
    if task.limit is not None or not task.pieces:
        return [task.pieces]
    spans = [piece for piece in task.pieces if isinstance(piece, Span)]
    return (
        _divide_spans(spans, file_bytes) if spans else _group_pieces(task.pieces, files, file_bytes)
    )


def estimate_uncompressed_bytes(piece: Piece | Span, files: Sequence[ShardFile]) -> int:
    """Returns the uncompressed size of a piece. The size of a stream is an estimate."""
    return (
        files[piece.file].stat.size_bytes * _INFLATION_RATIO
        if piece.stop is None
        else piece.stop - piece.start
    )


def _group_pieces(
    pieces: Sequence[Piece | Span], files: Sequence[ShardFile], file_bytes: int
) -> list[list[Piece | Span]]:
    """Groups pieces into tasks. A task has as many pieces as fit, but at least one."""
    pieces_by_task: list[list[Piece | Span]] = [[]]
    task_bytes = 0
    for piece in pieces:
        size = estimate_uncompressed_bytes(piece, files)
        if pieces_by_task[-1] and task_bytes + size > file_bytes:
            pieces_by_task.append([])
            task_bytes = 0
        pieces_by_task[-1].append(piece)
        task_bytes += size
    return pieces_by_task


def _divide_spans(spans: Sequence[Span], file_bytes: int) -> list[list[Span]]:
    """Divides spans into tasks of `file_bytes` each; the last one may be smaller.

    Tasks are larger if an average record is larger. A span that is divided has an unknown number of
    records (None).
    """
    total_bytes, num_records = sum(span.stop - span.start for span in spans), count_records(spans)
    # A task has at least the size of an average record, so there are not more tasks than records.
    max_task_bytes = max(file_bytes, -(-total_bytes // num_records) if num_records else 1)
    spans_by_task: list[list[Span]] = [[] for _ in range(0, total_bytes, max_task_bytes)]
    span_offset = 0
    for span in spans:
        size = span.stop - span.start
        for begin, end in itertools.pairwise(
            # The first boundary is where the current part is full.
            [0, *range(max_task_bytes - span_offset % max_task_bytes, size, max_task_bytes), size]
        ):
            # Only the index knows the number of records in a part of a shard.
            records = span.records if end - begin == size else None
            spans_by_task[(span_offset + begin) // max_task_bytes].append(
                Span(span.file, span.start + begin, span.start + end, records)
            )
        span_offset += size
    return spans_by_task


@dataclass(frozen=True)
class ReadOptions:
    """Options that determine the outputs of a read.

    Attributes:
        to: Output format, one of OUTPUT_NAMES.
        columns: Names of the features to read, in this order. None reads all.
        split: Name of the only split to read. None reads all.
        limit: Maximum number of records of each split. Applied after `where` and `sample`.
        file_bytes: Uncompressed size of the shards for one output. Ignored by formats with one
            output per split.
        lenient: Damaged records are rejects instead of errors.
        steps: Conversions of features, in this order. An `UnresolvedStep` depends on the records.
        where: Predicate that the records must satisfy.
        sample: Fraction of the records for a random sample, from 0 to 1.
        seed: Seed of the sample.
        output_options: Options of the output format.
        class_names: Replaces class numbers by names, after all steps.
    """

    to: str = "parquet"
    columns: tuple[str, ...] | None = None
    split: str | None = None
    limit: int | None = None
    file_bytes: int = DEFAULT_FILE_BYTES
    lenient: bool = False
    steps: tuple[ConversionStep | UnresolvedStep, ...] = ()
    where: Predicate | None = None
    sample: float | None = None
    seed: int = 0
    output_options: Any = None
    class_names: bool = False

    @property
    def output(self) -> Output:
        """Output format."""
        return find_output(self.to)

    @property
    def has_filter(self) -> bool:
        """True if good records may be left out."""
        return self.where is not None or self.sample is not None

    @property
    def decodes_all(self) -> bool:
        """True if every record is decoded and a damaged one is an error."""
        return not (self.lenient or self.has_filter) and self.limit is None

    def __post_init__(self) -> None:
        find_output(self.to)
        if self.limit is not None and self.limit < 0:
            raise UsageError(f"{option('limit', self.limit)}: 0 or more")
        if self.file_bytes < 1:
            raise UsageError(f"{option('file_size', self.file_bytes)}: at least 1 byte")
        if self.sample is not None and not 0 <= self.sample <= 1:
            raise UsageError(
                f"{option('sample', self.sample)}: a share of the records, from 0 to 1"
            )
        if not -(2**63) <= self.seed < 2**63:
            raise UsageError(f"{option('seed', self.seed)} does not fit 64 bits")


@dataclass(frozen=True)
class ReadPlan:
    """Plan of a read.

    Attributes:
        files: The input files.
        schema: Schema of the outputs.
        tasks: The tasks, one for each output.
        split_tasks: One task for each split. `tasks` are parts of these.
        options: The options.
        records: Number of records of all tasks. None if it is unknown before a stream is read.
        decoded: Features that are decoded from the records.
        selected: Features that remain after `where` was evaluated.
        steps: Conversions from `selected` to `schema`.
        notes: Messages for the user.
        layout: Layout of the output, if its format has one.
        memory_bytes: The option `memory`. 0 means no limit. Does not affect the outputs.
        image_bytes: Memory for the images of one task. 0 means no limit. Does not affect the
            outputs.
        max_rejects: Maximum number of rejects, if known. Does not affect the outputs.
        guess: The guessed schema that all records must confirm. None if the schema is certain.
    """

    files: Sequence[ShardFile]
    schema: Schema
    tasks: Sequence[ReadTask]
    split_tasks: tuple[ReadTask, ...]
    options: ReadOptions
    records: int | None
    decoded: Schema
    selected: Schema
    steps: tuple[ConversionStep, ...] = ()
    notes: tuple[str, ...] = ()
    layout: FileLayout | None = None
    memory_bytes: int = 0
    image_bytes: int = 0
    max_rejects: int | None = None
    guess: SchemaGuess | None = None


def find_inputs(inputs: Inputs, options: ReadOptions) -> Catalog:
    """Lists the input files. Raises the errors of `catalog_inputs`."""
    return catalog_inputs(inputs, options.split, lenient=options.lenient)


def plan_read(
    inputs: Inputs | Catalog,
    options: ReadOptions,
    *,
    schema: Schema | None = None,
    threads: int = 1,
    allow_guess: bool = False,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> ReadPlan:
    """Plans a read.

    Lists the files, infers the schema if necessary, and divides the work.

    Args:
        inputs: The inputs, or a catalog from an earlier call of `find_inputs`.
        schema: Schema from the user. None uses the schema of the data set, or infers it.
        threads: Number of threads for inference.
        allow_guess: Guesses the schema from the first records. Only used if all records are decoded
            and so confirm it.
        memory_bytes: Memory limit for inference.

    Raises:
        UsageError: Nothing was found, or there is no such split or feature.
        DataError: A shard is damaged. Only sizes and headers are checked here, and records if the
            schema is inferred.
    """
    catalog = inputs if isinstance(inputs, Catalog) else find_inputs(inputs, options)
    known_schema = schema or catalog.schema
    if known_schema is not None:
        return _make_plan(catalog, options, threads, known_schema, None)
    if allow_guess and options.decodes_all:
        guess = guess_schema(
            catalog.files, threads=threads, columns=options.columns, memory_bytes=memory_bytes
        )
        if guess is not None:
            # The error may be a consequence of a wrong guess. Inference from all records then
            # decides.
            with contextlib.suppress(DataError, UsageError):
                return replace(
                    _make_plan(catalog, options, threads, guess.schema, guess.notes), guess=guess
                )
    inferred = infer_schema(
        catalog.files,
        threads=threads,
        lenient=options.lenient,
        columns=options.columns,
        memory_bytes=memory_bytes,
    )
    return _make_plan(catalog, options, threads, *inferred)


def _make_plan(
    catalog: Catalog,
    options: ReadOptions,
    threads: int,
    input_schema: Schema,
    schema_notes: Sequence[str] | None,
) -> ReadPlan:
    """Makes the plan for records of a known schema.

    `schema_notes` are notes on the origin of an inferred schema, or None if the schema was not
    inferred.
    """
    selected = input_schema
    if options.columns is not None:
        if unknown := [name for name in options.columns if name not in input_schema]:
            raise UsageError(
                f"{option('columns', unknown[0])}: no such feature; {available_names(unknown[0], input_schema.names)}"
            )
        selected = input_schema.select(options.columns)
    split_tasks = plan_split_tasks(
        catalog, lenient=options.lenient, limit=options.limit, has_filter=options.has_filter
    )
    records = RecordBatches(
        catalog.files,
        [split_task.pieces for split_task in split_tasks],
        input_schema,
        options.lenient,
        threads,
    )
    output = options.output
    if output.is_folder:
        _check_folders(catalog.splits, options.to)
    request = options.output_options or FileOptions()
    layout, notes = (
        choose_layout(request, input_schema, selected, records)
        if output.needs_layout
        else (None, ())
    )
    if layout is not None:
        # The names of the files may come from a feature that was not selected.
        selected = input_schema.select(dict.fromkeys([*selected.names, *layout.required_features]))
    decoded = (
        selected
        if options.where is None
        else input_schema.select(
            names_to_read(selected.names, options.where.referenced_columns(input_schema))
        )
    )
    tasks = (
        split_tasks
        if output.per_split
        else divide_tasks(split_tasks, catalog.files, options.file_bytes)
    )
    # With a filter and a limit, the number of records that are read depends on the filter.
    num_records = (
        None
        if options.has_filter and options.limit is not None
        else count_records(piece for split_task in split_tasks for piece in split_task.pieces)
    )
    steps = resolve_steps(options.steps, replace(records, schema=selected))
    if options.class_names:
        steps += tuple(
            step for step in make_class_name_steps(input_schema) if step.feature in selected
        )
    schema = output_schema(steps, selected)
    output.check_schema(schema)
    if layout is not None:
        check_layout(layout, schema)
    elif schema_notes is not None:
        notes = tuple(suggest_conversions(records, schema))
    return ReadPlan(
        catalog.files,
        schema,
        tasks,
        split_tasks,
        options,
        num_records,
        decoded,
        selected,
        steps,
        (*catalog.notes, *(schema_notes or ()), *notes),
        layout,
    )


def _check_folders(splits: Sequence[str], output_name: str) -> None:
    """Raises UsageError if the folder of a split has a reserved name."""
    for split in splits:
        if split in RESERVED_NAMES or split.startswith(RUN_PREFIX):
            raise UsageError(
                f"{option('to', output_name)}: the folder of split {split!r} would take the place of what a read keeps under "
                "that name; "
                f"use {option('to', 'parquet')} or npz, or leave the split out with {option('split')}"
            )


def choose_threads(threads: int, memory_bytes: int) -> int:
    """Returns the number of threads for decoding.

    Args:
        threads: Requested number. 0 means one per core.
        memory_bytes: Memory limit. Fewer threads are used if their pieces would not fit.

    Raises:
        UsageError: The memory is too small for one thread.
    """
    requested = threads or core_count()
    max_threads = (memory_bytes - _BASE_BYTES) // _THREAD_BYTES
    if max_threads < 1:
        raise UsageError(
            f"{option('memory', f'{memory_bytes >> 20}MiB')} is too little: a read needs "
            f"{(_BASE_BYTES + _THREAD_BYTES) >> 20} MiB beside the interpreter"
        )
    return int(min(requested, max_threads))


def read_peak_bytes(threads: int) -> int:
    """Returns the peak memory of a read, without the interpreter."""
    return _BASE_BYTES + threads * _THREAD_BYTES


def share_memory(
    plan: ReadPlan, num_tasks: int, threads: int, memory_bytes: int
) -> tuple[ReadPlan, int]:
    """Divides the memory among concurrent tasks.

    Decoding uses several threads within a task, writing uses one. So two threads per task are best
    while there are enough tasks. With images, a task gets at least 1 GiB if possible, because a
    single image may need that.

    Returns:
        The plan with the share of one task, and the number of concurrent tasks.
    """
    concurrent_tasks = max(1, min(num_tasks, threads // 2))
    plan = replace(plan, memory_bytes=memory_bytes)
    if not any(isinstance(step, DecodeImages) for step in plan.steps):
        return plan, concurrent_tasks
    concurrent_tasks = max(1, min(concurrent_tasks, memory_bytes >> 30))
    reserved_bytes = plan.options.output.buffer_bytes + 4 * PIECE_BYTES
    return replace(
        plan, image_bytes=max(memory_bytes // concurrent_tasks - reserved_bytes, 1)
    ), concurrent_tasks
