"""Plan and reader of CSV files.

The plan scans all rows for the schema, exact row counts and units. Large plain files are divided
into units at the starts of rows. A compressed file, or one in another encoding, is one unit.
Several small files share a unit.

The position of a row is its number in the file, starting at 0. Rejected rows count. Comments do not
count, and neither do blank lines in files with several columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby

import numpy as np
import pyarrow as pa

from recordmill.base.buffers import Bytes
from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.base.threads import prefetch_one, thread_map
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema, check_feature_count
from recordmill.sources.common.contract import (
    BATCH_BYTES,
    BATCH_ROWS,
    Chunk,
    PlanOptions,
    Unit,
    pack_units,
)
from recordmill.sources.common.encoding import read_utf8_blocks
from recordmill.sources.common.lines import make_chunk, note_blank_lines, prefetch_unit_files
from recordmill.sources.common.scan_cache import CachedBatch, CachedReject, ScanCache
from recordmill.sources.common.tables import CompactTable
from recordmill.sources.csv.fields import TokenizedRows, Tokenizer, read_rows
from recordmill.sources.csv.head import CsvHead, read_head
from recordmill.sources.csv.options import AUTO_QUOTE, CsvOptions
from recordmill.sources.csv.parse import RowParser, make_cached_batch
from recordmill.sources.csv.ranges import (
    ROW_RANGE_BYTES,
    ROW_RANGE_STEP_BYTES,
    STREAM_BLOCK_BYTES,
    RowRange,
    ScannedRowRange,
    ScanSettings,
    max_rows_per_call,
    scan_files,
)
from recordmill.sources.csv.schema import (
    ColumnSummary,
    ScanTotals,
    SchemaPredictor,
    are_parsed_alike,
    check_quotes,
    columns_without_inference,
    make_csv_schema,
    note_columns,
    note_dialect,
    unify_dialects,
)
from recordmill.sources.csv.sniff_header import FirstRow, agree_on_header
from recordmill.sources.values.conform import encode_classes
from recordmill.sources.values.text_columns import NullTokens
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import check_unchanged, prefetch_files, read_blocks, read_range

# Attributes of heads that differ in each file.
_COUNTS_OF_HEADS = ("start", "line", "blank_lines")


@dataclass(frozen=True)
class CsvSource:
    """A planned CSV input.

    In its units, `first_row` counts rows from 0, and `first_line` counts lines from 1.

    Attributes:
        heads: The head of each file.
        options: Options with the delimiter and the quote of all files.
        cache: Rows that the plan has parsed.
    """

    schema: Schema
    files: FileTable
    heads: Sequence[CsvHead]
    units: Sequence[Unit]
    notes: tuple[str, ...]
    options: CsvOptions
    plan_rejects: tuple[Reject, ...] = ()
    cache: ScanCache = field(default_factory=ScanCache, compare=False, repr=False)
    kind: str = field(default="csv", init=False)

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """Yields the rows of a unit, as `sources.common.contract.Source` requires.

        Raises:
            DataError: A file has changed since the plan, or its compressed data is damaged.
        """
        ordinals = prefetch_unit_files(
            unit, self.files, self.cache, lambda ordinal: self._row_start(ordinal, unit)
        )
        chunks = (chunk for ordinal in ordinals for chunk in self._read_file(ordinal, unit))
        # Only units of several files have small chunks.
        return _join_small_chunks(chunks) if unit.end_file - unit.begin_file > 1 else chunks

    def _row_start(self, ordinal: int, unit: Unit) -> int:
        """Returns the offset of the first row of a unit in a file.

        The offset is 0 for a streamed file, as in the key of the cache.
        """
        head = self.heads[ordinal]
        return unit.start if unit.stop else 0 if head.is_streamed else head.start

    def _read_file(self, ordinal: int, unit: Unit) -> Iterator[Chunk]:
        file = self.files[ordinal]
        check_unchanged(file.path, file.stat, file.name)
        position = unit.first_row
        for line, batch in self._parse_batches(ordinal, unit):
            place = partial(_format_reject_place, line, position)
            yield make_chunk(ordinal, file, position, batch, place)
            position += batch.num_positions
        check_unchanged(file.path, file.stat, file.name)

    def _parse_batches(self, ordinal: int, unit: Unit) -> Iterator[tuple[int, CachedBatch]]:
        """Yields the batches of a file in a unit, if possible from the cache.

        Yields:
            (line offset, batch). The line number of a reject in the file is its `line` plus this
            offset.
        """
        head, start = self.heads[ordinal], self._row_start(ordinal, unit)
        if (cached_batches := self.cache.take((ordinal, start))) is not None:
            # Cached lines count from the start of the range, or of the file if it is streamed.
            line = unit.first_line if unit.stop else 1 if head.is_streamed else head.line
            yield from (
                (line - 1, replace(batch, batch=self._encode_classes(batch.batch)))
                for batch in cached_batches
            )
            return
        num_columns = len(head.names)
        parser = RowParser(self.schema, head.names, NullTokens.from_texts(self.options.null_tokens))
        for data, rows in self._tokenize(
            ordinal, unit, Tokenizer(self.options, num_columns, max_rows_per_call(num_columns))
        ):
            yield (
                0,
                make_cached_batch(
                    data, rows, parser.parse(data, rows), self.options.max_line_bytes, num_columns
                ),
            )

    def _encode_classes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a cached batch with class numbers instead of class names."""
        columns = [
            encode_classes(column, feature)
            for feature, column in zip(self.schema, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=to_arrow(self.schema))

    def locate(self, file_ordinal: int, positions: Sequence[int]) -> list[str]:
        """Returns the places of rows, see `RecordLocator`.

        The units that contain these rows are read again.
        """
        first_position = min(positions)
        last_position = max(positions)
        num_columns = len(self.heads[file_ordinal].names)
        line_by_position: dict[int, int] = {}
        for unit in self.units:
            if not unit.begin_file <= file_ordinal < unit.end_file:
                continue
            unit_position = unit.first_row
            # Skips units of the file without a requested row.
            if unit.stop and not (
                unit_position <= last_position and first_position < unit_position + (unit.rows or 0)
            ):
                continue
            for _, rows in self._tokenize(
                file_ordinal,
                unit,
                Tokenizer(self.options, num_columns, max_rows_per_call(num_columns)),
            ):
                is_requested = np.isin(unit_position + rows.ordinals, positions)
                line_by_position.update(
                    zip(
                        (unit_position + rows.ordinals)[is_requested].tolist(),
                        rows.lines[is_requested].tolist(),
                        strict=True,
                    )
                )
                unit_position += rows.num_rows
        return [_format_place(line_by_position[position], position) for position in positions]

    def _tokenize(
        self, ordinal: int, unit: Unit, tokenizer: Tokenizer
    ) -> Iterator[tuple[Bytes, TokenizedRows]]:
        file, head = self.files[ordinal], self.heads[ordinal]
        if head.is_streamed:
            blocks = prefetch_one(
                read_utf8_blocks(file, head.encoding, STREAM_BLOCK_BYTES, head.compression)
            )
            yield from read_rows(tokenizer, blocks, head.start, head.line, BATCH_BYTES)
            return
        start, stop, line = (
            (unit.start, unit.stop, unit.first_line)
            if unit.stop
            else (head.start, file.stat.size_bytes, head.line)
        )
        if (
            # Only a skipped line makes a range so long. It is read in blocks, to bound the memory.
            stop - start > ROW_RANGE_BYTES + self.options.max_line_bytes
        ):
            blocks = read_blocks(file.path, STREAM_BLOCK_BYTES, start, stop)
            yield from read_rows(tokenizer, blocks, 0, line, BATCH_BYTES)
            return
        data, offset = read_range(file.path, start, stop), 0
        while offset < len(data):
            rows = tokenizer.read(data, offset, offset + BATCH_BYTES, is_final=True, line=line)
            if rows.num_rows:
                yield data, rows
            offset, line = rows.stop, rows.stop_line


def _format_place(line: int, row: int) -> str:
    return f"line {line}, row {row}"


def _format_reject_place(lines_before: int, first_position: int, reject: CachedReject) -> str:
    return _format_place(lines_before + reject.line, first_position + reject.ordinal)


def _join_small_chunks(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Joins consecutive small chunks up to BATCH_ROWS and about BATCH_BYTES."""
    pending: list[Chunk] = []
    rows = size = 0
    for chunk in chunks:
        assert isinstance(chunk.records, pa.RecordBatch)
        if pending and (
            rows + chunk.rows > BATCH_ROWS or size + chunk.records.nbytes > BATCH_BYTES
        ):
            yield _concatenate_chunks(pending)
            pending, rows, size = [], 0, 0
        pending.append(chunk)
        rows, size = rows + chunk.rows, size + chunk.records.nbytes
    if pending:
        yield _concatenate_chunks(pending)


def _concatenate_chunks(chunks: list[Chunk]) -> Chunk:
    if len(chunks) == 1:
        return chunks[0]
    table = pa.Table.from_batches([chunk.records for chunk in chunks]).combine_chunks()
    # A table without rows has no batches.
    batch = table.to_batches()[0] if table.num_rows else chunks[0].records
    file_ids, positions = (
        np.concatenate([getattr(chunk, name) for chunk in chunks])
        for name in ("file_ids", "positions")
    )
    return Chunk(
        records=batch,
        file_ids=file_ids,
        positions=positions,
        rejects=tuple(reject for chunk in chunks for reject in chunk.rejects),
    )


def plan_csv(files: Sequence[InputFile], options: CsvOptions, common: PlanOptions) -> CsvSource:
    """Scans the files and plans how to read them.

    Raises:
        UsageError: There are no files, a dtype or the label names an unknown column, or an option
            does not fit.
        DataError: A file is empty, is not text, has no usable header, is damaged, or has changed
            during the plan. It is also raised if the dialects of files differ, or if there are no
            rows.
    """
    options = replace(options, max_line_bytes=common.cap_line_bytes(options.max_line_bytes))
    common = replace(common, columns=options.columns)
    # A sixteenth of the memory per thread for the bytes of a range. The rest is for its results.
    range_budget = common.memory_bytes // (16 * max(common.threads, 1))
    return _plan_with_ranges(
        files,
        options,
        common,
        min(max(range_budget // ROW_RANGE_STEP_BYTES, 1) * ROW_RANGE_STEP_BYTES, common.unit_bytes),
    )


def _plan_with_ranges(
    files: Sequence[InputFile],
    options: CsvOptions,
    common: PlanOptions,
    range_bytes: int,
    quote_reason: str = "",
) -> CsvSource:
    """Plans the files with a given size of ranges.

    If quotes turn out to be text, it plans them again without quoting.

    Args:
        files: The files.
        options: The options of CSV.
        common: The options of the plan.
        range_bytes: Approximate size of a range.
        quote_reason: Why quotes are text, according to an earlier scan. "" for the first scan.
    """
    if not files:
        raise UsageError("no CSV files among the inputs")
    files = FileTable.from_files(files)
    # Uses fewer threads if the memory does not hold four ranges for each.
    threads = max(1, min(common.threads, common.memory_bytes // (4 * range_bytes)))
    option_names = _names_in_options(common)
    found = _read_heads(files, options, option_names, threads)
    dialect = unify_dialects(files, found.heads, options)
    header_reason = agree_on_header(found.first_rows, options.names, option_names)
    heads = _use_first_header(found.heads, found.later_parts) if found.later_parts else found.heads
    # Files may lack columns, and have them in any order.
    column_names = tuple(
        dict.fromkeys(
            name
            for column_names in dict.fromkeys(head.names for head in heads)
            for name in column_names
        )
    )
    check_feature_count(
        len(column_names), common.memory_bytes, files[0].name if len(files) == 1 else ""
    )
    label = common.label if common.schema is None else None
    cache = common.create_parsed_cache()
    scan = ScanSettings(
        options=dialect,
        untyped_columns=columns_without_inference(column_names, common),
        label=label,
        range_bytes=range_bytes,
        predict_schema=SchemaPredictor(column_names, common),
        cache=cache,
    )
    totals = ScanTotals(column_names, files, heads, label)
    row_ranges = _add_up_ranges(scan_files(files, heads, scan, threads), totals)
    _check_any_row(files, row_ranges, options)
    quote_notes = tuple[str, ...]()
    if options.quote == AUTO_QUOTE and dialect.quote is not None:
        are_text, quote_notes = check_quotes(totals, dialect.quote, len(column_names))
        if are_text:
            # The rows were split with the wrong quote.
            cache.drop_invalid(lambda _: False)
            unquoted_dialect = replace(dialect, quote=None)
            return _plan_with_ranges(
                files,
                unquoted_dialect,
                common,
                range_bytes,
                "; ".join(filter(None, [found.dialect_reason, are_text])),
            )
    columns = totals.summarize_columns()
    trailing_name = _find_trailing_column(columns, heads, common, option_names)
    columns = tuple(column for column in columns if column.name != trailing_name)
    schema, notes = make_csv_schema(columns, totals.labels, common)
    # The schema of the cached rows has no classes that depend on the data.
    parsing_schema, _ = make_csv_schema(columns, None, common)
    cache.drop_invalid(lambda schema: are_parsed_alike(schema, parsing_schema))
    notes = (
        *note_dialect(
            quote_reason or found.dialect_reason,
            header_reason if found.first_rows else "",
            len(files),
        ),
        *quote_notes,
        *([found.blanks_note] if found.blanks_note else []),
        *_note_later_parts(files, found.later_parts),
        *_note_trailing_column(trailing_name),
        *note_columns(columns, schema, heads, options.null_tokens),
        *_note_empty_files(files, row_ranges),
        *note_blank_lines(_count_blank_lines(files, heads, row_ranges)),
        *notes,
    )
    units = _make_units(heads, row_ranges, common.unit_bytes)
    return CsvSource(
        schema=schema,
        files=files,
        heads=heads,
        units=units,
        notes=notes,
        options=dialect,
        cache=cache,
    )


def _names_in_options(common: PlanOptions) -> set[str]:
    label_names = () if common.label is None else (common.label,)
    return {
        *label_names,
        *common.dtypes,
        *(common.schema.names if common.schema is not None else ()),
    }


@dataclass(frozen=True)
class _FoundHeads:
    """The heads of all files, and the results of their detection.

    Attributes:
        heads: The head of each file, without the reasons for the detection, which saves memory.
        dialect_reason: The first `dialect_reason`, or "".
        blanks_note: The first `blanks_note`, or "".
        first_rows: The distinct first rows: one for each combination of fields and verdict.
        later_parts: (start, line) of the first row of each file in which this row is data, by file
            ordinal.
    """

    heads: CompactTable[CsvHead]
    dialect_reason: str
    blanks_note: str
    first_rows: Sequence[FirstRow]
    later_parts: Mapping[int, tuple[int, int]]


def _read_heads(
    files: FileTable, options: CsvOptions, option_names: Set[str], threads: int
) -> _FoundHeads:
    """Reads the head of each file. Files with the same columns share one tuple of names.

    Args:
        files: The files.
        options: The options of CSV.
        option_names: The columns that the user has named in options.
        threads: The number of threads.
    """
    dialect_reason = blanks_note = ""
    first_rows: dict[tuple[tuple[str, ...], str], FirstRow] = {}
    later_parts: dict[int, tuple[int, int]] = {}
    known_names: dict[tuple[str, ...], tuple[str, ...]] = {}

    def iter_heads() -> Iterator[CsvHead]:
        nonlocal dialect_reason, blanks_note
        prefetched_files = prefetch_files(files, lambda file: (file.path, file.stat))
        heads = thread_map(lambda file: read_head(file, options), prefetched_files, threads)
        for ordinal, head in enumerate(heads):
            dialect_reason = dialect_reason or head.dialect_reason
            blanks_note = blanks_note or head.blanks_note
            if (row := head.first_row) is not None:
                first_rows.setdefault((row.fields, row.guess.verdict), row)
                if row.is_data(options.names, option_names):
                    later_parts[ordinal] = row.start, row.line
            yield replace(
                head,
                names=known_names.setdefault(head.names, head.names),
                dialect_reason="",
                blanks_note="",
                first_row=None,
            )

    heads = CompactTable.from_items(iter_heads(), _COUNTS_OF_HEADS)
    return _FoundHeads(heads, dialect_reason, blanks_note, [*first_rows.values()], later_parts)


def _check_any_row(files: FileTable, row_ranges: Sequence[RowRange], options: CsvOptions) -> None:
    """Raises DataError if no file has a row."""
    if any(row_range.rows for row_range in row_ranges):
        return
    missing_rows = "no rows" if options.header is False else "a header and no rows"
    other_files = f", as do the other {len(files) - 1} files" if len(files) > 1 else ""
    raise DataError(f"holds {missing_rows}{other_files}", source=files[0].name)


def _use_first_header(
    heads: Sequence[CsvHead], later_parts: Mapping[int, tuple[int, int]]
) -> CompactTable[CsvHead]:
    """Returns the heads, with the first file's columns for files without a header.

    Args:
        heads: The heads. The head of a file without a header has the names from its first row.
        later_parts: (start, line) of the first row of each file without a header, by ordinal.
    """
    names, generated_names = heads[0].names, heads[0].generated_names

    def iter_heads() -> Iterator[CsvHead]:
        for ordinal, head in enumerate(heads):
            if ordinal in later_parts:
                start, line = later_parts[ordinal]
                head = replace(
                    head,
                    names=names,
                    generated_names=generated_names,
                    trailing_name=heads[0].trailing_name,
                    start=start,
                    line=line,
                    blank_lines=0,
                )
            yield head

    return CompactTable.from_items(iter_heads(), _COUNTS_OF_HEADS)


def _add_up_ranges(
    scanned_ranges: Iterable[ScannedRowRange], totals: ScanTotals
) -> Sequence[RowRange]:
    """Adds the results of all ranges to the totals.

    Returns the ranges without their results.
    """

    def iter_row_ranges() -> Iterator[RowRange]:
        for scanned_range in scanned_ranges:
            totals.add(scanned_range)
            yield scanned_range.row_range

    return CompactTable.from_items(iter_row_ranges(), tuple(RowRange.__dataclass_fields__))


def _find_trailing_column(
    columns: Sequence[ColumnSummary],
    heads: Sequence[CsvHead],
    common: PlanOptions,
    option_names: Collection[str],
) -> str:
    """Returns the name of an empty last column, or "".

    A delimiter at the end of each row makes this column. The header has no name for it, and no row
    has a value.
    """
    names = {head.trailing_name for head in heads}
    used_names = {*option_names, *(common.columns or ())}
    if len(names) > 1 or names <= used_names:
        return ""
    return next(
        (
            column.name
            for column in columns
            if column.name in names and column.counts.values + column.counts.soft_nulls == 0
        ),
        "",
    )


def _note_trailing_column(name: str) -> tuple[str, ...]:
    if not name:
        return ()
    return (f"column {name!r} is left out: each row ends with a delimiter that nothing follows",)


def _note_later_parts(files: Sequence[InputFile], ordinals: Collection[int]) -> tuple[str, ...]:
    if not ordinals:
        return ()
    shown = ", ".join(files[ordinal].name for ordinal in [*ordinals][:3])
    count = f" and {len(ordinals) - 3:,} more" if len(ordinals) > 3 else ""
    return (
        f"only the first file has a header, so its columns are those of all files: {files[0].name} "
        f"(without a header: {shown}{count})",
    )


def _note_empty_files(
    files: Sequence[InputFile], row_ranges: Iterable[RowRange]
) -> tuple[str, ...]:
    is_filled = np.zeros(len(files), np.bool_)
    is_filled[[row_range.file_ordinal for row_range in row_ranges if row_range.rows]] = True
    empty_files = np.flatnonzero(~is_filled)
    if not len(empty_files):
        return ()
    name_list = ", ".join(files[index].name for index in empty_files[:3].tolist()) + (
        ", ..." if len(empty_files) > 3 else ""
    )
    return (f"{len(empty_files)} files hold a header and no rows: {name_list}",)


def _count_blank_lines(
    files: Sequence[InputFile], heads: Sequence[CsvHead], row_ranges: Iterable[RowRange]
) -> Counter[str]:
    counts = Counter(
        {
            file.name: head.blank_lines
            for file, head in zip(files, heads, strict=True)
            if head.blank_lines
        }
    )
    for row_range in row_ranges:
        if row_range.blank_lines:
            counts[files[row_range.file_ordinal].name] += row_range.blank_lines
    return counts


def _make_units(
    heads: Sequence[CsvHead], row_ranges: Iterable[RowRange], unit_bytes: int
) -> tuple[Unit, ...]:
    """Returns the units in the order of files and rows.

    If a file has several units, each contains the line number at its start.
    """

    def iter_units() -> Iterator[Unit]:
        for ordinal, file_ranges in groupby(
            row_ranges, key=lambda row_range: row_range.file_ordinal
        ):
            ranges_of_file = list(file_ranges)
            if len(ranges_of_file) == 1:
                if ranges_of_file[0].rows:
                    yield Unit(
                        ordinal,
                        ordinal + 1,
                        rows=ranges_of_file[0].rows,
                        size_bytes=ranges_of_file[0].size_bytes,
                    )
                continue
            first_row, first_line = 0, heads[ordinal].line
            for row_range in ranges_of_file:
                # A range without rows gets no unit, but its lines still count.
                if row_range.rows:
                    yield Unit(
                        begin_file=ordinal,
                        end_file=ordinal + 1,
                        start=row_range.start,
                        stop=row_range.stop,
                        first_row=first_row,
                        rows=row_range.rows,
                        size_bytes=row_range.size_bytes,
                        first_line=first_line,
                    )
                first_row, first_line = first_row + row_range.rows, first_line + row_range.lines

    return pack_units(iter_units(), unit_bytes)
