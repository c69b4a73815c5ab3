"""A file that is one JSON array of objects in, its elements as lines out: byte for byte in place, so that a file of any
size is read as a stream.

The comma between two elements becomes a line feed and the brackets blanks; line feeds inside elements become blanks, or
carriage returns inside strings, where either is an error all the same. What an element holds is the scanner's matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from recordmill.base.errors import DataError
from recordmill.base.kernels import kernel
from recordmill.base.threads import one_ahead
from recordmill.sources.inputs.contract import BATCH_BYTES
from recordmill.sources.inputs.encoding import utf8_blocks
from recordmill.sources.inputs.lines import LineBlock, stream_lines, whole_lines
from recordmill.storage.compression import COMPRESSED_HEAD_BYTES
from recordmill.storage.files import Bytes
from recordmill.storage.listed.files import InputFile

_DEPTH, _STRING, _ESCAPED, _FILLED, _ELEMENTS = range(5)  # what the state holds
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
    state = np.zeros(5, np.int64)
    for block in blocks:
        lines = np.array(block)
        fault = _to_lines(lines, state)
        if fault:
            what = "something stands behind the JSON array's end" if fault == 2 else "a value is missing between commas"
            raise DataError(what, source=source, place=f"element {int(state[_ELEMENTS])}")
        yield lines
    if state[_DEPTH] >= 0:
        raise DataError(
            "the JSON array has no end: the file is cut off", source=source, place=f"element {int(state[_ELEMENTS])}"
        )


@kernel
def _to_lines(data: Bytes, state: npt.NDArray[np.int64]) -> int:
    """Rewrite the bytes; 0, or 1 for a missing value, 2 for bytes behind the end (depth -1)."""
    depth, string, escaped, filled, elements = state[0], state[1], state[2], state[3], state[4]
    fault = 0
    for at in range(len(data)):
        byte = data[at]
        if string:
            if escaped:
                escaped = 0
            elif byte == 92:  # backslash
                escaped = 1
            elif byte == 34:  # quote
                string = 0
            if byte == 10:
                data[at] = 13
            continue
        if byte == 10 or byte == 13 or byte == 9 or byte == 32:
            data[at] = 32
            continue
        if depth < 0:
            fault = 2
            break
        if depth == 0:  # the array's own bracket
            depth = 1
            data[at] = 32
        elif depth == 1 and (byte == 44 or byte == 93):  # comma, closing bracket
            if not filled and (byte == 44 or elements > 0):
                fault = 1
                break
            elements += 1
            filled = 0
            data[at] = 10
            depth = -1 if byte == 93 else 1
        else:
            filled = 1
            if byte == 34:
                string = 1
            elif byte == 123 or byte == 91:  # opening
                depth += 1
            elif byte == 125 or byte == 93:  # closing
                depth -= 1
                if depth < 1:
                    fault = 1
                    break
    state[0], state[1], state[2], state[3], state[4] = depth, string, escaped, filled, elements
    return fault
