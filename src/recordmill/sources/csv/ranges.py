"""Scans CSV files: finds every row of every file once, for row counts, cuts and what the columns hold.

A plain file is cut into ranges of whole rows of about 32 MiB, one after the other, at some GB/s and without a look at
fields; the threads look at the rows of several ranges at once. Other files are a range each, read as a stream.
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
from recordmill.sources.csv.dialect import CsvOptions
from recordmill.sources.csv.fields import RowEnd, TokenizedRows, Tokenizer, find_row_end, read_rows
from recordmill.sources.csv.head import CsvHead
from recordmill.sources.csv.messages import quote_first_line
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

ROW_RANGE_STEP_BYTES = 8 << 20  # 8 MiB: ranges are multiples of it
ROW_RANGE_BYTES = 4 * ROW_RANGE_STEP_BYTES  # 32 MiB: a unit's worth of rows
STREAM_BLOCK_BYTES = 4 << 20  # 4 MiB of decoded content at once
_MAX_FIELDS = 1 << 20  # so many fields at once: 8 MiB of places, and a chunk of a few MiB


@dataclass(frozen=True)
class ScanSettings:
    """Settings of a scan.

    options: with a delimiter and a quote, or none. untyped_columns: the names whose class does not matter, since the user
    declares it. label: the column whose distinct values are collected, or None. expects, cache: by which schema rows
    are parsed as they are looked at, and where they are kept.
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
    """Place and size of a scanned range of a file, or of a streamed file.

    Attributes:
        file_ordinal: Ordinal of the file.
        start: Where the rows begin, in bytes of the file; 0 if it is streamed.
        stop: Where they end; 0 if it is streamed.
        rows: Rows, bad ones included.
        lines: Physical lines.
        size_bytes: Bytes of the decoded content.
        blank_lines: Blank lines that are no rows.
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
    """Findings of a scan of one range. Lines count from the range's own first one, unless the file is streamed. column_counts:
    counts of each column of the file. quote_evidence: evidence about the quote. unexpected_values: by column, the first text among
    other values.
    """

    column_counts: tuple[TextCounts, ...]
    labels: ClassNames
    quote_evidence: QuoteEvidence
    unexpected_values: Mapping[int, UnexpectedValue]

    @property
    def row_range(self) -> RowRange:
        return RowRange(*(getattr(self, name) for name in RowRange.__dataclass_fields__))


def max_rows_per_call(num_columns: int) -> int:
    """Returns how many rows are tokenized at once."""
    return max(1, min(BATCH_ROWS, _MAX_FIELDS // max(num_columns, 1)))


@dataclass(frozen=True)
class _LoadedRange:
    """Rows [start, stop) of a file. data: their bytes, without the end of a line that is passed over since it is too
    long to be held.
    """

    file_ordinal: int
    start: int
    stop: int
    data: Bytes


def scan_files(
    files: Sequence[InputFile], heads: Sequence[CsvHead], scan: ScanSettings, threads: int
) -> Iterator[ScannedRowRange]:
    """Yields the parts of all files, in order. DataError: a file is damaged, can't be decoded, or changed since it was
    listed.
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
        if row_end.is_skipping and not is_final:
            stop = _find_line_end(file, stop, scan.options)
        elif stop == start:
            max_bytes *= 2  # one row is larger
            continue
        yield _LoadedRange(ordinal, start, stop, data[: row_end.stop])
        del data  # before the next range is read
        start, max_bytes = stop, scan.range_bytes
    check_unchanged(file.path, file.stat, file.name)


def _read_bytes(file: InputFile, start: int, size: int) -> Bytes:
    data = read_range(file.path, start, min(start + size, file.stat.size_bytes))
    if len(data) < min(size, file.stat.size_bytes - start):
        check_unchanged(file.path, file.stat, file.name)
        raise DataError("ends before the size that it had when it was listed", source=file.name)
    return data


def _find_line_end(file: InputFile, offset: int, dialect: CsvOptions) -> int:
    """Returns where the line after the one that is passed over at that byte of the file starts: however long that one
    is, no more than a block of it is held.
    """
    file_bytes = file.stat.size_bytes
    while offset < file_bytes:
        block = _read_bytes(file, offset, STREAM_BLOCK_BYTES)
        end = find_row_end(
            block, dialect, 0, 1, is_final=offset + len(block) == file_bytes, is_skipping=True
        )
        if not end.is_skipping:
            return offset + end.stop
        offset += max(len(block) - 1, 1)  # the CR of a CRLF may be the last byte
    return file_bytes


class _RangeScan:
    """What was found in a file, or in a range of it, so far."""

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
        """Takes in the next rows."""
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
        """Returns the findings of all rows, and keeps these."""
        self._cache_writer.store(file_ordinal, start)
        profiler = self._profiler
        extent = (file_ordinal, start, stop, self._rows, lines, size_bytes, self._blank_lines)
        return ScannedRowRange(
            *extent,
            tuple(profiler.text_counts()),
            profiler.labels,
            self._quotes,
            profiler.unexpected_values,
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
    return range_scan.result(ordinal, 0, 0, 0, blocks.size)


def _scan_range(task: _LoadedRange, head: CsvHead, scan: ScanSettings) -> ScannedRowRange:
    range_scan, tokenizer = _RangeScan(head, scan), scan.create_tokenizer(len(head.names))
    data, offset, line_number = task.data, 0, 1
    while offset < len(data):
        rows = tokenizer.read(
            data, offset, min(offset + BATCH_BYTES, len(data)), is_final=True, line=line_number
        )
        range_scan.add(data, rows)
        offset, line_number = rows.stop, rows.stop_line
    has_skipped_line = task.stop > task.start + len(data)  # whose end the data lacks
    return range_scan.result(
        task.file_ordinal,
        task.start,
        task.stop,
        line_number - 1 + has_skipped_line,
        task.stop - task.start,
    )


def _quote_evidence(data: Bytes, rows: TokenizedRows) -> QuoteEvidence:
    """Returns what these rows say of the quote."""
    quoted_fields, rows_needing_quotes, rows_across_lines, first_across_line = rows.quote_counts
    stray_quote_rows = rows.bad_rows[rows.bad_rows[:, 3] == native.CsvRowFault.STRAY_QUOTE]
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
    """An iterator of blocks that adds up their sizes."""

    def __init__(self, blocks: Iterator[Bytes]) -> None:
        self._blocks, self.size = blocks, 0

    def __iter__(self) -> _SizeCounter:
        return self

    def __next__(self) -> Bytes:
        block = next(self._blocks)
        self.size += len(block)
        return block
