"""What the pages of a Parquet file's columns become when they are decompressed, by their own headers.

A reader makes room for a page as its header says, whatever the footer says of the column, and reads it whole.
Headers are PageHeader structs in Thrift's compact protocol (github.com/apache/parquet-format, parquet.thrift;
github.com/apache/thrift, thrift-compact-protocol.md).
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

_HEADER_BYTES = 1 << 10  # 1 KiB, in which most headers stand; those with long statistics are read in more
_MOST_HEADER_BYTES = 16 << 20  # 16 MiB, as Arrow allows it
_UNCOMPRESSED_SIZE, _COMPRESSED_SIZE = 2, 3  # fields of PageHeader
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 12
_MOST_DEPTH = 8  # structs in a PageHeader stand two deep


class PageSizes(NamedTuple):
    """Bytes, decompressed: of all pages of a column, and of the largest one."""

    total: int
    largest: int


class _HeaderError(Exception):
    """What stands there is no header."""


def page_sizes(data: pa.NativeFile, column: pq.ColumnChunkMetaData) -> PageSizes:
    """Those of one column of a row group. Pages behind what is no header are not counted: no reader gets there."""
    at = column.data_page_offset
    if column.dictionary_page_offset is not None and 0 < column.dictionary_page_offset < at:
        at = column.dictionary_page_offset
    stop = at + column.total_compressed_size
    total = largest = 0
    while 0 <= at < stop:
        try:
            uncompressed, compressed, header = _header(data, at)
        except _HeaderError:
            break
        total, largest = total + uncompressed, max(largest, uncompressed)
        at += header + compressed
    return PageSizes(total, largest)


def _header(data: pa.NativeFile, at: int) -> tuple[int, int, int]:
    """(bytes of the page that starts there, its bytes as they are stored, those of its header)."""
    size = _HEADER_BYTES
    while True:
        data.seek(at)
        given = data.read(size)
        try:
            reader = _Compact(given)
            reader.skip_struct(0)
        except IndexError:
            if len(given) < size or size >= _MOST_HEADER_BYTES:
                raise _HeaderError from None
            size *= 8
            continue
        uncompressed, compressed = (reader.sizes.get(one, -1) for one in (_UNCOMPRESSED_SIZE, _COMPRESSED_SIZE))
        if uncompressed < 0 or compressed < 0:
            raise _HeaderError
        return uncompressed, compressed, reader.at


class _Compact:
    """Walks a struct. sizes: the whole numbers that are fields of the outermost one. IndexError: it goes on behind."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0
        self.sizes: dict[int, int] = {}

    def skip_struct(self, depth: int) -> None:
        """Go to the end of the struct that begins here."""
        if depth > _MOST_DEPTH:
            raise _HeaderError
        field = 0
        while head := self._byte():
            kind, step = head & 15, head >> 4
            field = field + step if step else self._zigzag()
            if not depth and kind in (_I16, _I32, _I64):
                self.sizes[field] = self._zigzag()
            elif kind not in (_TRUE, _FALSE):
                self._skip(kind, depth)

    def _skip(self, kind: int, depth: int) -> None:
        if kind in (_TRUE, _FALSE, _BYTE):  # in a list each takes a byte
            self._ahead(1)
        elif kind in (_I16, _I32, _I64):
            self._varint()
        elif kind == _DOUBLE:
            self._ahead(8)
        elif kind == _BINARY:
            self._ahead(self._varint())
        elif kind == _STRUCT:
            self.skip_struct(depth + 1)
        else:  # a PageHeader has no lists, sets and maps
            raise _HeaderError

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
                raise _HeaderError

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
