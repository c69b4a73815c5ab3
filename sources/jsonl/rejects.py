"""What is wrong with a line of JSON, or with a value in it, as a reason and a message that says what to do."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence

from recordmill.base.option_names import option
from recordmill.base.utf8 import bad_lines, is_utf8
from recordmill.schemas.feature import Feature
from recordmill.sources.inputs.lines import LineBlock
from recordmill.sources.jsonl.columns import Misfit
from recordmill.sources.jsonl.grammar import ARRAY, FLOAT, INT, OBJECT, UTF8, WRONG
from recordmill.sources.jsonl.scan import UNREADABLE
from recordmill.sources.jsonl.tape import Tape
from recordmill.sources.values.conform import quoted_value, remedy

_QUOTED = 200  # bytes of a value that are read to quote it
_NAMES = {ARRAY: "a list", OBJECT: "an object"}


def mark_unreadable(block: LineBlock) -> Mapping[int, tuple[int, int]]:
    """By start of line that is not UTF-8: (place of the first bad byte, that byte);
    the scanner then passes over these lines.
    """
    if is_utf8(block.data):
        return {}
    starts, places = bad_lines(block.data)
    found = {
        start: (place - start, int(block.data[place]))
        for start, place in zip(starts.tolist(), places.tolist(), strict=True)
    }
    block.data[starts] = UNREADABLE
    return found


def line_reject(tape: Tape, error: Sequence[int], unreadable: Mapping[int, tuple[int, int]]) -> tuple[str, str]:
    """(reason, message) for an entry of tape.errors."""
    _, wrong, at, start = error
    if wrong == UTF8 and start in unreadable:
        offset, byte = unreadable[start]
        return (
            "encoding",
            f"is not UTF-8: byte 0x{byte:02X} at byte {offset} of the line; declare the file's {option('encoding')}",
        )
    text = tape.data[at : at + 24].tobytes().split(b"\n")[0].decode(errors="replace")
    return "json", f"{WRONG[wrong]}: at byte {at - start} of the line{f', {text!r}' if text else ''}"


def too_long(size: int, limit: int) -> tuple[str, str]:
    """(reason, message) for a line that was passed over."""
    return "too_long", f"the line has {size:,} bytes, more than the {limit:,} that {option('max_line_bytes')} allows"


def explain_misfits(tape: Tape, misfits: Sequence[Misfit]) -> Iterator[tuple[int, str, str]]:
    """(record on the tape, reason, message) of each value that is no such feature."""
    for feature, entries in misfits:
        for row, entry in zip(tape.rows_of(entries).tolist(), entries.tolist(), strict=True):
            yield row, *_explain(tape, entry, feature)


def _explain(tape: Tape, entry: int, feature: Feature) -> tuple[str, str]:
    head, _, start, stop = tape.entries[entry].tolist()
    text = tape.data[start : min(stop, start + _QUOTED)].tobytes().decode(errors="replace")
    kind = head & 15
    if feature.dtype == "bytes" and kind not in _NAMES:
        keeps = f"{option('dtypes', {feature.name: 'bytes'})} keeps text as it is"
        return "type", f"{feature.name}: {quoted_value(text)} is no base64; {keeps}"
    if kind in _NAMES:
        return "type", f"{feature.name}: {_NAMES[kind]} where {feature.describe()} is expected: {quoted_value(text)}"
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if isinstance(value, float) and math.isinf(value) and "Inf" not in text:
        value = text  # 1e999: only a string keeps it
    reason = "range" if kind in (INT, FLOAT) else "type"
    return reason, f"{feature.name}: {text[:60]} does not fit {feature.describe()}{remedy(value, feature)}"
