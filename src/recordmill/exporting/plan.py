"""Plan of a read: its schema, and one task for each output.

Inputs are either the shards of a data set or other TFRecord files. A task consists of pieces
(`shards.pieces`). A piece of a shard has no record numbers yet, so that the plan opens no index.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from recordmill.base.errors import DataError, UsageError
from recordmill.base.machine import DEFAULT_MEMORY_BYTES, count_cores
from recordmill.base.option_names import available_names, option
from recordmill.exporting.file_layout import check_layout, choose_layout
from recordmill.exporting.infer_conversions import (
    RecordBatches,
    UnresolvedStep,
    resolve_steps,
    suggest_conversions,
)
from recordmill.options.read import ReadConversions, ReadOutput, ReadSelection
from recordmill.records.columns.convert import ConversionStep, make_class_name_steps, output_schema
from recordmill.records.columns.decode_images import DecodeImages
from recordmill.records.columns.predicate import Predicate, names_to_read
from recordmill.records.inference.confirm import SchemaGuess
from recordmill.records.writers.files import FileLayout
from recordmill.records.writers.options import FileOptions
from recordmill.records.writers.outputs import Output, find_output
from recordmill.schemas.feature import Schema
from recordmill.shards.catalog import Catalog, Inputs, ShardFile, catalog_inputs
from recordmill.shards.cutting import cut_files
from recordmill.shards.loading.infer_schema import guess_schema, infer_schema
from recordmill.shards.pieces import PIECE_BYTES, Piece
from recordmill.shards.tfrecord_file import open_tfrecord
from recordmill.storage.walk import READ_SUMMARY_NAME, RUN_PREFIX

# Estimated ratio of the uncompressed to the compressed size of a stream. A wrong estimate only
# makes outputs larger or smaller.
_INFLATION_RATIO = 4
# Larger than any file, so that a call returns a single piece.
_UNLIMITED_BYTES = PIECE_BYTES * 2**40
REJECTS_FOLDER = "rejects"
# Names that each output folder contains. A split of this name can't have a folder next to them.
RESERVED_NAMES = (READ_SUMMARY_NAME, REJECTS_FOLDER)
# Memory of a read without its threads: the row group in memory, and the one that is being written.
_BASE_BYTES = 128 << 20
# Memory of one thread: a piece, its decoded records (up to 4 times its size), and another batch of
# decoded records that waits for the writer.
_THREAD_BYTES = 12 * PIECE_BYTES


@dataclass(frozen=True)
class ReadTask:
    """The work for one output, which is a file or a folder.

    Attributes:
        split: Name of the split.
        index: Number of the output among the outputs of its split, counted from 0.
        num_tasks: Number of outputs of the split.
        pieces: Parts of the input files that contain the records of the output, in order.
        limit: Maximum number of records to write. If None, all are written.
    """

    split: str
    index: int
    num_tasks: int
    pieces: Sequence[Piece]
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
        catalog: The input files.
        lenient: If True, damaged bytes of a file become a damaged piece. Otherwise they are an
            error.
        limit: Maximum number of records to write for each split. If None, all are written.
        has_filter: True if records may be filtered out. The tasks then contain all pieces, because
            it is unknown which ones are needed for `limit` records. Otherwise they contain only the
            pieces with the first `limit` records.

    Raises:
        DataError: A file without an index has a damaged header, and `lenient` is false.
    """
    max_records = None if has_filter else limit
    return tuple(
        ReadTask(split, 0, 1, tuple(_plan_pieces(catalog, split, lenient, max_records)), limit)
        for split in catalog.splits
    )


def count_records(pieces: Iterable[Piece]) -> int | None:
    """Returns the number of records in some pieces.

    A damaged piece counts as one record.

    Returns:
        The sum, or None if a number is unknown. The number of a stream, or of a part of a shard, is
        unknown until the stream or the index of the shard is read.
    """
    records = 0
    for piece in pieces:
        num_records = 1 if piece.damage is not None else piece.records
        if num_records is None or piece.stop is None:
            return None
        records += num_records
    return records


