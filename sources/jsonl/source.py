"""JSON Lines in, a `JsonlSource` out: one object a line is one record; fields by name, nested ones by dotted path.

The plan scans every line of every file once, on all threads, for types, rows and digests. A record's position is the
number of its line, from 0; blank lines are no records, leave a gap and are counted. A line that is no JSON
object, has a key twice, or a value that is no such feature is a reject of its own. A literal dot in a key is kept:
`{"a.b": 1}` and `{"a": {"b": 1}}` are both `a.b`, and refused together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from recordmill.base.errors import DataError, Reject, UsageError
from recordmill.schemas.feature import Schema
from recordmill.sources.inputs.contract import UNIT_BYTES, Chunk, PlanOptions, Unit
from recordmill.sources.inputs.encoding import check_encoding
from recordmill.sources.inputs.kept import Kept, Piece
from recordmill.sources.inputs.lines import MAX_LINE_BYTES, file_lines, note_blank_lines
from recordmill.sources.inputs.packing import packed
from recordmill.sources.jsonl.array import stream_records
from recordmill.sources.jsonl.binary import StringsSeen, declared_base64, tell_base64, untold_bytes
from recordmill.sources.jsonl.keep import Expected, Layout, LineKeeper, layout_of
from recordmill.sources.jsonl.plan import ScannedFile, Task, make_tasks, scan_parts
from recordmill.sources.jsonl.rejects import mark_unreadable
from recordmill.sources.jsonl.schema import Declared, Observed, infer_features
from recordmill.sources.jsonl.tape import Path, Scanner
from recordmill.sources.values.conform import conform
from recordmill.sources.values.overrides import finish_schema
from recordmill.storage.digest import combine
from recordmill.storage.files import Stat, ahead, check_unchanged
from recordmill.storage.listed.files import InputFile, settled


@dataclass(frozen=True)
class JsonlOptions:
    """encoding: of all files, any that Python knows.
    max_line_bytes: a longer line is a reject, so that no line exhausts the memory.
    """

    encoding: str = "utf-8"
    max_line_bytes: int = MAX_LINE_BYTES

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoding", check_encoding(self.encoding))
        if not 1 <= self.max_line_bytes <= 1 << 30:
            raise UsageError(f"--max-line-bytes {self.max_line_bytes}: it lies between 1 and {1 << 30}")


@dataclass(frozen=True)
class JsonlSource:
    """paths: by feature, where in the record it stands.
    streamed: the ordinals of files that can't be cut into ranges. base64: the features whose strings stand for bytes.
    """

    schema: Schema
    files: Sequence[InputFile]
    units: tuple[Unit, ...]
    options: JsonlOptions
    paths: Mapping[str, Path]
    streamed: frozenset[int]
    digests: Mapping[int, str]
    notes: tuple[str, ...] = ()
    plan_rejects: tuple[Reject, ...] = ()
    base64: tuple[str, ...] = ()
    kept: Kept[Piece] = field(default_factory=Kept, compare=False, repr=False)
    kind: str = "jsonl"

    def read(self, unit: Unit) -> Iterator[Chunk]:
        """The unit's records in order; a unit without a stop is whole files."""
        for ordinal in self._coming(unit):
            file, line = self.files[ordinal], unit.first_row
            check_unchanged(file.path, file.stat, file.name)
            for piece in self._pieces(ordinal, unit):
                yield _chunk(ordinal, file.name, line, piece)
                line += piece.count
            check_unchanged(file.path, file.stat, file.name)

    def places(self, file: int, positions: Sequence[int]) -> list[str]:
        """Where people find these records: see sources.contract.RecordPlaces."""
        return [_place(position) for position in positions]

    def _coming(self, unit: Unit) -> Iterable[int]:
        """The unit's files; what is in a store and not kept is asked for ahead."""
        ordinals = range(unit.first_file, unit.last_file)
        return ordinals if unit.start else ahead(ordinals, self._wanted)

    def _wanted(self, ordinal: int) -> tuple[str, Stat] | None:
        file = self.files[ordinal]
        return None if self.kept.has((ordinal, 0)) else (file.path, file.stat)

    def _pieces(self, ordinal: int, unit: Unit) -> Iterator[Piece]:
        """All records of the unit in that file; a piece counts lines."""
        file, most = self.files[ordinal], self.options.max_line_bytes
        layout, scanner = Layout(self.schema, self.paths, frozenset(self.base64)), Scanner()
        start, stop = (unit.start, unit.stop) if unit.stop else (0, file.stat.size_bytes)
        if (pieces := self.kept.take((ordinal, start))) is not None:
            yield from (replace(piece, batch=layout.finished(piece.batch)) for piece in pieces)
            return
        streamed = ordinal in self.streamed
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


