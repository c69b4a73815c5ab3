"""Files of JSON lines in, what the plan needs to know of them out: types, rows and where to cut, from one pass
on all threads. A file that is one JSON array of objects is read as such lines, byte for byte in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from recordmill.base import native
from recordmill.base.errors import DataError
from recordmill.base.threads import one_ahead, thread_map
from recordmill.schemas.feature import Feature
from recordmill.sources.common.contract import BATCH_BYTES, PlanOptions
from recordmill.sources.common.encoding import is_plain, utf8_blocks
from recordmill.sources.common.lines import LineBlock, LineStarts, cut_regions, file_lines, stream_lines, whole_lines
from recordmill.sources.jsonl.binary import StringCounts
from recordmill.sources.jsonl.columns import SCALARS, STRINGS, Leaf, build_columns
from recordmill.sources.jsonl.records import LineKeeper, mark_unreadable
from recordmill.sources.jsonl.schema import Observed, feature_name
from recordmill.sources.jsonl.tape import Tape, TapeScanner
from recordmill.sources.values.labels import ClassNames
from recordmill.storage.compression import COMPRESSED_HEAD_BYTES
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import Bytes, Stat, ahead, check_unchanged

_SPACE = b" \t\r\n"


def is_array(file: InputFile, encoding: str) -> bool:
    """Whether the file begins as an array of objects: `[`, and then `{`."""
    head = next(utf8_blocks(file, encoding, COMPRESSED_HEAD_BYTES), np.empty(0, np.uint8))[:COMPRESSED_HEAD_BYTES]
    start = head.tobytes().lstrip(_SPACE)
    return start.startswith(b"[") and start[1:].lstrip(_SPACE).startswith(b"{")


def stream_records(file: InputFile, encoding: str, max_line_bytes: int) -> Iterator[LineBlock]:
    """The lines of a file that is read as a stream; of an array its elements.

    Raises:
        DataError: the array has no end, a value is missing in it, or something stands behind it; and as utf8_blocks.
    """
    if not is_array(file, encoding):
        return stream_lines(file, encoding, max_line_bytes)
    return whole_lines(_elements(one_ahead(utf8_blocks(file, encoding, BATCH_BYTES)), file.name), max_line_bytes)


def _elements(blocks: Iterable[Bytes], source: str) -> Iterator[Bytes]:
    array = native.struct_json_array()
    for block in blocks:
        lines = np.array(block)
        fault = native.json_array_to_lines(lines, array)
        if fault:
            is_after = fault == native.JSON_AFTER_ARRAY
            what = "something stands behind the JSON array's end" if is_after else "a value is missing between commas"
            raise DataError(what, source=source, place=f"element {array.elements}")
        yield lines
    if array.depth >= 0:
        raise DataError(
            "the JSON array has no end: the file is cut off", source=source, place=f"element {array.elements}"
        )


@dataclass(frozen=True)
class Task:
    """One file's byte range; a streamed file is one task. array: it is one JSON array, which is streamed."""

    ordinal: int
    start: int
    stop: int
    streamed: bool
    array: bool = False


@dataclass(frozen=True)
class LineExtent:
    """What is kept of a part when all are scanned; see `Task` and `ScannedLines`."""

    ordinal: int
    start: int
    stop: int
    lines: int
    records: int
    content_bytes: int
    streamed: bool
    array: bool


PLAN_COUNTS = ("ordinal", "start", "stop", "lines", "records", "content_bytes")  # of an extent, which differ


@dataclass
class ScannedLines:
    """What a task found: the range moved to line starts, lines (blank ones included), records and bad lines in it.

    classes: the label's values. strings: what the features that are asked for have.
    """

    task: Task
    start: int = 0
    stop: int = 0
    lines: int = 0
    records: int = 0
    content_bytes: int = 0
    observed: Observed = field(default_factory=Observed)
    classes: ClassNames = field(default_factory=lambda: ClassNames(""))
    strings: dict[str, StringCounts] = field(default_factory=dict)

    @property
    def extent(self) -> LineExtent:
        task, found = self.task, (self.start, self.stop, self.lines, self.records, self.content_bytes)
        return LineExtent(task.ordinal, *found, task.streamed, task.array)


