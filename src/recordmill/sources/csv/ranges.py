"""Scan of CSV files: row counts, ranges, and types of the columns.

The scan reads each row of each file once. Plain files are divided into ranges of complete rows with
about 32 MiB. One thread finds the ends of the ranges at some GB/s, because it does not find the
fields. The other threads scan several ranges at once. A compressed file, or one in another encoding
than UTF-8, is a single range that is read as a stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from recordmill.base import native
from recordmill.base.buffers import Bytes
from recordmill.base.errors import DataError
from recordmill.base.threads import prefetch_one, thread_map
from recordmill.schemas.type_lattice import TextCounts
from recordmill.sources.common.contract import BATCH_BYTES, BATCH_ROWS
from recordmill.sources.common.encoding import read_utf8_blocks
from recordmill.sources.common.scan_cache import ScanCache
from recordmill.sources.csv.fields import RowEnd, TokenizedRows, Tokenizer, find_row_end, read_rows
from recordmill.sources.csv.head import CsvHead
from recordmill.sources.csv.messages import quote_first_line
from recordmill.sources.csv.options import CsvOptions
from recordmill.sources.csv.parse import (
    ColumnProfiler,
    RowCacheWriter,
    SchemaPrediction,
    UnexpectedValue,
)
from recordmill.sources.csv.sniff_dialect import QuoteEvidence
from recordmill.sources.values.labels import ClassNames
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import check_unchanged, read_range

# 8 MiB: ranges are multiples of it.
ROW_RANGE_STEP_BYTES = 8 << 20
# 32 MiB: the rows of one unit.
ROW_RANGE_BYTES = 4 * ROW_RANGE_STEP_BYTES
# 4 MiB: size of the blocks in which a streamed file is read.
STREAM_BLOCK_BYTES = 4 << 20
# 1,048,576 fields per call of a tokenizer: their positions take 8 MiB, and their rows become a
# batch of a few MiB.
_MAX_FIELDS = 1 << 20


@dataclass(frozen=True)
class ScanSettings:
    """Settings of a scan.

    Attributes:
        options: Options with a delimiter, and a quote or None.
        untyped_columns: Names of the columns that have a dtype independent of their values.
        label: The column with the label, or None. Its distinct values are collected.
        range_bytes: Approximate size of a range.
        predict_schema: Returns the schema for parsing rows during the scan.
        cache: Receives the parsed rows.
    """

    options: CsvOptions
    untyped_columns: frozenset[str]
    label: str | None
    range_bytes: int = ROW_RANGE_BYTES
    predict_schema: SchemaPrediction = lambda seen: None
    cache: ScanCache = field(default_factory=ScanCache)

    def create_tokenizer(self, num_columns: int) -> Tokenizer:
        return Tokenizer(self.options, num_columns, max_rows_per_call(num_columns))


@dataclass(frozen=True)
class RowRange:
    """Position and size of a range of rows in a file.

    Attributes:
        file_ordinal: Index of the file.
        start: Offset of the first row in the file. 0 for a streamed file.
        stop: Offset after the last row. 0 for a streamed file.
        rows: Number of rows, including bad ones.
        lines: Number of lines. 0 for a streamed file.
        size_bytes: Size of the range as uncompressed UTF-8.
        blank_lines: Number of blank lines that are not rows.
    """

    file_ordinal: int
    start: int
    stop: int
    rows: int
    lines: int
    size_bytes: int
    blank_lines: int


@dataclass(frozen=True)
class ScannedRowRange(RowRange):
    """A range of rows with the results of its scan.

    Line numbers in the results start with 1 at the first line of the range. In a streamed file they
    are line numbers of the file.

    Attributes:
        column_counts: Counts of the values and nulls of each column, in the order of the file.
        labels: Distinct values of the label.
        quote_evidence: Evidence for and against the detected quote.
        unexpected_values: The first text in a column that otherwise contains other values, such as
            numbers, by column index.
    """

    column_counts: tuple[TextCounts, ...]
    labels: ClassNames
    quote_evidence: QuoteEvidence
    unexpected_values: Mapping[int, UnexpectedValue]

    @property
    def row_range(self) -> RowRange:
        """The position and size of the range, without the results of its scan."""
        return RowRange(*(getattr(self, name) for name in RowRange.__dataclass_fields__))


def max_rows_per_call(num_columns: int) -> int:
    """Returns the number of rows that a tokenizer should return at once.

    More columns mean fewer rows, which bounds the memory for the positions of fields.
    """
    return max(1, min(BATCH_ROWS, _MAX_FIELDS // max(num_columns, 1)))


@dataclass(frozen=True)
class _LoadedRange:
    """Rows of a plain file in memory that are not scanned yet.

    Attributes:
        file_ordinal: Index of the file.
        start: Offset of the first row.
        stop: Offset after the last row.
        data: The bytes of the rows. If the last line is skipped because it is too long, its end is
            missing.
    """

    file_ordinal: int
    start: int
    stop: int
    data: Bytes


def scan_files(
    files: Sequence[InputFile], heads: Sequence[CsvHead], scan: ScanSettings, threads: int
) -> Iterator[ScannedRowRange]:
    """Scans the rows of all files on several threads.

    Args:
        files: The files.
        heads: The head of each file.
        scan: Settings of the scan.
        threads: Number of threads.

    Yields:
        The result for each range, in the order of files and rows.

    Raises:
        DataError: A file is damaged, can't be decoded, or has changed since it was listed.
    """

    def work(task: _LoadedRange | int) -> ScannedRowRange:
        if isinstance(task, int):
            return _scan_stream(task, files[task], heads[task], scan)
        return _scan_range(task, heads[task.file_ordinal], scan)

    def task_bytes(task: _LoadedRange | int) -> int:
        return 0 if isinstance(task, int) else len(task.data)

    return thread_map(
        work,
        _iter_tasks(files, heads, scan),
        threads,
        # Loaded ranges that wait for a thread count against this limit.
        item_bytes=task_bytes,
        max_bytes=threads * scan.range_bytes,
    )


def _iter_tasks(
    files: Sequence[InputFile], heads: Sequence[CsvHead], scan: ScanSettings
) -> Iterator[_LoadedRange | int]:
    for ordinal, (file, head) in enumerate(zip(files, heads, strict=True)):
        if head.is_streamed:
            yield ordinal
        else:
            yield from _load_ranges(ordinal, file, head.start, scan)


def _load_ranges(
    ordinal: int, file: InputFile, start: int, scan: ScanSettings
) -> Iterator[_LoadedRange]:
    file_bytes, max_bytes = file.stat.size_bytes, scan.range_bytes
    while start < file_bytes:
        data = _read_bytes(file, start, max_bytes)
        is_final = start + len(data) == file_bytes
        row_end = RowEnd(0, False, True)
        # `find_row_end` stops after each row that is too long, so it is called again for the rest.
        while row_end.has_too_long_row and row_end.stop < len(data):
            row_end = find_row_end(
                data,
                scan.options,
                row_end.stop,
                len(data),
                is_final=is_final,
                is_skipping=row_end.is_skipping,
            )
        stop = start + row_end.stop
        # The range ends inside a line that is skipped. Only the end of that line is searched, so
        # that its length needs no memory.
        if row_end.is_skipping and not is_final:
            stop = _find_line_end(file, stop, scan.options)
        elif stop == start:
            max_bytes *= 2  # the first row is longer than the range
            continue
        yield _LoadedRange(ordinal, start, stop, data[: row_end.stop])
        del data  # frees the memory before the next range is read
        start, max_bytes = stop, scan.range_bytes
    check_unchanged(file.path, file.stat, file.name)


def _read_bytes(file: InputFile, start: int, size: int) -> Bytes:
    data = read_range(file.path, start, min(start + size, file.stat.size_bytes))
    if len(data) < min(size, file.stat.size_bytes - start):
        check_unchanged(file.path, file.stat, file.name)
        raise DataError("ends before the size that it had when it was listed", source=file.name)
    return data


def _find_line_end(file: InputFile, offset: int, dialect: CsvOptions) -> int:
    """Returns the start of the line after a line that is skipped.

    At most one block of the skipped line is in memory, however long the line is.

    Args:
        file: The file.
        offset: Any offset in the skipped line.
        dialect: The options of the files.
    """
    file_bytes = file.stat.size_bytes
    while offset < file_bytes:
        block = _read_bytes(file, offset, STREAM_BLOCK_BYTES)
        end = find_row_end(
            block, dialect, 0, 1, is_final=offset + len(block) == file_bytes, is_skipping=True
        )
        if not end.is_skipping:
            return offset + end.stop
        # The last byte may be the CR of a CRLF, so it is read again.
        offset += max(len(block) - 1, 1)
    return file_bytes


class _RangeScan:
    """Collects the results for one range, or for one streamed file."""

    def __init__(self, head: CsvHead, scan: ScanSettings) -> None:
        column_names = head.names
        label_column = head.names.index(scan.label) if scan.label in head.names else None
        is_typed = [name not in scan.untyped_columns for name in column_names]
        self._profiler = ColumnProfiler(scan.options.null_tokens, is_typed, label_column)
        self._cache_writer = RowCacheWriter(
            scan.predict_schema, scan.cache, column_names, scan.options
        )
        self._rows = self._blank_lines = 0
        self._quotes = QuoteEvidence()

    def add(self, data: Bytes, rows: TokenizedRows) -> None:
        parsed_columns = (
            self._profiler.add(data, rows, self._cache_writer.columns_to_parse())
            if len(rows.ordinals)
            else {}
        )
        if rows.num_rows:
            self._cache_writer.add(data, rows, self._profiler.classes(), parsed_columns)
        self._quotes += _quote_evidence(data, rows)
        self._rows += rows.num_rows
        self._blank_lines += rows.blank_lines

    def result(
        self, file_ordinal: int, start: int, stop: int, lines: int, size_bytes: int
    ) -> ScannedRowRange:
        """Returns the results for all rows that were added, and caches the parsed rows."""
        self._cache_writer.store(file_ordinal, start)
        profiler = self._profiler
        return ScannedRowRange(
            file_ordinal=file_ordinal,
            start=start,
            stop=stop,
            rows=self._rows,
            lines=lines,
            size_bytes=size_bytes,
            blank_lines=self._blank_lines,
            column_counts=tuple(profiler.text_counts()),
            labels=profiler.labels,
            quote_evidence=self._quotes,
            unexpected_values=profiler.unexpected_values,
        )


def _scan_stream(
    ordinal: int, file: InputFile, head: CsvHead, scan: ScanSettings
) -> ScannedRowRange:
    range_scan, tokenizer = _RangeScan(head, scan), scan.create_tokenizer(len(head.names))
    blocks = _SizeCounter(
        prefetch_one(read_utf8_blocks(file, head.encoding, STREAM_BLOCK_BYTES, head.compression))
    )
    for data, rows in read_rows(tokenizer, blocks, head.start, head.line, STREAM_BLOCK_BYTES):
        range_scan.add(data, rows)
    check_unchanged(file.path, file.stat, file.name)
    # `lines` is only needed to number the lines of a later range, and there is none.
    return range_scan.result(file_ordinal=ordinal, start=0, stop=0, lines=0, size_bytes=blocks.size)


def _scan_range(task: _LoadedRange, head: CsvHead, scan: ScanSettings) -> ScannedRowRange:
    range_scan, tokenizer = _RangeScan(head, scan), scan.create_tokenizer(len(head.names))
    data, offset, line_number = task.data, 0, 1
    while offset < len(data):
        rows = tokenizer.read(
            data, offset, min(offset + BATCH_BYTES, len(data)), is_final=True, line=line_number
        )
        range_scan.add(data, rows)
        offset, line_number = rows.stop, rows.stop_line
    # The data lacks the end of a skipped line, so the tokenizer has not counted that line.
    has_skipped_line = task.stop > task.start + len(data)
    return range_scan.result(
        file_ordinal=task.file_ordinal,
        start=task.start,
        stop=task.stop,
        lines=line_number - 1 + has_skipped_line,
        size_bytes=task.stop - task.start,
    )


def _quote_evidence(data: Bytes, rows: TokenizedRows) -> QuoteEvidence:
    quoted_fields, rows_needing_quotes, rows_across_lines, first_across_line = rows.quote_counts
    stray_quote_rows = rows.bad_rows[rows.bad_rows[:, 3] == native.CsvRowFault.STRAY_QUOTE]
    # Column 5 is 1 for rows that would be correct without quotes.
    num_broken = int(rows.bad_rows[:, 5].sum())
    return QuoteEvidence(
        quoted_fields=quoted_fields,
        rows_needing_quotes=rows_needing_quotes,
        rows_across_lines=rows_across_lines,
        stray_quote_rows=len(stray_quote_rows),
        rows_broken_by_quotes=num_broken,
        unusable_rows=len(rows.bad_rows) - num_broken,
        first_stray_quote=(
            int(stray_quote_rows[0, 1]),
            quote_first_line(data[stray_quote_rows[0, 4] :]),
        )
        if len(stray_quote_rows)
        else None,
        first_across_line=first_across_line if rows_across_lines else None,
    )


class _SizeCounter:
    """Iterator of blocks that adds up their sizes."""

    def __init__(self, blocks: Iterator[Bytes]) -> None:
        self._blocks, self.size = blocks, 0

    def __iter__(self) -> _SizeCounter:
        return self

    def __next__(self) -> Bytes:
        block = next(self._blocks)
        self.size += len(block)
        return block
