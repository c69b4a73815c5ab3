"""Source of the records that the user's function returns for files.

All files are parsed before the plan, on worker processes of this machine (`parse_locally`) or of an
engine (`transforms.parse_files`). They write Arrow files. The types of the features are inferred
over all of them, as for other kinds. The build then reads the Arrow files, so no file is parsed
twice.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from recordmill.base.errors import DataError, Reject
from recordmill.base.progress import Progress
from recordmill.base.threads import thread_map
from recordmill.schemas.feature import Schema, check_feature_count
from recordmill.sources.common.contract import (
    BATCH_BYTES,
    BATCH_ROWS,
    UNIT_BYTES,
    Chunk,
    PlanOptions,
    Source,
    Unit,
    list_group_units,
    pack_units,
)
from recordmill.sources.parser.function import ParserFunction
from recordmill.sources.parser.parsed_file import (
    ParsedFile,
    ParsedResult,
    load_result,
    parse_file,
    parsed_name,
    write_result,
)
from recordmill.sources.parser.pool import WorkerPool
from recordmill.sources.values.conform import FileRows, conform_files
from recordmill.sources.values.schema_unifier import (
    SchemaUnifier,
    declared_dtypes,
    finish_unified_schema,
)
from recordmill.storage.file_table import FileTable, InputFile

PARSER_KIND = "parser"


@dataclass(frozen=True)
class ParsedSource:
    """A source of the records that the user's function has returned.

    Attributes:
        units: Complete files, or ranges of the batches of one.
        plan_rejects: Files that the function could not parse.
        parsed: The records of each file, in the order of `files`.
        text_label: The label, if its classes are the texts of its own values.
    """

    schema: Schema
    files: FileTable
    units: Sequence[Unit] = ()
    parsed: tuple[ParsedFile, ...] = ()
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    text_label: str | None = None
    kind: str = PARSER_KIND

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields the records of a unit. Small batches of the same schema become one chunk."""
        batches, files = list[pa.RecordBatch](), list[FileRows]()
        num_rows = num_bytes = 0
        for batch, rows in self._batches(unit):
            num_rows, num_bytes = num_rows + batch.num_rows, num_bytes + batch.nbytes
            is_full = num_rows > BATCH_ROWS or num_bytes > BATCH_BYTES
            if batches and (is_full or not _has_same_schema(batches[0], batch)):
                yield self._join(batches, files)
                batches, files = [], []
                num_rows, num_bytes = batch.num_rows, batch.nbytes
            batches.append(batch)
            files.append(rows)
        if batches:
            yield self._join(batches, files)

    def _batches(self, unit: Unit) -> Iterator[tuple[pa.RecordBatch, FileRows]]:
        files = self.files[unit.begin_file : unit.end_file]
        for file_id, file in enumerate(files, unit.begin_file):
            row = unit.first_row
            for batch in self.parsed[file_id].batches(unit.start, unit.stop or None):
                yield batch, FileRows(file_id, file.name, row, batch.num_rows)
                row += batch.num_rows

    def _join(self, batches: Sequence[pa.RecordBatch], files: Sequence[FileRows]) -> Chunk:
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        return conform_files(batch, self.schema, self.text_label, files)

    def locate(self, file: int, positions: Sequence[int]) -> list[str]:
        """Returns the places of records in their file, for messages. See `RecordLocator`."""
        return [f"record {position}" for position in positions]


