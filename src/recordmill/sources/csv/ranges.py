"""Scans CSV files: reads every byte of every file once, by ranges in parallel, for row counts, cuts and what the
columns hold.

A row belongs to the range of 32 MiB that it starts in. As soon as the range before says where its last row stops, a
range finds where its own does, at some GB/s and without a look at fields, passes that on, and only then looks at its
rows. So the file is read once, in parallel. A row that is too long changes where rows start, so its range is tokenized
before it passes anything on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from recordmill.base import native
from recordmill.base.buffers import Bytes
from recordmill.base.errors import DataError
from recordmill.base.threads import one_ahead, thread_map
from recordmill.schemas.type_lattice import TextCounts
from recordmill.sources.common.contract import BATCH_BYTES, BATCH_ROWS
from recordmill.sources.common.encoding import utf8_blocks
from recordmill.sources.common.scan_cache import CachedPiece, ScanCache
from recordmill.sources.csv.dialect import Dialect
from recordmill.sources.csv.fields import TokenizedRows, Tokenizer, find_row_end, read_rows
from recordmill.sources.csv.head import Head
from recordmill.sources.csv.messages import first_line
from recordmill.sources.csv.parse import ColumnCounts, Expects, RowKeeper, UnexpectedValue
from recordmill.sources.csv.sniff_dialect import QuoteEvidence
from recordmill.sources.values.labels import ClassNames
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import check_unchanged, read_range

RANGE_STEP_BYTES = 8 << 20  # 8 MiB: ranges are multiples of it
RANGE_BYTES = 4 * RANGE_STEP_BYTES  # 32 MiB: a unit's worth of rows
TAIL_BYTES = 64 << 10  # 64 KiB read beyond a range: enough to end its last row nearly always
STREAM_BLOCK_BYTES = 4 << 20  # 4 MiB of decoded content at once
_FIELDS = 1 << 20  # so many fields at once: 8 MiB of places, and a chunk of a few MiB


@dataclass(frozen=True)
class Scan:
    """Settings of a scan.

    untyped: the names whose class does not matter, since the user declares it. label: the column whose distinct values
    are collected, or None. range_bytes, tail_bytes (at least 1: the LF of a CRLF): others than the usual ones are for
    tests. expects, kept: by which schema rows are parsed as they are looked at, and where they are kept.
    """

    dialect: Dialect
    null_tokens: tuple[str, ...]
    untyped: frozenset[str]
    label: str | None
    range_bytes: int = RANGE_BYTES
    tail_bytes: int = TAIL_BYTES
    expects: Expects = lambda seen: None
    cache: ScanCache[CachedPiece] = field(default_factory=ScanCache)

    def collector(self, names: Sequence[str]) -> ColumnCounts:
        label = names.index(self.label) if self.label in names else None
        return ColumnCounts(self.null_tokens, [name not in self.untyped for name in names], label)

    def keeper(self, names: Sequence[str]) -> RowKeeper:
        return RowKeeper(self.expects, self.cache, names, self.null_tokens, self.dialect.max_row_bytes)

    def tokenizer(self, columns: int) -> Tokenizer:
        return Tokenizer(self.dialect, columns, most_rows(columns))


@dataclass(frozen=True)
class RangeExtent:
    """Place and size of a scanned range of a file, or of a streamed file.

    Attributes:
        file: Ordinal of the file.
        start: Where the rows begin, in bytes of the file; 0 if it is streamed.
        stop: Where they end; 0 if it is streamed.
        rows: Rows, bad ones included.
        lines: Physical lines.
        size_bytes: Bytes of the decoded content.
        blank_lines: Blank lines that are no rows.
    """

    file: int
    start: int
    stop: int
    rows: int
    lines: int
    size_bytes: int
    blank_lines: int


@dataclass(frozen=True)
class ScannedRange(RangeExtent):
    """Findings of a scan of one range. Lines count from the range's own first one, unless the file is streamed. seen:
    counts of each column of the file. quotes: evidence about the quote. unexpected: by column, the first text among
    other values.
    """

    seen: tuple[TextCounts, ...]
    labels: ClassNames
    quotes: QuoteEvidence
    unexpected: Mapping[int, UnexpectedValue]

    @property
    def extent(self) -> RangeExtent:
        return RangeExtent(*(getattr(self, name) for name in RangeExtent.__dataclass_fields__))


def most_rows(columns: int) -> int:
    """Returns how many rows are tokenized at once."""
    return max(1, min(BATCH_ROWS, _FIELDS // max(columns, 1)))


@dataclass(frozen=True)
class _Range:
    """One task: bytes [start, stop) of the file. entry: where its first row starts, known once the range before knows
    where its last one stops.
    """

    file: int
    start: int
    stop: int
    entry: Future[int]
    following: Future[int]


def scan_files(files: Sequence[InputFile], heads: Sequence[Head], scan: Scan, threads: int) -> Iterator[ScannedRange]:
    """Yields the parts of all files, in order. DataError: a file is damaged, can't be decoded, or changed since it was
    listed.
    """

    def work(task: _Range | int) -> ScannedRange:
        if isinstance(task, int):
            return _scan_stream(task, files[task], heads[task], scan)
        try:
            return _RangeScan(task, files[task.file], heads[task.file], scan).run()
        except BaseException as error:
            if not task.following.done():
                task.following.set_exception(error)
            raise

    return thread_map(work, _tasks(files, heads, scan.range_bytes), threads)


def _tasks(files: Sequence[InputFile], heads: Sequence[Head], range_bytes: int) -> Iterator[_Range | int]:
    for ordinal, (file, head) in enumerate(zip(files, heads, strict=True)):
        if head.streamed:
            yield ordinal
            continue
        entry: Future[int] = Future()
        entry.set_result(head.start)
        for start in range(0, file.stat.size_bytes, range_bytes):
            following: Future[int] = Future()
            yield _Range(ordinal, start, min(start + range_bytes, file.stat.size_bytes), entry, following)
            entry = following


def _scan_stream(ordinal: int, file: InputFile, head: Head, scan: Scan) -> ScannedRange:
    collector, keeper, tokenizer = scan.collector(head.names), scan.keeper(head.names), scan.tokenizer(len(head.names))
    rows, blanks, quotes = 0, 0, QuoteEvidence()
    blocks = _Counted(one_ahead(utf8_blocks(file, head.encoding, STREAM_BLOCK_BYTES, head.compression)))
    for data, found in read_rows(tokenizer, blocks, head.start, head.line, STREAM_BLOCK_BYTES):
        ready = collector.add(data, found, keeper.wanted())
        keeper.add(data, found, collector.classes(), ready)
        quotes += _quote_evidence(data, found)
        rows += found.count
        blanks += found.blanks
    size = blocks.size
    check_unchanged(file.path, file.stat, file.name)
    keeper.put(ordinal, 0)
    findings = tuple(collector.seen()), collector.labels, quotes, collector.unexpected
    return ScannedRange(ordinal, 0, 0, rows, 0, size, blanks, *findings)


def _quote_evidence(data: Bytes, rows: TokenizedRows) -> QuoteEvidence:
    """Returns what these rows say of the quote."""
    fields, needed, across, line = rows.quotes
    unexpected = rows.bad[rows.bad[:, 3] == native.CSV_STRAY_QUOTE]
    broken = int(rows.bad[:, 5].sum())
    return QuoteEvidence(
        *(fields, needed, across, len(unexpected), broken, len(rows.bad) - broken),
        first_quote_error=(int(unexpected[0, 1]), first_line(data[unexpected[0, 4] :])) if len(unexpected) else None,
        first_across=line if across else None,
    )


class _Counted:
    """An iterator of blocks that adds up their sizes."""

    def __init__(self, blocks: Iterator[Bytes]) -> None:
        self._blocks, self.size = blocks, 0

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> Bytes:
        block = next(self._blocks)
        self.size += len(block)
        return block


class _RangeScan:
    """The scan of one range; holds its bytes and what it found so far."""

    def __init__(self, task: _Range, file: InputFile, head: Head, scan: Scan) -> None:
        self._task, self._file, self._scan = task, file, scan
        self._collector, self._columns = scan.collector(head.names), len(head.names)
        self._keeper = scan.keeper(head.names)
        self._data = read_range(file.path, task.start, task.stop + scan.tail_bytes)
        self._size = task.stop - task.start
        if len(self._data) < self._size:
            check_unchanged(file.path, file.stat, file.name)
        self._rows = self._lines = self._blanks = 0
        self._quotes = QuoteEvidence()

    def run(self) -> ScannedRange:
        task, first = self._task, self._task.entry.result()
        if first >= task.stop < self._file.stat.size_bytes:
            task.following.set_result(first)
            return self._part(first, first)
        end = self._row_end(first - task.start)
        if end is None:
            stop = self._tokenize_until_stop(first - task.start)
            task.following.set_result(stop)
        else:
            stop = task.start + end
            task.following.set_result(stop)
            self._tokenize_all(first - task.start, end)
        check_unchanged(self._file.path, self._file.stat, self._file.name)
        return self._part(first, stop)

    def _part(self, start: int, stop: int) -> ScannedRange:
        self._keeper.put(self._task.file, start)
        collector, counts = self._collector, (self._rows, self._lines, stop - start, self._blanks)
        findings = tuple(collector.seen()), collector.labels, self._quotes, collector.unexpected
        return ScannedRange(self._task.file, start, stop, *counts, *findings)

    def _row_end(self, at: int) -> int | None:
        """Returns where in the data the row stops that crosses the range's end; None if a row is too long or never
        closed, or a comment is longer than the tail.
        """
        while at < self._size:
            final = self._at_end()
            end = find_row_end(self._data, self._scan.dialect, at, self._size, final=final)
            if end.too_long or (end.skipping and not final):
                return None
            at = end.stop
            if final:
                break
            if at < self._size:
                self._extend()
        return at

    def _at_end(self) -> bool:
        return self._task.start + len(self._data) >= self._file.stat.size_bytes

    def _extend(self) -> None:
        """Reads as much again after the data (at least the tail)."""
        at = self._task.start + len(self._data)
        more = read_range(self._file.path, at, at + max(len(self._data) - self._size, self._scan.tail_bytes))
        if len(more) == 0:
            raise self._shrunk()
        self._data = np.concatenate([self._data, more])

    def _shrunk(self) -> DataError:
        check_unchanged(self._file.path, self._file.stat, self._file.name)
        return DataError("ends before the size that it had when it was listed", source=self._file.name)

    def _add(self, data: Bytes, rows: TokenizedRows) -> None:
        ready = self._collector.add(data, rows, self._keeper.wanted()) if len(rows.ordinals) else {}
        if rows.count:
            self._keeper.add(data, rows, self._collector.classes(), ready)
        self._quotes += _quote_evidence(data, rows)
        self._rows += rows.count
        self._blanks += rows.blanks

    def _tokenize_all(self, begin: int, end: int) -> None:
        """Looks at the rows in data[begin:end), which ends with a row."""
        tokenizer, at, line = self._scan.tokenizer(self._columns), begin, 1
        data = self._data[:end]
        while at < end:
            rows = tokenizer.read(data, at, min(at + BATCH_BYTES, end), final=True, line=line)
            self._add(data, rows)
            at, line = rows.stop, rows.line
        self._lines = line - 1

    def _tokenize_until_stop(self, begin: int) -> int:
        """Looks at the rows that start in the range; returns the byte of the file where the next one starts."""
        tokenizer, at, line, skipping = self._scan.tokenizer(self._columns), begin, 1, False
        self._keeper.give_up()
        while at < self._size or skipping:
            rows = tokenizer.read(
                self._data, at, max(self._size, at + 1), final=self._at_end(), line=line, skipping=skipping
            )
            self._add(self._data, rows)
            moved = rows.stop > at
            at, line, skipping = rows.stop, rows.line, rows.skipping
            if at >= len(self._data) and self._at_end():
                break
            if skipping and at >= self._size:
                self._lines = line - 1
                return self._behind_line(self._task.start + at)
            if not moved or skipping:
                self._extend()
        self._lines = line - 1
        return self._task.start + at

    def _behind_line(self, at: int) -> int:
        """Returns where the line after the one that is passed over at that byte of the file starts: however long that
        one is, no more than a block of it is held.
        """
        size = self._file.stat.size_bytes
        while at < size:
            block = read_range(self._file.path, at, at + STREAM_BLOCK_BYTES)
            if len(block) == 0:
                raise self._shrunk()
            end = find_row_end(block, self._scan.dialect, 0, 1, final=at + len(block) >= size, skipping=True)
            if not end.skipping:
                self._lines += 1
                return at + end.stop
            at += max(len(block) - 1, 1)  # the CR of a CRLF may be the last byte
        return size
