"""Source of the records that the user's function makes of files.

The plan parses all files on worker processes, which write Arrow files. The types of the features
are inferred over all of them, as for other kinds. The build then reads the Arrow files, so no file
is parsed twice.

The Arrow files of an input file have names that depend on the file (path, size and time) and on the
code of the function. A JSON file appears next to them when they are complete. So a build that
continues a killed one finds the files that need not be parsed again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from recordmill.base.errors import DataError, Reject
from recordmill.base.progress import Progress
from recordmill.base.threads import thread_map
from recordmill.schemas.feature import Schema, check_feature_count
from recordmill.sources.common.contract import (
    UNIT_BYTES,
    Chunk,
    PlanOptions,
    Source,
    Unit,
    pack_units,
)
from recordmill.sources.parser.function import ParserFunction
from recordmill.sources.parser.pool import WorkerDied, WorkerPool
from recordmill.sources.values.conform import conform_chunk
from recordmill.sources.values.schema_unifier import (
    SchemaUnifier,
    declared_dtypes,
    finish_unified_schema,
)
from recordmill.storage.archives import is_archive_member
from recordmill.storage.arrow_files import open_batches
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import check_unchanged, is_remote, put_if_absent, read_range
from recordmill.storage.folders import fetch_file, is_file, join, scratch_folder
from recordmill.storage.json_fields import parse_json

PARSER_KIND = "parser"


@dataclass(frozen=True)
class ParsedFile:
    """The records of one input file.

    Attributes:
        segments: Paths of the Arrow files. All batches of one have the same schema.
        first_batches: The number of the first batch of each Arrow file.
        rows: Number of records of each batch.
        sizes: Size of each batch in bytes.
    """

    segments: tuple[str, ...] = ()
    first_batches: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()

    def batches(self, begin: int = 0, end: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the batches with numbers from `begin` to before `end`. None reads all."""
        end = len(self.rows) if end is None else end
        ends = (*self.first_batches[1:], len(self.rows))
        for path, first, stop in zip(self.segments, self.first_batches, ends, strict=True):
            if first < end and begin < stop:
                reader = open_batches(path)
                numbers = range(max(begin, first), min(end, stop))
                yield from (reader.get_batch(number - first) for number in numbers)


@dataclass(frozen=True)
class ParsedSource:
    """A source of the records that the user's function has made.

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

    @property
    def segments(self) -> tuple[str, ...]:
        """Paths of all Arrow files."""
        return tuple(path for records in self.parsed for path in records.segments)

    def with_folder(self, folder: str) -> ParsedSource:
        """Returns the source after its Arrow files have been moved to another folder."""
        parsed = (
            replace(
                records,
                segments=tuple(join(folder, os.path.basename(path)) for path in records.segments),
            )
            for records in self.parsed
        )
        return replace(self, parsed=tuple(parsed))

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields each batch of a unit as a chunk."""
        for file in range(unit.begin_file, unit.end_file):
            row = unit.first_row
            for batch in self.parsed[file].batches(unit.start, unit.stop or None):
                yield conform_chunk(
                    batch,
                    self.schema,
                    text_label=self.text_label,
                    file_id=file,
                    file_name=self.files[file].name,
                    first_row=row,
                )
                row += batch.num_rows

    def locate(self, file: int, positions: Sequence[int]) -> list[str]:
        """Returns the places of records in their file, for messages. See `RecordLocator`."""
        return [f"record {position}" for position in positions]


def plan_parsed(
    files: FileTable,
    notes: Sequence[str],
    function: ParserFunction,
    folder: str,
    common: PlanOptions,
    progress: Progress,
    *,
    max_files: int | None = None,
) -> ParsedSource:
    """Parses all files and plans their records.

    Args:
        files: The input files.
        notes: Notes on the files for the user.
        function: The user's function.
        folder: An existing folder for the Arrow files. Files that it already has parsed are not
            parsed again.
        common: Options that all kinds of input share.
        progress: Receives the number of files.
        max_files: Only the first files are parsed. None parses all.

    Raises:
        UsageError: The function can't be loaded, or an option names a column that does not exist.
        DataError: There are no records, or a value can't be a feature.
    """
    unifier = SchemaUnifier(declared_dtypes(common))
    parsed, rejects = list[ParsedFile](), list[Reject]()
    pool = WorkerPool(function)
    parse = functools.partial(_parse_file, pool=pool, function=function, folder=folder)
    try:
        chosen = list(files[: len(files) if max_files is None else max_files])
        progress.begin("parse", len(chosen), unit="files")
        results = thread_map(parse, chosen, common.threads, on_error=pool.close)
        for file, result in zip(chosen, results, strict=True):
            if isinstance(result, Reject):
                rejects.append(result)
                parsed.append(ParsedFile())
                progress.advance(1, rejects=1)
                continue
            records, null_counts = result
            _add_schemas(unifier, file.name, records, null_counts, common)
            parsed.append(records)
            progress.advance(1)
    finally:
        pool.close()
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


