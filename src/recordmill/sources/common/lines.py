"""Reads text files in blocks of whole lines: from byte ranges of plain files, or as a stream from compressed or
re-encoded ones.

A line ends with a line feed and nothing else: U+2028, NEL, a vertical tab or a lone carriage return are part of it.
Ranges are cut at line feeds, so that they give exactly the lines of a sequential read; the line's number is its
position. Memory is bounded by the block and the longest line allowed: a longer one is passed over and reported.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, TypeVar

import numpy as np

from recordmill.base.errors import Reject
from recordmill.base.threads import one_ahead, thread_map
from recordmill.sources.common.contract import BATCH_BYTES, UNIT_BYTES, Unit, packed
from recordmill.sources.common.encoding import encoding_hint, is_plain, utf8_blocks, without_mark
from recordmill.sources.common.scan_cache import CachedReject
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import Bytes, Stat, ahead, check_unchanged, read_range

STREAMED = "streamed"  # the column that marks files which can't be cut
LINE_COUNTS = ("ordinal", "start", "stop", "lines", "records", "content_bytes", "returns")  # integers of `LineRange`
_PEEK_BYTES = 1 << 14  # 16 KiB: a line's end is usually near
_FILES = 64  # of which line starts are held: more than threads look into at once

_Scanned = TypeVar("_Scanned")


class LineBlock(NamedTuple):
    """data: whole lines, each with its line feed but perhaps the file's last;
    or none, and the length of one line too long to hold.
    """

    data: Bytes
    too_long_bytes: int = 0


def note_blank_lines(files: Counter[str]) -> tuple[str, ...]:
    """Returns a note on blank lines that are no records; files: by name, how many it has.

    >>> note_blank_lines(Counter({"a.csv": 3}))
    ('blank lines, which are no records (3): a.csv',)
    """
    names = [name for name, lines in files.items() if lines]
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return (f"blank lines, which are no records ({files.total():,}): {shown}",) if names else ()


def rejected(one: CachedReject, file: InputFile, place: str) -> Reject:
    """Returns the reject of a record of that file."""
    hint = encoding_hint(file) if one.reason == "encoding" else ""
    return Reject(file.name, place, one.reason, one.message + hint)


def cut_regions(size_bytes: int, region_bytes: int = UNIT_BYTES) -> list[tuple[int, int]]:
    """Returns byte ranges that cover a file; `scan_ranges` moves both ends to where lines begin."""
    return [(start, min(start + region_bytes, size_bytes)) for start in range(0, size_bytes, region_bytes)]


@dataclass(frozen=True)
class LineRange:
    """Lines of one file that are scanned together, and what was counted of them.

    Attributes:
        ordinal: The file.
        start: The byte at which the range begins; for a streamed file 0.
        stop: The byte at which it ends.
        streamed: The file can't be cut, and is one range.
        is_array: It is one JSON array, whose elements are read as lines.
        lines: Lines, blank ones included.
        records: Lines that are records or rejects.
        content_bytes: Bytes of the lines, decoded.
        returns: Carriage returns, of one line.
    """

    ordinal: int
    start: int
    stop: int
    streamed: bool = False
    is_array: bool = False
    lines: int = 0
    records: int = 0
    content_bytes: int = 0
    returns: int = 0


def line_ranges(
    files: Sequence[InputFile],
    encoding: str,
    is_array: Callable[[InputFile], bool] | None = None,
    unit_bytes: int = UNIT_BYTES,
) -> Iterator[LineRange]:
    """Yields the ranges that cover the files, in order; `scan_ranges` moves their ends to where lines begin."""
    for ordinal, file in enumerate(files):
        plain, array = is_plain(file, encoding), is_array is not None and is_array(file)
        if array or not plain:
            yield LineRange(ordinal, 0, file.stat.size_bytes, True, array)
        else:
            yield from (LineRange(ordinal, *ends) for ends in cut_regions(file.stat.size_bytes, unit_bytes) or [(0, 0)])


def scan_ranges(
    files: Sequence[InputFile],
    ranges: Iterable[LineRange],
    scan: Callable[[int, LineRange, Iterator[LineBlock]], _Scanned],
    stream: Callable[[InputFile], Iterator[LineBlock]],
    max_line_bytes: int,
    threads: int,
) -> Iterator[_Scanned]:
    """Yields the results of `scan`, in the order of the ranges, which several threads scan. scan: called with the
    number of a range, the range and its lines. stream: reads the lines of a file that can't be cut. DataError: a file
    changed while it was read, or is damaged.
    """
    line_starts = LineStarts.of_each(files)

    def work(task: tuple[int, LineRange]) -> _Scanned:
        number, one = task
        file = files[one.ordinal]
        if one.streamed:
            one, blocks = replace(one, start=0, stop=0), stream(file)
        else:
            start, stop = map(line_starts(one.ordinal).at, (one.start, one.stop))
            one, blocks = replace(one, start=start, stop=stop), file_lines(file, start, stop, max_line_bytes)
        result = scan(number, one, blocks)
        check_unchanged(file.path, file.stat, file.name)
        return result

    def begins(task: tuple[int, LineRange]) -> tuple[str, Stat] | None:
        one = task[1]
        return None if one.start else (files[one.ordinal].path, files[one.ordinal].stat)

    return thread_map(work, ahead(enumerate(ranges), begins), threads)


def line_units(ranges: Iterable[LineRange], unit_bytes: int = UNIT_BYTES) -> tuple[Unit, ...]:
    """Returns the units of scanned ranges; small files that follow each other share one."""

    def each() -> Iterator[Unit]:
        for ordinal, of_file in groupby(ranges, key=lambda one: one.ordinal):
            first, *more = of_file
            line = 0
            for one in (first, *more):
                if not more:
                    yield Unit(ordinal, ordinal + 1, rows=one.records, size_bytes=one.content_bytes)
                elif one.stop > one.start:
                    place = one.start, one.stop, line, one.records
                    yield Unit(ordinal, ordinal + 1, *place, one.content_bytes)
                line += one.lines

    return packed(each(), unit_bytes)


def note_blank_lines_of(files: Sequence[InputFile], ranges: Iterable[LineRange]) -> tuple[str, ...]:
    """Returns a note on the blank lines of scanned ranges."""
    blank = Counter[str]()
    for one in ranges:
        if not one.is_array and one.lines > one.records:
            blank[files[one.ordinal].name] += one.lines - one.records
    return note_blank_lines(blank)


class LineStarts:
    """Places where lines of one plain file begin, for the threads that read its regions. What one search has passed
    over is not read again for the regions that lie in it, so that a file without line feeds is not read once per
    region.
    """

    def __init__(self, file: InputFile) -> None:
        self._path, self._size = file.path, file.stat.size_bytes
        self._lock = threading.Lock()
        self._from = self._found = 0  # the longest stretch after which a line starts: no line starts inside it

    @classmethod
    def of_each(cls, files: Sequence[InputFile]) -> Callable[[int], LineStarts]:
        """Returns a function that gives those of a file by its ordinal; a few are cached."""
        return functools.lru_cache(maxsize=_FILES)(lambda ordinal: cls(files[ordinal]))

    def at(self, place: int) -> int:
        """Returns the first line start at or after that byte."""
        if place <= 0 or place >= self._size:
            return min(max(place, 0), self._size)
        with self._lock:
            if not self._from < place <= self._found:
                found = self._search(place)
                if found - place < _PEEK_BYTES:
                    return found
                self._from, self._found = place - 1, found
            return self._found

    def _search(self, place: int) -> int:
        at, block_bytes = place - 1, _PEEK_BYTES
        while at < self._size:
            block = read_range(self._path, at, at + block_bytes)
            if len(block) == 0:
                break
            found = np.flatnonzero(block == 10)
            if len(found):
                return min(at + int(found[0]) + 1, self._size)
            at += len(block)
            block_bytes = min(2 * block_bytes, BATCH_BYTES)
        return self._size


def file_lines(
    file: InputFile, start: int, stop: int, max_line_bytes: int, block_bytes: int = BATCH_BYTES
) -> Iterator[LineBlock]:
    """Yields the lines of a plain file's range, whose ends are line starts; without the byte order mark of UTF-8."""
    blocks = (read_range(file.path, at, min(at + block_bytes, stop)) for at in range(start, stop, block_bytes))
    return whole_lines(without_mark(blocks) if start == 0 else blocks, max_line_bytes)


