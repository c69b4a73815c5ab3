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


def note_blank_lines(lines_by_file: Counter[str]) -> tuple[str, ...]:
    """Returns a note on blank lines that are no records; files: by name, how many it has.

    >>> note_blank_lines(Counter({"a.csv": 3}))
    ('blank lines, which are no records (3): a.csv',)
    """
    names = [name for name, lines in lines_by_file.items() if lines]
    name_list = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return (
        (f"blank lines, which are no records ({lines_by_file.total():,}): {name_list}",)
        if names
        else ()
    )


def to_reject(cached_reject: CachedReject, file: InputFile, place: str) -> Reject:
    """Returns the reject of a record of that file."""
    hint = suggest_encodings(file) if cached_reject.reason == "encoding" else ""
    return Reject(file.name, place, cached_reject.reason, cached_reject.message + hint)


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
    unit: Unit, files: FileTable, cache: ScanCache, record_start: Callable[[int], int] = lambda _: 0
) -> Iterable[int]:
    """Returns the unit's files; what is in a store and not kept is asked for ahead. start: of a file's records."""

    def file_to_fetch(ordinal: int) -> tuple[str, Stat] | None:
        file = files[ordinal]
        return None if cache.contains((ordinal, record_start(ordinal))) else (file.path, file.stat)

    ordinals = range(unit.begin_file, unit.end_file)
    return ordinals if unit.start else prefetch_files(ordinals, file_to_fetch)


def plan_line_ranges(
    files: Sequence[InputFile],
    encoding: str,
    is_array: Callable[[InputFile], bool] | None = None,
    unit_bytes: int = UNIT_BYTES,
) -> Iterator[LineRange]:
    """Yields the ranges that cover the files, in order."""
    for ordinal, file in enumerate(files):
        is_plain = is_plain_utf8(file, encoding)
        is_json_array = is_array is not None and is_array(file)
        stop = 0
        if is_json_array or not is_plain:
            yield LineRange(
                file_ordinal=ordinal, start=0, stop=0, is_streamed=True, is_array=is_json_array
            )
            continue
        while True:
            start, stop = stop, _find_line_start(file, stop + min(LINE_RANGE_BYTES, unit_bytes))
            yield LineRange(file_ordinal=ordinal, start=start, stop=stop)
            if stop >= file.stat.size_bytes:
                break


def _find_line_start(file: InputFile, position: int) -> int:
    """Returns the first line start at or after that byte."""
    offset, size, block_bytes = position - 1, file.stat.size_bytes, _PEEK_BYTES
    while offset < size:
        block = read_range(file.path, offset, offset + block_bytes)
        line_ends = np.flatnonzero(block == 10)
        if len(line_ends) or not len(block):
            return min(offset + int(line_ends[0]) + 1, size) if len(line_ends) else size
        offset += len(block)
        block_bytes = min(2 * block_bytes, BATCH_BYTES)
    return size


def scan_ranges(
    files: Sequence[InputFile],
    ranges: Iterable[LineRange],
    scan: Callable[[int, LineRange, Iterator[LineBlock]], _ScanResult],
    stream_blocks: Callable[[InputFile], Iterator[LineBlock]],
    max_line_bytes: int,
    threads: int,
) -> Iterator[_ScanResult]:
    """Yields the results of `scan`, in the order of the ranges, which several threads scan. scan: called with the
    number of a range, the range and its lines. stream: reads the lines of a file that can't be cut. DataError: a file
    changed while it was read, or is damaged.
    """

    def work(task: tuple[int, LineRange]) -> _ScanResult:
        range_index, line_range = task
        file = files[line_range.file_ordinal]
        blocks = (
            stream_blocks(file)
            if line_range.is_streamed
            else read_line_blocks(file, line_range.start, line_range.stop, max_line_bytes)
        )
        result = scan(range_index, line_range, blocks)
        check_unchanged(file.path, file.stat, file.name)
        return result

    def first_read(task: tuple[int, LineRange]) -> tuple[str, Stat] | None:
        line_range = task[1]
        return (
            None
            if line_range.start
            else (files[line_range.file_ordinal].path, files[line_range.file_ordinal].stat)
        )

    return thread_map(work, prefetch_files(enumerate(ranges), first_read), threads)