def _plan_pieces(catalog: Catalog, split: str, lenient: bool, limit: int | None) -> Iterator[Piece]:
    """Yields the pieces of a split that contain its first `limit` records.

    The last piece is shortened if it has more records than needed. A limit of None yields all
    pieces.
    """
    remaining = limit
    for piece in _find_pieces(catalog, split, lenient):
        if remaining is not None:
            if remaining == 0:
                return
            if piece.records is not None and piece.records > remaining:
                piece = _take_first_records(catalog.files[piece.file], piece, remaining)
            remaining -= min(remaining, 1 if piece.damage is not None else piece.records or 0)
        yield piece


def _find_pieces(catalog: Catalog, split: str, lenient: bool) -> Iterator[Piece]:
    """Yields all pieces of a split.

    For a data set, these are complete shards. Other files are divided into smaller pieces.
    """
    files = ((ordinal, file) for ordinal, file in enumerate(catalog.files) if file.split == split)
    if catalog.manifest is None:
        yield from cut_files(files, lenient=lenient)
        return
    for ordinal, file in files:
        assert file.info is not None
        if file.info.records:
            yield Piece(ordinal, 0, file.info.framed_bytes, None, file.info.records)


def _take_first_records(file: ShardFile, piece: Piece, records: int) -> Piece:
    """Returns a shorter piece, with the first `records` records of a piece or shard.

    Args:
        file: The file of the piece.
        piece: A piece or a complete shard that has more than `records` records.
        records: Number of records, at least 1.
    """
    first = piece.first_record or 0
    part = next(
        open_tfrecord(file, piece.file).pieces(first, first + records, piece_bytes=_UNLIMITED_BYTES)
    )
    return replace(part, first_record=piece.first_record)


def divide_tasks(
    split_tasks: Sequence[ReadTask], files: Sequence[ShardFile], file_bytes: int
) -> tuple[ReadTask, ...]:
    """Divides the task of each split into several tasks of about `file_bytes`.

    Args:
        split_tasks: One task for each split. A task with a limit or without records stays as it is.
        files: The input files.
        file_bytes: Uncompressed size of the records for one task, in bytes.

    Returns:
        The tasks in the order of the splits and records. A split has consecutive indexes from 0.
    """
    return tuple(
        ReadTask(split_task.split, index, len(pieces_by_task), pieces, split_task.limit)
        for split_task in split_tasks
        for pieces_by_task in [_divide_task(split_task, files, file_bytes)]
        for index, pieces in enumerate(pieces_by_task)
    )


def _divide_task(
    task: ReadTask, files: Sequence[ShardFile], file_bytes: int
) -> Sequence[Sequence[Piece]]:
    """Divides a task into tasks with outputs of about `file_bytes`.

    A shard of a data set may be divided between two tasks. Other files are only divided between
    their pieces. A task with a limit is not divided.

    Returns:
        The pieces of each new task.
    """
    if task.limit is not None or not task.pieces:
        return [task.pieces]
    # The records of our shards are numbered when they are read, so a shard can be divided anywhere.
    if task.pieces[0].first_record is None:
        return _divide_shards(task.pieces, file_bytes)
    return _group_pieces(task.pieces, files, file_bytes)


def estimate_uncompressed_bytes(piece: Piece, files: Sequence[ShardFile]) -> int:
    """Returns the uncompressed size of a piece.

    The size includes the lengths and CRCs of the frames. A piece without an end is a compressed
    file without an index. Its size is estimated from the compressed size.
    """
    return (
        files[piece.file].stat.size_bytes * _INFLATION_RATIO
        if piece.stop is None
        else piece.size_bytes
    )