def stream_lines(
    file: InputFile, encoding: str, max_line_bytes: int, block_bytes: int = BATCH_BYTES
) -> Iterator[LineBlock]:
    """Yields the lines of a whole file that is compressed, or in another encoding, or both, as UTF-8."""
    return whole_lines(one_ahead(utf8_blocks(file, encoding, block_bytes)), max_line_bytes)


def whole_lines(blocks: Iterable[Bytes], max_line_bytes: int) -> Iterator[LineBlock]:
    """Blocks cut anywhere as blocks of whole lines."""
    pending: list[Bytes] = []  # the beginning of a line whose end is not there yet
    size, skipping = 0, False
    for block in blocks:
        end = _last_line_end(block)
        if end == 0:
            pending, size = ([], size + len(block)) if skipping else ([*pending, block], size + len(block))
        else:
            first = 0
            if skipping:
                first = int(np.argmax(block == 10)) + 1
                yield LineBlock(block[:0], size + first - 1)
                pending, skipping = [], False
            if end > first:
                yield from _check_long(
                    np.concatenate([*pending, block[first:end]]) if pending else block[first:end], max_line_bytes
                )
            pending, size = [block[end:]] if end < len(block) else [], len(block) - end
        if size > max_line_bytes and not skipping:
            pending, skipping = [], True
    if skipping:
        yield LineBlock(np.empty(0, np.uint8), size)
    elif pending:
        yield from _check_long(np.concatenate(pending), max_line_bytes)


def _last_line_end(block: Bytes) -> int:
    """Returns the place after the last line feed; 0 if there is none."""
    for tail in (block[-_PEEK_BYTES:], block):
        if end := tail.tobytes().rfind(b"\n") + 1:
            return len(block) - len(tail) + end
    return 0


def _check_long(data: Bytes, max_line_bytes: int) -> Iterator[LineBlock]:
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
