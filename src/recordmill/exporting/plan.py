"""The plan of a `read`: INPUTs to the features that are wanted and to `ReadTask`s, each of which makes one output file or
folder.
"""

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
from recordmill.records.columns.convert import ConversionStep, class_names_of, output_schema
from recordmill.records.columns.decode_images import DecodeImages
from recordmill.records.columns.predicate import Predicate, names_to_read
from recordmill.records.inference.confirm import SchemaGuess
from recordmill.records.writers.files import FileLayout, FileRequest
from recordmill.records.writers.outputs import Output, find_output
from recordmill.schemas.feature import Schema
from recordmill.shards.access import FileAccess
from recordmill.shards.catalog import Catalog, Inputs, ShardFile, catalog_inputs
from recordmill.shards.cutting import cut_files
from recordmill.shards.loading.infer_schema import guess_schema, infer_schema
from recordmill.shards.pieces import PIECE_BYTES, Piece, Span
from recordmill.storage.walk import READ_SUMMARY_NAME, RUN_PREFIX

# a compressed file is taken to inflate so many times, which only decides how many share an output file
_INFLATION_RATIO = 4
_UNLIMITED_BYTES = PIECE_BYTES * 2**40  # no piece is larger
REJECTS_FOLDER = "rejects"
RESERVED_NAMES = (
    READ_SUMMARY_NAME,
    REJECTS_FOLDER,
)  # in the folder of a result: no split's own folder can be called so
# 512 MiB of uncompressed shards per file: few files, and enough of them for many cores
DEFAULT_FILE_BYTES = 512 << 20
_BASE_BYTES = 128 << 20  # the row group that is held and the one being written
# a piece, its bytes decoded (up to 4 times as many), and one more of these waiting for the writer
_THREAD_BYTES = 12 * PIECE_BYTES


@dataclass(frozen=True)
class ReadTask:
    """One output: the index-th (from 0) of `of` of its split, from these pieces, at most limit records of them."""

    split: str
    index: int
    num_tasks: int
    pieces: Sequence[Piece | Span]
    limit: int | None = None

    @property
    def name(self) -> str:
        """`train-00003-of-00016`."""
        return f"{self.split}-{self.index:05d}-of-{self.num_tasks:05d}"


def plan_split_tasks(
    catalog: Catalog, *, lenient: bool, limit: int | None, has_filter: bool
) -> tuple[ReadTask, ...]:
    """A job for each split: of all its pieces, or, unless records are filtered, of as many as hold limit records.

    Raises:
        DataError: a header is damaged in a file that has no index, unless lenient.
    """
    max_records = None if has_filter else limit
    return tuple(
        ReadTask(split, 0, 1, tuple(_plan_pieces(catalog, split, lenient, max_records)), limit)
        for split in catalog.splits
    )


def count_records(pieces: Iterable[Piece | Span]) -> int | None:
    """How many records they hold, one for each fault; None where only a stream's end, or an index, says."""
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
    """Yields whole shards of a data set, and of other files what `cut_files` finds."""
    files = ((ordinal, file) for ordinal, file in enumerate(catalog.files) if file.split == split)
    if catalog.manifest is None:
        yield from cut_files(files, lenient=lenient)
        return
    for ordinal, file in files:
        assert file.info is not None
        if file.info.records:
            yield Span(ordinal, 0, file.info.framed_bytes, file.info.records)


def _take_first_records(file: ShardFile, piece: Piece | Span, records: int) -> Piece | Span:
    """The first records of a piece, or of a shard."""
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
    """The jobs as several, each with about file_bytes of shards; one with a limit stays whole."""
    return tuple(
        ReadTask(split_task.split, index, len(parts), part, split_task.limit)
        for split_task in split_tasks
        for parts in [_divide_task(split_task, files, file_bytes)]
        for index, part in enumerate(parts)
    )


def _divide_task(
    task: ReadTask, files: Sequence[ShardFile], file_bytes: int
) -> Sequence[Sequence[Piece | Span]]:
    """Its pieces, cut where a part begins within one, by the part that they are in."""
    if task.limit is not None or not task.pieces:
        return [task.pieces]
    spans = [piece for piece in task.pieces if isinstance(piece, Span)]
    return (
        _divide_spans(spans, file_bytes) if spans else _group_pieces(task.pieces, files, file_bytes)
    )


def piece_size(piece: Piece | Span, files: Sequence[ShardFile]) -> int:
    """The bytes of its shard that it takes; of a stream what it is taken to hold."""
    return (
        files[piece.file].stat.size_bytes * _INFLATION_RATIO
        if piece.stop is None
        else piece.stop - piece.start
    )


def _group_pieces(
    pieces: Sequence[Piece | Span], files: Sequence[ShardFile], file_bytes: int
) -> list[list[Piece | Span]]:
    """Returns parts of as many pieces as fit, but one at least."""
    parts: list[list[Piece | Span]] = [[]]
    part_bytes = 0
    for piece in pieces:
        size = piece_size(piece, files)
        if parts[-1] and part_bytes + size > file_bytes:
            parts.append([])
            part_bytes = 0
        parts[-1].append(piece)
        part_bytes += size
    return parts