def _group_pieces(
    pieces: Sequence[Piece], files: Sequence[ShardFile], file_bytes: int
) -> list[list[Piece]]:
    """Groups consecutive pieces into tasks.

    A task gets as many pieces as fit into `file_bytes`, but at least one.
    """
    pieces_by_task: list[list[Piece]] = [[]]
    task_bytes = 0
    for piece in pieces:
        size = estimate_uncompressed_bytes(piece, files)
        if pieces_by_task[-1] and task_bytes + size > file_bytes:
            pieces_by_task.append([])
            task_bytes = 0
        pieces_by_task[-1].append(piece)
        task_bytes += size
    return pieces_by_task


def _divide_shards(shards: Sequence[Piece], file_bytes: int) -> list[list[Piece]]:
    """Divides the shards of a split into tasks of `file_bytes` each.

    The last task may be smaller. All tasks are larger if an average record is larger than
    `file_bytes`. If a shard is divided, the number of records in each part is unknown (None).
    """
    total_bytes, num_records = sum(shard.size_bytes for shard in shards), count_records(shards)
    # A task is at least as large as an average record, so there are not more tasks than records.
    max_task_bytes = max(file_bytes, -(-total_bytes // num_records) if num_records else 1)
    pieces_by_task: list[list[Piece]] = [[] for _ in range(0, total_bytes, max_task_bytes)]
    shard_offset = 0
    for shard in shards:
        size = shard.size_bytes
        for begin, end in itertools.pairwise(
            # Boundaries of the tasks in this shard. The first one is where the current task, which
            # may have begun in an earlier shard, is full.
            [0, *range(max_task_bytes - shard_offset % max_task_bytes, size, max_task_bytes), size]
        ):
            # The number of records in a part of a shard is in its index, but reading it here would
            # open every shard.
            records = shard.records if end - begin == size else None
            pieces_by_task[(shard_offset + begin) // max_task_bytes].append(
                Piece(shard.file, shard.start + begin, shard.start + end, None, records)
            )
        shard_offset += size
    return pieces_by_task


@dataclass(frozen=True)
class ReadOptions:
    """Options that determine the outputs of a read.

    Attributes:
        output: Options of the output.
        selection: Options that select records and features.
        conversions: Options that convert features.
        steps: The steps of `conversions`, in the order in which they are applied. The types of an
            `UnresolvedStep` are determined from the records.
        lenient: True if damaged records become rejects. Otherwise they are an error.
        format_options: Options of the output format, in a class of its own. None for formats
            without options.
    """

    output: ReadOutput = field(default_factory=ReadOutput)
    selection: ReadSelection = field(default_factory=ReadSelection)
    conversions: ReadConversions = field(default_factory=ReadConversions)
    steps: tuple[ConversionStep | UnresolvedStep, ...] = ()
    lenient: bool = False
    format_options: Any = None

    @property
    def output_format(self) -> Output:
        """The output format."""
        return find_output(self.output.to)

    @property
    def predicate(self) -> Predicate | None:
        """Condition that records must satisfy. None means that all records are kept."""
        where = self.selection.where
        return None if where is None else Predicate(where)

    @property
    def has_filter(self) -> bool:
        """True if undamaged records may be left out."""
        return self.selection.where is not None or self.selection.sample is not None

    @property
    def decodes_all(self) -> bool:
        """True if the read decodes every record and fails at the first damaged one."""
        return not (self.lenient or self.has_filter) and self.selection.limit is None


@dataclass(frozen=True)
class ReadPlan:
    """Plan of a read.

    The attributes `memory_bytes`, `image_bytes` and `max_rejects` do not affect the outputs.

    Attributes:
        files: The input files. Pieces refer to them by their index.
        schema: Schema of the outputs, after all conversions.
        tasks: The tasks, one for each output.
        split_tasks: The tasks before their division, one for each split.
        options: The options.
        records: Number of records that all tasks read. None if it is unknown before they are read.
        decoded: Features that are decoded from the records, including the features of `where`.
        selected: Features that remain after `where` was evaluated.
        steps: Conversions of the `selected` features to `schema`.
        notes: Messages for the user.
        layout: Features that become files and file names. None for formats other than `files`.
        memory_bytes: Memory limit of the read, from the option `memory`. 0 means no limit.
        image_bytes: Memory limit for decoded images of one task. 0 means no limit.
        max_rejects: Maximum number of rejects of the read. None if there is no known maximum.
        guess: The schema as it was guessed from the first records. Each record is compared with it.
            None if the schema is certain.
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
    """Lists the input files.

    Raises:
        UsageError: Nothing was found, the split does not exist, or a data set is combined with
            other inputs.
        DataError: The size of a shard differs from the manifest, or no file is a TFRecord file.
    """
    return catalog_inputs(inputs, options.selection.split, lenient=options.lenient)


def plan_read(
    inputs: Inputs | Catalog,
    options: ReadOptions,
    *,
    schema: Schema | None = None,
    threads: int = 1,
    allow_guess: bool = False,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
) -> ReadPlan:
    """Plans a read: lists the files, determines the schema, and divides the work.

    Args:
        inputs: The inputs, or a catalog that `find_inputs` has returned.
        schema: Schema from the user. None means the schema of the data set. If there is none, the
            schema is inferred from the records.
        threads: Number of threads for the inference.
        allow_guess: If True, the schema is inferred from the first records only, and
            `ReadPlan.guess` is set. This has no effect unless all records will be decoded, because
            only then they can confirm the guess.
        memory_bytes: Memory limit of the inference.

    Raises:
        UsageError: There are no input files, or no such split or feature.
        DataError: A shard is damaged. Only its size and headers are checked, and the records if the
            schema is inferred.
    """
    catalog = inputs if isinstance(inputs, Catalog) else find_inputs(inputs, options)
    known_schema = schema or catalog.schema
    if known_schema is not None:
        return _make_plan(catalog, options, threads, known_schema, None)
    if allow_guess and options.decodes_all:
        guess = guess_schema(
            catalog.files,
            threads=threads,
            columns=options.selection.columns,
            memory_bytes=memory_bytes,
        )
        if guess is not None:
            # A wrong guess may be the cause of an error. So the schema is then inferred from all
            # records, and a real error is raised again.
            with contextlib.suppress(DataError, UsageError):
                return replace(
                    _make_plan(catalog, options, threads, guess.schema, guess.notes), guess=guess
                )
    inferred = infer_schema(
        catalog.files,
        threads=threads,
        lenient=options.lenient,
        columns=options.selection.columns,
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
    """Makes the plan for records with a known schema.

    Args:
        input_schema: Schema of the records.
        schema_notes: Notes for the user about the inference of the schema. None if it was not
            inferred.
    """
    selected = _select_columns(input_schema, options.selection.columns)
    split_tasks = plan_split_tasks(
        catalog,
        lenient=options.lenient,
        limit=options.selection.limit,
        has_filter=options.has_filter,
    )
    records = RecordBatches(
        catalog.files,
        [split_task.pieces for split_task in split_tasks],
        input_schema,
        options.lenient,
        threads,
    )
    output = options.output_format
    if output.is_folder:
        _check_folders(catalog.splits, options.output.to)
    request = options.format_options or FileOptions()
    layout, notes = (
        choose_layout(request, input_schema, selected, records)
        if output.needs_layout
        else (None, ())
    )
    if layout is not None:
        # File names may come from a feature that the user has not selected.
        selected = input_schema.select(dict.fromkeys([*selected.names, *layout.required_features]))
    decoded = _add_filter_features(selected, options.predicate, input_schema)
    tasks = (
        split_tasks
        if output.per_split
        else divide_tasks(split_tasks, catalog.files, options.output.file_size)
    )
    # A task with a filter and a limit stops when it has enough records.
    num_records = (
        None
        if options.has_filter and options.selection.limit is not None
        else count_records(piece for split_task in split_tasks for piece in split_task.pieces)
    )
    steps = _resolve_conversions(options, input_schema, replace(records, schema=selected))
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


def _select_columns(schema: Schema, columns: Sequence[str] | None) -> Schema:
    """Returns the features that the user has selected, or all if `columns` is None.

    Raises:
        UsageError: There is no such feature.
    """
    if columns is None:
        return schema
    if unknown := [name for name in columns if name not in schema]:
        raise UsageError(
            "{columns}: no such feature; {available_names}",
            columns=option("columns", unknown[0]),
            available_names=available_names(unknown[0], schema.names),
        )
    return schema.select(columns)


def _add_filter_features(
    selected: Schema, predicate: Predicate | None, input_schema: Schema
) -> Schema:
    """Returns the selected features, followed by features that only the predicate needs."""
    if predicate is None:
        return selected
    return input_schema.select(
        names_to_read(selected.names, predicate.referenced_columns(input_schema))
    )


def _resolve_conversions(
    options: ReadOptions, input_schema: Schema, records: RecordBatches
) -> tuple[ConversionStep, ...]:
    """Returns the conversions of the selected features, with all types.

    Args:
        input_schema: All features of the records.
        records: The records, with the selected features.
    """
    steps = resolve_steps(options.steps, records)
    if not options.conversions.class_names:
        return steps
    names = make_class_name_steps(input_schema)
    return (*steps, *(step for step in names if step.feature in records.schema))


def _check_folders(splits: Sequence[str], output_name: str) -> None:
    """Raises UsageError if the folder of a split would have a reserved name."""
    for split in splits:
        if split in RESERVED_NAMES or split.startswith(RUN_PREFIX):
            raise UsageError(
                "{to}: the name of split {split} is reserved for files of the read; "
                "use {parquet} or npz, or leave out the split with {split_option}",
                to=option("to", output_name),
                split=repr(split),
                parquet=option("to", "parquet"),
                split_option=option("split"),
            )


def choose_threads(threads: int, memory_bytes: int) -> int:
    """Returns the number of threads that decode records.

    Args:
        threads: The number that the user wants. 0 means one per core.
        memory_bytes: Memory limit of the read. If it is too small for all threads, their number is
            reduced.

    Raises:
        UsageError: The memory is too small even for one thread.
    """
    requested = threads or count_cores()
    max_threads = (memory_bytes - _BASE_BYTES) // _THREAD_BYTES
    if max_threads < 1:
        raise UsageError(
            "{memory} is too little: a read needs {base_bytes} MiB in addition to the interpreter",
            memory=option("memory", f"{memory_bytes >> 20}MiB"),
            base_bytes=_BASE_BYTES + _THREAD_BYTES >> 20,
        )
    return int(min(requested, max_threads))


def read_peak_bytes(threads: int) -> int:
    """Returns the peak memory of a read in bytes, without the interpreter."""
    return _BASE_BYTES + threads * _THREAD_BYTES


def share_memory(
    plan: ReadPlan, num_tasks: int, threads: int, memory_bytes: int
) -> tuple[ReadPlan, int]:
    """Divides threads and memory among the tasks that run at the same time.

    A task decodes on several threads and writes on one. So tasks with two threads each are fastest,
    if there are enough tasks. If images are decoded, each task gets at least 1 GiB if possible,
    because a single image may need that much.

    Args:
        num_tasks: Number of tasks that this process runs.
        threads: Number of threads of this process.
        memory_bytes: Memory limit of this process.

    Returns:
        The plan with the memory of the process and of one task, and the number of tasks to run at
        the same time.
    """
    concurrent_tasks = max(1, min(num_tasks, threads // 2))
    plan = replace(plan, memory_bytes=memory_bytes)
    if not any(isinstance(step, DecodeImages) for step in plan.steps):
        return plan, concurrent_tasks
    concurrent_tasks = max(1, min(concurrent_tasks, memory_bytes >> 30))
    reserved_bytes = plan.options.output_format.buffer_bytes + 4 * PIECE_BYTES
    return replace(
        plan, image_bytes=max(memory_bytes // concurrent_tasks - reserved_bytes, 1)
    ), concurrent_tasks
