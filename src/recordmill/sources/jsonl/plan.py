"""Files of JSON lines in, what the plan needs to know of them out: types, rows and where to cut, from one pass
on all threads. A file that is one JSON array of objects is read as such lines, byte for byte in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from recordmill.base import native
from recordmill.base.errors import DataError
from recordmill.base.threads import one_ahead
from recordmill.schemas.feature import Feature
from recordmill.sources.common.contract import BATCH_BYTES, PlanOptions
from recordmill.sources.common.encoding import utf8_blocks
from recordmill.sources.common.lines import LineBlock, LineRange, line_ranges, scan_ranges, stream_lines, whole_lines
from recordmill.sources.jsonl.binary import StringCounts
from recordmill.sources.jsonl.columns import SCALARS, STRINGS, Leaf, build_columns
from recordmill.sources.jsonl.records import LineKeeper, mark_unreadable
from recordmill.sources.jsonl.schema import Observed, feature_name
from recordmill.sources.jsonl.tape import Tape, TapeScanner
from recordmill.sources.values.labels import ClassNames
from recordmill.storage.compression import COMPRESSED_HEAD_BYTES
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import Bytes

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
    array = native.JsonArray()
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


@dataclass
class ScannedLines:
    """Findings of a scan of one range.

    Attributes:
        extent: The range, with what was counted.
        observed: The values at each place of the records.
        classes: The label's values.
        strings: The strings of features that may be base64.
    """

    extent: LineRange
    observed: Observed = field(default_factory=Observed)
    classes: ClassNames = field(default_factory=lambda: ClassNames(""))
    strings: dict[str, StringCounts] = field(default_factory=dict)


def scan_parts(
    files: Sequence[InputFile],
    encoding: str,
    max_line_bytes: int,
    label: tuple[str, str] | None,
    binary: frozenset[str],
    common: PlanOptions,
    keeper: Callable[[], LineKeeper],
) -> Iterator[ScannedLines]:
    """Scans the files, by ranges.

    Args:
        files: The files.
        encoding: Their encoding.
        max_line_bytes: A longer line is passed over.
        label: The label's name, and which of its values are classes: STRINGS or SCALARS.
        binary: Features of which it is asked whether their strings are base64.
        common: The options of the plan.
        keeper: Makes what keeps the records of a range.

    Yields:
        The findings, in the order of the ranges.

    Raises:
        DataError: A file changed while it was read, is damaged, or has too many different keys.
    """

    def scan(number: int, extent: LineRange, blocks: Iterator[LineBlock]) -> ScannedLines:
        keeping, source = keeper(), files[extent.ordinal].name
        part = _scan(extent, number, blocks, label, binary, keeping, common.memory_bytes, source)
        keeping.put(extent.ordinal, extent.start)
        return part

    def stream(file: InputFile) -> Iterator[LineBlock]:
        return stream_records(file, encoding, max_line_bytes)

    ranges = line_ranges(files, encoding, lambda file: is_array(file, encoding))
    return scan_ranges(files, ranges, scan, stream, max_line_bytes, common.threads)


def _scan(
    extent: LineRange,
    number: int,
    blocks: Iterable[LineBlock],
    label: tuple[str, str] | None,
    binary: frozenset[str],
    keeper: LineKeeper,
    memory_bytes: int,
    source: str,
) -> ScannedLines:
    scanner, part = TapeScanner(memory_bytes, source), ScannedLines(extent)
    lines = records = size = 0
    for block in blocks:
        size += len(block.data)
        if block.too_long_bytes:
            lines, records = lines + 1, records + 1
            keeper.give_up()
        unreadable = mark_unreadable(block)
        for tape in scanner.scan(block.data):
            part.observed.add(tape, scanner.paths, number, lines)
            keeper.add(tape, scanner, unreadable, part.observed)
            if label is not None:
                for texts in _strings(tape, scanner, *label):
                    part.classes.add(texts)
            for name in binary:
                for texts in _strings(tape, scanner, name, STRINGS):
                    part.strings[name] = part.strings.get(name, StringCounts()) + StringCounts.of(texts)
            lines += tape.lines
            records += tape.rows + len(tape.errors)
    part.extent = replace(extent, lines=lines, records=records, content_bytes=size)
    return part


def _strings(tape: Tape, scanner: TapeScanner, name: str, text: str) -> Iterator[pa.Array]:
    """The strings of that feature, or all its scalars as they are written, inside of lists or not; one in several
    places is told later.
    """
    paths = scanner.paths
    for node in [node for node, path in enumerate(paths) if node and feature_name(path) == name]:
        kinds = tape.kinds[tape.values_of(node)]
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