def parses_part(source: Source) -> bool:
    """Returns whether a source has parsed only the first of its files."""
    return isinstance(source, ParsedSource) and len(source.parsed) < len(source.files)


def _add_schemas(
    unifier: SchemaUnifier,
    name: str,
    records: ParsedFile,
    null_counts: Sequence[Mapping[str, int]],
    common: PlanOptions,
) -> None:
    """Adds the schemas of the batches of a file."""
    row = 0
    for batch, nulls in zip(records.batches(), null_counts, strict=True):
        check_feature_count(batch.num_columns, common.memory_bytes, name)
        unifier.add(batch.schema, f"{name}, records {row} to {row + batch.num_rows - 1}", nulls)
        row += batch.num_rows


def _list_units(parsed: Sequence[ParsedFile]) -> Iterator[Unit]:
    """Yields the units: a small file, or a batch of a large file."""
    for number, records in enumerate(parsed):
        size = sum(records.sizes)
        if not records.rows:
            continue
        if size <= UNIT_BYTES:
            yield Unit(number, number + 1, rows=sum(records.rows), size_bytes=size)
            continue
        row = 0
        for batch, (rows, size) in enumerate(zip(records.rows, records.sizes, strict=True)):
            yield Unit(
                number,
                number + 1,
                start=batch,
                stop=batch + 1,
                first_row=row,
                rows=rows,
                size_bytes=size,
            )
            row += rows


def _parse_file(
    file: InputFile, pool: WorkerPool, function: ParserFunction, folder: str
) -> tuple[ParsedFile, list[dict[str, int]]] | Reject:
    """Parses a file, unless this was done before.

    Returns:
        (records, number of nulls by column of each batch), or the reject of the file.
    """
    prefix = os.path.join(folder, parsed_name(file, function))
    if not is_file(f"{prefix}.json"):
        try:
            answer = _parse_in_worker(file, pool, prefix)
        except WorkerDied as error:
            return Reject(file.name, "", "parser-died", str(error))
        if "output_error" in answer:
            # The file is not to blame, so the build ends.
            raise OSError(*answer["output_error"], f"{prefix}.json")
        check_unchanged(file.path, file.stat, file.name)
        if "failure" in answer:
            return Reject(file.name, "", "parser-error", answer["failure"])
        # only now are the files of the prefix complete
        put_if_absent(f"{prefix}.json", json.dumps(answer).encode())
    answer = parse_json(read_range(f"{prefix}.json").tobytes(), f"{prefix}.json")
    segments = tuple(os.path.join(folder, os.path.basename(name)) for name in answer["segments"])
    records = ParsedFile(
        segments, tuple(answer["first_batches"]), tuple(answer["rows"]), tuple(answer["sizes"])
    )
    return records, answer["null_counts"]


def _parse_in_worker(file: InputFile, pool: WorkerPool, prefix: str) -> dict[str, Any]:
    if not (is_remote(file.path) or is_archive_member(file.path)):
        return pool.parse(os.path.abspath(file.path), prefix)
    # An object of a store or a member of an archive gets a local copy with its own name.
    with scratch_folder("recordmill-parser-") as scratch:
        path = os.path.join(scratch, os.path.basename(file.name))
        fetch_file(file.path, path)
        return pool.parse(path, prefix)


def parsed_name(file: InputFile, function: ParserFunction) -> str:
    """Returns the start of the names of the Arrow files of an input file."""
    # An object of a store has an etag, which is part of the state, instead of a useful time.
    stat = file.stat
    state = repr(
        (
            file.path,
            stat.size_bytes,
            stat.mtime_ns,
            stat.etag,
            function.name,
            function.digest,
        )
    )
    return hashlib.blake2b(state.encode(), digest_size=16).hexdigest()