def make_tasks(files: Sequence[InputFile], encoding: str) -> Iterator[Task]:
    """The tasks in order of file and place."""
    for ordinal, file in enumerate(files):
        plain, array = is_plain(file, encoding), is_array(file, encoding)
        if array or not plain:
            yield Task(ordinal, 0, file.stat.size_bytes, True, array)
        else:
            for start, stop in cut_regions(file.stat.size_bytes) or [(0, 0)]:
                yield Task(ordinal, start, stop, False)


def scan_parts(
    files: Sequence[InputFile],
    tasks: Iterable[Task],
    encoding: str,
    max_line_bytes: int,
    label: tuple[str, str] | None,
    binary: frozenset[str],
    common: PlanOptions,
    keeper: Callable[[], LineKeeper],
) -> Iterator[ScannedLines]:
    """The parts, in the tasks' order. label: its name, and which of its values are classes: STRINGS or SCALARS. binary:
    features of which it is asked whether their strings are base64. keeper: makes what keeps the records of a part.

    Raises:
        DataError: a file changed while it was read, is damaged, or has too many different keys.
    """

    line_starts = LineStarts.of_each(files)

    def work(number_and_task: tuple[int, Task]) -> ScannedLines:
        number, task = number_and_task
        file = files[task.ordinal]
        part = ScannedLines(task)
        if task.streamed:
            blocks = stream_records(file, encoding, max_line_bytes)
        else:
            part.start, part.stop = map(line_starts(task.ordinal).at, (task.start, task.stop))
            blocks = file_lines(file, part.start, part.stop, max_line_bytes)
        keeping = keeper()
        _scan(part, number, blocks, label, binary, keeping, common.memory_bytes, file.name)
        check_unchanged(file.path, file.stat, file.name)
        keeping.put(task.ordinal, part.start)
        return part

    def begins(number_and_task: tuple[int, Task]) -> tuple[str, Stat] | None:
        task = number_and_task[1]
        return None if task.start else (files[task.ordinal].path, files[task.ordinal].stat)

    return thread_map(work, ahead(enumerate(tasks), begins), common.threads)


def _scan(
    part: ScannedLines,
    number: int,
    blocks: Iterable[LineBlock],
    label: tuple[str, str] | None,
    binary: frozenset[str],
    keeper: LineKeeper,
    memory_bytes: int,
    source: str,
) -> None:
    scanner = TapeScanner(memory_bytes, source)
    for block in blocks:
        part.content_bytes += len(block.data)
        if block.too_long_bytes:
            part.lines += 1
            part.records += 1
            keeper.give_up()
        unreadable = mark_unreadable(block)
        for tape in scanner.scan(block.data):
            part.observed.add(tape, scanner.paths, number, part.lines)
            keeper.add(tape, scanner, unreadable, part.observed)
            if label is not None:
                for texts in _strings(tape, scanner, *label):
                    part.classes.add(texts)
            for name in binary:
                for texts in _strings(tape, scanner, name, STRINGS):
                    part.strings[name] = part.strings.get(name, StringCounts()) + StringCounts.of(texts)
            part.lines += tape.lines
            part.records += tape.rows + len(tape.errors)


def _strings(tape: Tape, scanner: TapeScanner, name: str, text: str) -> Iterator[pa.Array]:
    """The strings of that feature, or all its scalars as they are written, inside of lists or not; one in several
    places is told later.
    """
    paths = scanner.paths
    for node in [node for node, path in enumerate(paths) if node and feature_name(path) == name]:
        kinds = tape.entries[tape.of(node), 0] & 15
        if (
            ((kinds > native.JSON_NULL) & (kinds < native.JSON_OBJECT)).any()
            if text == SCALARS
            else ((kinds == native.JSON_STRING) | (kinds == native.JSON_ESCAPED)).any()
        ):
            leaf = Leaf(Feature(name, "string"), scanner.nodes_of(paths[node]), paths[node], text=text)
            texts = build_columns(tape, [leaf])[0].column(0)
            while pa.types.is_nested(texts.type):
                texts = texts.flatten()
            yield texts
