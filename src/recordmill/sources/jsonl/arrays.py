"""Conversion of JSON arrays to lines.

Each element of the array is a record. The array is the document itself or a member of it, such as
`data` in `{"data": [...]}`. Documents of any size are read in blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from recordmill.base import native
from recordmill.base.errors import DataError
from recordmill.base.option_names import option
from recordmill.sources.common.encoding import read_utf8_blocks
from recordmill.storage.compression import COMPRESSED_HEAD_BYTES
from recordmill.storage.file_table import InputFile
from recordmill.storage.files import Bytes

_JSON_SPACE = b" \t\r\n"


def is_json_array(file: InputFile, encoding: str) -> bool:
    """Returns whether a file begins like an array of objects: `[` and then `{`."""
    head = next(read_utf8_blocks(file, encoding, COMPRESSED_HEAD_BYTES), np.empty(0, np.uint8))[
        :COMPRESSED_HEAD_BYTES
    ]
    text = head.tobytes().lstrip(_JSON_SPACE)
    return text.startswith(b"[") and text[1:].lstrip(_JSON_SPACE).startswith(b"{")


def read_elements(
    blocks: Iterable[Bytes], source: str, keys: Sequence[str] = ()
) -> Iterator[Bytes]:
    """Yields the elements of an array, each in one line.

    Args:
        blocks: The document in UTF-8.
        source: Name of the file, for messages.
        keys: The keys that lead to the array. Empty if the document is the array.

    Raises:
        DataError: There is no such array, or the document has no end. A value is missing between
            commas. Something follows the array, or a second member has its key.
    """
    array, finder = native.JsonArray(), _MemberFinder(keys, source)
    for block in blocks:
        start = finder.find(block, 0)
        if start == len(block):
            continue
        # A copy, because the native function rewrites the block in place.
        lines = np.array(block[start:])
        error = native.json_array_to_lines(lines, array)
        has_ended = error == native.JsonArrayFault.DATA_AFTER_ARRAY
        if error and not (keys and has_ended):
            problem = (
                "there is something after the end of the JSON array"
                if has_ended
                else "a value is missing between commas"
            )
            raise DataError(problem, source=source, place=f"element {array.elements}")
        if keys and array.depth < 0:
            lines = lines[: array.stop]
            finder.skip_rest(block, start + array.stop)
        yield lines
    if array.depth >= 0 and not finder.is_missing:
        raise DataError(
            "the JSON array has no end: the file is cut off",
            source=source,
            place=f"element {array.elements}",
        )
    finder.check_end()


class _MemberFinder:
    """Position of an array in a document that is read in blocks.

    Args:
        keys: The keys that lead to the array. Empty if the document is the array.
        source: Name of the file, for messages.
    """

    def __init__(self, keys: Sequence[str], source: str) -> None:
        self._keys, self._source = keys, source
        self._names = [np.frombuffer(key.encode(errors="replace"), np.uint8) for key in keys]
        self._level, self._member = 0, native.JsonMember()
        self._is_after_array = False

    @property
    def is_missing(self) -> bool:
        """Whether the array has not been found yet."""
        return self._level < len(self._keys)

    def find(self, block: Bytes, start: int) -> int:
        """Returns the offset where the array begins or continues in a block.

        If the block contains no part of the array, this is the length of the block.

        Raises:
            DataError: The value of a key is neither an array nor an object with the next key.
        """
        if self._is_after_array:
            self.skip_rest(block, start)
            return len(block)
        while self.is_missing:
            name = self._names[self._level]
            start = native.find_json_member(block, start, name, self._member)
            if start < 0:
                raise DataError(
                    f"{self._describe(self._level)} is not an object", source=self._source
                )
            if start == len(block):
                break
            self._level += 1
            if self.is_missing:
                self._member = native.JsonMember()
            elif block[start] != ord("["):
                raise DataError(
                    f"{self._describe(self._level)} is not an array", source=self._source
                )
        return start

    def skip_rest(self, block: Bytes, start: int) -> None:
        """Skips the members of the outer object that follow the array.

        Raises:
            DataError: One of them has the key of the array.
        """
        self._is_after_array = True
        name = self._names[-1]
        if native.find_json_member(block, start, name, self._member) < len(block):
            raise DataError(f"two members are called {self._keys[-1]!r}", source=self._source)

    def check_end(self) -> None:
        """Raises DataError if the array is missing, or its document is cut off."""
        if self.is_missing:
            raise DataError(
                "{describe} has no member {keys}; {record_path} names it",
                describe=self._describe(self._level),
                keys=repr(self._keys[self._level]),
                record_path=option("record_path", ".".join(self._keys)),
                source=self._source,
            )
        if self._keys and self._member.depth >= 0:
            raise DataError(
                "the JSON document has no end: the file is cut off", source=self._source
            )

    def _describe(self, level: int) -> str:
        keys = ".".join(self._keys[:level])
        return f"the member {keys!r}" if keys else "the JSON document"
