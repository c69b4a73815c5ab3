"""Files of JSON lines in, what the plan needs to know of them out:
types, rows, digests and where to cut, from one pass on all threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from recordmill.base.threads import thread_map
from recordmill.schemas.feature import Feature
from recordmill.sources.inputs.encoding import is_plain
from recordmill.sources.inputs.lines import LineBlock, LineStarts, cut_regions, file_lines
from recordmill.sources.jsonl.array import is_array, stream_records
from recordmill.sources.jsonl.binary import StringsSeen
from recordmill.sources.jsonl.columns import Leaf, build_columns
from recordmill.sources.jsonl.grammar import ESCAPED, STRING
from recordmill.sources.jsonl.keep import LineKeeper
from recordmill.sources.jsonl.rejects import mark_unreadable
from recordmill.sources.jsonl.schema import Observed, feature_name
from recordmill.sources.jsonl.tape import Scanner, Tape
from recordmill.sources.values.labels import ClassNames
from recordmill.storage.digest import DIGESTED_BYTES, chunk_digests, file_chunk_digests
from recordmill.storage.files import Stat, ahead, check_unchanged, read_range
from recordmill.storage.listed.files import InputFile


@dataclass(frozen=True)
class Task:
    """One file's byte range; a streamed file is one task. array: it is one JSON array, which is streamed."""

    ordinal: int
    start: int
    stop: int
    streamed: bool
    array: bool = False


@dataclass(frozen=True)
class Extent:
    """What is kept of a part when all are scanned; see `Task` and `ScannedFile`."""

    ordinal: int
    start: int
    stop: int
    lines: int
    records: int
    content_bytes: int
    streamed: bool
    array: bool


COUNTS = ("ordinal", "start", "stop", "lines", "records", "content_bytes")  # of an extent, which differ


@dataclass
class ScannedFile:
    """What a task found: the range moved to line starts, lines (blank ones included), records and bad lines in it.

    classes: the label's texts. strings: what the features that are asked for have.
    """

    task: Task
    start: int = 0
    stop: int = 0
    lines: int = 0
    records: int = 0
    content_bytes: int = 0
    observed: Observed = field(default_factory=Observed)
    classes: ClassNames | None = None
    strings: dict[str, StringsSeen] = field(default_factory=dict)
    digests: list[bytes] = field(default_factory=list)

    @property
    def extent(self) -> Extent:
        task, found = self.task, (self.start, self.stop, self.lines, self.records, self.content_bytes)
        return Extent(task.ordinal, *found, task.streamed, task.array)


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
    label: str | None,
    binary: frozenset[str],
    threads: int,
    keeper: Callable[[], LineKeeper],
) -> Iterator[ScannedFile]:
    """The parts, in the tasks' order. binary: features of which it is asked whether their strings are base64. keeper:
    makes what keeps the records of a part.

    Raises:
        DataError: a file changed while it was read, is damaged, or has too many different keys.
    """

    line_starts = LineStarts.of_each(files)

    def work(number_and_task: tuple[int, Task]) -> ScannedFile:
        number, task = number_and_task
        file = files[task.ordinal]
        part = ScannedFile(task)
        if task.streamed:
            part.digests.extend(file_chunk_digests(file.path))
            blocks = stream_records(file, encoding, max_line_bytes)
        else:
            part.start, part.stop = map(line_starts(task.ordinal).at, (task.start, task.stop))
            for at in range(task.start, task.stop, DIGESTED_BYTES):
                part.digests.extend(chunk_digests(read_range(file.path, at, min(at + DIGESTED_BYTES, task.stop))))
            blocks = file_lines(file, part.start, part.stop, max_line_bytes)
        keeping = keeper()
        _scan(part, number, blocks, label, binary, keeping)
        check_unchanged(file.path, file.stat, file.name)
        keeping.put(task.ordinal, part.start)
        return part

    def begins(number_and_task: tuple[int, Task]) -> tuple[str, Stat] | None:
        task = number_and_task[1]
        return None if task.start else (files[task.ordinal].path, files[task.ordinal].stat)

    return thread_map(work, ahead(enumerate(tasks), begins), threads)


def _scan(
    part: ScannedFile,
    number: int,
    blocks: Iterable[LineBlock],
    label: str | None,
    binary: frozenset[str],
    keeper: LineKeeper,
) -> None:
    scanner = Scanner()
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
                for texts in _strings(tape, scanner, label, lists=False):
                    part.classes = part.classes or ClassNames(label)
                    part.classes.add(texts)
            for name in binary:
                for texts in _strings(tape, scanner, name, lists=True):
                    part.strings[name] = part.strings.get(name, StringsSeen()) + StringsSeen.of(texts)
            part.lines += tape.lines
            part.records += tape.rows + len(tape.errors)


def _strings(tape: Tape, scanner: Scanner, name: str, *, lists: bool) -> Iterator[pa.Array]:
    """The strings of that feature, inside of lists or not; one in several places is told later."""
    paths = scanner.paths
    for node in [node for node, path in enumerate(paths) if node and feature_name(path) == name]:
        kinds = tape.entries[tape.of(node), 0] & 15
        if (None in paths[node]) <= lists and ((kinds == STRING) | (kinds == ESCAPED)).any():
            leaf = Leaf(Feature(name, "string"), scanner.nodes_of(paths[node]), paths[node])
            texts = build_columns(tape, [leaf])[0].column(0)
            while pa.types.is_nested(texts.type):
                texts = texts.flatten()
            yield texts