def _chunk(ordinal: int, source: str, line: int, piece: Piece) -> Chunk:
    """The chunk of a piece of one file, whose first line has that number."""
    rejects = (Reject(source, _place(line + one.ordinal), one.reason, one.message) for one in piece.rejects)
    position = piece.positions(line)
    return Chunk(piece.batch, np.full(len(position), ordinal, np.uint32), position, tuple(rejects))


def plan_jsonl(files: Sequence[InputFile], options: JsonlOptions, common: PlanOptions) -> JsonlSource:
    """Scan every line of the files for types and rows.

    Raises:
        DataError: no record at all, a place in the records with values of two forms, a file that is damaged or changes.
        UsageError: an option names a column that is not there.
    """
    common, base64 = declared_base64(common)
    tasks = make_tasks(files, options.encoding)
    label = common.label if common.schema is None else None
    asked = untold_bytes(common)
    kept, expected = Kept[Piece]() if asked else common.room_for_parsed(), Expected(common, base64)
    parts = scan_parts(
        *(files, tasks, options.encoding, options.max_line_bytes, label, asked, common.threads),
        keeper=lambda: LineKeeper(expected, kept),
    )
    units, where = _units(files, parts)
    observed, classes = Observed(), None
    for part in parts:
        observed.merge(part.observed)
        if part.classes is not None:
            classes = part.classes if classes is None else classes + part.classes
    if not observed.rows:
        raise _nothing(files, options, parts)
    inferred = infer_features(observed, Declared.of(common), where)
    schema, notes = finish_schema(inferred.schema, inferred.untold, classes, common, "the files")
    conform(_empty(schema, inferred.paths), schema)  # that lists are where the schema has lists
    final = layout_of(inferred.schema, inferred.paths, common, base64)
    kept.settle(lambda used: used.agrees(final))
    streamed = frozenset(task.ordinal for task in tasks if task.streamed)
    found, binary = tell_base64(_strings_seen(parts))
    blank = note_blank_lines(_blank_lines(files, parts))
    told = (*_arrays(files, tasks), *inferred.notes, *binary, *blank, *notes)
    source = JsonlSource(schema, settled(files), units, options, final.paths, streamed, _digests(parts), told)
    return replace(source, base64=tuple(sorted(base64 | found)), kept=kept)


def _arrays(files: Sequence[InputFile], tasks: Sequence[Task]) -> tuple[str, ...]:
    """A note on the files that are JSON arrays."""
    names = [files[task.ordinal].name for task in tasks if task.array]
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return (f"JSON arrays, whose elements are read as lines ({len(names):,}): {shown}",) if names else ()


def _strings_seen(parts: Sequence[ScannedFile]) -> dict[str, StringsSeen]:
    total: dict[str, StringsSeen] = {}
    for part in parts:
        for name, seen in part.strings.items():
            total[name] = total.get(name, StringsSeen()) + seen
    return total


def _blank_lines(files: Sequence[InputFile], parts: Sequence[ScannedFile]) -> Counter[str]:
    found = Counter[str]()
    for part in parts:
        found[files[part.task.ordinal].name] += 0 if part.task.array else part.lines - part.records
    return found


def _units(
    files: Sequence[InputFile], parts: Sequence[ScannedFile]
) -> tuple[tuple[Unit, ...], dict[int, tuple[str, int]]]:
    """(units, by part its file's name and first line). Small files that follow each other share a unit."""
    units: list[Unit] = []
    where: dict[int, tuple[str, int]] = {}
    line = 0
    for number, part in enumerate(parts):
        ordinal = part.task.ordinal
        first = number == 0 or parts[number - 1].task.ordinal != ordinal
        whole = first and (number + 1 == len(parts) or parts[number + 1].task.ordinal != ordinal)
        line = 0 if first else line
        where[number] = files[ordinal].name, line
        size = part.content_bytes
        if whole:
            units.append(Unit(ordinal, ordinal + 1, rows=part.records, size_bytes=size))
        elif part.stop > part.start:
            units.append(Unit(ordinal, ordinal + 1, part.start, part.stop, line, part.records, size))
        line += part.lines
    return packed(units, UNIT_BYTES), where


def _digests(parts: Sequence[ScannedFile]) -> dict[int, str]:
    chunks: dict[int, list[bytes]] = {}
    for part in parts:
        chunks.setdefault(part.task.ordinal, []).extend(part.digests)
    return {
        **{ordinal: combine(found) for ordinal, found in chunks.items()},
        **{p.task.ordinal: p.digest for p in parts if p.digest is not None},
    }


def _nothing(files: Sequence[InputFile], options: JsonlOptions, parts: Sequence[ScannedFile]) -> DataError:
    """Why there is no record: the first bad line, if there is one."""
    ordinal = next((part.task.ordinal for part in parts if part.records), None)
    if ordinal is None:
        return DataError("there are no lines", source=files[0].name if files else "")
    empty = JsonlSource(
        Schema(()), settled(files), (), options, {}, frozenset(p.task.ordinal for p in parts if p.task.streamed), {}
    )
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