def _divide_spans(spans: Sequence[Span], file_bytes: int) -> list[list[Span]]:
    """The spans of each part, which are cut where a part begins."""
    total_bytes, num_records = sum(span.stop - span.start for span in spans), count_records(spans)
    part_bytes = max(file_bytes, -(-total_bytes // num_records) if num_records else 1)
    parts: list[list[Span]] = [[] for _ in range(0, total_bytes, part_bytes)]
    span_offset = 0
    for span in spans:
        size = span.stop - span.start
        for begin, end in itertools.pairwise(
            [0, *range(part_bytes - span_offset % part_bytes, size, part_bytes), size]
        ):
            records = span.records if end - begin == size else None
            parts[(span_offset + begin) // part_bytes].append(
                Span(span.file, span.start + begin, span.start + end, records)
            )
        span_offset += size
    return parts


@dataclass(frozen=True)
class ReadOptions:
    """The options that decide the output.

    to: one of OUTPUT_NAMES. columns: only these features, in this order; None: all. split: only this one. limit: the
    first so many records of each split. file_bytes: uncompressed bytes of shards per output, unless that is a whole
    split. lenient: damaged records are rejects, not errors. where, sample, seed: only the records for which where
    holds, of a random share `sample` (0 to 1); limit then counts what is left. own: the output's own options
    (`Output.own`). steps: conversions of features, in this order; one that depends on the records stands as an
    `UnresolvedStep`. class_names: after these, classes become their names.
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
        """The format that is written."""
        return find_output(self.to)

    @property
    def has_filter(self) -> bool:
        """True if good records may be left out."""
        return self.where is not None or self.sample is not None

    @property
    def decodes_all(self) -> bool:
        """True if every record is decoded, and a damaged one is an error."""
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
    """schema: of the output. wholes: for each split the job that its jobs are parts of. records: how many the jobs hold
    together, None where a stream does not tell before it is read. notes: for people.

    decoded: what is decoded from the records; selected: what is left of it when `where` has looked; steps: what makes
    `schema` of that. layout: of an output that has one. memory_bytes, image_bytes: --memory, and what a job may take of
    it for images; 0: any. most_rejects: with more of them the read is in vain; None: unknown. None of these decides a
    byte. guess: the plan is good if all records confirm it; None: it is good.
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
    """Returns what there is to read; raises as `shards.catalog.catalog_inputs` does."""
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
    """List, unless that was done, infer and cut. guessing: infer from the first records, if all records are decoded and
    so will tell where it was wrong.

    Raises:
        UsageError: nothing there; no such split or feature.
        DataError: a shard is damaged (only its size and headers are looked at here, and, where a schema must be
            inferred, its records).
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
            with contextlib.suppress(DataError, UsageError):  # of what may not be so
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
    """The plan for records of that schema; said: notes on where it is from, None where it need not be inferred."""
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
    request = options.output_options or FileRequest()
    layout, notes = (
        choose_layout(request, input_schema, selected, records) if output.has_layout else (None, ())
    )
    if layout is not None:
        selected = input_schema.select(dict.fromkeys([*selected.names, *layout.needed]))
    decoded = (
        selected
        if options.where is None
        else input_schema.select(names_to_read(selected.names, options.where.columns(input_schema)))
    )
    tasks = (
        split_tasks
        if output.per_split
        else divide_tasks(split_tasks, catalog.files, options.file_bytes)
    )
    num_records = (
        None
        if options.has_filter and options.limit is not None
        else count_records(piece for split_task in split_tasks for piece in split_task.pieces)
    )
    steps = resolve_steps(options.steps, replace(records, schema=selected))
    if options.class_names:
        steps += tuple(step for step in class_names_of(input_schema) if step.feature in selected)
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
    """Raises UsageError for a split whose folder would stand where the read keeps something of its own."""
    for split in splits:
        if split in RESERVED_NAMES or split.startswith(RUN_PREFIX):
            raise UsageError(
                f"{option('to', output_name)}: the folder of split {split!r} would take the place of what a read keeps under "
                "that name; "
                f"use {option('to', 'parquet')} or npz, or leave the split out with {option('split')}"
            )


def choose_threads(threads: int, memory_bytes: int) -> int:
    """Returns how many threads may decode at once: as asked (0: one a core), or as memory holds their pieces."""
    requested = threads or core_count()
    max_threads = (memory_bytes - _BASE_BYTES) // _THREAD_BYTES
    if max_threads < 1:
        raise UsageError(
            f"{option('memory', f'{memory_bytes >> 20}MiB')} is too little: a read needs "
            f"{(_BASE_BYTES + _THREAD_BYTES) >> 20} MiB beside the interpreter"
        )
    return int(min(requested, max_threads))


def read_peak_bytes(threads: int) -> int:
    """Returns the bytes that a read with so many threads holds at most, beside the interpreter."""
    return _BASE_BYTES + threads * _THREAD_BYTES


def share_memory(
    plan: ReadPlan, num_tasks: int, threads: int, memory_bytes: int
) -> tuple[ReadPlan, int]:
    """(the plan with a job's share of the memory, how many jobs run at once).

    Decoding spreads over threads within a job, writing does not: two threads a job, so long as there are jobs enough;
    and a job of images has a GiB at least where there is so much, since one may take that.
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
