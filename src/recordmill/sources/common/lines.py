"""Reads text files in blocks of whole lines: from byte ranges of plain files, or as a stream from compressed or
re-encoded ones.

A line ends with a line feed and nothing else: U+2028, NEL, a vertical tab or a lone carriage return are part of it.
Ranges are cut at line feeds, so that they give exactly the lines of a sequential read; the line's number is its
position. Memory is bounded by the block and the longest line allowed: a longer one is passed over and reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, TypeVar

import numpy as np

from recordmill.base.errors import Reject
from recordmill.base.threads import prefetch_one, thread_map
from recordmill.sources.common.contract import BATCH_BYTES, UNIT_BYTES, Unit, pack_units
from recordmill.sources.common.encoding import (
    is_plain_utf8,
    read_utf8_blocks,
    strip_byte_order_mark,
    suggest_encodings,
)
from recordmill.sources.common.scan_cache import CachedReject, ScanCache
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import Bytes, Stat, check_unchanged, prefetch_files, read_range

STREAMED_COLUMN = "streamed"  # the column that marks files which can't be cut
LINE_RANGE_INTEGERS = (
    "file_ordinal",
    "start",
    "stop",
    "lines",
    "records",
    "content_bytes",
    "carriage_returns",
)  # integers of `LineRange`
LINE_RANGE_BYTES = UNIT_BYTES  # of lines, about, that a thread scans together
_PEEK_BYTES = 1 << 14  # 16 KiB: a line's end is usually near

_ScanResult = TypeVar("_ScanResult")


class LineBlock(NamedTuple):
    """data: whole lines, each with its line feed but perhaps the file's last;
    or none, and the length of one line too long to hold.
    """

    data: Bytes
    skipped_line_bytes: int = 0


def note_blank_lines(files: Counter[str]) -> tuple[str, ...]:
    """Returns a note on blank lines that are no records; files: by name, how many it has.

    >>> note_blank_lines(Counter({"a.csv": 3}))
    ('blank lines, which are no records (3): a.csv',)
    """
    names = [name for name, lines in files.items() if lines]
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return (f"blank lines, which are no records ({files.total():,}): {shown}",) if names else ()


def to_reject(one: CachedReject, file: InputFile, place: str) -> Reject:
    """Returns the reject of a record of that file."""
    hint = suggest_encodings(file) if one.reason == "encoding" else ""
    return Reject(file.name, place, one.reason, one.message + hint)


@dataclass(frozen=True)
class LineRange:
    """Lines of one file that are scanned together, and what was counted of them.

    Attributes:
        file_ordinal: The file.
        start: The byte at which the range begins, where a line does; for a streamed file 0.
        stop: The byte at which it ends; for a streamed file 0.
        is_streamed: The file can't be cut, and is one range.
        is_array: It is one JSON array, whose elements are read as lines.
        lines: Lines, blank ones included.
        records: Lines that are records or rejects.
        content_bytes: Bytes of the lines, decoded.
        carriage_returns: Carriage returns, of one line.
    """

    file_ordinal: int
    start: int
    stop: int
    is_streamed: bool = False
    is_array: bool = False
    lines: int = 0
    records: int = 0
    content_bytes: int = 0
    carriage_returns: int = 0


def prefetch_unit_files(
    unit: Unit, files: FileTable, cache: ScanCache, start: Callable[[int], int] = lambda _: 0
) -> Iterable[int]:
    """Returns the unit's files; what is in a store and not kept is asked for ahead. start: of a file's records."""

    def wanted(ordinal: int) -> tuple[str, Stat] | None:
        file = files[ordinal]
        return None if cache.contains((ordinal, start(ordinal))) else (file.path, file.stat)

    ordinals = range(unit.begin_file, unit.end_file)
    return ordinals if unit.start else prefetch_files(ordinals, wanted)


def plan_line_ranges(
    files: Sequence[InputFile],
    encoding: str,
    is_array: Callable[[InputFile], bool] | None = None,
    unit_bytes: int = UNIT_BYTES,
) -> Iterator[LineRange]:
    """Yields the ranges that cover the files, in order."""
    for ordinal, file in enumerate(files):
        plain, array, stop = (
            is_plain_utf8(file, encoding),
            is_array is not None and is_array(file),
            0,
        )
        if array or not plain:
            yield LineRange(ordinal, 0, 0, True, array)
            continue
        while True:
            start, stop = stop, _find_line_start(file, stop + min(LINE_RANGE_BYTES, unit_bytes))
            yield LineRange(ordinal, start, stop)
            if stop >= file.stat.size_bytes:
                break


def _find_line_start(file: InputFile, place: int) -> int:
    """Returns the first line start at or after that byte."""
    at, size, block_bytes = place - 1, file.stat.size_bytes, _PEEK_BYTES
    while at < size:
        block = read_range(file.path, at, at + block_bytes)
        found = np.flatnonzero(block == 10)
        if len(found) or not len(block):
            return min(at + int(found[0]) + 1, size) if len(found) else size
        at += len(block)
        block_bytes = min(2 * block_bytes, BATCH_BYTES)
    return size


def scan_ranges(
    files: Sequence[InputFile],
    ranges: Iterable[LineRange],
    scan: Callable[[int, LineRange, Iterator[LineBlock]], _ScanResult],
    stream: Callable[[InputFile], Iterator[LineBlock]],
    max_line_bytes: int,
    threads: int,
) -> Iterator[_ScanResult]:
    """Yields the results of `scan`, in the order of the ranges, which several threads scan. scan: called with the
    number of a range, the range and its lines. stream: reads the lines of a file that can't be cut. DataError: a file
    changed while it was read, or is damaged.
    """

    def work(task: tuple[int, LineRange]) -> _ScanResult:
        number, one = task
        file = files[one.file_ordinal]
        blocks = (
            stream(file)
            if one.is_streamed
            else read_line_blocks(file, one.start, one.stop, max_line_bytes)
        )
        result = scan(number, one, blocks)
        check_unchanged(file.path, file.stat, file.name)
        return result

    def begins(task: tuple[int, LineRange]) -> tuple[str, Stat] | None:
        one = task[1]
        return None if one.start else (files[one.file_ordinal].path, files[one.file_ordinal].stat)

    return thread_map(work, prefetch_files(enumerate(ranges), begins), threads)


def make_line_units(ranges: Iterable[LineRange], unit_bytes: int = UNIT_BYTES) -> tuple[Unit, ...]:
    """Returns the units of scanned ranges; small files that follow each other share one."""

    def each() -> Iterator[Unit]:
        for ordinal, of_file in groupby(ranges, key=lambda one: one.file_ordinal):
            first, *more = of_file
            line = 0
            for one in (first, *more):
                if not more:
                    yield Unit(ordinal, ordinal + 1, rows=one.records, size_bytes=one.content_bytes)
                else:
                    place = one.start, one.stop, line, one.records
                    yield Unit(ordinal, ordinal + 1, *place, one.content_bytes)
                line += one.lines

    return pack_units(each(), unit_bytes)


def note_blank_lines_in_ranges(
    files: Sequence[InputFile], ranges: Iterable[LineRange]
) -> tuple[str, ...]:
    """Returns a note on the blank lines of scanned ranges."""
    blank = Counter[str]()
    for one in ranges:
        if not one.is_array and one.lines > one.records:
            blank[files[one.file_ordinal].name] += one.lines - one.records
    return note_blank_lines(blank)


def read_line_blocks(
    file: InputFile, start: int, stop: int, max_line_bytes: int, block_bytes: int = BATCH_BYTES
) -> Iterator[LineBlock]:
    """Yields the lines of a plain file's range, whose ends are line starts; without the byte order mark of UTF-8."""
    blocks = (
        read_range(file.path, at, min(at + block_bytes, stop))
        for at in range(start, stop, block_bytes)
    )
    return align_to_lines(strip_byte_order_mark(blocks) if start == 0 else blocks, max_line_bytes)


