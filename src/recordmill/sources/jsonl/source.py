"""JSON Lines in, a `JsonlSource` out: one object a line is one record; fields by name, nested ones by dotted path.

The plan scans every line of every file once, on all threads, for types and rows. A record's position is the
number of its line, from 0; blank lines are no records, leave a gap and are counted. A line that is no JSON
object, has a key twice, or a value that is no such feature is a reject of its own. A literal dot in a key is kept:
`{"a.b": 1}` and `{"a": {"b": 1}}` are both `a.b`, and refused together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.base.machine import DEFAULT_MEMORY_BYTES
from recordmill.base.option_names import option
from recordmill.base.sizes import MOST_RECORD_BYTES
from recordmill.schemas.feature import Schema, check_feature_count
from recordmill.sources.common.contract import Chunk, PlanOptions, Unit
from recordmill.sources.common.encoding import check_encoding
from recordmill.sources.common.lines import (
    LINE_COUNTS,
    STREAMED,
    LineRange,
    file_lines,
    line_units,
    note_blank_lines_of,
    rejected,
)
from recordmill.sources.common.scan_cache import CachedPiece, ScanCache
from recordmill.sources.common.tables import Alike
from recordmill.sources.jsonl.binary import StringCounts, declared_base64, tell_base64, untold_bytes
from recordmill.sources.jsonl.columns import SCALARS, STRINGS
from recordmill.sources.jsonl.plan import ScannedLines, scan_parts, stream_records
from recordmill.sources.jsonl.records import ExpectedLayout, LineKeeper, RecordLayout, layout_of, mark_unreadable
from recordmill.sources.jsonl.schema import Declared, Observed, infer_features
from recordmill.sources.jsonl.tape import Path, TapeScanner
from recordmill.sources.values.conform import conform
from recordmill.sources.values.labels import ClassNames, is_named
from recordmill.sources.values.overrides import finish_schema
from recordmill.storage.file_table import FileTable, InputFile
from recordmill.storage.files import Stat, ahead, check_unchanged


@dataclass(frozen=True)
class JsonlOptions:
    """encoding: of all files, any that Python knows.
    max_line_bytes: a longer line is a reject, so that no line exhausts the memory.
    """

    encoding: str = "utf-8"
    max_line_bytes: int = MOST_RECORD_BYTES

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoding", check_encoding(self.encoding))
        if not 1 <= self.max_line_bytes <= 1 << 30:
            raise UsageError(f"{option('max_line_bytes', self.max_line_bytes)}: it lies between 1 and {1 << 30}")


@dataclass(frozen=True)
class JsonlSource:
    """files: with marks STREAMED of those that can't be cut into ranges. paths: by feature, where in the record it
    stands. base64: the features whose strings stand for bytes. texts: as of a RecordLayout.
    """

    schema: Schema
    files: FileTable
    units: Sequence[Unit]
    options: JsonlOptions
    paths: Mapping[str, Path]
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    base64: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    cache: ScanCache[CachedPiece] = field(default_factory=ScanCache, compare=False, repr=False)
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    kind: str = "jsonl"

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """The unit's records in order; a unit without a stop is whole files."""
        for ordinal in self._coming(unit):
            file, line = self.files[ordinal], unit.first_row
            check_unchanged(file.path, file.stat, file.name)
            for piece in self._pieces(ordinal, unit):
                yield _chunk(ordinal, file, line, piece)
                line += piece.count
                del piece  # before the next one is parsed
            check_unchanged(file.path, file.stat, file.name)

    def locate(self, file: int, positions: Sequence[int]) -> list[str]:
        """Where people find these records: see sources.contract.RecordLocator."""
        return [_place(position) for position in positions]

    def _coming(self, unit: Unit) -> Iterable[int]:
        """The unit's files; what is in a store and not kept is asked for ahead."""
        ordinals = range(unit.first_file, unit.last_file)
        return ordinals if unit.start else ahead(ordinals, self._wanted)

    def _wanted(self, ordinal: int) -> tuple[str, Stat] | None:
        file = self.files[ordinal]
        return None if self.cache.has((ordinal, 0)) else (file.path, file.stat)

    def _pieces(self, ordinal: int, unit: Unit) -> Iterator[CachedPiece]:
        """All records of the unit in that file; a piece counts lines."""
        file, most = self.files[ordinal], self.options.max_line_bytes
        layout = RecordLayout(self.schema, self.paths, frozenset(self.base64), self.texts)
        scanner = TapeScanner(self.memory_bytes)
        start, stop = (unit.start, unit.stop) if unit.stop else (0, file.stat.size_bytes)
        if (pieces := self.cache.take((ordinal, start))) is not None:
            yield from (replace(piece, batch=layout.finished(piece.batch)) for piece in pieces)
            return
        streamed = self.files.is_marked(STREAMED, ordinal)
        for block in (
            stream_records(file, self.options.encoding, most) if streamed else file_lines(file, start, stop, most)
        ):
            if block.too_long_bytes:
                yield layout.long_line(block.too_long_bytes, most)
            unreadable = mark_unreadable(block)
            for tape in scanner.scan(block.data):
                yield layout.piece(tape, scanner, unreadable)


def _place(line: int) -> str:
    return f"line {line + 1}"


def _chunk(ordinal: int, file: InputFile, line: int, piece: CachedPiece) -> Chunk:
    """The chunk of a piece of one file, whose first line has that number."""
    rejects = (rejected(one, file, _place(line + one.ordinal)) for one in piece.rejects)
    position = piece.positions(line)
    return Chunk(piece.batch, np.full(len(position), ordinal, np.uint32), position, tuple(rejects))