def make_line_units(ranges: Iterable[LineRange], unit_bytes: int = UNIT_BYTES) -> tuple[Unit, ...]:
    """Returns the units of scanned ranges; small files that follow each other share one."""

    def iter_units() -> Iterator[Unit]:
        for ordinal, file_ranges in groupby(ranges, key=lambda line_range: line_range.file_ordinal):
            first_range, *other_ranges = file_ranges
            first_line = 0
            for line_range in (first_range, *other_ranges):
                if not other_ranges:
                    yield Unit(
                        ordinal,
                        ordinal + 1,
                        rows=line_range.records,
                        size_bytes=line_range.content_bytes,
                    )
                else:
                    yield Unit(
                        ordinal,
                        ordinal + 1,
                        start=line_range.start,
                        stop=line_range.stop,
                        first_row=first_line,
                        rows=line_range.records,
                        size_bytes=line_range.content_bytes,
                    )
                first_line += line_range.lines

    return pack_units(iter_units(), unit_bytes)


def note_blank_lines_in_ranges(
    files: Sequence[InputFile], ranges: Iterable[LineRange]
) -> tuple[str, ...]:
    """Returns a note on the blank lines of scanned ranges."""
    blank_by_file = Counter[str]()
    for line_range in ranges:
        if not line_range.is_array and line_range.lines > line_range.records:
            blank_by_file[files[line_range.file_ordinal].name] += (
                line_range.lines - line_range.records
            )
    return note_blank_lines(blank_by_file)


def read_line_blocks(
    file: InputFile, start: int, stop: int, max_line_bytes: int, block_bytes: int = BATCH_BYTES
) -> Iterator[LineBlock]:
    """Yields the lines of a plain file's range, whose ends are line starts; without the byte order mark of UTF-8."""
    blocks = (
        read_range(file.path, offset, min(offset + block_bytes, stop))
        for offset in range(start, stop, block_bytes)
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
    pending_blocks: list[Bytes] = []  # the beginning of a line whose end is not there yet
    line_bytes, is_skipping = 0, False
    for block in blocks:
        end = _find_last_line_end(block)
        if end == 0:
            pending_blocks, line_bytes = (
                ([], line_bytes + len(block))
                if is_skipping
                else ([*pending_blocks, block], line_bytes + len(block))
            )
        else:
            begin = 0
            if is_skipping:
                begin = int(np.argmax(block == 10)) + 1
                yield LineBlock(block[:0], line_bytes + begin - 1)
                pending_blocks, is_skipping = [], False
            if end > begin:
                yield from _separate_long_lines(
                    np.concatenate([*pending_blocks, block[begin:end]])
                    if pending_blocks
                    else block[begin:end],
                    max_line_bytes,
                )
            pending_blocks, line_bytes = [block[end:]] if end < len(block) else [], len(block) - end
        if line_bytes > max_line_bytes and not is_skipping:
            pending_blocks, is_skipping = [], True
    if is_skipping:
        yield LineBlock(np.empty(0, np.uint8), line_bytes)
    elif pending_blocks:
        yield from _separate_long_lines(np.concatenate(pending_blocks), max_line_bytes)


def _find_last_line_end(block: Bytes) -> int:
    """Returns the place after the last line feed; 0 if there is none."""
    for tail in (block[-_PEEK_BYTES:], block):
        if end := tail.tobytes().rfind(b"\n") + 1:
            return len(block) - len(tail) + end
    return 0


def _separate_long_lines(data: Bytes, max_line_bytes: int) -> Iterator[LineBlock]:
    """Yields the block with its too long lines set apart, so that the limit is the same wherever blocks begin."""
    offset = 0
    if len(data) > max_line_bytes:
        ends = np.append(np.flatnonzero(data == 10), len(data))
        starts = np.append(0, ends[:-1] + 1)
        is_long = ends - starts > max_line_bytes
        for start, stop in zip(starts[is_long].tolist(), ends[is_long].tolist(), strict=True):
            if start > offset:
                yield LineBlock(data[offset:start])
            yield LineBlock(data[:0], stop - start)
            offset = stop + 1
    if offset < len(data):
        yield LineBlock(data[offset:])