def _has_same_schema(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    return bool(one.schema.equals(other.schema, check_metadata=True))


def parse_locally(
    files: Sequence[InputFile],
    function: ParserFunction,
    folder: str,
    threads: int,
    progress: Progress,
) -> Generator[ParsedResult | Reject, None, None]:
    """Parses files in worker processes of this machine.

    Files that were parsed before are not parsed again.

    Args:
        files: The input files.
        function: The user's function, in a form that worker processes can load.
        folder: A local folder for the Arrow files, which may contain files of an earlier run.
        threads: The number of processes.
        progress: Receives the counts.

    Yields:
        The records or the reject of each file, in the order of the files.

    Raises:
        UsageError: The function can't be loaded.
    """
    pool = WorkerPool(function)

    def parse(file: InputFile) -> ParsedResult | Reject:
        name = parsed_name(file, function)
        try:
            return load_result(folder, name)
        except FileNotFoundError:
            # The suffix is unique, because an existing file may be the second name of a file of
            # another run.
            prefix = os.path.join(folder, f"{name}-{uuid.uuid4().hex[:8]}")
            parsed = parse_file(file, pool, prefix)
            if isinstance(parsed, Reject):
                return parsed
            return write_result(prefix, folder, name, parsed)

    progress.begin("parse", len(files), unit="files")
    try:
        for result in thread_map(parse, files, threads, on_error=pool.close):
            progress.advance(1, rejects=int(isinstance(result, Reject)))
            yield result
    finally:
        pool.close()


def plan_parsed(
    files: FileTable,
    results: Iterable[ParsedResult | Reject],
    notes: Sequence[str],
    function: ParserFunction,
    common: PlanOptions,
) -> ParsedSource:
    """Plans the records of parsed files.

    Args:
        files: The input files.
        results: The records or the reject of each file, in the order of `files`. If they are fewer,
            only the first files were parsed.
        notes: Observations about the files, for users.
        function: The user's function.
        common: Options that all kinds of input share.

    Raises:
        UsageError: An option names a column that does not exist.
        DataError: There are no records, or the types of two files differ.
    """
    unifier = SchemaUnifier(declared_dtypes(common))
    parsed, rejects = list[ParsedFile](), list[Reject]()
    # The results come first, so that they are read to their end.
    for result, file in zip(results, files, strict=False):
        if isinstance(result, Reject):
            rejects.append(result)
            parsed.append(ParsedFile())
            continue
        _add_schemas(unifier, file.name, result, common)
        parsed.append(result.records)
    units = pack_units(_list_units(parsed), UNIT_BYTES)
    if not units:
        reason = f"; {rejects[0]}" if rejects else ""
        raise DataError(f"{function.name} makes no records of the files{reason}")
    batches = (batch for records in parsed for batch in records.batches())
    schema, schema_notes, text_label = finish_unified_schema(unifier, batches, common, "the files")
    return ParsedSource(
        schema=schema,
        files=files,
        units=units,
        parsed=tuple(parsed),
        notes=(*notes, *schema_notes, *_count_parsed(parsed, files)),
        plan_rejects=tuple(rejects),
        text_label=text_label,
    )


def _count_parsed(parsed: Sequence[ParsedFile], files: FileTable) -> tuple[str, ...]:
    if len(parsed) == len(files):
        return ()
    return (f"only the first {len(parsed):,} of {len(files):,} files were parsed",)


def is_partly_parsed(source: Source) -> bool:
    """Returns whether a source has parsed only the first of its files."""
    return isinstance(source, ParsedSource) and len(source.parsed) < len(source.files)


def _add_schemas(
    unifier: SchemaUnifier, name: str, result: ParsedResult, common: PlanOptions
) -> None:
    """Adds the schemas of the batches of a file."""
    row = 0
    batches = zip(result.batch_schemas(), result.records.rows, result.null_counts, strict=True)
    for schema, rows, nulls in batches:
        check_feature_count(len(schema), common.memory_bytes, name)
        unifier.add(schema, f"{name}, records {row} to {row + rows - 1}", nulls)
        row += rows


def _list_units(parsed: Sequence[ParsedFile]) -> Iterator[Unit]:
    """Yields the units: a small file, or a batch of a large file."""
    for number, records in enumerate(parsed):
        size = sum(records.sizes)
        if not records.rows:
            continue
        if size <= UNIT_BYTES:
            yield Unit(number, number + 1, rows=sum(records.rows), size_bytes=size)
            continue
        yield from list_group_units(number, zip(records.rows, records.sizes, strict=True))
