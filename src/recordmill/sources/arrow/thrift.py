"""Walks structs in Thrift's compact protocol, as those of Parquet are (github.com/apache/thrift,
thrift-compact-protocol.md).
"""

from __future__ import annotations

from collections.abc import Iterator

WHOLE_NUMBERS = (4, 5, 6)  # types of 16, 32 and 64 bits
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_MOST_DEPTH = 16  # structs and lists of Parquet stand six deep


class ThriftError(Exception):
    """What stands there is no struct."""


class CompactReader:
    """IndexError: the struct goes on behind the bytes that there are."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data, self.at = data, at

    def fields(self) -> Iterator[tuple[int, int]]:
        """(number, type) of each field of the struct that begins here; its value is read or skipped before the next.

        Raises:
            ThriftError: no struct begins here.
        """
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self.integer()
            yield field, head & 15

    def items(self) -> Iterator[int]:
        """The type of each item of the list that begins here; it is read or skipped before the next."""
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        for _ in range(count):
            yield head & 15

    def integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def skip(self, kind: int, depth: int = 0) -> None:
        """A field of that type."""
        if kind in WHOLE_NUMBERS:
            self._varint()
        elif kind == _BINARY:
            self._ahead(self._varint())
        elif kind == _DOUBLE:
            self._ahead(8)
        elif kind == _BYTE:
            self._ahead(1)
        elif depth > _MOST_DEPTH:
            raise ThriftError
        elif kind == _STRUCT:
            for _, kind in self.fields():
                self.skip(kind, depth + 1)
        elif kind in (_LIST, _SET):
            for kind in self.items():
                self.skip(_BYTE if kind in (_TRUE, _FALSE) else kind, depth + 1)
        elif kind not in (_TRUE, _FALSE):  # Parquet has no maps
            raise ThriftError

    def _ahead(self, count: int) -> None:
        self.at += count
        if self.at > len(self._data):
            raise IndexError

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7
            if shift > 63:
                raise ThriftError