def plan_jsonl(files: Sequence[InputFile], options: JsonlOptions, common: PlanOptions) -> JsonlSource:
    """Scan every line of the files for types and rows.

    Raises:
        DataError: no record at all, a place in the records with values of two forms, a file that is damaged or changes.
        UsageError: an option names a column that is not there.
    """
    files, (common, base64) = FileTable.of(files), declared_base64(common)
    options = replace(options, max_line_bytes=common.most_line_bytes(options.max_line_bytes))
    label, asked = asked_label(common), untold_bytes(common)
    cache, expected = ScanCache[CachedPiece]() if asked else common.room_for_parsed(), ExpectedLayout(common, base64)
    scanned = scan_parts(
        *(files, options.encoding, options.max_line_bytes, label, asked, common),
        keeper=lambda: LineKeeper(expected, cache),
    )
    found = JsonlPlan()
    parts = found.all_of(scanned)
    observed = found.observed
    if not observed.rows:
        raise _nothing(files, options, parts)
    check_feature_count(len(observed.seen), common.memory_bytes, files[0].name if len(files) == 1 else "")
    inferred = infer_features(observed, Declared.of(common), LinePositions(files, parts))
    classes = None if label is None else ClassNames(label[0], found.classes.names)
    schema, notes = finish_schema(inferred.schema, inferred.untold, classes, common, "the files")
    conform(_empty(schema, inferred.paths), schema)  # that lists are where the schema has lists
    final = layout_of(inferred, common, base64)
    named = dict.fromkeys(
        [label[0]] if label is not None and is_named(label[0], final.schema, classes) else [], SCALARS
    )
    cache.settle(lambda used: used.agrees(final))
    marked = files.marked(STREAMED, (part.ordinal for part in parts if part.streamed))
    as_bytes, binary = tell_base64(found.strings)
    blank = note_blank_lines_of(files, parts)
    told = (*_arrays(files, parts), *inferred.notes, *binary, *blank, *notes)
    source = JsonlSource(schema, marked, line_units(parts), options, final.paths, told)
    told_texts = {**named, **final.texts}
    source = replace(source, base64=tuple(sorted(base64 | as_bytes)), texts=told_texts, cache=cache)
    return replace(source, memory_bytes=common.memory_bytes)


def asked_label(common: PlanOptions) -> tuple[str, str] | None:
    """The label, and which of its values are its classes: all scalars, if it is declared to be text."""
    if common.label is None or common.schema is not None:
        return None
    declared = common.dtypes.get(common.label)
    if declared is not None and not declared.startswith("string"):
        return None
    return common.label, STRINGS if declared is None else SCALARS


class JsonlPlan:
    """What all parts hold, added up as they come."""

    def __init__(self) -> None:
        self.observed, self.strings = Observed(), dict[str, StringCounts]()
        self.classes = ClassNames("")

    def all_of(self, parts: Iterable[ScannedLines]) -> Alike[LineRange]:
        """Adds up the parts, and returns what is kept of each."""

        def each() -> Iterator[LineRange]:
            for part in parts:
                self._add(part)
                yield part.extent

        return Alike.of(each(), LINE_COUNTS)

    def _add(self, part: ScannedLines) -> None:
        self.observed.merge(part.observed)
        self.classes += part.classes
        for name, seen in part.strings.items():
            self.strings[name] = self.strings.get(name, StringCounts()) + seen


class LinePositions(Mapping[int, tuple[str, int]]):
    """Of each part its file's name and first line."""

    def __init__(self, files: Sequence[InputFile], parts: Sequence[LineRange]) -> None:
        self._files, self._parts = files, parts

    def __getitem__(self, number: int) -> tuple[str, int]:
        ordinal, line, at = self._parts[number].ordinal, 0, number
        while at and (before := self._parts[at - 1]).ordinal == ordinal:
            line, at = line + before.lines, at - 1
        return self._files[ordinal].name, line

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return len(self._parts)


def _arrays(files: Sequence[InputFile], parts: Iterable[LineRange]) -> tuple[str, ...]:
    """A note on the files that are JSON arrays."""
    names = [files[part.ordinal].name for part in parts if part.is_array]
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return (f"JSON arrays, whose elements are read as lines ({len(names):,}): {shown}",) if names else ()


def _nothing(files: FileTable, options: JsonlOptions, parts: Sequence[LineRange]) -> DataError:
    """Why there is no record: the first bad line, if there is one."""
    ordinal = next((part.ordinal for part in parts if part.records), None)
    if ordinal is None:
        return DataError("there are no lines", source=files[0].name if files else "")
    marked = files.marked(STREAMED, (part.ordinal for part in parts if part.streamed))
    empty = JsonlSource(Schema(()), marked, (), options, {})
    first = next(reject for chunk in empty.read(Unit(ordinal, ordinal + 1)) for reject in chunk.rejects)
    return DataError(
        f"no line is a JSON object: {first.message} (JSON Lines has one object on each line)",
        source=first.source,
        place=first.place,
    )


def _empty(schema: Schema, paths: Mapping[str, Path]) -> pa.RecordBatch:
    columns = []
    for name in schema.names:
        kind = pa.null()
        for _ in range(paths.get(name, ()).count(None)):
            kind = pa.large_list(kind)
        columns.append(pa.nulls(0, kind))
    return pa.RecordBatch.from_arrays(columns, names=list(schema.names))
