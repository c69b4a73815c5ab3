"""Blocks of complete lines from text files.

Plain UTF-8 files are read in byte ranges. Compressed files, and files in another encoding, are read
as a stream from their beginning.

A line ends with a line feed and nothing else. U+2028, NEL, a vertical tab or a lone carriage return
is part of the line. Ranges begin after line feeds, so together they contain exactly the lines of a
sequential read. The position of a line is its number in the file, from 0.

Memory is bounded by the size of a block and the longest allowed line. A longer line is skipped and
reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, TypeVar

import numpy as np

from recordmill.base.errors import Fault, Reject
from recordmill.base.messages import Message
from recordmill.base.threads import prefetch_one, thread_map
from recordmill.sources.common.contract import BATCH_BYTES, UNIT_BYTES, Chunk, Unit, pack_units
from recordmill.sources.common.encoding import (
    is_plain_utf8,
    read_utf8_blocks,
    strip_byte_order_mark,
    suggest_encodings,
)
from recordmill.sources.common.scan_cache import CachedBatch, CachedReject, ScanCache
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import Bytes, Stat, check_unchanged, prefetch_files, read_range

STREAMED_COLUMN = "streamed"  # column of a FileTable that marks files without ranges
# The integer fields of `LineRange`, for a `CompactTable`.
LINE_RANGE_INTEGERS = (
    "file_ordinal",
    "start",
    "stop",
    "lines",
    "records",
    "content_bytes",
    "carriage_returns",
)
# Approximate size of the lines that one thread scans together.
LINE_RANGE_BYTES = UNIT_BYTES
# 16 KiB: the end of a line is usually near.
_PEEK_BYTES = 1 << 14

_ScanResult = TypeVar("_ScanResult")


class LineBlock(NamedTuple):
    """A block of complete lines, or the length of one line that was skipped.

    Attributes:
        data: Complete lines, each with its line feed. Only the last line of the file may have none.
            Empty if a line was skipped.
        skipped_line_bytes: Length of the skipped line, which was too long. 0 if `data` has lines.
    """

    data: Bytes
    skipped_line_bytes: int = 0


def note_blank_lines(lines_by_file: Counter[str]) -> tuple[str, ...]:
    """Returns a note on the blank lines of files.

    >>> note_blank_lines(Counter({"a.csv": 3}))
    ('blank lines, which are not records (3): a.csv',)

    Args:
        lines_by_file: Number of blank lines by file name.
    """
    names = [name for name, lines in lines_by_file.items() if lines]
    name_list = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return (
        (f"blank lines, which are not records ({lines_by_file.total():,}): {name_list}",)
        if names
        else ()
    )


def to_reject(fault: Fault, file: InputFile, place: str) -> Reject:
    """Returns the reject of a record of a text file.

    If the record is not valid UTF-8, the message also suggests encodings for the file.

    Args:
        fault: The fault of the record.
        file: The file of the record.
        place: The place of the record in this file, such as `line 7`.
    """
    hint = suggest_encodings(file) if fault.reason == "encoding" else ""
    message = Message("{message}{hint}", message=fault.message, hint=hint)
    return Reject(file.name, place, fault.reason, message)


def make_chunk(
    ordinal: int,
    file: InputFile,
    first_position: int,
    batch: CachedBatch,
    format_place: Callable[[CachedReject], str],
) -> Chunk:
    """Converts a batch to a chunk.

    Args:
        ordinal: Index of the file.
        file: The file, for the rejects.
        first_position: Position of the first record of the batch.
        batch: The records.
        format_place: Returns the place of a reject in the file.
    """
    positions = batch.positions(first_position)
    return Chunk(
        records=batch.batch,
        file_ids=np.full(len(positions), ordinal, np.uint32),
        positions=positions,
        rejects=tuple(
            to_reject(cached_reject.fault, file, format_place(cached_reject))
            for cached_reject in batch.rejects
        ),
    )


@dataclass(frozen=True)
class LineRange:
    """Lines of a file that one thread scans together, and their counts.

    The counts are 0 until the range is scanned.

    Attributes:
        file_ordinal: Index of the file.
        start: First byte of the range, which is the start of a line. 0 for a streamed file.
        stop: Byte after the range. 0 for a streamed file.
        is_streamed: Whether the file can only be read from its beginning. It has one range then.
        is_array: Whether the file is one JSON array. Its elements are read as lines.
        lines: Number of lines, including blank ones.
        records: Number of lines that are records or rejects.
        content_bytes: Total size of the lines as uncompressed UTF-8.
        carriage_returns: For a text file, the number of carriage returns if the range consists of
            one line. A file with such line ends looks like one long line.
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
    """Yields the indices of a unit's files.

    Files in a store are requested before their turn, unless the cache contains their records.

    Args:
        unit: The unit.
        files: All files of the source.
        cache: The records that the plan has parsed.
        record_start: Returns the offset of the first record of a file, for the key in the cache.
    """

    def file_to_fetch(ordinal: int) -> tuple[str, Stat] | None:
        file = files[ordinal]
        return None if cache.contains((ordinal, record_start(ordinal))) else (file.path, file.stat)

    ordinals = range(unit.begin_file, unit.end_file)
    # A unit that starts inside a file has only that file, so there is nothing to prefetch.
    return ordinals if unit.start else prefetch_files(ordinals, file_to_fetch)


