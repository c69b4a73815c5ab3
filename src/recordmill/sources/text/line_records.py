"""Makes chunks with a `text` column of blocks of lines, and counts lines for the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recordmill.base import native
from recordmill.base.errors import Reject
from recordmill.base.option_names import option
from recordmill.base.utf8 import is_utf8, split_lines
from recordmill.schemas.arrow import to_arrow
from recordmill.schemas.feature import Schema
from recordmill.sources.common.contract import BATCH_ROWS, Chunk, Unit
from recordmill.sources.common.encoding import encoding_hint
from recordmill.sources.common.lines import (
    LINE_COUNTS,
    LineBlock,
    LineRange,
    line_ranges,
    line_units,
    note_blank_lines_of,
    scan_ranges,
    stream_lines,
)
from recordmill.sources.common.tables import Alike
from recordmill.sources.values.labels import to_classes
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import Bytes


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
    """Yields the lines as chunks of at most BATCH_ROWS; line: the number of the first one, from 0."""
    for block in blocks:
        if block.too_long_bytes:
            message = (
                f"the line has {block.too_long_bytes:,} bytes, more than the {max_line_bytes:,} that "
                f"{option('max_line_bytes')}, and an eighth of {option('memory')}, allow"
            )
            yield _chunk(
                _texts(block.data, *split_lines(block.data)),
                ordinal,
                np.empty(0, np.int64),
                columns,
                (Reject(file.name, f"line {line + 1}", "too_long", message),),
            )
            line += 1
            continue
        starts, stops = split_lines(block.data)
        readable = is_utf8(block.data)
        for first in range(0, len(starts), BATCH_ROWS):
            begins, ends = starts[first : first + BATCH_ROWS], stops[first : first + BATCH_ROWS]
            keep, rejects = np.ones(len(begins), np.bool_), []
            if not readable:
                bad = np.empty(len(begins), np.int64)
                native.find_bad_lines(block.data, begins, ends, bad)
                keep = bad < 0
                rejects = [
                    _reject(block.data, file, line + at, int(bad[at]), int(begins[at]))
                    for at in np.flatnonzero(~keep).tolist()
                ]
            if not blank_lines:
                blank = np.empty(len(begins), np.bool_)
                native.find_blank_lines(block.data, begins, ends, blank)
                keep &= ~blank
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
    sizes, offsets = stops - starts, np.zeros(len(starts) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    values = np.empty(int(offsets[-1]), np.uint8)
    native.copy_spans([data], None, starts, sizes, offsets[:-1], values)
    return pa.Array.from_buffers(pa.large_string(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(values)])


@dataclass
class TextParts:
    """Counts of the plan."""

    units: tuple[Unit, ...] = ()
    records: int = 0
    streamed: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()


def count_lines(
    files: Sequence[InputFile], encoding: str, max_line_bytes: int, blank_lines: bool, threads: int
) -> TextParts:
    """Counts the lines of every file, on all threads."""

    def scan(_: int, part: LineRange, blocks: Iterator[LineBlock]) -> LineRange:
        lines = blank = returns = size = 0
        for block in blocks:
            counts = native.LineCounts()
            native.count_lines(block.data, counts)
            lines += counts.lines + bool(block.too_long_bytes)
            blank += counts.blank
            returns += counts.returns
            size += len(block.data)
        records = lines if blank_lines else lines - blank
        return replace(part, lines=lines, records=records, content_bytes=size, returns=returns)

    def stream(file: InputFile) -> Iterator[LineBlock]:
        return stream_lines(file, encoding, max_line_bytes)

    counted = scan_ranges(files, line_ranges(files, encoding), scan, stream, max_line_bytes, threads)
    parts = Alike.of(counted, LINE_COUNTS)
    return TextParts(
        line_units(parts),
        sum(part.records for part in parts),
        frozenset(part.ordinal for part in parts if part.streamed),
        (*_carriage_returns(files, parts), *note_blank_lines_of(files, parts)),
    )


def _carriage_returns(files: Sequence[InputFile], parts: Iterable[LineRange]) -> list[str]:
    """Notes each file that is one line, and perhaps should not be."""
    return [
        f"{files[ordinal].name}: one line with {first.returns} carriage returns, which end no line here; convert "
        "it if they should"
        for ordinal, (first, *more) in groupby(parts, key=lambda part: part.ordinal)
        if not more and first.lines == 1 and first.returns > 1
    ]