def stream_line_blocks(
    file: InputFile, encoding: str, max_line_bytes: int, block_bytes: int = BATCH_BYTES
) -> Iterator[LineBlock]:
    """Yields the lines of a whole file that is compressed, or in another encoding, or both, as UTF-8."""
    return align_to_lines(
        prefetch_one(read_utf8_blocks(file, encoding, block_bytes)), max_line_bytes
    )


def align_to_lines(blocks: Iterable[Bytes], max_line_bytes: int) -> Iterator[LineBlock]:
    """Blocks cut anywhere as blocks of whole lines."""
    pending: list[Bytes] = []  # the beginning of a line whose end is not there yet
    size, skipping = 0, False
    for block in blocks:
        end = _find_last_line_end(block)
        if end == 0:
            pending, size = (
                ([], size + len(block)) if skipping else ([*pending, block], size + len(block))
            )
        else:
            first = 0
            if skipping:
                first = int(np.argmax(block == 10)) + 1
                yield LineBlock(block[:0], size + first - 1)
                pending, skipping = [], False
            if end > first:
                yield from _separate_long_lines(
                    np.concatenate([*pending, block[first:end]]) if pending else block[first:end],
                    max_line_bytes,
                )
            pending, size = [block[end:]] if end < len(block) else [], len(block) - end
        if size > max_line_bytes and not skipping:
            pending, skipping = [], True
    if skipping:
        yield LineBlock(np.empty(0, np.uint8), size)
    elif pending:
        yield from _separate_long_lines(np.concatenate(pending), max_line_bytes)


def _find_last_line_end(block: Bytes) -> int:
    """Returns the place after the last line feed; 0 if there is none."""
    for tail in (block[-_PEEK_BYTES:], block):
        if end := tail.tobytes().rfind(b"\n") + 1:
            return len(block) - len(tail) + end
    return 0


def _separate_long_lines(data: Bytes, max_line_bytes: int) -> Iterator[LineBlock]:
    """Yields the block with its too long lines set apart, so that the limit is the same wherever blocks begin."""
    at = 0
    if len(data) > max_line_bytes:
        ends = np.append(np.flatnonzero(data == 10), len(data))
        starts = np.append(0, ends[:-1] + 1)
        is_long = ends - starts > max_line_bytes
        for start, stop in zip(starts[is_long].tolist(), ends[is_long].tolist(), strict=True):
            if start > at:
                yield LineBlock(data[at:start])
            yield LineBlock(data[:0], stop - start)
            at = stop + 1
    if at < len(data):
        yield LineBlock(data[at:])
