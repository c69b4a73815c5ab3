"""Blocks of lines in, chunks with a `text` column out; and the plan's count of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base.errors import Reject
from recordmill.base.kernels import allocating
from recordmill.base.option_names import option
from recordmill.base.threads import thread_map
from recordmill.base.utf8 import first_bad_byte, is_utf8
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.sources.common.contract import BATCH_ROWS, UNIT_BYTES, Chunk, Unit, packed
from recordmill.sources.common.encoding import encoding_hint, is_plain
from recordmill.sources.common.lines import (
    LineBlock,
    LineStarts,
    cut_regions,
    file_lines,
    note_blank_lines,
    stream_lines,
)
from recordmill.sources.common.tables import Alike, ChunkDigests
from recordmill.sources.values.labels import to_classes
from recordmill.storage.digest import DIGESTED_BYTES, chunk_digests, file_chunk_digests
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import Bytes, Stat, ahead, check_unchanged, read_range


class TextColumns:
    """Makes batches of the schema from texts, their source and their file's class."""

    def __init__(self, schema: Schema, files: FileTable) -> None:
        """files: with a column `class_name`, unless there are no classes."""
        self._arrow, self._files = to_arrow(schema), files
        self._names = next((f.classes for f in schema if f.classes), None)

    def batch(
        self, texts: pa.Array, files: npt.NDArray[np.uint32], names: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        """texts: large_string; files: of each its file's ordinal; names: of each its file's name, for documents."""
        known: dict[str, pa.Array] = {"text": texts}
        if names is not None:
            known["source"] = pa.array(names, pa.large_string())
        if "class_name" in self._files.columns:
            class_names = self._class_names(files)
            known["class_name"] = known["label"] = class_names
            if self._names is not None:
                known["label"] = to_classes(class_names, self._names).values
        return pa.RecordBatch.from_arrays([known[name] for name in self._arrow.names], schema=self._arrow)

    def _class_names(self, files: npt.NDArray[np.uint32]) -> pa.Array:
        if len(files) and (files == files[0]).all():
            return pa.repeat(self._files.take(files[:1], ("class_name",))["class_name"][0], len(files))
        return self._files.take(files, ("class_name",))["class_name"]


def line_chunks(
    blocks: Iterable[LineBlock],
    file: InputFile,
    ordinal: int,
    line: int,
    columns: TextColumns,
    blank_lines: bool,
    max_line_bytes: int,
) -> Iterator[Chunk]:
    """The lines as chunks of at most BATCH_ROWS; line: the number of the first one, from 0."""
    for block in blocks:
        if block.too_long_bytes:
            message = (
                f"the line has {block.too_long_bytes:,} bytes, more than the {max_line_bytes:,} that "
                f"{option('max_line_bytes')}, and an eighth of {option('memory')}, allow"
            )
            yield _chunk(
                _texts(block.data, *_split(block.data)),
                ordinal,
                np.empty(0, np.int64),
                columns,
                (Reject(file.name, f"line {line + 1}", "too_long", message),),
            )
            line += 1
            continue
        starts, stops = _split(block.data)
        readable = is_utf8(block.data)
        for first in range(0, len(starts), BATCH_ROWS):
            begins, ends = starts[first : first + BATCH_ROWS], stops[first : first + BATCH_ROWS]
            keep, rejects = np.ones(len(begins), np.bool_), []
            if not readable:
                bad = _bad(block.data, begins, ends)
                keep = bad < 0
                rejects = [
                    _reject(block.data, file, line + at, int(bad[at]), int(begins[at]))
                    for at in np.flatnonzero(~keep).tolist()
                ]
            if not blank_lines:
                keep &= ~_blank(block.data, begins, ends)
            position = np.flatnonzero(keep) + line
            yield _chunk(_texts(block.data, begins[keep], ends[keep]), ordinal, position, columns, tuple(rejects))
            line += len(begins)


def _chunk(
    texts: pa.Array, ordinal: int, position: npt.NDArray[np.int64], columns: TextColumns, rejects: tuple[Reject, ...]
) -> Chunk:
    files = np.full(len(position), ordinal, np.uint32)
    return Chunk(columns.batch(texts, files), files, position, rejects)


def _reject(data: Bytes, file: InputFile, line: int, bad: int, start: int) -> Reject:
    message = (
        f"is not UTF-8: byte 0x{data[bad]:02X} at byte {bad - start} of the line; declare the file's "
        f"{option('encoding')}{encoding_hint(file)}"
    )
    return Reject(file.name, f"line {line + 1}", "encoding", message)


def _texts(data: Bytes, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> pa.Array:
    values, offsets = _gather(data, starts, stops)
    return pa.Array.from_buffers(pa.large_string(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(values)])


@allocating
def _gather(
    data: Bytes, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
) -> tuple[Bytes, npt.NDArray[np.int64]]:
    offsets = np.zeros(len(starts) + 1, np.int64)
    for line in range(len(starts)):
        offsets[line + 1] = offsets[line] + stops[line] - starts[line]
    values = np.empty(offsets[-1], np.uint8)
    for line in range(len(starts)):
        at = offsets[line]
        for place in range(starts[line], stops[line]):
            values[at] = data[place]
            at += 1
    return values, offsets


def _split(data: Bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(starts, stops) of the lines, without their line feed or CRLF."""
    ends = np.flatnonzero(data == 10)
    if len(data) and data[-1] != 10:
        ends = np.append(ends, len(data))
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1]) if len(ends) else ends
    return starts, _without_return(data, starts, ends)


@allocating
def _without_return(data: Bytes, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    stops = ends.copy()
    for line in range(len(ends)):
        if stops[line] > starts[line] and data[stops[line] - 1] == 13 and ends[line] < len(data):
            stops[line] -= 1
    return stops


@allocating
def _bad(data: Bytes, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    places = np.empty(len(starts), np.int64)
    for line in range(len(starts)):
        places[line] = first_bad_byte(data, starts[line], stops[line])
    return places


@allocating
def _blank(data: Bytes, starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which lines hold nothing but ASCII white space."""
    blank = np.ones(len(starts), np.bool_)
    for line in range(len(starts)):
        for place in range(starts[line], stops[line]):
            if data[place] != 32 and not 9 <= data[place] <= 13:
                blank[line] = False
                break
    return blank


@dataclass
class TextParts:
    """What the plan counted."""

    units: tuple[Unit, ...] = ()
    records: int = 0
    streamed: frozenset[int] = frozenset()
    digests: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Extent:
    """What is kept of a part when all are counted."""

    ordinal: int
    start: int
    stop: int
    lines: int
    records: int
    returns: int
    size: int
    streamed: bool


_COUNTS = ("ordinal", "start", "stop", "lines", "records", "returns", "size")  # of an extent, which differ


@dataclass
class _Part:
    ordinal: int
    start: int
    stop: int
    streamed: bool
    lines: int = 0
    records: int = 0
    returns: int = 0
    size: int = 0
    digests: list[bytes] = field(default_factory=list)

    @property
    def extent(self) -> _Extent:
        counts = self.lines, self.records, self.returns, self.size
        return _Extent(self.ordinal, self.start, self.stop, *counts, self.streamed)


def count_lines(
    files: Sequence[InputFile], encoding: str, max_line_bytes: int, blank_lines: bool, threads: int
) -> TextParts:
    """Count the lines of every file, on all threads."""
    line_starts = LineStarts.of_each(files)

    def work(part: _Part) -> _Part:
        file = files[part.ordinal]
        if part.streamed:
            part.digests.extend(file_chunk_digests(file.path))
            blocks = stream_lines(file, encoding, max_line_bytes)
        else:
            for at in range(part.start, part.stop, DIGESTED_BYTES):
                part.digests.extend(chunk_digests(read_range(file.path, at, min(at + DIGESTED_BYTES, part.stop))))
            part.start, part.stop = map(line_starts(part.ordinal).at, (part.start, part.stop))
            blocks = file_lines(file, part.start, part.stop, max_line_bytes)
        for block in blocks:
            starts, stops = _split(block.data)
            lines = len(starts) + bool(block.too_long_bytes)
            part.lines += lines
            part.records += lines if blank_lines else lines - int(np.count_nonzero(_blank(block.data, starts, stops)))
            part.returns += int(np.count_nonzero(block.data == 13))
            part.size += len(block.data)
        check_unchanged(file.path, file.stat, file.name)
        return part

    def begins(part: _Part) -> tuple[str, Stat] | None:
        return None if part.start else (files[part.ordinal].path, files[part.ordinal].stat)

    return _assemble(files, thread_map(work, ahead(_tasks(files, encoding), begins), threads))


def _tasks(files: Sequence[InputFile], encoding: str) -> Iterator[_Part]:
    for ordinal, file in enumerate(files):
        if is_plain(file, encoding):
            for start, stop in cut_regions(file.stat.size_bytes) or [(0, 0)]:
                yield _Part(ordinal, start, stop, False)
        else:
            yield _Part(ordinal, 0, file.stat.size_bytes, True)


def _assemble(files: Sequence[InputFile], counted: Iterable[_Part]) -> TextParts:
    digests = ChunkDigests()

    def each() -> Iterator[_Extent]:
        for part in counted:
            digests.add(part.ordinal, part.digests)
            yield part.extent

    parts = Alike.of(each(), _COUNTS)
    blank = Counter[str]()
    for part in parts:
        if part.lines > part.records:
            blank[files[part.ordinal].name] += part.lines - part.records
    return TextParts(
        packed(_units(parts), UNIT_BYTES),
        sum(part.records for part in parts),
        frozenset(part.ordinal for part in parts if part.streamed),
        digests.table(),
        (*_carriage_returns(files, parts), *note_blank_lines(blank)),
    )


def _by_file(parts: Iterable[_Extent]) -> Iterator[list[_Extent]]:
    return (list(of_file) for _, of_file in groupby(parts, key=lambda part: part.ordinal))


def _units(parts: Iterable[_Extent]) -> Iterator[Unit]:
    for of_file in _by_file(parts):
        line = 0
        for part in of_file:
            if len(of_file) == 1:
                yield Unit(part.ordinal, part.ordinal + 1, rows=part.records, size_bytes=part.size)
            elif part.stop > part.start:
                yield Unit(part.ordinal, part.ordinal + 1, part.start, part.stop, line, part.records, part.size)
            line += part.lines


def _carriage_returns(files: Sequence[InputFile], parts: Iterable[_Extent]) -> list[str]:
    """A note on each file that is one line, and perhaps should not be."""
    return [
        f"{files[part.ordinal].name}: one line with {part.returns} carriage returns, which end no line here; convert "
        "it if they should"
        for part, *more in _by_file(parts)
        if not more and part.lines == 1 and part.returns > 1
    ]