def plan_line_ranges(
    files: Sequence[InputFile],
    encoding: str,
    is_array: Callable[[InputFile], bool] | None = None,
    unit_bytes: int = UNIT_BYTES,
) -> Iterator[LineRange]:
    """Yields ranges that cover all files, in order.

    Args:
        files: The files.
        encoding: The declared encoding.
        is_array: Returns whether a file is one JSON array. None means that no file is.
        unit_bytes: Approximate size of a unit. A range is about as large, but at most about
            LINE_RANGE_BYTES.
    """
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
    """Returns the offset of the first line that starts at or after `position`.

    The result is the size of the file if no line starts there or later.
    """
    # The search begins one byte earlier: if that byte is a line feed, `position` itself starts a
    # line.
    offset, size, block_bytes = position - 1, file.stat.size_bytes, _PEEK_BYTES
    while offset < size:
        block = read_range(file.path, offset, offset + block_bytes)
        line_ends = np.flatnonzero(block == 10)
        if len(line_ends) or not len(block):
            return min(offset + int(line_ends[0]) + 1, size) if len(line_ends) else size
        offset += len(block)
        # Each block is twice as large as the previous one, so that a very long line does not need
        # thousands of reads.
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
    """Calls a function for the lines of each range, on several threads.

    Args:
        files: The files.
        ranges: The ranges of all files, in order.
        scan: Function of the index of a range, the range and its lines. Its result is yielded.
        stream_blocks: Returns the lines of a file that can't be divided into ranges.
        max_line_bytes: Maximum length of a line. Longer lines are skipped and reported.
        threads: Number of threads.

    Yields:
        The results of `scan`, in the order of the ranges.

    Raises:
        DataError: A file changed during the scan, or is damaged.
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
        # A change during the scan would make the counts of the range wrong.
        check_unchanged(file.path, file.stat, file.name)
        return result

    def first_read(task: tuple[int, LineRange]) -> tuple[str, Stat] | None:
        line_range = task[1]
        # Only the first range of a file fetches it.
        return (
            None
            if line_range.start
            else (files[line_range.file_ordinal].path, files[line_range.file_ordinal].stat)
        )

    return thread_map(work, prefetch_files(enumerate(ranges), first_read), threads)


def make_line_units(ranges: Iterable[LineRange], unit_bytes: int = UNIT_BYTES) -> tuple[Unit, ...]:
    """Returns the units for scanned ranges.

    If a file has several ranges, each is a unit. Consecutive smaller files share a unit of about
    `unit_bytes`.
    """

    def iter_units() -> Iterator[Unit]:
        for ordinal, file_ranges in groupby(ranges, key=lambda line_range: line_range.file_ordinal):
            first_range, *other_ranges = file_ranges
            first_line = 0
            for line_range in (first_range, *other_ranges):
                # A file with one range is a unit of complete files, which `pack_units` can join.
                if not other_ranges:
                    yield Unit(
                        ordinal,
                        ordinal + 1,
                        rows=line_range.records,
                        size_bytes=line_range.content_bytes,
                        positions_per_file=line_range.lines,
                    )
                else:
                    yield Unit(
                        ordinal,
                        ordinal + 1,
                        start=line_range.start,
                        stop=line_range.stop,
                        # The position of a record is its line number.
                        first_row=first_line,
                        rows=line_range.records,
                        size_bytes=line_range.content_bytes,
                        positions_per_file=line_range.lines,
                    )
                first_line += line_range.lines

    return pack_units(iter_units(), unit_bytes)


def note_blank_lines_in_ranges(
    files: Sequence[InputFile], ranges: Iterable[LineRange]
) -> tuple[str, ...]:
    """Returns a note on the blank lines of scanned ranges."""
    blank_by_file = Counter[str]()
    for line_range in ranges:
        # The lines of an array are its elements, so blank lines have no meaning there.
        if not line_range.is_array and line_range.lines > line_range.records:
            blank_by_file[files[line_range.file_ordinal].name] += (
                line_range.lines - line_range.records
            )
    return note_blank_lines(blank_by_file)


def read_line_blocks(
    file: InputFile, start: int, stop: int, max_line_bytes: int, block_bytes: int = BATCH_BYTES
) -> Iterator[LineBlock]:
    """Yields the lines in a range of a plain file.

    A byte order mark at the start of the file is removed.

    Args:
        start: First byte of the range, which is the start of a line.
        stop: Byte after the range, which is the start of a line or the end of the file.
        max_line_bytes: Maximum length of a line. Longer lines are skipped and reported.
        block_bytes: Approximate size of a block.
    """
    blocks = (
        read_range(file.path, offset, min(offset + block_bytes, stop))
        for offset in range(start, stop, block_bytes)
    )
    # A mark can only be at the beginning of the file.
    return align_to_lines(strip_byte_order_mark(blocks) if start == 0 else blocks, max_line_bytes)


def stream_line_blocks(
    file: InputFile, encoding: str, max_line_bytes: int, block_bytes: int = BATCH_BYTES
) -> Iterator[LineBlock]:
    """Yields the lines of a compressed or re-encoded file as UTF-8.

    Args:
        file: The file.
        encoding: The declared encoding.
        max_line_bytes: Maximum length of a line. Longer lines are skipped and reported.
        block_bytes: Approximate size of a block.
    """
    return align_to_lines(
        prefetch_one(read_utf8_blocks(file, encoding, block_bytes)), max_line_bytes
    )


def align_to_lines(blocks: Iterable[Bytes], max_line_bytes: int) -> Iterator[LineBlock]:
    """Divides blocks at line ends, so that each resulting block consists of complete lines.

    Args:
        blocks: Consecutive blocks of a file, which may end anywhere in a line.
        max_line_bytes: Maximum length of a line. Longer lines are skipped and reported.
    """
    pending_blocks: list[Bytes] = []  # start of a line that ends in a later block
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
        # From here on only the length of the line is counted, so that a long line takes no memory.
        if line_bytes > max_line_bytes and not is_skipping:
            pending_blocks, is_skipping = [], True
    if is_skipping:
        yield LineBlock(np.empty(0, np.uint8), line_bytes)
    elif pending_blocks:
        yield from _separate_long_lines(np.concatenate(pending_blocks), max_line_bytes)


def _find_last_line_end(block: Bytes) -> int:
    """Returns the offset after the last line feed, or 0."""
    # The last line feed is usually near the end, so a short search comes first.
    for tail in (block[-_PEEK_BYTES:], block):
        if end := tail.tobytes().rfind(b"\n") + 1:
            return len(block) - len(tail) + end
    return 0


def _separate_long_lines(data: Bytes, max_line_bytes: int) -> Iterator[LineBlock]:
    """Yields the lines of a block, and the lengths of lines that are too long.

    Such a line is completely in one block. It must be skipped like a line that continues over
    several blocks. Otherwise the limit would depend on the borders of the blocks.
    """
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
